/* A reference for devices: every layer and loss of a model as plain loops in double, from
 * PyTorch's documented formulas, row-major. Slow and simple; it shares no code with the
 * devices. */
#ifndef PS_REF_LAYERS_H
#define PS_REF_LAYERS_H

#include "device.h"
#include "model_spec.h"

typedef struct ref_model {
    const ps_model_spec *spec;
    int n; // samples
    /* Factors of products and values between layers are rounded to that many binary
     * digits (bf16: 8, fp16: 11), none below 2^least; digits 0: no rounding. What the
     * loss and log_softmax read and write is not rounded. */
    int digits, least;
    /* Not 0: what is computed and then rounded first moves by up to 2^-20 of itself and
     * of the array's root mean square, at random. So values near a tie round to either
     * side, as they do where sums of float32 are made in another order. */
    uint64_t nudge;
    bool whole_values; // values between layers are not rounded, only factors
    /* Outputs of products are rounded once, with their bias; the model's input is not. */
    bool rounds_once;
    double *params;     // as the parameter arena
    double *grads;      // added to by every backward pass
    double *statistics; // running mean and variance, at the buffer's offset / 4
    double **value;     // per layer: output (n, out)
    double **gradient;  // per layer: of the output
    double *input;      // (n, in)
    double weight;      // mean loss = sum of losses / weight
    double *mean, *var; // scratch of a batch norm (per layer, 4096 channels at most)
} ref_model;

void ref_init(ref_model *m, const ps_model_spec *spec, int n, const float *params,
              const void *buffers);
void ref_fini(ref_model *m);
/* The sum of the samples' losses; the statistics are updated in training. */
double ref_forward(ref_model *m, const ps_batch *batch, const ps_pass *pass);
void ref_backward(ref_model *m, const ps_batch *batch, const ps_pass *pass);
const double *ref_outputs(const ref_model *m);

#endif
