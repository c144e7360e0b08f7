#include "sampler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "rng.h"

static bool equal_batches(const ps_sampler_options *o)
{
    for (int r = 1; r < o->world_size; r++)
        if (o->batch[r] != o->batch[0]) return false;
    return true;
}

/* Samples of one whole global batch. */
static int64_t whole_global(const ps_sampler_options *o)
{
    int64_t sum = 0;
    for (int r = 0; r < o->world_size; r++)
        sum += o->batch[r];
    return sum;
}

/* The first position of the epoch. */
static int64_t sampler_first_of(const ps_sampler_options *o, uint64_t number)
{
    return number == o->start.epoch ? o->start.position : 0;
}

/* n samples, padded or cut by ranks: DistributedSampler's total_size. */
static int64_t by_ranks(const ps_sampler_options *o, int64_t n)
{
    int64_t w = o->world_size;
    return o->drop_last ? n / w * w : (n + w - 1) / w * w;
}

/* Length of the permutation from position `first` on, padded or cut for the ranks. With
 * unequal batches the last global batch may have fewer samples than there are ranks. As
 * every rank needs one, it is then padded to one for each, or dropped; also dropped where
 * all that it has is padding. With unequal batches, first need not be a multiple of the
 * ranks: the end of the epoch does not depend on it. */
static int64_t ranks_total(const ps_sampler_options *o, int64_t first)
{
    const int64_t w = o->world_size, left = o->n_samples - first;
    if (left <= 0) return 0;
    if (equal_batches(o)) return by_ranks(o, left);
    const int64_t total = by_ranks(o, o->n_samples) - first;
    if (total <= 0) return 0;
    const int64_t rest = total % whole_global(o), full = total - rest;
    if (rest == 0 || rest >= w) return total;
    return o->drop_last || full >= left ? full : full + w;
}

/* ranks_total, without a short last batch if drop_last_batch. */
static int64_t total_size(const ps_sampler_options *o, int64_t first)
{
    const int64_t total = ranks_total(o, first), parts = o->drop_last_batch;
    return parts > 0 ? total - total % (parts * whole_global(o)) : total;
}

static int64_t batches_of(const ps_sampler_options *o, int64_t first)
{
    int64_t whole = whole_global(o);
    return (total_size(o, first) + whole - 1) / whole;
}

int64_t ps_sampler_n_batches(const ps_sampler_options *o)
{
    return batches_of(o, 0);
}

int64_t ps_sampler_n_seen(const ps_sampler_options *o)
{
    return total_size(o, 0);
}

int64_t ps_sampler_epoch_batches(const ps_sampler_options *o, uint64_t number)
{
    return batches_of(o, sampler_first_of(o, number));
}

/* Samples that the ranks before `rank` take of a global batch of n. Each rank takes one,
 * and a share of the rest in proportion to its batch size. The running sum is rounded
 * down, so that the parts add up to n and no part is larger than the rank's batch. */
static int64_t share_before(const ps_sampler_options *o, int64_t n, int rank)
{
    int64_t whole = whole_global(o), before = 0;
    for (int r = 0; r < rank; r++)
        before += o->batch[r];
    if (n == whole) return before;
    int64_t spare = whole - o->world_size;
    if (spare == 0) return rank;
    // __int128: samples times batch sizes may exceed 64 bits.
    return rank + (int64_t)((__int128)(n - o->world_size) * (before - rank) / spare);
}

static ps_err sampler_check(const ps_sampler_options *o)
{
    if (o->n_samples < 1)
        return ps_err_set(PS_ERR_ARG, "the sampler needs at least one sample");
    if (o->world_size < 1 || o->rank < 0 || o->rank >= o->world_size)
        return ps_err_set(PS_ERR_ARG, "the sampler has no rank %d of %d", o->rank,
                          o->world_size);
    for (int r = 0; r < o->world_size; r++)
        if (o->batch[r] < 1 || o->batch[r] > INT32_MAX)
            return ps_err_set(PS_ERR_ARG,
                              "data.batch: %" PRId64 " of rank %d is not valid",
                              o->batch[r], r);
    if (o->start.position < 0)
        return ps_err_set(PS_ERR_ARG, "an epoch has no position %" PRId64,
                          o->start.position);
    int64_t total = total_size(o, 0);
    if (total > UINT32_MAX)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "an epoch of %" PRId64 " samples: at most %" PRIu32, total,
                          UINT32_MAX);
    if (total == 0)
        return ps_err_set(
            PS_ERR_CONFIG, "%s leaves nothing of %" PRId64 " samples for %d workers%s",
            ranks_total(o, 0) ? "data.drop_last_batch" : "data.drop_last", o->n_samples,
            o->world_size,
            !ranks_total(o, 0)       ? ""
            : o->drop_last_batch > 1 ? ": no batch of data.global_batch is full"
                                     : ": no batch of data.batch is full");
    return PS_OK;
}

