#include "shard.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lamb.h"
#include "log.h"
#include "mem.h"
#include "net.h"
#include "shard_readers.h"
#include "shard_rows.h"
#include "shard_state.h"
#include "tell.h"
#include "thread.h"
#include "trace.h"
#include "zsock.h"

enum {
    LINGER_MS = 2000,          // for the last messages (errors) to leave
    UNPLANNED_BYTES = 4 << 20, // of a message, while the plan is not known
    MESSAGES_PER_POLL = 64,    // before other sources are looked at
    FLUSH_COUNT = 1 << 18      // elements: 1 MiB of weights
};

/* ---- what it tells its workers ---- */

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

static ps_err send_to(ps_shard *s, uint32_t rank, ps_wire_header *h, const void *payload,
                      size_t bytes, ps_wire_pass pass)
{
    ps_shard_peer *p = &s->peers[rank];
    h->credit = p->owed;
    p->owed = 0;
    uint64_t sent = 0;
    ps_err err =
        ps_wire_send(s->router, p->id, sizeof p->id, h, payload, bytes, pass, &sent);
    s->router_idle = false;
    ps_counter_add(&s->bytes_sent, sent);
    if (err == PS_ERR_PEER) PS_DEBUG("peer-gone", "worker=%u", rank);
    return err == PS_ERR_PEER ? PS_OK : err;
}

ps_err ps_shard_reply_short(ps_shard *s, ps_msg_kind kind, uint32_t rank, uint64_t number)
{
    ps_wire_header h = header_for(s, kind, rank);
    if (kind == PS_MSG_READY) h.hello.number = number;
    if (kind == PS_MSG_STALE) h.stale.present = (uint32_t)number;
    return send_to(s, rank, &h, NULL, 0, PS_WIRE_COPY);
}

/* Returns the worker's credit now if too much is owed to wait for another message. */
static ps_err shard_reply_credit(ps_shard *s, uint32_t rank)
{
    if (s->peers[rank].owed <= s->credit.explicit_above) return PS_OK;
    return ps_shard_reply_short(s, PS_MSG_CREDIT, rank, 0);
}

/* Sends the encoded change in turn, or, out of turn, a copy of what the worker has or, in
 * bsp, what all other workers have. */
static ps_err send_coded(ps_shard *s, ps_shard_chunk *c, ps_wire_header *h, uint32_t rank,
                         ps_wire_pass pass)
{
    if (pass == PS_WIRE_COPY)
        return send_to(s, rank, h, ps_coded_chunk_known(&c->coded, rank),
                       c->chunk->count * sizeof(float), pass);
    h->codec = (uint8_t)c->coded.reply_codec;
    // At their own pace, the reply to another worker takes this one's place.
    return send_to(s, rank, h, c->coded.reply, c->coded.reply_bytes,
                   s->pace->by_worker ? PS_WIRE_COPY : pass);
}

/* Sends a chunk's weights without a copy: libzmq reads them where the next step will
 * write them. This is safe in BSP. The next write comes only after every worker's push of
 * the next step, and a worker pushes only when it has received these weights whole. (If
 * this connection was lost, it received them over a new one, and has closed this one.) No
 * such push follows an answer out of turn (to repeated pushes and pulls), so these are
 * copied. */
static ps_err shard_reply_send_answer(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                      ps_msg_kind kind, ps_wire_pass pass)
{
    ps_wire_header h = header_for(s, kind, rank);
    s->pace->stamp(s, c, rank, &h);
    h.chunk = c->index;
    h.count = c->chunk->count;
    const bool same = c->idle && kind == PS_MSG_WEIGHTS && pass == PS_WIRE_BORROW;
    if (same) h.codec = PS_CODEC_IDLE;
    if (same && !s->peers[rank].rings.bell) return send_to(s, rank, &h, NULL, 0, pass);
    if (c->coded.coded) return send_coded(s, c, &h, rank, pass);
    const float *weights =
        c->coded.known ? ps_coded_chunk_known(&c->coded, rank) : c->memory.weights;
    if (!s->peers[rank].shm)
        return send_to(s, rank, &h, weights, c->chunk->count * sizeof(float), pass);
    if (!same) h.codec = PS_CODEC_SHM;
    if (s->peers[rank].rings.bell && pass == PS_WIRE_BORROW)
        return ps_shard_rings_put(s, rank, &h);
    return send_to(s, rank, &h, NULL, 0, pass);
}

ps_err ps_shard_reply_send(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                           ps_msg_kind kind, ps_wire_pass pass)
{
    const uint64_t begin_ns = c->policy.version > 0 ? ps_trace_now() : 0;
    PS_TRY(shard_reply_send_answer(s, c, rank, kind, pass));
    ps_trace_add_chunk(PS_TRACE_REPLY, begin_ns, (uint64_t)c->policy.version - 1,
                       c->index, rank);
    return PS_OK;
}

