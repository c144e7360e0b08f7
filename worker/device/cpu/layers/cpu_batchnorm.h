/* batch_norm2d. Training uses the batch's statistics (biased variance) and updates the
 * running ones as PyTorch does (unbiased variance); evaluation uses the running ones.
 * oneDNN computes it where it has vector code for the shape, else loops of our own. */
#ifndef PS_CPU_BATCHNORM_H
#define PS_CPU_BATCHNORM_H

#include "cpu_instructions.h"
#include "cpu_op.h"
#include "cpu_shape.h"
#include "memory_plan.h"
#include "model_spec.h"

typedef struct ps_cpu_batchnorm_arrays {
    void *x, *y, *dy, *dx;                  // dy, dx NULL when not training
    float *weight, *bias;                   // in the parameter arena, or NULL
    float *running_mean, *running_variance; // in the buffer arena
} ps_cpu_batchnorm_arrays;

typedef struct ps_cpu_batchnorm {
    const ps_layer *layer;
    ps_cpu_shape shape;
    bool affine, relu;
    bool own;                            // loops of our own: no primitives
    ps_cpu_op train, evaluate, backward; // train and backward only when training
    struct {
        int mean, variance, workspace, scale_shift, gradients;
        int scratch, scratch_back;
    } slot;
    const ps_cpu_batchnorm_arrays *arrays; // borrowed
    float *mean, *variance, *scale_gradient, *shift_gradient;
    float *inv;                     // own: 1 / sqrt(variance + eps)
    double *scratch, *scratch_back; // own
    float *scale_shift; // copies of both in one array, for versions of oneDNN that want
                        // this; or NULL
} ps_cpu_batchnorm;

typedef struct ps_cpu_batchnorm_use {
    bool relu; // y = max(0, .); the gradient accounts for it
    bool training;
    /* Of x, y and their gradients: FLOAT32, BF16 or FP16; our own loops take FLOAT32. */
    ps_cpu_factors type;
} ps_cpu_batchnorm_use;

/* norm is safe for fini after a failure. SHAPE when training has only one value per
 * channel. */
ps_err ps_cpu_batchnorm_init(ps_cpu_batchnorm *norm, dnnl_engine_t engine,
                             const ps_layer *layer, const ps_cpu_shape *shape,
                             const ps_cpu_batchnorm_use *use);
void ps_cpu_batchnorm_fini(ps_cpu_batchnorm *norm);

ps_err ps_cpu_batchnorm_plan_forward(ps_cpu_batchnorm *norm, ps_memory_plan *memory,
                                     bool training);
ps_err ps_cpu_batchnorm_plan_backward(ps_cpu_batchnorm *norm, ps_memory_plan *memory);

/* Borrows arrays. */
ps_err ps_cpu_batchnorm_bind(ps_cpu_batchnorm *norm, const ps_memory_plan *memory,
                             const ps_cpu_batchnorm_arrays *arrays);

/* batches: num_batches_tracked, incremented in training; may be NULL. */
ps_err ps_cpu_batchnorm_forward(ps_cpu_batchnorm *norm, dnnl_stream_t stream,
                                const void *x, bool training, int64_t *batches);
/* accumulate: add to dweight and dbias instead of overwriting them. add: the same for dx;
 * only our own loops can do this, and only they allow dx to be NULL. */
ps_err ps_cpu_batchnorm_backward(ps_cpu_batchnorm *norm, dnnl_stream_t stream,
                                 const void *x, float *dweight, float *dbias,
                                 bool accumulate, bool add);

#endif
