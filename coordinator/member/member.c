#include "member.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock_sync.h"
#include "event.h"
#include "interrupt.h"
#include "job_keys.h"
#include "job_view.h"
#include "log.h"
#include "mem.h"
#include "pace.h"
#include "tell.h"
#include "thread.h"
#include "trace.h"

enum {
    BEATS_PER_BURST = 20, // without a trace: of them, the first few measure the clock
    FIRST_BURSTS = 3,
    LINGER_MS = 1000,      // at the end: time for sending an abort or a goodbye
    ANSWER_GRACE_MS = 500, // for the coordinator's own answer to a timeout
    SILENT_MS = 200 // of the coordinator, beyond two heartbeats, until it is missed
};

/* ---- the state that threads share ---- */

/* A call that waits for its answer. In the list until the caller takes it out. */
typedef struct ps_member_request {
    struct ps_member_request *next;
    uint64_t number;
    zmq_msg_t message;   // kept, to be sent again over a new connection
    bool sent, answered; // sent: over the present connection
    ps_err code;
    char text[PS_CONTROL_TEXT_MAX];
    void *value; // owned
    size_t bytes;
} ps_member_request;

struct ps_member {
    bool names_straggler;
    bool watches_stalls; // its own: without links they decide nothing (straggler.h)
    uint64_t heartbeat_ms, dead_after_ms;
    bool recovers;
    void *zmq_context;
    ps_joining joined;   // constant once the thread has started, which owns its sockets
    uint64_t silence_ms; // ps_member_silence_ms
    // Owned by the thread:
    uint64_t heard_ns, lost_ns, next_beat_ns, last_round_ns;
    bool was_connected;
    bool refused;            // since lost_ns: the coordinator's process is gone
    bool aborts, interrupts; // has told the coordinator to
    ps_clock_sync clock;
    uint64_t n_bursts;
    ps_stall stall;
    bool misses_coordinator;
    atomic_bool knows_clock;
    _Atomic int64_t ahead_ns; // of the coordinator's clock
    _Atomic uint64_t down_ns; // since when its connection is down; 0: it is up

    ps_thread thread;
    ps_event wake, abort, end;
    atomic_bool aborted; // set after reason is written
    atomic_bool interrupted;
    atomic_int newcomers;
    _Atomic uint64_t closed; // stretches
    _Atomic uint32_t table;  // how often the job has had other tensors
    atomic_bool leaving;     // the work is done and LEAVE is on its way
    pthread_mutex_t lock;    // never held across I/O
    pthread_cond_t changed;
    // Under the lock:
    ps_member_request *requests;
    ps_pace_queue paces;
    ps_straggler straggler;
    uint64_t last_number;
    bool stop, ended, left;
    bool deserted; // the coordinator ended while this member was leaving
    bool said_bye;
    bool tell_abort; // the coordinator must be told the reason
    bool tell_interrupt;
    double *told; // (n_told) owned: values to be told; NULL: none are new
    int n_told;
    char told_address[PS_VIEW_ADDRESS_MAX];
    char reason[PS_CONTROL_TEXT_MAX];
    ps_err cause;
    int next_workers; // 0: as many as now
};

/* Notes the first failure. tell: true when the coordinator does not know it yet. */
static void set_aborted(ps_member *m, ps_err cause, const char *reason, int next_workers,
                        bool tell)
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

void ps_member_abort(ps_member *m, ps_err cause, const char *reason)
{
    set_aborted(m, cause, reason, 0, true);
}

