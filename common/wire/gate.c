#include "gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "log.h"
#include "mem.h"
#include "zsock.h"

enum {
    TURN_MS = 20, // while a connection is unproven
    CROWD = 32,   // connections that are unproven, besides those of members
    /* What a server sends before it has taken a secret: the greeting of ZMTP 3
     * (rfc.zeromq.org/spec/23). The next is PLAIN's WELCOME. */
    GREETING_BYTES = 64,
    /* With keys it sends a WELCOME (rfc.zeromq.org/spec/26) before it knows the peer. */
    CURVE_WELCOME_BYTES = 2 + 168,
    /* sender and delimiter, then: version, request, domain, address, id, mechanism, and
     * name and password, or a public key */
    ZAP_REQUEST = 3,
    ZAP_DOMAIN = 4,
    ZAP_MECHANISM = 7,
    ZAP_KEY = 8,
    ZAP_PASSWORD = 9,
    ZAP_FRAMES_MAX = 10
};

/* A member's secret, and the public key that belongs to it: computing one takes as long
 * as a hundred comparisons. */
typedef struct known {
    ps_secret secret;
    ps_curve_key public;
} known;

typedef struct watched {
    void *monitor; // PAIR
    ps_gate_kind kind;
} watched;

/* A connection that was accepted and is not proven. libzmq owns its descriptor: the
 * peer's address tells whether the number belongs to another connection by now. */
typedef struct connection {
    int fd;
    const watched *socket;
    uint64_t since_ns;
    struct sockaddr_storage peer;
} connection;

struct ps_gate {
    ps_gate_options o;
    void *zap; // ROUTER
    bool open;
    watched *sockets;
    int n_sockets;
    connection *connections;
    uint32_t n_connections, room;
    uint64_t judged_ns; // when all connections were judged last
    known *members;     // n_known of them
    uint32_t n_known, known_room;
};

ps_err ps_gate_create(const ps_gate_options *options, ps_gate **out)
{
    PS_TRY(PS_NEW(out, 1, "a gate"));
    ps_gate *g = *out;
    g->o = *options;
    const ps_zsock_options o = {.type = ZMQ_ROUTER};
    char endpoint[PS_ENDPOINT_MAX];
    ps_err err = PS_NEW(&g->sockets, PS_GATE_SOCKETS_MAX, "a gate");
    if (err == PS_OK) err = ps_zsock_open(options->zmq_context, &o, &g->zap);
    if (err == PS_OK) err = ps_zsock_bind(g->zap, NULL, PS_ZSOCK_ZAP, endpoint);
    if (err != PS_OK) ps_gate_destroy(out);
    return err;
}

void ps_gate_destroy(ps_gate **gate)
{
    ps_gate *g = *gate;
    if (!g) return;
    for (int i = 0; g->sockets && i < g->n_sockets; i++)
        ps_zsock_close(&g->sockets[i].monitor);
    ps_zsock_close(&g->zap);
    free(g->sockets);
    free(g->connections);
    free(g->members);
    free(g);
    *gate = NULL;
}

ps_err ps_gate_watch(ps_gate *g, void *router, ps_gate_kind kind)
{
    if (g->n_sockets == PS_GATE_SOCKETS_MAX)
        return ps_err_set(PS_ERR_ARG, "more than %d sockets at a gate",
                          PS_GATE_SOCKETS_MAX);
    watched *w = &g->sockets[g->n_sockets];
    PS_TRY(ps_zsock_monitor(g->o.zmq_context, router, "gate", &w->monitor));
    w->kind = kind;
    g->n_sockets++;
    return PS_OK;
}

void ps_gate_unwatch(void *router)
{
    if (router) zmq_socket_monitor(router, NULL, 0);
}

void ps_gate_open(ps_gate *g)
{
    g->open = true;
}

/* ---- connections ---- */

/* The events of one socket are in order; those of several are not. A descriptor may be
 * reported for a new connection at one socket before it is reported as closed at another.
 */
