#include "coordinator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "coord_admission.h"
#include "coord_alive.h"
#include "coord_end.h"
#include "log.h"
#include "mem.h"
#include "thread.h"

enum {
    MESSAGES_PER_ROUND = 256,
    LAST_WORDS_MS = 250, // at the end: for an abort that is on its way
    LINGER_MS = 1000     // at the end: for the news to be sent
};

/* ---- messages ---- */

static ps_coord_peer *find_peer(const ps_coordinator *c, const void *id, size_t bytes)
{
    if (bytes != PS_CONTROL_ID_BYTES) return NULL;
    for (int i = 0; i < c->n_peers; i++)
        if (memcmp(c->peers[i].id.bytes, id, bytes) == 0) return &c->peers[i];
    return NULL;
}

static void on_abort(ps_coordinator *c, const ps_coord_sender *from, const ps_control *m)
{
    char who[128] = "a member", reason[PS_CONTROL_TEXT_MAX];
    if (from->member) ps_coord_describe(from->member, who, sizeof who);
    snprintf(reason, sizeof reason, "%s: %.600s", who, m->text);
    ps_coord_abort(c, reason);
}

static void on_member_message(ps_coordinator *c, const ps_coord_sender *from,
                              const ps_control *m)
{
    if (!from->member) {
        ps_coord_complain(c, from, m->request,
                          ps_err_set(PS_ERR_PROTOCOL,
                                     "a %s message of no member of this job",
                                     ps_control_kind_name((int)m->kind)));
        return;
    }
    const ps_roster_entry *e = &from->member->entry;
    if (m->kind == PS_CONTROL_LEAVE)
        ps_coord_on_leave(c, from->member, m);
    else if (m->kind == PS_CONTROL_BYE)
        ps_coord_set_gone(c, from->member);
    else if (m->kind == PS_CONTROL_INTERRUPT)
        ps_coord_on_interrupt(c, from->member);
    else if (m->kind == PS_CONTROL_GATHER)
        ps_coord_board_request(c->board, &from->member->id,
                               e->role == PS_ROLE_WORKER ? e->rank : -1, m);
}

static void on_request(ps_coordinator *c, const ps_coord_sender *from,
                       const ps_control *m)
{
    if (from->bytes != PS_CONTROL_ID_BYTES) {
        ps_coord_complain(
            c, from, m->request,
            ps_err_set(PS_ERR_PROTOCOL, "a routing id of %zu bytes", from->bytes));
        return;
    }
    ps_control_id id;
    memcpy(id.bytes, from->id, sizeof id.bytes);
    ps_coord_board_request(c->board, &id, -1, m);
}

static void dispatch(ps_coordinator *c, const ps_coord_sender *from, const ps_control *m)
{
    if (m->kind == PS_CONTROL_JOIN) {
        ps_coord_on_join(c, from, m);
        return;
    }
    if (m->nonce != c->nonce) {
        ps_coord_complain(c, from, m->request,
                          ps_err_set(PS_ERR_PEER,
                                     "a message of another job (\"%s\" runs here)",
                                     c->job));
        return;
    }
    if (c->state == PS_COORD_ABORTED) {
        ps_control a = {.kind = PS_CONTROL_ABORT};
        ps_control_set_text(&a, c->reason);
        if (m->kind != PS_CONTROL_BYE && m->kind != PS_CONTROL_ABORT)
            ps_coord_send_raw(c, from->id, from->bytes, &a);
        return;
    }
    switch (m->kind) {
    case PS_CONTROL_ABORT:
        on_abort(c, from, m);
        break;
    case PS_CONTROL_HEARTBEAT:
    case PS_CONTROL_LEAVE:
    case PS_CONTROL_BYE:
    case PS_CONTROL_INTERRUPT:
    case PS_CONTROL_GATHER:
        on_member_message(c, from, m);
        break;
    case PS_CONTROL_PUT:
    case PS_CONTROL_GET:
    case PS_CONTROL_NORM:
        on_request(c, from, m);
        break;
    default:
        ps_coord_complain(c, from, m->request,
                          ps_err_set(PS_ERR_PROTOCOL, "%s is the coordinator's to send",
                                     ps_control_kind_name((int)m->kind)));
    }
}

