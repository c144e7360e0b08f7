#include "row_codec.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "codec.h"
#include "codec_block.h"
#include "codec_math.h"
#include "row_partition.h"

enum {
    HALF_TOP = 14,       // the largest half of a block has this exponent
    LEAST_EXPONENT = 16, // of a float32, biased: smaller ones count as it, so that
                         // 1 / 2^e is a normal number
    MANTISSA_BITS = 23,
};

/* NULL: float32. */
static const ps_codec_block *row_codec_block(const ps_row_spec *spec)
{
    if (spec->dim == 1) return NULL;
    switch (spec->codec) {
    case PS_CODEC_FP16:
        return &PS_AT_LEVEL(ps_codec_fp16_block);
    case PS_CODEC_INT8:
        return &PS_AT_LEVEL(ps_codec_int8_block);
    default:
        return NULL;
    }
}

PS_PER_LEVEL(bool, ps_row_codec_is_used, (const ps_row_spec *spec), (spec))
{
    return row_codec_block(spec) != NULL;
}

PS_PER_LEVEL(uint64_t, ps_row_codec_row_bytes, (const ps_row_spec *spec), (spec))
{
    const ps_codec_block *b = row_codec_block(spec);
    const uint64_t dim = spec->dim;
    if (!b) return dim * sizeof(float);
    return ps_codec_bytes(spec->codec, dim, 0) +
           (spec->codec == PS_CODEC_FP16 ? 2 * ps_codec_blocks_of(dim, b->size) : 0);
}

PS_PER_LEVEL(uint64_t, ps_row_codec_size, (const ps_row_spec *spec, uint64_t n),
             (spec, n))
{
    return (n * PS_AT_LEVEL(ps_row_codec_row_bytes)(spec) + sizeof(float) - 1) /
           sizeof(float);
}

/* Divides a block by 2^e, and writes that. Returns the bytes. */
static uint64_t fp16_scale_block(uint64_t n, float *v, uint8_t *to)
{
    const uint32_t most = ps_codec_largest_bits(n, v) >> MANTISSA_BITS;
    const uint32_t e = (most < LEAST_EXPONENT ? LEAST_EXPONENT : most) - HALF_TOP;
    const uint16_t upper = (uint16_t)(e << (MANTISSA_BITS - 16));
    const float inverse = ps_float_of_bits((2 * 127 - e) << MANTISSA_BITS);
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        v[i] *= inverse;
    memcpy(to, &upper, sizeof upper);
    return sizeof upper;
}

/* v becomes undefined. Returns the bytes. */
static uint64_t block_encode(const ps_row_spec *spec, const ps_codec_block *b, uint64_t n,
                             float *v, const ps_codec_how *how, uint64_t at, uint8_t *to)
{
    const uint64_t scale = spec->codec == PS_CODEC_FP16 ? fp16_scale_block(n, v, to) : 0;
    b->encode(n, v, how, at, to + scale);
    return scale + b->bytes(n, 0);
}

/* What a block was divided by; 0: it cannot be. */
static float fp16_scale(const uint8_t *from)
{
    uint16_t upper;
    memcpy(&upper, from, sizeof upper);
    const uint32_t e = upper >> (MANTISSA_BITS - 16);
    const bool is_power = (upper & ((1 << (MANTISSA_BITS - 16)) - 1)) == 0;
    return is_power && e >= LEAST_EXPONENT - HALF_TOP && e <= 255 - HALF_TOP
               ? ps_float_of_bits((uint32_t)upper << 16)
               : 0;
}

static bool int8_scale_is_possible(const uint8_t *from)
{
    float scale;
    memcpy(&scale, from, sizeof scale);
    return scale == 0 || isnan(scale) || (scale >= FLT_MIN && scale <= FLT_MAX / 127);
}

/* Returns the bytes, 0: no sender encodes such a block. */
static uint64_t block_decode(const ps_row_spec *spec, const ps_codec_block *b, uint64_t n,
                             const uint8_t *from, float *restrict v)
{
    const bool halves = spec->codec == PS_CODEC_FP16;
    const float scale = halves ? fp16_scale(from) : 1;
    const uint64_t head = halves ? sizeof(uint16_t) : 0;
    if (scale == 0 || (!halves && !int8_scale_is_possible(from))) return 0;
    (void)b->decode(n, from + head, 0, v); // these two cannot fail
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        v[i] *= scale;
    return head + b->bytes(n, 0);
}

