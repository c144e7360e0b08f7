#include "shard.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "aggregate.h"
#include "coded_chunk.h"
#include "coord_link.h"
#include "credit.h"
#include "finite.h"
#include "frame_check.h"
#include "grad_norm.h"
#include "log.h"
#include "loss_scale.h"
#include "mem.h"
#include "net.h"
#include "policy.h"
#include "stream_copy.h"
#include "wire_socket.h"
#include "zsock.h"

enum {
    LINGER_MS = 2000,       // the last words (errors) still get out
    MESSAGES_PER_POLL = 64, // before other sources are looked at
    FLUSH_COUNT = 1 << 18,  // elements: 1 MiB of weights
};

typedef struct owned_chunk {
    uint32_t index; // in the plan
    const ps_chunk *plan;
    ps_policy_chunk policy;
    ps_aggregate memory;
    ps_coded_chunk coded;
    zmq_msg_t *pushes; // by rank; empty where the gradient is in shared memory
} owned_chunk;

typedef struct peer {
    bool joined, left;
    bool shm; // agreed on in HELLO
    float *params;
    const float *grads;
    uint64_t owed; // bytes taken over and not yet returned as credit
} peer;

struct ps_shard {
    ps_shard_options o;
    uint32_t index;
    void *router;
    char endpoint[PS_ENDPOINT_MAX];
    ps_frame_rules rules;
    ps_credit credit;
    ps_chunk_codec codec;
    const void **payloads; // scratch: by rank
    float *sum, *decoded;  // scratch of the largest chunk; NULL without a codec
    float *slab;
    bool stream; // new weights bypass the caches on their way to shared arenas
    uint32_t n_chunks;
    owned_chunk *chunks;
    uint32_t *chunk_of; // plan index -> index in chunks
    peer *peers;
    uint32_t n_left;
    owned_chunk **unsent; // applied, workers in shared memory not told yet
    uint32_t n_unsent;
    uint64_t unsent_count; // elements
    const float **grads;   // scratch: by rank
    float **copies;
    // Clipping and loss scaling: the sums of a step are kept until the global norm is
    // known, or whether the gradient is finite everywhere.
    bool clip, votes;
    ps_loss_scale scale;
    uint32_t n_summed;
    ps_coord_link *link;
    uint64_t *run_first, *run_counts; // by chunk, in the order of the arena
    double *block_sums;
    // Life
    ps_member *member;
    ps_schedule schedule;
    const ps_shm_door *door;
    pthread_t thread;
    bool started;
    bool stranger_logged;
    int stop_fd, event_fd;
    atomic_int state;
    _Atomic uint64_t bytes_received, bytes_sent, pushes, repeated, strangers, steps;
};

