/* torchvision's RandAugment of pictures, as Pillow computes it: nearest interpolation,
 * and 0 for what comes from outside the picture (Cubuk et al., "RandAugment: Practical
 * automated data augmentation with a reduced search space", 2019).
 *
 * Each of n operations is one of the 14 with the same probability, with the magnitude of
 * one of 31 bins; those that have a direction take either with probability 1/2.
 *
 * Operation i's draws are the words of philox(key = {seed, seed >> 32}, counter = {32 +
 * i, PS_TRANSFORM_STREAM, position, epoch}): operation, sign. */
#ifndef PS_RAND_AUGMENT_H
#define PS_RAND_AUGMENT_H

#include "transform.h"

typedef enum ps_augment_op {
    PS_AUGMENT_IDENTITY,
    PS_AUGMENT_SHEAR_X,
    PS_AUGMENT_SHEAR_Y,
    PS_AUGMENT_TRANSLATE_X,
    PS_AUGMENT_TRANSLATE_Y,
    PS_AUGMENT_ROTATE,
    PS_AUGMENT_BRIGHTNESS,
    PS_AUGMENT_COLOR,
    PS_AUGMENT_CONTRAST,
    PS_AUGMENT_SHARPNESS,
    PS_AUGMENT_POSTERIZE,
    PS_AUGMENT_SOLARIZE,
    PS_AUGMENT_AUTO_CONTRAST,
    PS_AUGMENT_EQUALIZE,
    PS_AUGMENT_OPS
} ps_augment_op;

enum { PS_AUGMENT_BINS = 31 }; // magnitudes
enum { PS_AUGMENT_MOST = 16 }; // operations of a picture

typedef struct ps_augment {
    ps_augment_op op;
    double magnitude; // torchvision's: a slope, pixels, degrees, factor - 1, bits, level
} ps_augment;

/* Operation i of a picture; bin: 0 to 30. */
ps_augment ps_rand_augment_draw(int bin, int64_t height, int64_t width, uint32_t i,
                                ps_draw_key key);

/* pixels: (channels, height, width), changed in place; channels 1 or 3. room: (height,
 * width). */
void ps_augment_apply(ps_augment augment, uint8_t *pixels, int channels, int64_t height,
                      int64_t width, uint8_t *room);

#endif
