#include "member.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "coordinator.h"
#include "init_method.h"
#include "log.h"
#include "mem.h"

enum {
    ANSWER_GRACE_MS = 500, // the coordinator's own words about a timeout are on their way
    UNANSWERED_MS = 3000,  // joining: then the address is looked up again
    LINGER_MS = 1000,      // at the end: for an abort or a goodbye to be sent
    LOST_GRACE_MIN_MS = 300
};

/* A call that waits for its answer. In the list until the caller takes it out. */
typedef struct request {
    struct request *next;
    uint64_t number;
    ps_mp_writer message; // empty once it has been sent
    bool sent, answered;
    ps_err code;
    char text[PS_CONTROL_TEXT_MAX];
    void *value; // owned
    size_t bytes;
} request;

struct ps_member {
    ps_role role;
    int rank;
    uint64_t heartbeat_ms, dead_after_ms;
    ps_init_method init;
    char address[PS_ADDRESS_MAX];
    char coordinator_endpoint[PS_ENDPOINT_MAX];
    ps_roster roster;
    ps_coordinator *coordinator; // NULL: another process's
    uint64_t file_nonce;         // of the file that this process's coordinator wrote

    // Joining, then the control thread.
    void *zmq_context, *dealer, *monitor;
    uint8_t id[PS_CONTROL_ID_BYTES];
    uint64_t heard_ns, lost_ns, next_beat_ns, last_round_ns;
    char waiting_for[PS_CONTROL_TEXT_MAX]; // who has not joined

    pthread_t thread;
    bool thread_started;
    int wake_fd, abort_fd;
    atomic_bool aborted;  // set after reason is written
    pthread_mutex_t lock; // never held across I/O
    pthread_cond_t changed;
    // Under the lock:
    request *requests;
    uint64_t last_number;
    bool stop, ended, left;
    bool said_bye;
    bool tell_abort; // the coordinator has to be told the reason
    char reason[PS_CONTROL_TEXT_MAX];
};

/* ---- the state that threads share ---- */

static void wake(int fd)
{
    const uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one); // fails only when it is readable already
    (void)n;
}

/* The first reason counts. tell: whether the coordinator does not know it yet. */
static void set_aborted(ps_member *m, const char *reason, bool tell)
{
    pthread_mutex_lock(&m->lock);
    bool first = !m->aborted;
    if (first) {
        snprintf(m->reason, sizeof m->reason, "%s", reason);
        m->tell_abort = tell;
        atomic_store(&m->aborted, true);
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->lock);
    if (!first) return;
    wake(m->abort_fd);
    wake(m->wake_fd);
}

void ps_member_abort(ps_member *m, const char *reason)
{
    set_aborted(m, reason, true);
}

/* reason never changes once aborted is set. */
ps_err ps_member_check(ps_member *m)
{
    if (!atomic_load(&m->aborted)) return PS_OK;
    return ps_err_set(PS_ERR_PEER, "the job is over: %s", m->reason);
}

int ps_member_abort_fd(const ps_member *m)
{
    return m->abort_fd;
}

int ps_member_rank(const ps_member *m)
{
    return m->rank;
}

const ps_roster *ps_member_roster(const ps_member *m)
{
    return &m->roster;
}

const char *ps_member_address(const ps_member *m)
{
    return m->address;
}

const char *ps_member_coordinator(const ps_member *m)
{
    return m->coordinator_endpoint;
}

/* Waits for a change of the shared state; false once the deadline has passed. */
static bool wait_change(ps_member *m, ps_deadline deadline)
{
    if (deadline.at_ns == UINT64_MAX)
        return pthread_cond_wait(&m->changed, &m->lock) == 0;
    const struct timespec at = {.tv_sec = (time_t)(deadline.at_ns / 1000000000u),
                                .tv_nsec = (long)(deadline.at_ns % 1000000000u)};
    return pthread_cond_timedwait(&m->changed, &m->lock, &at) != ETIMEDOUT;
}

/* ---- calls ---- */

static void remove_request(ps_member *m, const request *r)
{
    request **at = &m->requests;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at) *at = r->next;
}

