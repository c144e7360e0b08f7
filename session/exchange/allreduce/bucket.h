/* Buckets: the ranges of the gradient arena that an all-reduce takes in one call.
 *
 * As in PyTorch's DDP (compute_bucket_assignment_by_size): whole tensors, from the last
 * to the first, a bucket is closed once it has reached its size; the first is small (1
 * MiB), so that the exchange starts early in the backward pass.
 */
#ifndef PS_BUCKET_H
#define PS_BUCKET_H

#include "plan.h"

enum { PS_BUCKET_FIRST_BYTES = 1 << 20 };

typedef struct ps_bucket {
    int first_tensor, n_tensors; // a run of the model's tensors
    uint64_t offset, count;      // elements of the arena, gaps between tensors included
} ps_bucket;

typedef struct ps_buckets {
    int n;
    ps_bucket *list; // bucket 0 holds the last tensor
} ps_buckets;

/* first_bytes, then bytes, are the sizes at which a bucket is closed. NOMEM; safe for
 * fini then. */
ps_err ps_buckets_init(ps_buckets *buckets, const ps_tensor_table *table,
                       uint64_t first_bytes, uint64_t bytes);
void ps_buckets_fini(ps_buckets *buckets);

/* Cuts a bucket into n parts that follow each other, one per rank: as even as whole
 * blocks of the norm allow (gradnorm.h), so that each rank can give the sums of its own
 * blocks. A part may be empty: it has no element and no tensor. */
void ps_bucket_cut(const ps_tensor_table *table, const ps_bucket *bucket, int n,
                   ps_chunk *parts);

/* Narrows a chunk to count of its elements from `from` on, and its tensors to theirs. */
void ps_bucket_narrow(const ps_tensor_table *table, ps_chunk *chunk, uint64_t from,
                      uint64_t count);

#endif
