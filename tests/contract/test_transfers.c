/* libpstrain: transfers between workers, through shared memory and by TCP. */
#include <arpa/inet.h>
#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "pstrain_rig.h"

enum { N = 70001 }; // of float32: some pieces, and a part of one

static int transfers_wrong(const char *what, int rank)
{
    fprintf(stderr, "worker %d: %s is wrong\n", rank, what);
    return PSTRAIN_ERR_INTERNAL;
}

static int await(pstrain_transfer **t)
{
    int done = 0, status = 0;
    while (!done && !status)
        status = pstrain_transfer_wait(*t, 1000, &done);
    if (done) pstrain_transfer_end(t);
    return status;
}

#define TRANSFER(what, of_ranks, ...)                                                    \
    ((pstrain_transfer_options){.struct_size = sizeof(pstrain_transfer_options),         \
                                .call = (what),                                          \
                                .parts = (of_ranks),                                     \
                                __VA_ARGS__})

static int begin(pstrain_comm *c, int call, const pstrain_part *parts, int peer,
                 uint64_t tag, pstrain_transfer **t)
{
    const pstrain_transfer_options o =
        TRANSFER(call, parts, .peer = peer, .tag = tag, .op = PSTRAIN_SUM);
    return pstrain_transfer_begin(c, &o, t);
}

static int everybody(rig_worker *w, uint64_t number, pstrain_comm **out)
{
    int ranks[RIG_WORKERS_MAX];
    for (int r = 0; r < w->rig->workers; r++)
        ranks[r] = r;
    RIG_TRY(pstrain_connect(w->s));
    return pstrain_comm_create(w->s, number, ranks, w->rig->workers, out);
}

/* --- reductions -------------------------------------------------------------------- */

/* Sums depend on their order: 1e8 swallows a 3, but not a 6. */
static float term(int rank, int i)
{
    static const float terms[] = {3.0f, 1e8f, 3.0f, -1e8f};
    return terms[(rank + i) % 4];
}

static float sum_in_order(int n, int i)
{
    float sum = term(0, i);
    for (int r = 1; r < n; r++)
        sum += term(r, i);
    return sum;
}

/* begin_all_reduce's parts: a slice for each rank, in place. */
static int begin_all_reduce(rig_worker *w, pstrain_comm *c, float *x,
                            pstrain_transfer **t)
{
    const int n = w->rig->workers;
    pstrain_part parts[RIG_WORKERS_MAX];
    for (int r = 0; r < n; r++) {
        const int from = N / n * r, to = r == n - 1 ? N : N / n * (r + 1);
        const uint64_t bytes = (uint64_t)(to - from) * sizeof *x;
        parts[r] = (pstrain_part){x + from, bytes, x + from, bytes};
    }
    const pstrain_transfer_options o =
        TRANSFER(PSTRAIN_CALL_ALL_REDUCE, parts, .gathers = 1);
    return pstrain_transfer_begin(c, &o, t);
}

static int reduce_everything(rig_worker *w, pstrain_comm *c)
{
    float *x = calloc(N, sizeof *x);
    pstrain_transfer *t;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++)
            x[i] = term(w->rank, i);
        RIG_TRY(begin_all_reduce(w, c, x, &t));
        RIG_TRY(await(&t));
        for (int i = 0; i < N; i++)
            if (x[i] != sum_in_order(w->rig->workers, i))
                return transfers_wrong("a sum", w->rank);
    }
    free(x);
    return 0;
}

/* --- bytes ------------------------------------------------------------------------- */

/* Rank r sends rank p (r + 1) * (p + 2) bytes of value 10 r + p. */
static int exchange_bytes(rig_worker *w, pstrain_comm *c)
{
    enum { UNIT = 30011, MOST = UNIT * 4 * 5 };
    const int n = w->rig->workers;
    pstrain_part parts[RIG_WORKERS_MAX];
    uint8_t *memory = calloc(2 * RIG_WORKERS_MAX, MOST);
    pstrain_transfer *t;
    for (int p = 0; p < n; p++) {
        uint8_t *out = memory + p * MOST, *in = memory + (n + p) * MOST;
        const uint64_t goes = (uint64_t)((w->rank + 1) * (p + 2)) * UNIT;
        const uint64_t comes = (uint64_t)((p + 1) * (w->rank + 2)) * UNIT;
        memset(out, 10 * w->rank + p, goes);
        parts[p] = (pstrain_part){out, goes, in, comes};
    }
    RIG_TRY(begin(c, PSTRAIN_CALL_ALL_TO_ALL, parts, 0, 0, &t));
    RIG_TRY(await(&t));
    for (int p = 0; p < n; p++)
        for (uint64_t i = 0; i < parts[p].recv_bytes; i++)
            if (((uint8_t *)parts[p].recv)[i] != 10 * p + w->rank)
                return transfers_wrong("a part", w->rank);
    free(memory);
    return 0;
}

