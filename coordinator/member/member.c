#include "member_state.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock_sync.h"
#include "event.h"
#include "job_view.h"
#include "log.h"
#include "mem.h"
#include "pace.h"
#include "thread.h"
#include "trace.h"

enum {
    BEATS_PER_BURST = 20, // without a trace: of them, the first few measure the clock
    FIRST_BURSTS = 3,
    LINGER_MS = 1000, // at the end: time for sending an abort or a goodbye
};

/* ---- the state that threads share ---- */

/* Notes the first failure. tell: true when the coordinator does not know it yet. */
static void set_aborted_for(ps_member *m, ps_err cause, const char *reason,
                            int next_workers, bool tell)
{
    pthread_mutex_lock(&m->lock);
    bool first = !m->aborted;
    if (first) {
        snprintf(m->reason, sizeof m->reason, "%s", reason);
        m->cause = cause;
        m->next_workers = next_workers;
        m->tell_abort = tell;
        atomic_store(&m->aborted, true);
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->lock);
    if (!first) return;
    ps_event_set(&m->abort);
    ps_event_set(&m->wake);
}

static void set_aborted(ps_member *m, ps_err cause, const char *reason, bool tell)
{
    set_aborted_for(m, cause, reason, 0, tell);
}

void ps_member_abort(ps_member *m, ps_err cause, const char *reason)
{
    set_aborted(m, cause, reason, true);
}

void ps_member_regroup(ps_member *m, int n_workers)
{
    char reason[64];
    snprintf(reason, sizeof reason, "it goes on with %d workers", n_workers);
    set_aborted_for(m, PS_ERR_REGROUP, reason, n_workers, true);
}

int ps_member_next_workers(const ps_member *m)
{
    const bool told = atomic_load(&m->aborted) && m->next_workers > 0;
    return told ? m->next_workers : m->joined.roster.n_workers;
}

int ps_member_newcomers(const ps_member *m)
{
    return m ? atomic_load(&m->newcomers) : 0;
}

ps_err ps_member_cause(const ps_member *m, ps_deadline deadline)
{
    struct pollfd item = {.fd = ps_event_fd(&m->abort), .events = POLLIN};
    if (!atomic_load(&m->aborted)) poll(&item, 1, ps_deadline_left_ms(deadline));
    return atomic_load(&m->aborted) ? m->cause : PS_OK;
}

void ps_member_interrupt(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    m->tell_interrupt = true;
    pthread_mutex_unlock(&m->lock);
    ps_event_set(&m->wake);
}

void ps_member_tell(ps_member *m, const char *address, const double *values, int n)
{
    pthread_mutex_lock(&m->lock);
    m->n_told = n < PS_METRICS ? n : PS_METRICS;
    memcpy(m->told, values, (size_t)m->n_told * sizeof *values);
    snprintf(m->told_address, sizeof m->told_address, "%s", address);
    pthread_mutex_unlock(&m->lock);
    ps_event_set(&m->wake);
}

bool ps_member_interrupted(const ps_member *m)
{
    return m && atomic_load(&m->interrupted);
}

/* reason and cause never change once aborted is set. */
ps_err ps_member_check(ps_member *m)
{
    if (!atomic_load(&m->aborted)) return PS_OK;
    return ps_err_set(PS_ERR_PEER, "the job is over: %s", m->reason);
}

int ps_member_abort_fd(const ps_member *m)
{
    return ps_event_fd(&m->abort);
}

int ps_member_end_fd(const ps_member *m)
{
    return ps_event_fd(&m->end);
}

int ps_member_rank(const ps_member *m)
{
    return m->joined.rank;
}

const ps_roster *ps_member_roster(const ps_member *m)
{
    return &m->joined.roster;
}

const char *ps_member_address(const ps_member *m)
{
    return m->joined.address;
}

const char *ps_member_coordinator(const ps_member *m)
{
    return m->joined.members_endpoint;
}

const ps_secret *ps_member_secret(const ps_member *m)
{
    return &m->joined.secret;
}

const ps_curve *ps_member_curve(const ps_member *m)
{
    return &m->joined.curve;
}

ps_coord_orders_place ps_member_place(const ps_member *m)
{
    return m->joined.place;
}

uint64_t ps_member_silence_ms(const ps_member *m)
{
    return m->silence_ms;
}

