/* libzmq in the world: what it promises, and no more.
 *
 * Messages of a connection arrive in order. A connection that is lost loses what was on
 * its way from some message on, either way; what is left arrives before the messages of
 * the connection that follows. A DEALER keeps what it has not sent, and connects again; a
 * ROUTER forgets a peer with its connection. A payload without a copy is read when it
 * arrives. The gate is asked about each connection, as libzmq asks it (ZAP); with keys,
 * after both ends have proven theirs (curve_stand_in.h).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "curve_stand_in.h"
#include "world_messages.h"
#include "zsock.h"

enum {
    FRAMES = WORLD_FRAMES,
    SOCKETS = 1 << 18,     // ever
    CONNECTIONS = 1 << 18, // ever
    PLACES = 16384,        // of `named`
    ID_BYTES = WORLD_ID,
    FDS = 1 << 20,         // numbers of connections begin at WORLD_FD + FDS
    MONITOR_FDS = 1 << 21, // and of monitors here
    PORTS_FROM = 40000,
    PORTS = 64, // of a host
    SOON_NS = 20000000,
    LATEST_NS = 500000000, // after a lost connection
    LEAST_US = 20,
    MOST_US = 400
};

/* ---- sockets and connections ---- */

typedef struct context {
    struct socket *zap;
} context;

typedef struct socket {
    context *context;
    world_process *process;
    int index, type;
    bool closed;
    char endpoint[PS_ENDPOINT_MAX]; // bound to, or connected to
    bool bound, asks;               // for a secret, or for keys
    uint8_t id[ID_BYTES];
    size_t id_bytes;
    uint8_t secret[ID_BYTES]; // or, with keys, its secret key
    size_t secret_bytes;
    bool has_keys;
    uint8_t public[STAND_IN_KEY_BYTES];    // its own, as it says
    uint8_t of_server[STAND_IN_KEY_BYTES]; // that a DEALER connects to
    char domain[WORLD_NAME];               // of a ROUTER with keys
    world_queue in;
    world_message *reading, *writing; // in part
    int at;
    struct socket *monitor; // PAIR that hears of connections
    char monitored[PS_ENDPOINT_MAX];
    struct connection *out; // of a DEALER: the present one, or NULL
    world_queue unsent;     // of a DEALER
    uint64_t tries;         // to connect
    struct connection *to;  // of a ROUTER: where the message that is written goes
    struct connection *first, *last; // of its connections, in the order of their numbers
    uint32_t zap_number;
    uint64_t next_ns; // when it may be read again: of a slow reader's
} socket_t;

typedef enum state { PROVING, UP, DOWN } state;

typedef struct way { // one direction
    world_queue messages;
    uint64_t last_ns;   // when its last message arrives
    uint64_t lost_from; // number of the first message that is lost
    uint64_t n_sent, n_arrived;
} way;

typedef struct connection {
    int index;
    state state;
    socket_t *dealer, *router;
    bool dealer_knows, router_knows; // that it is down
    way up, down;                    // to the router, to the dealer
    uint8_t id[ID_BYTES];
    size_t id_bytes;
    char user[WORLD_NAME];         // what the gate says of the dealer
    struct connection *next_of[2]; // of the dealer, of the router
    struct connection *next;       // that begins with the same place of `named`
} connection;

/* For whoever polls the socket. */
static void socket_put(socket_t *s, world_message *m)
{
    world_queue_put(&s->in, m);
    world_touch(s->process);
}

static socket_t *sockets[SOCKETS];
static socket_t *open_sockets[SOCKETS]; // and some that are closed
static int n_open;
static connection *living[CONNECTIONS]; // and some that are down
static int n_living;
static connection *connections[CONNECTIONS];
static int n_sockets, n_connections;
static connection *named[PLACES]; // by router and id
static struct {
    uint64_t until_ns;
} parted[WORLD_PROCESSES][WORLD_PROCESSES];

static int fd_of(const connection *c, bool of_router)
{
    return WORLD_FD + FDS + 2 * c->index + of_router;
}

