#include "levels_leader.h"

#include <string.h>

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

void ps_levels_leader_init(ps_levels_leader *l, ps_levels *levels, ps_comm *comm)
{
    *l = (ps_levels_leader){.levels = levels, .comm = comm};
    ps_comm_tell(comm, weights_are_here, l);
}

ps_levels_sums_hooks ps_levels_leader_hooks(ps_levels_leader *l)
{
    return (ps_levels_sums_hooks){.push = leader_push, .failed = leader_failed, .ctx = l};
}

void ps_levels_leader_exact(ps_levels_leader *l)
{
    ps_levels_post(l->levels, &l->levels->boards[l->levels->own]->rounds);
}