static void append_request(ps_member *m, request *r)
{
    request **at = &m->requests;
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
static ps_err exchange(ps_member *m, request *r, ps_deadline deadline)
{
    pthread_mutex_lock(&m->lock);
    append_request(m, r);
    pthread_mutex_unlock(&m->lock);
    wake(m->wake_fd);
    pthread_mutex_lock(&m->lock);
    while (!r->answered && !m->aborted && wait_change(m, deadline))
        continue;
    remove_request(m, r);
    pthread_mutex_unlock(&m->lock);
    if (r->answered) return r->code == PS_OK ? PS_OK : ps_err_set(r->code, "%s", r->text);
    PS_TRY(ps_member_check(m));
    return ps_err_set(PS_ERR_TIMEOUT, "the coordinator (%s) did not answer",
                      m->coordinator_endpoint);
}

/* Sends c and waits; *value (may be NULL) is owned by the caller. */
static ps_err call(ps_member *m, ps_control *c, ps_deadline deadline, void **value,
                   size_t *bytes)
{
    PS_TRY(ps_member_check(m));
    request r = {.number = next_number(m)};
    c->nonce = m->roster.nonce;
    c->request = r.number;
    ps_mp_writer_init(&r.message);
    ps_control_write(&r.message, c);
    ps_err err = ps_mp_writer_end(&r.message);
    ps_deadline patience = deadline;
    const uint64_t grace_ns = ANSWER_GRACE_MS * UINT64_C(1000000);
    if (deadline.at_ns < UINT64_MAX - grace_ns) patience.at_ns += grace_ns;
    if (err == PS_OK) err = exchange(m, &r, patience);
    ps_mp_writer_fini(&r.message);
    if (err == PS_OK && value) {
        *value = r.value;
        *bytes = r.bytes;
    } else {
        free(r.value);
    }
    return err;
}

static ps_err set_name(ps_control *c, const char *name)
{
    if (strlen(name) >= sizeof c->name)
        return ps_err_set(PS_ERR_ARG, "%.40s...: a name of more than %zu bytes", name,
                          sizeof c->name - 1);
    memcpy(c->name, name, strlen(name) + 1);
    return PS_OK;
}

static uint64_t left_ms(ps_deadline deadline)
{
    return (uint64_t)ps_deadline_left_ms(deadline);
}

ps_err ps_member_reduce(ps_member *m, const char *name, double *values, size_t n,
                        ps_deadline deadline)
{
    if (n > 65536) return ps_err_set(PS_ERR_ARG, "%s: more than 65,536 values", name);
    ps_control c = {
        .kind = PS_CONTROL_GATHER, .value = values, .bytes = n * sizeof *values};
    PS_TRY(set_name(&c, name));
    c.number[0] = left_ms(deadline);
    void *sum;
    size_t bytes;
    PS_TRY(call(m, &c, deadline, &sum, &bytes));
    bool fits = bytes == n * sizeof *values;
    if (fits && n > 0) memcpy(values, sum, bytes);
    free(sum);
    return fits ? PS_OK : ps_err_set(PS_ERR_PROTOCOL, "%s: a sum of another size", name);
}

ps_err ps_member_barrier(ps_member *m, const char *name, ps_deadline deadline)
{
    return ps_member_reduce(m, name, NULL, 0, deadline);
}

ps_err ps_member_put(ps_member *m, const char *key, const void *value, size_t bytes,
                     ps_deadline deadline)
{
    if (bytes > PS_CONTROL_VALUE_MAX)
        return ps_err_set(PS_ERR_ARG, "%s: a value of more than %d bytes", key,
                          PS_CONTROL_VALUE_MAX);
    ps_control c = {.kind = PS_CONTROL_PUT, .value = value, .bytes = bytes};
    PS_TRY(set_name(&c, key));
    return call(m, &c, deadline, NULL, NULL);
}

ps_err ps_member_get(ps_member *m, const char *key, void **value, size_t *bytes,
                     ps_deadline deadline)
{
    ps_control c = {.kind = PS_CONTROL_GET};
    PS_TRY(set_name(&c, key));
    c.number[0] = left_ms(deadline);
    return call(m, &c, deadline, value, bytes);
}

ps_err ps_member_leave(ps_member *m, ps_deadline deadline)
{
    ps_control c = {.kind = PS_CONTROL_LEAVE};
    c.number[0] = left_ms(deadline);
    PS_TRY(call(m, &c, deadline, NULL, NULL));
    pthread_mutex_lock(&m->lock);
    m->left = true;
    pthread_mutex_unlock(&m->lock);
    wake(m->wake_fd); // says BYE, so that nobody waits for what this process still does
    return PS_OK;
}

ps_err ps_member_wait_end(ps_member *m)
{
    const ps_deadline never = {UINT64_MAX};
    pthread_mutex_lock(&m->lock);
    while (!m->ended && !m->aborted)
        wait_change(m, never);
    bool ended = m->ended;
    pthread_mutex_unlock(&m->lock);
    return ended ? PS_OK : ps_member_check(m);
}

/* ---- the control thread ---- */

static ps_err send_control(ps_member *m, const ps_control *c)
{
    zmq_msg_t part;
    PS_TRY(ps_control_frame(&part, c));
    const ps_deadline now = {0};
    return ps_zsock_send(m->dealer, now, &part, 1);
}

static void send_kind(ps_member *m, ps_control_kind kind, const char *text)
{
    ps_control c = {.kind = kind, .nonce = m->roster.nonce};
    ps_control_set_text(&c, text);
    if (send_control(m, &c) != PS_OK) PS_DEBUG("send", "error=\"%s\"", ps_err_message());
}

/* Takes the next message that was not sent yet out of its request. */
static bool take_unsent(ps_member *m, ps_mp_writer *out)
{
    bool found = false;
    pthread_mutex_lock(&m->lock);
    for (request *r = m->requests; r && !found; r = r->next) {
        if (r->sent) continue;
        *out = r->message;
        ps_mp_writer_init(&r->message);
        r->sent = found = true;
    }
    pthread_mutex_unlock(&m->lock);
    return found;
}

static void send_requests(ps_member *m)
{
    ps_mp_writer w;
    while (take_unsent(m, &w)) {
        zmq_msg_t part;
        const ps_deadline now = {0};
        if (ps_zsock_msg_copy(&part, w.base, w.used) != PS_OK ||
            ps_zsock_send(m->dealer, now, &part, 1) != PS_OK)
            PS_WARN("send", "error=\"%s\"", ps_err_message());
        ps_mp_writer_fini(&w);
    }
}

/* Tells the coordinator, once, that this member has aborted the job. */
static void send_abort(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    bool tell = m->tell_abort;
    m->tell_abort = false;
    pthread_mutex_unlock(&m->lock);
    if (tell) send_kind(m, PS_CONTROL_ABORT, m->reason);
}

static void on_answer(ps_member *m, const ps_control *c)
{
    void *value = NULL;
    ps_err code = PS_OK;
    if (c->kind == PS_CONTROL_FAIL)
        code = c->number[0] > 0 && c->number[0] < PS_ERR_COUNT ? (ps_err)c->number[0]
                                                               : PS_ERR_INTERNAL;
    else
        code = ps_mem_zalloc(&value, c->bytes, 1, "an answer");
    if (value && c->bytes > 0) memcpy(value, c->value, c->bytes);
    pthread_mutex_lock(&m->lock);
    request *r = m->requests;
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
}

static void on_message(ps_member *m, const ps_control *c)
{
    char reason[PS_CONTROL_TEXT_MAX];
    switch (c->kind) {
    case PS_CONTROL_ABORT:
        set_aborted(m, c->text, false);
        break;
    case PS_CONTROL_FAIL:
        if (c->request == 0) {
            snprintf(reason, sizeof reason, "the coordinator says: %.600s", c->text);
            set_aborted(m, reason, true);
            break;
        }
        on_answer(m, c);
        break;
    case PS_CONTROL_DONE:
        on_answer(m, c);
        break;
    case PS_CONTROL_END:
        on_end(m);
        break;
    default: // HEARTBEAT, a late WAIT or WELCOME
        break;
    }
}

/* Receives one control message; *got is 0 when none came before the deadline. *frame
 * holds what c borrows, and is closed by the caller when *got. */
static ps_err receive(ps_member *m, ps_deadline deadline, zmq_msg_t *frame, ps_control *c,
                      int *got)
{
    PS_TRY(ps_zsock_recv(m->dealer, deadline, frame, 1, got));
    if (!*got) return PS_OK;
    m->heard_ns = ps_clock_ns();
    m->lost_ns = 0;
    ps_err err = ps_control_read(zmq_msg_data(frame), zmq_msg_size(frame), c, NULL);
    if (err == PS_OK) return PS_OK;
    zmq_msg_close(frame);
    *got = 0;
    return err;
}

static void receive_all(ps_member *m)
{
    const ps_deadline now = {0};
    for (;;) {
        zmq_msg_t frame;
        ps_control c;
        int got;
        ps_err err = receive(m, now, &frame, &c, &got);
        if (err == PS_ERR_PROTOCOL)
            PS_WARN("bad_message", "error=\"%s\"", ps_err_message());
        if (err != PS_OK && err != PS_ERR_PROTOCOL) return;
        if (err == PS_OK && !got) return;
        if (!got) continue;
        if (c.nonce == m->roster.nonce) on_message(m, &c);
        zmq_msg_close(&frame);
    }
}

static bool is_over(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    bool over = m->ended || m->left || m->aborted;
    pthread_mutex_unlock(&m->lock);
    return over;
}

/* A coordinator that is gone ends the job here too. */
static void check_coordinator(ps_member *m)
{
    uint64_t now = ps_clock_ns(), grace_ms = 2 * m->heartbeat_ms;
    if (grace_ms < LOST_GRACE_MIN_MS) grace_ms = LOST_GRACE_MIN_MS;
    // After a pause of this process itself, silence proves nothing yet.
    if (now - m->last_round_ns > m->dead_after_ms * 1000000u / 2) m->heard_ns = now;
    m->last_round_ns = now;
    uint64_t silent_ms = now > m->heard_ns ? (now - m->heard_ns) / 1000000u : 0;
    bool lost = m->lost_ns && now - m->lost_ns > grace_ms * 1000000u;
    if ((!lost && silent_ms <= m->dead_after_ms) || is_over(m)) return;
    const char *host = m->roster.n_servers > 0 ? "server 0" : "worker 0";
    char reason[PS_CONTROL_TEXT_MAX], why[64] = "its connection closed";
    if (!lost)
        snprintf(why, sizeof why, "no sign of life for %.1f s", (double)silent_ms * 1e-3);
    snprintf(reason, sizeof reason, "the coordinator (%s at %s) is dead: %s", host,
             m->coordinator_endpoint, why);
    set_aborted(m, reason, false);
}

static int poll_ms(const ps_member *m)
{
    uint64_t now = ps_clock_ns();
    int ms = m->next_beat_ns > now ? (int)((m->next_beat_ns - now) / 1000000u) + 1 : 0;
    return m->lost_ns && ms > 50 ? 50 : ms;
}

static void beat(ps_member *m)
{
    uint64_t now = ps_clock_ns();
    if (now < m->next_beat_ns) return;
    m->next_beat_ns = now + m->heartbeat_ms * 1000000u;
    if (!m->said_bye) send_kind(m, PS_CONTROL_HEARTBEAT, ""); // written by this thread
}

static bool should_stop(ps_member *m)
{
    uint64_t count;
    ssize_t n = read(m->wake_fd, &count, sizeof count);
    (void)n;
    pthread_mutex_lock(&m->lock);
    bool stop = m->stop;
    pthread_mutex_unlock(&m->lock);
    return stop;
}

/* Says BYE once after an orderly leave; at_end: in any case what there is to say. */
static void say_goodbye(ps_member *m, bool at_end)
{
    pthread_mutex_lock(&m->lock);
    bool orderly = m->left || (at_end && m->ended);
    bool bye = orderly && !m->said_bye;
    m->said_bye |= bye;
    pthread_mutex_unlock(&m->lock);
    if (bye)
        send_kind(m, PS_CONTROL_BYE, "");
    else if (at_end && !orderly && !atomic_load(&m->aborted))
        send_kind(m, PS_CONTROL_ABORT, "it ended before the job was over");
}

static void *run(void *arg)
{
    ps_member *m = arg;
    for (;;) {
        zmq_pollitem_t items[] = {{.socket = m->dealer, .events = ZMQ_POLLIN},
                                  {.socket = m->monitor, .events = ZMQ_POLLIN},
                                  {.fd = m->wake_fd, .events = ZMQ_POLLIN}};
        if (zmq_poll(items, 3, poll_ms(m)) < 0 && zmq_errno() != EINTR) break;
        bool stop = items[2].revents && should_stop(m);
        receive_all(m);
        if (ps_zsock_monitor_read(m->monitor) >= 0) m->lost_ns = ps_clock_ns();
        send_abort(m);
        send_requests(m);
        say_goodbye(m, stop);
        if (stop) break;
        beat(m);
        check_coordinator(m);
    }
    return NULL;
}

/* ---- joining ---- */

static void pause_ms(long ms)
{
    const struct timespec pause = {.tv_nsec = ms * 1000000L};
    nanosleep(&pause, NULL);
}

static bool hosts_coordinator(const ps_member_options *o)
{
    return o->rank == 0 &&
           o->role == (o->n_servers > 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER);
}

/* A name that leads to the loopback on this host (Debian's 127.0.1.1) leads elsewhere on
 * others; "localhost" and literal addresses mean what they say. */
static bool says_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || ps_net_is_literal(host);
}

