/* A pass of the CUDA device, as its layers see it. */
#ifndef PS_CUDA_PASS_H
#define PS_CUDA_PASS_H

#include "cuda_plan.h"

/* What the layers of one pass share. Captured launches use it (cuda_graphs.h), so it
 * holds only what is the same in every pass of its kind. */
typedef struct ps_cuda_pass {
    const ps_cuda_plan *plan;
    int64_t n; // samples
    bool training, accumulate;
    bool loss;             // the forward pass computes the loss
    const int32_t *labels; // on the GPU, like the next three
    const float *targets;  // NULL: the labels
    const uint32_t *positions;
    const ps_dropout_words *key;
} ps_cuda_pass;

static inline const ps_cuda_value *ps_cuda_input_of(const ps_cuda_pass *r,
                                                    const ps_cuda_step *s, int k)
{
    return &r->plan->values[s->node->in[k]];
}

static inline const ps_cuda_value *ps_cuda_output_of(const ps_cuda_pass *r,
                                                     const ps_cuda_step *s)
{
    return &r->plan->values[s->node->out];
}

/* Elements of the value in this pass. */
static inline int64_t ps_cuda_count(const ps_cuda_pass *r, const ps_cuda_value *v)
{
    return r->n * v->features;
}

/* For messages. */
#define PS_CUDA_NAME(s) ps_cuda_layer_name((s)->node->layer)

#endif