/* ---- the control thread ---- */

/* cause: of an ABORT. */
static void send_kind(ps_member *m, ps_control_kind kind, ps_err cause, const char *text)
{
    ps_control c = {.kind = kind, .nonce = m->joined.roster.nonce};
    if (kind == PS_CONTROL_ABORT) c.abort.code = (uint64_t)cause;
    if (kind == PS_CONTROL_ABORT) c.abort.next_workers = (uint64_t)m->next_workers;
    ps_control_set_text(&c, text);
    if (ps_control_send(m->joined.dealer, &c) != PS_OK)
        PS_DEBUG("send", "error=\"%s\"", ps_err_message());
}

/* The next message that was not sent yet: out (empty, closed by the caller) shares its
 * bytes. */
static bool take_unsent(ps_member *m, zmq_msg_t *out)
{
    bool found = false;
    pthread_mutex_lock(&m->lock);
    for (ps_member_request *r = m->requests; r && !found; r = r->next) {
        if (r->sent || r->answered) continue;
        found = zmq_msg_copy(out, &r->message) == 0;
        r->sent = true;
    }
    pthread_mutex_unlock(&m->lock);
    return found;
}

static void send_requests(ps_member *m)
{
    zmq_msg_t part;
    zmq_msg_init(&part);
    while (atomic_load(&m->down_ns) == 0 && take_unsent(m, &part)) {
        const ps_deadline now = {0};
        if (ps_zsock_send(m->joined.dealer, now, &part, 1) != PS_OK)
            PS_WARN("send", "error=\"%s\"", ps_err_message());
        zmq_msg_init(&part);
    }
    zmq_msg_close(&part);
}

/* Over a new connection, sends again all that is unanswered. The coordinator counts each
 * request once (coord_board.h) and answers again. Returns how many are repeated. */
static uint32_t member_say_again(ps_member *m)
{
    uint32_t n = 0;
    pthread_mutex_lock(&m->lock);
    for (ps_member_request *r = m->requests; r; r = r->next) {
        n += r->sent && !r->answered;
        r->sent = false;
    }
    m->tell_interrupt |= m->interrupts;
    m->tell_abort |= m->aborts;
    pthread_mutex_unlock(&m->lock);
    m->next_beat_ns = 0; // the coordinator hears of this member at once, and answers
    if (m->said_bye) send_kind(m, PS_CONTROL_BYE, PS_OK, ""); // it has no answer
    return n;
}

static void on_connected(ps_member *m)
{
    uint64_t down_ns = atomic_exchange(&m->down_ns, 0);
    const uint32_t repeated = member_say_again(m);
    if (m->was_connected)
        PS_WARN("connection-mended", "to=coordinator at=%s after_ms=%.0f repeated=%u",
                m->joined.coordinator_endpoint,
                (double)(ps_clock_awake_ns() - down_ns) * 1e-6, repeated);
    m->was_connected = true;
    m->lost_ns = 0;
}

/* A connection that closes after a silence is ignored here: the silence has a deadline of
 * its own. */
static void member_on_closed(ps_member *m)
{
    uint64_t now = ps_clock_awake_ns();
    uint64_t silent_ms = now > m->heard_ns ? (now - m->heard_ns) / 1000000u : 0;
    if (m->lost_ns == 0 && silent_ms < m->silence_ms / 2) {
        m->lost_ns = now;
        m->refused = m->recovers && ps_joining_is_refused(&m->joined);
    }
    if (atomic_load(&m->down_ns) == 0) atomic_store(&m->down_ns, now);
}

static void watch_connection(ps_member *m)
{
    ps_zsock_event event;
    while ((event = ps_zsock_monitor_read(m->joined.monitor, NULL)) != PS_ZSOCK_NOTHING)
        (event == PS_ZSOCK_CONNECTED ? on_connected : member_on_closed)(m);
}

/* Tells the coordinator, once, that this member has aborted or interrupted the job. */
static void send_news(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    bool abort = m->tell_abort, interrupt = m->tell_interrupt;
    m->tell_abort = m->tell_interrupt = false;
    pthread_mutex_unlock(&m->lock);
    m->interrupts |= interrupt;
    m->aborts |= abort;
    if (interrupt) send_kind(m, PS_CONTROL_INTERRUPT, PS_OK, "");
    if (abort) send_kind(m, PS_CONTROL_ABORT, m->cause, m->reason);
}