static void on_parts(ps_coordinator *c, zmq_msg_t *parts, int n)
{
    // The routing id is the socket's own frame: only what was received knows its
    // connection.
    ps_coord_sender from = {.id = zmq_msg_data(&parts[0]),
                            .bytes = zmq_msg_size(&parts[0]),
                            .fd = zmq_msg_get(&parts[n - 1], ZMQ_SRCFD)};
    from.member = find_peer(c, from.id, from.bytes);
    if (from.member) {
        from.member->heard_ns = ps_clock_awake_ns();
        from.member->lost_ns = 0;
        from.member->fd = from.fd;
    }
    ps_control m;
    ps_err err = n == 2 ? ps_control_read(zmq_msg_data(&parts[1]),
                                          zmq_msg_size(&parts[1]), &m, NULL)
                        : ps_err_set(PS_ERR_PROTOCOL, "a message without a body");
    if (err != PS_OK)
        ps_coord_complain(c, &from, 0, err);
    else
        dispatch(c, &from, &m);
}

/* Takes what has come, at most so many. */
static void receive(ps_coordinator *c)
{
    const ps_deadline now = {0};
    for (int i = 0; i < MESSAGES_PER_ROUND; i++) {
        zmq_msg_t parts[2];
        int n;
        ps_err err = ps_zsock_recv(c->router, now, parts, 2, &n);
        if (err == PS_ERR_PROTOCOL) {
            c->n_offences++;
            PS_WARN_FEW("bad_message", "error=\"%s\"", ps_err_message());
            continue;
        }
        if (err != PS_OK || n == 0) return;
        on_parts(c, parts, n);
        ps_zsock_close_parts(parts, n);
    }
}

/* ---- the thread ---- */

static ps_deadline next_wakeup(const ps_coordinator *c)
{
    ps_deadline next = ps_coord_board_next_deadline(c->board);
    if (c->next_beat_ns < next.at_ns) next.at_ns = c->next_beat_ns;
    uint64_t soon = ps_clock_awake_ns() + 50 * 1000000u;
    for (int i = 0; i < c->n_peers; i++) {
        const ps_coord_peer *p = &c->peers[i];
        if (p->leaving && p->leave_deadline.at_ns < next.at_ns) next = p->leave_deadline;
        if (p->lost_ns && !p->gone && soon < next.at_ns) next.at_ns = soon;
    }
    return next;
}

static void expire(ps_coordinator *c)
{
    ps_coord_board_expire(c->board);
    ps_coord_expire_leaves(c);
}

/* An abort that a member has sent just before may tell more than the end of this
 * process. */
static void end_unfinished_job(ps_coordinator *c)
{
    uint64_t count; // written after last_reason
    if (read(c->stop_fd, &count, sizeof count) < 0) PS_DEBUG("end", "no reason given");
    ps_deadline last_words = ps_deadline_in_ms(c->last_reason ? 0 : LAST_WORDS_MS);
    while (c->state < PS_COORD_ENDED && !ps_deadline_passed(last_words)) {
        zmq_pollitem_t item = {.socket = c->router, .events = ZMQ_POLLIN};
        zmq_poll(&item, 1, ps_deadline_left_ms(last_words));
        receive(c);
    }
    ps_coord_abort(c, c->last_reason
                          ? c->last_reason
                          : "the coordinator's process ended before the job was over");
}

static void *run(void *arg)
{
    ps_coordinator *c = arg;
    c->last_round_ns = ps_clock_awake_ns();
    for (;;) {
        zmq_pollitem_t items[] = {{.socket = c->router, .events = ZMQ_POLLIN},
                                  {.socket = c->monitor, .events = ZMQ_POLLIN},
                                  {.fd = c->stop_fd, .events = ZMQ_POLLIN}};
        int n = zmq_poll(items, 3, ps_deadline_left_ms(next_wakeup(c)));
        if (n < 0 && zmq_errno() != EINTR) break;
        if (items[2].revents) break;
        receive(c);
        ps_coord_note_closed(c);
        expire(c);
        ps_coord_beat(c);
        ps_coord_check_alive(c);
    }
    if (c->state < PS_COORD_ENDED) end_unfinished_job(c);
    return NULL;
}

