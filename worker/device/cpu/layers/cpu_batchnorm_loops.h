/* Batch norm's arithmetic in every layout of an activation, for shapes without vector
 * code in oneDNN: too few channels to fill a vector, or PyTorch's row-major order. Sums
 * have a fixed order for any number of threads. Padding stays zero. */
#ifndef PS_CPU_BATCHNORM_LOOPS_H
#define PS_CPU_BATCHNORM_LOOPS_H

#include "cpu_shape.h"

/* One value per channel: arrays of (C). */
typedef struct ps_cpu_batchnorm_channels {
    const float *mean;
    const float *inv;           // 1 / sqrt(variance + eps)
    const float *weight, *bias; // NULL: 1 and 0
} ps_cpu_batchnorm_channels;

/* What the backward pass reads. */
typedef struct ps_cpu_batchnorm_passed {
    const float *x, *dy;
    const float *y; // the output, if a relu follows whose gradient is applied; else NULL
} ps_cpu_batchnorm_passed;

/* Bytes of scratch for the sums. */
size_t ps_cpu_batchnorm_scratch_bytes(const ps_cpu_shape *shape);

/* Mean and biased variance of each channel of x. */
void ps_cpu_batchnorm_moments(const ps_cpu_shape *shape, const float *x, double *scratch,
                              float *mean, float *variance);
/* inv = 1 / sqrt(variance + eps), (n) each. */
void ps_cpu_batchnorm_invert(int64_t n, const float *variance, float eps, float *inv);

/* y = (x - mean) * inv * weight + bias, then max(0, .) if relu. y may be x. */
void ps_cpu_batchnorm_values(const ps_cpu_shape *shape,
                             const ps_cpu_batchnorm_channels *channels, const float *x,
                             bool relu, float *y);

/* Two sums for each channel: of dy (the gradient of bias), and of dy times the normalised
 * x (the gradient of weight). */
void ps_cpu_batchnorm_sums(const ps_cpu_shape *shape,
                           const ps_cpu_batchnorm_channels *channels,
                           const ps_cpu_batchnorm_passed *passed, double *scratch,
                           float *sum_dy, float *sum_dot);

/* dx = or += the gradient of x; mean_dy and mean_dot: the sums above, divided by the
 * number of values of a channel. dx may be dy. */
void ps_cpu_batchnorm_gradient(const ps_cpu_shape *shape,
                               const ps_cpu_batchnorm_channels *channels,
                               const ps_cpu_batchnorm_passed *passed,
                               const float *mean_dy, const float *mean_dot, float *dx,
                               bool add);

#endif
