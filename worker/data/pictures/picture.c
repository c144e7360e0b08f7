#include "picture.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "picture_formats.h"

static const uint8_t png_signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
static const uint8_t jpeg_signature[] = {0xff, 0xd8, 0xff};
static const uint8_t webp_signature[] = {'R', 'I', 'F', 'F'};
static const uint8_t bmp_signature[] = {'B', 'M'};

/* decode NULL: this build does not have the library. */
static const struct format {
    const char *name, *library;
    const uint8_t *signature;
    size_t n_signature;
    bool common; // ps-worker without it reads no pictures
    ps_err (*decode)(const char *name, const void *bytes, size_t n, ps_picture *out);
} formats[] = {
    {"PNG", "libpng", png_signature, sizeof png_signature, true,
#if PS_WITH_PNG
     ps_png_decode
#else
     NULL
#endif
    },
    {"JPEG", "libjpeg-turbo", jpeg_signature, sizeof jpeg_signature, true,
#if PS_WITH_JPEG
     ps_jpeg_decode
#else
     NULL
#endif
    },
    {"WebP", "libwebp", webp_signature, sizeof webp_signature, false,
#if PS_WITH_WEBP
     ps_webp_decode
#else
     NULL
#endif
    },
    {"BMP", "", bmp_signature, sizeof bmp_signature, false, ps_bmp_decode},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static ps_err check_library(const struct format *f)
{
    if (f->decode != NULL) return PS_OK;
    return ps_err_set(
        PS_ERR_UNSUPPORTED,
        "this ps-worker is built without %s, which reads %s files: build it "
        "where %s is installed (deploy/packages build)",
        f->library, f->name, f->library);
}

ps_err ps_picture_check_build(void)
{
    for (int i = 0; i < N_FORMATS; i++)
        if (formats[i].common) PS_TRY(check_library(&formats[i]));
    return PS_OK;
}

ps_err ps_picture_decode(const char *name, const void *bytes, size_t n, ps_picture *out)
{
    for (int i = 0; i < N_FORMATS; i++) {
        const struct format *f = &formats[i];
        if (n < f->n_signature || memcmp(bytes, f->signature, f->n_signature) != 0)
            continue;
        const ps_err err = check_library(f);
        if (err != PS_OK) return ps_err_prefix(err, "%s", name);
        return f->decode(name, bytes, n, out);
    }
    return ps_err_set(PS_ERR_FORMAT, "%s: %s", name,
                      n == 0 ? "is empty" : "is no PNG, JPEG, WebP or BMP picture");
}

ps_err ps_picture_reserve(ps_picture *out, const char *name, int64_t width,
                          int64_t height, int channels)
{
    if (width < 1 || height < 1 || width > PS_PICTURE_MAX_SIDE ||
        height > PS_PICTURE_MAX_SIDE || width * height > PS_PICTURE_MAX_PIXELS)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: a picture of %" PRId64 " x %" PRId64
                          " pixels; at most %d are read, and %d on a side",
                          name, width, height, PS_PICTURE_MAX_PIXELS,
                          PS_PICTURE_MAX_SIDE);
    const size_t bytes = (size_t)(width * height * channels);
    if (bytes > out->room) {
        ps_picture_fini(out);
        out->pixels = malloc(bytes);
        if (out->pixels == NULL)
            return ps_err_set(PS_ERR_NOMEM, "%s: no memory for its pixels (%zu bytes)",
                              name, bytes);
        out->room = bytes;
    }
    out->width = width;
    out->height = height;
    out->channels = channels;
    return PS_OK;
}

void ps_picture_to_gray(ps_picture *p)
{
    const int64_t n = p->width * p->height;
    if (p->channels == 1) return;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *in = p->pixels + 3 * i;
        const uint32_t sum = in[0] * 19595u + in[1] * 38470u + in[2] * 7471u;
        p->pixels[i] = (uint8_t)((sum + 0x8000) >> 16);
    }
    p->channels = 1;
}

void ps_picture_fini(ps_picture *p)
{
    free(p->pixels);
    memset(p, 0, sizeof *p);
}
