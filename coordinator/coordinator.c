#include "coordinator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "coord_admission.h"
#include "coord_back.h"
#include "coord_elastic.h"
#include "coord_end.h"
#include "coord_pace.h"
#include "coord_readers.h"
#include "job_view.h"
#include "log.h"
#include "mem.h"
#include "net.h"
#include "tell.h"
#include "thread.h"
#include "trace.h"

enum {
    MESSAGES_PER_ROUND = 256,
    LOOK_MS = 10,         // a busy coordinator looks at all members that rarely
    SOON_MS = 50,         // it looks again at one whose connection has closed
    LAST_WORDS_MS = 1000, // at the end: waits for an abort that is on its way
    LINGER_MS = 1000,     // at the end: time for sending the news
    GATE_ITEMS = 3,       // of the door, the ROUTER, and its own
    GATE_PER_MEMBER = 4,  // connections: door, ROUTER, repeated ones, links
    MEMBER_MESSAGES = 1024
};

/* ---- members' messages ---- */

static bool coordinator_find_member(ps_coordinator *c, zmq_msg_t *id,
                                    ps_coord_sender *out)
{
    if (zmq_msg_size(id) != sizeof out->id.bytes) return false;
    memcpy(out->id.bytes, zmq_msg_data(id), sizeof out->id.bytes);
    out->member = ps_coord_index_find(c, &out->id);
    return out->member;
}

static void on_abort(ps_coordinator *c, ps_coord_peer *p, const ps_control *m)
{
    char who[128], slow[128], reason[PS_CONTROL_TEXT_MAX];
    if (c->state == PS_COORD_JOINING) { // it belongs to no running job that it could end
        ps_coord_drop_peer(c, p, m->text);
        return;
    }
    ps_coord_describe(p, who, sizeof who);
    const ps_straggler s = ps_coord_pace_describe(c, slow, sizeof slow);
    if (ps_control_error(m) == PS_ERR_TIMEOUT && s.cause != PS_STRAGGLER_NONE)
        snprintf(reason, sizeof reason, "%s: %.400s; the job has waited for %s: %s", who,
                 m->text, slow, ps_straggler_cause_name(s.cause));
    else
        snprintf(reason, sizeof reason, "%s: %.600s", who, m->text);
    if (m->abort.next_workers <= (uint64_t)c->o.n_workers)
        c->next_workers = (int)m->abort.next_workers;
    ps_tell("aborts", "{s:s, s:i}", "role", ps_role_name(p->entry.role), "rank",
            p->entry.rank);
    ps_coord_abort(c, ps_control_error(m), reason);
}

static void on_clock(ps_coordinator *c, const ps_coord_sender *from, const ps_control *m)
{
    ps_control a = {.kind = PS_CONTROL_CLOCK_IS};
    a.clock.asked_ns = m->clock.asked_ns;
    a.clock.is_ns = ps_clock_ns();
    ps_coord_send_to(c, from, &a);
}

/* Shows in the trace what the board was asked, until it has taken it. */
static void trace_request(uint64_t begin_ns, const ps_control *m, int rank)
{
    const ps_trace_kind kind = m->kind == PS_CONTROL_GATHER ? PS_TRACE_GATHER
                               : m->kind == PS_CONTROL_NORM ? PS_TRACE_ADD_NORM
                                                            : PS_TRACE_BOARD;
    ps_trace_add_peer(kind, begin_ns, (uint32_t)rank);
}

static void coordinator_on_request(ps_coordinator *c, const ps_coord_sender *from,
                                   const ps_control *m)
{
    const ps_roster_entry *e = &from->member->entry;
    const ps_coord_asker asker = {.id = from->id, .role = e->role, .rank = e->rank};
    const uint64_t begin_ns = ps_trace_now();
    ps_coord_board_request(c->board, &asker, m);
    trace_request(begin_ns, m, e->rank);
}