/* ---- life ---- */

/* The board's answers. */
static void answer(void *owner, const ps_control_id *to, const ps_control *a)
{
    ps_control m = *a;
    ps_coord_send_raw(owner, to->bytes, sizeof to->bytes, &m);
}

static ps_err draw_nonce(uint64_t *nonce)
{
    do {
        if (getrandom(nonce, sizeof *nonce, 0) != (ssize_t)sizeof *nonce)
            return ps_err_errno(PS_ERR_IO, "drawing the job's nonce");
    } while (*nonce == 0);
    return PS_OK;
}

static ps_err open_sockets(ps_coordinator *c)
{
    c->zmq_context = zmq_ctx_new();
    if (!c->zmq_context) return ps_err_set(PS_ERR_NOMEM, "no memory for ZeroMQ");
    const ps_zsock_options o = {.type = ZMQ_ROUTER,
                                .max_message_bytes = PS_CONTROL_FRAME_MAX};
    PS_TRY(ps_zsock_open(c->zmq_context, &o, &c->router));
    PS_TRY(ps_zsock_monitor(c->zmq_context, c->router, "coordinator", &c->monitor));
    ps_err err = ps_zsock_bind(c->router, c->where, c->endpoint);
    return err == PS_OK ? err : ps_err_prefix(err, "the coordinator cannot start");
}

static ps_err set_up(ps_coordinator *c)
{
    int n = c->o.n_servers + c->o.n_workers;
    if (c->o.n_workers < 1 || c->o.n_servers < 0 || c->o.n_workers > PS_MAX_RANKS ||
        c->o.n_servers > PS_MAX_RANKS)
        return ps_err_set(PS_ERR_ARG, "a job of %d servers and %d workers",
                          c->o.n_servers, c->o.n_workers);
    PS_TRY(ps_mem_strdup(&c->job, c->o.job));
    PS_TRY(ps_mem_strdup(&c->where, c->o.where));
    PS_TRY(ps_mem_zalloc(&c->peers, (size_t)n, sizeof *c->peers, "coordinator"));
    PS_TRY(ps_coord_board_create(c->o.n_workers, answer, c, &c->board));
    PS_TRY(draw_nonce(&c->nonce));
    c->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->stop_fd < 0) return ps_err_errno(PS_ERR_IO, "eventfd");
    PS_TRY(open_sockets(c));
    PS_TRY(ps_thread_start(&c->thread, "coordinator", run, c));
    c->thread_started = true;
    return PS_OK;
}

ps_err ps_coordinator_create(const ps_coordinator_options *options, ps_coordinator **out)
{
    ps_coordinator *c;
    PS_TRY(ps_mem_zalloc(out, 1, sizeof *c, "coordinator"));
    c = *out;
    c->o = *options;
    c->stop_fd = -1;
    ps_err err = set_up(c);
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

static void stop_thread(ps_coordinator *c, const char *reason)
{
    const uint64_t one = 1;
    if (reason) c->last_reason = strdup(reason); // NULL is as good as none
    if (write(c->stop_fd, &one, sizeof one) == sizeof one) pthread_join(c->thread, NULL);
}

static void close_sockets(ps_coordinator *c)
{
    const int linger_ms = LINGER_MS;
    if (c->router) {
        zmq_socket_monitor(c->router, NULL, 0);
        zmq_setsockopt(c->router, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    }
    ps_zsock_close(&c->monitor);
    ps_zsock_close(&c->router);
    if (c->zmq_context) zmq_ctx_term(c->zmq_context);
}

void ps_coordinator_destroy(ps_coordinator **coordinator, const char *reason)
{
    ps_coordinator *c = *coordinator;
    if (!c) return;
    if (c->thread_started) stop_thread(c, reason);
    close_sockets(c);
    if (c->stop_fd >= 0) close(c->stop_fd);
    for (int i = 0; i < c->n_peers; i++)
        ps_roster_entry_fini(&c->peers[i].entry);
    ps_coord_board_destroy(&c->board);
    free(c->peers);
    free(c->job);
    free(c->where);
    free(c->last_reason);
    free(c);
    *coordinator = NULL;
}
