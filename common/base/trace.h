/* The trace of a process: what its threads did when. deploy/trace-report merges the files
 * of all processes of a job into one trace.json for Perfetto.
 *
 * Like the log, there is one per process. Until ps_trace_start nothing is recorded, and a
 * call costs one load. Afterwards each thread collects its records, and writes them when
 * it has many, or a second after the last ones.
 *
 * The file: a line of JSON that names the process and the kinds of records, then records
 * of 32 bytes, little-endian:
 *
 *   u64 begin, u64 duration (nanoseconds of CLOCK_MONOTONIC), u32 step, u32 chunk,
 *   u32 peer, u8 kind, u8 lane, u16 zero
 *
 * Records that are not spans (their names begin with #) use the fields in other ways:
 *
 *   #lane    a thread's name: 16 bytes in place of begin and duration
 *   #job     begin: the nonce of a job that the process has joined
 *   #clock   begin: when it was measured, duration: its largest error, step and chunk:
 *            the low and high half of the (signed) nanoseconds that the coordinator's
 *            clock is ahead of this one
 *   #full    the file has reached its limit, and nothing follows
 */
#ifndef PS_TRACE_H
#define PS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

#define PS_TRACE_MAP(X)                                                                  \
    X(LANE, "#lane")                                                                     \
    X(JOB, "#job")                                                                       \
    X(CLOCK, "#clock")                                                                   \
    X(FULL, "#full")                                                                     \
    /* a worker's step loop */                                                           \
    X(STEP, "step")                                                                      \
    X(BATCH, "batch")                                                                    \
    X(PREFETCH, "prefetch")                                                              \
    X(FORWARD, "forward")                                                                \
    X(BACKWARD, "backward")                                                              \
    X(WAIT, "wait") /* for weights */                                                    \
    X(AGREE, "agree")                                                                    \
    X(DRAIN, "drain")                                                                    \
    X(SAVE, "save")                                                                      \
    X(CHECKPOINT, "checkpoint")                                                          \
    X(EVALUATE, "evaluate")                                                              \
    /* its communication; peer: the shard */                                             \
    X(ENCODE, "encode")                                                                  \
    X(SEND, "send")     /* a gradient, until ZeroMQ has it */                            \
    X(DECODE, "decode") /* weights that came: into the arena */                          \
    /* a shard; peer: the worker */                                                      \
    X(RECEIVE, "receive") /* a gradient */                                               \
    X(SUM, "sum")                                                                        \
    X(NORM, "norm")   /* waits for the norm of the whole gradient */                     \
    X(APPLY, "apply") /* with the sum, where nothing comes between */                    \
    X(REPLY, "reply")                                                                    \
    /* the coordinator; peer: the member's rank */                                       \
    X(GATHER, "gather")                                                                  \
    X(ADD_NORM, "add norm")                                                              \
    X(BOARD, "board")

typedef enum ps_trace_kind {
#define PS_TRACE_ENUM(kind, name) PS_TRACE_##kind,
    PS_TRACE_MAP(PS_TRACE_ENUM)
#undef PS_TRACE_ENUM
        PS_TRACE_KINDS
} ps_trace_kind;

enum { PS_TRACE_RECORD_BYTES = 32 };
#define PS_TRACE_NONE UINT32_MAX // no chunk; no peer

typedef struct ps_trace_options {
    const char *path; // written anew
    const char *role; // "worker" or "server"
    int rank;
    bool own_pace;         // each worker counts its own pushes, and shards count versions
    uint64_t first, steps; // the steps that are recorded; steps 0: all from the first
    uint64_t limit;        // bytes of the file
} ps_trace_options;

/* IO when the file cannot be written. Starting again while it records does nothing. Must
 * not be called by two threads at once. */
ps_err ps_trace_start(const ps_trace_options *options);
/* Writes what the calling thread has; other threads that record must have ended. IO when
 * anything could not be written. Safe when nothing records. */
ps_err ps_trace_stop(void);

bool ps_trace_on(void);
/* The present time for begin_ns, or 0 when nothing is recorded. */
uint64_t ps_trace_now(void);

/* A profiler's ranges: of a thread, one within the other. */
typedef struct ps_trace_ranges {
    void (*push)(const char *name);
    void (*pop)(void);
} ps_trace_ranges;

/* Spans that ps_trace_begin begins are ranges of the profiler from now on, whether or not
 * the trace records. ranges: borrowed, for ever; NULL: no profiler. */
void ps_trace_show(const ps_trace_ranges *ranges);
/* The present time for begin_ns, in any case. The range ends with the thread's next span
 * of that kind, and with the one that it lies within: so an error leaves none open. */
uint64_t ps_trace_begin(ps_trace_kind kind);

/* The span from begin_ns (ps_clock_ns; 0: none) to now. */
void ps_trace_add(ps_trace_kind kind, uint64_t begin_ns, uint64_t step);
void ps_trace_add_chunk(ps_trace_kind kind, uint64_t begin_ns, uint64_t step,
                        uint32_t chunk, uint32_t peer);
/* A span of the newest step that any thread has recorded. */
void ps_trace_add_peer(ps_trace_kind kind, uint64_t begin_ns, uint32_t peer);
void ps_trace_job(uint64_t nonce);
void ps_trace_clock(uint64_t at_ns, int64_t ahead_ns, uint64_t error_ns);

#endif
