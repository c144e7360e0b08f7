#include "coordinator.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "board.h"
#include "log.h"
#include "mem.h"

enum {
    MESSAGES_PER_ROUND = 256,
    OFFENDERS = 64,
    LAST_WORDS_MS = 250,    // at the end: for an abort that is on its way
    LINGER_MS = 1000,       // at the end: for the news to be sent
    LOST_GRACE_MIN_MS = 300 // for a closed connection to be made again
};

typedef enum job_state { JOINING, RUNNING, ENDED, ABORTED } job_state;

typedef struct peer {
    ps_control_id id;
    ps_roster_entry entry;
    uint64_t heard_ns;
    uint64_t lost_ns; // its connection closed then; 0: it stands
    int fd;           // of its connection, here
    bool left;        // said LEAVE
    bool gone;        // nothing more will come
    bool leaving;     // waits for the answer to LEAVE
    uint64_t leave_request, leave_ms;
    ps_deadline leave_deadline;
} peer;

/* Where a message came from: any routing id, perhaps not one of ours. */
typedef struct sender {
    const void *id;
    size_t bytes;
    int fd;
    peer *member; // NULL: none of the job's members
} sender;

struct ps_coordinator {
    ps_coordinator_options o; // its strings are owned
    char *job, *where;
    char endpoint[PS_ENDPOINT_MAX];
    uint64_t nonce;
    uint32_t epoch;
    void *zmq_context, *router, *monitor;
    int stop_fd;
    pthread_t thread;
    bool thread_started;
    char *last_reason; // written before stop_fd, read by the thread after it

    // The rest belongs to the thread.
    job_state state;
    char reason[PS_CONTROL_TEXT_MAX];
    peer *peers; // room for all members
    int n_peers;
    ps_board *board;
    uint64_t next_beat_ns, last_round_ns;
    uint64_t offenders[OFFENDERS];
    uint64_t n_offences;
};

/* ---- answers ---- */

static void send_raw(ps_coordinator *c, const void *id, size_t id_bytes, ps_control *m)
{
    zmq_msg_t parts[2];
    if (m->kind != PS_CONTROL_REFUSE) m->nonce = c->nonce;
    if (ps_zsock_msg_copy(&parts[0], id, id_bytes) != PS_OK) return;
    if (ps_control_frame(&parts[1], m) != PS_OK) {
        PS_ERROR("answer", "kind=%s error=\"%s\"", ps_control_kind_name((int)m->kind),
                 ps_err_message());
        ps_zsock_close_parts(parts, 2);
        return;
    }
    // A peer that is not connected is noticed by its silence.
    const ps_deadline now = {0};
    if (ps_zsock_send(c->router, now, parts, 2) != PS_OK)
        PS_DEBUG("answer", "error=\"%s\"", ps_err_message());
}

static void send_to(ps_coordinator *c, const peer *p, ps_control *m)
{
    send_raw(c, p->id.bytes, sizeof p->id.bytes, m);
}

static void send_text(ps_coordinator *c, const peer *p, ps_control_kind kind,
                      const char *text)
{
    ps_control m = {.kind = kind};
    ps_control_set_text(&m, text);
    send_to(c, p, &m);
}

static void send_fail(ps_coordinator *c, const sender *to, uint64_t request, ps_err code)
{
    ps_control m = {.kind = PS_CONTROL_FAIL, .request = request};
    m.number[0] = (uint64_t)code;
    ps_control_set_text(&m, ps_err_message());
    send_raw(c, to->id, to->bytes, &m);
}

/* The board's answers. */
static void answer(void *owner, const ps_control_id *to, const ps_control *a)
{
    ps_control m = *a;
    send_raw(owner, to->bytes, sizeof to->bytes, &m);
}

/* Logs what a sender did wrong once per sender, counts it, and tells it. */
static void complain(ps_coordinator *c, const sender *from, uint64_t request, ps_err code)
{
    uint64_t number = 0;
    memcpy(&number, from->id, from->bytes < sizeof number ? from->bytes : sizeof number);
    bool known = false;
    for (int i = 0; i < OFFENDERS; i++)
        known |= c->offenders[i] == number;
    if (!known) {
        c->offenders[c->n_offences % OFFENDERS] = number;
        PS_WARN("bad_message", "peer=%016" PRIx64 " error=\"%s\"", number,
                ps_err_message());
    }
    c->n_offences++;
    send_fail(c, from, request, code);
}

