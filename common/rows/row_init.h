/* Initial rows: a pure function of (seed, table, id), the same bits on every machine.
 *
 * Elements 4b .. 4b + 3 of a row come from ps_philox4x32(key = {seed, seed >> 32},
 * counter = {id, id >> 32, table, b}). uniform: (2u - 1) scale, u = word >> 8 over 2^24.
 * normal: Box and Muller in double, of words 0 and 1, 2 and 3, with a logarithm and a
 * cosine of our own: those of C libraries differ in the last place. */
#ifndef PS_ROW_INIT_H
#define PS_ROW_INIT_H

#include "row_spec.h"

/* out (dim) becomes the initial weights of an id. */
void ps_row_init_fill(const ps_row_spec *spec, uint64_t id, float *out);

#endif