/* A routing id that libzmq makes up. */
static size_t made_up_id(const connection *c, uint8_t out[ID_BYTES])
{
    out[0] = 0;
    const uint32_t n = (uint32_t)c->index + 1;
    memcpy(out + 1, &n, sizeof n);
    return 5;
}

static uint64_t latency_ns(void)
{
    const uint64_t us = LEAST_US + world_draw(MOST_US - LEAST_US);
    if (world_measures()) return us * 1000;
    if (world_draw(2000) == 0) return us * 5000000; // sent again and again: up to 2 s
    return world_draw(50) == 0 ? us * 20000 : us * 1000; // a packet that came late
}

/* Who loses a connection has to know, and to be heard again, within the coordinator's
 * grace. */
static uint64_t soon_after(uint64_t now)
{
    const uint64_t ns = latency_ns();
    return now + (ns < LATEST_NS ? ns : LATEST_NS);
}

const char *zmq_msg_gets(const zmq_msg_t *msg, const char *property)
{
    const int i = (world_frame_of(msg)->fd - WORLD_FD - FDS) / 2;
    const bool is_known = strcmp(property, "User-Id") == 0 && i >= 0 && i < n_connections;
    return is_known && connections[i]->user[0] ? connections[i]->user : NULL;
}

static uint64_t parted_until(const connection *c)
{
    const int a = c->dealer->process->host, b = c->router->process->host;
    return parted[a < b ? a : b][a < b ? b : a].until_ns;
}

/* ---- monitors ---- */

static void tell_monitor(socket_t *s, uint16_t event, int fd)
{
    socket_t *m = s->monitor;
    if (!m || m->closed || s->process->dead) return;
    uint8_t bytes[6];
    const uint32_t value = (uint32_t)fd;
    memcpy(bytes, &event, sizeof event);
    memcpy(bytes + 2, &value, sizeof value);
    world_message *news = world_message_new();
    world_message_add(news, world_body_new(bytes, sizeof bytes));
    world_message_add(news, world_body_new(s->endpoint, strlen(s->endpoint)));
    socket_put(m, news);
}

int zmq_socket_monitor(void *socket, const char *address, int events)
{
    (void)events;
    socket_t *s = socket;
    if (!address) s->monitor = NULL;
    snprintf(s->monitored, sizeof s->monitored, "%s", address ? address : "");
    return 0;
}

/* ---- what travels ---- */

static socket_t *receiver(const connection *c, bool is_up)
{
    return is_up ? c->router : c->dealer;
}

/* Now it leaves the sender's memory. */
static void own_bodies(world_message *m)
{
    for (int i = 0; i < m->n; i++) {
        world_body *b = m->frames[i].body;
        if (!b->borrowed) continue;
        m->frames[i].body = world_body_new(b->borrowed, b->bytes);
        world_body_release(b);
    }
}

void (*world_overheard)(const world_heard *);

static void let_hear(const connection *c, const world_message *m)
{
    world_heard h = {.sender = c->dealer,
                     .receiver = c->router,
                     .id_bytes = c->id_bytes,
                     .secret_bytes = c->dealer->secret_bytes,
                     .n = m->n};
    memcpy(h.id, c->id, c->id_bytes);
    memcpy(h.secret, c->dealer->secret, h.secret_bytes);
    for (int i = 0; i < m->n; i++) {
        h.frames[i].bytes = m->frames[i].body->data;
        h.frames[i].n = m->frames[i].body->bytes;
    }
    world_overheard(&h);
}

bool world_is_closed(const void *socket)
{
    const socket_t *s = socket;
    return s->closed || s->process->dead;
}

static void arrive(void *arg, uint64_t is_up)
{
    connection *c = arg;
    way *w = is_up ? &c->up : &c->down;
    world_message *m = world_queue_take(&w->messages);
    if (!m) return;
    socket_t *to = receiver(c, is_up);
    if (w->n_arrived++ >= w->lost_from || to->closed || to->process->dead) {
        world_message_drop(m);
        return;
    }
    own_bodies(m);
    if (is_up && world_overheard) let_hear(c, m);
    for (int i = 0; i < m->n; i++)
        m->frames[i].fd = fd_of(c, is_up);
    if (world_traces())
        world_say("arrives %s%s %s: %d frames, %zu bytes", is_up ? "at " : "from ",
                  c->router->process->name, c->dealer->process->name, m->n,
                  m->frames[m->n - 1].body->bytes);
    socket_put(to, m);
}

