/* Dropout's masks and their application. */
#ifndef PS_CPU_DROPOUT_H
#define PS_CPU_DROPOUT_H

#include "cpu_shape.h"
#include "rng.h"

typedef struct ps_cpu_dropout {
    ps_cpu_shape shape; // of what comes in and goes out; masks are laid out like it
    double p;           // above 0
    uint32_t id;        // the layer's stream of draws
} ps_cpu_dropout;

size_t ps_cpu_dropout_mask_bytes(const ps_cpu_dropout *d);

/* Draws the masks of the batch (rng.h): 1 keeps. positions (n). */
void ps_cpu_dropout_draw(const ps_cpu_dropout *d, ps_dropout_key key,
                         const uint32_t *positions, uint8_t *mask);

/* y = mask ? x / (1 - p) : 0; y may be x. */
void ps_cpu_dropout_forward(const ps_cpu_dropout *d, const uint8_t *mask, const float *x,
                            float *y);
/* The same for the gradient; add: dx +=. dx may be dy. */
void ps_cpu_dropout_backward(const ps_cpu_dropout *d, const uint8_t *mask,
                             const float *dy, float *dx, bool add);
/* The same for any `count` neighbours. */
void ps_cpu_dropout_apply(const ps_cpu_dropout *d, int64_t count, const uint8_t *mask,
                          const float *x, float *y);

#endif
