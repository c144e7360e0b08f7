/* The host as a GPU (cuda_gpu.h): the CUDA device's kernels and everything above them run
 * without a GPU. Only cuda_gpu.cu is left out.
 *
 * Work is queued as on a GPU. PS_HOST_GPU_EAGER says when it runs. It has a bit for each
 * queue whose work runs as soon as it is queued, after what it awaits. The work of the
 * other queues runs only when a caller waits for it. A missing event gives a wrong result
 * in one of the orders, and so does host memory that is touched too early. Asking often
 * enough whether an event has passed counts as waiting. Pointers to host memory in a
 * kernel's arguments end the test, and so does anything except a launch in a capture.
 * Several threads may use it, as those of a worker do. What is shared with other
 * processes (ps_gpu_take_shared) is an anonymous file, which they open. With
 * PS_HOST_GPU_ALONE=1 it can read no other GPU. PS_HOST_GPU_FAILS names a file: the
 * process whose GPU finds it removes it, and its GPU has failed. PS_HOST_GPU_HANGS: the
 * same, and no kernel ends from then on.
 *
 * The calls, blocks and rows of a launch have no order on a GPU. With
 * PS_HOST_GPU_BACKWARD=1 they run from the last one to the first. Blocks run with threads
 * and barriers only with PS_HOST_GPU_THREADS=1 (gpu_block.h). */
#include "host_gpu.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpu_block.h"
#include "host_gemm.h"
#include "mem.h"

typedef enum op_kind { OP_COPY, OP_LAUNCH, OP_GEMM, OP_CALL, OP_POLL, OP_AWAIT } op_kind;

typedef struct op {
    op_kind kind;
    ps_kernel kernel;
    int64_t count;
    void *args; // owned: a kernel's, or a call's
    size_t args_bytes;
    void (*call)(const void *args);
    bool (*poll)(void *args); // called until it says that it is done
    void *to;
    const void *from;
    size_t bytes;
    ps_gpu_gemm gemm;
    ps_gpu_queue other; // OP_AWAIT: until the other queue has run up to position
    size_t position;
} op;

typedef struct queue {
    ps_gpu *gpu;
    ps_gpu_queue which;
    op *ops;
    size_t n, capacity, done;
} queue;

typedef struct range {
    char *at;
    size_t bytes;
    bool host, pages; // pages: pinned whole
    int file;         // with a descriptor of ps_gpu_take_shared; else 0
} range;

enum { PAGE = 4096, ASKED_OFTEN = 16 };

struct ps_gpu {
    pthread_mutex_t lock; // recursive
    queue queues[PS_GPU_QUEUES];
    unsigned eager;
    bool backward, threads;
    ps_format format;
    range ranges[256];
    int n_ranges;
    ps_gpu_graph *capturing; // NULL: no
    bool forked;             // what the side queue is given belongs to the capture
    ps_gpu_patience *patience;
};

struct ps_gpu_event {
    ps_gpu_queue queue;
    size_t position;
    int asked;
};

struct ps_gpu_graph {
    op *ops; // with arguments of their own
    size_t n, capacity;
};

host_gpu_counts host_gpu_counted;

/* CUDA's calls are of the GPU that the thread has entered; of the first one, if of none.
 */
static _Thread_local const ps_gpu *entered;
static atomic_bool lost, hangs;

static void broken(const char *what, const char *who)
{
    fprintf(stderr, "host_gpu: %s: %s\n", who, what);
    abort();
}

static void check_entered(const ps_gpu *gpu, const char *who)
{
    if (entered != gpu) broken("the thread has not entered this GPU", who);
}

/* What all calls return after a kernel's bad access. */
static ps_err check_lost(void)
{
    if (!atomic_load(&lost)) return PS_OK;
    return ps_err_set(PS_ERR_INTERNAL, "cuda: the host in its place has failed");
}

