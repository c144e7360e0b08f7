/* Upsampling and adaptive pooling for activations of any layout (interpolate.h). */
#ifndef PS_CPU_INTERPOLATE_H
#define PS_CPU_INTERPOLATE_H

#include "cpu_shape.h"
#include "layer_settings.h"

typedef struct ps_cpu_interpolate {
    ps_cpu_shape in, out; // same n, channels and lanes
    ps_interpolation mode;
} ps_cpu_interpolate;

/* x has the shape in, y the shape out. argmax, of mode max alone: like y, of each maximum
 * its position in the plane; else NULL. */
void ps_cpu_interpolate_forward(const ps_cpu_interpolate *op, const float *x, float *y,
                                uint32_t *argmax);
/* add: dx += instead of dx =. */
void ps_cpu_interpolate_backward(const ps_cpu_interpolate *op, const float *dy,
                                 const uint32_t *argmax, float *dx, bool add);

#endif