/* Each sends to the next one: two messages with tags, which are taken in the other order,
 * and one of no bytes; a collective is between sending and taking. */
static int pass_on(rig_worker *w, pstrain_comm *c)
{
    const int n = w->rig->workers, next = (w->rank + 1) % n;
    const int before = (w->rank + n - 1) % n;
    uint8_t *out = malloc(2 * N), *in = malloc(2 * N);
    pstrain_transfer *sent[3], *t;
    memset(out, w->rank + 1, N);
    memset(out + N, w->rank + 101, N);
    const pstrain_part first = {out, N, NULL, 0}, second = {out + N, N, NULL, 0};
    const pstrain_part nothing = {NULL, 0, NULL, 0}, place = {NULL, 0, in, N};
    RIG_TRY(begin(c, PSTRAIN_CALL_SEND, &first, next, 7, &sent[0]));
    RIG_TRY(begin(c, PSTRAIN_CALL_SEND, &second, next, 8, &sent[1]));
    RIG_TRY(begin(c, PSTRAIN_CALL_SEND, &nothing, next, 9, &sent[2]));
    RIG_TRY(begin(c, PSTRAIN_CALL_BARRIER, NULL, 0, 0, &t));
    RIG_TRY(await(&t));
    RIG_TRY(begin(c, PSTRAIN_CALL_RECV, &nothing, before, 9, &t));
    RIG_TRY(await(&t));
    RIG_TRY(begin(c, PSTRAIN_CALL_RECV, &place, before, 8, &t));
    RIG_TRY(await(&t));
    if (in[0] != before + 101 || in[N - 1] != before + 101)
        return transfers_wrong("tag 8", w->rank);
    RIG_TRY(begin(c, PSTRAIN_CALL_RECV, &place, -1, 7, &t));
    for (int done = 0; !done;)
        RIG_TRY(pstrain_transfer_wait(t, 1000, &done));
    if (pstrain_transfer_from(t) != before || in[N - 1] != before + 1)
        return transfers_wrong("tag 7", w->rank);
    pstrain_transfer_end(&t);
    for (int i = 0; i < 3; i++)
        RIG_TRY(await(&sent[i]));
    free(out);
    free(in);
    return 0;
}

/* Two sums of two communicators: begun in another order by rank 0 than by the others. */
static int cross(rig_worker *w, pstrain_comm *c, pstrain_comm *other)
{
    float *x = calloc(2 * N, sizeof *x);
    pstrain_transfer *t[2];
    for (int i = 0; i < 2 * N; i++)
        x[i] = i < N ? 1.0f : 2.0f;
    for (int k = 0; k < 2; k++) {
        const int i = w->rank == 0 ? k : 1 - k;
        RIG_TRY(begin_all_reduce(w, i ? other : c, x + i * N, &t[i]));
    }
    RIG_TRY(await(&t[1]));
    RIG_TRY(await(&t[0]));
    for (int i = 0; i < 2 * N; i++)
        if (x[i] != (float)w->rig->workers * (i < N ? 1.0f : 2.0f))
            return transfers_wrong("a sum that crosses another", w->rank);
    free(x);
    return 0;
}