/* ---- who ---- */

static void describe(const peer *p, char *out, size_t cap)
{
    snprintf(out, cap, "%s %d (host %s)", ps_role_name(p->entry.role), p->entry.rank,
             p->entry.host);
}

static peer *find_peer(const ps_coordinator *c, const void *id, size_t bytes)
{
    if (bytes != PS_CONTROL_ID_BYTES) return NULL;
    for (int i = 0; i < c->n_peers; i++)
        if (memcmp(c->peers[i].id.bytes, id, bytes) == 0) return &c->peers[i];
    return NULL;
}

static int role_size(const ps_coordinator *c, ps_role role)
{
    return role == PS_ROLE_SERVER ? c->o.n_servers : c->o.n_workers;
}

/* The member of this process: server 0, or worker 0 where there are no servers. */
static bool is_host(const ps_coordinator *c, const peer *p)
{
    return p->entry.rank == 0 &&
           p->entry.role == (c->o.n_servers > 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER);
}

/* present[r] for the ranks given so far; returns how many came without a rank. */
static int mark_ranks(const ps_coordinator *c, ps_role role, bool *present)
{
    int unranked = 0;
    memset(present, 0, PS_MAX_RANKS * sizeof *present);
    for (int i = 0; i < c->n_peers; i++) {
        const ps_roster_entry *e = &c->peers[i].entry;
        if (e->role != role) continue;
        if (e->rank < 0)
            unranked++;
        else
            present[e->rank] = true;
    }
    return unranked;
}

/* Appends "servers 1, 3 of 4", or "2 of 4 servers" where ranks are not known yet, to out
 * when some are missing. */
static void add_missing(const ps_coordinator *c, ps_role role, char *out, size_t cap)
{
    bool present[PS_MAX_RANKS];
    int n = role_size(c, role), missing = n - mark_ranks(c, role, present);
    int unranked = n - missing;
    for (int r = 0; r < n; r++)
        missing -= present[r];
    if (missing <= 0) return;
    size_t used = strlen(out);
    const char *comma = used ? ", " : "", *word = ps_role_name(role);
    if (unranked > 0) {
        snprintf(out + used, cap - used, "%s%d of %d %ss", comma, missing, n, word);
        return;
    }
    char ranks[256];
    ps_roster_missing_ranks(present, n, ranks, sizeof ranks);
    snprintf(out + used, cap - used, "%s%s%s %s of %d", comma, word,
             missing > 1 ? "s" : "", ranks, n);
}

static void missing_text(const ps_coordinator *c, char *out, size_t cap)
{
    out[0] = '\0';
    add_missing(c, PS_ROLE_SERVER, out, cap);
    add_missing(c, PS_ROLE_WORKER, out, cap);
}

/* ---- the end ---- */

static void abort_job(ps_coordinator *c, const char *reason)
{
    if (c->state == ABORTED || c->state == ENDED) return;
    c->state = ABORTED;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
    // The error itself is logged by every member that it ends, this host among them.
    PS_INFO("abort", "reason=\"%s\"", c->reason);
    for (int i = 0; i < c->n_peers; i++)
        send_text(c, &c->peers[i], PS_CONTROL_ABORT, c->reason);
}

static bool all_others_gone(const ps_coordinator *c, const peer *self)
{
    for (int i = 0; i < c->n_peers; i++)
        if (&c->peers[i] != self && !c->peers[i].gone) return false;
    return true;
}

/* Answers the members that may leave now: all once the workers are done, the host of this
 * thread when nobody needs it any more. */
static void answer_leavers(ps_coordinator *c)
{
    if (c->state != ENDED) return;
    for (int i = 0; i < c->n_peers; i++) {
        peer *p = &c->peers[i];
        if (!p->leaving || (is_host(c, p) && !all_others_gone(c, p))) continue;
        p->leaving = false;
        ps_control m = {.kind = PS_CONTROL_DONE, .request = p->leave_request};
        send_to(c, p, &m);
    }
}

