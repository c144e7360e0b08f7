/* Resizing with antialiasing: Pillow's bilinear Image.resize, which torchvision's Resize
 * calls for pictures.
 *
 * An output pixel is a weighted sum of input pixels. Its centre in the input is
 * (i + 1/2) * scale, scale = input size / output size; the weights are a triangle around
 * it that reaches max(scale, 1) to both sides, normalised to a sum of 1 and rounded to
 * 22 bits after the point. Rows are resized first; their results are rounded to 8 bits
 * before columns are. (Pillow 13 resizes columns first where that is less work, so its
 * pixels may then differ by 1.) */
#ifndef PS_RESAMPLE_H
#define PS_RESAMPLE_H

#include "picture.h"

typedef struct ps_resample_size {
    int64_t from_left, from_top; // the part of the picture that is resized ...
    int64_t from_width, from_height;
    int64_t width, height; // ... to this size, of which a part is returned
    int64_t left, top, crop_width, crop_height;
} ps_resample_size;

typedef struct ps_resample_axis { // one direction
    int64_t from, to, begin, n;   // the wanted outputs begin .. begin + n - 1 of `to`
    int64_t taps;                 // room for each output's weights
    int32_t *first, *count;       // (n): the first input, and how many
    int32_t *weights;             // (n, taps), in units of 2^-22
    size_t room;                  // bytes of the one allocation at first
} ps_resample_axis;

typedef struct ps_resampler { // buffers, used again; zeroed at first
    ps_resample_axis x, y;
    ps_picture rows; // resized in width alone
    int32_t *sums;   // a row
    int64_t n_sums;
} ps_resampler;

/* The wanted part of the resized part of the picture: out (channels, crop_height,
 * crop_width). Pixels around the resized part do not matter. Both parts must lie within
 * what they are parts of. NOMEM. */
ps_err ps_resample(ps_resampler *r, const ps_picture *picture,
                   const ps_resample_size *size, uint8_t *out);

void ps_resampler_fini(ps_resampler *r); // safe on a zeroed or failed one

#endif