static void travel(connection *c, bool is_up, world_message *m)
{
    way *w = is_up ? &c->up : &c->down;
    const bool is_first = c == c->dealer->first;
    uint64_t at = is_first ? world_now() + latency_ns() : soon_after(world_now());
    if (at < parted_until(c)) at = parted_until(c) + latency_ns();
    if (at < w->last_ns) at = w->last_ns;
    w->last_ns = at;
    w->n_sent++;
    world_queue_put(&w->messages, m);
    world_at(at, arrive, c, is_up);
}

/* ---- connections begin ---- */

static connection **place_of(const socket_t *router, const void *id, size_t bytes)
{
    size_t hash = (size_t)router->index;
    for (size_t i = 0; i < bytes; i++)
        hash = hash * 31 + ((const uint8_t *)id)[i];
    return &named[hash * 2654435761u % PLACES];
}

static void add_to(socket_t *s, connection *c)
{
    connection **last = s->last ? &s->last->next_of[s->last->router == s] : &s->first;
    *last = s->last = c;
}

static bool is_of(const connection *c, const socket_t *router, const void *id,
                  size_t bytes)
{
    return c->router == router && c->id_bytes == bytes && memcmp(c->id, id, bytes) == 0;
}

static connection *connection_to(const socket_t *router, const void *id, size_t bytes)
{
    for (connection *c = *place_of(router, id, bytes); c; c = c->next)
        if (c->state == UP && is_of(c, router, id, bytes)) return c;
    return NULL;
}

static void try_to_connect(void *arg, uint64_t number);

static void connect_later(socket_t *s)
{
    uint64_t ms = 20u << (s->tries < 6 ? s->tries : 6);
    s->tries++;
    world_at(world_now() + (ms < 250 ? ms : 250) * 1000000u, try_to_connect, s, 0);
}

static void connection_up(void *arg, uint64_t number)
{
    (void)number;
    connection *c = arg;
    if (c->state != PROVING || c->dealer->closed || c->router->closed) return;
    // A connection with the same routing id takes the place of the one before.
    for (connection *other = *place_of(c->router, c->id, c->id_bytes); other;
         other = other->next) {
        if (other == c || !is_of(other, c->router, c->id, c->id_bytes)) continue;
        if (other->up.lost_from > other->up.n_arrived)
            other->up.lost_from = other->up.n_arrived; // what still travels is lost
        if (other->state == UP) {
            other->state = DOWN;
            other->router_knows = true;
            tell_monitor(other->router, ZMQ_EVENT_DISCONNECTED, fd_of(other, true));
        }
    }
    c->state = UP;
    c->dealer->tries = 0;
    world_say("connected %s to %s", c->dealer->process->name, c->router->process->name);
    tell_monitor(c->router, ZMQ_EVENT_HANDSHAKE_SUCCEEDED, 0);
    tell_monitor(c->dealer, ZMQ_EVENT_HANDSHAKE_SUCCEEDED, 0);
    world_message *m;
    while ((m = world_queue_take(&c->dealer->unsent)))
        travel(c, true, m);
}

/* Asks the gate, as RFC 27 has it. */
static void ask_gate(connection *c)
{
    const socket_t *d = c->dealer;
    socket_t *zap = c->router->context->zap;
    if (!zap) return; // nobody answers
    const char *const words[] = {
        "sender",          "",        "1.0", NULL,
        c->router->domain, "address", "",    d->has_keys ? "CURVE" : "PLAIN",
        "member"};
    world_message *m = world_message_new();
    for (size_t i = 0; i < sizeof words / sizeof *words - d->has_keys; i++)
        world_message_add(m, words[i] ? world_body_new(words[i], strlen(words[i]))
                                      : world_body_new(&c->index, sizeof c->index));
    world_message_add(m, d->has_keys ? world_body_new(d->public, sizeof d->public)
                                     : world_body_new(d->secret, d->secret_bytes));
    socket_put(zap, m);
}

