/* torchvision's v2.MixUp: a batch is mixed with itself, rolled by one sample,
 *
 *   x[i] = lambda x[i] + (1 - lambda) x[i - 1],   x[-1] is the last sample,
 *
 * and so are the labels, as one-hot vectors (Zhang et al., "mixup: Beyond Empirical Risk
 * Minimization", 2018). Sums are in float32, as torchvision's are.
 *
 * lambda is from Beta(alpha, alpha): X / (X + Y) of two Gamma(alpha) numbers, X by
 * Marsaglia and Tsang, "A simple method for generating gamma variables" (2000). Attempt
 * k's draws are the words of philox(key = {seed, seed >> 32}, counter = {2 k, and 2 k + 1
 * for Y, PS_MIXUP_STREAM, position, epoch}). The position is that of the batch's first
 * sample: no two batches of an epoch, on any rank, have the same one, and a job that goes
 * on has the batches of one that never stopped. */
#ifndef PS_MIXUP_H
#define PS_MIXUP_H

#include "transform.h"

#define PS_MIXUP_STREAM 0x4D495855u

/* key.position: of the batch's first sample; alpha is above 0. Returns 0 to 1. */
float ps_mixup_lambda(double alpha, ps_draw_key key);

/* x (n, count) in place; last (count): room for a sample. */
void ps_mixup_samples(float lambda, int64_t n, int64_t count, float *x, float *last);

/* targets (n, classes) of labels (n), each 0 to classes - 1. */
void ps_mixup_targets(float lambda, int64_t n, int64_t classes, const int32_t *labels,
                      float *targets);

#endif