void ps_member_regroup(ps_member *m, int n_workers)
{
    char reason[64];
    snprintf(reason, sizeof reason, "it goes on with %d workers", n_workers);
    set_aborted(m, PS_ERR_REGROUP, reason, n_workers, true);
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
    double *copy;
    if (PS_NEW(&copy, (size_t)n, "values for the page") != PS_OK)
        return; // there are newer ones soon
    memcpy(copy, values, (size_t)n * sizeof *values);
    pthread_mutex_lock(&m->lock);
    free(m->told);
    m->told = copy;
    m->n_told = n;
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

ps_coord_orders_reentry ps_member_reentry(const ps_member *m)
{
    return m->joined.reentry;
}

uint64_t ps_member_silence_ms(const ps_member *m)
{
    return m->silence_ms;
}

uint64_t ps_member_closed(const ps_member *m)
{
    return m ? atomic_load(&m->closed) : 0;
}

/* ---- the pace of the steps, and the straggler ---- */

/* When the member has joined, before its thread starts. */
static void member_pace_init(ps_member *m, const ps_member_options *o)
{
    m->names_straggler = o->n_servers > 0 && ps_config_names_straggler(o->config);
    m->watches_stalls = m->names_straggler && !ps_roster_one_host(&m->joined.roster);
}

bool ps_member_tells_pace(const ps_member *m)
{
    return m && m->names_straggler && atomic_load(&m->knows_clock);
}

double ps_member_time_ns(const ps_member *m, uint64_t now_ns)
{
    return (double)((int64_t)now_ns + atomic_load(&m->ahead_ns));
}

void ps_member_pace(ps_member *m, uint64_t step, unsigned part, const double *values,
                    size_t n)
{
    ps_pace_note *p = ps_pace_note_create(step, part, values, n);
    if (!p) return;
    pthread_mutex_lock(&m->lock);
    const bool room = ps_pace_queue_add(&m->paces, p);
    pthread_mutex_unlock(&m->lock);
    if (room)
        ps_event_set(&m->wake);
    else
        free(p);
}

static ps_pace_note *take_paces(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    ps_pace_note *first = ps_pace_queue_take(&m->paces);
    pthread_mutex_unlock(&m->lock);
    return first;
}

static void member_send(ps_member *m, const ps_control *c)
{
    if (ps_control_send(m->joined.dealer, c) != PS_OK)
        PS_DEBUG("send", "error=\"%s\"", ps_err_message());
}

/* The control thread: sends the steps that wait to be told; those that cannot be sent now
 * are forgotten. */
static void member_pace_send(ps_member *m)
{
    for (ps_pace_note *p = take_paces(m), *next; p; p = next) {
        ps_control c = {.kind = PS_CONTROL_PACE,
                        .nonce = m->joined.roster.nonce,
                        .value = p->values,
                        .bytes = p->n * sizeof *p->values};
        c.pace.step = p->step;
        c.pace.part = p->part;
        c.pace.stall = ps_stall_share(&m->stall, ps_clock_ns());
        if (atomic_load(&m->down_ns) == 0) member_send(m, &c);
        next = p->next;
        free(p);
    }
}

ps_straggler ps_member_straggler(ps_member *m)
{
    ps_straggler s = {.cause = PS_STRAGGLER_NONE};
    if (!m) return s;
    pthread_mutex_lock(&m->lock);
    s = m->straggler;
    pthread_mutex_unlock(&m->lock);
    return s;
}

/* As the coordinator has sent them; numbers out of range are ignored. */
static void member_set_straggler(ps_member *m, uint64_t cause, uint64_t role,
                                 uint64_t rank)
{
    if (cause >= PS_STRAGGLER_CAUSES || role >= PS_ROLE_COUNT || rank > PS_MAX_RANKS)
        return;
    pthread_mutex_lock(&m->lock);
    m->straggler = (ps_straggler){
        .cause = (ps_straggler_cause)cause, .role = (ps_role)role, .rank = (int)rank};
    pthread_mutex_unlock(&m->lock);
}

static void member_pace_fini(ps_member *m)
{
    for (ps_pace_note *p = take_paces(m), *next; p; p = next) {
        next = p->next;
        free(p);
    }
}

/* Names the coordinator's process, which nobody else can, once it has been silent for
 * that long, and until it is heard again. */
static void member_note_silence(ps_member *m, uint64_t silent_ms)
{
    const bool silent = silent_ms > 2 * m->heartbeat_ms + SILENT_MS;
    if (!m->names_straggler || silent == m->misses_coordinator) return;
    m->misses_coordinator = silent;
    member_set_straggler(m, silent ? PS_STRAGGLER_STOPPED : PS_STRAGGLER_NONE,
                         PS_ROLE_SERVER, 0);
}

/* How long the control thread may wait for messages. */
static int member_poll_ms(ps_member *m)
{
    uint64_t now = ps_clock_awake_ns();
    int ms = m->next_beat_ns > now ? (int)((m->next_beat_ns - now) / 1000000u) + 1 : 0;
    if (m->lost_ns && ms > 50) ms = 50;
    if (!m->watches_stalls || !ps_member_tells_pace(m)) return ms;
    const int stall_ms = ps_stall_awake(&m->stall, ps_clock_ns());
    return stall_ms < ms ? stall_ms : ms;
}

/* ---- the control thread ---- */

/* cause: of an ABORT. */
static void send_kind(ps_member *m, ps_control_kind kind, ps_err cause, const char *text)
{
    ps_control c = {.kind = kind, .nonce = m->joined.roster.nonce};
    if (kind == PS_CONTROL_ABORT) c.abort.code = (uint64_t)cause;
    if (kind == PS_CONTROL_ABORT) c.abort.next_workers = (uint64_t)m->next_workers;
    ps_control_set_text(&c, text);
    member_send(m, &c);
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
    if (m->was_connected) {
        ps_tell("mended", "{s:i}", "repeated", (int)repeated);
        PS_WARN("connection-mended", "to=coordinator at=%s after_ms=%.0f repeated=%u",
                m->joined.coordinator_endpoint,
                (double)(ps_clock_awake_ns() - down_ns) * 1e-6, repeated);
    }
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
    ps_control c = {.kind = PS_CONTROL_STATUS, .nonce = m->joined.roster.nonce};
    pthread_mutex_lock(&m->lock);
    double *told = m->told;
    m->told = NULL;
    c.value = told;
    c.bytes = (size_t)m->n_told * sizeof *told;
    ps_control_set_text(&c, m->told_address);
    const bool silent = m->said_bye || m->aborted;
    pthread_mutex_unlock(&m->lock);
    if (told && !silent && !atomic_load(&m->down_ns)) member_send(m, &c);
    free(told);
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
    ps_cond_set(&m->changed, &m->lock, &m->ended);
    ps_event_set(&m->end);
}

static void ask_for_time(ps_member *m)
{
    ps_control c = {.kind = PS_CONTROL_CLOCK, .nonce = m->joined.roster.nonce};
    c.clock.asked_ns = m->clock.asked_ns;
    member_send(m, &c);
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
        set_aborted(m, ps_control_error(c), c->text,
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
            set_aborted(m, ps_control_error(c), reason, 0, true);
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
        member_set_straggler(m, c->straggler.cause, c->straggler.role, c->straggler.rank);
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

static void set_deserted(ps_member *m)
{
    ps_cond_set(&m->changed, &m->lock, &m->deserted);
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
    member_note_silence(m, silent_ms);
    const bool waited = now - m->lost_ns > grace_ms * 1000000u;
    const bool lost = m->lost_ns && (m->refused || waited);
    const bool leaving = atomic_load(&m->leaving);
    pthread_mutex_lock(&m->lock);
    const bool ended = m->ended, over = m->left || m->aborted || m->deserted;
    pthread_mutex_unlock(&m->lock);
    if ((!lost && silent_ms <= m->dead_after_ms) || over || (ended && !leaving)) return;
    if (leaving && (ended || !m->recovers)) { // nobody joins again
        set_deserted(m);
        return;
    }
    const char *host = m->joined.roster.n_servers > 0 ? "server" : "worker";
    char reason[PS_CONTROL_TEXT_MAX], why[64] = "its connection closed";
    if (!lost) {
        ps_tell("silent", "{s:s, s:i}", "role", host, "rank", 0);
        PS_INFO("silent", "role=%s rank=0", host);
        snprintf(why, sizeof why, "no sign of life for %.1f s", (double)silent_ms * 1e-3);
    }
    snprintf(reason, sizeof reason, "the coordinator (%s 0 at %s) is dead: %s", host,
             m->joined.coordinator_endpoint, why);
    set_aborted(m, PS_ERR_PEER, reason, 0, false);
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
        if (zmq_poll(items, 3, member_poll_ms(m)) < 0 && zmq_errno() != EINTR) break;
        bool stop = items[2].revents && should_stop(m);
        receive_all(m);
        watch_connection(m);
        send_news(m);
        send_requests(m);
        send_status(m);
        say_goodbye(m, stop);
        if (stop) break;
        member_pace_send(m);
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
    return ps_thread_start(&m->thread, "member", member_run, m);
}

static ps_err member_set_up(ps_member *m, const ps_member_options *o)
{
    PS_TRY(init_shared_state(m));
    PS_TRY(ps_joining_run(&m->joined, o, m->zmq_context));
    m->silence_ms = ps_joining_silence_ms(&m->joined);
    member_pace_init(m, o);
    return member_start_thread(m);
}

ps_err ps_member_join(const ps_member_options *options, ps_member **out)
{
    ps_member *m;
    *out = NULL;
    PS_TRY(PS_NEW(&m, 1, "member"));
    m->heartbeat_ms = (uint64_t)options->config->net.heartbeat_ms;
    m->dead_after_ms = (uint64_t)options->config->net.dead_after_ms;
    m->recovers = options->config->recovery.rejoins > 0;
    ps_err err = member_set_up(m, options);
    if (err != PS_OK) {
        set_aborted(m, err, ps_err_message(), 0,
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
    ps_thread_join(&m->thread);
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
    bool joined = m->thread.runs;
    if (joined) member_stop_thread(m);
    ps_joining_close(&m->joined, linger_ms(m));
    if (m->zmq_context) zmq_ctx_term(m->zmq_context);
    ps_joining_fini(&m->joined, joined || !m->aborted ? NULL : m->reason);
    ps_event_fini(&m->wake);
    ps_event_fini(&m->abort);
    ps_event_fini(&m->end);
    member_pace_fini(m);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m->told);
    free(m);
    *member = NULL;
}

/* ---- calls that wait for the coordinator's answer ---- */

static void remove_request(ps_member *m, const ps_member_request *r)
{
    ps_member_request **at = &m->requests;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at) *at = r->next;
}

static void append_request(ps_member *m, ps_member_request *r)
{
    ps_member_request **at = &m->requests;
    while (*at)
        at = &(*at)->next;
    *at = r;
}

static uint64_t next_number(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    uint64_t number = ++m->last_number;
    pthread_mutex_unlock(&m->lock);
    return number;
}

/* Hands r to the control thread and waits for its answer. */
static ps_err member_exchange(ps_member *m, ps_member_request *r, ps_deadline deadline)
{
    pthread_mutex_lock(&m->lock);
    append_request(m, r);
    pthread_mutex_unlock(&m->lock);
    ps_event_set(&m->wake);
    pthread_mutex_lock(&m->lock);
    ps_err interrupted = PS_OK;
    while (!r->answered && !m->aborted && !m->deserted && interrupted == PS_OK &&
           !ps_deadline_passed(deadline)) {
        ps_cond_wait(&m->changed, &m->lock, ps_interrupt_slice(deadline));
        pthread_mutex_unlock(&m->lock);
        interrupted = ps_interrupt_ask_hook(); // which may abort the job
        pthread_mutex_lock(&m->lock);
    }
    remove_request(m, r);
    pthread_mutex_unlock(&m->lock);
    if (interrupted != PS_OK) return interrupted;
    if (r->answered) return r->code == PS_OK ? PS_OK : ps_err_set(r->code, "%s", r->text);
    PS_TRY(ps_member_check(m));
    uint64_t down_ns = atomic_load(&m->down_ns);
    if (down_ns == 0)
        return ps_err_set(PS_ERR_TIMEOUT, "the coordinator (%s) did not answer",
                          m->joined.coordinator_endpoint);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "the connection to the coordinator (%s) was lost %.1f s ago and "
                      "could not be made again",
                      m->joined.coordinator_endpoint,
                      (double)(ps_clock_awake_ns() - down_ns) * 1e-9);
}

/* Sends c and waits; *value (may be NULL) is owned by the caller. *answered (may be
 * NULL): whether the coordinator has answered, with DONE or FAIL. */
static ps_err member_call(ps_member *m, ps_control *c, ps_deadline deadline, void **value,
                          size_t *bytes, bool *answered)
{
    PS_TRY(ps_member_check(m));
    ps_member_request r = {.number = next_number(m)};
    c->nonce = m->joined.roster.nonce;
    c->request = r.number;
    ps_err err = ps_control_frame(&r.message, c);
    ps_deadline patience = deadline;
    const uint64_t grace_ns = ANSWER_GRACE_MS * UINT64_C(1000000);
    if (deadline.at_ns < UINT64_MAX - grace_ns) patience.at_ns += grace_ns;
    if (err == PS_OK) err = member_exchange(m, &r, patience);
    if (answered) *answered = r.answered;
    zmq_msg_close(&r.message);
    if (err == PS_OK && value) {
        *value = r.value;
        *bytes = r.bytes;
    } else {
        free(r.value);
    }
    return err;
}

static uint64_t left_ms(ps_deadline deadline)
{
    return (uint64_t)ps_deadline_left_ms(deadline);
}

ps_err ps_member_reduce(ps_member *m, const char *name, double *values, size_t n,
                        ps_deadline deadline)
{
    if (n > PS_CONTROL_GATHER_MAX)
        return ps_err_set(PS_ERR_ARG, "%s: more than %d values", name,
                          PS_CONTROL_GATHER_MAX);
    ps_control c = {
        .kind = PS_CONTROL_GATHER, .value = values, .bytes = n * sizeof *values};
    PS_TRY(ps_control_set_name(&c, name));
    c.timeout_ms = left_ms(deadline);
    void *sum;
    size_t bytes;
    PS_TRY(member_call(m, &c, deadline, &sum, &bytes, NULL));
    bool fits = bytes == n * sizeof *values;
    if (fits && n > 0) memcpy(values, sum, bytes);
    free(sum);
    return fits ? PS_OK : ps_err_set(PS_ERR_PROTOCOL, "%s: a sum of another size", name);
}

ps_err ps_member_barrier(ps_member *m, const char *name, ps_deadline deadline)
{
    return ps_member_reduce(m, name, NULL, 0, deadline);
}

void ps_member_next_table(ps_member *m)
{
    atomic_fetch_add(&m->table, 1);
}

uint32_t ps_member_epoch(const ps_member *m)
{
    return ps_member_roster(m)->epoch + atomic_load(&m->table);
}

static ps_err member_set_key(const ps_member *m, ps_control *c, const char *key)
{
    const uint32_t table = atomic_load(&m->table);
    char text[2 * PS_CONTROL_NAME_MAX];
    if (table == 0 || ps_job_key_outlives_tables(key)) return ps_control_set_name(c, key);
    snprintf(text, sizeof text, PS_JOB_KEY_TABLE "%" PRIu32 "/%s", table, key);
    return ps_control_set_name(c, text);
}

ps_err ps_member_put(ps_member *m, const char *key, const void *value, size_t bytes,
                     ps_deadline deadline)
{
    if (bytes > PS_CONTROL_VALUE_MAX)
        return ps_err_set(PS_ERR_ARG, "%s: a value of more than %d bytes", key,
                          PS_CONTROL_VALUE_MAX);
    ps_control c = {.kind = PS_CONTROL_PUT, .value = value, .bytes = bytes};
    PS_TRY(member_set_key(m, &c, key));
    return member_call(m, &c, deadline, NULL, NULL, NULL);
}

ps_err ps_member_put_written(ps_member *m, const char *key, ps_mp_writer *w,
                             ps_deadline deadline)
{
    ps_err err = ps_mp_writer_end(w);
    if (err == PS_OK) err = ps_member_put(m, key, w->base, w->used, deadline);
    ps_mp_writer_fini(w);
    return err;
}

ps_err ps_member_get(ps_member *m, const char *key, void **value, size_t *bytes,
                     ps_deadline deadline)
{
    ps_control c = {.kind = PS_CONTROL_GET};
    PS_TRY(member_set_key(m, &c, key));
    c.timeout_ms = left_ms(deadline);
    return member_call(m, &c, deadline, value, bytes, NULL);
}

ps_err ps_member_drop(ps_member *m, const char *key, ps_deadline deadline)
{
    ps_control c = {.kind = PS_CONTROL_DROP};
    PS_TRY(member_set_key(m, &c, key));
    return member_call(m, &c, deadline, NULL, NULL, NULL);
}

ps_err ps_member_leave(ps_member *m, ps_deadline deadline)
{
    ps_control c = {.kind = PS_CONTROL_LEAVE};
    c.timeout_ms = left_ms(deadline);
    PS_TRY(ps_member_check(m));
    atomic_store(&m->leaving, true);
    bool answered = false;
    ps_err err = member_call(m, &c, deadline, NULL, NULL, &answered);
    // A member that leaves has done its work: a lost answer does not undo it.
    if (err == PS_ERR_TIMEOUT && !answered)
        PS_WARN("leaving", "reason=\"%s\" note=\"all was done before\"",
                ps_err_message());
    else if (err != PS_OK)
        return err;
    pthread_mutex_lock(&m->lock);
    m->left = true;
    pthread_mutex_unlock(&m->lock);
    ps_event_set(&m->wake); // the thread says BYE, so that nobody waits while this
                            // process cleans up
    return PS_OK;
}

ps_err ps_member_wait_end(ps_member *m)
{
    const ps_deadline never = {UINT64_MAX};
    pthread_mutex_lock(&m->lock);
    while (!m->ended && !m->aborted)
        ps_cond_wait(&m->changed, &m->lock, never);
    bool ended = m->ended;
    pthread_mutex_unlock(&m->lock);
    return ended ? PS_OK : ps_member_check(m);
}