static bool is_wildcard(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 ||
           strcmp(host, "*") == 0;
}

/* The address of this process, where the way to the coordinator is local. */
static ps_err choose_address(ps_member *m, const char *interface, const char *host,
                             const char *local)
{
    if (interface[0]) return ps_net_interface_address(interface, m->address);
    if (local[0] && (!ps_net_is_loopback(local) || says_loopback(host))) {
        snprintf(m->address, sizeof m->address, "%s", local);
        return PS_OK;
    }
    return ps_net_route_address(NULL, m->address);
}

/* Where the coordinator in this process binds, and this process's address. */
static ps_err choose_binding(ps_member *m, const char *interface, char *where, int cap)
{
    const ps_init_method *i = &m->init;
    if (i->is_file) {
        PS_TRY(choose_address(m, interface, "", ""));
        ps_net_endpoint(m->address, 0, where, cap);
        return PS_OK;
    }
    char local[PS_ADDRESS_MAX] = "";
    if (is_wildcard(i->host)) {
        PS_TRY(choose_address(m, interface, "", ""));
    } else {
        PS_TRY(ps_net_route_address(i->host, local));
        PS_TRY(choose_address(m, interface, i->host, local));
    }
    // A name may lead to other addresses on other hosts: then all are listened on.
    const char *on = strcmp(i->host, "localhost") == 0                     ? local
                     : ps_net_is_literal(i->host) && !is_wildcard(i->host) ? i->host
                                                                           : "*";
    ps_net_endpoint(on, i->port, where, cap);
    return PS_OK;
}