ps_err ps_shard_reply_out_of_turn(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                  ps_msg_kind kind)
{
    const ps_shard_peer *p = &s->peers[rank];
    if (p->shm)
        memcpy(p->params + c->chunk->offset, c->memory.weights,
               c->chunk->count * sizeof(float));
    return ps_shard_reply_send(s, c, rank, kind, PS_WIRE_COPY);
}

/* Workers in shared memory have the new weights already. One flush tells them about
 * several chunks, so that they are not woken for each. */
ps_err ps_shard_reply_flush(ps_shard *s)
{
    for (uint32_t i = 0; i < s->n_unsent; i++)
        for (uint32_t r = 0; r < s->rules.n_workers; r++)
            if (s->peers[r].shm)
                PS_TRY(ps_shard_reply_send(s, s->unsent[i], r, PS_MSG_WEIGHTS,
                                           PS_WIRE_BORROW));
    ps_shard_rings_wake(s);
    s->n_unsent = 0;
    s->unsent_count = 0;
    return PS_OK;
}

ps_err ps_shard_reply_weights(ps_shard *s, ps_shard_chunk *c)
{
    bool shared = false;
    for (uint32_t i = 0; i < s->n_senders; i++) {
        const uint32_t r = s->senders[i];
        shared = shared || s->peers[r].shm;
        if (!s->peers[r].shm)
            PS_TRY(ps_shard_reply_send(s, c, r, PS_MSG_WEIGHTS, PS_WIRE_BORROW));
    }
    if (!shared) return PS_OK;
    if (s->n_unsent == s->n_chunks) PS_TRY(ps_shard_reply_flush(s));
    s->unsent[s->n_unsent++] = c;
    s->unsent_count += c->chunk->count;
    return s->unsent_count < FLUSH_COUNT ? PS_OK : ps_shard_reply_flush(s);
}

ps_err ps_shard_reply_state(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                            uint64_t array, const void *payload, size_t bytes,
                            ps_wire_pass pass)
{
    ps_wire_header h = header_for(s, PS_MSG_STATE, rank);
    h.step = (uint64_t)c->policy.version;
    h.chunk = c->index;
    h.count = c->chunk->count;
    h.state.array = array;
    if (!payload) h.codec = PS_CODEC_SHM;
    return send_to(s, rank, &h, payload, bytes, pass);
}

ps_err ps_shard_reply_restored(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                               uint64_t array)
{
    ps_wire_header h = header_for(s, PS_MSG_RESTORED, rank);
    h.chunk = c->index;
    h.state.array = array;
    return send_to(s, rank, &h, NULL, 0, PS_WIRE_COPY);
}

ps_err ps_shard_reply_rows(ps_shard *s, uint32_t rank, uint64_t step, uint64_t number,
                           uint64_t all_bytes, uint64_t at, const void *piece,
                           size_t bytes)
{
    ps_wire_header h = header_for(s, PS_MSG_ROWS, rank);
    h.step = step;
    h.count = all_bytes;
    h.rows.number = number;
    h.rows.at = at;
    return send_to(s, rank, &h, piece, bytes, PS_WIRE_COPY);
}

static void shard_reply_error(ps_shard *s, uint32_t rank, const char *text)
{
    const ps_shard_peer *p = &s->peers[rank];
    ps_wire_header h = header_for(s, PS_MSG_ERROR, rank);
    uint64_t sent = 0;
    s->router_idle = false;
    if (ps_wire_send(s->router, p->id, sizeof p->id, &h, text, strlen(text), PS_WIRE_COPY,
                     &sent) != PS_OK)
        PS_DEBUG("peer-gone", "while=ERROR");
    ps_counter_add(&s->bytes_sent, sent);
}

/* ---- what it is told ---- */

/* Whether gradients come through rings is agreed on like the path of payloads. */
static ps_err take_rings(ps_shard *s, ps_shard_peer *p, const ps_wire_header *h)
{
    const bool wanted = h->hello.rings;
    if (p->joined && wanted != (p->rings.bell != NULL))
        return ps_err_set(PS_ERR_PROTOCOL, "a HELLO that differs from its first one");
    if (p->joined || !wanted) return PS_OK;
    void *base = p->shm ? ps_shm_door_rings_of(s->door, h->rank) : NULL;
    if (!base)
        return ps_err_set(PS_ERR_PROTOCOL, "a HELLO with rings that are not mapped here");
    p->rings = ps_wire_rings_at(base, s->o.plan, s->groups.n, s->index);
    s->n_rings++;
    return PS_OK;
}

