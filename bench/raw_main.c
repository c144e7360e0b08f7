/* ps-bench-raw: measures this machine without an exchange; prints one line of JSON.
 *
 *   memcpy BYTES | sum BYTES             GB/s (sum: of one operand)
 *   ping BYTES ROUNDS                    ZeroMQ DEALER-ROUTER over tcp
 *   zmq WORKERS SERVERS BYTES CHUNK STEPS   an exchange's bytes, and the sums
 *   tcp-server PORT WORKERS BYTES STEPS     BYTES each way per connection and step
 *   tcp-worker BYTES STEPS PERIOD_US HOST:PORT ...
 *   tcp-mesh BYTES STEPS PERIOD_US RANK HOST:PORT ...   by rank, this one's too
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "raw_tcp.h"
#include "raw_zmq.h"

enum { MEMORY_ROUNDS = 31 };

static void print_times(const unsigned long long *ns, unsigned long n)
{
    printf("{\"ns\": [");
    for (unsigned long i = 0; i < n; i++)
        printf("%s%llu", i ? ", " : "", ns[i]);
    printf("]}\n");
}

static void add(float *restrict out, const float *restrict in, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        out[i] += in[i];
}

static int memory(int sum, size_t bytes)
{
    unsigned long long ns[MEMORY_ROUNDS];
    float *a = malloc(bytes), *b = malloc(bytes);
    if (!a || !b) return -1;
    memset(a, 0, bytes);
    memset(b, 0, bytes);
    for (int i = 0; i < MEMORY_ROUNDS; i++) {
        uint64_t start = ps_clock_ns();
        if (sum)
            add(a, b, bytes / sizeof *a);
        else
            memcpy(a, b, bytes);
        // keeps the compiler from dropping the copy
        __asm__ volatile("" : : "r"(a) : "memory");
        ns[i] = ps_clock_ns() - start;
    }
    free(a);
    free(b);
    print_times(ns, MEMORY_ROUNDS);
    return 0;
}

static unsigned long number(const char *text)
{
    return strtoul(text, NULL, 10);
}

static unsigned long long *times(unsigned long n)
{
    unsigned long long *ns = calloc(n ? n : 1, sizeof *ns);
    if (!ns) exit(EXIT_FAILURE);
    return ns;
}

static int ping(char **v)
{
    unsigned rounds = (unsigned)number(v[1]);
    unsigned long long *ns = times(rounds);
    int rc = raw_zmq_ping(number(v[0]), rounds, ns);
    if (rc == 0) print_times(ns, rounds);
    free(ns);
    return rc;
}

static int exchange(char **v)
{
    const raw_zmq_bulk what = {.workers = (unsigned)number(v[0]),
                               .servers = (unsigned)number(v[1]),
                               .bytes = number(v[2]),
                               .chunk = number(v[3]),
                               .steps = (unsigned)number(v[4])};
    if (!what.workers || !what.servers || !what.chunk || what.chunk % sizeof(float))
        return -1;
    unsigned long long *ns = times(what.steps);
    int rc = raw_zmq_exchange(&what, ns);
    if (rc == 0) print_times(ns, what.steps);
    free(ns);
    return rc;
}

static int tcp_steps(int n, char **v, bool mesh)
{
    const raw_tcp_step what = {.bytes = number(v[0]),
                               .steps = (unsigned)number(v[1]),
                               .period_us = number(v[2])};
    unsigned long long *ns = times(what.steps);
    int rc = mesh
                 ? raw_tcp_mesh((unsigned)number(v[3]), v + 4, (unsigned)n - 4, &what, ns)
                 : raw_tcp_work(v + 3, (unsigned)n - 3, &what, ns);
    if (rc == 0) print_times(ns, what.steps);
    free(ns);
    return rc;
}

static int tcp_server(char **v)
{
    const raw_tcp_step what = {.bytes = number(v[2]), .steps = (unsigned)number(v[3])};
    return raw_tcp_serve((unsigned short)number(v[0]), (unsigned)number(v[1]), &what);
}

static int dispatch(const char *what, int n, char **v)
{
    if (strcmp(what, "memcpy") == 0 && n == 1) return memory(0, number(v[0]));
    if (strcmp(what, "sum") == 0 && n == 1) return memory(1, number(v[0]));
    if (strcmp(what, "ping") == 0 && n == 2) return ping(v);
    if (strcmp(what, "zmq") == 0 && n == 5) return exchange(v);
    if (strcmp(what, "tcp-server") == 0 && n == 4) return tcp_server(v);
    if (strcmp(what, "tcp-worker") == 0 && n >= 4) return tcp_steps(n, v, false);
    if (strcmp(what, "tcp-mesh") == 0 && n >= 5) return tcp_steps(n, v, true);
    fprintf(stderr, "raw: see the head of bench/raw_main.c for what it takes\n");
    return -1;
}

int main(int argc, char **argv)
{
    if (argc < 2) return EXIT_FAILURE;
    return dispatch(argv[1], argc - 2, argv + 2) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