static int port_of(const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':');
    return colon ? atoi(colon + 1) : 0;
}

/* Where this process reaches the coordinator that it hosts. */
static void set_own_endpoint(ps_member *m)
{
    const char *bound = ps_coordinator_endpoint(m->coordinator);
    bool wildcard = strncmp(bound, "tcp://0.0.0.0:", 14) == 0 ||
                    strncmp(bound, "tcp://[::]:", 11) == 0 ||
                    strncmp(bound, "tcp://*:", 8) == 0;
    if (wildcard)
        ps_net_endpoint("127.0.0.1", port_of(bound), m->coordinator_endpoint,
                        sizeof m->coordinator_endpoint);
    else
        snprintf(m->coordinator_endpoint, sizeof m->coordinator_endpoint, "%s", bound);
}

static ps_err publish(ps_member *m)
{
    if (!m->init.is_file) return PS_OK;
    ps_init_record r = {.port = port_of(m->coordinator_endpoint),
                        .nonce = ps_coordinator_nonce(m->coordinator)};
    memcpy(r.address, m->address, sizeof r.address);
    PS_TRY(ps_init_file_write(m->init.path, &r));
    m->file_nonce = r.nonce;
    return PS_OK;
}

static ps_err start_coordinator(ps_member *m, const ps_member_options *o)
{
    char where[PS_ENDPOINT_MAX];
    PS_TRY(choose_binding(m, o->config->net.interface, where, sizeof where));
    const ps_coordinator_options c = {.where = where,
                                      .job = o->config->job.name,
                                      .n_servers = o->n_servers,
                                      .n_workers = o->world_size,
                                      .config_hash = ps_config_hash(o->config),
                                      .plan_hash = o->plan_hash,
                                      .heartbeat_ms = m->heartbeat_ms,
                                      .dead_after_ms = m->dead_after_ms};
    PS_TRY(ps_coordinator_create(&c, &m->coordinator));
    set_own_endpoint(m);
    return publish(m);
}

