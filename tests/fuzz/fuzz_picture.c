/* The decoders of pictures: any bytes as a file, resized, and as gray. The checksums of a
 * PNG are corrected: wrong ones would hide everything behind them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "resample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SIDE = 8 };

static uint32_t big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* A chunk is its length, kind, content and checksum. */
static void correct_checksums(uint8_t *png, size_t size)
{
    for (size_t at = 8; at + 12 <= size;) {
        const size_t n = big_endian(png + at);
        if (n > size - at - 12) return;
        const uint32_t sum = (uint32_t)crc32(0, png + at + 4, (uInt)(n + 4));
        for (int i = 0; i < 4; i++)
            png[at + 8 + n + (size_t)i] = (uint8_t)(sum >> (24 - 8 * i));
        at += 12 + n;
    }
}

static void decode(const uint8_t *data, size_t size)
{
    ps_picture picture = {0};
    ps_resampler resampler = {0};
    uint8_t out[3 * SIDE * SIDE];
    ps_resample_size part = {0, 0, 0, 0, SIDE + 1, SIDE, 1, 0, SIDE, SIDE};
    if (ps_picture_decode("fuzz", data, size, &picture) == PS_OK) {
        if (picture.width * picture.height > PS_PICTURE_MAX_PIXELS) abort();
        part.from_width = picture.width;
        part.from_height = picture.height;
        if (ps_resample(&resampler, &picture, &part, out) != PS_OK) abort();
        ps_picture_to_gray(&picture);
        if (ps_resample(&resampler, &picture, &part, out) != PS_OK) abort();
    }
    ps_resampler_fini(&resampler);
    ps_picture_fini(&picture);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *corrected = malloc(size > 0 ? size : 1);
    if (corrected == NULL) abort();
    if (size > 0) memcpy(corrected, data, size);
    correct_checksums(corrected, size);
    decode(data, size);
    decode(corrected, size);
    free(corrected);
    return 0;
}