/* The process that removes such a file has a GPU that fails, or hangs. */
static void look_for_failure(void)
{
    const char *fails = getenv("PS_HOST_GPU_FAILS"), *stops = getenv("PS_HOST_GPU_HANGS");
    if (fails && unlink(fails) == 0) atomic_store(&lost, true);
    if (stops && unlink(stops) == 0) atomic_store(&hangs, true);
}

/* ------------------------------------------------------------------------- ranges */

static const range *range_of(const ps_gpu *gpu, const void *at)
{
    for (int i = 0; i < gpu->n_ranges; i++) {
        const range *r = &gpu->ranges[i];
        const char *p = at;
        if (p >= r->at && p < r->at + r->bytes) return r;
    }
    return NULL;
}

static void add_range(ps_gpu *gpu, range r)
{
    if (gpu->n_ranges == 256) broken("too many allocations", "memory");
    gpu->ranges[gpu->n_ranges++] = r;
}

static void remove_range(ps_gpu *gpu, const void *at)
{
    for (int i = 0; i < gpu->n_ranges; i++) {
        if (gpu->ranges[i].at != at) continue;
        gpu->ranges[i] = gpu->ranges[--gpu->n_ranges];
        return;
    }
    broken("memory that was not taken is given back", "memory");
}

static void check_device(const ps_gpu *gpu, const void *at, size_t bytes, const char *who)
{
    const range *r = range_of(gpu, at);
    if (!r || r->host) broken("not memory of the GPU", who);
    if ((const char *)at + bytes > r->at + r->bytes) broken("beyond its memory", who);
}

/* CUDA refuses a copy of memory that is only partly pinned (cuMemcpy's documentation). */
static void check_pinned_whole(const ps_gpu *gpu, const void *at, size_t bytes,
                               const char *who)
{
    uintptr_t begin = (uintptr_t)at, end = begin + bytes;
    for (int i = 0; i < gpu->n_ranges; i++) {
        const range *r = &gpu->ranges[i];
        uintptr_t first = (uintptr_t)r->at / PAGE * PAGE;
        uintptr_t last = ((uintptr_t)r->at + r->bytes + PAGE - 1) / PAGE * PAGE;
        if (!r->pages || begin >= last || end <= first) continue;
        if (begin < first || end > last) broken("pinned in part", who);
    }
}

/* ------------------------------------------------------------------------ running */

#define FLAT_CASE(name)                                                                  \
    case PS_KERNEL_##name:                                                               \
        for (int64_t i = 0; i < o->count; i++)                                           \
            ps_k_##name##_at(o->args, host_gpu_turn(gpu, i, o->count));                  \
        break;

#define SUM_CASE(name)                                                                   \
    case PS_KERNEL_##name:                                                               \
        for (int64_t i = 0; i < o->count; i++) {                                         \
            const uint32_t b = host_gpu_turn(gpu, i, o->count);                          \
            for (uint32_t l = 0; l < PS_SUM_LANES; l++)                                  \
                lanes[l] = ps_k_##name##_lane(o->args, b, l);                            \
            ps_k_##name##_done(o->args, b, combine(lanes));                              \
        }                                                                                \
        break;