static void set_gone(ps_coordinator *c, peer *p)
{
    p->gone = true;
    ps_board_forget(c->board, &p->id);
    answer_leavers(c);
}

static void check_end(ps_coordinator *c)
{
    if (c->state != RUNNING) return;
    for (int i = 0; i < c->n_peers; i++)
        if (c->peers[i].entry.role == PS_ROLE_WORKER && !c->peers[i].left) return;
    c->state = ENDED;
    PS_INFO("end", "workers=%d", c->o.n_workers);
    for (int i = 0; i < c->n_peers; i++) {
        ps_control m = {.kind = PS_CONTROL_END};
        if (!c->peers[i].gone) send_to(c, &c->peers[i], &m);
    }
}

static void on_leave(ps_coordinator *c, peer *p, const ps_control *m)
{
    p->leaving = true;
    p->leave_request = m->request;
    p->leave_ms = m->number[0];
    p->leave_deadline = ps_deadline_in_ms(m->number[0]);
    if (!p->left && p->entry.role == PS_ROLE_WORKER)
        ps_board_worker_left(c->board, p->entry.rank);
    p->left = true;
    check_end(c);
    answer_leavers(c);
}

static void leave_timeout(ps_coordinator *c, peer *p)
{
    char names[512] = "";
    size_t used = 0;
    for (int i = 0; i < c->n_peers && used < sizeof names - 1; i++) {
        const peer *q = &c->peers[i];
        bool awaited = c->state == ENDED ? !q->gone && q != p
                                         : !q->left && q->entry.role == PS_ROLE_WORKER;
        if (!awaited) continue;
        char name[128];
        describe(q, name, sizeof name);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name);
        used = strlen(names);
    }
    p->leaving = false;
    const sender to = {.id = p->id.bytes, .bytes = sizeof p->id.bytes};
    send_fail(c, &to, p->leave_request,
              ps_err_set(PS_ERR_TIMEOUT, "leaving: not ended within %.1f s: %s",
                         (double)p->leave_ms * 1e-3, names));
}

/* ---- joining ---- */

static ps_err check_hashes(const ps_coordinator *c, const ps_control *m)
{
    static const char *const what[] = {"configuration", "plan"};
    const uint64_t ours[] = {c->o.config_hash, c->o.plan_hash};
    for (int i = 0; i < 2; i++)
        if (m->number[i] != ours[i])
            return ps_err_set(PS_ERR_PEER,
                              "it has %s hash %016" PRIx64 ", the job's is %016" PRIx64
                              ": start all processes with the same file and --set",
                              what[i], m->number[i], ours[i]);
    return PS_OK;
}

static ps_err check_job(const ps_coordinator *c, const ps_control *m)
{
    if (strcmp(m->text, PS_VERSION) != 0)
        return ps_err_set(
            PS_ERR_PEER,
            "it is version %s, the job's is %s: install the same version on "
            "every host",
            m->text, PS_VERSION);
    if (m->nonce != 0 && m->nonce != c->nonce)
        return ps_err_set(PS_ERR_PEER, "it belongs to another job");
    if (strcmp(m->name, c->job) != 0)
        return ps_err_set(
            PS_ERR_PEER,
            "it belongs to job \"%s\", this is job \"%s\": give each job an "
            "address of its own",
            m->name, c->job);
    if (m->number[2] != (uint64_t)c->o.n_workers ||
        m->number[3] != (uint64_t)c->o.n_servers)
        return ps_err_set(PS_ERR_PEER,
                          "it expects %" PRIu64 " workers and %" PRIu64
                          " servers, the job has %d and %d",
                          m->number[2], m->number[3], c->o.n_workers, c->o.n_servers);
    return check_hashes(c, m);
}

