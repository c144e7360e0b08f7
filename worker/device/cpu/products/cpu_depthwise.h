/* The gradients of a depthwise convolution. oneDNN has kernels for the weights' of small
 * windows alone, and for the inputs' of windows without dilation. For the others it
 * treats each channel as a group of 8 or 16, all but one of them zero, or multiplies
 * matrices. With AVX2 a step takes up to 108 times as long then (bench/results). */
#ifndef PS_CPU_DEPTHWISE_H
#define PS_CPU_DEPTHWISE_H

#include "cpu_windows.h"

enum { PS_CPU_DEPTHWISE_ELEMENTS = 256 }; // of a window, at most

/* Whether each channel has a window of its own. */
static inline bool ps_cpu_is_depthwise(const ps_layer *l)
{
    return l->groups > 1 && l->groups == l->in.d[0] && l->groups == l->out.d[0];
}

/* Whether this code computes them in these layouts. */
bool ps_cpu_depthwise_can(const ps_layer *layer, const ps_cpu_shape *in,
                          const ps_cpu_shape *out);

/* windows: of an x that has as many lanes as dy (n, c, oh, ow).
 *
 *   dweight[c, i, j] = sum over n, h, w of dy[n, c, h, w] x[n, c, h', w'],
 *   h' = h stride + i dilation - padding; likewise w'
 *   dbias[c] = sum over n, h, w of dy[n, c, h, w]
 *
 * Each row of dy is summed by itself, and the rows' sums in ascending order, whatever the
 * number of threads. dbias may be NULL. */
void ps_cpu_depthwise_weights(const ps_cpu_windows *windows, const float *x,
                              const float *dy, float *dweight, float *dbias);

/* weight: (c, kh, kw). windows: of a dx that has as many lanes as dy.
 *
 *   dx[n, c, h', w'] = sum over i, j of weight[c, i, j] dy[n, c, h, w],
 *   h stride = h' + padding - i dilation; likewise w
 *
 * The sums are in the order of i and j. */
void ps_cpu_depthwise_data(const ps_cpu_windows *windows, const float *weight,
                           const float *dy, float *dx);

#endif
