/* One weight of a convolution, by the definition (torch.nn.functional.conv2d): it meets
 * element (oh s0 - p0 + kh d0, ow s1 - p1 + kw d1) of a plane of x (H, W) at element
 * (oh, ow) of a plane of y (H2, W2), for strides s, paddings p and dilations d. */
#ifndef PS_TEST_CONV_TAP_H
#define PS_TEST_CONV_TAP_H

#include <stdint.h>

typedef struct conv_tap {
    int64_t at[2]; // (kh, kw)
    int64_t in[2], out[2], stride[2], padding[2], dilation[2];
} conv_tap;

/* y += weight * x. */
void conv_tap_forward(const conv_tap *t, double weight, const double *x, double *y);
/* dx += weight * dy. */
void conv_tap_backward_data(const conv_tap *t, double weight, const double *dy,
                            double *dx);
/* Returns the sum of x * dy: the weight's gradient. */
double conv_tap_backward_weight(const conv_tap *t, const double *x, const double *dy);

#endif
