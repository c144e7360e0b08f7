#include "shard.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lamb.h"
#include "log.h"
#include "mem.h"
#include "net.h"
#include "shard_bsp.h"
#include "shard_messages.h"
#include "shard_orders.h"
#include "shard_reply.h"
#include "shard_rings.h"
#include "shard_rows.h"
#include "thread.h"
#include "zsock.h"

enum {
    LINGER_MS = 2000,          // for the last messages (errors) to leave
    UNPLANNED_BYTES = 4 << 20, // of a message, while the plan is not known
    MESSAGES_PER_POLL = 64     // before other sources are looked at
};

/* ---- the thread ---- */

/* What comes now is of the next table. */
static bool shard_is_paused(const ps_shard *s)
{
    return ps_shard_get_state(s) == PS_SHARD_PAUSED;
}

static ps_err handle_messages(ps_shard *s, ps_wire_frames *f)
{
    for (int i = 0; i < MESSAGES_PER_POLL && !shard_is_paused(s); i++) {
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

static ps_err shard_serve(ps_shard *s, ps_wire_frames *f)
{
    ps_zsock_item items[] = {
        {.socket = s->router},
        {.fd = ps_event_fd(&s->stop)},
        {.fd = ps_member_abort_fd(s->member)},
        {.fd = ps_event_fd(&s->wake)},
        {.socket = s->link ? ps_coord_link_socket(s->link) : NULL},
        {.socket = s->link ? ps_coord_link_monitor(s->link) : NULL},
    };
    struct pollfd fds[sizeof items / sizeof *items];
    for (;;) {
        ps_shard_rings_look(s);
        const bool nothing = ps_shard_rings_sleep(s);
        items[0].idle = s->router_idle;
        items[4].idle = false;
        int rc = ps_zsock_poll(items, fds, s->link ? 6 : 4, nothing ? -1 : 0);
        int reason = zmq_errno();
        ps_shard_rings_awake(s, rc > 0 && items[3].ready);
        if (rc < 0 && reason != EINTR)
            return ps_err_set(PS_ERR_NET, "polling: %s", zmq_strerror(reason));
        if (items[1].ready) return PS_OK;
        if (items[2].ready) return ps_member_check(s->member);
        if (s->link && items[5].ready) PS_TRY(ps_coord_link_mend(s->link));
        if (s->link && items[4].ready) PS_TRY(ps_shard_hear(s));
        if (items[0].ready) PS_TRY(handle_messages(s, f));
        PS_TRY(handle_rings(s, f));
        if (shard_is_paused(s)) return PS_OK;
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
        if (!s->peers[r].left) ps_shard_reply_error(s, r, failure.message);
    }
    ps_member_abort(s->member, err, failure.message);
}

static void *shard_main(void *arg)
{
    ps_shard *s = arg;
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    ps_err err = shard_serve(s, &f);
    ps_wire_frames_close(&f);
    if (err != PS_OK) {
        fail_job(s, err);
        ps_shard_set_state(s, PS_SHARD_FAILED);
    }
    return NULL;
}

/* ---- life ---- */

static uint64_t shard_element_bytes(const ps_shard *s)
{
    return ps_credit_element_bytes(s->codec.codec != PS_CODEC_NONE);
}

/* Takes over what the plan and the step rule say. */
static ps_err shard_learn(ps_shard *s)
{
    s->norm.clip = s->o.rule->clip_norm > 0;
    s->norm.waits = ps_step_rule_waits(s->o.rule);
    s->norm.trusts = ps_lamb_on(&s->o.rule->optimizer);
    return ps_chunk_codec_init(&s->codec, s->o.config, s->o.table);
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
    if (s->o.rows && largest < PS_WIRE_PIECE_BYTES) largest = PS_WIRE_PIECE_BYTES;
    const ps_config *config = s->o.config;
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
    PS_TRY(ps_mem_zalloc(&s, 1, sizeof *s, "a shard"));
    s->o = *options;
    ps_err err;
    PS_TRY_GOTO(ps_event_init(&s->stop), err, out);
    PS_TRY_GOTO(ps_event_init(&s->wake), err, out);
    if (knows_plan(s)) PS_TRY_GOTO(shard_learn(s), err, out);
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
    PS_TRY(shard_learn(s));
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
    PS_TRY(ps_thread_start(&s->thread, name, shard_main, s));
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

static void shard_end_thread(ps_shard *s)
{
    if (s->started) pthread_join(s->thread, NULL);
    s->started = false;
    ps_coord_link_destroy(&s->link);
}

/* ZeroMQ reads its weights no more: workers have read all that came before LEFT. */
void ps_shard_clear(ps_shard *s)
{
    shard_end_thread(s);
    ps_shard_memory_fini(s);
    memset(&s->index, 0, sizeof *s - offsetof(ps_shard, index));
    ps_shard_set_state(s, PS_SHARD_RUNNING);
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
    free(s);
    *pointer = NULL;
}