static void count_up(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* ---- answers ---- */

static ps_wire_header header_for(const ps_shard *s, int kind, uint32_t rank)
{
    return (ps_wire_header){
        .version = PS_WIRE_VERSION,
        .kind = (uint8_t)kind,
        .nonce = s->rules.nonce,
        .epoch = s->rules.epoch,
        .rank = rank,
    };
}

/* A peer that is gone is no failure here: the coordinator notices and decides. */
static ps_err send_to(ps_shard *s, uint32_t rank, ps_wire_header *h, const void *payload,
                      size_t bytes, ps_wire_pass pass)
{
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_wire_id(rank, id);
    h->credit = s->peers[rank].owed;
    s->peers[rank].owed = 0;
    uint64_t sent = 0;
    ps_err err = ps_wire_send(s->router, id, sizeof id, h, payload, bytes, pass, &sent);
    count_up(&s->bytes_sent, sent);
    if (err == PS_ERR_PEER) PS_DEBUG("peer-gone", "worker=%u", rank);
    return err == PS_ERR_PEER ? PS_OK : err;
}

/* In turn the encoded change, out of turn (copied) what everybody else has. */
static ps_err send_coded(ps_shard *s, owned_chunk *c, ps_wire_header *h, uint32_t rank,
                         ps_wire_pass pass)
{
    if (pass == PS_WIRE_COPY)
        return send_to(s, rank, h, c->coded.told, c->plan->count * sizeof(float), pass);
    h->codec = (uint8_t)c->coded.reply_codec;
    return send_to(s, rank, h, c->coded.reply, c->coded.reply_bytes, pass);
}

/* The weights of a chunk go out without a copy of ours: libzmq reads them where the next
 * step will write them. That is safe in BSP: the next write comes only after every
 * worker's push of the next step, which a worker sends only when it has received these
 * weights whole. Answers out of turn (repeated pushes, pulls) have no such push behind
 * them and are copied. */
static ps_err send_weights(ps_shard *s, owned_chunk *c, uint32_t rank, ps_wire_pass pass)
{
    ps_wire_header h = header_for(s, PS_MSG_WEIGHTS, rank);
    h.step = (uint64_t)c->policy.version;
    if (s->scale.on) memcpy(&h.scale, &s->scale.scale, sizeof h.scale);
    h.chunk = c->index;
    h.count = c->plan->count;
    if (c->coded.coded) return send_coded(s, c, &h, rank, pass);
    if (!s->peers[rank].shm)
        return send_to(s, rank, &h, c->memory.weights, c->plan->count * sizeof(float),
                       pass);
    h.codec = PS_CODEC_SHM;
    h.place = c->plan->offset;
    return send_to(s, rank, &h, NULL, 0, pass);
}

static ps_err send_weights_out_of_turn(ps_shard *s, owned_chunk *c, uint32_t rank)
{
    const peer *p = &s->peers[rank];
    if (p->shm)
        memcpy(p->params + c->plan->offset, c->memory.weights,
               c->plan->count * sizeof(float));
    return send_weights(s, c, rank, PS_WIRE_COPY);
}

/* Workers in shared memory have their new weights already; that they may use them is told
 * for several chunks at once, so that they are not woken for every one. */
static ps_err flush_answers(ps_shard *s)
{
    for (uint32_t i = 0; i < s->n_unsent; i++)
        for (uint32_t r = 0; r < s->rules.n_workers; r++)
            if (s->peers[r].shm) PS_TRY(send_weights(s, s->unsent[i], r, PS_WIRE_BORROW));
    s->n_unsent = 0;
    s->unsent_count = 0;
    return PS_OK;
}

static ps_err answer_all(ps_shard *s, owned_chunk *c)
{
    bool shared = false;
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        shared = shared || s->peers[r].shm;
        if (!s->peers[r].shm) PS_TRY(send_weights(s, c, r, PS_WIRE_BORROW));
    }
    if (!shared) return PS_OK;
    if (s->n_unsent == s->n_chunks) PS_TRY(flush_answers(s));
    s->unsent[s->n_unsent++] = c;
    s->unsent_count += c->plan->count;
    return s->unsent_count < FLUSH_COUNT ? PS_OK : flush_answers(s);
}

static void send_error(ps_shard *s, const void *id, size_t id_bytes, const char *text)
{
    ps_wire_header h = header_for(s, PS_MSG_ERROR, 0);
    uint64_t sent = 0;
    if (ps_wire_send(s->router, id, id_bytes, &h, text, strlen(text), PS_WIRE_COPY,
                     &sent) != PS_OK)
        PS_DEBUG("peer-gone", "while=ERROR");
    count_up(&s->bytes_sent, sent);
}

/* ---- applying ---- */

static ps_optimizer_step step_of(const ps_shard *s, const owned_chunk *c, double scale)
{
    uint64_t step = (uint64_t)c->policy.version;
    return (ps_optimizer_step){.lr = ps_schedule_lr(&s->schedule, step),
                               .t = step + 1 - s->scale.skipped,
                               .grad_scale = scale};
}

static int shared_copies(ps_shard *s, const owned_chunk *c)
{
    int n = 0;
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        if (s->peers[r].shm) s->copies[n++] = s->peers[r].params + c->plan->offset;
    return n;
}

static bool checks_numbers(const ps_shard *s)
{
    return !s->scale.on && strcmp(s->o.config->exchange.nan, "allow") != 0;
}

static ps_aggregate_step gathered(ps_shard *s, owned_chunk *c)
{
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        s->grads[r] = s->peers[r].shm ? s->peers[r].grads + c->plan->offset
                                      : zmq_msg_data(&c->pushes[r]);
    return (ps_aggregate_step){
        .optimizer = s->o.optimizer,
        .step = step_of(s, c, 1.0),
        .grads = s->grads,
        .n_grads = (int)s->rules.n_workers,
        .copies = s->copies,
        .n_copies = shared_copies(s, c),
        .stream = s->stream,
        .check = checks_numbers(s),
    };
}

static void release_pushes(ps_shard *s, owned_chunk *c)
{
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        zmq_msg_close(&c->pushes[r]);
        zmq_msg_init(&c->pushes[r]);
    }
}

