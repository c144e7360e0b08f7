/* What members tell the coordinator of the pace of their steps, so that it can name a
 * straggler (straggler.h). The control message PACE carries it: number 0: the step, 1:
 * the part, 2: the share of the time, in millionths, in which the process did not get the
 * processor (0 where nobody asks); value: doubles, whose times are nanoseconds of the
 * coordinator's clock.
 *
 *   part 0, a worker   ns that it computed; by shard: when it gave its last gradient;
 * when it had its last weights; when it sent its gradients, the mean over the chunks;
 * when it had the weights, the mean part 1 + shard     by rank: when it had the worker's
 * last gradient; when it sent its last weights; by rank: when it had the gradients, the
 * mean; when it sent the weights, the mean
 *
 * The times of the last messages say how long the ways are; the means say how long a
 * message travels.
 *
 * A report costs a message. So of fast steps (below PS_PACE_MS; on one host, where the
 * messages take the workers' processors, below PS_PACE_ONE_HOST_MS) a member reports only
 * those whose number is a multiple of its stride. The stride is a power of two, and grows
 * until PS_PACE_FAST_MS pass between two reports. So all members report the steps that
 * the one that reports most seldom reports. */
#ifndef PS_PACE_H
#define PS_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PS_PACE_MS = 20, PS_PACE_ONE_HOST_MS = 100, PS_PACE_FAST_MS = 200 };

static inline size_t ps_pace_of_worker(int n_shards)
{
    return 1 + 4 * (size_t)n_shards;
}

static inline size_t ps_pace_of_shard(int n_workers)
{
    return 2 * ((size_t)n_workers + 1);
}

typedef struct ps_pace {
    bool one_host; // set by the owner, on all members alike
    uint64_t last_step, last_ns;
    double step_ns; // smoothed
} ps_pace;

/* A step has ended; returns whether it is to be told. */
bool ps_pace_step(ps_pace *p, uint64_t step, uint64_t now_ns);

/* A step that the coordinator is to be told of. */
typedef struct ps_pace_note {
    struct ps_pace_note *next;
    uint64_t step;
    unsigned part;
    size_t n;
    double values[];
} ps_pace_note;

/* Those that wait to be told; zero at first. */
typedef struct ps_pace_queue {
    ps_pace_note *first, *last;
    int n;
} ps_pace_queue;

/* A copy of n values; owned by the caller. NULL: there is no memory. */
ps_pace_note *ps_pace_note_create(uint64_t step, unsigned part, const double *values,
                                  size_t n);
/* Takes the note. False when too many wait: it stays the caller's. */
bool ps_pace_queue_add(ps_pace_queue *q, ps_pace_note *note);
/* All of them, which the caller frees with free. */
ps_pace_note *ps_pace_queue_take(ps_pace_queue *q);

/* How much of the time a thread that wants to wake every PS_PACE_MS was late. Only where
 * some of the job's processes are on another host: its wake-ups take processors too. */
typedef struct ps_stall {
    uint64_t due_ns, since_ns, late_ns;
} ps_stall;

/* The thread is awake. Returns in how many milliseconds it wants to be, at most. */
int ps_stall_awake(ps_stall *s, uint64_t now_ns);
/* The share, in millionths, of the last tenths of a second. */
uint64_t ps_stall_share(ps_stall *s, uint64_t now_ns);

#endif
