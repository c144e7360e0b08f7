/* Dropout's masks and their application. */
#ifndef PS_CPU_DROPOUT_H
#define PS_CPU_DROPOUT_H

#include "cpu_shape.h"
#include "rng.h"

typedef struct ps_cpu_dropout {
    ps_cpu_shape shape; // of input and output; masks have the same layout
    double p;           // above 0
    uint32_t id;        // the layer's number among the random streams
} ps_cpu_dropout;

size_t ps_cpu_dropout_mask_bytes(const ps_cpu_dropout *d);

/* Draws the batch's masks (rng.h); 1 keeps an element. positions: (n). */
void ps_cpu_dropout_draw(const ps_cpu_dropout *d, ps_dropout_key key,
                         const uint32_t *positions, uint8_t *mask);

/* y = mask ? x / (1 - p) : 0; y may be x. */
void ps_cpu_dropout_forward(const ps_cpu_dropout *d, const uint8_t *mask, const float *x,
                            float *y);
/* The same for the gradient; add: dx +=. dx may be dy. */
void ps_cpu_dropout_backward(const ps_cpu_dropout *d, const uint8_t *mask,
                             const float *dy, float *dx, bool add);
/* As forward, for any `count` consecutive elements. */
void ps_cpu_dropout_apply(const ps_cpu_dropout *d, int64_t count, const uint8_t *mask,
                          const float *x, float *y);

#endif