#define TEAM_CASE(name)                                                                  \
    case PS_KERNEL_##name:                                                               \
        for (int64_t i = 0; i < o->count; i++)                                           \
            ps_k_##name##_row(o->args, host_gpu_turn(gpu, i, o->count),                  \
                              (ps_team){.lanes = ((ps_k_##name *)o->args)->lanes});      \
        break;

#define CHANNEL_CASE(name)                                                               \
    case PS_KERNEL_##name: {                                                             \
        const ps_k_##name *k = o->args;                                                  \
        for (int64_t i = 0; i < o->count; i++) {                                         \
            const uint32_t b = host_gpu_turn(gpu, i, o->count);                          \
            for (uint32_t l = 0; l < PS_SUM_LANES; l++)                                  \
                ps_k_##name##_lane(k, b, l, wide[l]);                                    \
            combine_channels(wide, k->columns.across);                                   \
            for (uint32_t l = 0; l < k->columns.across; l++)                             \
                ps_k_##name##_done(k, b, l, wide[l]);                                    \
        }                                                                                \
        break;                                                                           \
    }

/* Which of the launch's calls comes as the i-th. */
static uint32_t host_gpu_turn(const ps_gpu *gpu, int64_t i, int64_t count)
{
    return (uint32_t)(gpu->backward ? count - 1 - i : i);
}

/* Adds in the GPU's order. */
static ps_sums combine(ps_sums *lanes)
{
    for (uint32_t half = PS_SUM_LANES / 2; half > 0; half /= 2) {
        for (uint32_t l = 0; l < half; l++) {
            lanes[l].a += lanes[l + half].a;
            lanes[l].b += lanes[l + half].b;
        }
    }
    return lanes[0];
}

static void combine_channels(ps_sums lanes[][PS_WIDE], uint32_t across)
{
    for (uint32_t half = PS_SUM_LANES / 2; half >= across; half /= 2) {
        for (uint32_t l = 0; l < half; l++) {
            for (int j = 0; j < PS_WIDE; j++) {
                lanes[l][j].a += lanes[l + half][j].a;
                lanes[l][j].b += lanes[l + half][j].b;
            }
        }
    }
}

static void run_kernel(const ps_gpu *gpu, const op *o)
{
    ps_sums lanes[PS_SUM_LANES], wide[PS_SUM_LANES][PS_WIDE];
    if (gpu->threads && gpu_block_run(o->kernel, o->args, o->count, gpu->backward))
        return;
    switch (o->kernel) {
        PS_FLAT_KERNELS(FLAT_CASE)
        PS_SUM_KERNELS(SUM_CASE)
        PS_TEAM_KERNELS(TEAM_CASE)
        PS_CHANNEL_KERNELS(CHANNEL_CASE)
    case PS_KERNEL_COUNT:
        break;
    }
}

/* Runs a queue up to position. false: its next operation waits for something outside
 * this GPU. */
static bool run_as_far(ps_gpu *gpu, ps_gpu_queue which, size_t position)
{
    queue *q = &gpu->queues[which];
    while (q->done < position) {
        op *o = &q->ops[q->done];
        if (o->kind == OP_AWAIT && !run_as_far(gpu, o->other, o->position)) return false;
        if (o->kind == OP_POLL && !o->poll(o->args)) return false;
        if (o->kind == OP_LAUNCH && atomic_load(&hangs)) return false;
        if (o->kind == OP_COPY) memcpy(o->to, o->from, o->bytes);
        if (o->kind == OP_GEMM) host_gemm(&o->gemm);
        if (o->kind == OP_LAUNCH) run_kernel(gpu, o);
        if (o->kind == OP_CALL) o->call(o->args);
        free(o->args);
        o->args = NULL;
        q->done++;
    }
    return true;
}

static bool run_locked(ps_gpu *gpu, ps_gpu_queue which, size_t position)
{
    pthread_mutex_lock(&gpu->lock);
    bool all = run_as_far(gpu, which, position);
    pthread_mutex_unlock(&gpu->lock);
    return all;
}

/* In a capture a launch becomes part of the graph. Nothing else is allowed there. */
static void append(ps_gpu *gpu, ps_gpu_queue which, op o)
{
    ps_gpu_graph *g = gpu->capturing;
    bool captured = which == PS_GPU_COMPUTE || (which == PS_GPU_SIDE && gpu->forked);
    if (!captured || o.kind == OP_COPY || o.kind == OP_AWAIT)
        broken("a capture holds something else than launches", "graph");
    if (g->n == g->capacity) {
        g->capacity = g->capacity ? g->capacity * 2 : 64;
        g->ops = realloc(g->ops, sizeof *g->ops * g->capacity);
    }
    g->ops[g->n++] = o;
}

static void check_not_capturing(const ps_gpu *gpu)
{
    if (gpu->capturing) broken("an event in a capture", "graph");
}

static void push_locked(ps_gpu *gpu, ps_gpu_queue which, op o)
{
    bool launch = o.kind != OP_COPY && o.kind != OP_AWAIT;
    if (launch && which != PS_GPU_EXCHANGE) host_gpu_counted.launches++;
    queue *q = &gpu->queues[which];
    if (q->n == q->capacity) {
        q->capacity = q->capacity ? q->capacity * 2 : 256;
        q->ops = realloc(q->ops, sizeof *q->ops * q->capacity);
    }
    q->ops[q->n++] = o;
    if (gpu->eager >> which & 1) run_as_far(gpu, which, q->n);
}

static ps_err push(ps_gpu *gpu, ps_gpu_queue which, op o)
{
    // a capture holds work of the thread that computes, and of its queue
    if (which != PS_GPU_EXCHANGE && gpu->capturing) {
        append(gpu, which, o);
        return PS_OK;
    }
    pthread_mutex_lock(&gpu->lock);
    push_locked(gpu, which, o);
    pthread_mutex_unlock(&gpu->lock);
    return PS_OK;
}

/* ------------------------------------------------------------------- cuda_gpu.h */

static bool host_gpu_is_set(const char *name)
{
    const char *value = getenv(name);
    return value && strcmp(value, "1") == 0;
}

ps_err ps_gpu_open(const ps_gpu_options *options, ps_gpu **out)
{
    const char *eager = getenv("PS_HOST_GPU_EAGER");
    pthread_mutexattr_t recursive;
    PS_TRY(PS_NEW(out, 1, "gpu"));
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&(*out)->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    (*out)->eager = eager ? (unsigned)atoi(eager) : 0;
    (*out)->backward = host_gpu_is_set("PS_HOST_GPU_BACKWARD");
    (*out)->threads = host_gpu_is_set("PS_HOST_GPU_THREADS");
    for (int q = 0; q < PS_GPU_QUEUES; q++) {
        (*out)->queues[q].gpu = *out;
        (*out)->queues[q].which = (ps_gpu_queue)q;
    }
    (*out)->format = options->format;
    entered = *out;
    return ps_gpu_patience_create(options->wait_ms, &(*out)->patience);
}

void ps_gpu_close(ps_gpu **gpu)
{
    if (!*gpu) return;
    if (ps_gpu_drain(*gpu) && (*gpu)->n_ranges) broken("memory is left behind", "close");
    for (int k = 0; k < PS_GPU_QUEUES; k++) {
        queue *q = &(*gpu)->queues[k];
        while (q->done < q->n) // of one that hangs
            free(q->ops[q->done++].args);
        free(q->ops);
    }
    pthread_mutex_destroy(&(*gpu)->lock);
    ps_gpu_patience_destroy(&(*gpu)->patience);
    free(*gpu);
    *gpu = NULL;
}

static void host_range_push(const char *name)
{
    (void)name;
    host_gpu_counted.ranges++;
    host_gpu_counted.open_ranges++;
}

static void host_range_pop(void)
{
    if (--host_gpu_counted.open_ranges < 0) broken("a range ends", "that never began");
}

const ps_trace_ranges *ps_gpu_ranges(void)
{
    static const ps_trace_ranges ranges = {host_range_push, host_range_pop};
    return &ranges;
}

void ps_gpu_describe(const ps_gpu *gpu, char *out, size_t bytes)
{
    snprintf(out, bytes, "cuda: the host in its place");
}

/* PS_HOST_GPU_SYS: takes the place of /sys. */
bool ps_gpu_numa(const ps_gpu *gpu, ps_numa *out)
{
    const char *sys = getenv("PS_HOST_GPU_SYS");
    return sys && ps_numa_of_pci(sys, "0000:3B:00.0", out);
}

ps_format ps_gpu_format(const ps_gpu *gpu)
{
    return gpu->format;
}

ps_err ps_gpu_enter(ps_gpu *gpu)
{
    entered = gpu;
    return PS_OK;
}

bool ps_gpu_lost(ps_gpu *gpu)
{
    return atomic_load(&lost) || ps_gpu_patience_is_over(gpu->patience);
}

bool ps_gpu_rests(ps_gpu *gpu)
{
    bool rests = true;
    check_entered(gpu, "drain");
    check_not_capturing(gpu);
    for (int q = 0; q < PS_GPU_QUEUES; q++)
        rests = run_locked(gpu, (ps_gpu_queue)q, gpu->queues[q].n) && rests;
    return rests;
}

ps_gpu_patience *ps_gpu_patience_of(ps_gpu *gpu)
{
    return gpu->patience;
}

void *ps_gpu_native(ps_gpu *gpu, ps_gpu_queue which)
{
    return &gpu->queues[which];
}

/* PS_HOST_GPU_KIB: how much memory the GPU has. */
bool ps_gpu_memory(ps_gpu *gpu, uint64_t *used, uint64_t *total)
{
    const char *kib = getenv("PS_HOST_GPU_KIB");
    *total = kib ? strtoull(kib, NULL, 10) << 10 : (uint64_t)1 << 30;
    *used = 0;
    for (int i = 0; i < gpu->n_ranges; i++)
        if (!gpu->ranges[i].host) *used += gpu->ranges[i].bytes;
    return true;
}

static ps_err check_room(ps_gpu *gpu, size_t bytes, const char *what)
{
    uint64_t used, total;
    ps_gpu_memory(gpu, &used, &total);
    if (bytes <= total - used) return PS_OK;
    return ps_err_set(PS_ERR_NOMEM, "cuda:0: %s: the GPU is full", what);
}

static ps_err take(ps_gpu *gpu, size_t bytes, const char *what, void *out, bool host)
{
    size_t rounded = bytes > 0 ? bytes : 1;
    check_entered(gpu, what);
    PS_TRY(check_lost());
    if (!host) PS_TRY(check_room(gpu, rounded, what));
    PS_TRY(ps_mem_zalloc(out, 1, rounded, what));
    add_range(gpu, (range){.at = *(void **)out, .bytes = rounded, .host = host});
    return PS_OK;
}

ps_err ps_gpu_take(ps_gpu *gpu, size_t bytes, const char *what, void *out)
{
    return take(gpu, bytes, what, out, false);
}

ps_err ps_gpu_take_pinned(ps_gpu *gpu, size_t bytes, const char *what, void *out)
{
    return take(gpu, bytes, what, out, true);
}

void ps_gpu_give(ps_gpu *gpu, void *at)
{
    if (!at || !ps_gpu_drain(gpu)) return;
    remove_range(gpu, at);
    free(at);
}

void ps_gpu_give_pinned(ps_gpu *gpu, void *at)
{
    ps_gpu_give(gpu, at);
}

typedef struct shared_file {
    pid_t process;
    int file;
} shared_file;

static ps_err map_file(ps_gpu *gpu, int file, size_t bytes, const char *what, void *out)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return ps_err_set(PS_ERR_IO, "%s cannot be mapped", what);
    *(void **)out = at;
    return PS_OK;
}

ps_err ps_gpu_take_shared(ps_gpu *gpu, size_t bytes, const char *what, void *out,
                          uint8_t handle[PS_GPU_HANDLE])
{
    check_entered(gpu, what);
    PS_TRY(check_lost());
    PS_TRY(check_room(gpu, bytes, what));
    const shared_file f = {.process = getpid(), .file = memfd_create(what, MFD_CLOEXEC)};
    if (f.file <= 0 || ftruncate(f.file, (off_t)bytes) != 0) broken("no file", what);
    PS_TRY(map_file(gpu, f.file, bytes, what, out));
    add_range(gpu, (range){.at = *(void **)out, .bytes = bytes, .file = f.file});
    memcpy(handle, &f, sizeof f);
    return PS_OK;
}

void ps_gpu_give_shared(ps_gpu *gpu, void *at, bool mapped)
{
    if (!at || !ps_gpu_drain(gpu)) return;
    const range r = *range_of(gpu, at);
    remove_range(gpu, at);
    munmap(at, r.bytes);
    close(r.file);
}

ps_err ps_gpu_map(ps_gpu *gpu, const uint8_t handle[PS_GPU_HANDLE], size_t bytes,
                  const char *what, void *out)
{
    shared_file f;
    char path[64];
    check_entered(gpu, what);
    if (host_gpu_is_set("PS_HOST_GPU_ALONE"))
        return ps_err_set(PS_ERR_UNSUPPORTED, "PS_HOST_GPU_ALONE is 1");
    memcpy(&f, handle, sizeof f);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)f.process, f.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return ps_err_set(PS_ERR_UNSUPPORTED, "%s cannot be opened", path);
    const ps_err err = map_file(gpu, file, bytes, what, out);
    close(file);
    if (err == PS_OK) add_range(gpu, (range){.at = *(void **)out, .bytes = bytes});
    return err;
}