static ps_err check_place(const ps_coordinator *c, const ps_roster_entry *e)
{
    const char *word = ps_role_name(e->role);
    int n = role_size(c, e->role), present = 0;
    if (e->rank >= n)
        return ps_err_set(PS_ERR_PEER, "its rank is not within 0 .. %d", n - 1);
    for (int i = 0; i < c->n_peers; i++) {
        const ps_roster_entry *o = &c->peers[i].entry;
        if (o->role != e->role) continue;
        present++;
        if (e->rank >= 0 && o->rank == e->rank)
            return ps_err_set(PS_ERR_PEER,
                              "its rank is taken by a %s on host %s: give each %s a rank "
                              "of its own, or none",
                              word, o->host, word);
    }
    if (present >= n)
        return ps_err_set(PS_ERR_PEER, "the job's %d %ss have joined already", n, word);
    return PS_OK;
}

static ps_err check_join(const ps_coordinator *c, const ps_control *m,
                         const ps_roster_entry *e)
{
    PS_TRY(check_job(c, m));
    if (c->state == ABORTED)
        return ps_err_set(PS_ERR_PEER, "the job was aborted: %s", c->reason);
    if (c->state != JOINING)
        return ps_err_set(PS_ERR_PEER, "the job is running and has all its members");
    return check_place(c, e);
}

/* Ranks for those that came without, in the order of arrival. */
static void give_ranks(ps_coordinator *c, ps_role role)
{
    bool present[PS_MAX_RANKS];
    mark_ranks(c, role, present);
    int next = 0;
    for (int i = 0; i < c->n_peers; i++) {
        ps_roster_entry *e = &c->peers[i].entry;
        if (e->role != role || e->rank >= 0) continue;
        while (present[next])
            next++;
        e->rank = next++;
    }
}

/* The roster's bytes; entries stay the peers'. */
static ps_err write_roster(const ps_coordinator *c, ps_mp_writer *w)
{
    ps_roster r;
    ps_err err = ps_roster_init(&r, c->o.n_servers, c->o.n_workers);
    if (err == PS_OK) {
        for (int i = 0; i < c->n_peers; i++) {
            const ps_roster_entry *e = &c->peers[i].entry;
            *(e->role == PS_ROLE_SERVER ? &r.servers[e->rank] : &r.workers[e->rank]) = *e;
        }
        ps_roster_write(w, &r);
        err = ps_mp_writer_end(w);
    }
    free(r.servers);
    free(r.workers);
    return err;
}

/* Tells p, or everybody when it is NULL, who they are and who the others are. */
static void welcome(ps_coordinator *c, const peer *only)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    if (write_roster(c, &w) == PS_OK) {
        for (int i = 0; i < c->n_peers; i++) {
            const peer *p = &c->peers[i];
            if (only && p != only) continue;
            ps_control m = {.kind = PS_CONTROL_WELCOME, .value = w.base, .bytes = w.used};
            m.number[0] = c->epoch;
            m.number[1] = (uint64_t)p->entry.rank;
            send_to(c, p, &m);
        }
    } else {
        abort_job(c, "the coordinator has no memory for the roster");
    }
    ps_mp_writer_fini(&w);
}

static void send_wait(ps_coordinator *c, const peer *p)
{
    char text[PS_CONTROL_TEXT_MAX];
    missing_text(c, text, sizeof text);
    send_text(c, p, PS_CONTROL_WAIT, text);
}

static void admit(ps_coordinator *c, const sender *from, const ps_roster_entry *e)
{
    peer *p = &c->peers[c->n_peers++];
    *p = (peer){.entry = *e, .heard_ns = ps_clock_ns(), .fd = from->fd};
    memcpy(p->id.bytes, from->id, sizeof p->id.bytes);
    PS_INFO("joined", "role=%s rank=%d host=%s members=%d/%d", ps_role_name(e->role),
            e->rank, e->host, c->n_peers, c->o.n_servers + c->o.n_workers);
    if (c->n_peers < c->o.n_servers + c->o.n_workers) {
        send_wait(c, p);
        return;
    }
    give_ranks(c, PS_ROLE_SERVER);
    give_ranks(c, PS_ROLE_WORKER);
    c->state = RUNNING;
    c->epoch = 1;
    welcome(c, NULL);
}

