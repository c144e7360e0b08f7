/* The gradient of a depthwise convolution's weights, for windows for which oneDNN has
 * only its code for convolutions of all channels: it computes 8 x 8 or 16 x 16 products
 * for each of a channel, up to a thousand times as slow as this. */
#ifndef PS_CPU_DEPTHWISE_H
#define PS_CPU_DEPTHWISE_H

#include "cpu_windows.h"

enum { PS_CPU_DEPTHWISE_ELEMENTS = 256 }; // of a window, at most

/* Whether oneDNN has no kernel of its own for it, and this code computes it. lanes: of x
 * and dy. */
bool ps_cpu_depthwise_can(const ps_layer *layer, int64_t lanes);

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

#endif
