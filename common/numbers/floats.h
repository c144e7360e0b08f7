/* Arithmetic on whole arrays of float32, n elements each. */
#ifndef PS_FLOATS_H
#define PS_FLOATS_H

#include <stdint.h>

/* out = a + b; out may be a or b. */
void ps_floats_sum(float *out, const float *a, const float *b, uint64_t n);

/* x += a */
void ps_floats_add(float *x, const float *a, uint64_t n);

/* As the two above; a and b are multiplied by factor and rounded before they are added.
 */
void ps_floats_scaled_sum(float *out, const float *a, const float *b, float factor,
                          uint64_t n);
void ps_floats_add_scaled(float *x, const float *a, float factor, uint64_t n);

/* x *= factor */
void ps_floats_scale(float *x, float factor, uint64_t n);

/* out = g + factor * g * g * (now - then); out may be g. */
void ps_floats_compensate(float *out, const float *g, const float *now, const float *then,
                          float factor, uint64_t n);

/* The sum of squares in double, added in a fixed order, so that every build and vector
 * width gives the same bits. */
double ps_floats_square_sum(const float *x, uint64_t n);

#endif
