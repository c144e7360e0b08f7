/* ps-bench-raw: TCP alone, without an exchange. Every worker sends part of its bytes to
 * each server, or to each other worker, and receives the same number back, in both
 * directions at once. Prints {"ns": [the time of each step]}.
 *
 *   server PORT WORKERS BYTES STEPS     BYTES each way per connection and step
 *   worker BYTES STEPS PERIOD_US HOST:PORT ...        PERIOD_US: least time from one
 * step's mesh   BYTES STEPS PERIOD_US RANK HOST:PORT ...   start to the next; hosts by
 * rank
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

typedef struct raw_step {
    uint64_t bytes; // per step, connection and direction
    unsigned steps;
    uint64_t period_us;
} raw_step;

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

static int serve(char **v)
{
    const unsigned n = (unsigned)number(v[1]);
    const raw_step what = {.bytes = number(v[2]), .steps = (unsigned)number(v[3])};
    peer peers[MAX_PEERS] = {0};
    if (n > MAX_PEERS) return -1;
    int listener = raw_listen_at((unsigned short)number(v[0]));
    if (listener < 0 || accept_all(listener, peers, n) != 0) return -1;
    // A worker starts once all its connections are made; there is no barrier.
    return pump(peers, n, what.bytes * what.steps, what.bytes, true);
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

static int connect_all(char *const *hosts, peer *peers, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        peers[i].fd = connect_to(hosts[i]);
        if (peers[i].fd < 0) return -1;
    }
    return 0;
}

static int run_steps(peer *peers, unsigned n, char **v)
{
    const raw_step what = {.bytes = number(v[0]),
                           .steps = (unsigned)number(v[1]),
                           .period_us = number(v[2])};
    uint64_t next = 0;
    printf("{\"ns\": [");
    for (unsigned step = 0; step < what.steps; step++) {
        for (uint64_t now = ps_clock_ns(); now < next; now = ps_clock_ns())
            usleep((useconds_t)((next - now) / 1000 + 1));
        uint64_t start = ps_clock_ns(), until = what.bytes * (step + 1);
        next = start + what.period_us * 1000;
        for (unsigned i = 0; i < n; i++)
            peers[i].may_send = until;
        if (pump(peers, n, until, what.bytes, false) != 0) return -1;
        printf("%s%" PRIu64, step ? ", " : "", ps_clock_ns() - start);
    }
    printf("]}\n");
    return 0;
}

static int work(char **v, unsigned n)
{
    peer peers[MAX_PEERS] = {0};
    if (n > MAX_PEERS || connect_all(v + 3, peers, n) != 0) return -1;
    return run_steps(peers, n, v);
}

/* Every rank has one connection with every other. */
static int mesh(char **v, unsigned n)
{
    peer peers[MAX_PEERS] = {0};
    const unsigned rank = (unsigned)number(v[3]);
    char *const *hosts = v + 4;
    if (n > MAX_PEERS || rank >= n) return -1;
    const char *colon = strrchr(hosts[rank], ':');
    if (!colon) return -1;
    int listener = raw_listen_at((unsigned short)number(colon + 1));
    if (listener < 0 || connect_all(hosts, peers, rank) != 0 ||
        accept_all(listener, peers + rank, n - 1 - rank) != 0)
        return -1;
    return run_steps(peers, n - 1, v);
}

static int dispatch(const char *what, int n, char **v)
{
    if (strcmp(what, "server") == 0 && n == 4) return serve(v);
    if (strcmp(what, "worker") == 0 && n >= 4) return work(v, (unsigned)n - 3);
    if (strcmp(what, "mesh") == 0 && n >= 5) return mesh(v, (unsigned)n - 4);
    fprintf(stderr, "raw: see the head of bench/raw_main.c for what it takes\n");
    return -1;
}

int main(int argc, char **argv)
{
    if (argc < 2) return EXIT_FAILURE;
    return dispatch(argv[1], argc - 2, argv + 2) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
