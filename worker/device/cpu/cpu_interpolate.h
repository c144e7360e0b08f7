/* Upsampling and adaptive mean pooling for activations of any layout (interpolate.h). */
#ifndef PS_CPU_INTERPOLATE_H
#define PS_CPU_INTERPOLATE_H

#include "cpu_shape.h"
#include "layer_settings.h"

typedef struct ps_cpu_interpolate {
    ps_cpu_shape in, out; // same n, channels and lanes
    ps_interpolation mode;
} ps_cpu_interpolate;

/* x has the shape in, y the shape out. */
void ps_cpu_interpolate_forward(const ps_cpu_interpolate *op, const float *x, float *y);
/* add: dx += instead of dx =. */
void ps_cpu_interpolate_backward(const ps_cpu_interpolate *op, const float *dy, float *dx,
                                 bool add);

#endif