static ps_err take_hello(ps_shard *s, const ps_wire_header *h)
{
    ps_shard_peer *p = &s->peers[h->rank];
    if (h->hello.back < p->back) return PS_OK; // it was on its way
    if (h->hello.back > p->back && !s->pace->by_worker)
        return ps_err_set(PS_ERR_PROTOCOL, "a HELLO in a dead worker's place");
    // It may be faster than the order which says that it takes a dead worker's place.
    if (h->hello.back > p->back) {
        p->hello = true;
        p->hello_header = *h;
        return PS_OK;
    }
    // Pending payloads came through the agreed path, so it cannot change any more.
    if (p->joined && p->shm != (h->codec == PS_CODEC_SHM))
        return ps_err_set(PS_ERR_PROTOCOL, "a HELLO that differs from its first one");
    if (h->codec == PS_CODEC_SHM) {
        if (s->codec.codec != PS_CODEC_NONE)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "a HELLO with shared memory, but the job has a codec");
        p->params = ps_shm_door_params(s->door, h->rank);
        p->grads = ps_shm_door_grads(s->door, h->rank);
        p->rows = ps_shm_door_rows(s->door, h->rank);
        p->shm = p->params && p->grads;
        if (!p->shm)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "a HELLO with shared memory that is not mapped here");
    }
    PS_TRY(take_rings(s, p, h));
    p->joined = true;
    p->dead = false;
    // Payloads of the connection before come again, or have been answered.
    p->owed = 0;
    ps_shard_rows_connect(s, h->rank);
    return ps_shard_reply_short(s, PS_MSG_READY, h->rank, h->hello.number);
}

/* Refuses an INIT or PUSH that does not use the path agreed on in HELLO. */
static ps_err check_path(const ps_shard_peer *p, const ps_wire_header *h)
{
    if (h->codec == PS_CODEC_IDLE || p->shm == (h->codec == PS_CODEC_SHM)) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL,
                      "a payload by another path than its HELLO agreed on");
}

/* Whether it follows first weights that are not here. They may be lost with a connection
 * while it comes over the next one: then both come again, after a HELLO. */
static bool shard_lacks_first_weights(const ps_shard_chunk *c, const ps_wire_header *h)
{
    return h->rank == 0 && c->policy.version < 0 &&
           (h->kind == PS_MSG_PUSH || h->kind == PS_MSG_EXACT || h->kind == PS_MSG_FETCH);
}

static void take_first_weights(ps_shard_chunk *c, const ps_shard_peer *p,
                               ps_wire_frames *f)
{
    const float *from =
        p->shm ? p->params + c->chunk->offset : (const float *)zmq_msg_data(&f->payload);
    if (!c->restored) memcpy(c->memory.weights, from, c->chunk->count * sizeof *from);
    ps_coded_chunk_start(&c->coded, from);
}

/* Answers workers that asked for the first weights before these were here. */
static ps_err answer_waiting(ps_shard *s, ps_shard_chunk *c)
{
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        if (ps_rank_set_has(&c->policy.waiting, r))
            PS_TRY(ps_shard_reply_out_of_turn(s, c, r, PS_MSG_WEIGHTS));
    memset(&c->policy.waiting, 0, sizeof c->policy.waiting);
    return PS_OK;
}

static ps_err handle_init(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h,
                          ps_wire_frames *f)
{
    ps_shard_peer *p = &s->peers[h->rank];
    if (h->step != (uint64_t)c->policy.first)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "first weights at version %" PRIu64 ", the job begins at "
                          "%" PRId64,
                          h->step, c->policy.first);
    const ps_verdict verdict = ps_policy_init_weights(&c->policy, h->rank);
    if (verdict == PS_VERDICT_REFUSE)
        return ps_err_set(
            PS_ERR_PROTOCOL,
            "first weights of chunk %u out of turn: worker 0 sends them, once", h->chunk);
    if (!p->shm) p->owed += zmq_msg_size(&f->payload);
    if (verdict == PS_VERDICT_TAKE) {
        s->n_first++;
        take_first_weights(c, p, f);
        PS_TRY(answer_waiting(s, c));
    }
    // An INIT has no reply, so its credit is returned at once.
    return p->owed ? ps_shard_reply_short(s, PS_MSG_CREDIT, h->rank, 0) : PS_OK;
}

/* Whether the numbers are here that a gradient of worker 0 was sent after. They may be
 * lost with a connection while the gradient comes over the next one. */
static bool has_groups(const ps_shard *s, const ps_wire_header *h)
{
    const uint64_t n = s->groups.n_sets;
    if (h->push.groups == 0) return true;
    return n > 0 && s->groups.from[(n - 1) % PS_GROUP_SETS] + 1 >= h->push.groups;
}

static void note_arrival(ps_shard *s, uint32_t rank)
{
    double *last = s->paced.figures, *sums = last + s->rules.n_workers + 1;
    if (!ps_member_tells_pace(s->member)) return;
    last[rank] = ps_member_time_ns(s->member, ps_clock_ns());
    sums[rank] += last[rank];
}

/* All ranks make the same optimizer's step. */
static ps_err shard_note_owner(const ps_shard *s, ps_shard_chunk *c,
                               const ps_wire_header *h)
{
    const uint64_t at = h->step % 2;
    if (!c->owners[at].known) {
        c->owners[at].known = true;
        c->owners[at].step_of = h->push.step_of;
        c->owners[at].rank = h->rank;
    }
    if (c->owners[at].step_of == h->push.step_of) return PS_OK;
    const uint32_t ranks[] = {c->owners[at].rank, h->rank};
    const uint32_t steps_of[] = {c->owners[at].step_of, h->push.step_of};
    return ps_step_of_differs(PS_ERR_ARG, s->o.table, h->step, ranks, steps_of);
}

