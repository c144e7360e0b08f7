#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "procstat.h"
#include "regular_file.h"

enum { LANE_RECORDS = 1024, MOST_LANES = 250, FLUSH_NS = 1000000000, MOST_RANGES = 8 };

typedef struct record {
    uint64_t begin, duration;
    uint32_t step, chunk, peer;
    uint8_t kind, lane;
    uint16_t zero;
} record;

_Static_assert(sizeof(record) == PS_TRACE_RECORD_BYTES, "the file's format");

/* A thread's records that are not written yet. */
typedef struct lane {
    struct lane *next;
    uint8_t number;
    bool used;    // by a thread that lives
    uint64_t run; // of `trace`, in which it was named
    uint64_t written_ns;
    int n;
    record records[LANE_RECORDS];
} lane;

static struct {
    atomic_bool on;
    _Atomic uint64_t newest_step;
    uint64_t first, last, run; // constant while it is on
    pthread_once_t once;
    pthread_key_t key; // ends a thread's lane
    pthread_mutex_t lock;
    // Under the lock:
    int fd;
    uint64_t bytes, limit;
    lane *lanes;
    int n_lanes;
    int failure; // errno
} trace = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static _Thread_local lane *own;

static const ps_trace_ranges *_Atomic profiler;
static _Thread_local struct {
    ps_trace_kind kinds[MOST_RANGES];
    int n;
} open_ranges;

/* ---- the file ---- */

static void trace_write_all(const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(trace.fd, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            trace.failure = n < 0 ? errno : ENOSPC;
            atomic_store(&trace.on, false);
            return;
        }
        at += n;
        bytes -= (size_t)n;
        trace.bytes += (uint64_t)n;
    }
}

/* Under the lock. */
static void write_records(const record *records, int n)
{
    const size_t bytes = (size_t)n * sizeof *records;
    const record full = {.kind = PS_TRACE_FULL};
    if (trace.fd < 0 || trace.failure || trace.bytes > trace.limit) return;
    const bool fits = trace.bytes + bytes <= trace.limit;
    trace_write_all(fits ? records : &full, fits ? bytes : sizeof full);
    if (fits || trace.failure) return;
    atomic_store(&trace.on, false);
    trace.bytes = UINT64_MAX;
    PS_WARN("trace",
            "note=\"full: the rest of this process is not recorded\" "
            "limit=%llu key=trace.limit",
            (unsigned long long)trace.limit);
}

static void trace_flush(lane *l)
{
    pthread_mutex_lock(&trace.lock);
    if (l->run == trace.run) write_records(l->records, l->n);
    pthread_mutex_unlock(&trace.lock);
    l->n = 0;
    l->written_ns = ps_clock_ns();
}

/* ---- lanes ---- */

static void end_lane(void *arg)
{
    lane *l = arg;
    trace_flush(l);
    pthread_mutex_lock(&trace.lock);
    l->used = false;
    pthread_mutex_unlock(&trace.lock);
    own = NULL;
}

static void make_key(void)
{
    (void)pthread_key_create(&trace.key, end_lane);
}

/* One that an ended thread has left, or a new one. */
static lane *take_lane(void)
{
    pthread_mutex_lock(&trace.lock);
    lane *l = trace.lanes;
    while (l && l->used)
        l = l->next;
    if (!l && trace.n_lanes < MOST_LANES && (l = calloc(1, sizeof *l))) {
        l->number = (uint8_t)trace.n_lanes++;
        l->next = trace.lanes;
        trace.lanes = l;
    }
    if (l) l->used = true;
    pthread_mutex_unlock(&trace.lock);
    return l;
}

static void name_lane(lane *l)
{
    char name[16] = "main";
    record *r = l->records;
    if (gettid() != getpid()) (void)pthread_getname_np(pthread_self(), name, sizeof name);
    *r = (record){.kind = PS_TRACE_LANE, .lane = l->number};
    memcpy(&r->begin, name, sizeof r->begin);
    memcpy(&r->duration, name + sizeof r->begin, sizeof r->duration);
    l->n = 1;
    l->run = trace.run;
    l->written_ns = ps_clock_ns();
}

/* NULL: no memory. */
static lane *own_lane(void)
{
    if (!own) {
        own = take_lane();
        if (own) (void)pthread_setspecific(trace.key, own);
        if (own) own->run = 0;
    }
    if (own && own->run != trace.run) name_lane(own);
    return own;
}

static void trace_add(record r)
{
    lane *l = own_lane();
    if (!l) return;
    r.lane = l->number;
    l->records[l->n++] = r;
    if (l->n == LANE_RECORDS || ps_clock_ns() - l->written_ns > FLUSH_NS) trace_flush(l);
}

/* ---- life ---- */

