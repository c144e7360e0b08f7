/* The CUDA device's memory: what a program has on the GPU and where, for the largest
 * batch. Values and their gradients share places as their lives allow (memory_plan.h).
 *
 * With train.precision bf16 or fp16 values between layers and their gradients lie in 16
 * bits, as products read and write them. In float32 stay what the loss reads, and what a
 * log_softmax reads and writes: a few values for each sample, where each digit counts. */
#ifndef PS_CUDA_PLAN_H
#define PS_CUDA_PLAN_H

#include "cuda_conv_plans.h"
#include "cuda_gpu.h"
#include "device.h"
#include "memory_plan.h"
#include "model_graph.h"

/* A value of the graph: (n, channels, plane), or flat (n, features). */
typedef struct ps_cuda_value {
    int64_t channels, plane, features; // flat: channels = features, plane 1
    int slot, grad_slot;
    ps_values at, grad; // grad.at NULL: not needed
} ps_cuda_value;

typedef struct ps_cuda_step {
    const ps_model_node *node;
    bool add[2];       // backward: the input's gradient has a part already
    bool view;         // FLATTEN: its output lies where its input does
    int64_t slice;     // CONV2D: samples whose columns are made at a time
    ps_planes planes;  // CONV2D and pooling
    uint8_t *place;    // MAX_POOL2D
    float *mean, *inv; // BATCH_NORM2D: of the last forward pass
    int slot[2];       // of place, or of mean and inv
} ps_cuda_step;

/* A run of steps whose parameters travel together, at least group_bytes of them: formed
 * from the last layer to the first, as chunks and buckets are. */
typedef struct ps_cuda_group {
    int begin, end; // steps
    int first, n;   // tensors, neighbours; n 0: none
    /* Of these: on the GPU before the group runs; the gradients made there, and at home
     * in host memory. */
    ps_gpu_event *uploaded, *made, *home;
} ps_cuda_group;

/* Arenas that stay on the GPU, where an exchange works on them (cuda_stream.h). */
typedef struct ps_cuda_resident {
    const float *host_params; // which arena it is
    float *params, *grads;
    ps_gpu_event *announced; // compute has made all gradients that hooks were told of
    ps_gpu_event *released;  // the exchange has made all parameters that it said
} ps_cuda_resident;

typedef struct ps_cuda_plan {
    ps_gpu *gpu;                      // borrowed
    const ps_cuda_resident *resident; // borrowed; NULL: params and grads are our own
    const ps_program_options *options;
    const ps_model_graph *graph;
    ps_cuda_value *values; // by edge of the graph
    ps_cuda_step *steps;   // by node
    ps_cuda_group *groups; // in the order of the forward pass
    int n_groups;
    ps_memory_plan memory; // only its slots: the place is base
    char *base;
    float *params, *grads; // copies of the host arenas; grads NULL: no training
    char *buffers;
    ps_cuda_conv_plans *convs; // of a library; NULL: none
    void *scratch; // im2col's columns, or their gradient, or what the library needs
    /* A convolution's outputs, or their gradients, (channels, n, plane). */
    ps_values swapped;
    /* Where products take 16 bits (else nowhere): the weights, at their places in the
     * arena; and copies of an input and of a gradient that lie in float32. */
    ps_values weights16, input16, grad16;
    ps_values weight_grad16;   // that a library makes of a convolution's weights
    ps_sums *parts;            // of rows of images
    float *mean_dy, *mean_dot; // (channels)
    ps_sums *total;            // loss
} ps_cuda_plan;

/* The plan borrows all of them; library may be NULL, as may resident, and has the
 * program's parameters. It is safe for fini after a failure, which names the layer and
 * what was asked for. */
ps_err ps_cuda_plan_init(ps_cuda_plan *plan, ps_gpu *gpu, ps_conv_library *library,
                         const ps_program_options *options, const ps_model_graph *graph,
                         const ps_cuda_resident *resident);
void ps_cuda_plan_fini(ps_cuda_plan *plan);

/* NULL for PS_NONE. */
float *ps_cuda_param(const ps_cuda_plan *plan, int tensor);
float *ps_cuda_grad(const ps_cuda_plan *plan, int tensor);
float *ps_cuda_buffer(const ps_cuda_plan *plan, int buffer);

/* The tensors [*first, *first + *n) of a layer are neighbours; n 0: it has none. */
void ps_cuda_layer_tensors(const ps_layer *layer, int *first, int *n);

/* For messages: its name, or its kind where it has none. */
const char *ps_cuda_layer_name(const ps_layer *layer);

#endif