static ps_err handle_push(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h,
                          ps_wire_frames *f)
{
    ps_shard_peer *p = &s->peers[h->rank];
    if (!has_groups(s, h)) return PS_OK; // both come again, after a HELLO
    const ps_verdict verdict = s->pace->push(s, c, h->rank, h->step);
    // In shared memory there is room for the gradient of one step.
    if (verdict == PS_VERDICT_REFUSE || (verdict == PS_VERDICT_KEEP && p->shm))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a gradient of chunk %u in step %" PRIu64
                          " before that step's weights",
                          h->chunk, h->step);
    if (verdict == PS_VERDICT_TAKE || verdict == PS_VERDICT_KEEP)
        PS_TRY(shard_note_owner(s, c, h));
    p->owed += zmq_msg_size(&f->payload);
    const uint64_t begin_ns = ps_trace_now();
    switch (verdict) {
    case PS_VERDICT_TAKE:
        ps_counter_add(&s->pushes, 1);
        p->n_pending += p->rings.bell != NULL;
        note_arrival(s, h->rank);
        zmq_msg_move(&c->pushes[h->rank], &f->payload);
        ps_trace_add_chunk(PS_TRACE_RECEIVE, begin_ns, h->step, h->chunk, h->rank);
        PS_TRY(s->pace->taken(s, c, h->rank));
        break;
    case PS_VERDICT_KEEP:
        ps_counter_add(&s->pushes, 1);
        zmq_msg_move(&c->early[h->rank], &f->payload);
        ps_trace_add_chunk(PS_TRACE_RECEIVE, begin_ns, h->step, h->chunk, h->rank);
        PS_TRY(ps_shard_check_left(s, c));
        break;
    case PS_VERDICT_ANSWER:
        ps_counter_add(&s->repeated, 1);
        return s->pace->answer_again(s, c, h->rank);
    default:
        ps_counter_add(&s->repeated, 1);
    }
    return shard_reply_credit(s, h->rank);
}

static ps_err wrong_version(const ps_shard_chunk *c, const ps_wire_header *h,
                            const char *wish)
{
    return ps_err_set(PS_ERR_PROTOCOL,
                      "%s chunk %u at version %" PRIu64
                      "; the shard is at version %" PRId64,
                      wish, h->chunk, h->step, c->policy.version);
}

static ps_err handle_pull(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h)
{
    switch (s->pace->pull(s, c, h->rank, h->step)) {
    case PS_VERDICT_ANSWER:
        return ps_shard_reply_out_of_turn(s, c, h->rank, PS_MSG_WEIGHTS);
    case PS_VERDICT_WAIT:
        return ps_shard_check_left(s, c);
    default:
        return wrong_version(c, h, "a pull of");
    }
}

/* Every worker waits for this and holds the same version, so the workers and `known`
 * change to the exact weights together and are equal again. */
static ps_err send_all_exact(ps_shard *s, ps_shard_chunk *c)
{
    ps_coded_chunk_start(&c->coded, c->memory.weights);
    for (uint32_t i = 0; i < s->n_senders; i++)
        PS_TRY(ps_shard_reply_out_of_turn(s, c, s->senders[i], PS_MSG_EXACT_WEIGHTS));
    return PS_OK;
}

static ps_err handle_exact(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h)
{
    const uint64_t version = s->pace->version(s, c, h->rank, h->step);
    const bool present = version == (uint64_t)c->policy.version;
    switch (ps_policy_exact(&c->policy, h->rank, version)) {
    case PS_VERDICT_ALL:
        return send_all_exact(s, c);
    case PS_VERDICT_ANSWER: // what was asked for in an older version has been answered
        return ps_shard_reply_out_of_turn(
            s, c, h->rank, present ? PS_MSG_EXACT_WEIGHTS : PS_MSG_WEIGHTS);
    case PS_VERDICT_WAIT:
        return ps_shard_check_left(s, c);
    default:
        return wrong_version(c, h, "a EXACT of");
    }
}

/* Repetitions are of a step that has numbers already. */
static ps_err handle_groups(ps_shard *s, const ps_wire_header *h, ps_wire_frames *f)
{
    const uint64_t n = s->groups.n_sets;
    if (n > 0 && h->step <= s->groups.from[(n - 1) % PS_GROUP_SETS]) return PS_OK;
    const char *at = zmq_msg_data(&f->payload); // not aligned
    for (int i = 0; i < s->groups.n; i++) {
        ps_group_numbers numbers;
        memcpy(&numbers, at + (size_t)i * sizeof numbers, sizeof numbers);
        if (ps_param_groups_check(&s->groups, &numbers, i) != PS_OK)
            return PS_ERR_PROTOCOL;
    }
    ps_param_groups_set(&s->groups, h->step, at);
    return PS_OK;
}