static ps_codec_how row_codec_how(uint64_t salt, const uint64_t *ids, uint64_t i,
                                  uint64_t key)
{
    return (ps_codec_how){.nearest = !ids,
                          .key = ids ? (uint32_t)(key ^ ps_row_hash(salt, ids[i])) : 0};
}

/* The elements of the block at `at` of a row. */
static uint64_t row_block_at(const ps_row_spec *spec, const ps_codec_block *b,
                             uint64_t at)
{
    return spec->dim - at < b->size ? spec->dim - at : b->size;
}

/* The blocks are copied first: their place in `rows` is written over. */
PS_PER_LEVEL(void, ps_row_codec_encode,
             (const ps_row_spec *spec, uint64_t n, const uint64_t *ids, uint64_t key,
              float *rows),
             (spec, n, ids, key, rows))
{
    const ps_codec_block *b = row_codec_block(spec);
    const uint64_t salt = ps_row_hash_salt(spec->number);
    _Alignas(64) float v[PS_CODEC_MAX_BLOCK];
    uint8_t *to = (uint8_t *)rows;
    if (!b) return;
    for (uint64_t i = 0; i < n; i++) {
        const ps_codec_how how = row_codec_how(salt, ids, i, key);
        for (uint64_t at = 0; at < spec->dim; at += b->size) {
            const uint64_t m = row_block_at(spec, b, at);
            memcpy(v, rows + i * spec->dim + at, m * sizeof *v);
            to += block_encode(spec, b, m, v, &how, at, to);
        }
    }
    uint8_t *end = (uint8_t *)(rows + PS_AT_LEVEL(ps_row_codec_size)(spec, n));
    while (to < end)
        *to++ = 0;
}

PS_PER_LEVEL(void, ps_row_codec_round,
             (const ps_row_spec *spec, uint64_t n, const uint64_t *ids, uint64_t key,
              float *rows),
             (spec, n, ids, key, rows))
{
    const ps_codec_block *b = row_codec_block(spec);
    const uint64_t salt = ps_row_hash_salt(spec->number);
    _Alignas(64) uint8_t coded[sizeof(float) * PS_CODEC_MAX_BLOCK];
    if (!b) return;
    for (uint64_t i = 0; i < n; i++) {
        const ps_codec_how how = row_codec_how(salt, ids, i, key);
        for (uint64_t at = 0; at < spec->dim; at += b->size) {
            float *v = rows + i * spec->dim + at;
            const uint64_t m = row_block_at(spec, b, at);
            block_encode(spec, b, m, v, &how, at, coded);
            block_decode(spec, b, m, coded, v);
        }
    }
}

static ps_err row_refuse(const ps_row_spec *spec, uint64_t id)
{
    return ps_err_set(PS_ERR_PROTOCOL,
                      "a row of table '%s', id %" PRId64 ", with a scale that %s has not",
                      spec->name, (int64_t)id,
                      ps_word_name(ps_row_codec_words, (int)spec->codec));
}

static ps_err row_not_finite(const ps_row_spec *spec, uint64_t id)
{
    return ps_err_set(PS_ERR_NUMERIC,
                      "table '%s': the row or gradient of id %" PRId64
                      " is not finite; a lower learning rate may help",
                      spec->name, (int64_t)id);
}

PS_PER_LEVEL(ps_err, ps_row_codec_decode,
             (const ps_row_spec *spec, uint64_t n, const uint64_t *ids, const void *from,
              float *rows),
             (spec, n, ids, from, rows))
{
    const ps_codec_block *b = row_codec_block(spec);
    const uint8_t *at_bytes = from;
    if (!b && n > 0) memcpy(rows, from, n * spec->dim * sizeof *rows);
    for (uint64_t i = 0; b && i < n; i++)
        for (uint64_t at = 0; at < spec->dim; at += b->size) {
            float *v = rows + i * spec->dim + at;
            const uint64_t bytes =
                block_decode(spec, b, row_block_at(spec, b, at), at_bytes, v);
            if (bytes == 0) return row_refuse(spec, ids[i]);
            if (isnan(v[0]) && spec->codec == PS_CODEC_INT8)
                return row_not_finite(spec, ids[i]);
            at_bytes += bytes;
        }
    return PS_OK;
}
