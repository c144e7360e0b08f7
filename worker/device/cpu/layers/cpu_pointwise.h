/* Elementwise sums, over arrays of any layout. add: the result is added to the
 * destination, where other readers of the same value have already written. */
#ifndef PS_CPU_POINTWISE_H
#define PS_CPU_POINTWISE_H

#include "cpu_factors.h"

/* y = a + b, then max(0, .) if relu. y may be a or b. */
void ps_cpu_sum_forward(int64_t count, const float *a, const float *b, float *y,
                        bool relu);
/* dx = or += dy; dx may be dy, then it does nothing. */
void ps_cpu_pass(int64_t count, const float *dy, float *dx, bool add);

/* The same of values of 16 bits: computed in float32, rounded once. type: BF16 or FP16.
 */
void ps_cpu_sum_forward_narrow(ps_cpu_factors type, int64_t count, const uint16_t *a,
                               const uint16_t *b, uint16_t *y, bool relu);
void ps_cpu_pass_narrow(ps_cpu_factors type, int64_t count, const uint16_t *dy,
                        uint16_t *dx, bool add);
/* dx = or += dy, which is float32. */
void ps_cpu_pass_rounded(ps_cpu_factors type, int64_t count, const float *dy,
                         uint16_t *dx, bool add);

#endif
