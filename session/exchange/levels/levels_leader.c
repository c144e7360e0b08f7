#include "levels_leader.h"

#include <stdlib.h>
#include <string.h>

struct ps_levels_leader {
    ps_levels *levels;
    ps_comm *comm;
    ps_levels_sums *sums;
};

/* --- the thread of sums ------------------------------------------------------------ */

static ps_err leader_push(void *ctx, uint32_t chunk, uint64_t step)
{
    return ps_comm_submit(((ps_levels_leader *)ctx)->comm, PS_COMM_PUSH, step, &chunk, 1);
}

static void leader_failed(void *ctx, ps_err err)
{
    ps_comm_give_up(((ps_levels_leader *)ctx)->comm, err);
}

/* --- the communication thread ------------------------------------------------------- */

static void weights_are_here(void *ctx, uint32_t chunk, int64_t version)
{
    ps_levels_leader *l = ctx;
    const int own = l->levels->own;
    _Atomic uint64_t *weights = ps_levels_count(l->levels, own, PS_LEVELS_WEIGHTS, chunk);
    const int64_t n = version - (int64_t)l->levels->o.first_step + 1;
    if (n <= (int64_t)atomic_load(weights)) return; // again
    const float scale = ps_comm_loss_scale(l->comm);
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    atomic_store(&l->levels->boards[own]->scale_bits, bits);
    ps_levels_post(l->levels, weights);
}

/* --- the main thread ---------------------------------------------------------------- */

void ps_levels_leader_give(ps_levels_leader *l, const uint32_t *chunks, uint32_t n)
{
    ps_levels_sums_give(l->sums, chunks, n);
}

ps_err ps_levels_leader_await_here(ps_levels_leader *l, uint32_t first, uint32_t last,
                                   int64_t version)
{
    return ps_levels_sums_await_here(l->sums, first, last, version);
}

bool ps_levels_leader_here(const ps_levels_leader *l, uint32_t first, uint32_t last,
                           int64_t version)
{
    return ps_levels_sums_here(l->sums, first, last, version);
}

ps_err ps_levels_leader_bring_exact(ps_levels_leader *l)
{
    return ps_levels_sums_bring_exact(l->sums);
}

void ps_levels_leader_exact(ps_levels_leader *l)
{
    ps_levels_post(l->levels, &l->levels->boards[l->levels->own]->rounds);
}

ps_err ps_levels_leader_blame(const ps_levels_leader *l, ps_err err)
{
    const ps_err late = err == PS_ERR_TIMEOUT ? ps_levels_sums_blame(l->sums) : PS_OK;
    return late == PS_OK ? err : late;
}

ps_err ps_levels_leader_create(ps_levels *levels, ps_comm *comm, ps_levels_leader **out)
{
    ps_levels_leader *l;
    *out = NULL;
    PS_TRY(ps_mem_zalloc(&l, 1, sizeof *l, "a leader"));
    l->levels = levels;
    l->comm = comm;
    *out = l;
    ps_comm_tell(comm, weights_are_here, l);
    const ps_levels_sums_hooks hooks = {
        .push = leader_push, .failed = leader_failed, .ctx = l};
    return ps_levels_sums_create(levels, &hooks, &l->sums);
}

void ps_levels_leader_stop(ps_levels_leader *l)
{
    if (l->sums) ps_levels_sums_stop(l->sums);
}

void ps_levels_leader_destroy(ps_levels_leader **pointer)
{
    ps_levels_leader *l = *pointer;
    if (!l) return;
    ps_levels_sums_destroy(&l->sums);
    free(l);
    *pointer = NULL;
}