/* What a member tells about itself, for the page. */
static void on_status(const ps_coordinator *c, const ps_coord_peer *p,
                      const ps_control *m)
{
    enum { MOST = PS_METRICS + PS_ROW_TABLES_MAX * PS_ROW_FIGURES };
    double *values; // aligned
    size_t n = m->bytes / sizeof *values;
    if (n > MOST) n = MOST;
    if (!c->o.view || PS_NEW(&values, n, "a status") != PS_OK) return;
    if (n > 0) memcpy(values, m->value, n * sizeof *values);
    ps_job_view_take(c->o.view, p->entry.role, p->entry.rank, m->text, values, (int)n);
    free(values);
}

/* Only a server's shards have links, for gradient norms and orders. */
static ps_err check_link(const ps_coord_sender *from, const ps_control *m)
{
    const unsigned link = ps_control_id_link(&from->id);
    const ps_roster_entry *e = &from->member->entry;
    const bool of_link = m->kind == PS_CONTROL_NORM || m->kind == PS_CONTROL_PUSHED;
    const unsigned links = e->role == PS_ROLE_SERVER ? (unsigned)e->n_endpoints : 0;
    if (link <= links && (link > 0) == of_link) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "%s by link %u",
                      ps_control_kind_name((int)m->kind), link);
}

static void on_running(ps_coordinator *c, const ps_coord_sender *from,
                       const ps_control *m)
{
    switch (m->kind) {
    case PS_CONTROL_HEARTBEAT:
        from->member->gone = false; // it was taken for dead: nothing follows a BYE
        ps_coord_tell_state(c, from->member);
        break;
    case PS_CONTROL_STATUS:
        on_status(c, from->member, m);
        break;
    case PS_CONTROL_PACE:
        ps_coord_pace_take(c, from->member, m);
        break;
    case PS_CONTROL_CLOCK:
        on_clock(c, from, m);
        break;
    case PS_CONTROL_LEAVE:
        ps_coord_on_leave(c, from->member, m);
        break;
    case PS_CONTROL_BYE:
        ps_coord_set_gone(c, from->member);
        break;
    case PS_CONTROL_INTERRUPT:
        ps_coord_on_interrupt(c, from->member);
        break;
    case PS_CONTROL_GATHER:
    case PS_CONTROL_PUT:
    case PS_CONTROL_DROP:
    case PS_CONTROL_GET:
    case PS_CONTROL_NORM:
    case PS_CONTROL_PUSHED:
        coordinator_on_request(c, from, m);
        break;
    default:
        ps_coord_complain(c, from, m->request,
                          ps_err_set(PS_ERR_PROTOCOL, "members must not send %s",
                                     ps_control_kind_name((int)m->kind)));
    }
}

/* Until the job runs, members send only heartbeats. */
static void on_joining(ps_coordinator *c, const ps_coord_sender *from,
                       const ps_control *m)
{
    if (m->kind == PS_CONTROL_HEARTBEAT || m->kind == PS_CONTROL_CLOCK) return;
    ps_coord_complain(c, from, m->request,
                      ps_err_set(PS_ERR_PROTOCOL, "%s before the job runs",
                                 ps_control_kind_name((int)m->kind)));
}

/* After an abort, any message of a member is answered with the reason, unless the member
 * knows it. */
static void on_aborted(ps_coordinator *c, const ps_coord_sender *from,
                       const ps_control *m)
{
    if (m->kind != PS_CONTROL_BYE && m->kind != PS_CONTROL_ABORT)
        ps_coord_tell_abort(c, from);
}

static void coordinator_dispatch(ps_coordinator *c, const ps_coord_sender *from,
                                 const ps_control *m)
{
    ps_err err = m->nonce == c->nonce
                     ? check_link(from, m)
                     : ps_err_set(PS_ERR_PEER, "a message of another job");
    if (err != PS_OK)
        ps_coord_complain(c, from, m->request, err);
    else if (c->state == PS_COORD_ABORTED)
        on_aborted(c, from, m);
    else if (from->member->away)
        ps_coord_send_away(c, from);
    else if (m->kind == PS_CONTROL_HERE)
        ps_coord_on_here(c, from->member);
    else if (m->kind == PS_CONTROL_ABORT)
        on_abort(c, from->member, m);
    else if (c->state == PS_COORD_JOINING)
        on_joining(c, from, m);
    else
        on_running(c, from, m);
}

/* The routing id is made by the socket. Frames that were received know their connection.
 */
