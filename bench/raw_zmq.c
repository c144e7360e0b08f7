#include "raw_zmq.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "clock.h"

enum { MAX_PROCESSES = 64, ID_BYTES = 1 };

static int fail(const char *what)
{
    fprintf(stderr, "raw: %s: %s\n", what, zmq_strerror(zmq_errno()));
    return -1;
}

static void *open_socket(void *context, int type)
{
    void *s = zmq_socket(context, type);
    const int none = 0;
    zmq_setsockopt(s, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(s, ZMQ_RCVHWM, &none, sizeof none);
    return s;
}

/* Forks a process that dies with this one. */
static pid_t spawn(void)
{
    pid_t pid = fork();
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

/* Binds the socket and writes its endpoint to the pipe. */
static int bind_and_tell(void *socket, int pipe_fd)
{
    char endpoint[64] = {0};
    size_t n = sizeof endpoint;
    if (zmq_bind(socket, "tcp://127.0.0.1:*") != 0 ||
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &n) != 0)
        return fail("binding");
    return write(pipe_fd, endpoint, sizeof endpoint) == sizeof endpoint ? 0 : -1;
}

/* ---- ping-pong ---- */

static int pong(int pipe_fd, unsigned rounds)
{
    void *context = zmq_ctx_new(), *router = open_socket(context, ZMQ_ROUTER);
    if (bind_and_tell(router, pipe_fd) != 0) return -1;
    for (unsigned i = 0; i < rounds; i++) {
        zmq_msg_t id, body;
        zmq_msg_init(&id);
        zmq_msg_init(&body);
        if (zmq_msg_recv(&id, router, 0) < 0 || zmq_msg_recv(&body, router, 0) < 0 ||
            zmq_msg_send(&id, router, ZMQ_SNDMORE) < 0 ||
            zmq_msg_send(&body, router, 0) < 0)
            return fail("answering");
    }
    zmq_close(router);
    zmq_ctx_term(context);
    return 0;
}

static int ping(const char *endpoint, unsigned long bytes, unsigned rounds,
                unsigned long long *ns)
{
    void *context = zmq_ctx_new(), *dealer = open_socket(context, ZMQ_DEALER);
    char *payload = calloc(1, bytes);
    if (!payload || zmq_connect(dealer, endpoint) != 0) return fail("connecting");
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t start = ps_clock_ns();
        if (zmq_send(dealer, payload, bytes, 0) < 0 ||
            zmq_recv(dealer, payload, bytes, 0) < 0)
            return fail("ping");
        ns[i] = ps_clock_ns() - start;
    }
    free(payload);
    zmq_close(dealer);
    zmq_ctx_term(context);
    return 0;
}

int raw_zmq_ping(unsigned long bytes, unsigned rounds, unsigned long long *ns)
{
    int fds[2];
    char endpoint[64];
    if (pipe(fds) != 0) return -1;
    pid_t pid = spawn();
    if (pid < 0) return -1;
    if (pid == 0) _exit(pong(fds[1], rounds) == 0 ? 0 : 1);
    int rc = -1;
    if (read(fds[0], endpoint, sizeof endpoint) == sizeof endpoint)
        rc = ping(endpoint, bytes, rounds, ns);
    if (rc != 0) kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return rc;
}

/* ---- an exchange ---- */

static unsigned long part_bytes(const raw_zmq_bulk *w)
{
    return w->bytes / w->servers / sizeof(float) * sizeof(float);
}

static uint32_t n_chunks(const raw_zmq_bulk *w)
{
    return (uint32_t)((part_bytes(w) + w->chunk - 1) / w->chunk);
}

static size_t chunk_size(const raw_zmq_bulk *w, uint32_t chunk)
{
    size_t left = part_bytes(w) - (size_t)chunk * w->chunk;
    return left < w->chunk ? left : w->chunk;
}

static void keep(void *payload, void *hint)
{
}

static int send_chunk(void *socket, uint32_t chunk, void *payload, size_t bytes)
{
    zmq_msg_t msg;
    zmq_msg_init_data(&msg, payload, bytes, keep, NULL);
    if (zmq_send(socket, &chunk, sizeof chunk, ZMQ_SNDMORE) < 0) return -1;
    return zmq_msg_send(&msg, socket, 0) < 0 ? -1 : 0;
}

static int recv_chunk(void *socket, uint32_t limit, uint32_t *chunk, zmq_msg_t *payload)
{
    if (zmq_recv(socket, chunk, sizeof *chunk, 0) != sizeof *chunk || *chunk >= limit)
        return -1;
    return zmq_msg_recv(payload, socket, 0) < 0 ? -1 : 0;
}

/* sum = a + b + ... over the messages of a chunk. */
static void add_up(float *restrict sum, zmq_msg_t *parts, unsigned n, size_t count)
{
    const float *first = zmq_msg_data(&parts[0]);
    if (n == 1) memcpy(sum, first, count * sizeof *sum);
    for (unsigned r = 1; r < n; r++) {
        const float *restrict a = r == 1 ? first : sum;
        const float *restrict b = zmq_msg_data(&parts[r]);
#pragma omp simd
        for (size_t i = 0; i < count; i++)
            sum[i] = a[i] + b[i];
    }
}

