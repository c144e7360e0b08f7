/* Copies of activations with and without a border of zeros around every plane. */
#ifndef PS_CPU_BORDER_H
#define PS_CPU_BORDER_H

#include "cpu_shape.h"

/* bordered: x's shape and layout, except that h and w are larger by an even number. y
 * (bordered) becomes x in a border of zeros. */
void ps_cpu_border_add(const ps_cpu_shape *shape, const float *x,
                       const ps_cpu_shape *bordered, float *y);
/* The reverse: x becomes y without its border. */
void ps_cpu_border_remove(const ps_cpu_shape *bordered, const float *y,
                          const ps_cpu_shape *shape, float *x);

#endif