static void note_alive(ps_coord_peer *p, zmq_msg_t *received)
{
    int fd = zmq_msg_get(received, ZMQ_SRCFD);
    p->heard_ns = ps_clock_awake_ns();
    // A message that a lost connection has left behind is no sign of a new connection.
    if (p->lost_ns && !ps_zsock_is_connected(fd)) return;
    if (fd != p->fd) p->queued_bytes = 0;
    p->fd = fd;
    p->lost_ns = 0;
}

static void on_member_parts(ps_coordinator *c, zmq_msg_t *parts, int n)
{
    ps_coord_sender from;
    if (!coordinator_find_member(c, &parts[0], &from)) {
        ps_coord_drop_stranger("a message of no member");
        return;
    }
    ps_control m;
    ps_err err = n == 2 ? ps_control_read(zmq_msg_data(&parts[1]),
                                          zmq_msg_size(&parts[1]), &m, NULL)
                        : ps_err_set(PS_ERR_PROTOCOL, "a message without a body");
    // It has the dead one's id. Until it says HERE, what comes is that one's.
    if (from.member->is_back && !from.member->here &&
        (err != PS_OK || m.kind != PS_CONTROL_HERE))
        return;
    if (ps_control_id_link(&from.id) == 0) note_alive(from.member, &parts[n - 1]);
    if (err != PS_OK)
        ps_coord_complain(c, &from, 0, err);
    else
        coordinator_dispatch(c, &from, &m);
}

/* ---- the door ---- */

/* Only JOIN and READER are answered, except that a process of another version is told so:
 * a person has to learn of it. */
static bool on_door_message(void *owner, const ps_door_message *d)
{
    ps_coordinator *c = owner;
    ps_control_id from;
    ps_control m;
    uint64_t version = 0;
    ps_err err = ps_control_read(d->body, d->body_bytes, &m, &version);
    if (err == PS_OK && m.kind == PS_CONTROL_JOIN && d->id_bytes == sizeof from.bytes) {
        memcpy(from.bytes, d->id, d->id_bytes);
        ps_coord_on_join(c, &from, d->is_proven ? &d->role : NULL, &m);
        return true;
    }
    if (err == PS_OK && m.kind == PS_CONTROL_READER) {
        ps_coord_on_reader(c, d->id, d->id_bytes, &m);
        return true;
    }
    ps_coord_drop_stranger(err == PS_OK ? "no JOIN at the door" : ps_err_message());
    if (version == 0 || version == PS_CONTROL_VERSION) return false;
    ps_control no = {.kind = PS_CONTROL_REFUSE};
    ps_control_set_text(&no, "another version of the protocol");
    ps_coord_send_at_door(c, d->id, d->id_bytes, &no);
    return true;
}

/* ---- which members are alive ---- */

enum {
    HALF_OPEN_MS = 5000,       // for an admitted process to come
    AWAY_AT_THE_END_MS = 3000, // for one that takes a dead worker's place
};

/* Notes that a connection has closed, perhaps a member's. A connection that was given up
 * because of silence is not noted: if the silence lasts, that ends the job. */
static void coordinator_note_closed(void *owner, int fd)
{
    ps_coordinator *c = owner;
    uint64_t now = ps_clock_awake_ns();
    for (int i = 0; i < c->n_peers; i++) {
        ps_coord_peer *p = &c->peers[i];
        if (p->fd != fd) continue;
        uint64_t silent_ms = now > p->heard_ns ? (now - p->heard_ns) / 1000000u : 0;
        if (p->lost_ns == 0 && silent_ms < c->silence_ms / 2) p->lost_ns = now;
        p->fd = -1;
        p->queued_bytes = 0;
        c->next_look_ns = 0;
    }
}

typedef struct death {
    char why[128];
    bool silent; // it may be stopped, and come back
} death;