static ps_err check_left_in_all(const ps_shard *s)
{
    for (uint32_t i = 0; i < s->n_chunks; i++)
        PS_TRY(ps_shard_check_left(s, &s->chunks[i]));
    return PS_OK;
}

/* Of the workers, all of which have left, some come back. */
static ps_err some_return(const ps_shard *s)
{
    int64_t by[2] = {0, 0}; // one that stays away, one that comes back
    for (uint32_t i = 0; i < s->n_senders; i++)
        by[s->peers[s->senders[i]].returns] = s->senders[i];
    return ps_shard_adds_alone(by[1], by[0]);
}

static void shard_set_state(ps_shard *s, ps_shard_state state)
{
    atomic_store(&s->state, (int)state);
    if (s->changed) ps_event_set(s->changed);
}

static ps_err handle_bye(ps_shard *s, const ps_wire_header *h)
{
    ps_shard_peer *p = &s->peers[h->rank];
    const bool again = p->left;
    p->left = true;
    p->returns = h->bye.returns;
    PS_TRY(ps_shard_reply_short(s, PS_MSG_LEFT, h->rank, 0));
    if (again) return PS_OK;
    s->n_left++;
    s->n_return += p->returns;
    PS_TRY(check_left_in_all(s));
    PS_TRY(ps_shard_rows_check_left(s));
    if (s->n_left < s->n_senders) return PS_OK;
    if (s->n_return > 0 && s->n_return < s->n_left) return some_return(s);
    shard_set_state(s, s->n_return > 0 ? PS_SHARD_PAUSED : PS_SHARD_DONE);
    return PS_OK;
}

static ps_err handle_good(ps_shard *s, const ps_wire_header *h, ps_wire_frames *f)
{
    const ps_shard_peer *p = &s->peers[h->rank];
    if (!s->sends[h->rank])
        return ps_err_set(PS_ERR_PROTOCOL,
                          "%s, but its host's lowest rank speaks for it (exchange.levels "
                          "2)",
                          ps_wire_kind_name(h->kind));
    if (h->kind == PS_MSG_HELLO) return take_hello(s, h);
    if (p->dead) return PS_OK; // it was on its way
    if (!p->joined)
        return ps_err_set(PS_ERR_PROTOCOL, "%s before HELLO", ps_wire_kind_name(h->kind));
    if (h->kind == PS_MSG_BYE) return handle_bye(s, h);
    // First weights have no answer, so they come again over a new connection.
    if (p->left && h->kind != PS_MSG_INIT)
        return ps_err_set(PS_ERR_PROTOCOL, "%s after BYE", ps_wire_kind_name(h->kind));
    if (h->kind == PS_MSG_GROUPS) return handle_groups(s, h, f);
    if (ps_wire_is_rows(h->kind)) return ps_shard_rows_take(s, h, f);
    ps_shard_chunk *c = &s->chunks[s->chunk_of[h->chunk]];
    if (shard_lacks_first_weights(c, h)) return PS_OK;
    if (h->kind == PS_MSG_PULL) return handle_pull(s, c, h);
    if (h->kind == PS_MSG_EXACT) return handle_exact(s, c, h);
    if (h->kind == PS_MSG_FETCH) return ps_shard_snapshot_fetch(s, c, h);
    if (h->kind == PS_MSG_RESTORE) return ps_shard_snapshot_restore(s, c, h, f);
    PS_TRY(check_path(p, h));
    return h->kind == PS_MSG_INIT ? handle_init(s, c, h, f) : handle_push(s, c, h, f);
}

/* All workers have left to come back with another table. One whose connection was lost
 * says BYE again, and is answered. Once all have their answers the first message of that
 * table comes, for the thread to come. */
static bool shard_is_paused(const ps_shard *s)
{
    return ps_shard_get_state(s) == PS_SHARD_PAUSED;
}

/* Drops a message without an answer: its sender is unknown. */
static void drop_stranger(ps_shard *s)
{
    ps_counter_add(&s->strangers, 1);
    PS_WARN_FEW("stranger", "reason=\"%s\"", ps_err_message());
}

ps_err ps_shard_take_message(ps_shard *s, ps_wire_frames *f)
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
    ps_counter_add(&s->bytes_received, v.header_bytes + v.payload_bytes);
    if (ps_frame_is_readers(&s->rules, &v)) return ps_shard_readers_take(s, &v, f);
    const int64_t shard = ps_frame_shard(&s->rules, &v);
    if (shard >= 0) return ps_shard_rows_take_of_twin(s, &v, f, (uint32_t)shard);
    ps_frame_class class = ps_frame_check(&s->rules, &v, &h);
    if (class == PS_FRAME_STRANGER) {
        drop_stranger(s);
        return PS_OK;
    }
    s->holds = class == PS_FRAME_STALE && shard_is_paused(s) && h.epoch > s->rules.epoch;
    if (s->holds) return PS_OK;
    if (class == PS_FRAME_STALE)
        return ps_shard_reply_short(s, PS_MSG_STALE, h.rank, s->rules.epoch);
    s->speaker = h.rank;
    ps_err err = class == PS_FRAME_BAD ? PS_ERR_PROTOCOL : handle_good(s, &h, f);
    if (err == PS_ERR_PROTOCOL) ps_err_prefix(err, "worker %u sent", s->speaker);
    return err;
}