/* The sum of the pushes of an encoded chunk, into sum. */
static ps_err sum_coded(ps_shard *s, owned_chunk *c, float *sum)
{
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        s->payloads[r] = zmq_msg_data(&c->pushes[r]);
    return ps_coded_chunk_sum(&c->coded, &c->memory, s->payloads, (int)s->rules.n_workers,
                              (uint64_t)c->policy.version, checks_numbers(s), sum,
                              s->decoded);
}

static ps_aggregate_step summed(ps_shard *s, owned_chunk *c, const float *const *sum,
                                double scale)
{
    return (ps_aggregate_step){
        .optimizer = s->o.optimizer,
        .step = step_of(s, c, scale),
        .grads = sum,
        .n_grads = 1,
        .summed = true,
        .check = checks_numbers(s),
        .copies = s->copies,
        .n_copies = shared_copies(s, c),
        .stream = s->stream,
    };
}

static ps_err applied(ps_shard *s, owned_chunk *c)
{
    ps_policy_applied(&c->policy);
    if (c->coded.coded)
        ps_coded_chunk_reply(&c->coded, c->memory.weights, (uint64_t)c->policy.version);
    if (c == s->chunks)
        atomic_store_explicit(&s->steps, (uint64_t)c->policy.version,
                              memory_order_relaxed);
    return PS_OK;
}

static ps_err apply_now(ps_shard *s, owned_chunk *c)
{
    ps_aggregate_step step;
    const float *sum = s->sum;
    if (!c->coded.coded) {
        step = gathered(s, c);
    } else {
        PS_TRY(sum_coded(s, c, s->sum));
        step = summed(s, c, &sum, 1.0);
    }
    PS_TRY(ps_aggregate_apply(&c->memory, &step));
    PS_TRY(applied(s, c));
    PS_TRY(answer_all(s, c));
    release_pushes(s, c); // after the replies: freeing large buffers takes a while
    return PS_OK;
}

/* The sums of squares of all of the shard's blocks go to the coordinator. Without
 * clipping one number of each shard, 0 or NaN, is enough: their norm says what all have
 * to know. */
static ps_err ask_for_norm(ps_shard *s, uint64_t step)
{
    const uint32_t n_shards = s->o.plan->n_shards;
    if (s->clip)
        return ps_coord_link_norm_send(s->link, step, n_shards,
                                       ps_grad_norm_blocks(s->o.spec), s->n_chunks,
                                       s->run_first, s->run_counts, s->block_sums);
    const uint64_t place = s->index, one = 1;
    const double vote = s->block_sums[0];
    s->block_sums[0] = 0;
    return ps_coord_link_norm_send(s->link, step, n_shards, n_shards, 1, &place, &one,
                                   &vote);
}

static double *chunk_sums(const ps_shard *s, uint32_t i)
{
    double *sums = s->block_sums;
    for (uint32_t k = 0; k < i; k++)
        sums += s->run_counts[k];
    return sums;
}

/* What the sum says about the step: the squares of its blocks, none of which overflow in
 * double, so that the norm is finite where the sum is; or that alone. */
static void judge_sum(ps_shard *s, const owned_chunk *c)
{
    if (s->clip)
        ps_grad_norm_chunk(s->o.spec, c->plan, c->memory.sum,
                           chunk_sums(s, (uint32_t)(c - s->chunks)));
    else if (!ps_finite_all(c->memory.sum, c->plan->count))
        s->block_sums[0] = NAN;
}

static void unscale(const ps_shard *s, float *restrict sum, uint64_t n)
{
    const float inverse = ps_loss_scale_inverse(&s->scale);
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        sum[i] *= inverse;
}

static ps_err sum_now(ps_shard *s, owned_chunk *c)
{
    if (!c->coded.coded) {
        ps_aggregate_step step = gathered(s, c);
        PS_TRY(ps_aggregate_sum(&c->memory, &step));
    } else {
        PS_TRY(sum_coded(s, c, c->memory.sum));
    }
    release_pushes(s, c);
    if (s->scale.on) unscale(s, c->memory.sum, c->plan->count);
    judge_sum(s, c);
    if (++s->n_summed < s->n_chunks) return PS_OK;
    return ask_for_norm(s, (uint64_t)c->policy.version);
}

static ps_err apply_sum(ps_shard *s, owned_chunk *c, double scale)
{
    const float *sum = c->memory.sum;
    ps_aggregate_step step = summed(s, c, &sum, scale);
    step.check = false; // done when it was summed
    return ps_aggregate_apply(&c->memory, &step);
}