static void connection_refused(void *arg, uint64_t number)
{
    (void)number;
    connection *c = arg;
    if (c->state != PROVING) return;
    c->state = DOWN;
    world_say("refused %s at %s%s", c->dealer->process->name, c->router->process->name,
              c->router->has_keys ? ", which has keys" : "");
    tell_monitor(c->router, ZMQ_EVENT_DISCONNECTED, fd_of(c, true));
    if (c->dealer->out == c) c->dealer->out = NULL;
    if (!c->dealer->closed) connect_later(c->dealer);
}

static bool is_public_of(const uint8_t key[STAND_IN_KEY_BYTES], const socket_t *s)
{
    uint8_t its[STAND_IN_KEY_BYTES];
    curve_stand_in_public(s->secret, its);
    return memcmp(key, its, sizeof its) == 0;
}

/* Both ends speak of keys or neither does. The ROUTER has the secret key of which the
 * DEALER knows the public one, and the DEALER that of the one that it shows. */
static bool is_proven(const socket_t *dealer, const socket_t *router)
{
    if (dealer->has_keys != router->has_keys) return false;
    return !router->has_keys || (is_public_of(dealer->of_server, router) &&
                                 is_public_of(dealer->public, dealer));
}

static void take_gates_answer(const world_message *m)
{
    int index;
    memcpy(&index, m->frames[3].body->data, sizeof index);
    connection *c = connections[index];
    if (c->state != PROVING) return;
    const world_body *status = m->frames[4].body;
    const world_body *user = m->frames[6].body;
    snprintf(c->user, sizeof c->user, "%.*s", (int)user->bytes, (const char *)user->data);
    if (status->bytes == 3 && memcmp(status->data, "200", 3) == 0)
        connection_up(c, 0);
    else
        connection_refused(c, 0);
}

static socket_t *listener(const char *endpoint)
{
    socket_t *found = NULL;
    int n = 0;
    for (int i = 0; i < n_open; i++) {
        socket_t *s = open_sockets[i];
        if (world_is_closed(s)) continue;
        open_sockets[n++] = s;
        if (s->bound && strcmp(s->endpoint, endpoint) == 0) found = s;
    }
    n_open = n;
    return found;
}

bool world_listens(const char *endpoint)
{
    return listener(endpoint) != NULL;
}

const char *world_listener(uint64_t number, bool *for_members)
{
    for (int tries = 0; tries < n_sockets; tries++) {
        const socket_t *s = sockets[(number + (uint64_t)tries) % (uint64_t)n_sockets];
        if (!s->bound || world_is_closed(s)) continue;
        *for_members = s->asks;
        return s->endpoint;
    }
    return NULL;
}

bool world_key_of(const char *endpoint, uint8_t out[WORLD_KEY], bool *is_door)
{
    const socket_t *s = listener(endpoint);
    if (!s || !s->has_keys) return false;
    curve_stand_in_public(s->secret, out);
    *is_door = strcmp(s->domain, PS_ZSOCK_DOOR) == 0;
    return true;
}

bool world_is_let_in(const void *socket, bool has_role)
{
    const socket_t *s = socket;
    if (!s->out || s->out->state != UP || !s->out->router->asks) return false;
    return !has_role || strcmp(s->out->router->domain, PS_ZSOCK_DOOR) != 0;
}

bool world_has_renewed(const char *endpoint, const world_heard *heard)
{
    const socket_t *was = heard->sender, *at = listener(endpoint);
    for (const connection *c = at ? at->first : NULL; c; c = c->next_of[1])
        if (c->state == UP && c->dealer->index > was->index &&
            strcmp(c->dealer->process->name, was->process->name) == 0 &&
            (c->dealer->secret_bytes != heard->secret_bytes ||
             memcmp(c->dealer->secret, heard->secret, heard->secret_bytes) != 0))
            return true;
    return false;
}