/* Returns whether the peer is dead. */
static bool is_dead(const ps_coordinator *c, const ps_coord_peer *p, uint64_t now,
                    death *d)
{
    const uint64_t grace_ms = ps_coordinator_grace_ms(c->o.heartbeat_ms, c->o.recovers);
    uint64_t silent_ms = now > p->heard_ns ? (now - p->heard_ns) / 1000000u : 0;
    d->silent = false;
    const uint64_t away_ms =
        p->away && ps_coord_ends(c) && c->o.dead_after_ms > AWAY_AT_THE_END_MS
            ? AWAY_AT_THE_END_MS
            : c->o.dead_after_ms;
    if (p->away && silent_ms <= away_ms) return false;
    if (p->away)
        snprintf(d->why, sizeof d->why, "no process has taken its place for %.1f s",
                 (double)silent_ms * 1e-3);
    else if (p->lost_ns && now > p->lost_ns && now - p->lost_ns > grace_ms * 1000000u)
        snprintf(d->why, sizeof d->why,
                 "its connection closed and it did not say goodbye");
    else if (!p->here && silent_ms > HALF_OPEN_MS)
        snprintf(d->why, sizeof d->why, "it was admitted and did not come");
    else if ((d->silent = silent_ms > c->o.dead_after_ms))
        snprintf(d->why, sizeof d->why, "no sign of life for %.1f s",
                 (double)silent_ms * 1e-3);
    else
        return false;
    return true;
}

static void on_death(ps_coordinator *c, ps_coord_peer *p, const death *d)
{
    char who[128], reason[PS_CONTROL_TEXT_MAX];
    const bool needed = c->state == PS_COORD_RUNNING && !p->left;
    if (needed && ps_coord_lose(c, p, d->why)) return;
    if (d->silent && (needed || c->state == PS_COORD_JOINING)) {
        const char *role = ps_role_name(p->entry.role);
        ps_tell("silent", "{s:s, s:i}", "role", role, "rank", p->entry.rank);
        PS_INFO("silent", "role=%s rank=%d", role, p->entry.rank);
    }
    if (needed) {
        ps_coord_describe(p, who, sizeof who);
        snprintf(reason, sizeof reason, "%s is dead: %s", who, d->why);
        p->gone = true;
        ps_coord_abort(c, PS_ERR_PEER, reason);
    } else if (c->state == PS_COORD_JOINING) {
        ps_coord_drop_peer(c, p, d->why);
    } else {
        ps_coord_set_gone(c, p);
    }
}

/* Declares members dead that have been silent, or without a connection, for too long. A
 * running job is then aborted. A job that has not begun waits for a replacement. */
static void check_alive(ps_coordinator *c)
{
    uint64_t now = ps_clock_awake_ns();
    // After a pause, silence proves nothing yet (the clock leaves out long ones).
    bool paused = now - c->last_round_ns > c->o.dead_after_ms * 1000000u / 2;
    c->last_round_ns = now;
    for (int i = c->n_peers - 1; i >= 0; i--) {
        ps_coord_peer *p = &c->peers[i];
        death d;
        if (paused) p->heard_ns = now;
        if (!p->gone && is_dead(c, p, now, &d)) on_death(c, p, &d);
    }
}

/* Sends a heartbeat to all members when one is due. Returns whether it did, in a job that
 * runs. */
static bool coordinator_beat(ps_coordinator *c)
{
    uint64_t now = ps_clock_awake_ns();
    if (now < c->next_beat_ns) return false;
    c->next_beat_ns = now + c->o.heartbeat_ms * 1000000u;
    if (c->state == PS_COORD_JOINING) {
        ps_coord_send_wait(c, NULL);
        return false;
    }
    for (int i = 0; i < c->n_peers; i++) {
        ps_coord_peer *p = &c->peers[i];
        ps_control m = {.kind = PS_CONTROL_HEARTBEAT};
        if (p->here && !p->gone && c->state != PS_COORD_ABORTED) ps_coord_send(c, p, &m);
    }
    return true;
}

/* ---- the thread ---- */

/* Takes the messages of members that have come, at most that many. */
static void coordinator_receive(ps_coordinator *c)
{
    const ps_deadline now = {0};
    for (int i = 0; i < MESSAGES_PER_ROUND; i++) {
        zmq_msg_t parts[2];
        int n;
        ps_err err = ps_zsock_recv(c->router, now, parts, 2, &n);
        if (err == PS_ERR_PROTOCOL) {
            ps_coord_drop_stranger(ps_err_message());
            continue;
        }
        if (err != PS_OK || n == 0) return;
        on_member_parts(c, parts, n);
        ps_zsock_close_parts(parts, n);
    }
}

