#include <inttypes.h>
#include <string.h>

#include "nontemporal_copy.h"
#include "ps_comm_state.h"

/* ---- the main thread ---- */

ps_err ps_comm_snapshot_fetch(ps_comm *c, uint64_t array, bool over_gradients,
                              float *arena)
{
    c->snapshot.array = array;
    c->snapshot.arena = arena;
    c->snapshot.over_gradients = over_gradients;
    return ps_comm_ask(c, PS_COMM_FETCH, c->plan->n_chunks);
}

ps_err ps_comm_snapshot_fetch_rule(ps_comm *c, uint8_t rule[PS_STEP_RULE_STATE_BYTES],
                                   size_t *bytes)
{
    c->snapshot.array = PS_WIRE_STATE_RULE;
    c->snapshot.over_gradients = false;
    PS_TRY(ps_comm_ask(c, PS_COMM_FETCH, 1)); // all shards have the same
    *bytes = c->snapshot.rule_bytes;
    memcpy(rule, c->snapshot.rule, *bytes);
    return PS_OK;
}

ps_err ps_comm_snapshot_restore(ps_comm *c, uint64_t array, const float *arena)
{
    c->snapshot.array = array;
    c->snapshot.arena = (float *)(uintptr_t)arena; // only read
    return ps_comm_ask(c, PS_COMM_RESTORE, c->plan->n_chunks);
}

float *ps_comm_snapshot_feedback(ps_comm *c)
{
    return c->residual;
}

/* ---- the communication thread ---- */

/* Whether the shard has written the array over the gradients. */
static bool comm_in_gradients(const ps_comm *c, const ps_comm_link *l,
                              const ps_wire_header *h)
{
    return c->snapshot.over_gradients && l->shm && h->codec == PS_CODEC_SHM;
}

static ps_err comm_check_state(const ps_comm *c, const ps_wire_header *h, size_t bytes)
{
    const size_t wanted = c->plan->chunks[h->chunk].count * sizeof(float);
    const bool fits = h->state.array == PS_WIRE_STATE_RULE
                          ? bytes <= sizeof c->snapshot.rule
                          : bytes == wanted;
    if (fits) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL,
                      "array %" PRIu64 " of chunk %u in %zu bytes; the plan has %zu",
                      h->state.array, h->chunk, bytes, wanted);
}

static void comm_keep_state(ps_comm *c, const ps_wire_header *h, const void *payload,
                            size_t bytes)
{
    if (h->state.array != PS_WIRE_STATE_RULE) {
        memcpy(c->snapshot.arena + c->plan->chunks[h->chunk].offset, payload, bytes);
        return;
    }
    memcpy(c->snapshot.rule, payload, bytes);
    c->snapshot.rule_bytes = bytes;
}

/* Past the caches: nobody reads a snapshot soon. */
static void comm_keep_from_gradients(ps_comm *c, uint32_t chunk)
{
    const ps_chunk *range = &c->plan->chunks[chunk];
    ps_nontemporal_copy(c->snapshot.arena + range->offset,
                        (const float *)c->o.grads->base + range->offset, range->count);
    ps_nontemporal_copy_done();
    ps_counter_add(&c->shm_received, range->count * sizeof(float));
}

ps_err ps_comm_snapshot_take(ps_comm *c, const ps_comm_link *l, const ps_wire_header *h,
                             ps_wire_frames *f)
{
    if (h->chunk >= c->plan->n_chunks || &c->links[c->plan->chunks[h->chunk].shard] != l)
        return ps_err_set(PS_ERR_PROTOCOL, "state of chunk %u, which is not its own",
                          h->chunk);
    ps_comm_chunk *s = &c->chunks[h->chunk];
    const bool fetched = h->kind == PS_MSG_STATE;
    if (!s->unanswered || h->state.array != c->snapshot.array ||
        s->command.kind != (fetched ? PS_MSG_FETCH : PS_MSG_RESTORE))
        return PS_OK; // the answer to a repetition
    if (fetched && comm_in_gradients(c, l, h)) {
        comm_keep_from_gradients(c, h->chunk);
    } else if (fetched) {
        const size_t bytes = f->has_payload ? zmq_msg_size(&f->payload) : 0;
        PS_TRY(comm_check_state(c, h, bytes));
        comm_keep_state(c, h, zmq_msg_data(&f->payload), bytes);
    }
    s->unanswered = false;
    ps_comm_send_no_more(c, h->chunk);
    ps_comm_set_version(c, h->chunk, (int64_t)s->command.step);
    return PS_OK;
}
