/* The CUDA device's memory: what a program keeps on the GPU and where, for the largest
 * batch. Values and gradients that are never alive at the same time share memory
 * (memory_plan.h).
 *
 * With train.precision bf16 or fp16, values between layers and their gradients have 16
 * bits, as matrix products read and write them, except those that stay float32
 * (layer_precision.h). */
#ifndef PS_CUDA_PLAN_H
#define PS_CUDA_PLAN_H

#include "cuda_conv_plans.h"
#include "cuda_gpu.h"
#include "device.h"
#include "memory_plan.h"
#include "model_graph.h"

/* A value of the graph: (n, channels, plane), with channels last (n, plane, channels), or
 * flat (n, features). */
typedef struct ps_cuda_value {
    int64_t channels, plane, features; // flat: channels = features, plane 1
    ps_layout layout;
    int slot, grad_slot;
    ps_values at, grad; // grad.at NULL: not needed
} ps_cuda_value;

/* Both layouts are (n * outer, channels, inner). */
static inline int64_t ps_cuda_outer(const ps_cuda_value *v)
{
    return v->layout.channels_last ? v->plane : 1;
}

static inline int64_t ps_cuda_inner(const ps_cuda_value *v)
{
    return v->layout.channels_last ? 1 : v->plane;
}

/* Whether flattening the value changes the order of its elements: flat values are in the
 * order (C, H, W), as the weights of linear layers are. */
static inline bool ps_cuda_flatten_turns(const ps_cuda_value *v)
{
    return v->layout.channels_last && v->channels > 1 && v->plane > 1;
}

typedef struct ps_cuda_step {
    const ps_model_node *node;
    bool add[2]; // backward: add to the input's gradient
    bool view;   // FLATTEN: the output shares the input's memory
    /* BATCH_NORM2D: the next step adds another value to the output, which nobody else
     * reads. One kernel does both, in this step; the outputs of both share memory. */
    bool adds;
    bool added;        // ADD: the step before does so
    bool same_grads;   // ADD, then: the inputs' gradients share memory
    int64_t slice;     // CONV2D: samples whose columns are made at a time
    ps_planes planes;  // CONV2D and pooling
    uint8_t *place;    // MAX_POOL2D
    uint32_t *argmax;  // ADAPTIVE_MAX_POOL2D
    float *mean, *inv; // of norms: of the last forward pass
    int slot[2];       // slots of place or argmax, or of mean and inv
} ps_cuda_step;

/* Consecutive steps whose parameters are copied together, at least group_bytes of them.
 * Groups are formed from the last layer to the first, as chunks and buckets are. */
typedef struct ps_cuda_group {
    int begin, end; // steps
    int first, n;   // tensors, consecutive; n 0: none
    /* uploaded: the parameters are on the GPU; made: the gradients are computed; home:
     * the gradients are in host memory, or may be read on the GPU (shared). */
    ps_gpu_event *uploaded, *made, *home;
} ps_cuda_group;

/* Arenas that stay on the GPU, where an exchange works on them (cuda_stream.h). */
typedef struct ps_cuda_resident {
    const float *host_params; // identifies the arena
    float *params, *grads;
    ps_gpu_event *announced; // compute has written all gradients announced to hooks
    ps_gpu_event *released;  // the exchange has written the parameters that it released
} ps_cuda_resident;

/* Weights and gradients that stay on the GPU, where processes of the host read them
 * (cuda_shared.h). */
typedef struct ps_cuda_shared {
    const float *host_params, *host_grads; // identify the arenas
    float *params, *grads;
} ps_cuda_shared;

/* What of a program's is kept on the GPU by others. */
typedef struct ps_cuda_kept {
    const ps_cuda_resident *resident;  // borrowed; NULL: none
    float *params, *grads;             // shared, without resident; NULL: the plan's own
    const struct ps_cuda_codes *codes; // encodes the gradients; NULL: nothing does
} ps_cuda_kept;

typedef struct ps_cuda_plan {
    ps_gpu *gpu;                      // borrowed
    const ps_cuda_resident *resident; // borrowed; NULL: the plan owns params and grads
    ps_cuda_kept kept;                // except what others keep
    const ps_program_options *options;
    const ps_model_graph *graph;
    ps_cuda_value *values; // by edge of the graph
    ps_cuda_step *steps;   // by node
    ps_cuda_group *groups; // in the order of the forward pass
    int n_groups;
    ps_memory_plan memory; // only its slots; the memory is base
    char *base;
    float *params, *grads; // on the GPU; grads NULL: no training
    char *buffers;
    ps_cuda_conv_plans *convs; // of a library; NULL: none
    /* Pictures between layers are (n, H, W, C), weights of convolutions in weights16
     * (C', kh, kw, C / groups). */
    bool channels_last;
    void *scratch; // im2col's columns, or their gradient, or the library's scratch
    /* A convolution's outputs, or their gradients, as (channels, n, plane). */
    ps_values swapped;
    float *mirrored; // a convolution's weights (ps_k_mirror)
    /* Only where products take 16 bits: the weights (ps_cuda_weight16_at), and copies of
     * a float32 input and a float32 gradient. */
    ps_values weights16, input16, grad16;
    /* A convolution's weight gradient, in the format and order in which it is computed,
     * where these are not the arena's. */
    void *weight_grad;
    ps_sums *parts;            // partial sums of rows of images
    float *mean_dy, *mean_dot; // (channels, or samples * groups)
    ps_sums *total;            // loss; after it that of each sample (ps_k_loss)
    float *class_weights;      // (outputs); NULL: all 1
} ps_cuda_plan;

/* Borrows all arguments, and what is kept. library may be NULL. channels_last:
 * train.channels_last. plan is safe for fini after a failure; the error names the layer
 * and what was asked for. */
ps_err ps_cuda_plan_init(ps_cuda_plan *plan, ps_gpu *gpu, ps_conv_library *library,
                         ps_switch channels_last, const ps_program_options *options,
                         const ps_model_graph *graph, ps_cuda_kept kept);
void ps_cuda_plan_fini(ps_cuda_plan *plan);

/* A tensor of ps_tensor_table_at. NULL for PS_NONE; the gradient's also for one that is
 * frozen. */
float *ps_cuda_param(const ps_cuda_plan *plan, int tensor);
float *ps_cuda_grad(const ps_cuda_plan *plan, int tensor);
float *ps_cuda_buffer(const ps_cuda_plan *plan, int buffer);

/* Where weights16 holds the tensor: elements. */
uint64_t ps_cuda_weight16_at(const ps_cuda_plan *plan, int tensor);

/* For messages: the layer's name, or its kind if it has no name. */
const char *ps_cuda_layer_name(const ps_layer *layer);

#endif
