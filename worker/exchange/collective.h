/* Collectives: what an all-reduce engine (Gloo, NCCL) has to give, and no more.
 *
 * One thread at a time calls them but abort, every rank in the same order with the same
 * counts and cuts. abort may be called from any other thread.
 */
#ifndef PS_COLLECTIVE_H
#define PS_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "member.h"

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

/* An engine gives all_reduce or, instead of it, reduce_scatter and all_gather. They block
 * until it is done, but for sums that are queued (settle); NET or TIMEOUT when it cannot
 * be: then only abort and destroy may follow. */
typedef struct ps_collective_ops {
    const char *name;
    /* values (count) become the sum over the ranks, the same bits on every rank; with two
     * ranks a + b. */
    ps_err (*all_reduce)(ps_collective *c, float *values, uint64_t count);
    /* Of an engine that queues sums where its stream is a queue (device_stream.h: step):
     * all_reduce returns when the sum stands in the stream. *done: whether all of them
     * are made; wait: returns when they are. Has a deadline, from the last one on. NULL:
     * they are made when all_reduce returns. */
    ps_err (*settle)(ps_collective *c, bool wait, bool *done);
    /* The rank's own part of values, cut as above, becomes the sum over the ranks, added
     * in their order: ((r0 + r1) + r2) + ... The other parts stay. */
    ps_err (*reduce_scatter)(ps_collective *c, float *values, const uint64_t *cuts);
    /* Of n arrays, every rank's part becomes everybody's. */
    ps_err (*all_gather)(ps_collective *c, const ps_collective_parts *arrays, int n);
    /* Rank 0's bytes of n ranges become everybody's. */
    ps_err (*broadcast)(ps_collective *c, const ps_collective_range *ranges, int n);
    /* Ends a call that another thread is blocked in, and every later one, with NET. */
    void (*abort)(ps_collective *c);
    void (*destroy)(ps_collective **c);
} ps_collective_ops;

struct ps_collective {
    const ps_collective_ops *ops;
    /* Payload since connecting, as computed: sent (and as much received), and what ranks
     * read from each other's memory instead. Of the thread that makes the calls. */
    uint64_t bytes, shm_bytes;
};

#endif