/* Finds the coordinator: its endpoint, this process's address, and the nonce to join with
 * (0: any). */
static ps_err find_coordinator(ps_member *m, const ps_member_options *o,
                               ps_deadline deadline, uint64_t *nonce)
{
    *nonce = 0;
    if (m->coordinator) return PS_OK;
    char remote[PS_ADDRESS_MAX], local[PS_ADDRESS_MAX] = "";
    const char *host = m->init.host;
    int port = m->init.port;
    ps_init_record record;
    if (m->init.is_file) {
        PS_TRY(ps_init_file_read(m->init.path, &record));
        host = record.address;
        port = record.port;
        *nonce = record.nonce;
        // A stale file must not hold us: soon it is read again.
        ps_deadline soon = ps_deadline_in_ms(500);
        if (soon.at_ns < deadline.at_ns) deadline = soon;
    }
    PS_TRY(ps_net_dial(host, port, deadline, remote, local));
    ps_net_endpoint(remote, port, m->coordinator_endpoint,
                    sizeof m->coordinator_endpoint);
    return choose_address(m, o->config->net.interface, host, local);
}

/* This member's entry; wildcard hosts in its endpoints become its address. */
static ps_err write_entry(const ps_member *m, const ps_member_options *o, ps_mp_writer *w)
{
    ps_host_identity host;
    ps_net_host_identity(&host);
    ps_roster_entry e = {.role = o->role, .rank = o->rank};
    memcpy(e.host, host.host, sizeof e.host);
    memcpy(e.boot_id, host.boot_id, sizeof e.boot_id);
    memcpy(e.net_ns, host.net_ns, sizeof e.net_ns);
    ps_err err = ps_mem_zalloc(&e.endpoints, (size_t)o->n_endpoints, sizeof *e.endpoints,
                               "endpoints");
    for (int i = 0; i < o->n_endpoints && err == PS_OK; i++, e.n_endpoints++) {
        const char *given = o->endpoints[i];
        char endpoint[PS_ENDPOINT_MAX];
        snprintf(endpoint, sizeof endpoint, "%s", given);
        if (strncmp(given, "tcp://0.0.0.0:", 14) == 0 ||
            strncmp(given, "tcp://[::]:", 11) == 0 || strncmp(given, "tcp://*:", 8) == 0)
            ps_net_endpoint(m->address, port_of(given), endpoint, sizeof endpoint);
        err = ps_mem_strdup(&e.endpoints[i], endpoint);
        if (err != PS_OK) break;
    }
    if (err == PS_OK) ps_roster_entry_write(w, &e);
    ps_roster_entry_fini(&e);
    return err == PS_OK ? ps_mp_writer_end(w) : err;
}