void ps_gpu_unmap(ps_gpu *gpu, void *at)
{
    const range r = *range_of(gpu, at);
    remove_range(gpu, at);
    munmap(at, r.bytes);
}

ps_err ps_gpu_pin(ps_gpu *gpu, void *at, size_t bytes, const char *what, bool *pinned)
{
    check_entered(gpu, what);
    *pinned = (uintptr_t)at % PAGE == 0 && !range_of(gpu, at);
    if (*pinned)
        add_range(gpu, (range){.at = at, .bytes = bytes, .host = true, .pages = true});
    return PS_OK;
}

void ps_gpu_unpin(ps_gpu *gpu, void *at)
{
    remove_range(gpu, at);
}

static void host_gpu_count_copy(ps_gpu_queue which, size_t bytes)
{
    host_gpu_counted.copied += bytes;
    if (ps_gpu_queue_is_urgent(which)) host_gpu_counted.urgent += bytes;
}

ps_err ps_gpu_copy_in(ps_gpu *gpu, ps_gpu_queue which, void *to, const void *from,
                      size_t bytes, const char *who)
{
    check_device(gpu, to, bytes, who);
    check_pinned_whole(gpu, from, bytes, who);
    host_gpu_count_copy(which, bytes);
    return push(gpu, which,
                (op){.kind = OP_COPY, .to = to, .from = from, .bytes = bytes});
}