/* The last two, in the other order. */
static int some(rig_worker *w)
{
    const int n = w->rig->workers, ranks[] = {n - 1, n - 2};
    pstrain_comm *c;
    pstrain_transfer *t;
    double values[2] = {w->rank, 1}, sums[2];
    if (w->rank < n - 2) {
        rig_refused(pstrain_comm_create(w->s, 9, ranks, 2, &c), PSTRAIN_ERR_ARG,
                    "is not one of the ranks");
        return 0;
    }
    RIG_TRY(pstrain_comm_create(w->s, 9, ranks, 2, &c));
    pstrain_part parts[2] = {{values, sizeof values, NULL, 0},
                             {values, sizeof values, NULL, 0}};
    const int own = w->rank == n - 1 ? 0 : 1;
    parts[own].recv = sums;
    parts[own].recv_bytes = sizeof sums;
    const pstrain_transfer_options o = TRANSFER(
        PSTRAIN_CALL_REDUCE_SCATTER, parts, .dtype = PSTRAIN_FLOAT64, .op = PSTRAIN_AVG);
    RIG_TRY(pstrain_transfer_begin(c, &o, &t));
    RIG_TRY(await(&t));
    pstrain_comm_destroy(&c);
    return sums[0] == n - 1.5 && sums[1] == 1 ? 0 : transfers_wrong("a mean", w->rank);
}

static int transfer_everything(rig_worker *w)
{
    pstrain_comm *c, *other;
    RIG_TRY(everybody(w, 1, &c));
    RIG_TRY(everybody(w, 2, &other));
    RIG_TRY(reduce_everything(w, c));
    RIG_TRY(exchange_bytes(w, c));
    RIG_TRY(pass_on(w, c));
    RIG_TRY(cross(w, c, other));
    RIG_TRY(some(w));
    pstrain_comm_destroy(&c);
    pstrain_comm_destroy(&other);
    return pstrain_close(w->s);
}

TEST(through_shared_memory)
{
    for (int workers = 2; workers <= 4; workers++) {
        rig_job(0, workers, transfer_everything);
    }
}

TEST(by_tcp)
{
    static const char *const settings[] = {"exchange.shm=off"};
    rig_job(0, 3, transfer_everything, .settings = settings, .n_settings = 1);
}

/* --- who makes them go on ---------------------------------------------------------- */

enum { LARGE = 12 << 20 }; // more than is on the way at any time

/* Worker 1 begins and waits for something else, until worker 0 has all. */
static int wait_alone(rig_worker *w)
{
    pstrain_comm *c;
    pstrain_transfer *t;
    const int other = 1 - w->rank;
    uint8_t *bytes = malloc(2 * LARGE);
    pstrain_part parts[2] = {0};
    parts[other] = (pstrain_part){bytes, LARGE, bytes + LARGE, LARGE};
    memset(bytes, w->rank + 1, LARGE);
    RIG_TRY(everybody(w, 1, &c));
    for (int round = 0; round < 3; round++) {
        memset(bytes + LARGE, 0, LARGE);
        RIG_TRY(begin(c, PSTRAIN_CALL_ALL_TO_ALL, parts, 0, 0, &t));
        if (w->rank == 0) RIG_TRY(await(&t));
        RIG_TRY(pstrain_barrier(w->s));
        if (w->rank == 1) RIG_TRY(await(&t));
        if (bytes[LARGE] != other + 1 || bytes[2 * LARGE - 1] != other + 1)
            return transfers_wrong("what came", w->rank);
    }
    free(bytes);
    pstrain_comm_destroy(&c);
    return pstrain_close(w->s);
}

TEST(they_go_on_though_nobody_waits)
{
    rig_job(0, 2, wait_alone);
}

typedef struct receiver {
    pstrain_comm *c;
    uint64_t tag;
    int status;
} receiver;

/* Receives a byte with the tag, and sends it back with the tag + 2. */
static void *send_back(void *arg)
{
    receiver *r = arg;
    uint8_t byte = 0;
    pstrain_transfer *t;
    const pstrain_part in = {NULL, 0, &byte, 1}, out = {&byte, 1, NULL, 0};
    r->status = begin(r->c, PSTRAIN_CALL_RECV, &in, 1, r->tag, &t);
    if (r->status == 0) r->status = await(&t);
    if (r->status == 0)
        r->status = begin(r->c, PSTRAIN_CALL_SEND, &out, 1, r->tag + 2, &t);
    if (r->status == 0) r->status = await(&t);
    return NULL;
}