ps_err ps_shard_hear(ps_shard *s)
{
    PS_TRY(s->pace->hear(s));
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        ps_shard_peer *p = &s->peers[r];
        if (!p->hello || p->hello_header.hello.back > p->back) continue;
        p->hello = false;
        PS_TRY(take_hello(s, &p->hello_header));
    }
    return PS_OK;
}

/* ---- the thread ---- */

static ps_err handle_messages(ps_shard *s, ps_wire_frames *f)
{
    for (int i = 0; i < MESSAGES_PER_POLL && !s->holds; i++) {
        bool got;
        PS_TRY(ps_wire_recv(s->router, true, f, &got));
        s->router_idle = !got;
        if (!got) break;
        PS_TRY(ps_shard_take_message(s, f));
    }
    return ps_shard_reply_flush(s);
}

/* Of a worker no more than it may have sent: every chunk's gradient, and the numbers of
 * parameter groups. */
static ps_err handle_rings(ps_shard *s, ps_wire_frames *f)
{
    if (!ps_shard_rings_in_use(s)) return PS_OK;
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        for (uint32_t i = 0; i < s->n_chunks + PS_GROUP_SETS; i++) {
            bool got;
            PS_TRY(ps_shard_rings_next(s, r, f, &got));
            if (!got) break;
            PS_TRY(ps_shard_take_message(s, f));
        }
    return ps_shard_reply_flush(s);
}

/* What a shard waits for. Without a link or a twin their descriptors are -1, which poll
 * leaves out. */
enum { ROUTER, STOP, ABORT, WAKE, LINK, LINK_EVENTS, TWIN, TWIN_EVENTS, N_ITEMS };

/* Returns how many of them are in use. */
static int shard_items(ps_shard *s, ps_zsock_item items[N_ITEMS])
{
    ps_twin_feed *feed = ps_shard_rows_feed(s);
    for (int i = 0; i < N_ITEMS; i++)
        items[i] = (ps_zsock_item){.fd = -1};
    items[ROUTER].socket = s->router;
    items[STOP].fd = ps_event_fd(&s->stop);
    items[ABORT].fd = ps_member_abort_fd(s->member);
    items[WAKE].fd = ps_event_fd(&s->wake);
    if (s->link) items[LINK].socket = ps_coord_link_socket(s->link);
    if (s->link) items[LINK_EVENTS].socket = ps_coord_link_monitor(s->link);
    if (feed) items[TWIN].socket = ps_twin_feed_socket(feed);
    if (feed) items[TWIN_EVENTS].socket = ps_twin_feed_monitor(feed);
    return feed ? N_ITEMS : s->link ? LINK_EVENTS + 1 : WAKE + 1;
}

/* Another member has ended the job: perhaps one that waited, and does not know for whom.
 */
static void shard_tell_lack(ps_shard *s, ps_wire_frames *f)
{
    int64_t rank = -1;
    (void)handle_rings(s, f); // pushes may lie there until the last one comes
    for (size_t i = 0; rank < 0 && s->pace->lacks && i < s->n_chunks; i++)
        rank = s->pace->lacks(s, &s->chunks[i]);
    if (rank < 0) return;
    ps_tell("waits", "{s:s, s:i}", "role", "worker", "rank", (int)rank);
    PS_INFO("waits", "for=\"worker %d\"", (int)rank); // where no psrun listens
}

static ps_err shard_serve(ps_shard *s, ps_wire_frames *f)
{
    ps_zsock_item items[N_ITEMS];
    struct pollfd fds[N_ITEMS];
    const int n_items = shard_items(s, items);
    for (;;) {
        ps_shard_rings_look(s);
        const bool nothing = ps_shard_rings_sleep(s);
        items[ROUTER].idle = s->router_idle;
        items[LINK].idle = items[TWIN].idle = false;
        int rc = ps_zsock_poll(items, fds, n_items, nothing ? -1 : 0);
        int reason = zmq_errno();
        ps_shard_rings_awake(s, rc > 0 && items[WAKE].ready);
        if (rc < 0 && reason != EINTR)
            return ps_err_set(PS_ERR_NET, "polling: %s", zmq_strerror(reason));
        if (items[ABORT].ready) shard_tell_lack(s, f);
        if (items[STOP].ready) return PS_OK;
        if (items[ABORT].ready) return ps_member_check(s->member);
        if (items[LINK_EVENTS].ready) PS_TRY(ps_coord_link_mend(s->link));
        if (items[LINK].ready) PS_TRY(ps_shard_hear(s));
        if (items[TWIN_EVENTS].ready) PS_TRY(ps_twin_feed_mend(ps_shard_rows_feed(s), s));
        if (items[TWIN].ready) PS_TRY(ps_shard_rows_hear_twin(s));
        if (items[ROUTER].ready) PS_TRY(handle_messages(s, f));
        if (s->holds) return PS_OK;
        PS_TRY(handle_rings(s, f));
    }
}

