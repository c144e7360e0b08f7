#include "probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "net.h"
#include "parse_text.h"
#include "procstat.h"

enum {
    ROUNDS = 31,
    BLOCK = 256 << 10,
    BYTES = 16 << 20,
    SERVE_MS = 60000,
    CONNECT_MS = 5000,
    MEASURE_MS = 20000,
    RATE_MS = 3000 // a slow link is measured by the bytes that pass in this time
};

static ps_err wait_for(int fd, short events, ps_deadline deadline)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, ps_deadline_left_ms(deadline));
    if (n > 0) return PS_OK;
    return ps_err_set(PS_ERR_TIMEOUT, "the other end of the probe does not answer");
}

/* Sends or receives all n bytes. */
static ps_err transfer(int fd, int sending, void *bytes, size_t n, ps_deadline deadline)
{
    char *at = bytes;
    while (n > 0) {
        PS_TRY(wait_for(fd, sending ? POLLOUT : POLLIN, deadline));
        ssize_t done = sending ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT)
                               : recv(fd, at, n, MSG_DONTWAIT);
        if (done < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (done < 0) return ps_err_errno(PS_ERR_NET, "probe");
        if (done == 0) return ps_err_set(PS_ERR_NET, "the other end closed the probe");
        at += done;
        n -= (size_t)done;
    }
    return PS_OK;
}

static void no_delay(int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* ---- the answering end ---- */

/* Echoes single bytes; a length (u32, big-endian) after the byte 'B' announces bulk. */
static void answer(int fd, char *block, ps_deadline deadline)
{
    no_delay(fd);
    for (;;) {
        char byte;
        uint32_t length;
        if (transfer(fd, 0, &byte, 1, deadline) != PS_OK) return;
        if (byte == 'B') {
            if (transfer(fd, 0, &length, sizeof length, deadline) != PS_OK) return;
            length = ntohl(length);
            if (length > BLOCK) return;
            if (transfer(fd, 0, block, length, deadline) != PS_OK) return;
        }
        if (transfer(fd, 1, &byte, 1, deadline) != PS_OK) return;
    }
}

static ps_err listen_at(int port, int *out)
{
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), off = 0, one = 1;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const void *address = &any;
    socklen_t bytes = sizeof any;
    if (fd < 0) { // a host without IPv6
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        address = &any4;
        bytes = sizeof any4;
    } else {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (fd < 0) return ps_err_errno(PS_ERR_NET, "probe: socket");
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, address, bytes) != 0 || listen(fd, 16) != 0) {
        ps_err err = ps_err_errno(PS_ERR_NET, "probe: port %d cannot be used", port);
        close(fd);
        return err;
    }
    *out = fd;
    return PS_OK;
}

static ps_err serve(int port, FILE *out)
{
    int listener = -1;
    char *block = malloc(BLOCK);
    if (!block) return ps_err_set(PS_ERR_NOMEM, "probe: no memory");
    ps_err err = listen_at(port, &listener);
    if (err != PS_OK) {
        free(block);
        return err;
    }
    fprintf(out, "{\"serving\": %d}\n", port);
    fflush(out);
    ps_deadline end = ps_deadline_in_ms(SERVE_MS);
    while (!ps_deadline_passed(end)) {
        struct pollfd p[2] = {{.fd = listener, .events = POLLIN},
                              {.fd = STDIN_FILENO, .events = POLLIN}};
        if (poll(p, 2, ps_deadline_left_ms(end)) < 0 && errno != EINTR) break;
        if (p[1].revents) break; // the process that started it is done or gone
        if (!(p[0].revents & POLLIN)) continue;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        answer(fd, block, ps_deadline_in_ms(MEASURE_MS));
        close(fd);
    }
    close(listener);
    free(block);
    return PS_OK;
}