static ps_err send_join(ps_member *m, const ps_member_options *o, uint64_t nonce)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_err err = write_entry(m, o, &w);
    ps_control c = {
        .kind = PS_CONTROL_JOIN, .nonce = nonce, .value = w.base, .bytes = w.used};
    c.number[0] = ps_config_hash(o->config);
    c.number[1] = o->plan_hash;
    c.number[2] = (uint64_t)o->world_size;
    c.number[3] = (uint64_t)o->n_servers;
    ps_control_set_text(&c, PS_VERSION);
    if (err == PS_OK) err = set_name(&c, o->config->job.name);
    if (err == PS_OK) err = send_control(m, &c);
    ps_mp_writer_fini(&w);
    return err;
}

static ps_err on_welcome(ps_member *m, const ps_control *c)
{
    ps_err err = ps_roster_read(&m->roster, c->value, c->bytes);
    int size = m->role == PS_ROLE_SERVER ? m->roster.n_servers : m->roster.n_workers;
    if (err == PS_OK && c->number[1] >= (uint64_t)size)
        err = ps_err_set(PS_ERR_PROTOCOL, "the coordinator gave a rank out of range");
    if (err != PS_OK) {
        ps_roster_fini(&m->roster);
        return err;
    }
    m->rank = (int)c->number[1];
    m->roster.nonce = c->nonce;
    m->roster.epoch = (uint32_t)c->number[0];
    return PS_OK;
}

/* *joined once welcome. PEER: refused, or the job is over. */
static ps_err on_join_answer(ps_member *m, const ps_control *c, bool *joined)
{
    switch (c->kind) {
    case PS_CONTROL_WAIT:
        memcpy(m->waiting_for, c->text, sizeof m->waiting_for);
        return PS_OK;
    case PS_CONTROL_WELCOME:
        PS_TRY(on_welcome(m, c));
        *joined = true;
        return PS_OK;
    case PS_CONTROL_REFUSE:
    case PS_CONTROL_ABORT:
    case PS_CONTROL_FAIL:
        return ps_err_set(PS_ERR_PEER, "%s", c->text);
    default:
        return PS_OK;
    }
}

static ps_err connect_to_coordinator(ps_member *m)
{
    ps_zsock_close(&m->monitor);
    ps_zsock_close(&m->dealer);
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .max_message_bytes = PS_CONTROL_FRAME_MAX,
                                .routing_id = m->id,
                                .routing_id_bytes = sizeof m->id};
    PS_TRY(ps_zsock_open(m->zmq_context, &o, &m->dealer));
    PS_TRY(ps_zsock_monitor(m->zmq_context, m->dealer, "member", &m->monitor));
    return ps_zsock_connect(m->dealer, m->coordinator_endpoint);
}

