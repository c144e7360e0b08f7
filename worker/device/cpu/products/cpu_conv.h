/* conv2d through oneDNN, in layouts for which the library has fast code in all the passes
 * that are needed. Also linear, without its bias, where the factors have 16 bits.
 *
 * The input and the gradient of the output are the factors of products, with the
 * weights: float32, 16 bits, or float32 rounded to those. The caller rounds the first
 * two. The weights are rounded in the forward pass; what is computed is float32, or
 * stored as 16 bits if the caller asks for it. */
#ifndef PS_CPU_CONV_H
#define PS_CPU_CONV_H

#include "cpu_conv_choice.h"
#include "cpu_op.h"
#include "cpu_windows.h"
#include "memory_plan.h"

typedef struct ps_cpu_conv {
    const ps_layer *layer;
    ps_cpu_factors factors; // rounded instead of narrow where that is better
    ps_cpu_shape in, out;   // the layouts it reads and writes
    ps_cpu_shape bordered;  // in with the layer's padding around it; n = 0: not needed
    ps_cpu_conv_products products;
    ps_cpu_windows windows;                      // of the products, or of depthwise
    bool depthwise_weights, depthwise_data;      // cpu_depthwise computes these gradients
    ps_cpu_op order_weights, forward;            // PyTorch's order -> the library's
    ps_cpu_op order_weights_back, backward_data; // the first: if the order differs
    ps_cpu_op backward_weights, order_gradient;  // the library's order -> PyTorch's
    bool slow; // the library has only its reference code for one of the passes
    bool own_weights_back; // the backward pass needs the weights in another order
    struct {
        int weights, weights_back, gradient, plain_gradient, bias_gradient;
        int scratch, scratch_data, scratch_weights;
        int bordered, bordered_dx;
        int rows, rows_dx, rows_dy;
        int wide_x, wide_dy;
        int rounded;
    } slot;
    const float *weight; // in the parameter arena
    void *rounded;       // the same as factors, in PyTorch's order; NULL for FLOAT32
    float *plain_gradient, *bias_gradient;
    float *bordered_x, *bordered_dx; // NULL where there is no border
    // products: the windows of x and of its gradient, and dy in channels-last order;
    // NULL where they are not needed
    void *rows;
    float *rows_dx, *rows_dy;
    float *wide_x, *wide_dy; // float32 copies of x and dy, for the weights' gradient
    bool wide_weights;       // it takes such copies
    const void *dy;
    void *dx; // 16 bits with narrow_dx, else float32
    bool narrow_dx;
    int64_t n_weights, n_bias;
} ps_cpu_conv;

/* in: the input's shape in its present layout; conv->in is the layout that the library
 * wants. conv is safe for fini after a failure. UNSUPPORTED also when narrow products of
 * a linear layer have no fast code. */
ps_err ps_cpu_conv_init(ps_cpu_conv *conv, dnnl_engine_t engine, const ps_layer *layer,
                        const ps_cpu_shape *in, const ps_cpu_conv_use *use);
void ps_cpu_conv_fini(ps_cpu_conv *conv);

/* Take the slots of each pass; called in the order of the passes. Slots that a later pass
 * reads stay taken. */
ps_err ps_cpu_conv_plan_forward(ps_cpu_conv *conv, ps_memory_plan *memory, bool training);
ps_err ps_cpu_conv_plan_backward(ps_cpu_conv *conv, ps_memory_plan *memory);

/* Where everything lies. dy and dx are NULL when not training; dx also when it is not
 * needed. */
typedef struct ps_cpu_conv_arrays {
    void *x;              // factors
    void *y;              // 16 bits if that was asked for, else float32
    void *dy;             // factors
    void *dx;             // 16 bits with narrow_dx, else float32
    float *weight, *bias; // in the parameter arena; bias may be NULL
} ps_cpu_conv_arrays;

ps_err ps_cpu_conv_bind(ps_cpu_conv *conv, const ps_memory_plan *memory,
                        const ps_cpu_conv_arrays *arrays);

/* x: where the input lies in this pass. */
ps_err ps_cpu_conv_forward(ps_cpu_conv *conv, dnnl_stream_t stream, const void *x);
/* dweight, dbias: in the gradient arena; NULL: not needed. accumulate: added to what
 * stands there. */
ps_err ps_cpu_conv_backward(ps_cpu_conv *conv, dnnl_stream_t stream, const void *x,
                            float *dweight, float *dbias, bool accumulate);

#endif