/* Tells everybody why the job is over: this shard's workers directly, the other members
 * through the coordinator. */
static void fail_job(ps_shard *s, ps_err err)
{
    ps_err_saved failure = ps_err_save(PS_ERR_PEER);
    if (ps_member_check(s->member) == PS_OK) { // the failure is this shard's own
        ps_err_restore(&failure);
        failure = ps_err_save(ps_err_prefix(PS_ERR_PEER, "shard %u", s->index));
        ps_log_failure("shard-failed", err);
    }
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        if (!s->peers[r].left) shard_reply_error(s, r, failure.message);
    }
    ps_member_abort(s->member, err, failure.message);
}

static void *shard_main(void *arg)
{
    ps_shard *s = arg;
    ps_err err = s->holds ? ps_shard_take_message(s, &s->frames) : PS_OK;
    if (err == PS_OK) err = shard_serve(s, &s->frames);
    if (err != PS_OK) {
        fail_job(s, err);
        shard_set_state(s, PS_SHARD_FAILED);
    }
    return NULL;
}

/* ---- life ---- */

static uint64_t shard_element_bytes(const ps_shard *s)
{
    return ps_credit_element_bytes(s->codec.codec != PS_CODEC_NONE);
}

/* Takes over what the plan and the step rule say. */
static void shard_learn(ps_shard *s)
{
    s->norm.clip = s->o.rule->clip_norm > 0;
    s->norm.waits = ps_step_rule_waits(s->o.rule);
    s->norm.trusts = ps_lamb_on(&s->o.rule->optimizer);
    ps_chunk_codec_init(&s->codec, s->o.config, s->o.table);
}

static bool knows_plan(const ps_shard *s)
{
    return s->o.plan->n_chunks > 0;
}

/* Before the plan is known there is no limit to a message; only members get through the
 * gate. */
static ps_err bind_router(ps_shard *s)
{
    // A little above the largest payload, so that a slightly longer one gets an answer.
    const bool known = knows_plan(s);
    uint64_t largest =
        known ? s->o.plan->max_chunk_count * shard_element_bytes(s) : UNPLANNED_BYTES;
    const ps_config *config = s->o.config;
    if (s->o.rows && largest < PS_WIRE_PIECE_BYTES) largest = PS_WIRE_PIECE_BYTES;
    if (s->o.rows && config->rows.buddy && largest < PS_WIRE_TWIN_BYTES)
        largest = PS_WIRE_TWIN_BYTES;
    const ps_zsock_options options = {
        .type = ZMQ_ROUTER,
        .silence_ms = ps_zsock_silence_ms((uint64_t)config->net.heartbeat_ms,
                                          (uint64_t)config->net.dead_after_ms),
        .max_message_bytes = known ? (int64_t)(largest + (64u << 10)) : 0,
        // A worker has at most two messages per chunk on the way; rows have any number.
        .waiting_messages = known && !s->o.rows ? (int)(2 * s->o.plan->n_chunks + 64) : 0,
        .asks_for_secret = true,
        .curve = s->o.curve,
    };
    PS_TRY(ps_zsock_open(s->o.zmq_context, &options, &s->router));
    PS_TRY(ps_gate_watch(s->o.gate, s->router, PS_GATE_MEMBERS));
    const int linger =
        config->recovery.rejoins > 0 ? PS_ZSOCK_REJOIN_LINGER_MS : LINGER_MS;
    zmq_setsockopt(s->router, ZMQ_LINGER, &linger, sizeof linger);
    char where[PS_ENDPOINT_MAX];
    ps_net_endpoint(s->o.address, 0, where, sizeof where);
    return ps_zsock_bind(s->router, s->o.curve, where, s->endpoint);
}