/* The norm of the step is here: all chunks are applied, those needed first first. With
 * loss scaling and a norm that is not finite none is, in any shard: the next version of
 * the weights is the same as this one. */
static ps_err apply_voted(ps_shard *s, double norm)
{
    bool step = isfinite(norm) || !s->scale.on;
    double scale =
        s->clip ? ps_grad_norm_clip(norm, s->o.config->optimizer.clip_norm) : 1;
    PS_TRY(ps_loss_scale_update(&s->scale, step));
    s->n_summed = 0;
    for (uint32_t i = s->n_chunks; i-- > 0;) {
        owned_chunk *c = &s->chunks[i];
        if (step) PS_TRY(apply_sum(s, c, scale));
        PS_TRY(applied(s, c));
        PS_TRY(answer_all(s, c));
    }
    return flush_answers(s);
}

static ps_err norm_arrived(ps_shard *s)
{
    int got;
    uint64_t step;
    double norm;
    PS_TRY(ps_coord_link_norm_recv(s->link, &got, &step, &norm));
    if (!got) return PS_OK;
    if (s->n_summed != s->n_chunks || step != (uint64_t)s->chunks[0].policy.version)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a gradient norm of step %" PRIu64 " that was not asked for",
                          step);
    return apply_voted(s, norm);
}

/* ---- messages of workers ---- */

static ps_err handle_hello(ps_shard *s, const ps_wire_header *h)
{
    peer *p = &s->peers[h->rank];
    // What is pending came through the path agreed on: it cannot change any more.
    if (p->joined && p->shm != (h->codec == PS_CODEC_SHM))
        return ps_err_set(PS_ERR_PROTOCOL, "another HELLO than before");
    if (h->codec == PS_CODEC_SHM) {
        if (s->codec.codec != PS_CODEC_NONE)
            return ps_err_set(PS_ERR_PROTOCOL, "shared memory beside a codec");
        p->params = ps_shm_door_params(s->door, h->rank);
        p->grads = ps_shm_door_grads(s->door, h->rank);
        p->shm = p->params && p->grads;
        if (!p->shm)
            return ps_err_set(PS_ERR_PROTOCOL, "shared memory that was not handed in");
    }
    p->joined = true;
    ps_wire_header ready = header_for(s, PS_MSG_READY, h->rank);
    return send_to(s, h->rank, &ready, NULL, 0, PS_WIRE_COPY);
}

/* INIT and PUSH of this peer come through the path that HELLO agreed on. */
static ps_err check_path(const peer *p, const ps_wire_header *h)
{
    if (p->shm == (h->codec == PS_CODEC_SHM)) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "a payload through another path than agreed on");
}

static ps_err return_credit(ps_shard *s, uint32_t rank)
{
    if (s->peers[rank].owed <= s->credit.explicit_above) return PS_OK;
    ps_wire_header h = header_for(s, PS_MSG_CREDIT, rank);
    return send_to(s, rank, &h, NULL, 0, PS_WIRE_COPY);
}

static ps_err handle_init(ps_shard *s, owned_chunk *c, const ps_wire_header *h,
                          ps_wire_frames *f)
{
    if (ps_policy_init_weights(&c->policy, h->rank) != PS_VERDICT_TAKE)
        return ps_err_set(PS_ERR_PROTOCOL, "first weights of chunk %u that nobody wants",
                          h->chunk);
    peer *p = &s->peers[h->rank];
    const float *from =
        p->shm ? p->params + c->plan->offset : (const float *)zmq_msg_data(&f->payload);
    memcpy(c->memory.weights, from, c->plan->count * sizeof *from);
    ps_coded_chunk_start(&c->coded, c->memory.weights);
    p->owed += p->shm ? 0 : zmq_msg_size(&f->payload);
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        if (ps_rank_set_has(&c->policy.waiting, r))
            PS_TRY(send_weights_out_of_turn(s, c, r));
    memset(&c->policy.waiting, 0, sizeof c->policy.waiting);
    // No reply belongs to an INIT: what it took over is returned at once.
    if (p->owed == 0) return PS_OK;
    ps_wire_header credit = header_for(s, PS_MSG_CREDIT, h->rank);
    return send_to(s, h->rank, &credit, NULL, 0, PS_WIRE_COPY);
}

