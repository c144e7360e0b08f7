/* PNG, JPEG, WebP and BMP files as rows of pixels of 8 bits, the values that Pillow's
 * Image.open(file).convert("RGB") gives:
 *   palette  its red, green and blue; gray of 1, 2 and 4 bits is scaled to 0 .. 255
 *   alpha    is left out, and nothing is put behind the picture
 *   16 bits  the upper 8, except in gray without alpha: values above 255 become 255
 *   CMYK     as Adobe stores it: inverted
 * Colour profiles, gamma and EXIF's orientation are not applied. */
#ifndef PS_PICTURE_H
#define PS_PICTURE_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum {
    PS_PICTURE_MAX_SIDE = 65500,      // of a JPEG
    PS_PICTURE_MAX_PIXELS = 89478485, // 256 MiB of RGB, where Pillow begins to warn
};

typedef struct ps_picture {
    int64_t width, height;
    int channels;    // 3: RGB; 1: gray
    uint8_t *pixels; // (height, width, channels); owned
    size_t room;     // bytes that pixels has
} ps_picture;

/* Decodes the n bytes of a file, whose first bytes say what it is. out is zeroed, or
 * holds an earlier picture, whose memory is used again; it has RGB afterwards. The size
 * in the header is checked against the limits above, and against n (of JPEG: in Huffman's
 * code), before memory is taken. FORMAT for a file that is damaged, cut off, too large or
 * no picture, UNSUPPORTED for a format that this build does not read; both begin with
 * name. NOMEM. */
ps_err ps_picture_decode(const char *name, const void *bytes, size_t n, ps_picture *out);

/* Whether this build decodes PNG and JPEG; else UNSUPPORTED, naming what is missing. */
ps_err ps_picture_check_build(void);

/* Gives out room for a picture of that size. FORMAT when it is beyond the limits; NOMEM.
 */
ps_err ps_picture_reserve(ps_picture *out, const char *name, int64_t width,
                          int64_t height, int channels);

/* RGB to gray in place, as Pillow's convert("L") does it (ITU-R 601-2). */
void ps_picture_to_gray(ps_picture *picture);

void ps_picture_fini(ps_picture *picture); // safe on a zeroed or failed one

#endif
