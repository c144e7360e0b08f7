/* How an engine that scatters divides the work: of every bucket each rank has a part,
 * whose sum and new weights it makes, and parts travel in segments. A pure function of
 * the model and the number of ranks, the same on every rank, so sender and receiver use
 * the same offsets.
 *
 *     arena   | bucket n-1 ... | bucket 1                  | bucket 0        |
 *     bucket 1                 | rank 0  | rank 1 | rank 2 |
 *     rank 1's part                      |0|1|2|.|   segments, the last is shorter
 */
#ifndef PS_SCATTER_H
#define PS_SCATTER_H

#include <stddef.h>

#include "bucket.h"

/* A segment is the unit that is sent, summed, and stepped. Small ones start the sums
 * early and leave little to do after the last byte; each costs a message. */
enum { PS_SEGMENT_BYTES = 256 << 10 };

typedef struct ps_scatter {
    int n_buckets, n_ranks;
    uint64_t segment; // elements, the most
    const ps_tensor_table *table;
    ps_chunk *parts;  // (n_buckets, n_ranks)
    uint64_t *before; // (n_buckets + 1, n_ranks): the rank's elements in earlier buckets
} ps_scatter;

/* Borrows table. segment: elements, whole PS_TENSOR_ALIGNs, so that none begins in a gap
 * between tensors; UINT64_MAX: every part is one. NOMEM; safe for fini then. */
ps_err ps_scatter_init(ps_scatter *s, const ps_tensor_table *table,
                       const ps_buckets *buckets, int n_ranks, uint64_t segment);
void ps_scatter_fini(ps_scatter *s);

static inline const ps_chunk *ps_scatter_part(const ps_scatter *s, int bucket, int rank)
{
    return s->parts + (size_t)bucket * (size_t)s->n_ranks + (size_t)rank;
}

/* Elements of the rank's parts in the buckets [0, bucket). */
static inline uint64_t ps_scatter_before(const ps_scatter *s, int bucket, int rank)
{
    return s->before[(size_t)bucket * (size_t)s->n_ranks + (size_t)rank];
}

/* Segments of a part; 0 when it is empty. */
uint64_t ps_scatter_segments(const ps_scatter *s, int bucket, int rank);

ps_chunk ps_scatter_segment(const ps_scatter *s, int bucket, int rank, uint64_t i);

#endif
