/* Collectives: the calls that an all-reduce engine (Gloo, NCCL) provides.
 *
 * One thread at a time calls them, except offer and abort. Every rank calls them in the
 * same order with the same counts. abort may be called from any other thread. */
#ifndef PS_COLLECTIVE_H
#define PS_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "scatter.h"

typedef struct ps_collective ps_collective;

typedef struct ps_collective_range {
    void *bytes; // where the stream of the engine reads and writes it
    size_t n_bytes;
} ps_collective_range;

/* An array of which every rank has a part: rank r elements [cuts[r], cuts[r + 1]). */
typedef struct ps_collective_parts {
    void *base;
    size_t element_bytes;
    const uint64_t *cuts; // (world_size + 1), ascending
} ps_collective_parts;

/* What stays the same in every step of an engine that scatters. All borrowed. */
typedef struct ps_collective_layout {
    const ps_scatter *scatter;
    float *grads, *params;             // the arenas
    const ps_collective_parts *arrays; // what all_gather gathers
    int n_arrays;
} ps_collective_layout;

/* An engine either sums (all_reduce), or it scatters (the slots from lay_out to
 * flush). Blocks until done, except queued sums (complete). NET or TIMEOUT when it
 * cannot be done: then only abort and destroy may follow. */
typedef struct ps_collective_ops {
    /* values (count) become the sum over the ranks, the same bits on every rank; with two
     * ranks a + b. */
    ps_err (*all_reduce)(ps_collective *c, float *values, uint64_t count);
    /* For an engine that queues sums if its stream is a queue (device_stream.h: step):
     * all_reduce returns when the sum is queued. *done: whether all queued sums are
     * complete; wait: returns when they are. The deadline counts from the last sum. NULL:
     * sums are complete when all_reduce returns. */
    ps_err (*complete)(ps_collective *c, bool wait, bool *done);

    /* Before the first of the calls below. */
    ps_err (*lay_out)(ps_collective *c, const ps_collective_layout *layout);
    /* The gradients of the next bucket are final, and belong to the engine until its
     * weights are gathered. By any one thread; returns at once. */
    void (*offer)(ps_collective *c);
    /* Sums the rank's next own segment, in the order of the buckets: in the gradient
     * arena it becomes the sum over the ranks, added in rank order:
     * ((r0 + r1) + r2) + ... */
    ps_err (*sum)(ps_collective *c, int bucket, uint64_t segment);
    /* Sends the parameters of a summed segment to every rank. Returns at once. Called for
     * a bucket's segments in their order. */
    ps_err (*share)(ps_collective *c, int bucket, uint64_t segment);
    /* Of the layout's arrays, every rank's part becomes everybody's. */
    ps_err (*all_gather)(ps_collective *c);
    /* Returns when the other ranks' parameters of a bucket, all of which they share, are
     * in the arena. */
    ps_err (*gather)(ps_collective *c, int bucket);
    /* Returns when all that was offered and shared has left for the peers: before an
     * orderly end. NULL: nothing has to. */
    ps_err (*flush)(ps_collective *c);

    /* Rank 0's bytes of n ranges become everybody's. */
    ps_err (*broadcast)(ps_collective *c, const ps_collective_range *ranges, int n);
    /* Ends a call that another thread is blocked in, and every later one, with NET. */
    void (*abort)(ps_collective *c);
    void (*destroy)(ps_collective **c);
} ps_collective_ops;

struct ps_collective {
    const ps_collective_ops *ops;
    /* The calls are so short that the thread that waits for their results makes them. */
    bool by_caller;
    uint64_t segment; // of an engine that scatters: elements, for the layout's scatter
    /* Payload since connecting, as computed: sent (and as much received), and what ranks
     * read from each other's memory instead. Of the thread that makes the calls. */
    uint64_t bytes, shm_bytes;
};

#endif