static int two_receive(pstrain_comm *c)
{
    receiver both[2] = {{.c = c, .tag = 0}, {.c = c, .tag = 1}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, send_back, &both[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return both[0].status ? both[0].status : both[1].status;
}

/* One after the other: the second thread waits while the first one comes to its end. */
static int send_to_two(rig_worker *w, pstrain_comm *c, int round)
{
    for (int i = 0; i < 2; i++) {
        const uint64_t tag = (uint64_t)((i + round) % 2);
        uint8_t byte = (uint8_t)round, back = 0;
        const pstrain_part out = {&byte, 1, NULL, 0}, in = {NULL, 0, &back, 1};
        pstrain_transfer *t;
        RIG_TRY(begin(c, PSTRAIN_CALL_SEND, &out, 0, tag, &t));
        RIG_TRY(await(&t));
        RIG_TRY(begin(c, PSTRAIN_CALL_RECV, &in, 0, tag + 2, &t));
        RIG_TRY(await(&t));
        if (back != byte) return transfers_wrong("what came back", w->rank);
    }
    return 0;
}

static int wait_in_two_threads(rig_worker *w)
{
    enum { ROUNDS = 100 };
    pstrain_comm *c;
    RIG_TRY(everybody(w, 1, &c));
    for (int round = 0; round < ROUNDS; round++)
        RIG_TRY(w->rank == 0 ? two_receive(c) : send_to_two(w, c, round));
    pstrain_comm_destroy(&c);
    return pstrain_close(w->s);
}

TEST(two_threads_wait)
{
    static const char *const by_tcp[] = {"exchange.shm=off"};
    for (int n = 0; n < 2; n++) {
        rig_job(0, 2, wait_in_two_threads, .settings = by_tcp, .n_settings = n);
    }
}

/* --- lost connections --------------------------------------------------------------- */

enum { CUTS = 12 };

typedef struct cutter {
    atomic_int cuts;
    atomic_bool ended;
    uint32_t chance;
} cutter;

static bool is_connection(int fd)
{
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    return getpeername(fd, (struct sockaddr *)&peer, &size) == 0 &&
           peer.sin_family == AF_INET;
}

/* Cuts one of this process's connections, whosever it is. */
static void cut_one(cutter *k)
{
    int fds[256], n = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *e; folder && (e = readdir(folder)) && n < 256;)
        if (is_connection(atoi(e->d_name))) fds[n++] = atoi(e->d_name);
    if (folder) closedir(folder);
    k->chance = k->chance * 1664525u + 1013904223u;
    if (n > 0 && shutdown(fds[(k->chance >> 8) % (uint32_t)n], SHUT_RDWR) == 0)
        atomic_fetch_add(&k->cuts, 1);
}

static void *cut_all_the_time(void *arg)
{
    cutter *k = arg;
    while (!atomic_load(&k->ended)) {
        usleep(1000 + (k->chance >> 12) % 30000);
        cut_one(k);
    }
    return NULL;
}

/* The same calls with the same results, until enough was cut. */
static int go_on(rig_worker *w)
{
    cutter *k = w->rig->ctx;
    pstrain_comm *c;
    float cut = 0;
    RIG_TRY(everybody(w, 1, &c));
    while (cut == 0) {
        RIG_TRY(reduce_everything(w, c));
        RIG_TRY(exchange_bytes(w, c));
        RIG_TRY(pass_on(w, c));
        cut = (float)(w->rank == 0 && atomic_load(&k->cuts) >= CUTS);
        pstrain_part parts[RIG_WORKERS_MAX];
        for (int r = 0; r < w->rig->workers; r++)
            parts[r] = r ? (pstrain_part){0} : (pstrain_part){&cut, 4, &cut, 4};
        const pstrain_transfer_options o =
            TRANSFER(PSTRAIN_CALL_ALL_REDUCE, parts, .gathers = 1);
        pstrain_transfer *t;
        RIG_TRY(pstrain_transfer_begin(c, &o, &t));
        RIG_TRY(await(&t));
    }
    atomic_store(&k->ended, true);
    pstrain_comm_destroy(&c);
    return pstrain_close(w->s);
}

TEST(lost_connections_are_mended)
{
    static const char *const settings[] = {"exchange.shm=off"};
    cutter k = {.chance = 5};
    pthread_t thread;
    rig r = {
        .workers = 3, .settings = settings, .n_settings = 1, .run = go_on, .ctx = &k};
    assert_int_equal(pthread_create(&thread, NULL, cut_all_the_time, &k), 0);
    rig_run(&r);
    atomic_store(&k.ended, true);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&k.cuts) >= CUTS);
}

/* --- refusals and failures --------------------------------------------------------- */

