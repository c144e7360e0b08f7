/* The decoders behind ps_picture_decode, whose contract they keep: each stands in a file
 * of its own, which is built where its library is; BMP's needs none. */
#ifndef PS_PICTURE_FORMATS_H
#define PS_PICTURE_FORMATS_H

#include "picture.h"

ps_err ps_png_decode(const char *name, const void *bytes, size_t n, ps_picture *out);
ps_err ps_jpeg_decode(const char *name, const void *bytes, size_t n, ps_picture *out);
ps_err ps_webp_decode(const char *name, const void *bytes, size_t n, ps_picture *out);
ps_err ps_bmp_decode(const char *name, const void *bytes, size_t n, ps_picture *out);

#endif
