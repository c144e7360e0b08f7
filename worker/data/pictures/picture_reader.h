/* From a picture's file to a stored sample of its set's size: decodes, resizes, crops.
 *
 *   resize  data.resize [N]: the shorter side becomes N, the other int(N * long / short);
 *           [H, W]: exactly that (torchvision's Resize, with antialiasing: resample.h)
 *   crop    the middle of the set's size (torchvision's CenterCrop)
 * In training with data.crop_scale instead of both:
 *   a random part (random_box.h), resized to the set's size (RandomResizedCrop)
 *
 * In training, last: data.color_jitter (color_jitter.h), then data.rand_augment
 * (rand_augment.h).
 *
 * A set of one channel gets gray, which is made before resizing. */
#ifndef PS_PICTURE_READER_H
#define PS_PICTURE_READER_H

#include "color_jitter.h"
#include "rand_augment.h"
#include "random_box.h"
#include "resample.h"

enum { PS_PICTURE_MAX_FILE_BYTES = 256 << 20 };

typedef struct ps_picture_reader { // one thread's
    const ps_config_data *config;  // borrowed
    bool augment;                  // training, else evaluation
    int64_t channels, height, width;
    uint8_t *file; // the last file's bytes
    size_t room;
    ps_picture picture;
    ps_resampler resampler;
    uint8_t *plane; // (height, width); NULL until data.rand_augment needs it
} ps_picture_reader;

/* dims: the set's, (1 or 3, H, W). Cannot fail. */
void ps_picture_reader_init(ps_picture_reader *r, const ps_config_data *config,
                            const ps_dims *dims, bool augment);
void ps_picture_reader_fini(ps_picture_reader *r); // safe on a zeroed one

/* Fills out (channels, height, width). IO, FORMAT, SHAPE when the picture does not have
 * the set's size and data.resize is not given, or is smaller; each names path. NOMEM.
 * key: what the sample's random draws depend on. */
ps_err ps_picture_read(ps_picture_reader *r, const char *path, ps_draw_key key,
                       uint8_t *out);

#endif
