/* Copies between a value and the part of a concatenation that it is. */
#ifndef PS_CPU_CONCAT_H
#define PS_CPU_CONCAT_H

#include "cpu_factors.h"
#include "cpu_shape.h"

/* The layout of a's channels followed by others, `channels` in all: a's, if it is blocked
 * or channels-last. Where it is both, last decides. */
int64_t ps_cpu_concat_lanes(const ps_cpu_shape *a, int64_t channels, bool last);

/* Copies all channels of x to the channels from `first` on of y. type: FLOAT32, BF16 or
 * FP16. */
void ps_cpu_concat_forward(ps_cpu_factors type, const ps_cpu_shape *from, const void *x,
                           const ps_cpu_shape *to, int64_t first, void *y);

/* Copies the channels from `first` on of dy, which is laid out as `from`, to dx, which
 * has fewer channels. add: adds. */
void ps_cpu_concat_backward(ps_cpu_factors type, const ps_cpu_shape *from, int64_t first,
                            const void *dy, const ps_cpu_shape *to, void *dx, bool add);

#endif
