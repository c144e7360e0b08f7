/* A shard where workers go on at their own pace (sync_policy.h): it tells the coordinator
 * which pushes are in, and does what the coordinator orders. It decides nothing. An order
 * concerns all of its chunks of a fragment, so a push counts in the same version
 * everywhere. */
#ifndef PS_SHARD_ORDERS_H
#define PS_SHARD_ORDERS_H

#include "shard_state.h"

/* Whether the job has such a policy. */
static inline bool ps_shard_orders_on(const ps_shard *s)
{
    return s->own_pace;
}

/* The shard's version that a worker means which asks for it at rest. At their own pace
 * workers count their own pushes, and the last one has led to the shard's version. */
static inline uint64_t ps_shard_orders_version(const ps_shard *s, const ps_shard_chunk *c,
                                               const ps_wire_header *h)
{
    if (!s->own_pace) return h->step;
    const ps_shard_turn *turn = ps_shard_turn_of(s, c->chunk->fragment, h->rank);
    return h->step - turn->clock + (uint64_t)c->policy.version;
}

/* A worker's push of a chunk: TAKE, DROP (a repetition of one that waits), ANSWER (of one
 * that was answered) or REFUSE. */
ps_verdict ps_shard_orders_push(const ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                uint64_t number);
/* A push was taken; with the fragment's last chunk the coordinator is told. */
ps_err ps_shard_orders_taken(ps_shard *s, const ps_shard_chunk *c, uint32_t rank);
/* Takes the orders that have come, and carries them out. */
ps_err ps_shard_orders_obey(ps_shard *s);

#endif