/* ---- the measuring end ---- */

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static ps_err measure_rtt(int fd, double *us, ps_deadline deadline)
{
    uint64_t rounds[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        char byte = 'p';
        uint64_t start = ps_clock_ns();
        PS_TRY(transfer(fd, 1, &byte, 1, deadline));
        PS_TRY(transfer(fd, 0, &byte, 1, deadline));
        rounds[i] = ps_clock_ns() - start;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, ascending);
    *us = (double)rounds[ROUNDS / 2] * 1e-3;
    return PS_OK;
}

static ps_err measure_rate(int fd, double *mbit_s, ps_deadline deadline)
{
    char *message = calloc(1, 5 + BLOCK);
    if (!message) return ps_err_set(PS_ERR_NOMEM, "probe: no memory");
    const uint32_t length = htonl(BLOCK);
    message[0] = 'B';
    memcpy(message + 1, &length, 4);
    uint64_t start = ps_clock_ns(), sent = 0;
    int waiting = 0; // blocks that are not answered yet: two keep the link busy
    ps_err err = PS_OK;
    ps_deadline enough = ps_deadline_in_ms(RATE_MS);
    while (err == PS_OK && sent < BYTES && !ps_deadline_passed(enough)) {
        err = transfer(fd, 1, message, 5 + BLOCK, deadline);
        sent += BLOCK;
        char byte;
        if (err == PS_OK && ++waiting > 2) {
            err = transfer(fd, 0, &byte, 1, deadline);
            waiting--;
        }
    }
    for (char byte; err == PS_OK && waiting > 0; waiting--)
        err = transfer(fd, 0, &byte, 1, deadline);
    *mbit_s = (double)sent * 8e3 / (double)(ps_clock_ns() - start);
    free(message);
    return err;
}

static ps_err local_address(int fd, char *out, size_t bytes)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &size) != 0 ||
        getnameinfo((struct sockaddr *)&at, size, out, (socklen_t)bytes, NULL, 0,
                    NI_NUMERICHOST) != 0)
        return ps_err_set(PS_ERR_NET, "probe: this side's address is not known");
    if (strncmp(out, "::ffff:", 7) == 0) memmove(out, out + 7, strlen(out + 7) + 1);
    return PS_OK;
}

static ps_err measure(const char *host, int port, FILE *out)
{
    int fd = -1;
    double us = 0, mbit_s = 0;
    char address[128] = "";
    ps_host self;
    PS_TRY(ps_net_connect(host, port, ps_deadline_in_ms(CONNECT_MS), &fd, NULL));
    no_delay(fd);
    ps_deadline deadline = ps_deadline_in_ms(MEASURE_MS);
    ps_err err = local_address(fd, address, sizeof address);
    if (err == PS_OK) err = measure_rtt(fd, &us, deadline);
    if (err == PS_OK) err = measure_rate(fd, &mbit_s, deadline);
    close(fd);
    if (err != PS_OK) return ps_err_prefix(err, "probe of %s:%d", host, port);
    ps_host_find(&self);
    fprintf(
        out,
        "{\"host\": \"%s\", \"address\": \"%s\", \"rtt_us\": %.1f, \"mbit_s\": %.0f}\n",
        self.name, address, us, mbit_s);
    return PS_OK;
}

ps_err ps_probe_run(const char *what, FILE *out)
{
    char host[256];
    const char *colon = strrchr(what, ':');
    int64_t port = 0;
    if (!colon || !ps_parse_int(colon + 1, &port) || port < 1 || port > 65535 ||
        colon == what || (size_t)(colon - what) >= sizeof host)
        return ps_err_set(PS_ERR_ARG,
                          "--probe: '%.80s' is neither serve:PORT nor HOST:PORT", what);
    size_t n = (size_t)(colon - what);
    bool bracketed = what[0] == '[' && what[n - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(bracketed ? n - 2 : n), what + bracketed);
    if (strcmp(host, "serve") == 0) return serve((int)port, out);
    return measure(host, (int)port, out);
}