static void refuse(ps_coordinator *c, const sender *from, const ps_roster_entry *e)
{
    ps_control m = {.kind = PS_CONTROL_REFUSE};
    char rank[16] = "";
    if (e->rank >= 0) snprintf(rank, sizeof rank, " %d", e->rank);
    snprintf(m.text, sizeof m.text, "%s%s on host %s cannot join: %.600s",
             ps_role_name(e->role), rank, e->host, ps_err_message());
    PS_WARN("refused", "reason=\"%s\"", m.text);
    send_raw(c, from->id, from->bytes, &m);
}

static void on_join(ps_coordinator *c, const sender *from, const ps_control *m)
{
    if (from->member) {
        if (c->state == JOINING)
            send_wait(c, from->member);
        else if (c->state == ABORTED)
            send_text(c, from->member, PS_CONTROL_ABORT, c->reason);
        else
            welcome(c, from->member);
        return;
    }
    ps_roster_entry e;
    ps_mp_reader r;
    ps_mp_reader_init(&r, m->value, m->bytes);
    ps_err err = ps_roster_entry_read(&r, &e);
    if (err == PS_OK && (!ps_mp_reader_end(&r) || from->bytes != PS_CONTROL_ID_BYTES))
        err = ps_err_set(PS_ERR_PROTOCOL, "a malformed JOIN message");
    if (err != PS_OK) {
        complain(c, from, m->request, err);
    } else if (check_join(c, m, &e) != PS_OK) {
        refuse(c, from, &e);
    } else {
        admit(c, from, &e);
        return; // the entry is the peer's now
    }
    ps_roster_entry_fini(&e);
}

static void drop_peer(ps_coordinator *c, peer *p, const char *why)
{
    PS_WARN("unjoined", "role=%s rank=%d host=%s reason=\"%s\"",
            ps_role_name(p->entry.role), p->entry.rank, p->entry.host, why);
    ps_roster_entry_fini(&p->entry);
    *p = c->peers[--c->n_peers];
}

/* ---- messages ---- */

static void on_abort(ps_coordinator *c, const sender *from, const ps_control *m)
{
    char who[128] = "a member", reason[PS_CONTROL_TEXT_MAX];
    if (from->member) describe(from->member, who, sizeof who);
    snprintf(reason, sizeof reason, "%s: %.600s", who, m->text);
    abort_job(c, reason);
}

static void on_member_message(ps_coordinator *c, const sender *from, const ps_control *m)
{
    if (!from->member) {
        complain(c, from, m->request,
                 ps_err_set(PS_ERR_PROTOCOL, "a %s message of no member of this job",
                            ps_control_kind_name((int)m->kind)));
        return;
    }
    const ps_roster_entry *e = &from->member->entry;
    if (m->kind == PS_CONTROL_LEAVE)
        on_leave(c, from->member, m);
    else if (m->kind == PS_CONTROL_BYE)
        set_gone(c, from->member);
    else if (m->kind == PS_CONTROL_GATHER)
        ps_board_request(c->board, &from->member->id,
                         e->role == PS_ROLE_WORKER ? e->rank : -1, m);
}

static void on_request(ps_coordinator *c, const sender *from, const ps_control *m)
{
    if (from->bytes != PS_CONTROL_ID_BYTES) {
        complain(c, from, m->request,
                 ps_err_set(PS_ERR_PROTOCOL, "a routing id of %zu bytes", from->bytes));
        return;
    }
    ps_control_id id;
    memcpy(id.bytes, from->id, sizeof id.bytes);
    ps_board_request(c->board, &id, -1, m);
}

