/* torchvision's ColorJitter, as Pillow computes it. Brightness, contrast and saturation
 * move the pixels between the picture and another one,
 *
 *   out = other + factor * (in - other), cut off to 0 .. 255 and rounded down,
 *
 * which is black for brightness, the picture's mean gray for contrast, and its gray for
 * saturation. Factors are uniform in max(0, 1 - a) .. 1 + a, in a random order. The hue
 * is turned (color_jitter.c) by a part of the circle that is uniform in -a .. a.
 *
 * The draws are the words of philox(key = {seed, seed >> 32}, counter = {16,
 * PS_TRANSFORM_STREAM, position, epoch}): brightness, contrast, saturation, their order;
 * with counter 17: the turn, and the hue's place in the order. */
#ifndef PS_COLOR_JITTER_H
#define PS_COLOR_JITTER_H

#include "transform.h"

enum { PS_COLOR_JITTERS = 4 }; // brightness, contrast, saturation, hue

typedef struct ps_color_jitter {
    float factor[PS_COLOR_JITTERS]; // 1: unchanged; of the hue: the turn
    bool turns;                     // whether the hue is turned, perhaps by 0
    int order[PS_COLOR_JITTERS];    // a permutation of 0 .. 3
} ps_color_jitter;

/* amount: of each, at least 0, of the hue at most 1/2; missing ones are 0. */
ps_color_jitter ps_color_jitter_draw(const ps_float_list *amount, ps_draw_key key);

/* pixels: (channels, n), changed in place; channels 1 or 3. */
void ps_color_jitter_apply(const ps_color_jitter *jitter, uint8_t *pixels, int channels,
                           int64_t n);

/* Cut off to 0 .. 255 and rounded down. */
uint8_t ps_color_clip8(double v);

/* Pillow's Image.blend of two values: other + factor * (in - other), as above. */
uint8_t ps_color_blend(int other, int in, float factor);

#endif
