/* max_pool2d of blocked activations whose output a flatten reads: every block of channels
 * is pooled, turned into row-major order and, with a dropout in front of the flatten,
 * masked while it is in the first cache. Pooled activations in the library's layout never
 * are in memory. */
#ifndef PS_CPU_POOL_ROWS_H
#define PS_CPU_POOL_ROWS_H

#include "cpu_dropout.h"
#include "cpu_pool.h"

/* Whether a block of the output is small enough. */
bool ps_cpu_pool_rows_fit(const ps_cpu_pool *pool);

/* y, plain, is max_pool2d of x and then, unless mask is NULL, dropout of it. argmax: as
 * cpu_pool.h's. */
void ps_cpu_pool_rows_forward(const ps_cpu_pool *pool, const ps_cpu_dropout *dropout,
                              const uint8_t *mask, const float *x, float *y,
                              uint32_t *argmax);
void ps_cpu_pool_rows_backward(const ps_cpu_pool *pool, const ps_cpu_dropout *dropout,
                               const uint8_t *mask, const float *dy,
                               const uint32_t *argmax, float *dx, bool add);

#endif