static void try_to_connect(void *arg, uint64_t number)
{
    (void)number;
    socket_t *s = arg, *to = listener(s->endpoint);
    if (s->closed || s->process->dead || s->out) return;
    if (!to || n_connections == CONNECTIONS) {
        connect_later(s);
        return;
    }
    connection *c = calloc(1, sizeof *c);
    if (!c) world_wrong("no memory for a connection");
    *c = (connection){.index = n_connections, .dealer = s, .router = to};
    if (world_now() < parted_until(c)) {
        free(c);
        connect_later(s);
        return;
    }
    connections[n_connections++] = living[n_living++] = c;
    world_queue_init(&c->up.messages);
    world_queue_init(&c->down.messages);
    c->up.lost_from = c->down.lost_from = UINT64_MAX;
    c->id_bytes = s->id_bytes;
    memcpy(c->id, s->id, s->id_bytes);
    if (s->id_bytes == 0) c->id_bytes = made_up_id(c, c->id);
    connection **place = place_of(to, c->id, c->id_bytes);
    c->next = *place;
    *place = c;
    add_to(s, c);
    add_to(to, c);
    s->out = c;
    tell_monitor(to, ZMQ_EVENT_ACCEPTED, fd_of(c, true));
    if (!is_proven(s, to))
        world_at(world_now() + latency_ns(), connection_refused, c, 0);
    else if (to->asks)
        ask_gate(c);
    else
        world_at(world_now() + latency_ns(), connection_up, c, 0);
}

/* ---- connections end ---- */

/* One end hears of it; the dealer connects again. */
static void hear_of_end(void *arg, uint64_t is_router)
{
    connection *c = arg;
    bool *knows = is_router ? &c->router_knows : &c->dealer_knows;
    socket_t *s = is_router ? c->router : c->dealer;
    if (*knows) return;
    *knows = true;
    if (s->closed || s->process->dead) return;
    tell_monitor(s, ZMQ_EVENT_DISCONNECTED, fd_of(c, is_router));
    if (is_router) return;
    if (s->out == c) s->out = NULL;
    connect_later(s);
}

/* From now on nothing is sent over it. lossy: a tail of what travels is lost. */
static void end_connection(connection *c, bool lossy)
{
    if (c->state == DOWN) return;
    const bool was_up = c->state == UP;
    c->state = DOWN;
    c->dealer->process->was_cut |= lossy;
    for (int i = 0; i < 2; i++) {
        way *w = i ? &c->up : &c->down;
        const uint64_t travels = w->n_sent - w->n_arrived;
        if (lossy) w->lost_from = w->n_arrived + world_draw(travels + 1);
        uint64_t at = soon_after(world_now());
        if (lossy && w->last_ns > at + SOON_NS) // it is not sent again any more
            w->lost_from = w->n_arrived;
        else if (at < w->last_ns)
            at = w->last_ns; // what is left arrives before
        world_at(was_up ? at : world_now(), hear_of_end, c, (uint64_t)i);
    }
}

static void forget_down(void)
{
    int n = 0;
    for (int i = 0; i < n_living; i++)
        if (living[i]->state != DOWN) living[n++] = living[i];
    n_living = n;
}

int world_cut(const world_process *a, const world_process *b)
{
    int n = 0;
    forget_down();
    for (int i = 0; i < n_living; i++) {
        connection *c = living[i];
        const world_process *p = c->dealer->process, *q = c->router->process;
        if (!(p == a || q == a) || !(!b || p == b || q == b)) continue;
        end_connection(c, true);
        n++;
    }
    world_say("cut %s %s: %d connections", a->name, b ? b->name : "all", n);
    return n;
}

void world_part(const world_process *a, const world_process *b, uint64_t until_ns)
{
    world_say("part %s %s until %.6f", a->name, b->name, (double)until_ns * 1e-9);
    const int i = a->host, j = b->host;
    parted[i < j ? i : j][i < j ? j : i].until_ns = until_ns;
}