static connection *gate_find(ps_gate *g, const watched *w, int fd)
{
    for (uint32_t i = 0; i < g->n_connections; i++)
        if (g->connections[i].fd == fd && g->connections[i].socket == w)
            return &g->connections[i];
    return NULL;
}

static void gate_add(ps_gate *g, const watched *w, int fd)
{
    if (ps_mem_room(&g->connections, g->n_connections, &g->room, sizeof *g->connections,
                    "a gate") != PS_OK)
        return; // then it is not watched
    connection *c = &g->connections[g->n_connections];
    *c = (connection){.fd = fd, .socket = w, .since_ns = ps_clock_awake_ns()};
    socklen_t n = sizeof c->peer;
    if (getpeername(fd, (struct sockaddr *)&c->peer, &n) == 0) g->n_connections++;
}

static void gate_forget(ps_gate *g, connection *c)
{
    *c = g->connections[--g->n_connections];
}

static void on_event(ps_gate *g, const watched *w, ps_zsock_event event, int fd)
{
    if (event == PS_ZSOCK_LISTENING) ps_zsock_accept_with_data(fd);
    if (event == PS_ZSOCK_LISTENING || event == PS_ZSOCK_CONNECTED)
        return; // CONNECTED does not tell which connection
    connection *c = gate_find(g, w, fd);
    if (c) gate_forget(g, c);
    if (event == PS_ZSOCK_ACCEPTED)
        gate_add(g, w, fd);
    else if (g->o.closed && w->kind == PS_GATE_MEMBERS)
        g->o.closed(g->o.owner, fd);
}

static void take_events(ps_gate *g)
{
    for (int i = 0; i < g->n_sockets; i++) {
        ps_zsock_event event;
        int fd;
        while ((event = ps_zsock_monitor_read(g->sockets[i].monitor, &fd)) !=
               PS_ZSOCK_NOTHING)
            on_event(g, &g->sockets[i], event, fd);
    }
}

static bool same_peer(const connection *c)
{
    struct sockaddr_storage now = {0};
    socklen_t n = sizeof now;
    return getpeername(c->fd, (struct sockaddr *)&now, &n) == 0 &&
           memcmp(&now, &c->peer, n) == 0;
}

static bool has_keys(const ps_gate *g)
{
    return g->o.curve && g->o.curve->on;
}

typedef enum verdict { KEEP, PROVEN, TOO_MUCH, TOO_LONG } verdict;

/* Reads the kernel's counts of a connection. Where the kernel does not count, the
 * connection is not limited by bytes. */
static verdict gate_judge(const ps_gate *g, const connection *c, uint64_t now)
{
    const uint64_t most_ns = g->o.patience_ms * 1000000u;
    const uint64_t unasked = GREETING_BYTES + (has_keys(g) ? CURVE_WELCOME_BYTES : 0);
    ps_zsock_counts t;
    if (!ps_zsock_count(c->fd, &t)) return PROVEN;
    if (c->socket->kind == PS_GATE_MEMBERS && t.sent > unasked) return PROVEN;
    uint64_t most =
        c->socket->kind == PS_GATE_DOOR ? PS_GATE_DOOR_BYTES : PS_GATE_MEMBER_BYTES;
    if (t.received > most) return TOO_MUCH;
    return now > c->since_ns && now - c->since_ns > most_ns ? TOO_LONG : KEEP;
}

/* libzmq has no stable call to close a connection (zmq_disconnect_peer is a draft). After
 * the shutdown it reads the end of the stream and closes the connection itself. */
static void gate_drop(ps_gate *g, connection *c, const char *why)
{
    if (same_peer(c)) {
        shutdown(c->fd, SHUT_RDWR);
        PS_WARN_FEW("stranger", "reason=\"a connection %s\"", why);
    }
    gate_forget(g, c);
}

static void judge_one(ps_gate *g, connection *c, uint64_t now)
{
    switch (gate_judge(g, c, now)) {
    case KEEP:
        break;
    case PROVEN:
        gate_forget(g, c);
        break;
    case TOO_MUCH:
        gate_drop(g, c, "that sent too much without proof of membership");
        break;
    case TOO_LONG:
        gate_drop(g, c, "without proof of membership for too long");
        break;
    }
}