static int answer(void *router, const raw_zmq_bulk *w, uint32_t chunk, float *sums,
                  zmq_msg_t *parts)
{
    size_t bytes = chunk_size(w, chunk);
    float *sum = sums + (size_t)chunk * w->chunk / sizeof *sums;
    add_up(sum, parts, w->workers, bytes / sizeof *sum);
    for (unsigned r = 0; r < w->workers; r++) {
        const uint8_t id = (uint8_t)('A' + r);
        if (zmq_send(router, &id, ID_BYTES, ZMQ_SNDMORE) < 0 ||
            send_chunk(router, chunk, sum, bytes) != 0)
            return fail("answering");
    }
    for (unsigned r = 0; r < w->workers; r++) // freeing large messages takes a while
        zmq_msg_close(&parts[r]);
    return 0;
}

static int serve(const raw_zmq_bulk *w, int pipe_fd)
{
    void *context = zmq_ctx_new(), *router = open_socket(context, ZMQ_ROUTER);
    uint32_t n = n_chunks(w);
    float *sums = malloc(part_bytes(w));
    zmq_msg_t *parts = calloc((size_t)n * w->workers, sizeof *parts);
    unsigned *arrived = calloc(n, sizeof *arrived);
    if (!sums || !parts || !arrived || bind_and_tell(router, pipe_fd) != 0) return -1;
    for (uint64_t left = (uint64_t)n * w->workers * w->steps; left > 0; left--) {
        uint8_t id;
        uint32_t chunk;
        zmq_msg_t payload;
        zmq_msg_init(&payload);
        if (zmq_recv(router, &id, ID_BYTES, 0) != ID_BYTES ||
            id - 'A' >= (int)w->workers || recv_chunk(router, n, &chunk, &payload) != 0)
            return fail("receiving");
        parts[(size_t)chunk * w->workers + (id - 'A')] = payload;
        if (++arrived[chunk] < w->workers) continue;
        arrived[chunk] = 0;
        if (answer(router, w, chunk, sums, &parts[(size_t)chunk * w->workers]) != 0)
            return -1;
    }
    zmq_close(router);
    zmq_ctx_term(context);
    return 0;
}

static int one_step(const raw_zmq_bulk *w, void **sockets, zmq_pollitem_t *items,
                    char *grads)
{
    uint32_t n = n_chunks(w);
    for (uint32_t chunk = 0; chunk < n; chunk++)
        for (unsigned s = 0; s < w->servers; s++)
            if (send_chunk(sockets[s], chunk,
                           grads + s * part_bytes(w) + (size_t)chunk * w->chunk,
                           chunk_size(w, chunk)) != 0)
                return fail("sending");
    for (uint64_t left = (uint64_t)n * w->servers; left > 0;) {
        if (zmq_poll(items, (int)w->servers, -1) < 0) return fail("polling");
        for (unsigned s = 0; s < w->servers; s++) {
            if (!items[s].revents) continue;
            uint32_t chunk;
            zmq_msg_t payload;
            zmq_msg_init(&payload);
            if (recv_chunk(sockets[s], n, &chunk, &payload) != 0)
                return fail("receiving");
            zmq_msg_close(&payload);
            left--;
        }
    }
    return 0;
}

static int work(const raw_zmq_bulk *w, unsigned rank, char endpoints[][64],
                unsigned long long *ns)
{
    void *context = zmq_ctx_new(), *sockets[MAX_PROCESSES];
    zmq_pollitem_t items[MAX_PROCESSES];
    char *grads = malloc(w->bytes);
    if (!grads) return -1;
    memset(grads, 0, w->bytes);
    for (unsigned s = 0; s < w->servers; s++) {
        const uint8_t id = (uint8_t)('A' + rank);
        sockets[s] = open_socket(context, ZMQ_DEALER);
        zmq_setsockopt(sockets[s], ZMQ_ROUTING_ID, &id, ID_BYTES);
        items[s] = (zmq_pollitem_t){.socket = sockets[s], .events = ZMQ_POLLIN};
        if (zmq_connect(sockets[s], endpoints[s]) != 0) return fail("connecting");
    }
    for (unsigned i = 0; i < w->steps; i++) {
        uint64_t start = ps_clock_ns();
        if (one_step(w, sockets, items, grads) != 0) return -1;
        if (ns) ns[i] = ps_clock_ns() - start;
    }
    for (unsigned s = 0; s < w->servers; s++)
        zmq_close(sockets[s]);
    zmq_ctx_term(context);
    free(grads);
    return 0;
}

int raw_zmq_exchange(const raw_zmq_bulk *w, unsigned long long *ns)
{
    pid_t pids[2 * MAX_PROCESSES];
    char endpoints[MAX_PROCESSES][64];
    unsigned n = 0;
    int rc = 0, fds[2];
    if (w->workers > MAX_PROCESSES || w->servers > MAX_PROCESSES || pipe(fds) != 0)
        return -1;
    mallopt(M_MMAP_THRESHOLD, 256 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    for (unsigned s = 0; s < w->servers; s++) {
        if ((pids[n++] = spawn()) == 0) _exit(serve(w, fds[1]) == 0 ? 0 : 1);
        if (read(fds[0], endpoints[s], 64) != 64) rc = -1;
    }
    for (unsigned r = 1; r < w->workers && rc == 0; r++)
        if ((pids[n++] = spawn()) == 0) _exit(work(w, r, endpoints, NULL) == 0 ? 0 : 1);
    if (rc == 0) rc = work(w, 0, endpoints, ns);
    for (unsigned i = 0; i < n; i++) {
        int status = 0;
        if (rc != 0) kill(pids[i], SIGKILL);
        waitpid(pids[i], &status, 0);
        if (status != 0) rc = -1;
    }
    return rc;
}
