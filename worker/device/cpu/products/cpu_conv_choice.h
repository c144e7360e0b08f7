/* Which of oneDNN's implementations compute a convolution, and in which layouts. */
#ifndef PS_CPU_CONV_CHOICE_H
#define PS_CPU_CONV_CHOICE_H

#include "cpu_instructions.h"
#include "cpu_shape.h"
#include "model_spec.h"

typedef struct ps_cpu_conv_use {
    bool relu; // y = max(0, .)
    bool training;
    bool data_gradient;   // the backward pass computes dx
    ps_winograd winograd; // which passes of 3 x 3 windows may use the algorithm
    /* BF16, FP16: the input, the weights and the gradient of the output have 16 bits.
     * What is computed of them is float32, except the output and the input's gradient if
     * they are to be stored as 16 bits. */
    ps_cpu_factors factors;
    bool narrow_y, narrow_dx;
} ps_cpu_conv_use;

/* Which passes are products of matrices, whose rows are the windows (cpu_windows.h). */
typedef enum ps_cpu_conv_products {
    PS_CPU_NO_PRODUCTS,
    PS_CPU_WEIGHTS_PRODUCTS, // the gradient of the weights
    PS_CPU_ALL_PRODUCTS
} ps_cpu_conv_products;

typedef struct ps_cpu_conv_choice {
    ps_cpu_shape in, out; // the layouts; in: with its border
    bool border;          // the layer's padding is part of the input, as zeros
    ps_cpu_conv_products products;
    bool wide_weights; // backward_weights takes float32 copies of narrow factors
    // cpu_depthwise computes this gradient instead
    bool depthwise_weights, depthwise_data;
    bool slow; // one of the passes has only reference code
    int grade; // of the worst pass; kernels have the highest
    // owned; the last two are NULL where they are not needed
    dnnl_primitive_desc_t forward, backward_data, backward_weights;
} ps_cpu_conv_choice;

/* The dimensions of a CONV2D's weights, and their number: (out, in, h, w), or (groups,
 * out / groups, in / groups, h, w). */
int ps_cpu_conv_weight_dims(const ps_layer *layer, dnnl_dims_t dims);

/* Whether Winograd's algorithm F(4x4, 3x3) computes the layer, in whole vectors. */
bool ps_cpu_conv_can_be_winograd(const ps_layer *layer);

/* in: the input's shape without a border; its layout is ignored. choice is safe for fini
 * after a failure. UNSUPPORTED when oneDNN cannot compute the layer with these factors.
 */
ps_err ps_cpu_conv_choose(ps_cpu_conv_choice *choice, dnnl_engine_t engine,
                          const ps_layer *layer, const ps_cpu_shape *in,
                          const ps_cpu_conv_use *use);
void ps_cpu_conv_choice_fini(ps_cpu_conv_choice *choice);

#endif
