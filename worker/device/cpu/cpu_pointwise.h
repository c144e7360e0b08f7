/* Elementwise sums, over arrays of any layout. add: the result is added to the
 * destination, where other readers of the same value have already written. */
#ifndef PS_CPU_POINTWISE_H
#define PS_CPU_POINTWISE_H

#include <stdbool.h>
#include <stdint.h>

/* y = a + b, then max(0, .) if relu. y may be a or b. */
void ps_cpu_sum_forward(int64_t count, const float *a, const float *b, float *y,
                        bool relu);
/* dx = or += dy; dx may be dy, then it does nothing. */
void ps_cpu_pass(int64_t count, const float *dy, float *dx, bool add);

/* The same of values stored as bf16: computed in float32, rounded once. */
void ps_cpu_sum_forward_bf16(int64_t count, const uint16_t *a, const uint16_t *b,
                             uint16_t *y, bool relu);
void ps_cpu_pass_bf16(int64_t count, const uint16_t *dy, uint16_t *dx, bool add);
/* dx = or += dy, which is float32. */
void ps_cpu_pass_rounded(int64_t count, const float *dy, uint16_t *dx, bool add);

#endif
