/* The reference's layers (ref_layers.h) whose outputs come from windows of planes (C, H,
 * W): convolutions, pools and interpolation. With dy NULL they are forward passes of x to
 * y, else backward passes of dy, which add to dx. */
#ifndef PS_REF_WINDOWS_H
#define PS_REF_WINDOWS_H

#include "ref_layers.h"

/* dx NULL: they compute no gradient of x. */
void ref_conv(ref_model *m, const ps_layer *l, const double *x, double *y,
              const double *dy, double *dx);
/* max_pool2d and avg_pool2d. */
void ref_pool(ref_model *m, const ps_layer *l, const double *x, double *y,
              const double *dy, double *dx);
/* upsample and adaptive_avg_pool2d. */
void ref_interpolate(ref_model *m, const ps_layer *l, const double *x, double *y,
                     const double *dy, double *dx);
/* adaptive_max_pool2d. */
void ref_adaptive_max(ref_model *m, const ps_layer *l, const double *x, double *y,
                      const double *dy, double *dx);

#endif