ps_err ps_gpu_copy_out(ps_gpu *gpu, ps_gpu_queue which, void *to, const void *from,
                       size_t bytes, const char *who)
{
    check_device(gpu, from, bytes, who);
    check_pinned_whole(gpu, to, bytes, who);
    host_gpu_count_copy(which, bytes);
    return push(gpu, which,
                (op){.kind = OP_COPY, .to = to, .from = from, .bytes = bytes});
}

ps_err ps_gpu_copy_within(ps_gpu *gpu, ps_gpu_queue which, void *to, const void *from,
                          size_t bytes, const char *who)
{
    check_device(gpu, to, bytes, who);
    check_device(gpu, from, bytes, who);
    return push(gpu, which,
                (op){.kind = OP_COPY, .to = to, .from = from, .bytes = bytes});
}

ps_err ps_gpu_event_create(ps_gpu *gpu, ps_gpu_event **out)
{
    check_entered(gpu, "event");
    return PS_NEW(out, 1, "event");
}

void ps_gpu_event_destroy(ps_gpu_event **event)
{
    free(*event);
    *event = NULL;
}

ps_err ps_gpu_record(ps_gpu *gpu, ps_gpu_event *event, ps_gpu_queue which)
{
    if (which != PS_GPU_EXCHANGE) check_not_capturing(gpu);
    pthread_mutex_lock(&gpu->lock);
    *event = (ps_gpu_event){.queue = which, .position = gpu->queues[which].n};
    pthread_mutex_unlock(&gpu->lock);
    ps_gpu_patience_moved(gpu->patience);
    return PS_OK;
}

