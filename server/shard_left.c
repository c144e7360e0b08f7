#include "shard_left.h"

#include <inttypes.h>

/* The lowest rank that is in the set; -1: none. */
static int64_t first_in(const ps_shard *s, const ps_rank_set *set)
{
    for (uint32_t i = 0; i < s->n_senders; i++)
        if (ps_rank_set_has(set, s->senders[i])) return s->senders[i];
    return -1;
}

/* The lowest rank that has left and is not in the set; -1: none. */
static int64_t gone_from(const ps_shard *s, const ps_rank_set *set)
{
    for (uint32_t i = 0; i < s->n_senders; i++) {
        const uint32_t r = s->senders[i];
        if (s->peers[r].left && !ps_rank_set_has(set, r)) return r;
    }
    return -1;
}

#define MEND                                                                             \
    "every rank must make the same number of steps: give each equally many batches "     \
    "(DistributedSampler, drop_last=True)"

/* pushed: the ranks that have pushed the step. Steps count from 0, those of messages
 * from 1. */
static ps_err check_step(const ps_shard *s, const ps_rank_set *pushed, uint64_t step)
{
    const int64_t waits = first_in(s, pushed),
                  gone = waits < 0 ? -1 : gone_from(s, pushed);
    if (gone < 0) return PS_OK;
    // There each chunk counts the sums that went through it.
    if (s->rule.optimizer.kind == PS_OPTIMIZER_SUM)
        return ps_err_set(PS_ERR_ARG,
                          "worker %" PRId64 " has ended, and worker %" PRId64
                          " waits for its part of a sum of gradients: " MEND,
                          gone, waits);
    return ps_err_set(PS_ERR_ARG,
                      "worker %" PRId64 " has ended before step %" PRIu64
                      ", and worker %" PRId64 " waits for its gradients: " MEND,
                      gone, step + 1, waits);
}

static ps_err check_exact(const ps_shard *s, const ps_policy_chunk *p)
{
    const int64_t waits = first_in(s, &p->settling);
    const int64_t gone = waits < 0 || p->exact_sent ? -1 : gone_from(s, &p->settling);
    if (gone < 0) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "worker %" PRId64 " has ended, and worker %" PRId64
                      " waits for the exact weights, which all must ask for together",
                      gone, waits);
}

/* Worker 0 alone has the first weights. */
static ps_err check_first(const ps_shard *s, const ps_policy_chunk *p)
{
    const int64_t waits = first_in(s, &p->waiting);
    if (waits < 0 || !s->peers[0].left) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "worker 0 has ended without a step, and worker %" PRId64
                      " waits for its first weights: " MEND,
                      waits);
}

ps_err ps_shard_left_check(const ps_shard *s, const ps_shard_chunk *c)
{
    const ps_policy_chunk *p = &c->policy;
    if (s->n_left == 0 || s->own_pace) return PS_OK;
    if (p->version < 0) return check_first(s, p);
    const uint64_t step = (uint64_t)p->version;
    if (p->n_arrived > 0) PS_TRY(check_step(s, &p->arrived, step));
    if (p->n_early > 0) PS_TRY(check_step(s, &p->early, step + 1));
    return p->n_settling > 0 ? check_exact(s, p) : PS_OK;
}

ps_err ps_shard_left_check_all(const ps_shard *s)
{
    for (uint32_t i = 0; i < s->n_chunks; i++)
        PS_TRY(ps_shard_left_check(s, &s->chunks[i]));
    return PS_OK;
}
