#include "stand_in_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    NOT_READY = 600,
    NOT_PINNED = 2,
    FAILED = 700,
    STREAMS = 64,
    RANGES = 64,
    PAGE = 4096
};
typedef enum op_kind { COPY, WAIT, RECORD, CALL } op_kind;

typedef struct event {
    uint64_t recorded, done;
} event;

typedef struct op {
    struct op *next;
    op_kind kind;
    char *to;
    const char *from;
    size_t bytes;
    bool half_done;
    event *event;
    uint64_t version;
    void (*call)(void *);
    void *arg;
} op;

typedef struct stream {
    op *first, **last;
    unsigned stands; // turns in which it stands still
} stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static stream *streams[STREAMS]; // [0]: the default one
static int n_streams, n_open, how;
static uint64_t drawn = 1;
static const char *pinned[RANGES];

static uint64_t draw(void) // xorshift
{
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return drawn;
}

/* --- the thread that makes the work ------------------------------------------------ */

static bool is_possible(const stream *s)
{
    const op *o = s->first;
    return o && (o->kind != WAIT || o->event->done >= o->version);
}

static stream *choose(void)
{
    stream *possible[STREAMS];
    uint64_t n = 0;
    for (int i = 0; i < n_streams; i++) {
        stream *s = streams[i];
        if (!s || !is_possible(s)) continue;
        if (s->stands > 0)
            s->stands--;
        else
            possible[n++] = s;
    }
    if (n == 0) return NULL;
    stream *s = possible[draw() % n];
    if (draw() % 8 == 0) s->stands = (unsigned)(draw() % 64);
    return s;
}

static bool anything_possible(void)
{
    for (int i = 0; i < n_streams; i++)
        if (streams[i] && is_possible(streams[i])) return true;
    return false;
}

static void finish(stream *s)
{
    op *o = s->first;
    s->first = o->next;
    if (!s->first) s->last = &s->first;
    free(o);
    pthread_cond_broadcast(&change);
}

/* With the lock, which a call goes without. */
static void turn(stream *s)
{
    op *o = s->first;
    const size_t half = o->bytes / 2;
    if (o->kind == COPY && !o->half_done) {
        memcpy(o->to, o->from, half);
        o->half_done = true;
        return;
    }
    if (o->kind == COPY) memcpy(o->to + half, o->from + half, o->bytes - half);
    if (o->kind == RECORD && o->event->done < o->version) o->event->done = o->version;
    if (o->kind == CALL) {
        pthread_mutex_unlock(&lock);
        o->call(o->arg);
        pthread_mutex_lock(&lock);
    }
    finish(s);
}

static void *work(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (how == STAND_IN_FAILS || how == STAND_IN_HANGS || !anything_possible())
            pthread_cond_wait(&change, &lock);
        stream *s = choose();
        if (s) turn(s);
        if (draw() % 16 > 0) continue;
        const struct timespec pause = {.tv_nsec = (long)(draw() % 20000)};
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL); // the program's threads go on
        pthread_mutex_lock(&lock);
    }
    return NULL;
}

static void begin(void)
{
    pthread_t thread;
    streams[n_streams++] = calloc(1, sizeof(stream));
    streams[0]->last = &streams[0]->first;
    pthread_create(&thread, NULL, work, NULL);
    pthread_detach(thread);
}

static stream *stream_of(void *given)
{
    pthread_once(&once, begin);
    return given ? given : streams[0];
}

static int result(void)
{
    return how == STAND_IN_FAILS ? FAILED : 0;
}

static int give(void *given, op what)
{
    stream *s = stream_of(given);
    op *o = malloc(sizeof *o);
    *o = what;
    o->next = NULL;
    pthread_mutex_lock(&lock);
    if (o->kind == RECORD) o->version = ++o->event->recorded;
    if (o->kind == WAIT) o->version = o->event->recorded;
    *s->last = o;
    s->last = &o->next;
    pthread_cond_broadcast(&change);
    const int r = result();
    pthread_mutex_unlock(&lock);
    return r;
}

static void wait_for(const stream *s)
{
    pthread_mutex_lock(&lock);
    while (s->first && how != STAND_IN_FAILS)
        pthread_cond_wait(&change, &lock);
    pthread_mutex_unlock(&lock);
}

/* --- for tests --------------------------------------------------------------------- */

void stand_in_cuda_seed(uint64_t seed)
{
    pthread_mutex_lock(&lock);
    drawn = seed * 2 + 1;
    pthread_mutex_unlock(&lock);
}

void stand_in_cuda_break(int what)
{
    pthread_mutex_lock(&lock);
    how = what;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

int stand_in_cuda_open(void)
{
    return n_open;
}

static stream *add_stream(void)
{
    pthread_once(&once, begin);
    stream *s = calloc(1, sizeof *s);
    s->last = &s->first;
    pthread_mutex_lock(&lock);
    int at = 0;
    while (at < n_streams && streams[at])
        at++;
    if (at == STREAMS) abort();
    if (at == n_streams) n_streams++;
    streams[at] = s;
    pthread_mutex_unlock(&lock);
    return s;
}

void *stand_in_cuda_stream(void)
{
    return add_stream();
}

void stand_in_cuda_kernel(void *given, void (*kernel)(void *), void *arg)
{
    give(given, (op){.kind = CALL, .call = kernel, .arg = arg});
}

static bool anything_left(void)
{
    for (int i = 0; i < n_streams; i++)
        if (streams[i] && streams[i]->first) return true;
    return false;
}

void stand_in_cuda_synchronize(void)
{
    pthread_mutex_lock(&lock);
    while (anything_left() && how != STAND_IN_FAILS)
        pthread_cond_wait(&change, &lock);
    pthread_mutex_unlock(&lock);
}

/* --- the driver's calls ------------------------------------------------------------ */

static void count(int more)
{
    pthread_mutex_lock(&lock);
    n_open += more;
    pthread_mutex_unlock(&lock);
}

STAND_IN_API int cuInit(unsigned flags)
{
    return (int)flags;
}

STAND_IN_API int cuGetErrorName(int error, const char **name)
{
    *name = error == FAILED ? "CUDA_ERROR_OF_THE_STAND_IN" : "CUDA_ERROR_OUT_OF_MEMORY";
    return 0;
}

STAND_IN_API int cuGetErrorString(int error, const char **text)
{
    *text = error == FAILED ? "a kernel failed" : "out of memory";
    return 0;
}

STAND_IN_API int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < 4 ? 0 : 101;
}

