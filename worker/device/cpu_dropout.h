/* Dropout's masks and their application. */
#ifndef PS_CPU_DROPOUT_H
#define PS_CPU_DROPOUT_H

#include "cpu_shape.h"
#include "rng.h"

typedef struct ps_cpu_dropout {
    ps_cpu_shape in, out; // equal, or one of them plain
    double p;
    uint32_t id; // the layer's stream of draws
} ps_cpu_dropout;

/* Bytes of a mask: one per element of a sample in row-major order, rounded up to whole
 * draws, or one per element of the blocked layout that in and out have in common. */
size_t ps_cpu_dropout_mask_bytes(const ps_cpu_dropout *d);

/* Draws the masks of the batch (rng.h): 1 keeps. positions (n). scratch: one sample's
 * features, rounded up to a multiple of 128, in bytes. */
void ps_cpu_dropout_draw(const ps_cpu_dropout *d, ps_dropout_key key,
                         const uint32_t *positions, uint8_t *mask, uint8_t *scratch);
/* Bytes of scratch that ps_cpu_dropout_draw needs. */
size_t ps_cpu_dropout_scratch_bytes(const ps_cpu_dropout *d);

/* y = mask ? x / (1 - p) : 0, from the layout of in to that of out; y may be x if these
 * are equal. */
void ps_cpu_dropout_forward(const ps_cpu_dropout *d, const uint8_t *mask, const float *x,
                            float *y);
/* The other way for the gradient; add: dx +=. dx may be dy as above; dy is spent: it may
 * hold anything after. */
void ps_cpu_dropout_backward(const ps_cpu_dropout *d, const uint8_t *mask, float *dy,
                             float *dx, bool add);

#endif
