/* PNG by libpng, which jumps out of its calls on errors: no function that calls it holds
 * anything that it would have to free. */
#include <inttypes.h>
#include <png.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "picture_formats.h"

enum {
    CHUNK_MAX_BYTES = 8 << 20, // of text and profiles, which are not used
    DEFLATE_MAX_RATIO = 1032,  // 258 bytes from 2 bits
};

typedef struct source {
    const char *name;
    const uint8_t *at;
    size_t n, left;
    char message[128]; // of libpng's error
    bool gray16;       // gray of 16 bits, which becomes RGB after libpng
} source;

static void png_picture_on_error(png_structp png, png_const_charp message)
{
    source *s = png_get_error_ptr(png);
    snprintf(s->message, sizeof s->message, "%s", message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
}

static void on_read(png_structp png, png_bytep out, size_t n)
{
    source *s = png_get_io_ptr(png);
    if (n > s->left) png_error(png, "the file is truncated");
    memcpy(out, s->at, n);
    s->at += n;
    s->left -= n;
}

/* Reads the header, and asks for RGB of 8 bits; gray of 16 bits stays as it is. */
static ps_err png_picture_read_header(png_structp png, png_infop info, source *s,
                                      ps_picture *out)
{
    png_read_info(png, info);
    const int64_t w = png_get_image_width(png, info), h = png_get_image_height(png, info);
    const int depth = png_get_bit_depth(png, info);
    const int color = png_get_color_type(png, info);
    const uint64_t packed = png_get_rowbytes(png, info) * (uint64_t)h;
    if (packed / DEFLATE_MAX_RATIO > s->n)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: the header claims %" PRId64 " x %" PRId64
                          " pixels; a file of %zu bytes cannot hold them",
                          s->name, w, h, s->n);
    s->gray16 = color == PNG_COLOR_TYPE_GRAY && depth == 16;
    PS_TRY(ps_picture_reserve(out, s->name, w, h, 3));
    if (!s->gray16) png_set_strip_16(png);
    png_set_packing(png);
    if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (color == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
    if (!(color & PNG_COLOR_MASK_COLOR) && !s->gray16) png_set_gray_to_rgb(png);
    png_set_strip_alpha(png);
    return PS_OK;
}

/* In place, from the row's end on: RGB is longer than gray of 16 bits. */
static void clip_gray16(uint8_t *row, int64_t width)
{
    for (int64_t i = width - 1; i >= 0; i--) {
        const uint8_t v = row[2 * i] > 0 ? 255 : row[2 * i + 1];
        memset(row + 3 * i, v, 3);
    }
}

static void png_picture_read_rows(png_structp png, png_infop info, const source *s,
                                  ps_picture *out)
{
    const size_t stride = (size_t)out->width * 3;
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != (s->gray16 ? (size_t)out->width * 2 : stride))
        png_error(png, "its kind of pixels is unknown");
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < out->height; y++)
            png_read_row(png, out->pixels + (size_t)y * stride, NULL);
    png_read_end(png, NULL);
    for (int64_t y = 0; s->gray16 && y < out->height; y++)
        clip_gray16(out->pixels + (size_t)y * stride, out->width);
}

static ps_err png_picture_decode(png_structp png, png_infop info, source *s,
                                 ps_picture *out)
{
    if (setjmp(png_jmpbuf(png)) != 0)
        return ps_err_set(PS_ERR_FORMAT, "%s: not a whole PNG: %s", s->name, s->message);
    png_set_read_fn(png, s, on_read);
    png_set_user_limits(png, INT32_MAX, INT32_MAX); // ps_picture_reserve has the limits
    png_set_chunk_malloc_max(png, CHUNK_MAX_BYTES);
    PS_TRY(png_picture_read_header(png, info, s, out));
    png_picture_read_rows(png, info, s, out);
    return PS_OK;
}

ps_err ps_png_decode(const char *name, const void *bytes, size_t n, ps_picture *out)
{
    source s = {.name = name, .at = bytes, .n = n, .left = n};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &s,
                                             png_picture_on_error, on_warning);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;
    const ps_err err = info != NULL
                           ? png_picture_decode(png, info, &s, out)
                           : ps_err_set(PS_ERR_NOMEM, "%s: no memory for libpng", name);
    png_destroy_read_struct(&png, &info, NULL);
    return err;
}
