/* From a stored sample to the model's input: resize, random crop, flip, normalise.
 *
 * In this order, on the values as they are stored (uint8 as 0 .. 255):
 *   resize     data.resize [H, W]: bilinear, as torch.nn.functional.interpolate with
 *              mode="bilinear", align_corners=False, antialias=False
 *   crop       data.crop_padding p > 0: p zeros on every side, then a random part of the
 *              input's size (torchvision's RandomCrop(size, padding=p)); in evaluation
 *              the middle of the unpadded image (CenterCrop). What has one row, as a
 *              sequence, gets zeros at its two ends alone
 *   flip       data.flip: left and right with probability 1/2; not in evaluation
 *   normalise  (value * scale - mean) / std in float32, scale 1 for float data
 *
 * A sample's draws are the words of philox(key = {seed, seed >> 32}, counter = {0,
 * PS_TRANSFORM_STREAM, position, epoch}): top, left, flip. Dropout's counters have its
 * layer number, a small one, instead of PS_TRANSFORM_STREAM. */
#ifndef PS_TRANSFORM_H
#define PS_TRANSFORM_H

#include "config.h"
#include "tensor.h"

#define PS_TRANSFORM_STREAM 0x41554700u

typedef struct ps_image_size {
    int64_t c, h, w;
} ps_image_size;

typedef struct ps_draw_key { // what a sample's random draws depend on
    uint64_t seed;
    uint32_t epoch, position;
} ps_draw_key;

/* The words of philox(key = {seed, seed >> 32}, counter = {counter, stream, position,
 * epoch}). */
void ps_draw_words(ps_draw_key key, uint32_t counter, uint32_t stream, uint32_t words[4]);
/* A uniform number in 0 .. n - 1 from one of them. */
int64_t ps_draw_pick(uint32_t word, int64_t n);

typedef struct ps_transform {
    ps_image_size from, resized, to; // a feature vector is (1, 1, F)
    bool is_float, augment, crop, flip;
    int64_t padding;
    float scale;       // factor of resized uint8 pixels
    float *table;      // (c, 256): normalised uint8 values
    float *mean, *std; // (c)
    float *image;      // the resized image; NULL: no resizing
    float *row;        // an image row while resizing
    uint8_t *cut;      // cropped and flipped bytes; NULL: floats, or resizing
    int32_t *left;     // (resized w): the left neighbour's column ...
    float *weight;     // ... and the right one's weight
} ps_transform;

/* from: a stored sample; to: the model's input. augment: training, else evaluation. SHAPE
 * when a stored sample cannot become the input; mend: what the message then ends with
 * (NULL: to set model.input). CONFIG for data.normalize of the wrong length or with a
 * standard deviation of 0; NOMEM. After a failure t is safe for fini. */
ps_err ps_transform_init(ps_transform *t, const ps_config_data *config,
                         const ps_dims *from, bool is_float, const ps_dims *to,
                         bool augment, const char *mend);
void ps_transform_fini(ps_transform *t);

/* sample: uint8 or float32, as is_float says; out: the input's elements. Uses t's
 * buffers, so only one thread may use t at a time. */
void ps_transform_apply(ps_transform *t, const void *sample, ps_draw_key key, float *out);

/* Where samples are bytes until they are normalised, that is uint8 and not resized: what
 * byte v of channel c then becomes, in element 256 c + v. channels: equal parts of the
 * input. Else NULL. Borrowed. */
const float *ps_transform_byte_values(const ps_transform *t, int64_t *channels);
/* Then: as ps_transform_apply, but not normalised. */
void ps_transform_bytes(const ps_transform *t, const uint8_t *sample, ps_draw_key key,
                        uint8_t *out);

#endif