static void dispatch(ps_coordinator *c, const sender *from, const ps_control *m)
{
    if (m->kind == PS_CONTROL_JOIN) {
        on_join(c, from, m);
        return;
    }
    if (m->nonce != c->nonce) {
        complain(c, from, m->request,
                 ps_err_set(PS_ERR_PEER, "a message of another job (\"%s\" runs here)",
                            c->job));
        return;
    }
    if (c->state == ABORTED) {
        ps_control a = {.kind = PS_CONTROL_ABORT};
        ps_control_set_text(&a, c->reason);
        if (m->kind != PS_CONTROL_BYE && m->kind != PS_CONTROL_ABORT)
            send_raw(c, from->id, from->bytes, &a);
        return;
    }
    switch (m->kind) {
    case PS_CONTROL_ABORT:
        on_abort(c, from, m);
        break;
    case PS_CONTROL_HEARTBEAT:
    case PS_CONTROL_LEAVE:
    case PS_CONTROL_BYE:
    case PS_CONTROL_GATHER:
        on_member_message(c, from, m);
        break;
    case PS_CONTROL_PUT:
    case PS_CONTROL_GET:
    case PS_CONTROL_NORM:
        on_request(c, from, m);
        break;
    default:
        complain(c, from, m->request,
                 ps_err_set(PS_ERR_PROTOCOL, "%s is the coordinator's to send",
                            ps_control_kind_name((int)m->kind)));
    }
}

static void on_parts(ps_coordinator *c, zmq_msg_t *parts, int n)
{
    // The routing id is the socket's own frame: only what was received knows its
    // connection.
    sender from = {.id = zmq_msg_data(&parts[0]),
                   .bytes = zmq_msg_size(&parts[0]),
                   .fd = zmq_msg_get(&parts[n - 1], ZMQ_SRCFD)};
    from.member = find_peer(c, from.id, from.bytes);
    if (from.member) {
        from.member->heard_ns = ps_clock_ns();
        from.member->lost_ns = 0;
        from.member->fd = from.fd;
    }
    ps_control m;
    ps_err err = n == 2 ? ps_control_read(zmq_msg_data(&parts[1]),
                                          zmq_msg_size(&parts[1]), &m, NULL)
                        : ps_err_set(PS_ERR_PROTOCOL, "a message without a body");
    if (err != PS_OK)
        complain(c, &from, 0, err);
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
            if (c->n_offences++ == 0)
                PS_WARN("bad_message", "error=\"%s\"", ps_err_message());
            continue;
        }
        if (err != PS_OK || n == 0) return;
        on_parts(c, parts, n);
        ps_zsock_close_parts(parts, n);
    }
}

/* ---- who is alive ---- */

static void on_connections_closed(ps_coordinator *c)
{
    int fd;
    while ((fd = ps_zsock_monitor_read(c->monitor)) >= 0)
        for (int i = 0; i < c->n_peers; i++)
            if (c->peers[i].fd == fd && c->peers[i].lost_ns == 0)
                c->peers[i].lost_ns = ps_clock_ns();
}

/* Why the peer counts as dead, or NULL. */
static const char *death_of(const ps_coordinator *c, const peer *p, uint64_t now,
                            char *out, size_t cap)
{
    uint64_t grace_ms = 2 * c->o.heartbeat_ms;
    if (grace_ms < LOST_GRACE_MIN_MS) grace_ms = LOST_GRACE_MIN_MS;
    uint64_t silent_ms = now > p->heard_ns ? (now - p->heard_ns) / 1000000u : 0;
    if (p->lost_ns && now > p->lost_ns && now - p->lost_ns > grace_ms * 1000000u)
        snprintf(out, cap, "its connection closed and it did not say goodbye");
    else if (silent_ms > c->o.dead_after_ms)
        snprintf(out, cap, "no sign of life for %.1f s", (double)silent_ms * 1e-3);
    else
        return NULL;
    return out;
}

static void on_death(ps_coordinator *c, peer *p, const char *why)
{
    char who[128], reason[PS_CONTROL_TEXT_MAX];
    if (c->state == RUNNING && !p->left) {
        describe(p, who, sizeof who);
        snprintf(reason, sizeof reason, "%s is dead: %s", who, why);
        p->gone = true;
        abort_job(c, reason);
    } else if (c->state == JOINING) {
        drop_peer(c, p, why);
    } else {
        set_gone(c, p);
    }
}