ps_err ps_gpu_await(ps_gpu *gpu, ps_gpu_queue which, ps_gpu_event *event)
{
    pthread_mutex_lock(&gpu->lock);
    op o = {.kind = OP_AWAIT, .other = event->queue, .position = event->position};
    ps_err err = push(gpu, which, o);
    pthread_mutex_unlock(&gpu->lock);
    return err;
}

static void follow(ps_gpu *gpu, ps_gpu_queue which, ps_gpu_queue other)
{
    pthread_mutex_lock(&gpu->lock);
    push_locked(gpu, which,
                (op){.kind = OP_AWAIT, .other = other, .position = gpu->queues[other].n});
    pthread_mutex_unlock(&gpu->lock);
}

ps_err ps_gpu_fork(ps_gpu *gpu)
{
    if (gpu->forked) broken("forked already", "fork");
    gpu->forked = true;
    if (!gpu->capturing) follow(gpu, PS_GPU_SIDE, PS_GPU_COMPUTE);
    return PS_OK;
}

ps_err ps_gpu_join(ps_gpu *gpu)
{
    if (!gpu->forked) broken("not forked", "join");
    gpu->forked = false;
    if (!gpu->capturing) follow(gpu, PS_GPU_COMPUTE, PS_GPU_SIDE);
    return PS_OK;
}

