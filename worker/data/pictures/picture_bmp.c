/* BMP without compression: a palette of 1, 4 or 8 bits, or blue, green and red of 24
 * or 32.
 *
 *   "BM", size, 0, offset of the pixels                              14 bytes
 *   size of this header (12: OS/2's, of 16-bit sides; else 40 and more), width, height
 *   (below 0: the upper row first), planes, bits, compression, ..., colours
 *   with compression 3: masks of red, green and blue
 *   the palette: blue, green, red (, 0)
 *
 * A row ends at a multiple of 4 bytes; all numbers are little-endian. Source: Microsoft's
 * documentation of BITMAPFILEHEADER and BITMAPINFOHEADER. */
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "picture_formats.h"

enum { FILE_HEADER = 14, OLD_HEADER = 12, HEADER = 40 };

typedef struct bmp {
    const char *name;
    const uint8_t *bytes;
    size_t n;
    uint32_t header, pixels; // its size; the pixels' offset
    int64_t width, height;
    bool upper_first;
    uint32_t bits, compression, colours;
    size_t entry; // bytes of a palette's colour
} bmp;

static uint32_t bmp_u16(const bmp *b, size_t at)
{
    return b->bytes[at] | (uint32_t)b->bytes[at + 1] << 8;
}

static uint32_t bmp_u32(const bmp *b, size_t at)
{
    return bmp_u16(b, at) | bmp_u16(b, at + 2) << 16;
}

static ps_err bmp_damaged(const bmp *b)
{
    return ps_err_set(PS_ERR_FORMAT, "%s: not a whole BMP", b->name);
}

static ps_err bmp_read_header(bmp *b)
{
    if (b->n < FILE_HEADER + OLD_HEADER) return bmp_damaged(b);
    b->pixels = bmp_u32(b, 10);
    b->header = bmp_u32(b, 14);
    const bool old = b->header == OLD_HEADER;
    if (!old && (b->header < HEADER || b->n < FILE_HEADER + HEADER))
        return bmp_damaged(b);
    const int32_t height = old ? (int32_t)bmp_u16(b, 20) : (int32_t)bmp_u32(b, 22);
    b->width = old ? (int32_t)bmp_u16(b, 18) : (int32_t)bmp_u32(b, 18);
    b->height = height < 0 ? -(int64_t)height : height;
    b->upper_first = height < 0;
    b->bits = bmp_u16(b, old ? 24 : 28);
    b->compression = old ? 0 : bmp_u32(b, 30);
    b->colours = old ? 0 : bmp_u32(b, 46);
    b->entry = old ? 3 : 4;
    if (b->colours == 0 && b->bits <= 8) b->colours = 1u << b->bits;
    return PS_OK;
}

/* Whether red, green and blue stand as without masks. */
static bool bmp_has_usual_masks(const bmp *b)
{
    const size_t at = FILE_HEADER + HEADER;
    return b->n >= at + 12 && bmp_u32(b, at) == 0xff0000 &&
           bmp_u32(b, at + 4) == 0xff00 && bmp_u32(b, at + 8) == 0xff;
}

static ps_err bmp_check(const bmp *b, size_t *row)
{
    const bool palette = b->bits == 1 || b->bits == 4 || b->bits == 8;
    const bool plain = b->compression == 0 ||
                       (b->compression == 3 && b->bits == 32 && bmp_has_usual_masks(b));
    if ((!palette && b->bits != 24 && b->bits != 32) || !plain)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: a BMP of %" PRIu32 " bits and compression %" PRIu32
                          " is not read: save it as PNG",
                          b->name, b->bits, b->compression);
    const uint64_t bytes = ((uint64_t)b->width * b->bits + 31) / 32 * 4;
    const uint64_t colours = palette ? b->colours * b->entry : 0;
    if (b->pixels > b->n || (b->n - b->pixels) / bytes < (uint64_t)b->height ||
        (palette && b->colours > 256) ||
        (uint64_t)FILE_HEADER + b->header + colours > b->n)
        return bmp_damaged(b);
    *row = (size_t)bytes;
    return PS_OK;
}

static ps_err bmp_read_row(const bmp *b, const uint8_t *from, uint8_t *to)
{
    const uint8_t *palette = b->bytes + FILE_HEADER + b->header;
    for (int64_t x = 0; x < b->width; x++, to += 3) {
        const uint8_t *pixel = from + (size_t)x * b->bits / 8;
        if (b->bits <= 8) {
            const int shift = 8 - (int)b->bits - (int)((uint64_t)x * b->bits % 8);
            const uint32_t index = (uint32_t)*pixel >> shift & ((1u << b->bits) - 1);
            if (index >= b->colours) return bmp_damaged(b);
            pixel = palette + index * b->entry;
        }
        to[0] = pixel[2];
        to[1] = pixel[1];
        to[2] = pixel[0];
    }
    return PS_OK;
}

ps_err ps_bmp_decode(const char *name, const void *bytes, size_t n, ps_picture *out)
{
    bmp b = {.name = name, .bytes = bytes, .n = n};
    size_t row = 0;
    PS_TRY(bmp_read_header(&b));
    if (b.width < 1 || b.height < 1) return bmp_damaged(&b);
    PS_TRY(bmp_check(&b, &row));
    PS_TRY(ps_picture_reserve(out, name, b.width, b.height, 3));
    for (int64_t y = 0; y < b.height; y++) {
        const int64_t from = b.upper_first ? y : b.height - 1 - y;
        PS_TRY(bmp_read_row(&b, b.bytes + b.pixels + (size_t)from * row,
                            out->pixels + (size_t)(y * b.width) * 3));
    }
    return PS_OK;
}
