#include "shard_messages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "shard_reply.h"
#include "shard_rows.h"
#include "shard_snapshot.h"
#include "trace.h"

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
    return ps_shard_reply_short(s, PS_MSG_READY, h->rank, h->hello.number);
}

/* Refuses an INIT or PUSH that does not use the path agreed on in HELLO. */
static ps_err check_path(const ps_shard_peer *p, const ps_wire_header *h)
{
    if (h->codec == PS_CODEC_IDLE || p->shm == (h->codec == PS_CODEC_SHM)) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL,
                      "a payload by another path than its HELLO agreed on");
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
    return ps_shard_reply_credit(s, h->rank);
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
    ps_shard_set_state(s, s->n_return > 0 ? PS_SHARD_PAUSED : PS_SHARD_DONE);
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
    if (p->left)
        return ps_err_set(PS_ERR_PROTOCOL, "%s after BYE", ps_wire_kind_name(h->kind));
    if (h->kind == PS_MSG_GROUPS) return handle_groups(s, h, f);
    if (ps_wire_is_rows(h->kind)) return ps_shard_rows_take(s, h, f);
    ps_shard_chunk *c = &s->chunks[s->chunk_of[h->chunk]];
    if (h->kind == PS_MSG_PULL) return handle_pull(s, c, h);
    if (h->kind == PS_MSG_EXACT) return handle_exact(s, c, h);
    if (h->kind == PS_MSG_FETCH) return ps_shard_snapshot_fetch(s, c, h);
    if (h->kind == PS_MSG_RESTORE) return ps_shard_snapshot_restore(s, c, h, f);
    PS_TRY(check_path(p, h));
    return h->kind == PS_MSG_INIT ? handle_init(s, c, h, f) : handle_push(s, c, h, f);
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
    ps_frame_class class = ps_frame_check(&s->rules, &v, &h);
    ps_counter_add(&s->bytes_received, v.header_bytes + v.payload_bytes);
    if (class == PS_FRAME_STRANGER) {
        drop_stranger(s);
        return PS_OK;
    }
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