/* Says JOIN every heartbeat until there is a decision, the deadline passes, or nobody has
 * answered for a while (PS_OK without *joined: look for the coordinator again). */
static ps_err ask_to_join(ps_member *m, const ps_member_options *o, uint64_t nonce,
                          ps_deadline deadline, bool *joined)
{
    PS_TRY(connect_to_coordinator(m));
    ps_deadline silence = ps_deadline_in_ms(UNANSWERED_MS);
    while (!*joined && !ps_deadline_passed(deadline) && !ps_deadline_passed(silence)) {
        PS_TRY(send_join(m, o, nonce));
        ps_deadline next = ps_deadline_in_ms(m->heartbeat_ms);
        if (deadline.at_ns < next.at_ns) next = deadline;
        while (!*joined && !ps_deadline_passed(next)) {
            zmq_msg_t frame;
            ps_control c;
            int got;
            PS_TRY(receive(m, next, &frame, &c, &got));
            if (!got) break;
            silence = ps_deadline_in_ms(UNANSWERED_MS + 2 * m->heartbeat_ms);
            ps_err err = on_join_answer(m, &c, joined);
            zmq_msg_close(&frame);
            PS_TRY(err);
        }
    }
    return PS_OK;
}

static ps_err join_timeout(const ps_member *m, const ps_member_options *o)
{
    double seconds = (double)o->config->net.join_timeout_ms * 1e-3;
    if (m->waiting_for[0])
        return ps_err_set(PS_ERR_TIMEOUT,
                          "%s have not joined after %.1f s (net.join_timeout_ms)",
                          m->waiting_for, seconds);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "no coordinator at %s after %.1f s (%s): is %s running, and is its "
                      "port open?",
                      m->init.is_file ? m->init.path : o->init_method, seconds,
                      ps_err_message(), o->n_servers > 0 ? "server 0" : "worker 0");
}

/* A refusal may come from a job that is just ending, found through its file: whether a
 * new coordinator replaces the file within a short while. */
static bool file_is_replaced(const ps_member *m, uint64_t nonce, ps_deadline deadline)
{
    ps_deadline patience = ps_deadline_in_ms(UNANSWERED_MS);
    if (deadline.at_ns < patience.at_ns) patience = deadline;
    while (m->init.is_file && !m->coordinator && !ps_deadline_passed(patience)) {
        ps_init_record record;
        if (ps_init_file_read(m->init.path, &record) == PS_OK && record.nonce != nonce)
            return true;
        pause_ms(50);
    }
    return false;
}

/* As ask_to_join; a refusal through a file that is out of date is none. */
static ps_err ask_or_look_again(ps_member *m, const ps_member_options *o, uint64_t nonce,
                                ps_deadline deadline, bool *joined)
{
    ps_err err = ask_to_join(m, o, nonce, deadline, joined);
    if (err != PS_ERR_PEER) return err;
    char refusal[PS_CONTROL_TEXT_MAX];
    snprintf(refusal, sizeof refusal, "%s", ps_err_message());
    if (file_is_replaced(m, nonce, deadline)) return PS_OK;
    return ps_err_set(PS_ERR_PEER, "%s", refusal);
}

static ps_err join(ps_member *m, const ps_member_options *o)
{
    ps_deadline deadline = ps_deadline_in_ms((uint64_t)o->config->net.join_timeout_ms);
    bool joined = false;
    if (hosts_coordinator(o)) PS_TRY(start_coordinator(m, o));
    while (!joined && !ps_deadline_passed(deadline)) {
        uint64_t nonce;
        ps_err err = find_coordinator(m, o, deadline, &nonce);
        if (err == PS_OK) {
            PS_TRY(ask_or_look_again(m, o, nonce, deadline, &joined));
            ps_err_set(PS_ERR_TIMEOUT, "%s takes connections but does not answer",
                       m->coordinator_endpoint);
        } else if (m->init.is_file) {
            pause_ms(50);
        } else if (err != PS_ERR_TIMEOUT) {
            return err;
        }
    }
    return joined ? PS_OK : join_timeout(m, o);
}

/* ---- life ---- */