static int call_others(rig_worker *w)
{
    pstrain_comm *c;
    pstrain_transfer *t;
    uint8_t bytes[16] = {0};
    const int peer = 1 - w->rank;
    pstrain_part parts[2] = {{bytes, 8, bytes + 8, 8}, {bytes, 8, bytes + 8, 8}};
    RIG_TRY(everybody(w, 1, &c));
    rig_refused(begin(c, PSTRAIN_CALL_SEND, parts, 2, 0, &t), PSTRAIN_ERR_ARG, "rank");
    rig_refused(begin(c, PSTRAIN_CALL_ALL_GATHER, NULL, 0, 0, &t), PSTRAIN_ERR_ARG,
                "no such");
    const int call = w->rank ? PSTRAIN_CALL_GATHER : PSTRAIN_CALL_ALL_GATHER;
    RIG_TRY(begin(c, call, parts, 0, 0, &t));
    rig_refused(await(&t), PSTRAIN_ERR_ARG,
                w->rank ? "worker 0 calls all_gather" : "worker 1 calls gather");
    for (int r = 0; r < 2; r++) // other sizes
        parts[r].send_bytes = parts[r].recv_bytes = (uint64_t)(7 + w->rank);
    RIG_TRY(begin(c, PSTRAIN_CALL_ALL_GATHER, parts, 0, 0, &t));
    rig_refused(await(&t), PSTRAIN_ERR_ARG, w->rank ? "7 bytes" : "8 bytes");
    // worker 0 gives what worker 1 does not take
    static const int calls[] = {PSTRAIN_CALL_ALL_TO_ALL, PSTRAIN_CALL_ALL_GATHER,
                                PSTRAIN_CALL_BROADCAST, PSTRAIN_CALL_SCATTER};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        memset(parts, 0, sizeof parts);
        if (w->rank == 0) parts[1] = (pstrain_part){bytes, 5, NULL, 0};
        RIG_TRY(begin(c, calls[i], parts, 0, 0, &t));
        if (w->rank == 0) RIG_TRY(await(&t));
        if (w->rank == 1)
            rig_refused(await(&t), PSTRAIN_ERR_ARG, "sends worker 1 5 bytes");
    }
    // after a refusal all goes on
    parts[w->rank] = (pstrain_part){bytes, 8, bytes + 8, 8};
    parts[peer] = (pstrain_part){bytes, 8, bytes + 8, 8};
    RIG_TRY(begin(c, PSTRAIN_CALL_BARRIER, NULL, 0, 0, &t));
    RIG_TRY(await(&t));
    pstrain_comm_destroy(&c);
    return pstrain_close(w->s);
}

TEST(members_that_call_other_things_are_told)
{
    rig_job(0, 2, call_others);
}

/* Each takes itself for the root of a broadcast: both only send. What was sent is not for
 * the next call. */
static int broadcast_as_two_roots(rig_worker *w)
{
    pstrain_comm *c;
    pstrain_transfer *t;
    uint8_t bytes[8] = {0};
    pstrain_part parts[2] = {0};
    pstrain_transfer_options o = TRANSFER(PSTRAIN_CALL_BROADCAST, parts, .root = w->rank);
    parts[1 - w->rank] = (pstrain_part){bytes, 8, NULL, 0};
    RIG_TRY(everybody(w, 1, &c));
    RIG_TRY(pstrain_transfer_begin(c, &o, &t));
    int status = await(&t);
    if (status == 0) {
        RIG_TRY(begin(c, PSTRAIN_CALL_BARRIER, NULL, 0, 0, &t));
        status = await(&t);
    }
    pstrain_transfer_end(&t);
    pstrain_comm_destroy(&c);
    return status;
}

TEST(two_roots_of_a_broadcast_are_told)
{
    static const char *const by_tcp[] = {"exchange.shm=off"};
    for (int n = 0; n < 2; n++) {
        rig r = {.workers = 2,
                 .settings = by_tcp,
                 .n_settings = n,
                 .run = broadcast_as_two_roots,
                 .fails = true};
        rig_run(&r);
        for (int w = 0; w < 2; w++) {
            assert_int_not_equal(r.worker[w].status, PSTRAIN_OK);
            assert_non_null(strstr(r.worker[w].text, "calls broadcast and sends worker"));
        }
    }
}

