/* Collectives: what an all-reduce engine (Gloo, NCCL) has to give, and no more.
 *
 * One thread at a time calls all_reduce and broadcast, every rank in the same order with
 * the same counts. abort may be called from any other thread.
 */
#ifndef PS_COLLECTIVE_H
#define PS_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "member.h"

typedef struct ps_collective ps_collective;

typedef struct ps_collective_range {
    void *bytes; // where the stream of the engine reads and writes it
    size_t n_bytes;
} ps_collective_range;

typedef struct ps_collective_ops {
    const char *name;
    /* values (count) become the sum over the ranks, the same bits on every rank; with two
     * ranks a + b. Blocks until that is so; NET or TIMEOUT when it cannot be: then only
     * abort and destroy may follow. */
    ps_err (*all_reduce)(ps_collective *c, float *values, uint64_t count);
    /* Rank 0's bytes of n ranges become everybody's. Failures as above. */
    ps_err (*broadcast)(ps_collective *c, const ps_collective_range *ranges, int n);
    /* Ends a call that another thread is blocked in, and every later one, with NET. */
    void (*abort)(ps_collective *c);
    void (*destroy)(ps_collective **c);
} ps_collective_ops;

struct ps_collective {
    const ps_collective_ops *ops;
};

#endif