void world_net_forget(const world_process *p)
{
    forget_down();
    for (int i = 0; i < n_living; i++)
        if (living[i]->dealer->process == p || living[i]->router->process == p)
            end_connection(living[i], true);
    world_touch_all();
}

void world_turn_out(const void *router, const void *id, size_t bytes)
{
    connection *c = connection_to(router, id, bytes);
    if (c) end_connection(c, false);
}

/* ---- the calls ---- */

void (*world_message_moment)(void);

int zmq_errno(void)
{
    return errno;
}

const char *zmq_strerror(int code)
{
    return strerror(code);
}

void *zmq_ctx_new(void)
{
    context *c = calloc(1, sizeof *c);
    if (!c) world_wrong("no memory for a context");
    return c;
}

int zmq_ctx_set(void *c, int option, int value)
{
    (void)c;
    (void)option;
    (void)value;
    return 0;
}

int zmq_ctx_term(void *c)
{
    (void)c;
    return 0;
}

void *zmq_socket(void *c, int type)
{
    if (n_sockets == SOCKETS) world_wrong("too many sockets were ever opened");
    socket_t *s = calloc(1, sizeof *s);
    if (!s) world_wrong("no memory for a socket");
    *s = (socket_t){
        .context = c, .process = world_self(), .index = n_sockets, .type = type};
    world_queue_init(&s->in);
    world_queue_init(&s->unsent);
    sockets[n_sockets++] = open_sockets[n_open++] = s;
    return s;
}

/* What was sent is still delivered; the program may free its memory. */
int zmq_close(void *socket)
{
    socket_t *s = socket;
    s->closed = true;
    if (s->bound) world_touch_all();
    if (s->context->zap == s) s->context->zap = NULL;
    for (connection *c = s->first; c; c = c->next_of[c->router == s]) {
        for (world_message *m = (c->dealer == s ? &c->up : &c->down)->messages.first; m;
             m = m->next)
            own_bodies(m);
        end_connection(c, false);
    }
    return 0;
}

int zmq_setsockopt(void *socket, int option, const void *value, size_t bytes)
{
    socket_t *s = socket;
    if (option == ZMQ_PLAIN_SERVER || option == ZMQ_CURVE_SERVER) s->asks = true;
    if (option == ZMQ_CURVE_SERVER || option == ZMQ_CURVE_SERVERKEY) s->has_keys = true;
    if (option == ZMQ_CURVE_SERVERKEY) memcpy(s->of_server, value, STAND_IN_KEY_BYTES);
    if (option == ZMQ_CURVE_PUBLICKEY) memcpy(s->public, value, STAND_IN_KEY_BYTES);
    if (option == ZMQ_ZAP_DOMAIN)
        snprintf(s->domain, sizeof s->domain, "%.*s", (int)bytes, (const char *)value);
    if (option == ZMQ_ROUTING_ID && bytes <= ID_BYTES) {
        memcpy(s->id, value, bytes);
        s->id_bytes = bytes;
    }
    const bool proves = option == ZMQ_PLAIN_PASSWORD || option == ZMQ_CURVE_SECRETKEY;
    if (proves && bytes <= ID_BYTES) {
        memcpy(s->secret, value, bytes);
        s->secret_bytes = bytes;
    }
    return 0;
}

int zmq_getsockopt(void *socket, int option, void *value, size_t *bytes)
{
    const socket_t *s = socket;
    if (option == ZMQ_FD) {
        const int fd = WORLD_FD + MONITOR_FDS + s->index;
        memcpy(value, &fd, sizeof fd);
        *bytes = sizeof fd;
        return 0;
    }
    *bytes = (size_t)snprintf(value, *bytes, "%s", s->endpoint) + 1;
    return 0;
}

static struct {
    world_sockets which;
    uint64_t each_ns, until_ns;
} slow[WORLD_PROCESSES];

void world_slow(const world_process *p, world_sockets which, uint64_t each_ns,
                uint64_t until_ns)
{
    world_say("%s reads a message each %.3f ms until %.6f", p->name,
              (double)each_ns * 1e-6, (double)until_ns * 1e-9);
    slow[p->index].which = which;
    slow[p->index].each_ns = each_ns;
    slow[p->index].until_ns = until_ns;
}

