/* What a checkpoint takes from a shard, and gives back to it when a job goes on: FETCH
 * and RESTORE (wire.h). A worker asks between two steps: it has not pushed the next one's
 * gradients, so that no array of the chunk changes until it has the answer. */
#include "shard_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

_Static_assert((int)PS_AGGREGATE_WEIGHTS == (int)PS_WIRE_STATE_WEIGHTS, "one number");

static ps_err check_rank(const ps_wire_header *h)
{
    if (h->rank == 0) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "%s, which is only for worker 0",
                      ps_wire_kind_name(h->kind));
}

static ps_err check_array(const ps_shard_chunk *c, const ps_wire_header *h)
{
    const bool there = h->state.array == PS_WIRE_STATE_MISSED
                           ? c->memory.optional
                           : ps_aggregate_array(&c->memory, h->state.array) != NULL;
    if (there) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL,
                      "%s of array %" PRIu64 ", which chunk %u does not have",
                      ps_wire_kind_name(h->kind), h->state.array, h->chunk);
}

static ps_err send_missed(ps_shard *s, const ps_shard_chunk *c, uint32_t rank)
{
    float *array;
    const size_t bytes = c->chunk->count * sizeof *array;
    PS_TRY(PS_NEW(&array, c->chunk->count, "missed steps"));
    ps_aggregate_save_missed(&c->memory, array);
    const ps_err err = ps_shard_reply_state(s, c, rank, PS_WIRE_STATE_MISSED, array,
                                            bytes, PS_WIRE_COPY);
    free(array);
    return err;
}

static ps_err send_rule(ps_shard *s, const ps_shard_chunk *c, uint32_t rank)
{
    uint8_t rule[PS_STEP_RULE_STATE_BYTES];
    size_t bytes;
    PS_TRY(ps_step_rule_save(&s->rule, rule, &bytes));
    return ps_shard_reply_state(s, c, rank, PS_WIRE_STATE_RULE, rule, bytes,
                                PS_WIRE_COPY);
}

/* Over the worker's gradient, which it needs no more. */
static ps_err shard_snapshot_write_array(ps_shard *s, const ps_shard_chunk *c,
                                         const ps_wire_header *h, const float *array)
{
    const ps_shard_peer *p = &s->peers[h->rank];
    if (!p->shm)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "FETCH into shared memory, which its HELLO did not agree on");
    memcpy(p->grads + c->chunk->offset, array, c->chunk->count * sizeof *array);
    return ps_shard_reply_state(s, c, h->rank, h->state.array, NULL, 0, PS_WIRE_COPY);
}

ps_err ps_shard_snapshot_fetch(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h)
{
    const uint64_t version = s->pace->version(s, c, h->rank, h->step);
    if (c->policy.version < 0 || version > (uint64_t)c->policy.version)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a request for the state of chunk %u at version %" PRIu64
                          "; it is at version %" PRId64,
                          h->chunk, h->step, c->policy.version);
    if (h->state.array == PS_WIRE_STATE_RULE) return send_rule(s, c, h->rank);
    PS_TRY(check_array(c, h));
    if (h->state.array == PS_WIRE_STATE_MISSED) return send_missed(s, c, h->rank);
    const float *array = ps_aggregate_array(&c->memory, h->state.array);
    if (h->codec == PS_CODEC_SHM) return shard_snapshot_write_array(s, c, h, array);
    return ps_shard_reply_state(s, c, h->rank, h->state.array, array,
                                c->chunk->count * sizeof *array, PS_WIRE_BORROW);
}

ps_err ps_shard_snapshot_restore(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h,
                                 ps_wire_frames *f)
{
    PS_TRY(check_rank(h));
    PS_TRY(check_array(c, h));
    s->peers[h->rank].owed += zmq_msg_size(&f->payload);
    const float *from = zmq_msg_data(&f->payload);
    if (c->policy.version < 0 && h->state.array == PS_WIRE_STATE_MISSED) {
        ps_aggregate_load_missed(&c->memory, from);
    } else if (c->policy.version < 0) {
        memcpy(ps_aggregate_array(&c->memory, h->state.array), from,
               c->chunk->count * sizeof *from);
        c->restored = c->restored || h->state.array == PS_AGGREGATE_WEIGHTS;
    }
    return ps_shard_reply_restored(s, c, h->rank, h->state.array);
}