static ps_err handle_push(ps_shard *s, owned_chunk *c, const ps_wire_header *h,
                          ps_wire_frames *f)
{
    ps_verdict verdict = ps_policy_push(&c->policy, h->rank, h->step);
    if (verdict == PS_VERDICT_REFUSE)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a gradient of chunk %u in step %" PRIu64
                          " before that step's weights",
                          h->chunk, h->step);
    s->peers[h->rank].owed += zmq_msg_size(&f->payload);
    if (verdict != PS_VERDICT_TAKE) {
        count_up(&s->repeated, 1);
        if (verdict == PS_VERDICT_ANSWER) return send_weights_out_of_turn(s, c, h->rank);
        return return_credit(s, h->rank);
    }
    count_up(&s->pushes, 1);
    zmq_msg_move(&c->pushes[h->rank], &f->payload);
    if (ps_policy_complete(&c->policy))
        PS_TRY(s->votes ? sum_now(s, c) : apply_now(s, c));
    return return_credit(s, h->rank);
}

static ps_err handle_pull(ps_shard *s, owned_chunk *c, const ps_wire_header *h)
{
    switch (ps_policy_pull(&c->policy, h->rank, h->step)) {
    case PS_VERDICT_ANSWER:
        return send_weights_out_of_turn(s, c, h->rank);
    case PS_VERDICT_WAIT:
        return PS_OK;
    default:
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a pull of chunk %u at version %" PRIu64
                          "; it stands at %" PRId64,
                          h->chunk, h->step, c->policy.version);
    }
}

/* Every worker waits for it and holds the same version: the workers and `told` change to
 * the exact weights together, and are equal again. */
static ps_err settle_all(ps_shard *s, owned_chunk *c)
{
    ps_coded_chunk_start(&c->coded, c->memory.weights);
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        PS_TRY(send_weights_out_of_turn(s, c, r));
    return PS_OK;
}

static ps_err handle_settle(ps_shard *s, owned_chunk *c, const ps_wire_header *h)
{
    switch (ps_policy_settle(&c->policy, h->rank, h->step)) {
    case PS_VERDICT_ALL:
        return settle_all(s, c);
    case PS_VERDICT_ANSWER:
        return send_weights_out_of_turn(s, c, h->rank);
    case PS_VERDICT_WAIT:
        return PS_OK;
    default:
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a wish to settle chunk %u at version %" PRIu64
                          "; it stands at %" PRId64,
                          h->chunk, h->step, c->policy.version);
    }
}

static void set_state(ps_shard *s, ps_shard_state state)
{
    atomic_store(&s->state, (int)state);
    uint64_t one = 1;
    if (s->event_fd >= 0 && write(s->event_fd, &one, sizeof one) < 0)
        PS_ERROR("eventfd", "state=%d", (int)state);
}

static void handle_bye(ps_shard *s, uint32_t rank)
{
    if (s->peers[rank].left) return;
    s->peers[rank].left = true;
    if (++s->n_left == s->rules.n_workers) set_state(s, PS_SHARD_DONE);
}

static ps_err handle_good(ps_shard *s, const ps_wire_header *h, ps_wire_frames *f)
{
    const peer *p = &s->peers[h->rank];
    if (h->kind == PS_MSG_HELLO) return handle_hello(s, h);
    if (!p->joined)
        return ps_err_set(PS_ERR_PROTOCOL, "%s before HELLO", ps_wire_kind_name(h->kind));
    if (p->left)
        return ps_err_set(PS_ERR_PROTOCOL, "%s after BYE", ps_wire_kind_name(h->kind));
    if (h->kind == PS_MSG_BYE) {
        handle_bye(s, h->rank);
        return PS_OK;
    }
    owned_chunk *c = &s->chunks[s->chunk_of[h->chunk]];
    if (h->kind == PS_MSG_PULL) return handle_pull(s, c, h);
    if (h->kind == PS_MSG_SETTLE) return handle_settle(s, c, h);
    PS_TRY(check_path(p, h));
    return h->kind == PS_MSG_INIT ? handle_init(s, c, h, f) : handle_push(s, c, h, f);
}

static void handle_stranger(ps_shard *s, const ps_frame_view *v)
{
    count_up(&s->strangers, 1);
    if (!s->stranger_logged)
        PS_WARN("stranger", "reason=\"%s\" note=\"later ones are not logged\"",
                ps_err_message());
    s->stranger_logged = true;
    send_error(s, v->id, v->id_bytes, ps_err_message());
}

