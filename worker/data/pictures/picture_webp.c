/* WebP by libwebp. */
#include <webp/decode.h>

#include "picture_formats.h"

ps_err ps_webp_decode(const char *name, const void *bytes, size_t n, ps_picture *out)
{
    WebPBitstreamFeatures f;
    if (WebPGetFeatures(bytes, n, &f) != VP8_STATUS_OK)
        return ps_err_set(PS_ERR_FORMAT, "%s: not a whole WebP", name);
    if (f.has_animation)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: a WebP of several pictures: save one of them", name);
    PS_TRY(ps_picture_reserve(out, name, f.width, f.height, 3));
    const size_t stride = (size_t)out->width * 3;
    if (WebPDecodeRGBInto(bytes, n, out->pixels, stride * (size_t)out->height,
                          (int)stride))
        return PS_OK;
    return ps_err_set(PS_ERR_FORMAT, "%s: not a whole WebP", name);
}
