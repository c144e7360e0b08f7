#include "ps_comm_receive.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "fault_point.h"
#include "nontemporal_copy.h"
#include "printable.h"
#include "ps_comm_mend.h"
#include "ps_comm_send.h"
#include "ps_comm_snapshot.h"
#include "trace.h"

enum { MESSAGES_PER_SOCKET = 32 }; // before other sockets are looked at

/* Not the weights but their encoded change since the last version. */
static bool is_change(const ps_comm *c, const ps_wire_header *h)
{
    if (!c->encoded[h->chunk] || h->codec == PS_CODEC_NONE || h->step == 0) return false;
    return h->codec == (uint8_t)ps_chunk_codec_of(&c->codec, &c->plan->chunks[h->chunk],
                                                  PS_CODED_CHANGE, h->step - 1);
}

static ps_err check_weights(const ps_comm *c, const ps_comm_link *l,
                            const ps_wire_header *h, const ps_wire_frames *f)
{
    if (h->chunk >= c->plan->n_chunks || &c->links[c->plan->chunks[h->chunk].shard] != l)
        return ps_err_set(PS_ERR_PROTOCOL, "weights of chunk %u, which is not its own",
                          h->chunk);
    const ps_chunk *chunk = &c->plan->chunks[h->chunk];
    uint64_t count = chunk->count, wanted = count * sizeof(float);
    bool shm = h->codec == PS_CODEC_SHM;
    bool coded = h->kind == PS_MSG_WEIGHTS && is_change(c, h);
    size_t bytes = f->has_payload ? zmq_msg_size(&f->payload) : 0;
    if (shm) wanted = 0;
    if (coded) wanted = ps_chunk_codec_bytes(&c->codec, chunk, (ps_codec)h->codec);
    if (h->count != count || shm != l->shm || bytes != wanted ||
        (!shm && !coded && h->codec != PS_CODEC_NONE))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "weights of chunk %u with %" PRIu64
                          " elements in %zu bytes; the plan has %" PRIu64 " elements",
                          h->chunk, h->count, bytes, count);
    return PS_OK;
}

static void copy_weights(const ps_comm *c, float *to, const float *from, uint64_t n)
{
    if (c->bypass_caches) {
        ps_nontemporal_copy(to, from, n);
        ps_nontemporal_copy_done();
    } else {
        memcpy(to, from, n * sizeof *from);
    }
}

/* A loss scale belongs to a version: all chunks and shards send the same one. */
static ps_err take_scale(ps_comm *c, const ps_wire_header *h)
{
    // Workers rest after the last fragment.
    const bool last = c->plan->chunks[h->chunk].fragment + 1 == c->plan->fragments.n;
    if (last) atomic_store_explicit(&c->rest, h->weights.flags, memory_order_relaxed);
    if (!c->scales) return PS_OK;
    float scale;
    memcpy(&scale, &h->weights.scale, sizeof scale);
    uint32_t before = atomic_load_explicit(&c->scale_bits, memory_order_relaxed);
    bool newer = h->step > c->scale_version;
    if (!(scale > 0) || !isfinite(scale) || (!newer && h->weights.scale != before))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "version %" PRIu64 " of chunk %u with the loss scale %g; other "
                          "chunks have another",
                          h->step, h->chunk, (double)scale);
    c->scale_version = h->step;
    atomic_store_explicit(&c->scale_bits, h->weights.scale, memory_order_relaxed);
    return PS_OK;
}

/* Whether the chunk's command waits for this. Otherwise it answers a repetition: its
 * weights are here already, and perhaps in use. A chunk with an EXACT request counts as
 * one version older, so repeated weights of its version must not pass for the exact ones.
 */
static bool is_awaited(const ps_comm *c, const ps_wire_header *h, int64_t have)
{
    const ps_comm_chunk *s = &c->chunks[h->chunk];
    if (have >= 0 && h->step <= (uint64_t)have) return false;
    if (s->command.kind == PS_MSG_FETCH || s->command.kind == PS_MSG_RESTORE)
        return false;
    return s->unanswered &&
           (s->command.kind == PS_MSG_EXACT) == (h->kind == PS_MSG_EXACT_WEIGHTS);
}

