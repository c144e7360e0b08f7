#include "zsock.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* libzmq aborts when it is given a policy that the system refuses, so try it first. */
static bool may_be_batch(void)
{
    const struct sched_param zero = {0};
    if (sched_getscheduler(0) != SCHED_OTHER) return false; // the user chose another
    if (sched_setscheduler(0, SCHED_BATCH, &zero) != 0) return false;
    return sched_setscheduler(0, SCHED_OTHER, &zero) == 0;
}

static ps_err zsock_failure(const char *what)
{
    return ps_err_set(PS_ERR_NET, "%s: %s", what, zmq_strerror(zmq_errno()));
}

static ps_err set_int(void *socket, int option, int value)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) == 0) return PS_OK;
    return zsock_failure("setting a socket's option");
}

/* Shown in every handshake, also after a lost connection. */
static ps_err set_secret(void *socket, const ps_secret *secret)
{
    if (zmq_setsockopt(socket, ZMQ_PLAIN_USERNAME, "member", 6) == 0 &&
        zmq_setsockopt(socket, ZMQ_PLAIN_PASSWORD, secret->bytes, sizeof secret->bytes) ==
            0)
        return PS_OK;
    return zsock_failure("setting a socket's secret");
}

/* Without anybody to ask, libzmq lets every key in. The gate's address is taken when
 * there is a gate. */
static ps_err check_gate(void *zmq_context)
{
    void *other = zmq_socket(zmq_context, ZMQ_PAIR);
    if (!other) return zsock_failure("opening a socket");
    bool found = zmq_bind(other, PS_ZSOCK_ZAP) != 0 && zmq_errno() == EADDRINUSE;
    zmq_close(other);
    if (found) return PS_OK;
    return ps_err_set(PS_ERR_INTERNAL, "a socket with keys in a context without a gate");
}

static ps_err set_bytes(void *socket, int option, const void *bytes, size_t n)
{
    if (zmq_setsockopt(socket, option, bytes, n) == 0) return PS_OK;
    return zsock_failure("setting a socket's keys");
}

static ps_err zsock_set_key(void *socket, int option, const ps_curve_key *key)
{
    return set_bytes(socket, option, key->bytes, sizeof key->bytes);
}

/* The end that connects proves a member's secret if it has one, else its role's key. */
static ps_err set_curve(void *socket, const ps_zsock_options *o)
{
    const ps_curve *c = o->curve;
    if (o->type == ZMQ_ROUTER) {
        const char *domain = o->asks_for_secret ? PS_ZSOCK_MEMBERS : PS_ZSOCK_DOOR;
        PS_TRY(set_int(socket, ZMQ_CURVE_SERVER, 1));
        PS_TRY(set_bytes(socket, ZMQ_ZAP_DOMAIN, domain, strlen(domain)));
        return zsock_set_key(socket, ZMQ_CURVE_SECRETKEY, &c->secret);
    }
    ps_curve_key secret = c->secret, public = c->public_of[c->role];
    if (o->secret) {
        memcpy(secret.bytes, o->secret->bytes, sizeof secret.bytes);
        PS_TRY(ps_curve_public(&secret, &public));
    }
    PS_TRY(zsock_set_key(socket, ZMQ_CURVE_SERVERKEY, &c->public_of[o->peer]));
    PS_TRY(zsock_set_key(socket, ZMQ_CURVE_PUBLICKEY, &public));
    return zsock_set_key(socket, ZMQ_CURVE_SECRETKEY, &secret);
}

static ps_err set_proofs(void *socket, const ps_zsock_options *o)
{
    if (o->curve && o->curve->on) return set_curve(socket, o);
    if (o->asks_for_secret) PS_TRY(set_int(socket, ZMQ_PLAIN_SERVER, 1));
    return o->secret ? set_secret(socket, o->secret) : PS_OK;
}

enum {
    RECONNECT_MS = 20, // a peer that is not there yet, or was lost, is tried again soon
    RECONNECT_MAX_MS = 250, // some times within the coordinator's grace, and no more often
    CONNECT_MS = 2000,       // a route that drops packets may work by then
    SILENCE_BEATS = 10,
    SILENCE_LEAST_MS = 1000,
    KEEPALIVE_PROBES = 5,     // in a silence
    KEEPALIVE_MOST_S = 32767, // Linux's own bound
    BACKLOG = 4096            // Linux's own default bound; silent connections stay there
};

