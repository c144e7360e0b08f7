/* The windows of a convolution as the rows of a matrix, for convolutions that are
 * computed as products of matrices (im2col), and the reverse (col2im).
 *
 * A row is an output position (n, oh, ow), a column an element (c, kh, kw) of its window:
 * PyTorch's order of the weights. So weights and their gradient are used as they are. */
#ifndef PS_CPU_WINDOWS_H
#define PS_CPU_WINDOWS_H

#include "cpu_shape.h"
#include "model_spec.h"

enum { PS_CPU_WINDOW_ELEMENTS = 1024 }; // of one channel, at most

typedef struct ps_cpu_windows {
    ps_cpu_shape in; // of any layout
    int64_t oh, ow;
    int64_t kernel[2], stride[2], padding[2], dilation[2]; // h, w
} ps_cpu_windows;

/* layer: a CONV2D. gather and sum are for those without groups. */
ps_cpu_windows ps_cpu_windows_of(const ps_layer *layer, const ps_cpu_shape *in);

int64_t ps_cpu_windows_rows(const ps_cpu_windows *windows);
int64_t ps_cpu_windows_columns(const ps_cpu_windows *windows);

/* Fills the matrix from x. bytes: of an element, which has 16 bits (2) or is float32 (4).
 * Padding is zero. */
void ps_cpu_windows_gather(const ps_cpu_windows *windows, size_t bytes, const void *x,
                           void *matrix);
/* dx (of the shape in): each element is the sum of the matrix's elements that gather
 * copies from it, in ascending order of rows. */
void ps_cpu_windows_sum(const ps_cpu_windows *windows, const float *matrix, float *dx);

#endif
