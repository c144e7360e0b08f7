/* JPEG by libjpeg-turbo, which jumps out of its calls on errors: no function that calls
 * it holds anything that it would have to free. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

// jpeglib.h needs stdio.h above it.
#include <jerror.h>
#include <jpeglib.h>

#include "picture_formats.h"

enum {
    SCANS_MAX = 500, // a small file may claim millions, each as long as the picture
    // Huffman's codes have a bit at least for each block of 64 values. The coarsest
    // sampling has 8 of them in 32 x 32 pixels.
    BYTE_MAX_PIXELS = 1024,
};

typedef struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf jump;
    const char *name;
    char message[JMSG_LENGTH_MAX];
} decoder;

static void jpeg_picture_on_error(j_common_ptr jpeg)
{
    decoder *d = jpeg->client_data;
    jpeg->err->format_message(jpeg, d->message);
    longjmp(d->jump, 1);
}

/* A file that ends early is an error. Pillow passes over other warnings, too. */
static void jpeg_picture_on_message(j_common_ptr jpeg, int level)
{
    if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) jpeg_picture_on_error(jpeg);
}

static void on_progress(j_common_ptr jpeg)
{
    decoder *d = jpeg->client_data;
    if (d->jpeg.input_scan_number <= SCANS_MAX) return;
    snprintf(d->message, sizeof d->message, "more than %d scans", SCANS_MAX);
    longjmp(d->jump, 1);
}

static bool is_cmyk(const decoder *d)
{
    return d->jpeg.jpeg_color_space == JCS_CMYK || d->jpeg.jpeg_color_space == JCS_YCCK;
}

/* Pillow's way: white minus the ink, times what black leaves, over 255. */
static void cmyk_to_rgb(const uint8_t *in, int64_t width, uint8_t *out)
{
    for (int64_t i = 0; i < width; i++) {
        const int light = in[4 * i + 3];
        for (int c = 0; c < 3; c++) {
            const int product = (255 - in[4 * i + c]) * light + 128;
            const int v = light - (((product >> 8) + product) >> 8);
            out[3 * i + c] = (uint8_t)(v > 0 ? v : 0);
        }
    }
}

static void jpeg_picture_read_rows(decoder *d, ps_picture *out)
{
    const size_t stride = (size_t)out->width * 3;
    const bool cmyk = is_cmyk(d);
    JSAMPARRAY inks = NULL; // freed with d->jpeg
    if (cmyk)
        inks = d->jpeg.mem->alloc_sarray((j_common_ptr)&d->jpeg, JPOOL_IMAGE,
                                         (JDIMENSION)out->width * 4, 1);
    while (d->jpeg.output_scanline < d->jpeg.output_height) {
        JSAMPROW row = out->pixels + d->jpeg.output_scanline * stride;
        jpeg_read_scanlines(&d->jpeg, cmyk ? inks : &row, 1);
        if (cmyk) cmyk_to_rgb(inks[0], out->width, row);
    }
}

/* As for PNG: a small file's claim takes no memory. Arithmetic codes have no such bound.
 */
static ps_err check_claim(const decoder *d, size_t n)
{
    const uint64_t pixels = (uint64_t)d->jpeg.image_width * d->jpeg.image_height;
    if (d->jpeg.arith_code || pixels / BYTE_MAX_PIXELS <= n) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: the header claims %u x %u pixels; a file of %zu bytes cannot "
                      "hold them",
                      d->name, d->jpeg.image_width, d->jpeg.image_height, n);
}

static ps_err jpeg_picture_decode(decoder *d, const void *bytes, size_t n,
                                  ps_picture *out)
{
    if (setjmp(d->jump) != 0)
        return ps_err_set(PS_ERR_FORMAT, "%s: not a whole JPEG: %s", d->name, d->message);
    jpeg_create_decompress(&d->jpeg);
    jpeg_mem_src(&d->jpeg, bytes, n);
    d->jpeg.progress = &d->progress;
    jpeg_read_header(&d->jpeg, TRUE);
    PS_TRY(check_claim(d, n));
    PS_TRY(
        ps_picture_reserve(out, d->name, d->jpeg.image_width, d->jpeg.image_height, 3));
    d->jpeg.out_color_space = is_cmyk(d) ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&d->jpeg);
    jpeg_picture_read_rows(d, out);
    jpeg_finish_decompress(&d->jpeg);
    return PS_OK;
}

ps_err ps_jpeg_decode(const char *name, const void *bytes, size_t n, ps_picture *out)
{
    decoder d = {.name = name};
    d.jpeg.err = jpeg_std_error(&d.errors);
    d.jpeg.client_data = &d;
    d.errors.error_exit = jpeg_picture_on_error;
    d.errors.emit_message = jpeg_picture_on_message;
    d.progress.progress_monitor = on_progress;
    const ps_err err = jpeg_picture_decode(&d, bytes, n, out);
    jpeg_destroy_decompress(&d.jpeg);
    return err;
}