static void look_again(void *arg, uint64_t number)
{
    (void)number;
    world_touch(arg);
}

/* It has given a message. */
static void slow_down(socket_t *s)
{
    const int i = s->process->index;
    const bool is_odd = s->index % 2 == 1;
    if (world_time() >= slow[i].until_ns || s->type == ZMQ_PAIR || s == s->context->zap ||
        slow[i].which == (is_odd ? WORLD_EVEN : WORLD_ODD))
        return;
    s->next_ns = world_time() + slow[i].each_ns;
    if (s->next_ns > slow[i].until_ns) s->next_ns = slow[i].until_ns;
    world_at(s->next_ns, look_again, s->process, 0);
}

static bool has_message(const socket_t *s)
{
    return s->reading || (s->in.first && world_time() >= s->next_ns);
}

bool world_monitor_readable(int fd)
{
    const int i = fd - WORLD_FD - MONITOR_FDS;
    return i >= 0 && i < n_sockets && sockets[i]->in.first;
}

int zmq_bind(void *socket, const char *where)
{
    socket_t *s = socket;
    if (strcmp(where, PS_ZSOCK_ZAP) == 0) {
        if (s->context->zap) {
            errno = EADDRINUSE;
            return -1;
        }
        s->context->zap = s;
        return 0;
    }
    const char *colon = strrchr(where, ':');
    if (colon && (strcmp(colon, ":*") == 0 || strcmp(colon, ":0") == 0))
        do // soon the port of one that is gone: old peers still call there
            snprintf(s->endpoint, sizeof s->endpoint, "%.*s:%d", (int)(colon - where),
                     where, PORTS_FROM + (int)world_draw(PORTS));
        while (listener(s->endpoint));
    else
        snprintf(s->endpoint, sizeof s->endpoint, "%s", where);
    if (listener(s->endpoint)) {
        errno = EADDRINUSE;
        return -1;
    }
    s->bound = true;
    world_touch_all(); // some wait until somebody listens
    tell_monitor(s, ZMQ_EVENT_LISTENING, -1);
    return 0;
}

int zmq_connect(void *socket, const char *where)
{
    socket_t *s = socket;
    if (strncmp(where, "inproc://monitor", 16) == 0) {
        for (int i = 0; i < n_open; i++)
            if (!open_sockets[i]->closed &&
                strcmp(open_sockets[i]->monitored, where) == 0)
                open_sockets[i]->monitor = s;
        return 0;
    }
    snprintf(s->endpoint, sizeof s->endpoint, "%s", where);
    world_at(world_now() + latency_ns(), try_to_connect, s, 0);
    return 0;
}

static void note_message(const world_message *m)
{
    uint64_t bytes = 0;
    for (int i = 0; i < m->n; i++)
        bytes += m->frames[i].body->bytes;
    world_note_message(bytes);
}

static void message_written(socket_t *s)
{
    world_message *m = s->writing;
    s->writing = NULL;
    note_message(m);
    if (s == s->context->zap) {
        take_gates_answer(m);
        world_message_drop(m);
    } else if (s->type == ZMQ_ROUTER) {
        if (s->to && s->to->state == UP)
            travel(s->to, false, m);
        else
            world_message_drop(m);
    } else if (s->out && s->out->state == UP) {
        travel(s->out, true, m);
    } else {
        world_queue_put(&s->unsent, m);
    }
}

int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags)
{
    socket_t *s = socket;
    const bool more = flags & ZMQ_SNDMORE;
    world_body *b =
        world_frame_of(msg)->body ? world_frame_of(msg)->body : world_body_new(NULL, 0);
    const int bytes = (int)b->bytes;
    if (s->type == ZMQ_ROUTER && s != s->context->zap && !s->writing) {
        connection *to = connection_to(s, b->data, b->bytes);
        if (!to) {
            errno = EHOSTUNREACH;
            return -1;
        }
        s->to = to;
        s->writing = world_message_new(); // the id does not travel
        world_body_release(b);
        zmq_msg_init(msg);
        return bytes;
    }
    if (!s->writing) s->writing = world_message_new();
    world_message_add(s->writing, b);
    zmq_msg_init(msg);
    if (!more) message_written(s);
    if (!more && world_message_moment) world_message_moment();
    return bytes;
}

