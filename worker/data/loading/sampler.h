/* Which samples a rank sees: torch.utils.data.distributed.DistributedSampler's indices.
 *
 * Equal batches: exactly DistributedSampler (seed + epoch, shuffle, drop_last, padding).
 * The rank's list is cut into batches; the last one may be short. Unequal batches: the
 * padded permutation is cut into global batches of sum(B_r) samples. Rank r takes the
 * slice after those of the ranks below it. The last global batch is divided in
 * proportion, with at least one sample for every rank. If it has fewer samples than there
 * are ranks, the permutation is padded further (with drop_last, these samples are
 * dropped). No global batch is of padding alone. */
#ifndef PS_SAMPLER_H
#define PS_SAMPLER_H

#include "config.h"

/* Where a job resumes. Every global batch is a range of the permutation, so the samples
 * already seen are its first ones, whatever the number of ranks was. */
typedef struct ps_sampler_start {
    uint64_t epoch;
    int64_t position; // in the permutation; the epoch begins there
} ps_sampler_start;

typedef struct ps_sampler_options {
    int64_t n_samples;
    int world_size, rank;
    bool shuffle, drop_last;
    int64_t drop_last_batch; // DataLoader's drop_last: drop a short last batch, of that
                             // many micro-batches; 0: do not
    uint64_t seed;
    const int64_t *batch;   // (world_size) samples per micro-batch
    ps_sampler_start start; // {0}: every epoch begins at its first sample
} ps_sampler_options;

/* One micro-batch of this rank in the epoch, and the size of the global one. */
typedef struct ps_sampler_batch {
    int64_t begin, n; // into indices/positions
    int64_t global_n; // sum of n over ranks
} ps_sampler_batch;

typedef struct ps_epoch {
    int64_t n;           // this rank's samples
    int64_t *indices;    // (n) into the dataset
    uint32_t *positions; // (n) into the (padded) permutation, the same on any world size
    int64_t n_batches;
    ps_sampler_batch *batches;
} ps_epoch;

/* ARG for invalid options; CONFIG when drop_last or drop_last_batch leaves no samples
 * (allowed in the epoch that the job resumes in); NOMEM. After a failure epoch is safe
 * for fini. */
ps_err ps_epoch_init(ps_epoch *epoch, const ps_sampler_options *options, uint64_t number);
void ps_epoch_fini(ps_epoch *epoch);

/* Micro-batches of an epoch, the same on every rank; no allocation. options must be valid
 * for ps_epoch_init. 0 when drop_last or drop_last_batch leaves no samples. */
int64_t ps_sampler_n_batches(const ps_sampler_options *options);
/* Samples of these over all ranks: those that are padding, too. */
int64_t ps_sampler_n_seen(const ps_sampler_options *options);
/* Micro-batches of epoch `number`: fewer, perhaps 0, if the job resumes within it. */
int64_t ps_sampler_epoch_batches(const ps_sampler_options *options, uint64_t number);

/* Evaluation: contiguous disjoint slices without padding. shares (world_size), each at
 * least 1: the slices are in proportion to them, rounded down at their ends; NULL: equal,
 * the first ones one longer. *begin and *n: the rank's slice. */
void ps_sampler_eval_slice(int64_t n_samples, const int64_t *shares, int world_size,
                           int rank, int64_t *begin, int64_t *n);

#endif