/* Takes the oldest connection off the list: dropped, unless it is proven. */
static void drop_oldest(ps_gate *g, uint64_t now)
{
    connection *oldest = g->connections;
    for (uint32_t i = 1; i < g->n_connections; i++)
        if (g->connections[i].since_ns < oldest->since_ns) oldest = &g->connections[i];
    uint32_t before = g->n_connections;
    judge_one(g, oldest, now);
    if (g->n_connections == before)
        gate_drop(g, oldest, "too many, without proof of membership");
}

/* Asking the kernel about each connection takes longer than anything else here. Somebody
 * who connects a thousand times a second must not make that a thousand times as many
 * questions, so all are judged together, every TURN_MS. */
static void judge_all(ps_gate *g)
{
    uint64_t now = ps_clock_awake_ns();
    while (g->n_connections > (uint32_t)(PS_GATE_STRANGERS + g->o.n_members))
        drop_oldest(g, now);
    if (now - g->judged_ns < TURN_MS * UINT64_C(1000000)) return;
    g->judged_ns = now;
    for (uint32_t i = g->n_connections; i-- > 0;)
        judge_one(g, &g->connections[i], now);
}

/* ---- secrets ---- */

/* All are compared, so that the time tells nothing. */
static bool is_password(const ps_gate *g, zmq_msg_t *password)
{
    bool is = false;
    const ps_secret *secret;
    for (int i = 0; (secret = g->o.secret_of(g->o.owner, i)); i++)
        is |= ps_secret_is(secret, zmq_msg_data(password), zmq_msg_size(password));
    return is;
}

/* The public key of the i-th member, or NULL. Members come, go and change places. */
static const ps_curve_key *public_of(ps_gate *g, uint32_t i, const ps_secret *secret)
{
    // Without memory, for this one or one before it, the peer has to try again.
    if (i > g->n_known) return NULL;
    if (i == g->n_known) {
        if (ps_mem_room(&g->members, i, &g->known_room, sizeof *g->members, "a gate") !=
            PS_OK)
            return NULL;
        g->n_known++;
    }
    known *k = &g->members[i];
    if (ps_secret_is(&k->secret, secret->bytes, sizeof secret->bytes)) return &k->public;
    ps_curve_key key;
    memcpy(key.bytes, secret->bytes, sizeof key.bytes);
    if (ps_curve_public(&key, &k->public) != PS_OK) return NULL;
    k->secret = *secret;
    return &k->public;
}

static bool is_members_key(ps_gate *g, zmq_msg_t *key)
{
    const ps_secret *secret;
    if (zmq_msg_size(key) != PS_CURVE_KEY_BYTES) return false;
    for (int i = 0; (secret = g->o.secret_of(g->o.owner, i)); i++) {
        const ps_curve_key *public = public_of(g, (uint32_t)i, secret);
        if (public && memcmp(public->bytes, zmq_msg_data(key), PS_CURVE_KEY_BYTES) == 0)
            return true;
    }
    return false;
}

static bool frame_is(zmq_msg_t *frame, const char *word)
{
    return zmq_msg_size(frame) == strlen(word) &&
           memcmp(zmq_msg_data(frame), word, strlen(word)) == 0;
}

/* Whether the peer may come in; *user is what the socket's owner is told about it. */
static bool lets_in(ps_gate *g, zmq_msg_t *parts, int n, const char **user)
{
    zmq_msg_t *key = &parts[ZAP_KEY];
    ps_role role;
    *user = "";
    if (!has_keys(g))
        return n == ZAP_PASSWORD + 1 && frame_is(&parts[ZAP_MECHANISM], "PLAIN") &&
               is_password(g, &parts[ZAP_PASSWORD]);
    if (n != ZAP_KEY + 1 || !frame_is(&parts[ZAP_MECHANISM], "CURVE")) return false;
    if (frame_is(&parts[ZAP_DOMAIN], PS_ZSOCK_MEMBERS)) return is_members_key(g, key);
    if (!frame_is(&parts[ZAP_DOMAIN], PS_ZSOCK_DOOR) ||
        !ps_curve_find_role(g->o.curve, zmq_msg_data(key), zmq_msg_size(key), &role))
        return false;
    *user = ps_role_name(role);
    return true;
}