/* Told only over a connection that is up: later there are newer values. */
static void send_status(ps_member *m)
{
    double values[PS_METRICS];
    ps_control c = {
        .kind = PS_CONTROL_STATUS, .nonce = m->joined.roster.nonce, .value = values};
    pthread_mutex_lock(&m->lock);
    c.bytes = (size_t)m->n_told * sizeof *values;
    memcpy(values, m->told, c.bytes);
    ps_control_set_text(&c, m->told_address);
    m->n_told = 0;
    const bool silent = m->said_bye || m->aborted;
    pthread_mutex_unlock(&m->lock);
    if (c.bytes == 0 || silent || atomic_load(&m->down_ns)) return;
    if (ps_control_send(m->joined.dealer, &c) != PS_OK)
        PS_DEBUG("send", "error=\"%s\"", ps_err_message());
}

static void on_answer(ps_member *m, const ps_control *c)
{
    void *value = NULL;
    ps_err code = PS_OK;
    if (c->kind == PS_CONTROL_FAIL)
        code = ps_control_error(c);
    else
        code = ps_mem_zalloc(&value, c->bytes, 1, "an answer");
    if (value && c->bytes > 0) memcpy(value, c->value, c->bytes);
    pthread_mutex_lock(&m->lock);
    ps_member_request *r = m->requests;
    while (r && (r->number != c->request || r->answered))
        r = r->next;
    if (r) {
        r->code = code;
        memcpy(r->text, c->text, sizeof r->text);
        r->value = value;
        r->bytes = c->bytes;
        r->answered = true;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->lock);
    if (!r) free(value); // the caller has given up
}

static void on_end(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    m->ended = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    ps_event_set(&m->end);
}

static void ask_for_time(ps_member *m)
{
    ps_control c = {.kind = PS_CONTROL_CLOCK, .nonce = m->joined.roster.nonce};
    c.clock.asked_ns = m->clock.asked_ns;
    if (ps_control_send(m->joined.dealer, &c) != PS_OK)
        PS_DEBUG("send", "error=\"%s\"", ps_err_message());
}

static void on_time(ps_member *m, const ps_control *c)
{
    bool ended;
    ps_clock_sync *s = &m->clock;
    if (ps_clock_sync_answer(s, c->clock.asked_ns, c->clock.is_ns, ps_clock_ns(), &ended))
        ask_for_time(m);
    if (!ended) return;
    ps_trace_clock(s->at_ns, s->ahead_ns, s->best_ns / 2);
    atomic_store(&m->ahead_ns, s->known_ahead_ns);
    atomic_store(&m->knows_clock, true);
}

static void member_on_message(ps_member *m, const ps_control *c)
{
    char reason[PS_CONTROL_TEXT_MAX];
    switch (c->kind) {
    case PS_CONTROL_ABORT:
        set_aborted_for(m, ps_control_error(c), c->text,
                        c->abort.next_workers <= PS_MAX_RANKS ? (int)c->abort.next_workers
                                                              : 0,
                        false);
        break;
    case PS_CONTROL_NEWCOMERS:
        atomic_store(&m->newcomers, c->newcomers <= PS_MAX_RANKS ? (int)c->newcomers : 0);
        break;
    case PS_CONTROL_FAIL:
        if (c->request == 0) {
            snprintf(reason, sizeof reason, "the coordinator says: %.600s", c->text);
            set_aborted(m, ps_control_error(c), reason, true);
            break;
        }
        on_answer(m, c);
        break;
    case PS_CONTROL_DONE:
        on_answer(m, c);
        break;
    case PS_CONTROL_INTERRUPT:
        atomic_store(&m->interrupted, true);
        break;
    case PS_CONTROL_CLOSE:
        atomic_store(&m->closed, c->closed);
        break;
    case PS_CONTROL_END:
        on_end(m);
        break;
    case PS_CONTROL_STRAGGLER:
        ps_member_set_straggler(m, c->straggler.cause, c->straggler.role,
                                c->straggler.rank);
        break;
    case PS_CONTROL_CLOCK_IS:
        on_time(m, c);
        break;
    default: // HEARTBEAT, a late WAIT or WELCOME
        break;
    }
}