static void trace_write_head(const ps_trace_options *o)
{
    static const char *const kinds[] = {
#define TRACE_NAME(kind, name) name,
        PS_TRACE_MAP(TRACE_NAME)
#undef TRACE_NAME
    };
    char text[1024];
    ps_host host;
    ps_host_find(&host);
    int n = snprintf(text, sizeof text,
                     "{\"format\": \"pstrain-trace\", \"version\": 1, \"role\": \"%s\", "
                     "\"rank\": %d, \"boot\": \"%s\", \"own_pace\": %s, \"kinds\": [",
                     o->role, o->rank, host.boot_id, o->own_pace ? "true" : "false");
    for (int k = 0; k < PS_TRACE_KINDS; k++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s\"%s\"", k ? ", " : "",
                      kinds[k]);
    n += snprintf(text + n, sizeof text - (size_t)n, "]}\n");
    trace_write_all(text, (size_t)n);
}

ps_err ps_trace_start(const ps_trace_options *o)
{
    if (trace.fd >= 0) return PS_OK;
    pthread_once(&trace.once, make_key);
    int fd;
    PS_TRY(ps_regular_file_open(o->path, O_WRONLY | O_CREAT | O_TRUNC, &fd));
    pthread_mutex_lock(&trace.lock);
    trace.fd = fd;
    trace.bytes = 0;
    trace.failure = 0;
    trace.limit = o->limit;
    trace.first = o->first;
    trace.last = o->steps > 0 ? o->first + o->steps - 1 : UINT64_MAX;
    trace.run++;
    trace_write_head(o);
    pthread_mutex_unlock(&trace.lock);
    atomic_store(&trace.newest_step, 0);
    atomic_store(&trace.on, trace.failure == 0);
    return PS_OK;
}

ps_err ps_trace_stop(void)
{
    if (trace.fd < 0) return PS_OK;
    atomic_store(&trace.on, false);
    if (own) trace_flush(own);
    pthread_mutex_lock(&trace.lock);
    int failure = trace.failure;
    if (close(trace.fd) != 0 && !failure) failure = errno;
    trace.fd = -1;
    pthread_mutex_unlock(&trace.lock);
    errno = failure;
    return failure ? ps_err_errno(PS_ERR_IO, "cannot write the trace") : PS_OK;
}

/* ---- records ---- */

bool ps_trace_on(void)
{
    return atomic_load_explicit(&trace.on, memory_order_acquire);
}

uint64_t ps_trace_now(void)
{
    return ps_trace_on() ? ps_clock_ns() : 0;
}

void ps_trace_show(const ps_trace_ranges *ranges)
{
    atomic_store(&profiler, ranges);
}

uint64_t ps_trace_begin(ps_trace_kind kind)
{
    static const char *const names[] = {
#define TRACE_NAME(kind_, name) name,
        PS_TRACE_MAP(TRACE_NAME)
#undef TRACE_NAME
    };
    const ps_trace_ranges *to = atomic_load_explicit(&profiler, memory_order_acquire);
    if (to && open_ranges.n < MOST_RANGES) {
        to->push(names[kind]);
        open_ranges.kinds[open_ranges.n++] = kind;
    }
    return ps_clock_ns();
}

/* That of the newest span of this kind, and those within it. */
static void trace_end_range(ps_trace_kind kind)
{
    int at = open_ranges.n - 1;
    while (at >= 0 && open_ranges.kinds[at] != kind)
        at--;
    if (at < 0) return;
    const ps_trace_ranges *to = atomic_load_explicit(&profiler, memory_order_acquire);
    for (; open_ranges.n > at; open_ranges.n--)
        if (to) to->pop();
}

void ps_trace_add_chunk(ps_trace_kind kind, uint64_t begin_ns, uint64_t step,
                        uint32_t chunk, uint32_t peer)
{
    trace_end_range(kind);
    if (!ps_trace_on() || begin_ns == 0) return;
    if (step > atomic_load_explicit(&trace.newest_step, memory_order_relaxed))
        atomic_store_explicit(&trace.newest_step, step, memory_order_relaxed);
    if (step < trace.first || step > trace.last) return;
    trace_add((record){.begin = begin_ns,
                       .duration = ps_clock_ns() - begin_ns,
                       .step = (uint32_t)step,
                       .chunk = chunk,
                       .peer = peer,
                       .kind = (uint8_t)kind});
}

void ps_trace_add(ps_trace_kind kind, uint64_t begin_ns, uint64_t step)
{
    ps_trace_add_chunk(kind, begin_ns, step, PS_TRACE_NONE, PS_TRACE_NONE);
}

void ps_trace_add_peer(ps_trace_kind kind, uint64_t begin_ns, uint32_t peer)
{
    const uint64_t step = atomic_load_explicit(&trace.newest_step, memory_order_relaxed);
    ps_trace_add_chunk(kind, begin_ns, step, PS_TRACE_NONE, peer);
}

void ps_trace_job(uint64_t nonce)
{
    if (ps_trace_on()) trace_add((record){.kind = PS_TRACE_JOB, .begin = nonce});
}

void ps_trace_clock(uint64_t at_ns, int64_t ahead_ns, uint64_t error_ns)
{
    if (!ps_trace_on()) return;
    trace_add((record){.kind = PS_TRACE_CLOCK,
                       .begin = at_ns,
                       .duration = error_ns,
                       .step = (uint32_t)(uint64_t)ahead_ns,
                       .chunk = (uint32_t)((uint64_t)ahead_ns >> 32)});
}