uint64_t ps_zsock_silence_ms(uint64_t heartbeat_ms, uint64_t dead_after_ms)
{
    uint64_t ms = SILENCE_BEATS * heartbeat_ms;
    if (ms > dead_after_ms / 2) ms = dead_after_ms / 2;
    return ms > SILENCE_LEAST_MS ? ms : SILENCE_LEAST_MS;
}

static int option_ms(uint64_t ms)
{
    return ms < INT32_MAX ? (int)ms : INT32_MAX;
}

/* TCP_USER_TIMEOUT (ZMQ_TCP_MAXRT) bounds how long data may be unacknowledged; probes of
 * a connection that is idle, too. ZeroMQ's own heartbeats are not used: with them libzmq
 * up to 4.3.5 ends the process by an assertion when a connection fails whose messages
 * nobody takes, as at the end of a job (its issues 3937 and 4364). */
static ps_err set_silence(void *socket, uint64_t silence_ms)
{
    if (silence_ms == 0) return PS_OK;
    PS_TRY(set_int(socket, ZMQ_HANDSHAKE_IVL, option_ms(silence_ms)));
    PS_TRY(set_int(socket, ZMQ_CONNECT_TIMEOUT, CONNECT_MS));
    PS_TRY(set_int(socket, ZMQ_TCP_MAXRT, option_ms(silence_ms)));
    uint64_t probe_s = silence_ms / 1000 / KEEPALIVE_PROBES;
    if (probe_s < 1) probe_s = 1;
    if (probe_s > KEEPALIVE_MOST_S) probe_s = KEEPALIVE_MOST_S;
    PS_TRY(set_int(socket, ZMQ_TCP_KEEPALIVE, 1));
    PS_TRY(set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, (int)probe_s));
    PS_TRY(set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, (int)probe_s));
    return set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES);
}

static ps_err set_options(void *socket, const ps_zsock_options *o)
{
    PS_TRY(set_int(socket, ZMQ_LINGER, 0));
    PS_TRY(set_int(socket, ZMQ_SNDHWM, 0));
    PS_TRY(set_int(socket, ZMQ_RCVHWM, o->waiting_messages));
    PS_TRY(set_int(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS));
    PS_TRY(set_int(socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS));
    if (o->type == ZMQ_ROUTER) {
        PS_TRY(set_int(socket, ZMQ_ROUTER_MANDATORY, 1));
        PS_TRY(set_int(socket, ZMQ_ROUTER_HANDOVER, 1));
        PS_TRY(set_int(socket, ZMQ_HANDSHAKE_IVL, 10000));
    }
    if (o->type == ZMQ_ROUTER || o->type == ZMQ_STREAM)
        PS_TRY(set_int(socket, ZMQ_BACKLOG, BACKLOG));
    PS_TRY(set_silence(socket, o->silence_ms));
    PS_TRY(set_proofs(socket, o));
    int64_t max = o->max_message_bytes > 0 ? o->max_message_bytes : -1;
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max, sizeof max) != 0)
        return zsock_failure("setting a socket's message limit");
    if (o->routing_id &&
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, o->routing_id, o->routing_id_bytes) != 0)
        return zsock_failure("setting a socket's routing id");
    return PS_OK;
}

ps_err ps_zsock_context(int64_t io_threads, int64_t sockets, bool patient, void **out)
{
    *out = zmq_ctx_new();
    if (!*out) return ps_err_set(PS_ERR_NOMEM, "no memory for ZeroMQ");
    zmq_ctx_set(*out, ZMQ_IO_THREADS, (int)io_threads);
    zmq_ctx_set(*out, ZMQ_MAX_SOCKETS, (int)sockets);
    if (patient && may_be_batch())
        zmq_ctx_set(*out, ZMQ_THREAD_SCHED_POLICY, SCHED_BATCH);
    return PS_OK;
}

ps_err ps_zsock_open(void *zmq_context, const ps_zsock_options *options, void **out)
{
    *out = NULL;
    if (options->type == ZMQ_ROUTER && options->curve && options->curve->on)
        PS_TRY(check_gate(zmq_context));
    *out = zmq_socket(zmq_context, options->type);
    if (!*out) return zsock_failure("opening a socket");
    ps_err err = set_options(*out, options);
    if (err != PS_OK) ps_zsock_close(out);
    return err;
}

