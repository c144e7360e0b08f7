#include "shm_peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "log.h"
#include "shm_door.h"
#include "shm_offer.h"

struct ps_shm_peers {
    ps_shm_door *door;
    ps_shared_mem board; // this rank's
    int rank;
};

static bool is_here(const ps_exchange_options *o, int rank)
{
    const ps_roster *roster = ps_member_roster(o->member);
    return ps_roster_same_host(&roster->workers[o->rank], &roster->workers[rank]);
}

static int shm_peers_count_here(const ps_exchange_options *o)
{
    int n = 0;
    for (int r = 0; r < o->world_size; r++)
        n += is_here(o, r);
    return n;
}

/* Whether all workers say yes. */
static ps_err shm_peers_agree(const ps_exchange_options *o, const char *on, bool mine,
                              bool *all)
{
    double yes = mine;
    PS_TRY(ps_member_reduce(o->member, on, &yes, 1, ps_exchange_join_deadline(o)));
    *all = yes == (double)o->world_size;
    return PS_OK;
}

static ps_err shm_peers_open_door(const ps_exchange_options *o, ps_shm_peers *p)
{
    const ps_job_key key = ps_job_key_shm(PS_ROLE_WORKER, o->rank);
    const ps_shm_door_rings boards = {.bytes = p->board.bytes};
    ps_err err =
        ps_shm_door_create(ps_member_roster(o->member)->nonce, (uint32_t)o->world_size,
                           o->params->bytes, &boards, &p->door);
    // an empty name spares the others the wait
    const char *name = err == PS_OK ? ps_shm_door_name(p->door) : "";
    PS_TRY(ps_member_put(o->member, key.text, name, strlen(name),
                         ps_exchange_join_deadline(o)));
    return err;
}

/* With all workers of this host. */
static ps_err exchange_arenas(const ps_exchange_options *o, ps_shm_peers *p)
{
    const ps_shm_offer_more board = {.rings = &p->board};
    PS_TRY(shm_peers_open_door(o, p));
    for (int r = 0; r < o->world_size; r++) {
        const ps_job_key key = ps_job_key_shm(PS_ROLE_WORKER, r);
        if (r == o->rank || !is_here(o, r)) continue;
        ps_err err = ps_shm_offer_at(o, key.text, &board);
        if (err == PS_OK) continue;
        ps_err_prefix(err, "shared memory with worker %d", r);
        return err;
    }
    return PS_OK;
}

/* With exchange.shm on an error; otherwise logs that TCP is used instead. */
static ps_err shm_peers_without(const ps_exchange_options *o, const char *reason)
{
    if (o->settings.shm == PS_SWITCH_ON)
        return ps_err_set(PS_ERR_CONFIG, "exchange.shm is on, but %s", reason);
    return PS_OK;
}

/* *out is to be closed in every case. */
static ps_err open_peers(const ps_exchange_options *o, uint64_t board_bytes,
                         ps_shm_peers **out)
{
    ps_shm_peers *p;
    PS_TRY(PS_NEW(out, 1, "shared memory"));
    p = *out;
    p->rank = o->rank;
    PS_TRY(ps_shared_mem_init(&p->board, board_bytes, "a board"));
    return exchange_arenas(o, p);
}

/* Whether the others have really handed in what they say. */
static ps_err shm_peers_check(const ps_exchange_options *o, const ps_shm_peers *p)
{
    for (int r = 0; r < o->world_size; r++) {
        if (r == o->rank || !is_here(o, r)) continue;
        if (ps_shm_peers_grads(p, r) && ps_shm_peers_board(p, r)) continue;
        return ps_err_set(PS_ERR_PROTOCOL,
                          "worker %d has not handed in its arenas and its board", r);
    }
    return PS_OK;
}

ps_err ps_shm_peers_open_host(const ps_exchange_options *o, uint64_t board_bytes,
                              ps_shm_peers **out)
{
    ps_shm_peers *p = NULL;
    *out = NULL;
    ps_err err = shm_peers_count_here(o) > 1 ? open_peers(o, board_bytes, &p) : PS_OK;
    if (err == PS_OK)
        err = ps_member_barrier(o->member, "shm/host", ps_exchange_join_deadline(o));
    if (err == PS_OK && p) err = shm_peers_check(o, p);
    if (err == PS_OK)
        *out = p;
    else
        ps_shm_peers_close(&p);
    return err;
}

ps_err ps_shm_peers_open(const ps_exchange_options *o, uint64_t board_bytes,
                         ps_shm_peers **out)
{
    *out = NULL;
    if (o->world_size == 1 || o->stream) return PS_OK;
    bool wanted = o->settings.shm != PS_SWITCH_OFF;
    bool here = shm_peers_count_here(o) == o->world_size;
    bool all, mapped;
    PS_TRY(shm_peers_agree(o, "shm/wanted", wanted && here, &all));
    if (!all)
        return shm_peers_without(o,
                                 here ? "another worker's is off"
                                      : "the workers are not all on one host and network "
                                        "namespace");
    ps_shm_peers *p;
    ps_err err = open_peers(o, board_bytes, &p);
    if (err != PS_OK) PS_WARN("shm", "reason=\"%s\" instead=tcp", ps_err_message());
    bool ok = err == PS_OK;
    err = shm_peers_agree(o, "shm/mapped", ok, &mapped);
    if (err == PS_OK && mapped) err = shm_peers_check(o, p);
    if (err == PS_OK && mapped)
        *out = p;
    else
        ps_shm_peers_close(&p);
    if (err != PS_OK || mapped) return err;
    return shm_peers_without(o, ok ? "another worker could not map the arenas"
                                   : "the arenas could not be mapped (the log says why)");
}

float *ps_shm_peers_grads(const ps_shm_peers *p, int rank)
{
    return ps_shm_door_grads(p->door, (uint32_t)rank);
}

float *ps_shm_peers_params(const ps_shm_peers *p, int rank)
{
    return ps_shm_door_params(p->door, (uint32_t)rank);
}

ps_err ps_shm_peers_show_params(const ps_shm_peers *p, int rank, const ps_shared_mem *mem)
{
    return ps_shm_door_show_params(p->door, (uint32_t)rank, mem);
}

void *ps_shm_peers_board(const ps_shm_peers *p, int rank)
{
    return rank == p->rank ? p->board.base
                           : ps_shm_door_rings_of(p->door, (uint32_t)rank);
}

void ps_shm_peers_close(ps_shm_peers **p)
{
    if (!*p) return;
    ps_shm_door_destroy(&(*p)->door);
    ps_shared_mem_fini(&(*p)->board);
    free(*p);
    *p = NULL;
}