/* 300 is ZAP's code for "try again": the connection ends without an answer, and the peer
 * may try again. So a member of a job that starts later on this address is not kept out
 * for good. */
static void gate_answer(ps_gate *g, zmq_msg_t *request, bool yes, const char *user)
{
    enum { SENDER, DELIMITER, VERSION, REQUEST, STATUS, TEXT, USER, METADATA, N };
    zmq_msg_t parts[N];
    zmq_msg_t *const echoed[N] = {
        [SENDER] = &request[0], [REQUEST] = &request[ZAP_REQUEST]};
    const char *const words[N] = {
        [DELIMITER] = "", [VERSION] = "1.0", [STATUS] = yes ? "200" : "300",
        [TEXT] = "",      [USER] = user,     [METADATA] = ""};
    ps_err err = PS_OK;
    for (int i = 0; i < N; i++) {
        const void *from = echoed[i] ? zmq_msg_data(echoed[i]) : words[i];
        size_t n = echoed[i] ? zmq_msg_size(echoed[i]) : strlen(words[i]);
        ps_err one = ps_zsock_msg_copy(&parts[i], from, n);
        if (one != PS_OK) err = one;
    }
    const ps_deadline now = {0};
    if (err == PS_OK)
        err = ps_zsock_send(g->zap, now, parts, N);
    else
        ps_zsock_close_parts(parts, N);
    if (err != PS_OK) PS_DEBUG("gate", "error=\"%s\"", ps_err_message()); // it is gone
}

static void answer_requests(ps_gate *g)
{
    const ps_deadline now = {0};
    for (;;) {
        zmq_msg_t parts[ZAP_FRAMES_MAX];
        const char *user;
        int n;
        ps_err err = ps_zsock_recv(g->zap, now, parts, ZAP_FRAMES_MAX, &n);
        if (err == PS_ERR_PROTOCOL) continue; // not of our mechanism
        if (err != PS_OK || n == 0) return;
        if (n > ZAP_KEY) {
            bool yes = lets_in(g, parts, n, &user);
            gate_answer(g, parts, yes, user);
        }
        ps_zsock_close_parts(parts, n);
    }
}

bool ps_gate_role(zmq_msg_t *received, ps_role *out)
{
    const char *user = zmq_msg_gets(received, "User-Id");
    for (int r = 0; user && r < PS_ROLE_COUNT; r++) {
        *out = (ps_role)r;
        if (strcmp(user, ps_role_name((ps_role)r)) == 0) return true;
    }
    return false;
}

/* ---- the owner's loop ---- */

int ps_gate_n_items(const ps_gate *g)
{
    return g->n_sockets + 1;
}

/* In a crowd, connections that come and go wake nobody: a turn takes what has come since
 * the one before. */
void ps_gate_items(const ps_gate *g, zmq_pollitem_t *items)
{
    const bool crowded = g->n_connections > (uint32_t)(CROWD + g->o.n_members);
    for (int i = 0; i < g->n_sockets; i++)
        items[i] = (zmq_pollitem_t){.socket = g->sockets[i].monitor,
                                    .events = crowded ? 0 : ZMQ_POLLIN};
    items[g->n_sockets] =
        (zmq_pollitem_t){.socket = g->zap, .events = g->open ? ZMQ_POLLIN : 0};
}

int ps_gate_poll_ms(const ps_gate *g)
{
    return g->n_connections > 0 ? TURN_MS : -1;
}

void ps_gate_turn(ps_gate *g)
{
    take_events(g);
    if (g->open) answer_requests(g);
    if (g->n_connections > 0) judge_all(g);
}
