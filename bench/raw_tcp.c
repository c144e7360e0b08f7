#include "raw_tcp.h"

#include <arpa/inet.h>
#include <errno.h>
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

static int listen_at(unsigned short port)
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

int raw_tcp_serve(unsigned short port, unsigned n_workers, const raw_tcp_step *what)
{
    peer peers[MAX_PEERS] = {0};
    if (n_workers > MAX_PEERS) return -1;
    int listener = listen_at(port);
    if (listener < 0 || accept_all(listener, peers, n_workers) != 0) return -1;
    // A worker starts once all its connections are made; there is no barrier.
    return pump(peers, n_workers, what->bytes * what->steps, what->bytes, true);
}

static int connect_to(const char *server)
{
    char host[64];
    snprintf(host, sizeof host, "%s", server);
    char *colon = strrchr(host, ':');
    if (!colon) return -1;
    *colon = '\0';
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10))};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) return -1;
    ps_deadline deadline = ps_deadline_in_ms(CONNECT_MS);
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0) return fail("socket");
        if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) {
            tune(fd);
            return fd;
        }
        close(fd);
        if (ps_deadline_passed(deadline)) return fail(server);
        usleep(20000);
    }
}

static int connect_all(char *const *hosts, peer *peers, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        peers[i].fd = connect_to(hosts[i]);
        if (peers[i].fd < 0) return -1;
    }
    return 0;
}

static int run_steps(peer *peers, unsigned n, const raw_tcp_step *what,
                     unsigned long long *ns)
{
    uint64_t next = 0;
    for (unsigned step = 0; step < what->steps; step++) {
        for (uint64_t now = ps_clock_ns(); now < next; now = ps_clock_ns())
            usleep((useconds_t)((next - now) / 1000 + 1));
        uint64_t start = ps_clock_ns(), until = what->bytes * (uint64_t)(step + 1);
        next = start + what->period_us * 1000;
        for (unsigned i = 0; i < n; i++)
            peers[i].may_send = until;
        if (pump(peers, n, until, what->bytes, false) != 0) return -1;
        ns[step] = ps_clock_ns() - start;
    }
    return 0;
}

int raw_tcp_work(char *const *servers, unsigned n_servers, const raw_tcp_step *what,
                 unsigned long long *ns)
{
    peer peers[MAX_PEERS] = {0};
    if (n_servers > MAX_PEERS || connect_all(servers, peers, n_servers) != 0) return -1;
    return run_steps(peers, n_servers, what, ns);
}

int raw_tcp_mesh(unsigned rank, char *const *hosts, unsigned n, const raw_tcp_step *what,
                 unsigned long long *ns)
{
    peer peers[MAX_PEERS] = {0};
    if (n > MAX_PEERS || rank >= n) return -1;
    const char *colon = strrchr(hosts[rank], ':');
    if (!colon) return -1;
    int listener = listen_at((unsigned short)strtoul(colon + 1, NULL, 10));
    if (listener < 0 || connect_all(hosts, peers, rank) != 0 ||
        accept_all(listener, peers + rank, n - 1 - rank) != 0)
        return -1;
    return run_steps(peers, n - 1, what, ns);
}