ps_err ps_shard_create(const ps_shard_options *options, ps_shard **out)
{
    *out = NULL;
    if (options->n_workers < 1 || options->n_workers > PS_MAX_RANKS)
        return ps_err_set(PS_ERR_ARG, "%d workers; 1 to %d are possible",
                          options->n_workers, PS_MAX_RANKS);
    ps_shard *s;
    PS_TRY(PS_NEW(&s, 1, "a shard"));
    s->o = *options;
    ps_wire_frames_open(&s->frames);
    ps_err err;
    PS_TRY_GOTO(ps_row_figures_init(&s->tables), err, out);
    PS_TRY_GOTO(ps_event_init(&s->stop), err, out);
    PS_TRY_GOTO(ps_event_init(&s->wake), err, out);
    if (knows_plan(s)) shard_learn(s);
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

int ps_shard_wake_fd(const ps_shard *s)
{
    return ps_event_fd(&s->wake);
}

/* What their frames look like, and where each of them stands. */
static void expect_workers(ps_shard *s, const ps_roster *roster, int n_groups)
{
    s->rules = (ps_frame_rules){
        .plan = s->o.plan,
        .table = s->o.table,
        .codec = &s->codec,
        .shard = s->index,
        .nonce = roster->nonce,
        .epoch = ps_member_epoch(s->member),
        .n_workers = (uint32_t)s->o.n_workers,
        .secrets = roster->secrets,
        .readers = ps_roster_readers(roster),
        .twins = s->o.config->rows.buddy ? ps_roster_twins(roster) : NULL,
        .n_groups = n_groups,
    };
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        ps_wire_id(r, &roster->secrets[r], s->peers[r].id);
}

ps_err ps_shard_start(ps_shard *s, const ps_shard_job *job)
{
    const ps_roster *roster = ps_member_roster(job->member);
    const ps_plan *plan = s->o.plan;
    s->index = job->index;
    s->member = job->member;
    s->o.n_workers = job->n_workers;
    s->first_step = job->first_step;
    s->ahead = job->ahead;
    s->mean = job->mean;
    s->rule = *s->o.rule;
    shard_learn(s);
    if (job->n_groups > 0) {
        PS_TRY(ps_param_groups_init(&s->groups, job->n_groups));
        PS_TRY(ps_param_groups_open(&s->groups, &s->rule.optimizer, job->numbers));
        ps_param_groups_use(&s->groups, &s->rule.optimizer);
    }
    ps_chunk_codec_end(&s->codec, job->total_steps);
    s->door = job->door;
    s->spin_ns = ps_roster_spin_ns(roster, &roster->servers[ps_member_rank(job->member)],
                                   s->o.config->train.threads);
    s->changed = job->changed;
    s->pace = ps_config_own_pace(s->o.config) ? &ps_shard_orders : &ps_shard_bsp;
    PS_TRY(ps_shard_memory_init(s));
    expect_workers(s, roster, job->n_groups);
    PS_TRY(ps_shard_rows_open(s, job->rows, job->n_rows));
    s->credit = ps_credit_of_shard((uint64_t)s->o.config->exchange.credit, &s->codec,
                                   plan, s->index);
    const unsigned link = s->index % (plan->n_shards / (unsigned)roster->n_servers) + 1;
    if (s->norm.waits || s->pace->by_worker)
        PS_TRY(ps_coord_link_create(s->o.zmq_context, s->member, link, &s->link));
    char name[16];
    snprintf(name, sizeof name, "shard %u", s->index);
    return ps_thread_start(&s->thread, name, shard_main, s);
}

ps_shard_state ps_shard_get_state(const ps_shard *s)
{
    return (ps_shard_state)atomic_load(&s->state);
}

void ps_shard_get_stats(const ps_shard *s, ps_shard_stats *out)
{
    *out = (ps_shard_stats){
        .bytes_received = ps_counter_get(&s->bytes_received),
        .bytes_sent = ps_counter_get(&s->bytes_sent),
        .pushes = ps_counter_get(&s->pushes),
        .repeated = ps_counter_get(&s->repeated),
        .strangers = ps_counter_get(&s->strangers),
        .steps = ps_counter_get(&s->steps),
        .sum_ns = ps_counter_get(&s->sum_ns),
        .apply_ns = ps_counter_get(&s->apply_ns),
        .rows = ps_counter_get(&s->rows_now),
        .rows_bytes = ps_counter_get(&s->rows_bytes),
        .rows_stepped = ps_counter_get(&s->rows_stepped),
        .rows_dropped = ps_counter_get(&s->rows_dropped),
    };
}

ps_err ps_shard_add_tables(ps_shard *s, ps_row_figure_list *tables)
{
    return ps_row_figures_add(&s->tables, tables);
}

static void shard_end_thread(ps_shard *s)
{
    ps_thread_join(&s->thread);
    ps_coord_link_destroy(&s->link);
    ps_twin_feed_close(ps_shard_rows_feed(s));
}

/* ZeroMQ reads its weights no more: workers have read all that came before LEFT. */
void ps_shard_clear(ps_shard *s)
{
    ps_event_set(&s->stop);
    shard_end_thread(s);
    ps_event_clear(&s->stop);
    ps_shard_memory_fini(s);
    memset(&s->index, 0, sizeof *s - offsetof(ps_shard, index));
    shard_set_state(s, PS_SHARD_RUNNING);
}

void ps_shard_stop(ps_shard *s)
{
    ps_event_set(&s->stop);
    shard_end_thread(s);
    ps_gate_unwatch(s->router);
    ps_zsock_close(&s->router);
}

void ps_shard_destroy(ps_shard **pointer)
{
    ps_shard *s = *pointer;
    if (!s) return;
    ps_shard_stop(s);
    ps_shard_rows_close(s);
    ps_shard_memory_fini(s);
    ps_event_fini(&s->stop);
    ps_event_fini(&s->wake);
    ps_row_figures_fini(&s->tables);
    free(s->readers);
    ps_wire_frames_close(&s->frames);
    free(s);
    *pointer = NULL;
}
