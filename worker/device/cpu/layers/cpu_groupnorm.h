/* group_norm (Wu and He 2018) and layer_norm (Ba et al. 2016): each sample's groups of
 * channels are normalised by themselves, with the biased variance, in evaluations too.
 * layer_norm of features is the group that holds them all. */
#ifndef PS_CPU_GROUPNORM_H
#define PS_CPU_GROUPNORM_H

#include "cpu_shape.h"
#include "model_spec.h"

typedef struct ps_cpu_groupnorm {
    ps_cpu_shape shape; // of the input and the output; features count as channels-last
    int64_t groups;
    double eps;
    int slot_channels, slot_sums;
    /* The last pass's, of each sample and channel (n, PS_CPU_GROUPNORM_CHANNELS, blocks *
     * lanes): mean and 1 / deviation of its group, and the two means of the gradient. */
    float *channels;
    double *sums; // (n, 2, channels)
} ps_cpu_groupnorm;

enum { PS_CPU_GROUPNORM_CHANNELS = 4 };

/* layer: GROUP_NORM or LAYER_NORM; shape: of its input. The memory is not set. */
ps_cpu_groupnorm ps_cpu_groupnorm_of(const ps_layer *layer, const ps_cpu_shape *shape);
size_t ps_cpu_groupnorm_channel_bytes(const ps_cpu_groupnorm *norm);
size_t ps_cpu_groupnorm_sum_bytes(const ps_cpu_groupnorm *norm);

/* weight, bias (channels). */
void ps_cpu_groupnorm_forward(const ps_cpu_groupnorm *norm, const float *x,
                              const float *weight, const float *bias, float *y);
/* After the forward pass. dx may be dy; add: it is added to. accumulate: the same for
 * dweight and dbias. What is not needed is NULL. */
void ps_cpu_groupnorm_backward(const ps_cpu_groupnorm *norm, const float *x,
                               const float *dy, const float *weight, float *dweight,
                               float *dbias, bool accumulate, float *dx, bool add);

#endif