void ps_zsock_close(void **socket)
{
    if (*socket) zmq_close(*socket);
    *socket = NULL;
}

/* IPv6 beside IPv4, but not for a plain IPv4 address, which would become a mapped one
 * ("[::ffff:10.0.0.7]") that hosts without IPv6 cannot use. */
static ps_err set_family(void *socket, const char *endpoint)
{
    const char *host = strncmp(endpoint, "tcp://", 6) == 0 ? endpoint + 6 : "";
    size_t n = strcspn(host, ":");
    bool is_ipv4 = n > 0 && strspn(host, "0123456789.") == n;
    return set_int(socket, ZMQ_IPV6, !is_ipv4);
}

static ps_err bind_failure(const char *where)
{
    int code = zmq_errno();
    const char *colon = strrchr(where, ':');
    const char *port = colon ? colon + 1 : "";
    if (code == EADDRINUSE)
        return ps_err_set(
            PS_ERR_NET,
            "%s: the port is in use: another job or program has it (ss -ltnp "
            "'sport = :%s' shows which); end it, or choose another port",
            where, port);
    if (code == EADDRNOTAVAIL || code == ENODEV)
        return ps_err_set(PS_ERR_NET,
                          "%s: no interface of this host has that address (ip address "
                          "lists them)",
                          where);
    return ps_err_set(PS_ERR_NET, "binding to %s: %s", where, zmq_strerror(code));
}

ps_err ps_zsock_bind(void *socket, const ps_curve *curve, const char *where,
                     char endpoint[PS_ENDPOINT_MAX])
{
    PS_TRY(ps_curve_check_endpoint(curve, where));
    // ZeroMQ writes a free port as "*".
    char address[PS_ENDPOINT_MAX];
    size_t n = strlen(where);
    if (n >= sizeof address) return ps_err_set(PS_ERR_ARG, "%s: too long", where);
    memcpy(address, where, n + 1);
    if (n > 2 && strcmp(where + n - 2, ":0") == 0) address[n - 1] = '*';
    PS_TRY(set_family(socket, address));
    if (zmq_bind(socket, address) != 0) return bind_failure(where);
    size_t bytes = PS_ENDPOINT_MAX;
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &bytes) != 0)
        return zsock_failure("reading a bound address");
    return PS_OK;
}

ps_err ps_zsock_connect(void *socket, const ps_curve *curve, const char *endpoint)
{
    PS_TRY(ps_curve_check_endpoint(curve, endpoint));
    PS_TRY(set_family(socket, endpoint));
    if (zmq_connect(socket, endpoint) == 0) return PS_OK;
    return zsock_failure(endpoint);
}

/* Whether the socket can be read: takes its context's news first, which makes ZMQ_FD
 * silent until there are others. */
static int zsock_ask(ps_zsock_item *item)
{
    int events;
    size_t size = sizeof events;
    if (zmq_getsockopt(item->socket, ZMQ_EVENTS, &events, &size) != 0) return -1;
    item->ready = events & ZMQ_POLLIN;
    item->idle = !item->ready;
    return item->ready;
}

/* Asks the sockets that may have something, and sets what poll looks at. */
static int zsock_poll_first(ps_zsock_item *items, struct pollfd *fds, int n)
{
    int ready = 0;
    for (int i = 0; i < n; i++) {
        ps_zsock_item *item = &items[i];
        item->ready = false;
        fds[i] = (struct pollfd){.fd = item->fd, .events = POLLIN};
        if (!item->socket) continue;
        size_t size = sizeof fds[i].fd;
        if (zmq_getsockopt(item->socket, ZMQ_FD, &fds[i].fd, &size) != 0) return -1;
        if (!item->idle && zsock_ask(item) < 0) return -1;
        ready += item->ready;
    }
    return ready;
}

/* After poll: those that it named. */
static int zsock_poll_named(ps_zsock_item *items, const struct pollfd *fds, int n)
{
    int ready = 0;
    for (int i = 0; i < n; i++) {
        ps_zsock_item *item = &items[i];
        if (fds[i].revents && !item->socket)
            item->ready = true;
        else if (fds[i].revents && !item->ready && zsock_ask(item) < 0)
            return -1;
        ready += item->ready;
    }
    return ready;
}

