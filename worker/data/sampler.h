/* Which samples a rank sees: torch.utils.data.distributed.DistributedSampler's indices.
 *
 * Equal batches: DistributedSampler exactly (seed + epoch, shuffle, drop_last, padding),
 * the rank's list cut into batches, the last may be short. Unequal batches: the padded
 * permutation is cut into global batches of sum(B_r) samples, of which rank r takes the
 * slice behind those of the ranks before it; the last global batch is divided in
 * proportion, every rank at least one sample: should it hold fewer samples than there are
 * ranks, the permutation is padded further (drop_last: they are dropped).
 */
#ifndef PS_SAMPLER_H
#define PS_SAMPLER_H

#include "config.h"

/* Where a job goes on: every global batch is a range of the permutation, so that the
 * samples that were seen are its first ones, whatever the number of ranks was. */
typedef struct ps_sampler_start {
    uint64_t epoch;
    int64_t position; // of the permutation; the epoch begins there
} ps_sampler_start;

typedef struct ps_sampler_options {
    int64_t n_samples;
    int world_size, rank;
    bool shuffle, drop_last;
    bool drop_last_batch; // DataLoader's drop_last: no batch is short
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

/* ARG for options that make no sense, CONFIG when drop_last or drop_last_batch leaves
 * nothing (except of the epoch that the job goes on with), NOMEM; epoch is then safe for
 * fini. */
ps_err ps_epoch_init(ps_epoch *epoch, const ps_sampler_options *options, uint64_t number);
void ps_epoch_fini(ps_epoch *epoch);

/* Micro-batches of an epoch, the same on every rank; no allocation. Options are those
 * that ps_epoch_init accepts; 0 when drop_last or drop_last_batch leaves nothing. */
int64_t ps_sampler_n_batches(const ps_sampler_options *options);
/* Of the epoch `number`: fewer where the job goes on within it; then perhaps 0. */
int64_t ps_sampler_epoch_batches(const ps_sampler_options *options, uint64_t number);

/* Evaluation: contiguous disjoint slices without padding; *begin and *n are rank's. */
void ps_sampler_eval_slice(int64_t n_samples, int world_size, int rank, int64_t *begin,
                           int64_t *n);

#endif