/* Fills positions and batches: every W-th of the permutation, from rank on. */
static void cut_equal(ps_epoch *epoch, const ps_sampler_options *o, int64_t first)
{
    int64_t b = o->batch[0];
    for (int64_t i = 0; i < epoch->n; i++)
        epoch->positions[i] = (uint32_t)(first + o->rank + i * o->world_size);
    for (int64_t k = 0; k < epoch->n_batches; k++) {
        int64_t left = epoch->n - k * b, n = left < b ? left : b;
        epoch->batches[k] = (ps_sampler_batch){k * b, n, n * o->world_size};
    }
}

/* Fills positions and batches: this rank's slice of every global batch. */
static void cut_unequal(ps_epoch *epoch, const ps_sampler_options *o, int64_t first,
                        int64_t total)
{
    int64_t whole = whole_global(o), filled = 0;
    for (int64_t k = 0; k < epoch->n_batches; k++) {
        int64_t left = total - k * whole, global_n = left < whole ? left : whole;
        int64_t from = share_before(o, global_n, o->rank);
        int64_t n = share_before(o, global_n, o->rank + 1) - from;
        epoch->batches[k] = (ps_sampler_batch){filled, n, global_n};
        for (int64_t i = 0; i < n; i++)
            epoch->positions[filled++] = (uint32_t)(first + k * whole + from + i);
    }
}

/* This rank's samples in an epoch of total. */
static int64_t rank_samples(const ps_sampler_options *o, int64_t total)
{
    if (equal_batches(o)) return total / o->world_size;
    int64_t whole = whole_global(o), rest = total % whole;
    int64_t n = total / whole * o->batch[o->rank];
    if (rest > 0)
        n += share_before(o, rest, o->rank + 1) - share_before(o, rest, o->rank);
    return n;
}

/* Fills indices from positions: the permutation repeats cyclically after its end. */
static ps_err take_indices(ps_epoch *epoch, const ps_sampler_options *o, uint64_t number)
{
    if (!o->shuffle) {
        for (int64_t i = 0; i < epoch->n; i++)
            epoch->indices[i] = epoch->positions[i] % o->n_samples;
        return PS_OK;
    }
    int64_t *order = NULL;
    PS_TRY(PS_NEW(&order, (size_t)o->n_samples, "the permutation"));
    ps_mt19937 generator;
    ps_mt19937_seed(&generator, o->seed + number);
    ps_randperm(&generator, o->n_samples, order);
    for (int64_t i = 0; i < epoch->n; i++)
        epoch->indices[i] = order[epoch->positions[i] % o->n_samples];
    free(order);
    return PS_OK;
}

ps_err ps_epoch_init(ps_epoch *epoch, const ps_sampler_options *o, uint64_t number)
{
    memset(epoch, 0, sizeof *epoch);
    PS_TRY(sampler_check(o));
    ps_err err = PS_OK;
    int64_t first = sampler_first_of(o, number), total = total_size(o, first);
    epoch->n = rank_samples(o, total);
    epoch->n_batches = ps_sampler_epoch_batches(o, number);
    size_t n = (size_t)epoch->n, n_batches = (size_t)epoch->n_batches;
    PS_TRY_GOTO(PS_NEW(&epoch->indices, n, "indices"), err, fail);
    PS_TRY_GOTO(PS_NEW(&epoch->positions, n, "indices"), err, fail);
    PS_TRY_GOTO(PS_NEW(&epoch->batches, n_batches, "batches"), err, fail);
    if (equal_batches(o))
        cut_equal(epoch, o, first);
    else
        cut_unequal(epoch, o, first, total);
    PS_TRY_GOTO(take_indices(epoch, o, number), err, fail);
    return PS_OK;
fail:
    ps_epoch_fini(epoch);
    return err;
}

void ps_epoch_fini(ps_epoch *epoch)
{
    free(epoch->indices);
    free(epoch->positions);
    free(epoch->batches);
    memset(epoch, 0, sizeof *epoch);
}

/* Where the slice of a rank begins; of world_size: where the last one ends. */
static int64_t share_begin(int64_t n_samples, const int64_t *shares, int world_size,
                           int rank)
{
    double before = 0, all = 0;
    for (int r = 0; r < world_size; r++) {
        all += (double)shares[r];
        if (r < rank) before += (double)shares[r];
    }
    return rank == world_size ? n_samples : (int64_t)((double)n_samples * before / all);
}

void ps_sampler_eval_slice(int64_t n_samples, const int64_t *shares, int world_size,
                           int rank, int64_t *begin, int64_t *n)
{
    if (shares) {
        *begin = share_begin(n_samples, shares, world_size, rank);
        *n = share_begin(n_samples, shares, world_size, rank + 1) - *begin;
        return;
    }
    int64_t each = n_samples / world_size, more = n_samples % world_size;
    *begin = rank * each + (rank < more ? rank : more);
    *n = each + (rank < more ? 1 : 0);
}