static ps_err member_receive(ps_member *m, zmq_msg_t *frame, ps_control *c, int *got)
{
    const ps_deadline now = {0};
    ps_err err = ps_control_recv(m->joined.dealer, now, frame, c, got);
    if (*got || err == PS_ERR_PROTOCOL) {
        m->heard_ns = ps_clock_awake_ns();
        m->lost_ns = 0;
    }
    return err;
}

static void receive_all(ps_member *m)
{
    for (;;) {
        zmq_msg_t frame;
        ps_control c;
        int got;
        ps_err err = member_receive(m, &frame, &c, &got);
        if (err == PS_ERR_PROTOCOL)
            PS_WARN_FEW("bad_message", "error=\"%s\"", ps_err_message());
        if (err != PS_OK && err != PS_ERR_PROTOCOL) return;
        if (err == PS_OK && !got) return;
        if (!got) continue;
        if (c.nonce == m->joined.roster.nonce) member_on_message(m, &c);
        zmq_msg_close(&frame);
    }
}

static bool is_over(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    bool over = m->ended || m->left || m->aborted || m->deserted;
    pthread_mutex_unlock(&m->lock);
    return over;
}

static void set_deserted(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    m->deserted = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

/* Ends the job here when the coordinator is gone. */
static void check_coordinator(ps_member *m)
{
    const uint64_t now = ps_clock_awake_ns();
    const uint64_t grace_ms = ps_coordinator_grace_ms(m->heartbeat_ms, m->recovers);
    // After a pause, silence proves nothing yet (the clock leaves out long ones).
    if (now - m->last_round_ns > m->dead_after_ms * 1000000u / 2) m->heard_ns = now;
    m->last_round_ns = now;
    uint64_t silent_ms = now > m->heard_ns ? (now - m->heard_ns) / 1000000u : 0;
    ps_member_note_silence(m, silent_ms);
    const bool waited = now - m->lost_ns > grace_ms * 1000000u;
    const bool lost = m->lost_ns && (m->refused || waited);
    if ((!lost && silent_ms <= m->dead_after_ms) || is_over(m)) return;
    if (atomic_load(&m->leaving) && !m->recovers) {
        set_deserted(m);
        return;
    }
    const char *host = m->joined.roster.n_servers > 0 ? "server" : "worker";
    char reason[PS_CONTROL_TEXT_MAX], why[64] = "its connection closed";
    if (!lost) {
        PS_INFO("silent", "role=%s rank=0", host);
        snprintf(why, sizeof why, "no sign of life for %.1f s", (double)silent_ms * 1e-3);
    }
    snprintf(reason, sizeof reason, "the coordinator (%s 0 at %s) is dead: %s", host,
             m->joined.coordinator_endpoint, why);
    set_aborted(m, PS_ERR_PEER, reason, false);
}

static void member_beat(ps_member *m)
{
    uint64_t now = ps_clock_awake_ns();
    if (now < m->next_beat_ns) return;
    m->next_beat_ns = now + m->heartbeat_ms * 1000000u;
    if (m->said_bye) return;
    send_kind(m, PS_CONTROL_HEARTBEAT, PS_OK, ""); // written by this thread
    if (!ps_trace_on() && !m->names_straggler) return;
    // Drifting clocks are good enough for the pace, not for a trace.
    if (!ps_trace_on() && m->n_bursts++ % BEATS_PER_BURST >= FIRST_BURSTS) return;
    ps_clock_sync_begin(&m->clock, ps_clock_ns());
    ask_for_time(m);
}

static bool should_stop(ps_member *m)
{
    ps_event_clear(&m->wake);
    pthread_mutex_lock(&m->lock);
    bool stop = m->stop;
    pthread_mutex_unlock(&m->lock);
    return stop;
}

/* Says BYE once, after an orderly leave. at_end: sends whatever is left to send. */
static void say_goodbye(ps_member *m, bool at_end)
{
    pthread_mutex_lock(&m->lock);
    bool orderly = m->left || (at_end && m->ended);
    bool bye = orderly && !m->said_bye;
    m->said_bye |= bye;
    pthread_mutex_unlock(&m->lock);
    if (bye)
        send_kind(m, PS_CONTROL_BYE, PS_OK, "");
    else if (at_end && !orderly && !atomic_load(&m->aborted))
        send_kind(m, PS_CONTROL_ABORT, PS_ERR_PEER, "it ended before the job was over");
}

static void *member_run(void *arg)
{
    ps_member *m = arg;
    for (;;) {
        zmq_pollitem_t items[] = {{.socket = m->joined.dealer, .events = ZMQ_POLLIN},
                                  {.socket = m->joined.monitor, .events = ZMQ_POLLIN},
                                  {.fd = ps_event_fd(&m->wake), .events = ZMQ_POLLIN}};
        if (zmq_poll(items, 3, ps_member_poll_ms(m)) < 0 && zmq_errno() != EINTR) break;
        bool stop = items[2].revents && should_stop(m);
        receive_all(m);
        watch_connection(m);
        send_news(m);
        send_requests(m);
        send_status(m);
        say_goodbye(m, stop);
        if (stop) break;
        ps_member_pace_send(m);
        member_beat(m);
        check_coordinator(m);
    }
    return NULL;
}

/* ---- life ---- */

static ps_err init_shared_state(ps_member *m)
{
    pthread_mutex_init(&m->lock, NULL);
    ps_cond_init(&m->changed);
    PS_TRY(ps_event_init(&m->wake));
    PS_TRY(ps_event_init(&m->abort));
    PS_TRY(ps_event_init(&m->end));
    return ps_zsock_context(1, ZMQ_MAX_SOCKETS_DFLT, false, &m->zmq_context);
}

static ps_err member_start_thread(ps_member *m)
{
    m->last_round_ns = m->heard_ns = ps_clock_awake_ns();
    atomic_init(&m->down_ns, m->heard_ns); // until the thread has seen that it is up
    PS_TRY(ps_thread_start(&m->thread, "member", member_run, m));
    m->thread_started = true;
    return PS_OK;
}

static ps_err member_set_up(ps_member *m, const ps_member_options *o)
{
    PS_TRY(init_shared_state(m));
    PS_TRY(ps_joining_run(&m->joined, o, m->zmq_context));
    m->silence_ms = ps_joining_silence_ms(&m->joined);
    ps_member_pace_init(m, o);
    return member_start_thread(m);
}

ps_err ps_member_join(const ps_member_options *options, ps_member **out)
{
    ps_member *m;
    *out = NULL;
    PS_TRY(ps_mem_zalloc(&m, 1, sizeof *m, "member"));
    m->heartbeat_ms = (uint64_t)options->config->net.heartbeat_ms;
    m->dead_after_ms = (uint64_t)options->config->net.dead_after_ms;
    m->recovers = options->config->recovery.rejoins > 0;
    ps_err err = member_set_up(m, options);
    if (err != PS_OK) {
        set_aborted(m, err, ps_err_message(),
                    false); // other messages name the job themselves
        ps_err_prefix(err, "joining job \"%s\"", options->config->job.name);
        const ps_err_saved failure = ps_err_save(err);
        ps_member_destroy(&m);
        return ps_err_restore(&failure);
    }
    *out = m;
    return PS_OK;
}

static void member_stop_thread(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_mutex_unlock(&m->lock);
    ps_event_set(&m->wake);
    pthread_join(m->thread, NULL);
}

/* Nothing can be sent to a coordinator that is gone, or has ended the job itself. */
static int linger_ms(const ps_member *m)
{
    const bool tells = m->aborts || m->tell_abort || !m->recovers;
    if (m->aborted && (m->lost_ns || !tells)) return 0;
    return m->aborted && m->recovers ? PS_ZSOCK_REJOIN_LINGER_MS : LINGER_MS;
}

void ps_member_destroy(ps_member **member)
{
    ps_member *m = *member;
    if (!m) return;
    bool joined = m->thread_started;
    if (joined) member_stop_thread(m);
    ps_joining_close(&m->joined, linger_ms(m));
    if (m->zmq_context) zmq_ctx_term(m->zmq_context);
    ps_joining_fini(&m->joined, joined || !m->aborted ? NULL : m->reason);
    ps_event_fini(&m->wake);
    ps_event_fini(&m->abort);
    ps_event_fini(&m->end);
    ps_member_pace_fini(m);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
    *member = NULL;
}