/* When a member has to be looked at although no message comes. */
static uint64_t next_look_ns(const ps_coordinator *c)
{
    const uint64_t soon = ps_clock_awake_ns() + SOON_MS * UINT64_C(1000000);
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < c->n_peers; i++) {
        const ps_coord_peer *p = &c->peers[i];
        if (p->leaving && p->leave_deadline.at_ns < next) next = p->leave_deadline.at_ns;
        if (p->lost_ns && !p->gone && soon < next) next = soon;
    }
    return next;
}

/* What depends on the time and on each member. Not after each message: all members send
 * some, and the work would grow with the square. */
static void coordinator_look(ps_coordinator *c)
{
    const uint64_t now = ps_clock_awake_ns();
    if (now < c->next_look_ns && now - c->last_round_ns < LOOK_MS * UINT64_C(1000000))
        return;
    ps_coord_expire_leaves(c);
    check_alive(c);
    ps_coord_pace_check_silence(c);
    c->next_look_ns = next_look_ns(c);
}

static ps_deadline next_wakeup(const ps_coordinator *c)
{
    ps_deadline next = ps_coord_board_next_deadline(c->board);
    if (c->next_beat_ns < next.at_ns) next.at_ns = c->next_beat_ns;
    if (c->next_look_ns < next.at_ns) next.at_ns = c->next_look_ns;
    uint64_t soon = ps_clock_awake_ns() + SOON_MS * UINT64_C(1000000);
    if (c->waiting_ns && soon < next.at_ns) next.at_ns = soon;
    return next;
}

/* An abort that a member has just sent may say more than the end of this process. */
static void end_unfinished_job(ps_coordinator *c)
{
    ps_event_clear(&c->stop); // set after last_reason was written
    ps_deadline last_words = ps_deadline_in_ms(c->last_reason ? 0 : LAST_WORDS_MS);
    while (c->state < PS_COORD_ENDED && !ps_deadline_passed(last_words)) {
        zmq_pollitem_t item = {.socket = c->router, .events = ZMQ_POLLIN};
        zmq_poll(&item, 1, ps_deadline_left_ms(last_words));
        coordinator_receive(c);
    }
    ps_coord_abort(c, PS_ERR_PEER,
                   c->last_reason
                       ? c->last_reason
                       : "the coordinator's process ended before the job was over");
}

/* Rounds that cannot count any more need not be made. Told with every heartbeat, too: the
 * first message may be lost with a connection. */
static void tell_closed(ps_coordinator *c, bool again)
{
    ps_control m = {.kind = PS_CONTROL_CLOSE};
    m.closed = ps_coord_orders_closed(ps_coord_board_orders(c->board));
    if (m.closed == 0 || (m.closed == c->told_closed && !again)) return;
    c->told_closed = m.closed;
    for (int i = 0; i < c->n_peers; i++)
        if (c->peers[i].here && c->peers[i].entry.role == PS_ROLE_WORKER)
            ps_coord_send(c, &c->peers[i], &m);
}

void ps_coord_turn(ps_coordinator *c)
{
    // First, because a new connection may reuse a closed one's descriptor.
    ps_gate_turn(c->gate);
    ps_door_turn(c->door, MESSAGES_PER_ROUND, on_door_message, c);
    coordinator_receive(c);
    const ps_err lost = ps_coord_board_expire(c->board);
    if (lost != PS_OK) ps_coord_abort(c, lost, ps_err_message());
    ps_coord_start_if_ready(c);
    tell_closed(c, coordinator_beat(c));
    coordinator_look(c);
}

