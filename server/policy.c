#include "policy.h"

#include <string.h>

void ps_policy_chunk_init(ps_policy_chunk *c, uint32_t n_workers)
{
    *c = (ps_policy_chunk){.version = -1, .n_workers = n_workers};
}

ps_verdict ps_policy_init_weights(ps_policy_chunk *c, uint32_t rank)
{
    if (rank != 0) return PS_VERDICT_REFUSE;
    if (c->version >= 0) return PS_VERDICT_DROP;
    c->version = c->first;
    return PS_VERDICT_TAKE;
}

ps_verdict ps_policy_push(ps_policy_chunk *c, uint32_t rank, uint64_t step)
{
    // A worker has version v before it pushes step v. The shard is at most one step
    // behind, so a push of a later step violates the protocol.
    if (c->version < 0 || step > (uint64_t)c->version + 1) return PS_VERDICT_REFUSE;
    if (step > (uint64_t)c->version) {
        if (ps_rank_set_has(&c->early, rank)) return PS_VERDICT_DROP;
        ps_rank_set_add(&c->early, rank);
        c->n_early++;
        return PS_VERDICT_KEEP;
    }
    if (step < (uint64_t)c->version) return PS_VERDICT_ANSWER;
    if (ps_rank_set_has(&c->arrived, rank)) return PS_VERDICT_DROP;
    ps_rank_set_add(&c->arrived, rank);
    c->n_arrived++;
    return PS_VERDICT_TAKE;
}

bool ps_policy_complete(const ps_policy_chunk *c)
{
    return c->n_arrived == c->n_workers;
}

void ps_policy_moved(ps_policy_chunk *c)
{
    c->version++;
    memset(&c->waiting, 0, sizeof c->waiting);
    c->n_settling = 0;
    memset(&c->settling, 0, sizeof c->settling);
    c->exact_sent = false;
}

void ps_policy_arrived(ps_policy_chunk *c, uint32_t rank)
{
    ps_rank_set_add(&c->arrived, rank);
    ps_rank_set_remove(&c->exact, rank);
}

void ps_policy_applied(ps_policy_chunk *c)
{
    ps_policy_moved(c);
    memset(&c->exact, 0, sizeof c->exact);
    c->arrived = c->early;
    c->n_arrived = c->n_early;
    memset(&c->early, 0, sizeof c->early);
    c->n_early = 0;
}

ps_verdict ps_policy_pull(ps_policy_chunk *c, uint32_t rank, uint64_t version)
{
    if (c->version >= 0 && version <= (uint64_t)c->version) return PS_VERDICT_ANSWER;
    const int64_t next = c->version < 0 ? c->first : c->version + 1;
    if (version != (uint64_t)next) return PS_VERDICT_REFUSE;
    ps_rank_set_add(&c->waiting, rank);
    return PS_VERDICT_WAIT;
}

ps_verdict ps_policy_exact(ps_policy_chunk *c, uint32_t rank, uint64_t version)
{
    if (c->version < 0 || version > (uint64_t)c->version) return PS_VERDICT_REFUSE;
    if (version < (uint64_t)c->version) return PS_VERDICT_ANSWER;
    if (ps_rank_set_has(&c->exact, rank)) return PS_VERDICT_ANSWER;
    // A worker that has pushed this step wants the next version; it cannot ask for this
    // one.
    if (ps_rank_set_has(&c->arrived, rank)) return PS_VERDICT_REFUSE;
    if (ps_rank_set_has(&c->settling, rank)) return PS_VERDICT_WAIT;
    ps_rank_set_add(&c->settling, rank);
    if (++c->n_settling < c->n_workers) return PS_VERDICT_WAIT;
    c->exact_sent = true;
    c->exact = c->settling;
    return PS_VERDICT_ALL;
}