/* The gradient that these weights answer did not count. */
static void forget_dropped(ps_comm *c, const ps_wire_header *h)
{
    const ps_chunk *chunk = &c->plan->chunks[h->chunk];
    const bool dropped = c->chunks[h->chunk].command.kind == PS_MSG_PUSH &&
                         (h->weights.flags & PS_WIRE_DROPPED) != 0;
    if (!dropped || !c->residual_before || !c->encoded[h->chunk] ||
        !ps_chunk_codec_keeps(&c->codec, h->step - 1))
        return;
    memcpy(c->residual + chunk->offset, c->residual_before + chunk->offset,
           chunk->count * sizeof *c->residual);
}

static ps_err comm_receive_take_weights(ps_comm *c, ps_comm_link *l,
                                        const ps_wire_header *h, ps_wire_frames *f)
{
    PS_TRY(check_weights(c, l, h, f));
    ps_comm_chunk *state = &c->chunks[h->chunk];
    state->first = state->init_due = false; // no weights without first ones
    int64_t have = atomic_load_explicit(&c->versions[h->chunk], memory_order_relaxed);
    if (!is_awaited(c, h, have)) return PS_OK;
    if (h->step != (uint64_t)(have + 1))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "version %" PRIu64 " of chunk %u after version %" PRId64,
                          h->step, h->chunk, have);
    const uint64_t begin_ns = state->command.kind == PS_MSG_PUSH ? ps_trace_now() : 0;
    PS_TRY(take_scale(c, h));
    forget_dropped(c, h);
    const ps_chunk *chunk = &c->plan->chunks[h->chunk];
    float *params = (float *)c->o.params->base + chunk->offset;
    if (is_change(c, h) && ps_optimizer_adds_up(&c->o.rule->optimizer))
        memset(params, 0, chunk->count * sizeof *params); // not a change, but a sum
    if (is_change(c, h)) // the shard adds the same to its copy of our weights
        PS_TRY(ps_chunk_codec_decode_change(&c->codec, chunk, (ps_codec)h->codec,
                                            zmq_msg_data(&f->payload),
                                            zmq_msg_size(&f->payload), params));
    else if (!l->shm)
        copy_weights(c, params, zmq_msg_data(&f->payload), chunk->count);
    else
        ps_counter_add(&c->shm_received, chunk->count * sizeof(float));
    state->unanswered = false;
    ps_comm_send_no_more(c, h->chunk);
    ps_trace_add_chunk(PS_TRACE_DECODE, begin_ns, h->step - 1, h->chunk, chunk->shard);
    if (state->command.kind == PS_MSG_PUSH)
        ps_comm_pace_had(c, chunk->shard, h->step - 1);
    PS_FAULT_POINT("weights.taken");
    ps_comm_set_version(c, h->chunk, have + 1);
    return PS_OK;
}

/* The text of an ERROR frame, printable, as this thread's error. */
static ps_err take_error(ps_wire_frames *f)
{
    char said[400] = "", text[400];
    size_t n = f->has_payload ? zmq_msg_size(&f->payload) : 0;
    if (n > sizeof said - 1) n = sizeof said - 1;
    if (n > 0) memcpy(said, zmq_msg_data(&f->payload), n);
    ps_printable(said, text, sizeof text);
    return ps_err_set(PS_ERR_PEER, "%s", text);
}

static ps_err take_left(ps_comm *c, ps_comm_link *l)
{
    c->n_left += !l->left;
    l->left = true;
    return PS_OK;
}

/* Until the shard has answered the HELLO, credit belongs to the connection before and is
 * ignored: what was on the way there is sent, and credited, again. */
static ps_err take_credit(ps_comm_link *l, uint64_t credit)
{
    if (!l->open) return PS_OK;
    if (credit > l->on_the_way)
        return ps_err_set(PS_ERR_PROTOCOL, "more credit than there was to return");
    l->on_the_way -= credit;
    return PS_OK;
}