static ps_err handle_stale(ps_shard *s, uint32_t rank)
{
    ps_wire_header h = header_for(s, PS_MSG_STALE, rank);
    h.count = s->rules.epoch;
    return send_to(s, rank, &h, NULL, 0, PS_WIRE_COPY);
}

static ps_err handle_message(ps_shard *s, ps_wire_frames *f)
{
    const ps_frame_view v = {
        .id = zmq_msg_data(&f->id),
        .id_bytes = zmq_msg_size(&f->id),
        .header = zmq_msg_data(&f->header),
        .header_bytes = zmq_msg_size(&f->header),
        .payload_bytes = f->has_payload ? zmq_msg_size(&f->payload) : 0,
        .n_frames = f->n - 1,
    };
    ps_wire_header h;
    ps_frame_class class = ps_frame_check(&s->rules, &v, &h);
    count_up(&s->bytes_received, v.header_bytes + v.payload_bytes);
    if (class == PS_FRAME_STRANGER) {
        handle_stranger(s, &v);
        return PS_OK;
    }
    if (class == PS_FRAME_STALE) return handle_stale(s, h.rank);
    ps_err err = class == PS_FRAME_BAD ? PS_ERR_PROTOCOL : handle_good(s, &h, f);
    if (err == PS_ERR_PROTOCOL) ps_err_prefix(err, "worker %u sent", h.rank);
    return err;
}

/* ---- the thread ---- */

static ps_err handle_messages(ps_shard *s, ps_wire_frames *f)
{
    for (int i = 0; i < MESSAGES_PER_POLL; i++) {
        bool got;
        PS_TRY(ps_wire_recv(s->router, true, f, &got));
        if (!got) break;
        PS_TRY(handle_message(s, f));
    }
    return flush_answers(s);
}

static ps_err serve(ps_shard *s, ps_wire_frames *f)
{
    zmq_pollitem_t items[] = {
        {.socket = s->router, .events = ZMQ_POLLIN},
        {.fd = s->stop_fd, .events = ZMQ_POLLIN},
        {.fd = ps_member_abort_fd(s->member), .events = ZMQ_POLLIN},
        {.socket = s->votes ? ps_coord_link_socket(s->link) : NULL, .events = ZMQ_POLLIN},
    };
    for (;;) {
        if (zmq_poll(items, s->votes ? 4 : 3, -1) < 0 && zmq_errno() != EINTR)
            return ps_err_set(PS_ERR_NET, "polling: %s", zmq_strerror(zmq_errno()));
        if (items[1].revents) return PS_OK;
        if (items[2].revents) return ps_member_check(s->member);
        if (s->votes && items[3].revents) PS_TRY(norm_arrived(s));
        if (items[0].revents) PS_TRY(handle_messages(s, f));
    }
}

/* Tells everybody why the job is over: the workers here, the others by the coordinator.
 */
static void fail_job(ps_shard *s)
{
    char reason[640];
    snprintf(reason, sizeof reason, "%s", ps_err_message());
    if (ps_member_check(s->member) == PS_OK) { // the failure is this shard's own
        ps_err_set(PS_ERR_PEER, "shard %u: %s", s->index, reason);
        snprintf(reason, sizeof reason, "%s", ps_err_message());
        PS_ERROR("shard-failed", "reason=\"%s\"", reason);
    }
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        uint8_t id[PS_WIRE_ID_BYTES];
        ps_wire_id(r, id);
        if (!s->peers[r].left) send_error(s, id, sizeof id, reason);
    }
    ps_member_abort(s->member, reason);
}

static void *shard_main(void *arg)
{
    ps_shard *s = arg;
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    ps_err err = serve(s, &f);
    ps_wire_frames_close(&f);
    if (err != PS_OK) {
        fail_job(s);
        set_state(s, PS_SHARD_FAILED);
    }
    return NULL;
}

/* ---- life ---- */

static uint64_t element_bytes(const ps_shard *s)
{
    return ps_credit_element_bytes(s->codec.codec != PS_CODEC_NONE);
}

static ps_err bind_router(ps_shard *s)
{
    // A little room above the largest payload: one slightly too long gets an answer.
    const ps_zsock_options options = {
        .type = ZMQ_ROUTER,
        .max_message_bytes =
            (int64_t)(s->o.plan->max_chunk_count * element_bytes(s) + (64u << 10)),
    };
    PS_TRY(ps_zsock_open(s->o.zmq_context, &options, &s->router));
    const int linger = LINGER_MS;
    zmq_setsockopt(s->router, ZMQ_LINGER, &linger, sizeof linger);
    char where[PS_ENDPOINT_MAX];
    ps_net_endpoint(s->o.address, 0, where, sizeof where);
    return ps_zsock_bind(s->router, where, s->endpoint);
}

