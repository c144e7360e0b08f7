/* The sum of several arrays of float32, in a fixed order. */
#ifndef PS_ORDERED_SUM_H
#define PS_ORDERED_SUM_H

#include <stdint.h>

/* out = ((from[0] + from[1]) + from[2]) + ..., of elements begin .. begin + n - 1 of
 * each; out may be from[r] + begin for any r. n_from 1: does nothing. */
void ps_ordered_sum(float *out, const float *const *from, int n_from, uint64_t begin,
                    uint64_t n);

#endif