static void *coordinator_run(void *arg)
{
    ps_coordinator *c = arg;
    c->last_round_ns = ps_clock_awake_ns();
    for (;;) {
        enum { OWN = 3, ALL = OWN + GATE_ITEMS };
        zmq_pollitem_t items[ALL] = {
            {.socket = c->router, .events = ZMQ_POLLIN},
            {.socket = ps_door_socket(c->door), .events = ZMQ_POLLIN},
            {.fd = ps_event_fd(&c->stop), .events = ZMQ_POLLIN}};
        ps_gate_items(c->gate, items + OWN);
        int gate_ms = ps_gate_poll_ms(c->gate), ms = ps_deadline_left_ms(next_wakeup(c));
        int n = zmq_poll(items, ALL, gate_ms >= 0 && gate_ms < ms ? gate_ms : ms);
        if (n < 0 && zmq_errno() != EINTR) break;
        if (items[2].revents) break;
        ps_coord_turn(c);
    }
    if (c->state < PS_COORD_ENDED) end_unfinished_job(c);
    return NULL;
}

/* ---- life ---- */

/* Sends the board's answers. A member that asks for more values than it reads gets an
 * error for the rest. */
static void coordinator_answer(void *owner, const ps_control_id *to, const ps_control *a)
{
    ps_coordinator *c = owner;
    ps_control m = *a;
    const ps_coord_sender peer = {.id = *to, .member = ps_coord_index_find(c, to)};
    if (!peer.member) return;
    uint64_t backlog = ps_coord_backlog(peer.member);
    if (backlog > 0 && a->bytes > 0 && backlog + a->bytes > PS_COORD_BACKLOG_MAX)
        ps_coord_send_fail(c, &peer, a->request,
                           ps_err_set(PS_ERR_PEER,
                                      "too many values at once: %llu bytes are on "
                                      "their way already",
                                      (unsigned long long)backlog));
    else
        ps_coord_send_to(c, &peer, &m);
}

/* ---- the gate's questions ---- */

static const ps_secret *coordinator_secret_of(void *owner, int i)
{
    const ps_coordinator *c = owner;
    return i < c->n_peers ? &c->peers[i].secret : NULL;
}

uint64_t ps_coordinator_grace_ms(uint64_t heartbeat_ms, bool recovers)
{
    const uint64_t least_ms = 300;
    return recovers || 2 * heartbeat_ms < least_ms ? least_ms : 2 * heartbeat_ms;
}

static ps_err draw_nonce(uint64_t *nonce)
{
    do {
        if (getrandom(nonce, sizeof *nonce, 0) != (ssize_t)sizeof *nonce)
            return ps_err_errno(PS_ERR_IO, "drawing the job's nonce");
    } while (*nonce == 0);
    return PS_OK;
}

static int connections_of_members(const ps_coordinator *c)
{
    return GATE_PER_MEMBER * (c->o.n_servers + c->o.n_workers);
}

static ps_err open_gate(ps_coordinator *c)
{
    PS_TRY(ps_zsock_context(1, ZMQ_MAX_SOCKETS_DFLT, false, &c->zmq_context));
    const ps_gate_options o = {.zmq_context = c->zmq_context,
                               .n_members = connections_of_members(c),
                               .patience_ms = PS_GATE_PATIENCE_MS,
                               .curve = c->o.curve,
                               .secret_of = coordinator_secret_of,
                               .closed = coordinator_note_closed,
                               .owner = c};
    PS_TRY(ps_gate_create(&o, &c->gate));
    ps_gate_open(c->gate);
    return PS_OK;
}

static ps_err coordinator_open_door(ps_coordinator *c)
{
    const ps_door_options o = {.zmq_context = c->zmq_context,
                               .gate = c->gate,
                               .curve = c->o.curve,
                               .frame_max = PS_CONTROL_DOOR_FRAME_MAX,
                               .n_members = connections_of_members(c)};
    return ps_door_open(&o, c->where, c->endpoint, &c->door);
}

/* Binds to the door's addresses at a free port. */
static ps_err open_router(ps_coordinator *c)
{
    c->silence_ms = ps_zsock_silence_ms(c->o.heartbeat_ms, c->o.dead_after_ms);
    const ps_zsock_options o = {.type = ZMQ_ROUTER,
                                .silence_ms = c->silence_ms,
                                .max_message_bytes = PS_CONTROL_FRAME_MAX,
                                .waiting_messages = MEMBER_MESSAGES,
                                .asks_for_secret = true,
                                .curve = c->o.curve};
    char where[PS_ENDPOINT_MAX], endpoint[PS_ENDPOINT_MAX];
    ps_net_at_port(c->endpoint, 0, where, sizeof where);
    PS_TRY(ps_zsock_open(c->zmq_context, &o, &c->router));
    PS_TRY(ps_gate_watch(c->gate, c->router, PS_GATE_MEMBERS));
    PS_TRY(ps_zsock_bind(c->router, o.curve, where, endpoint));
    c->members_port = ps_net_port_of(endpoint);
    return PS_OK;
}

