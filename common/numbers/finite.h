/* Tests whether every number is finite. It tests bits: compilers vectorise isfinite()
 * badly, and -ffast-math removes it. */
#ifndef PS_FINITE_H
#define PS_FINITE_H

#include <stdbool.h>
#include <stdint.h>

/* True when none of the n numbers is infinite or not a number. Vectorised. */
bool ps_finite_all(const float *x, uint64_t n);

#endif
