#include "levels_gpus.h"

#include <stdlib.h>
#include <string.h>

#include "device_sums.h"
#include "log.h"

/* At the beginning of a board's pieces. */
typedef struct gpu_offer {
    atomic_bool given; // the handle
    atomic_bool met;   // it has found all others'
    uint8_t handle[PS_DEVICE_SUMS_HANDLE];
} gpu_offer;

static gpu_offer *gpu_offer_of(const ps_levels *l, int place)
{
    return (gpu_offer *)(void *)l->boards[place]->pieces[0];
}

static ps_err gpus_barrier(const ps_exchange_options *o, const char *name)
{
    return ps_member_barrier(o->member, name, ps_exchange_join_deadline(o));
}

static void gpus_give(const ps_exchange_options *o, const ps_levels *l)
{
    gpu_offer *own = gpu_offer_of(l, l->own);
    if (!*o->sums) return;
    memcpy(own->handle, (*o->sums)->handle, sizeof own->handle);
    atomic_store(&own->given, true);
}

static bool gpus_all_given(const ps_levels *l)
{
    for (int i = 0; i < l->n; i++)
        if (!atomic_load(&gpu_offer_of(l, i)->given)) return false;
    return true;
}

static bool gpus_all_met(const ps_levels *l)
{
    for (int i = 0; i < l->n; i++)
        if (!atomic_load(&gpu_offer_of(l, i)->met)) return false;
    return true;
}

static ps_err gpus_meet(const ps_exchange_options *o, const ps_levels *l)
{
    const uint8_t **handles;
    if (!gpus_all_given(l)) return PS_OK;
    PS_TRY(PS_NEW(&handles, (size_t)l->n, "the host's GPUs"));
    for (int i = 0; i < l->n; i++)
        handles[i] = gpu_offer_of(l, i)->handle;
    ps_err err =
        (*o->sums)->ops->meet(*o->sums, handles, l->n, l->own, ps_levels_weights_arena(l),
                              ps_levels_sums_arena(l));
    free((void *)handles);
    if (err == PS_OK) atomic_store(&gpu_offer_of(l, l->own)->met, true);
    if (err != PS_ERR_UNSUPPORTED) return err;
    PS_WARN("levels", "sums=host reason=\"%s\"", ps_err_message());
    return PS_OK;
}

ps_err ps_levels_meet_gpus(const ps_exchange_options *o, ps_levels *l)
{
    if (l) gpus_give(o, l);
    PS_TRY(gpus_barrier(o, "levels/given"));
    if (l) PS_TRY(gpus_meet(o, l));
    PS_TRY(gpus_barrier(o, "levels/met"));
    const bool used = l && gpus_all_met(l);
    if (*o->sums && !used) (*o->sums)->ops->part(*o->sums);
    PS_TRY(gpus_barrier(o, "levels/parted"));
    if (*o->sums && !used) (*o->sums)->ops->destroy(o->sums, true);
    if (!used) return PS_OK;
    l->sums = *o->sums;
    if (ps_levels_leads(l))
        PS_INFO("levels", "sums=gpu note=\"the GPUs of this host read each other's "
                          "memory\"");
    return PS_OK;
}
