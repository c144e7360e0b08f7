/* max_pool2d of blocked activations whose output a flatten reads. Each block of channels
 * is pooled, converted to row-major order and, if a dropout precedes the flatten, masked
 * while it is in the L1 cache. The pooled activations are never written to memory in the
 * library's layout. */
#ifndef PS_CPU_POOL_ROWS_H
#define PS_CPU_POOL_ROWS_H

#include "cpu_dropout.h"
#include "cpu_pool.h"

/* Whether a block of the output is small enough for this. */
bool ps_cpu_pool_rows_fit(const ps_cpu_pool *pool);

/* y, in row-major order, is max_pool2d of x, followed by dropout unless mask is NULL.
 * argmax: as in cpu_pool.h. */
void ps_cpu_pool_rows_forward(const ps_cpu_pool *pool, const ps_cpu_dropout *dropout,
                              const uint8_t *mask, const float *x, float *y,
                              uint32_t *argmax);
void ps_cpu_pool_rows_backward(const ps_cpu_pool *pool, const ps_cpu_dropout *dropout,
                               const uint8_t *mask, const float *dy,
                               const uint32_t *argmax, float *dx, bool add);

#endif