int ps_zsock_poll(ps_zsock_item *items, struct pollfd *fds, int n, int ms)
{
    const ps_deadline deadline = ps_deadline_in_ms(ms < 0 ? 0 : (uint64_t)ms);
    int ready = zsock_poll_first(items, fds, n);
    while (ready >= 0) {
        const int left = ready ? 0 : ms < 0 ? -1 : ps_deadline_left_ms(deadline);
        const int named = poll(fds, (nfds_t)n, left);
        if (named < 0) return -1;
        if (named > 0) ready = zsock_poll_named(items, fds, n);
        if (ready || left == 0) break;
    }
    return ready;
}

/* *ready: whether the socket can be read (or written) before the deadline. */
static ps_err zsock_wait_for(void *socket, short events, ps_deadline deadline, int *ready)
{
    zmq_pollitem_t item = {.socket = socket, .events = events};
    for (;;) {
        int n = zmq_poll(&item, 1, ps_deadline_left_ms(deadline));
        *ready = n > 0;
        if (n > 0 || (n == 0 && ps_deadline_passed(deadline))) return PS_OK;
        if (n < 0 && zmq_errno() != EINTR) return zsock_failure("polling");
    }
}

static ps_err recv_part(void *socket, ps_deadline deadline, zmq_msg_t *msg, int *got)
{
    zmq_msg_init(msg);
    *got = 0;
    for (;;) {
        if (zmq_msg_recv(msg, socket, ZMQ_DONTWAIT) >= 0) {
            *got = 1;
            return PS_OK;
        }
        int code = zmq_errno(), ready;
        if (code == EINTR) continue;
        if (code != EAGAIN) return zsock_failure("receiving");
        if (ps_deadline_passed(deadline)) return PS_OK;
        PS_TRY(zsock_wait_for(socket, ZMQ_POLLIN, deadline, &ready));
    }
}

/* The frames of a message arrive together: the rest are there once the first is. */
static void drop_rest(void *socket, int more)
{
    while (more) {
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        more = zmq_msg_recv(&msg, socket, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&msg);
        zmq_msg_close(&msg);
    }
}

ps_err ps_zsock_recv(void *socket, ps_deadline deadline, zmq_msg_t *parts, int cap,
                     int *n)
{
    *n = 0;
    for (;;) {
        int got;
        ps_err err = recv_part(socket, deadline, &parts[*n], &got);
        if (err != PS_OK || !got) {
            ps_zsock_close_parts(parts, *n + 1);
            *n = 0;
            return err;
        }
        (*n)++;
        int more = zmq_msg_more(&parts[*n - 1]);
        if (!more) return PS_OK;
        if (*n == cap) {
            drop_rest(socket, more);
            ps_zsock_close_parts(parts, *n);
            *n = 0;
            return ps_err_set(PS_ERR_PROTOCOL, "a message of more than %d frames", cap);
        }
    }
}

void ps_zsock_close_parts(zmq_msg_t *parts, int n)
{
    for (int i = 0; i < n; i++)
        zmq_msg_close(&parts[i]);
}

static ps_err send_part(void *socket, ps_deadline deadline, zmq_msg_t *msg, int flags)
{
    while (zmq_msg_send(msg, socket, flags | ZMQ_DONTWAIT) < 0) {
        int code = zmq_errno(), ready;
        if (code == EINTR) continue;
        if (code == EHOSTUNREACH)
            return ps_err_set(PS_ERR_PEER, "the peer is not connected");
        if (code != EAGAIN) return zsock_failure("sending");
        if (ps_deadline_passed(deadline))
            return ps_err_set(PS_ERR_TIMEOUT, "the peer does not take a message");
        PS_TRY(zsock_wait_for(socket, ZMQ_POLLOUT, deadline, &ready));
    }
    return PS_OK;
}

ps_err ps_zsock_send(void *socket, ps_deadline deadline, zmq_msg_t *parts, int n)
{
    ps_err err = PS_OK;
    int sent = 0;
    while (err == PS_OK && sent < n) {
        err = send_part(socket, deadline, &parts[sent], sent + 1 < n ? ZMQ_SNDMORE : 0);
        if (err == PS_OK) sent++;
    }
    ps_zsock_close_parts(parts + sent, n - sent);
    return err;
}