int zmq_send(void *socket, const void *bytes, size_t n, int flags)
{
    zmq_msg_t msg;
    zmq_msg_init_size(&msg, n);
    if (n > 0) memcpy(zmq_msg_data(&msg), bytes, n);
    const int sent = zmq_msg_send(&msg, socket, flags);
    if (sent < 0) {
        const int code = errno;
        zmq_msg_close(&msg);
        errno = code;
    }
    return sent;
}

/* The id of the peer comes first at a ROUTER. */
static void put_id_first(world_message *m)
{
    const connection *c = connections[(m->frames[0].fd - WORLD_FD - FDS) / 2];
    if (m->n == FRAMES) world_wrong("a message of more than %d frames", FRAMES);
    memmove(m->frames + 1, m->frames, (size_t)m->n * sizeof *m->frames);
    m->frames[0] =
        (world_frame){.body = world_body_new(c->id, c->id_bytes), .fd = m->frames[1].fd};
    m->n++;
}

int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags)
{
    (void)flags; // all of the programs' do not wait
    socket_t *s = socket;
    if (!has_message(s)) {
        errno = EAGAIN;
        return -1;
    }
    if (!s->reading) {
        s->reading = world_queue_take(&s->in);
        s->at = 0;
        slow_down(s);
        note_message(s->reading);
        if (s->type == ZMQ_ROUTER && s != s->context->zap) put_id_first(s->reading);
    }
    zmq_msg_close(msg);
    world_frame *f = world_frame_of(msg);
    *f = s->reading->frames[s->at++];
    f->more = s->at < s->reading->n;
    if (!f->more) {
        free(s->reading);
        s->reading = NULL;
    }
    return (int)zmq_msg_size(msg);
}

typedef struct polled {
    zmq_pollitem_t *items;
    int n;
} polled;

static int ready_items(const polled *p)
{
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        zmq_pollitem_t *item = &p->items[i];
        const socket_t *s = item->socket;
        const bool readable = s ? has_message(s) : world_fd_readable(item->fd);
        item->revents = (short)((readable ? item->events & ZMQ_POLLIN : 0) |
                                (s ? item->events & ZMQ_POLLOUT : 0));
        n += item->revents != 0;
    }
    return n;
}

static bool any_ready(void *arg)
{
    return ready_items(arg) > 0;
}

int zmq_poll(zmq_pollitem_t *items, int n, long ms)
{
    polled p = {items, n};
    if (ms == 0)
        world_yield();
    else
        world_wait(any_ready, &p,
                   ms < 0 ? UINT64_MAX : world_now() + (uint64_t)ms * 1000000u);
    return ready_items(&p);
}

int __wrap_ps_zsock_poll(ps_zsock_item *items, struct pollfd *fds, int n, int ms)
{
    zmq_pollitem_t asked[64];
    for (int i = 0; i < n; i++)
        asked[i] = (zmq_pollitem_t){
            .socket = items[i].socket, .fd = items[i].fd, .events = ZMQ_POLLIN};
    const int ready = zmq_poll(asked, n, ms);
    for (int i = 0; i < n; i++)
        items[i].ready = asked[i].revents;
    (void)fds;
    return ready;
}

/* ---- what the programs ask the kernel about connections ---- */

bool __wrap_ps_zsock_is_connected(int fd)
{
    const int i = (fd - WORLD_FD - FDS) / 2;
    return i >= 0 && i < n_connections && connections[i]->state == UP;
}

bool __wrap_ps_zsock_count(int fd, ps_zsock_counts *out)
{
    (void)fd;
    *out = (ps_zsock_counts){0};
    return false;
}

void __wrap_ps_zsock_accept_with_data(int listener_fd)
{
    (void)listener_fd;
}
