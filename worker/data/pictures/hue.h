/* Pillow's HSV: a picture's colours turned, as torchvision's adjust_hue does it. */
#ifndef PS_HUE_H
#define PS_HUE_H

#include <stdint.h>

/* pixels: (3, n), changed in place. turn: -0.5 to 0.5 of the circle, rounded towards 0 to
 * a multiple of 1/255. Also a turn of 0 rounds the pixels to what HSV of 8 bits holds. */
void ps_hue_turn(float turn, uint8_t *pixels, int64_t n);

#endif