ps_err ps_zsock_msg_copy(zmq_msg_t *msg, const void *bytes, size_t n)
{
    if (zmq_msg_init_size(msg, n) != 0) {
        zmq_msg_init(msg);
        return ps_err_set(PS_ERR_NOMEM, "no memory for a message of %zu bytes", n);
    }
    if (n > 0) memcpy(zmq_msg_data(msg), bytes, n);
    return PS_OK;
}

void ps_zsock_accept_with_data(int listener)
{
    const int seconds = 60; // longer than the kernel repeats its SYN-ACK: never without
    (void)setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
}

bool ps_zsock_is_connected(int fd)
{
    struct sockaddr_storage peer;
    socklen_t n = sizeof peer;
    return getpeername(fd, (struct sockaddr *)&peer, &n) == 0;
}

uint64_t ps_zsock_connection(int fd)
{
    enum { ESTABLISHED = 1 }; // tcp(7)'s state; <netinet/tcp.h> does not go with <linux/tcp.h>
    struct tcp_info t = {0};
    uint64_t cookie = 0;
    socklen_t n = sizeof t, bytes = sizeof cookie;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &n) != 0 ||
        t.tcpi_state != ESTABLISHED ||
        getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &bytes) != 0)
        return 0;
    return cookie;
}

bool ps_zsock_count(int fd, ps_zsock_counts *out)
{
    struct tcp_info t = {0};
    socklen_t n = sizeof t;
    *out = (ps_zsock_counts){0};
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &n) != 0 ||
        n < offsetof(struct tcp_info, tcpi_bytes_retrans) + sizeof t.tcpi_bytes_retrans)
        return false;
    *out = (ps_zsock_counts){.received = t.tcpi_bytes_received,
                             .sent = t.tcpi_bytes_sent - t.tcpi_bytes_retrans,
                             .acknowledged = t.tcpi_bytes_acked};
    return true;
}

ps_err ps_zsock_monitor(void *zmq_context, void *socket, const char *name, void **monitor)
{
    char where[PS_ENDPOINT_MAX];
    snprintf(where, sizeof where, "inproc://monitor-%s-%p", name, socket);
    *monitor = NULL;
    if (zmq_socket_monitor(socket, where,
                           ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED |
                               ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) !=
        0)
        return zsock_failure("watching connections");
    const ps_zsock_options pair = {.type = ZMQ_PAIR};
    PS_TRY(ps_zsock_open(zmq_context, &pair, monitor));
    ps_err err = ps_zsock_connect(*monitor, NULL, where);
    if (err != PS_OK) ps_zsock_close(monitor);
    return err;
}

ps_zsock_event ps_zsock_monitor_read(void *monitor, int *fd)
{
    // Frame 1: u16 event, u32 value; frame 2: the address (zmq_socket_monitor(3)).
    zmq_msg_t parts[2];
    int n;
    const ps_deadline now = {0};
    if (fd) *fd = -1;
    if (ps_zsock_recv(monitor, now, parts, 2, &n) != PS_OK || n == 0)
        return PS_ZSOCK_NOTHING;
    uint16_t event = 0;
    uint32_t value = UINT32_MAX;
    if (zmq_msg_size(&parts[0]) == 6) {
        memcpy(&event, zmq_msg_data(&parts[0]), sizeof event);
        memcpy(&value, (const char *)zmq_msg_data(&parts[0]) + 2, sizeof value);
    }
    ps_zsock_close_parts(parts, n);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) return PS_ZSOCK_CONNECTED;
    if (fd && value <= INT32_MAX) *fd = (int)value;
    if (event == ZMQ_EVENT_LISTENING) return PS_ZSOCK_LISTENING;
    return event == ZMQ_EVENT_ACCEPTED ? PS_ZSOCK_ACCEPTED : PS_ZSOCK_CLOSED;
}

ps_err ps_zsock_monitor_fd(void *monitor, int *fd)
{
    size_t bytes = sizeof *fd;
    if (zmq_getsockopt(monitor, ZMQ_FD, fd, &bytes) == 0) return PS_OK;
    return zsock_failure("reading a socket's descriptor");
}