static uint32_t count_chunks(const ps_plan *plan, uint32_t shard)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        n += plan->chunks[i].shard == shard;
    return n;
}

static ps_err alloc_arrays(ps_shard *s)
{
    const ps_plan *plan = s->o.plan;
    size_t workers = (size_t)s->o.n_workers;
    s->stream = ps_stream_copy_pays(s->o.spec->arena_count * sizeof(float) * workers);
    s->n_chunks = count_chunks(plan, s->index);
    PS_TRY(ps_mem_zalloc(&s->chunks, s->n_chunks, sizeof *s->chunks, "a shard's chunks"));
    PS_TRY(ps_mem_zalloc(&s->chunk_of, plan->n_chunks, sizeof *s->chunk_of,
                         "a shard's chunks"));
    PS_TRY(ps_mem_zalloc(&s->peers, workers, sizeof *s->peers, "a shard's peers"));
    PS_TRY(ps_mem_zalloc(&s->grads, workers, sizeof *s->grads, "a shard's peers"));
    PS_TRY(ps_mem_zalloc(&s->copies, workers, sizeof *s->copies, "a shard's peers"));
    PS_TRY(ps_mem_zalloc(&s->payloads, workers, sizeof *s->payloads, "a shard's peers"));
    if (s->codec.codec != PS_CODEC_NONE) {
        size_t bytes = plan->max_chunk_count * sizeof(float);
        PS_TRY(ps_mem_zalloc_aligned(&s->sum, bytes, "a decoded chunk"));
        PS_TRY(ps_mem_zalloc_aligned(&s->decoded, bytes, "a decoded chunk"));
    }
    PS_TRY(ps_mem_zalloc(&s->unsent, s->n_chunks, sizeof *s->unsent, "answers"));
    PS_TRY(ps_mem_zalloc(&s->run_first, s->n_chunks, sizeof *s->run_first, "norm runs"));
    return ps_mem_zalloc(&s->run_counts, s->n_chunks, sizeof *s->run_counts, "norm runs");
}

static ps_err init_chunk(ps_shard *s, uint32_t i, uint32_t index, float *slab)
{
    owned_chunk *c = &s->chunks[i];
    c->index = index;
    c->plan = &s->o.plan->chunks[index];
    s->chunk_of[index] = i;
    ps_policy_chunk_init(&c->policy, (uint32_t)s->o.n_workers);
    PS_TRY(ps_aggregate_init(&c->memory, s->o.spec, c->plan, s->o.optimizer, s->votes,
                             slab));
    PS_TRY(ps_coded_chunk_init(&c->coded, &s->codec, c->plan));
    PS_TRY(ps_mem_zalloc(&c->pushes, (size_t)s->o.n_workers, sizeof *c->pushes,
                         "a chunk's pushes"));
    for (int r = 0; r < s->o.n_workers; r++)
        zmq_msg_init(&c->pushes[r]);
    s->run_first[i] = ps_grad_norm_chunk_blocks(s->o.spec, c->plan, &s->run_counts[i]);
    return PS_OK;
}

static ps_err alloc_chunks(ps_shard *s)
{
    const ps_plan *plan = s->o.plan;
    uint64_t total = 0, blocks = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        if (plan->chunks[i].shard == s->index)
            total += ps_aggregate_slab_count(&plan->chunks[i], s->o.optimizer, s->votes);
    PS_TRY(ps_mem_zalloc_large(&s->slab, total * sizeof *s->slab,
                               "a shard's weights and optimizer state"));
    float *slab = s->slab;
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        if (plan->chunks[i].shard != s->index) continue;
        PS_TRY(init_chunk(s, n, i, slab));
        blocks += s->run_counts[n++];
        slab += ps_aggregate_slab_count(&plan->chunks[i], s->o.optimizer, s->votes);
    }
    return ps_mem_zalloc(&s->block_sums, blocks, sizeof *s->block_sums, "norm sums");
}

