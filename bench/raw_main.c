/* ps-bench-raw: TCP alone, without an exchange. Every worker sends part of its bytes to
 * each server, or to each other worker, and receives the same number back, in both
 * directions at once. A worker prints {"ns": [the time of each step]}.
 *
 *   server|worker BYTES STEPS PERIOD_US PORT ACCEPTED [HOST:PORT ...]
 *
 * BYTES: each way per connection and step. PERIOD_US: least time from one step's start to
 * the next. ACCEPTED: that many peers connect to PORT; this process connects to the
 * hosts.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "net.h"

enum { MAX_PEERS = 64, BLOCK = 256 << 10, CONNECT_MS = 20000, IDLE_MS = 60000 };

typedef struct peer {
    int fd;
    uint64_t sent, received, may_send; // since the start
} peer;

static char block[BLOCK], sink[BLOCK];

static int fail(const char *what)
{
    fprintf(stderr, "raw: %s: %s\n", what, strerror(errno));
    return -1;
}

static uint64_t number(const char *text)
{
    return strtoull(text, NULL, 10);
}

static bool would_block(ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static int pump_out(peer *p)
{
    uint64_t left = p->may_send - p->sent;
    ssize_t n =
        send(p->fd, block, left < BLOCK ? left : BLOCK, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return would_block(n) ? 0 : fail("sending");
    p->sent += (uint64_t)n;
    return 0;
}

/* Receives up to the current step's bytes, never more. */
static int pump_in(peer *p, uint64_t until)
{
    uint64_t left = until - p->received;
    ssize_t n = recv(p->fd, sink, left < BLOCK ? left : BLOCK, MSG_DONTWAIT);
    if (n == 0) return fail("a peer is gone");
    if (n < 0) return would_block(n) ? 0 : fail("receiving");
    p->received += (uint64_t)n;
    return 0;
}

/* Sends and receives until every peer has sent and received `until` bytes. opens: a
 * server sends a step's bytes to a worker only after that worker has begun the step. */
static int pump(peer *peers, unsigned n, uint64_t until, uint64_t step_bytes, bool opens)
{
    for (;;) {
        struct pollfd items[MAX_PEERS];
        unsigned busy = 0;
        for (unsigned i = 0; i < n; i++) {
            peer *p = &peers[i];
            if (opens) {
                uint64_t begun = (p->received + step_bytes - 1) / step_bytes * step_bytes;
                p->may_send = begun < until ? begun : until;
            }
            short events = (short)((p->sent < p->may_send ? POLLOUT : 0) |
                                   (p->received < until ? POLLIN : 0));
            items[i] = (struct pollfd){.fd = events ? p->fd : -1, .events = events};
            busy += p->sent < until || p->received < until;
        }
        if (!busy) return 0;
        if (poll(items, n, IDLE_MS) <= 0) return fail("nothing moves");
        for (unsigned i = 0; i < n; i++) {
            if (items[i].revents & POLLOUT && pump_out(&peers[i]) != 0) return -1;
            if (items[i].revents & (POLLIN | POLLHUP | POLLERR) &&
                peers[i].received < until && pump_in(&peers[i], until) != 0)
                return -1;
        }
    }
}

static void tune(int fd)
{
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int raw_listen_at(unsigned short port)
{
    const int on = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0) return fail("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) != 0 ||
        listen(listener, MAX_PEERS) != 0)
        return fail("binding");
    return listener;
}

static int accept_all(int listener, peer *peers, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct pollfd item = {.fd = listener, .events = POLLIN};
        if (poll(&item, 1, CONNECT_MS) <= 0) return fail("waiting for workers");
        peers[i].fd = accept(listener, NULL, NULL);
        if (peers[i].fd < 0) return fail("accepting");
        tune(peers[i].fd);
    }
    return 0;
}

static int connect_to(const char *server)
{
    char host[PS_ADDRESS_MAX];
    const char *colon = strrchr(server, ':');
    const ps_deadline deadline = ps_deadline_in_ms(CONNECT_MS);
    int fd;
    if (!colon) return -1;
    snprintf(host, sizeof host, "%.*s", (int)(colon - server), server);
    while (ps_net_connect(host, (int)number(colon + 1), deadline, &fd, NULL) != PS_OK) {
        if (ps_deadline_passed(deadline)) return fail(server);
        usleep(20000);
    }
    tune(fd);
    return fd;
}

static int run_steps(peer *peers, unsigned n, uint64_t bytes, uint64_t steps,
                     uint64_t period_us)
{
    uint64_t next = 0;
    printf("{\"ns\": [");
    for (uint64_t step = 0; step < steps; step++) {
        for (uint64_t now = ps_clock_ns(); now < next; now = ps_clock_ns())
            usleep((useconds_t)((next - now) / 1000 + 1));
        uint64_t start = ps_clock_ns(), until = bytes * (step + 1);
        next = start + period_us * 1000;
        for (unsigned i = 0; i < n; i++)
            peers[i].may_send = until;
        if (pump(peers, n, until, bytes, false) != 0) return -1;
        printf("%s%" PRIu64, step ? ", " : "", ps_clock_ns() - start);
    }
    printf("]}\n");
    return 0;
}

static int raw_run(bool server, char **v, unsigned n_hosts)
{
    peer peers[MAX_PEERS] = {0};
    const uint64_t bytes = number(v[0]), steps = number(v[1]), accepted = number(v[4]);
    const unsigned n = n_hosts + (unsigned)accepted;
    if (n > MAX_PEERS) return fail("too many peers");
    int listener = accepted ? raw_listen_at((unsigned short)number(v[3])) : 0;
    if (listener < 0) return -1;
    for (unsigned i = 0; i < n_hosts; i++)
        if ((peers[i].fd = connect_to(v[5 + i])) < 0) return -1;
    if (accept_all(listener, peers + n_hosts, (unsigned)accepted) != 0) return -1;
    // A worker starts once all its connections are made; there is no barrier.
    return server ? pump(peers, n, bytes * steps, bytes, true)
                  : run_steps(peers, n, bytes, steps, number(v[2]));
}

int main(int argc, char **argv)
{
    const bool server = argc > 1 && strcmp(argv[1], "server") == 0;
    if (argc < 7 || (!server && strcmp(argv[1], "worker") != 0)) {
        fprintf(stderr, "raw: see the head of bench/raw_main.c for what it takes\n");
        return EXIT_FAILURE;
    }
    return raw_run(server, argv + 2, (unsigned)argc - 7) == 0 ? EXIT_SUCCESS
                                                              : EXIT_FAILURE;
}