STAND_IN_API int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (char *)NULL + device + 1;
    count(1);
    return 0;
}

STAND_IN_API int cuDevicePrimaryCtxRelease_v2(int device)
{
    count(-1);
    return device * 0;
}

static _Thread_local int depth;

STAND_IN_API int cuCtxPushCurrent_v2(void *context)
{
    depth++;
    return context ? 0 : 1;
}

STAND_IN_API int cuCtxPopCurrent_v2(void **context)
{
    *context = NULL;
    return depth-- > 0 ? 0 : 201;
}

STAND_IN_API int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return depth > 0 ? 0 : 201;
}

STAND_IN_API int cuStreamCreateWithPriority(void **out, unsigned flags, int priority)
{
    *out = add_stream();
    count(1);
    return flags == 1 && priority == -5 && depth > 0 ? 0 : 1;
}

/* CUDA refuses most calls of a thread without one, and nobody may have noticed. */
static void check_context(const char *call)
{
    if (depth > 0) return;
    fprintf(stderr, "stand_in_cuda: %s in a thread without a context\n", call);
    abort();
}

STAND_IN_API int cuStreamDestroy_v2(void *given)
{
    stream *s = given;
    check_context(__func__);
    wait_for(s);
    pthread_mutex_lock(&lock);
    for (int i = 1; i < n_streams; i++)
        if (streams[i] == s) streams[i] = NULL;
    pthread_mutex_unlock(&lock);
    free(s);
    count(-1);
    return 0;
}

STAND_IN_API int cuStreamQuery(void *given)
{
    const stream *s = stream_of(given);
    check_context(__func__);
    pthread_mutex_lock(&lock);
    const int r = result() ? result() : s->first ? NOT_READY : 0;
    pthread_mutex_unlock(&lock);
    return r;
}

STAND_IN_API int cuStreamWaitEvent(void *given, void *e, unsigned flags)
{
    check_context(__func__);
    return give(given, (op){.kind = WAIT, .event = e}) + (int)flags;
}

STAND_IN_API int cuStreamIsCapturing(void *given, int *status)
{
    *status = how == STAND_IN_CAPTURES;
    return given || depth > 0 ? 0 : 201;
}

STAND_IN_API int cuThreadExchangeStreamCaptureMode(int *mode)
{
    const int wanted = *mode;
    *mode = 0;
    return wanted == 2 ? 0 : 1;
}

STAND_IN_API int cuLaunchHostFunc(void *given, void (*call)(void *), void *arg)
{
    check_context(__func__);
    return give(given, (op){.kind = CALL, .call = call, .arg = arg});
}

STAND_IN_API int cuEventCreate(void **out, unsigned flags)
{
    check_context(__func__);
    *out = calloc(1, sizeof(event));
    count(1);
    return flags == 2 ? 0 : 1;
}

STAND_IN_API int cuEventDestroy_v2(void *e)
{
    check_context(__func__);
    free(e);
    count(-1);
    return 0;
}

STAND_IN_API int cuEventRecord(void *e, void *given)
{
    check_context(__func__);
    return give(given, (op){.kind = RECORD, .event = e});
}

static bool is_pinned(const char *at)
{
    for (int i = 0; i < RANGES; i += 2)
        if (pinned[i] && at >= pinned[i] && at < pinned[i + 1]) return true;
    return false;
}

static int copy(void *to, const void *from, const void *host, size_t bytes, void *given)
{
    check_context(__func__);
    const int r = give(given, (op){.kind = COPY, .to = to, .from = from, .bytes = bytes});
    if (!is_pinned(host)) wait_for(stream_of(given));
    return r;
}

STAND_IN_API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s)
{
    return copy((void *)to, from, from, n, s); // NOLINT: an address is a number there
}

STAND_IN_API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s)
{
    return copy(to, (const void *)from, to, n, s); // NOLINT
}

STAND_IN_API int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    check_context(__func__);
    if (how == STAND_IN_NO_PIN) return NOT_PINNED;
    if ((uintptr_t)at % PAGE != 0) { // CUDA takes it; ours have no neighbours
        fprintf(stderr, "stand_in_cuda: pages with neighbours are pinned\n");
        abort();
    }
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < RANGES && pinned[i])
        i += 2;
    if (i >= RANGES) abort();
    pinned[i] = at;
    pinned[i + 1] = (char *)at + bytes;
    n_open++;
    pthread_mutex_unlock(&lock);
    return (int)flags;
}

STAND_IN_API int cuMemHostUnregister(void *at)
{
    int r = 713;
    check_context(__func__);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES; i += 2) {
        if (pinned[i] != at) continue;
        pinned[i] = pinned[i + 1] = NULL;
        n_open--;
        r = 0;
    }
    pthread_mutex_unlock(&lock);
    return r;
}