static int never_come(rig_worker *w)
{
    pstrain_comm *c;
    pstrain_transfer *t;
    int done, status = 0;
    uint8_t byte;
    const pstrain_part part = {NULL, 0, &byte, 1};
    RIG_TRY(everybody(w, 1, &c));
    if (w->rank == 1) {
        RIG_TRY(pstrain_barrier(w->s));
        pstrain_comm_destroy(&c);
        return PSTRAIN_ERR_PEER; // it goes
    }
    RIG_TRY(begin(c, PSTRAIN_CALL_RECV, &part, 1, 0, &t));
    RIG_TRY(pstrain_barrier(w->s));
    for (done = 0; !done;)
        status = pstrain_transfer_wait(t, 1000, &done);
    pstrain_transfer_end(&t);
    pstrain_comm_destroy(&c);
    return status;
}

TEST(a_worker_that_goes_ends_all_waits)
{
    rig r = {.workers = 2, .run = never_come, .fails = true};
    rig_run(&r);
    assert_int_equal(r.worker[0].status, PSTRAIN_ERR_PEER);
    assert_non_null(strstr(r.worker[0].text, "worker 1"));
}

/* What worker 1 has sent before it leaves still comes. It does not see worker 0's two
 * other messages, of which one fits nowhere. */
static int leave_early(rig_worker *w)
{
    enum { MUCH = 64 << 20 };
    pstrain_comm *c;
    pstrain_transfer *t, *sent[2];
    uint8_t *bytes = calloc(1, MUCH);
    pstrain_part part = {bytes, MUCH, NULL, 0};
    int status;
    RIG_TRY(everybody(w, 1, &c));
    if (w->rank == 1) {
        bytes[N - 1] = 7;
        part.send_bytes = N;
        RIG_TRY(begin(c, PSTRAIN_CALL_SEND, &part, 0, 5, &t));
        RIG_TRY(await(&t));
        status = pstrain_close(w->s);
    } else {
        for (int i = 0; i < 2; i++, part.send_bytes = 1)
            RIG_TRY(begin(c, PSTRAIN_CALL_SEND, &part, 1, (uint64_t)i, &sent[i]));
        part = (pstrain_part){NULL, 0, bytes, N};
        RIG_TRY(begin(c, PSTRAIN_CALL_RECV, &part, -1, 5, &t));
        RIG_TRY(await(&t));
        if (bytes[N - 1] != 7) return transfers_wrong("what came", w->rank);
        RIG_TRY(begin(c, PSTRAIN_CALL_BARRIER, NULL, 0, 0, &t));
        status = await(&t);
        for (int i = 0; i < 2; i++)
            pstrain_transfer_end(&sent[i]);
    }
    pstrain_comm_destroy(&c);
    free(bytes);
    return status;
}

TEST(a_worker_that_leaves_ends_the_waits_for_it)
{
    static const char *const settings[] = {"net.step_timeout_ms=1000000",
                                           "exchange.shm=off"};
    for (int n = 1; n <= 2; n++) {
        rig r = {.workers = 2,
                 .settings = settings,
                 .n_settings = n,
                 .run = leave_early,
                 .fails = true};
        rig_run(&r);
        assert_int_equal(r.worker[0].status, PSTRAIN_ERR_PEER);
        assert_non_null(
            strstr(r.worker[0].text, "worker 1 has left the job, and worker 0 waits"));
    }
}

/* Worker 1 does not come before worker 0 has given up. */
static int come_late(rig_worker *w)
{
    pstrain_comm *c;
    pstrain_transfer *t;
    RIG_TRY(everybody(w, 1, &c));
    if (w->rank == 1) {
        sem_wait(w->rig->ctx);
        pstrain_comm_destroy(&c);
        return PSTRAIN_ERR_PEER;
    }
    RIG_TRY(begin(c, PSTRAIN_CALL_BARRIER, NULL, 0, 0, &t));
    const int status = await(&t);
    sem_post(w->rig->ctx);
    pstrain_comm_destroy(&c);
    return status;
}

TEST(a_wait_has_a_deadline)
{
    static const char *const settings[] = {"net.step_timeout_ms=300"};
    sem_t given_up;
    rig r = {.workers = 2,
             .settings = settings,
             .n_settings = 1,
             .run = come_late,
             .ctx = &given_up,
             .fails = true};
    sem_init(&given_up, 0, 0);
    rig_run(&r);
    assert_int_equal(r.worker[0].status, PSTRAIN_ERR_TIMEOUT);
    assert_non_null(
        strstr(r.worker[0].text, "worker 1 has not come to the call of barrier"));
}
