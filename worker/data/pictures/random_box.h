/* The part of a picture that torchvision's RandomResizedCrop takes.
 *
 * Up to ten times: its area is uniform in scale times the picture's, the logarithm of
 * width / height is uniform between those of ratio, its place is uniform. If none fits
 * into the picture: the largest part in the middle whose ratio is within the bounds.
 *
 * Attempt k's draws are the words of philox(key = {seed, seed >> 32}, counter = {1 + k,
 * PS_TRANSFORM_STREAM, position, epoch}): area, ratio, top, left. */
#ifndef PS_RANDOM_BOX_H
#define PS_RANDOM_BOX_H

#include "transform.h"

typedef struct ps_box { // in pixels
    int64_t left, top, width, height;
} ps_box;

/* scale: [least, most] part of the area; ratio: [least, most] of width / height. */
ps_box ps_random_box(const double scale[2], const double ratio[2], int64_t width,
                     int64_t height, ps_draw_key key);

#endif