static ps_err open_sockets(ps_coordinator *c)
{
    PS_TRY(open_gate(c));
    ps_err err = coordinator_open_door(c);
    if (err == PS_OK) err = open_router(c);
    return err == PS_OK ? err : ps_err_prefix(err, "the coordinator cannot start");
}

static ps_err coordinator_set_up(ps_coordinator *c)
{
    int n = c->o.n_servers + c->o.n_workers;
    if (c->o.n_workers < 1 || c->o.n_servers < 0 || c->o.n_workers > PS_MAX_RANKS ||
        c->o.n_servers > PS_MAX_RANKS)
        return ps_err_set(PS_ERR_ARG, "a job cannot have %d servers and %d workers",
                          c->o.n_servers, c->o.n_workers);
    c->n_workers = ps_coord_first_workers(c);
    PS_TRY(ps_mem_strdup(&c->job, c->o.job));
    PS_TRY(ps_mem_strdup(&c->where, c->o.where));
    PS_TRY(PS_NEW(&c->peers, (size_t)n, "coordinator"));
    PS_TRY(ps_coord_index_init(&c->index, n));
    PS_TRY(ps_coord_board_create(c->o.n_workers, coordinator_answer, c, &c->board));
    PS_TRY(draw_nonce(&c->nonce));
    PS_TRY(ps_secret_draw(&c->readers));
    PS_TRY(ps_secret_draw(&c->twins));
    PS_TRY(ps_event_init(&c->stop));
    PS_TRY(open_sockets(c));
    return ps_thread_start(&c->thread, "coordinator", coordinator_run, c);
}

ps_err ps_coordinator_create(const ps_coordinator_options *options, ps_coordinator **out)
{
    ps_coordinator *c;
    PS_TRY(PS_NEW(out, 1, "coordinator"));
    c = *out;
    c->o = *options;
    ps_job_view_begin(c->o.view);
    ps_tell("opened", "{}");
    ps_err err = coordinator_set_up(c);
    if (err != PS_OK) ps_coordinator_destroy(out, NULL);
    return err;
}

uint64_t ps_coordinator_nonce(const ps_coordinator *c)
{
    return c->nonce;
}

const char *ps_coordinator_endpoint(const ps_coordinator *c)
{
    return c->endpoint;
}

static void coordinator_stop_thread(ps_coordinator *c, const char *reason)
{
    if (reason) c->last_reason = strdup(reason); // without memory: no reason
    ps_event_set(&c->stop);
    ps_thread_join(&c->thread);
}

static void close_sockets(ps_coordinator *c)
{
    const bool again = c->o.recovers && c->state == PS_COORD_ABORTED;
    const int linger_ms = again ? PS_ZSOCK_REJOIN_LINGER_MS : LINGER_MS;
    ps_door_close(&c->door, linger_ms);
    if (c->router) {
        ps_gate_unwatch(c->router);
        zmq_setsockopt(c->router, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    }
    ps_zsock_close(&c->router);
    ps_gate_destroy(&c->gate);
    if (c->zmq_context) zmq_ctx_term(c->zmq_context);
}

void ps_coordinator_destroy(ps_coordinator **coordinator, const char *reason)
{
    ps_coordinator *c = *coordinator;
    if (!c) return;
    if (c->thread.runs) coordinator_stop_thread(c, reason);
    close_sockets(c);
    ps_event_fini(&c->stop);
    for (int i = 0; i < c->n_peers; i++)
        ps_roster_entry_fini(&c->peers[i].entry);
    ps_coord_board_destroy(&c->board);
    ps_coord_pace_destroy(&c->pace);
    ps_coord_index_fini(&c->index);
    free(c->peers);
    free(c->job);
    free(c->where);
    free(c->last_reason);
    free(c);
    *coordinator = NULL;
}