ps_err ps_gpu_passed(ps_gpu *gpu, ps_gpu_event *event, const char *who, bool *passed)
{
    if (event->queue != PS_GPU_EXCHANGE) check_not_capturing(gpu); // of another thread
    PS_TRY(check_lost());
    pthread_mutex_lock(&gpu->lock);
    if (gpu->eager >> event->queue & 1 || ++event->asked > ASKED_OFTEN)
        run_as_far(gpu, event->queue, event->position);
    *passed = gpu->queues[event->queue].done >= event->position;
    pthread_mutex_unlock(&gpu->lock);
    return PS_OK;
}

static size_t args_bytes(ps_kernel kernel)
{
    static const size_t sizes[] = {
#define SIZE_OF(name) sizeof(ps_k_##name),
        PS_ALL_KERNELS(SIZE_OF)
#undef SIZE_OF
    };
    return sizes[kernel];
}

static void own_args(op *o, const void *args, size_t bytes)
{
    o->args = malloc(bytes);
    o->args_bytes = bytes;
    memcpy(o->args, args, bytes);
}

/* Bytes of padding may hold anything, even the rest of a pointer. */
static bool clear_padding(ps_kernel kernel, void *args)
{
#if defined __has_builtin && __has_builtin(__builtin_clear_padding)
#define CLEAR(name)                                                                      \
    case PS_KERNEL_##name:                                                               \
        __builtin_clear_padding((ps_k_##name *)args);                                    \
        break;
    switch (kernel) {
        PS_ALL_KERNELS(CLEAR)
    case PS_KERNEL_COUNT:
        break;
    }
#undef CLEAR
    return true;
#else
    return false;
#endif
}

static void check_args(const ps_gpu *gpu, const op *o, const char *who)
{
    if (!clear_padding(o->kernel, o->args)) return;
    for (size_t at = 0; at + sizeof(void *) <= o->args_bytes; at += sizeof(void *)) {
        void *word;
        memcpy(&word, (const char *)o->args + at, sizeof word);
        const range *r = range_of(gpu, word);
        if (r && r->host) broken("a kernel was given host memory", who);
    }
}

ps_err ps_gpu_launch(ps_gpu *gpu, ps_gpu_queue which, ps_kernel kernel, const void *args,
                     int64_t count, const char *who)
{
    if (count < 0 || count > PS_INDEX_MAX) broken("a count out of range", who);
    check_entered(gpu, who);
    PS_TRY(check_lost());
    op o = {.kind = OP_LAUNCH, .kernel = kernel, .count = count};
    if (which == PS_GPU_SIDE && !gpu->forked) broken("beside nothing", who);
    own_args(&o, args, args_bytes(kernel));
    check_args(gpu, &o, who);
    return push(gpu, which, o);
}

ps_err host_gpu_call(void *native, void (*run)(const void *args), const void *args,
                     size_t bytes, bool first, const char *who)
{
    queue *q = native;
    op o = {.kind = OP_CALL, .call = run};
    if (first && q->gpu->capturing) broken("a first run is captured", who);
    own_args(&o, args, bytes);
    return push(q->gpu, q->which, o);
}

void host_gpu_poll(void *native, bool (*poll)(void *args), const void *args, size_t bytes)
{
    queue *q = native;
    op o = {.kind = OP_POLL, .poll = poll};
    own_args(&o, args, bytes);
    push(q->gpu, q->which, o);
}

void host_gpu_check(void *native, const void *at, size_t bytes, const char *who)
{
    if ((uintptr_t)at % 16 != 0) broken("not aligned", who);
    check_device(((queue *)native)->gpu, at, bytes, who);
}

ps_err ps_gpu_capture_begin(ps_gpu *gpu)
{
    check_entered(gpu, "graph");
    check_not_capturing(gpu);
    return PS_NEW(&gpu->capturing, 1, "graph");
}

ps_err ps_gpu_capture_end(ps_gpu *gpu, ps_gpu_graph **out)
{
    if (!gpu->capturing) broken("no capture was begun", "graph");
    if (gpu->forked) broken("a capture ends before the side queue is joined", "graph");
    *out = gpu->capturing;
    gpu->capturing = NULL;
    host_gpu_counted.captures++;
    return PS_OK;
}

void ps_gpu_capture_cancel(ps_gpu *gpu)
{
    ps_gpu_graph *graph = gpu->capturing;
    gpu->capturing = NULL;
    gpu->forked = false;
    ps_gpu_graph_destroy(gpu, &graph);
}

/* Uses the arguments that were captured. Values that change have to be in memory, and the
 * arguments have to point there. */
ps_err ps_gpu_replay(ps_gpu *gpu, ps_gpu_graph *graph)
{
    check_entered(gpu, "graph");
    check_not_capturing(gpu);
    look_for_failure();
    PS_TRY(check_lost());
    host_gpu_counted.replays++;
    for (size_t i = 0; i < graph->n; i++) {
        op o = graph->ops[i];
        if (o.args) own_args(&o, graph->ops[i].args, o.args_bytes);
        host_gpu_counted.launches--; // counted as one replay
        PS_TRY(push(gpu, PS_GPU_COMPUTE, o));
    }
    return PS_OK;
}

void ps_gpu_graph_destroy(ps_gpu *gpu, ps_gpu_graph **graph)
{
    if (!*graph) return;
    for (size_t i = 0; i < (*graph)->n; i++)
        free((*graph)->ops[i].args);
    free((*graph)->ops);
    free(*graph);
    *graph = NULL;
}

/* A matrix as BLAS stores it: column by column, or transposed row by row; ld elements lie
 * from the start of one to the start of the next. */
static void check_matrix(const ps_gpu *gpu, ps_values v, bool transposed, int64_t ld,
                         int64_t rows, int64_t columns, const char *who)
{
    const int64_t last =
        transposed ? (rows - 1) * ld + columns : (columns - 1) * ld + rows;
    check_device(gpu, v.at, (size_t)last * ps_format_bytes(v.format), who);
}

ps_err ps_gpu_multiply(ps_gpu *gpu, const ps_gpu_gemm *g, const char *who)
{
    check_entered(gpu, who);
    bool fits = g->lda >= (g->ta ? g->k : g->m) && g->ldb >= (g->tb ? g->n : g->k) &&
                g->ldc >= g->m; // as cuBLAS requires
    if (!fits) broken("a leading dimension is too small", who);
    bool formats = g->a.format == gpu->format && g->b.format == gpu->format &&
                   (g->c.format == gpu->format || g->c.format == PS_FORMAT_FP32);
    if (!formats) broken("formats that no product takes", who);
    check_matrix(gpu, g->a, g->ta, g->lda, g->m, g->k, who);
    check_matrix(gpu, g->b, g->tb, g->ldb, g->k, g->n, who);
    check_matrix(gpu, g->c, false, g->ldc, g->m, g->n, who);
    return push(gpu, PS_GPU_COMPUTE, (op){.kind = OP_GEMM, .gemm = *g});
}