static ps_err check_options(const ps_member_options *o)
{
    int size = o->role == PS_ROLE_SERVER ? o->n_servers : o->world_size;
    if (o->world_size < 1 || o->world_size > PS_MAX_RANKS || o->n_servers < 0 ||
        o->n_servers > PS_MAX_RANKS)
        return ps_err_set(PS_ERR_ARG, "a job of %d servers and %d workers", o->n_servers,
                          o->world_size);
    if (o->rank < -1 || o->rank >= size)
        return ps_err_set(PS_ERR_ARG, "%s %d: the job has %d", ps_role_name(o->role),
                          o->rank, size);
    if (o->n_endpoints < 0 || o->n_endpoints > PS_ROSTER_ENDPOINTS_MAX)
        return ps_err_set(PS_ERR_ARG, "%d shards in one server, at most %d fit",
                          o->n_endpoints, PS_ROSTER_ENDPOINTS_MAX);
    if (!o->init_method && o->n_servers + o->world_size > 1)
        return ps_err_set(PS_ERR_ARG, "a job of several processes needs --init-method");
    return PS_OK;
}

static ps_err init_shared_state(ps_member *m)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->wake_fd < 0 || m->abort_fd < 0) return ps_err_errno(PS_ERR_IO, "eventfd");
    if (getrandom(m->id, sizeof m->id, 0) != (ssize_t)sizeof m->id)
        return ps_err_errno(PS_ERR_IO, "drawing a routing id");
    m->zmq_context = zmq_ctx_new();
    if (!m->zmq_context) return ps_err_set(PS_ERR_NOMEM, "no memory for ZeroMQ");
    return PS_OK;
}

static ps_err start_thread(ps_member *m)
{
    m->last_round_ns = m->heard_ns = ps_clock_ns();
    int code = pthread_create(&m->thread, NULL, run, m);
    if (code != 0)
        return ps_err_set(PS_ERR_NOMEM, "starting the control thread: %s",
                          strerror(code));
    m->thread_started = true;
    return PS_OK;
}

static ps_err set_up(ps_member *m, const ps_member_options *o)
{
    PS_TRY(ps_init_method_parse(o->init_method ? o->init_method : "tcp://127.0.0.1:0",
                                &m->init));
    PS_TRY(join(m, o));
    return start_thread(m);
}

ps_err ps_member_join(const ps_member_options *options, ps_member **out)
{
    *out = NULL;
    PS_TRY(check_options(options));
    ps_member *m;
    PS_TRY(ps_mem_zalloc(&m, 1, sizeof *m, "member"));
    m->role = options->role;
    m->rank = !options->init_method ? 0 : options->rank;
    m->heartbeat_ms = (uint64_t)options->config->net.heartbeat_ms;
    m->dead_after_ms = (uint64_t)options->config->net.dead_after_ms;
    ps_member_options o = *options;
    o.rank = m->rank;
    ps_err err = init_shared_state(m);
    if (err == PS_OK) err = set_up(m, &o);
    if (err != PS_OK) {
        ps_err_prefix(err, "joining job \"%s\"", o.config->job.name);
        char reason[PS_CONTROL_TEXT_MAX];
        snprintf(reason, sizeof reason, "%s", ps_err_message());
        set_aborted(m, reason, false);
        ps_member_destroy(&m);
        return ps_err_set(err, "%s", reason);
    }
    *out = m;
    return PS_OK;
}

static void stop_thread(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_mutex_unlock(&m->lock);
    wake(m->wake_fd);
    pthread_join(m->thread, NULL);
}

static void close_sockets(ps_member *m)
{
    // Nothing more gets out over a lost connection.
    const int linger_ms = m->lost_ns ? 0 : LINGER_MS;
    if (m->dealer) {
        zmq_socket_monitor(m->dealer, NULL, 0);
        zmq_setsockopt(m->dealer, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    }
    ps_zsock_close(&m->monitor);
    ps_zsock_close(&m->dealer);
    if (m->zmq_context) zmq_ctx_term(m->zmq_context);
}

void ps_member_destroy(ps_member **member)
{
    ps_member *m = *member;
    if (!m) return;
    if (m->thread_started) stop_thread(m);
    close_sockets(m);
    bool joined = m->thread_started;
    ps_coordinator_destroy(&m->coordinator, joined || !m->aborted ? NULL : m->reason);
    if (m->file_nonce) ps_init_file_remove(m->init.path, m->file_nonce);
    if (m->wake_fd >= 0) close(m->wake_fd);
    if (m->abort_fd >= 0) close(m->abort_fd);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    ps_roster_fini(&m->roster);
    free(m);
    *member = NULL;
}
