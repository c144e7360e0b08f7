/* Pillow's Image.transform(size, AFFINE, matrix, NEAREST) of one channel. */
#ifndef PS_AFFINE_H
#define PS_AFFINE_H

#include <stdint.h>

/* From a place in the output to its place in the input: x[0] * out_x + x[1] * out_y +
 * x[2], and the same of y. */
typedef struct ps_affine {
    double x[3], y[3];
} ps_affine;

/* in, out: (height, width). Pixels from outside are 0. Places are added up in fixed point
 * with 16 bits after the point, as Pillow does it for pictures of less than 32,768 pixels
 * a side. */
void ps_affine_nearest(const ps_affine *matrix, const uint8_t *in, int64_t height,
                       int64_t width, uint8_t *out);

#endif