ps_err ps_shard_create(const ps_shard_options *options, ps_shard **out)
{
    *out = NULL;
    if (options->n_workers < 1 || options->n_workers > PS_MAX_RANKS)
        return ps_err_set(PS_ERR_ARG, "%d workers; 1 to %d are possible",
                          options->n_workers, PS_MAX_RANKS);
    ps_shard *s;
    PS_TRY(ps_mem_zalloc(&s, 1, sizeof *s, "a shard"));
    s->o = *options;
    s->event_fd = -1;
    s->clip = options->config->optimizer.clip_norm > 0;
    ps_err err;
    s->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (s->stop_fd < 0) {
        err = ps_err_errno(PS_ERR_IO, "eventfd");
        goto out;
    }
    PS_TRY_GOTO(ps_loss_scale_init(&s->scale, s->o.config), err, out);
    s->votes = s->clip || s->scale.on;
    PS_TRY_GOTO(ps_chunk_codec_init(&s->codec, s->o.config, s->o.spec), err, out);
    PS_TRY_GOTO(bind_router(s), err, out);
    *out = s;
    return PS_OK;
out:
    ps_shard_destroy(&s);
    return err;
}

const char *ps_shard_endpoint(const ps_shard *s)
{
    return s->endpoint;
}

ps_err ps_shard_start(ps_shard *s, const ps_shard_job *job)
{
    const ps_roster *roster = ps_member_roster(job->member);
    const ps_plan *plan = s->o.plan;
    s->index = job->index;
    s->member = job->member;
    s->schedule = *job->schedule;
    s->door = job->door;
    s->event_fd = job->event_fd;
    PS_TRY(alloc_arrays(s));
    PS_TRY(alloc_chunks(s));
    s->rules = (ps_frame_rules){
        .plan = plan,
        .codec = &s->codec,
        .shard = s->index,
        .nonce = roster->nonce,
        .epoch = roster->epoch,
        .n_workers = (uint32_t)s->o.n_workers,
    };
    uint64_t total, largest;
    ps_chunk_codec_step_bytes(&s->codec, plan, s->index, &total, &largest);
    s->credit =
        ps_credit_of_shard((uint64_t)s->o.config->exchange.credit, total, largest);
    if (s->votes) PS_TRY(ps_coord_link_create(s->o.zmq_context, s->member, &s->link));
    if (pthread_create(&s->thread, NULL, shard_main, s) != 0)
        return ps_err_set(PS_ERR_NOMEM, "no thread for shard %u", s->index);
    s->started = true;
    return PS_OK;
}

ps_shard_state ps_shard_get_state(const ps_shard *s)
{
    return (ps_shard_state)atomic_load(&s->state);
}

void ps_shard_get_stats(const ps_shard *s, ps_shard_stats *out)
{
    *out = (ps_shard_stats){
        .bytes_received = atomic_load_explicit(&s->bytes_received, memory_order_relaxed),
        .bytes_sent = atomic_load_explicit(&s->bytes_sent, memory_order_relaxed),
        .pushes = atomic_load_explicit(&s->pushes, memory_order_relaxed),
        .repeated = atomic_load_explicit(&s->repeated, memory_order_relaxed),
        .strangers = atomic_load_explicit(&s->strangers, memory_order_relaxed),
        .steps = atomic_load_explicit(&s->steps, memory_order_relaxed),
    };
}

void ps_shard_stop(ps_shard *s)
{
    uint64_t one = 1;
    if (s->started && write(s->stop_fd, &one, sizeof one) == sizeof one)
        pthread_join(s->thread, NULL);
    s->started = false;
    ps_coord_link_destroy(&s->link);
    ps_zsock_close(&s->router);
}

static void free_chunks(ps_shard *s)
{
    for (uint32_t i = 0; s->chunks && i < s->n_chunks; i++) {
        owned_chunk *c = &s->chunks[i];
        for (int r = 0; c->pushes && r < s->o.n_workers; r++)
            zmq_msg_close(&c->pushes[r]);
        free(c->pushes);
        ps_coded_chunk_fini(&c->coded);
        ps_aggregate_fini(&c->memory);
    }
    free(s->chunks);
}

void ps_shard_destroy(ps_shard **pointer)
{
    ps_shard *s = *pointer;
    if (!s) return;
    ps_shard_stop(s);
    free_chunks(s);
    free(s->chunk_of);
    free(s->peers);
    free(s->grads);
    free(s->copies);
    free(s->unsent);
    free(s->payloads);
    free(s->sum);
    free(s->decoded);
    free(s->run_first);
    free(s->run_counts);
    free(s->block_sums);
    if (s->stop_fd >= 0) close(s->stop_fd);
    free(s->slab);
    free(s);
    *pointer = NULL;
}