static ps_err comm_receive_handle(ps_comm *c, ps_comm_link *l, ps_wire_frames *f)
{
    ps_wire_header h;
    PS_TRY(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), &h));
    ps_counter_add(&c->bytes_received,
                   zmq_msg_size(&f->header) +
                       (f->has_payload ? zmq_msg_size(&f->payload) : 0));
    if (h.kind == PS_MSG_ERROR) return take_error(f);
    if (h.nonce != c->nonce)
        return ps_err_set(PS_ERR_PROTOCOL, "a message of another job");
    if (h.kind == PS_MSG_STALE)
        return ps_err_set(PS_ERR_PEER, "the job is at member epoch %u, not %u",
                          h.stale.present, c->epoch);
    if (ps_wire_from_worker(h.kind))
        return ps_err_set(PS_ERR_PROTOCOL, "a %s, which only workers send",
                          ps_wire_kind_name(h.kind));
    if (f->n > 2) return ps_err_set(PS_ERR_PROTOCOL, "a message of %d frames", f->n);
    PS_TRY(take_credit(l, h.credit));
    switch (h.kind) {
    case PS_MSG_READY:
        return ps_comm_mend_ready(c, l, h.hello.number);
    case PS_MSG_WEIGHTS:
    case PS_MSG_EXACT_WEIGHTS:
        return comm_receive_take_weights(c, l, &h, f);
    case PS_MSG_STATE:
    case PS_MSG_RESTORED:
        return ps_comm_snapshot_take(c, l, &h, f);
    case PS_MSG_LEFT:
        return take_left(c, l);
    default: // CREDIT
        return PS_OK;
    }
}

static ps_err name_sender(const ps_comm *c, const ps_comm_link *l, ps_err err)
{
    if (err != PS_ERR_PROTOCOL) return err;
    return ps_err_prefix(err, "shard %u of server %d (host %s) sent",
                         (uint32_t)(l - c->links), l->server, l->host);
}

ps_err ps_comm_receive(ps_comm *c, ps_comm_link *l, ps_wire_frames *f)
{
    for (int i = 0; i < MESSAGES_PER_SOCKET; i++) {
        bool got;
        PS_TRY(ps_wire_recv(l->socket, false, f, &got));
        if (!got) return PS_OK;
        PS_TRY(name_sender(c, l, comm_receive_handle(c, l, f)));
    }
    return PS_OK;
}

/* The weights are in the arena already. */
static ps_err handle_ring(ps_comm *c, ps_comm_link *l, ps_wire_frames *f)
{
    ps_wire_header h;
    const uint64_t begin_ns = ps_trace_now();
    PS_TRY(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), &h));
    ps_counter_add(&c->bytes_received, zmq_msg_size(&f->header));
    if (h.nonce != c->nonce)
        return ps_err_set(PS_ERR_PROTOCOL, "a message of another job");
    if (h.kind != PS_MSG_WEIGHTS || f->has_payload)
        return ps_err_set(PS_ERR_PROTOCOL, "a %s through a ring",
                          ps_wire_kind_name(h.kind));
    PS_TRY(check_weights(c, l, &h, f));
    const int64_t have =
        atomic_load_explicit(&c->versions[h.chunk], memory_order_relaxed);
    if (!atomic_exchange(&c->chunks[h.chunk].in_ring, false) ||
        h.step != (uint64_t)(have + 1))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "version %" PRIu64 " of chunk %u after version %" PRId64,
                          h.step, h.chunk, have);
    PS_TRY(take_scale(c, &h));
    c->n_taken++;
    ps_counter_add(&c->shm_received, h.count * sizeof(float));
    const uint32_t shard = c->plan->chunks[h.chunk].shard;
    ps_trace_add_chunk(PS_TRACE_DECODE, begin_ns, h.step - 1, h.chunk, shard);
    if (ps_comm_is_paced(c)) ps_comm_pace_had(c, shard, h.step - 1);
    atomic_store_explicit(&c->versions[h.chunk], have + 1, memory_order_release);
    return PS_OK;
}

ps_err ps_comm_receive_ring(ps_comm *c, ps_comm_link *l)
{
    for (uint32_t i = 0; i < c->plan->n_chunks; i++) {
        bool got;
        ps_err err =
            ps_wire_ring_take(&l->rings.to_worker, NULL, 0, &c->ring_frames, &got);
        if (err == PS_OK && !got) return PS_OK;
        if (err == PS_OK) err = handle_ring(c, l, &c->ring_frames);
        if (err != PS_OK) return name_sender(c, l, err);
        atomic_store_explicit(&c->progress_ns, ps_clock_awake_ns(), memory_order_relaxed);
    }
    return PS_OK;
}