static void check_alive(ps_coordinator *c)
{
    uint64_t now = ps_clock_ns();
    // After a pause of this process itself, silence proves nothing yet.
    bool paused = now - c->last_round_ns > c->o.dead_after_ms * 1000000u / 2;
    c->last_round_ns = now;
    for (int i = c->n_peers - 1; i >= 0; i--) {
        peer *p = &c->peers[i];
        char why[128];
        if (paused) p->heard_ns = now;
        if (!p->gone && death_of(c, p, now, why, sizeof why)) on_death(c, p, why);
    }
}

static void beat(ps_coordinator *c)
{
    uint64_t now = ps_clock_ns();
    if (now < c->next_beat_ns) return;
    c->next_beat_ns = now + c->o.heartbeat_ms * 1000000u;
    for (int i = 0; i < c->n_peers; i++) {
        const peer *p = &c->peers[i];
        ps_control m = {.kind = PS_CONTROL_HEARTBEAT};
        if (c->state == JOINING)
            send_wait(c, p);
        else if (!p->gone && c->state != ABORTED)
            send_to(c, p, &m);
    }
}

/* ---- the thread ---- */

static ps_deadline next_wakeup(const ps_coordinator *c)
{
    ps_deadline next = ps_board_next_deadline(c->board);
    if (c->next_beat_ns < next.at_ns) next.at_ns = c->next_beat_ns;
    uint64_t soon = ps_clock_ns() + 50 * 1000000u;
    for (int i = 0; i < c->n_peers; i++) {
        const peer *p = &c->peers[i];
        if (p->leaving && p->leave_deadline.at_ns < next.at_ns) next = p->leave_deadline;
        if (p->lost_ns && !p->gone && soon < next.at_ns) next.at_ns = soon;
    }
    return next;
}

static void expire(ps_coordinator *c)
{
    ps_board_expire(c->board);
    for (int i = 0; i < c->n_peers; i++)
        if (c->peers[i].leaving && ps_deadline_passed(c->peers[i].leave_deadline))
            leave_timeout(c, &c->peers[i]);
}

/* An abort that a member has sent just before may tell more than the end of this
 * process. */
static void end_unfinished_job(ps_coordinator *c)
{
    uint64_t count; // written after last_reason
    if (read(c->stop_fd, &count, sizeof count) < 0) PS_DEBUG("end", "no reason given");
    ps_deadline last_words = ps_deadline_in_ms(c->last_reason ? 0 : LAST_WORDS_MS);
    while (c->state < ENDED && !ps_deadline_passed(last_words)) {
        zmq_pollitem_t item = {.socket = c->router, .events = ZMQ_POLLIN};
        zmq_poll(&item, 1, ps_deadline_left_ms(last_words));
        receive(c);
    }
    abort_job(c, c->last_reason
                     ? c->last_reason
                     : "the coordinator's process ended before the job was over");
}

static void *run(void *arg)
{
    ps_coordinator *c = arg;
    c->last_round_ns = ps_clock_ns();
    for (;;) {
        zmq_pollitem_t items[] = {{.socket = c->router, .events = ZMQ_POLLIN},
                                  {.socket = c->monitor, .events = ZMQ_POLLIN},
                                  {.fd = c->stop_fd, .events = ZMQ_POLLIN}};
        int n = zmq_poll(items, 3, ps_deadline_left_ms(next_wakeup(c)));
        if (n < 0 && zmq_errno() != EINTR) break;
        if (items[2].revents) break;
        receive(c);
        on_connections_closed(c);
        expire(c);
        beat(c);
        check_alive(c);
    }
    if (c->state < ENDED) end_unfinished_job(c);
    return NULL;
}

/* ---- life ---- */

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
    PS_TRY(ps_board_create(c->o.n_workers, answer, c, &c->board));
    PS_TRY(draw_nonce(&c->nonce));
    c->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->stop_fd < 0) return ps_err_errno(PS_ERR_IO, "eventfd");
    PS_TRY(open_sockets(c));
    int code = pthread_create(&c->thread, NULL, run, c);
    if (code != 0)
        return ps_err_set(PS_ERR_NOMEM, "starting the coordinator: %s", strerror(code));
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
    ps_board_destroy(&c->board);
    free(c->peers);
    free(c->job);
    free(c->where);
    free(c->last_reason);
    free(c);
    *coordinator = NULL;
}
