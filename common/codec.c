#include "codec.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "float16.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t blocks_of(uint64_t n, uint64_t block)
{
    return (n + block - 1) / block;
}

/* How many of a block's n elements travel. */
static uint64_t topk_count(uint64_t n, double share)
{
    uint64_t k = (uint64_t)ceil(share * (double)n);
    if (k < 1) k = 1;
    return min_u64(k, n);
}

static uint64_t topk_block_bytes(uint64_t k)
{
    return 4 + k + (k + 1) / 2;
}

static uint64_t topk_bytes(uint64_t n, double share)
{
    const uint64_t block = PS_CODEC_TOPK_BLOCK, rest = n % block;
    uint64_t bytes = n / block * topk_block_bytes(topk_count(block, share));
    return rest ? bytes + topk_block_bytes(topk_count(rest, share)) : bytes;
}

static uint64_t onebit_bytes(uint64_t n)
{
    // A whole block is whole bytes: five elements to each.
    return 2 * blocks_of(n, PS_CODEC_ONEBIT_BLOCK) + blocks_of(n, 5);
}

uint64_t ps_codec_bytes(ps_codec codec, uint64_t n, double topk)
{
    switch (codec) {
    case PS_CODEC_FP16:
    case PS_CODEC_BF16:
        return 2 * n;
    case PS_CODEC_INT8:
        return n + 4 * blocks_of(n, PS_CODEC_INT8_BLOCK);
    case PS_CODEC_ONEBIT:
        return onebit_bytes(n);
    case PS_CODEC_TOPK:
        return topk_bytes(n, topk);
    default:
        return 4 * n;
    }
}

bool ps_codec_feeds_back(ps_codec codec)
{
    return codec == PS_CODEC_ONEBIT || codec == PS_CODEC_TOPK;
}

/* ---- fp16 and bf16 ---- */

static void fp16_encode(uint64_t n, const float *restrict in, uint16_t *restrict out)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = ps_fp16_held(in[i], 0x7BFFu);
}

static void fp16_decode(uint64_t n, const uint16_t *restrict in, float *restrict out)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = ps_float_of_fp16(in[i]);
}

/* What fp16_encode has held at the largest, infinite. */
static void fp16_overflow(uint64_t n, const float *restrict in, uint16_t *restrict out)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = ps_fp16_of(in[i]);
}

static void bf16_encode(uint64_t n, const float *restrict in, uint16_t *restrict out)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = ps_bf16_of(in[i]);
}

static void bf16_decode(uint64_t n, const uint16_t *restrict in, float *restrict out)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = ps_float_of_bf16(in[i]);
}

/* ---- int8 ---- */

/* A well-mixing permutation of 32 bits (C. Wellons, lowbias32): cheaper than Philox,
 * enough for rounding, and the compiler vectorises it. */
static inline uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* The largest |v| of a block as bits; above 0x7F800000 when one is NaN. */
static uint32_t largest_bits(uint64_t n, const float *restrict v)
{
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (uint64_t i = 0; i < n; i++) {
        uint32_t a = ps_float_bits(v[i]) & 0x7FFFFFFFu;
        most = a > most ? a : most;
    }
    return most;
}

static void int8_block_encode(uint64_t n, const float *restrict v, uint32_t draw,
                              uint64_t first, float scale, int8_t *restrict out)
{
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float u = (float)(mix((uint32_t)(first + i) ^ draw) >> 8) * 0x1p-24f;
        float q = floorf(v[i] * inverse + u);
        q = q > 127.0f ? 127.0f : q;
        q = q < -127.0f ? -127.0f : q;
        out[i] = (int8_t)(int32_t)q;
    }
}

static void int8_encode(uint64_t n, const float *in, uint64_t draw, uint8_t *out)
{
    const uint32_t key = mix((uint32_t)draw) ^ mix((uint32_t)(draw >> 32) + 0x9E3779B9u);
    for (uint64_t at = 0; at < n; at += PS_CODEC_INT8_BLOCK) {
        uint64_t m = min_u64(PS_CODEC_INT8_BLOCK, n - at);
        uint32_t most = largest_bits(m, in + at);
        float scale = ps_float_of_bits(most) / 127.0f;
        // A scale that underflows to 0 would turn the block's values into nothing at all.
        if (most >= 0x7F800000u) scale = NAN;
        memcpy(out, &scale, 4);
        if (most >= 0x7F800000u)
            memset(out + 4, 1, m);
        else
            int8_block_encode(m, in + at, key, at, scale, (int8_t *)out + 4);
        out += 4 + m;
    }
}

static void int8_decode(uint64_t n, const uint8_t *in, float *restrict out)
{
    for (uint64_t at = 0; at < n; at += PS_CODEC_INT8_BLOCK) {
        uint64_t m = min_u64(PS_CODEC_INT8_BLOCK, n - at);
        float scale;
        memcpy(&scale, in, 4);
        const int8_t *restrict q = (const int8_t *)in + 4;
#pragma omp simd
        for (uint64_t i = 0; i < m; i++)
            out[at + i] = (float)q[i] * scale;
        in += 4 + m;
    }
}

/* ---- onebit ---- */

static float mean_magnitude(uint64_t n, const float *restrict v)
{
    // Sixteen running sums in a fixed order: the bits do not depend on the vector width.
    float sums[16] = {0};
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
#pragma omp simd
        for (int j = 0; j < 16; j++)
            sums[j] += fabsf(v[i + (uint64_t)j]);
    }
    double total = 0;
    for (int j = 0; j < 16; j++)
        total += sums[j];
    for (; i < n; i++)
        total += fabsf(v[i]);
    return (float)(total / (double)n);
}

/* The mean of the |v| that are t or more. */
static float mean_above(uint64_t n, const float *restrict v, float t)
{
    float sums[16] = {0};
    int32_t counts[16] = {0};
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
#pragma omp simd
        for (int j = 0; j < 16; j++) {
            float a = fabsf(v[i + (uint64_t)j]);
            sums[j] += a >= t ? a : 0.0f;
            counts[j] += a >= t;
        }
    }
    double total = 0, count = 0;
    for (int j = 0; j < 16; j++) {
        total += sums[j];
        count += counts[j];
    }
    for (; i < n; i++) {
        float a = fabsf(v[i]);
        total += a >= t ? a : 0.0f;
        count += a >= t;
    }
    return (float)(total / count); // the largest is always among them; NaN: 0 / 0
}

/* digits (n, padded with 0 to 5 * bytes): element i is digit i / bytes of byte i % bytes,
 * so that both directions work on whole vectors. */
static void pack_fives(uint64_t bytes, const uint8_t *restrict digits,
                       uint8_t *restrict out)
{
#pragma omp simd
    for (uint64_t j = 0; j < bytes; j++)
        out[j] = (uint8_t)(digits[j] + 3 * digits[bytes + j] + 9 * digits[2 * bytes + j] +
                           27 * digits[3 * bytes + j] + 81 * digits[4 * bytes + j]);
}

/* False when a byte is more than five digits can be. A third of a number up to 255 is its
 * 171/512 rounded down. */
static bool unpack_fives(uint64_t bytes, const uint8_t *restrict in,
                         uint8_t *restrict digits)
{
    uint8_t left[PS_CODEC_ONEBIT_BLOCK / 5], most = 0;
#pragma omp simd reduction(max : most)
    for (uint64_t j = 0; j < bytes; j++) {
        left[j] = in[j];
        most = in[j] > most ? in[j] : most;
    }
    for (uint64_t place = 0; place < 5; place++, digits += bytes) {
#pragma omp simd
        for (uint64_t j = 0; j < bytes; j++) {
            uint8_t third = (uint8_t)((uint16_t)(left[j] * 171u) >> 9);
            digits[j] = (uint8_t)(left[j] - 3 * third);
            left[j] = third;
        }
    }
    return most < 243;
}

static void onebit_block_encode(uint64_t n, const float *restrict v, uint8_t *out)
{
    uint8_t digits[PS_CODEC_ONEBIT_BLOCK + 5] = {0};
    // 3/4, not 1: of equal elements all are to be sent.
    float a = mean_above(n, v, 0.75f * mean_magnitude(n, v));
    a = mean_above(n, v, 0.5f * a);
    const float t = 0.5f * a;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        digits[i] = (uint8_t)(fabsf(v[i]) >= t ? 1u + (ps_float_bits(v[i]) >> 31) : 0u);
    uint16_t scale = ps_bf16_of(mean_above(n, v, t));
    memcpy(out, &scale, 2);
    pack_fives(blocks_of(n, 5), digits, out + 2);
}

static void onebit_encode(uint64_t n, const float *in, uint8_t *out)
{
    for (uint64_t at = 0; at < n; at += PS_CODEC_ONEBIT_BLOCK) {
        uint64_t m = min_u64(PS_CODEC_ONEBIT_BLOCK, n - at);
        onebit_block_encode(m, in + at, out);
        out += onebit_bytes(m);
    }
}

static ps_err onebit_decode(uint64_t n, const uint8_t *in, float *restrict out)
{
    uint8_t digits[PS_CODEC_ONEBIT_BLOCK + 5];
    for (uint64_t at = 0; at < n; at += PS_CODEC_ONEBIT_BLOCK) {
        uint64_t m = min_u64(PS_CODEC_ONEBIT_BLOCK, n - at);
        uint16_t scale;
        memcpy(&scale, in, 2);
        const float a = ps_float_of_bf16(scale);
        if (!unpack_fives(blocks_of(m, 5), in + 2, digits))
            return ps_err_set(PS_ERR_PROTOCOL, "onebit: a byte that is not five digits");
#pragma omp simd
        for (uint64_t i = 0; i < m; i++)
            out[at + i] = a * (float)((int32_t)(digits[i] & 1u) - (digits[i] >> 1));
        in += onebit_bytes(m);
    }
    return PS_OK;
}

/* ---- topk ---- */

static uint32_t count_from(uint64_t n, const uint32_t *restrict a, uint32_t least)
{
    uint32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (uint64_t i = 0; i < n; i++)
        count += a[i] >= least;
    return count;
}

/* The largest number that at least k of a (at most `most`, below 2^31) reach, or one that
 * exactly k reach: down by octaves of float32, then bisection. A block lies in the first
 * cache, and a count is a few vectors. */
static uint32_t topk_threshold(uint64_t n, const uint32_t *a, uint64_t k, uint32_t most)
{
    uint32_t high = most + 1, low = most, step = 1u << 23; // fewer than k reach high
    for (uint32_t count; (count = count_from(n, a, low)) <= k; step *= 2) {
        if (count == k) return low;
        high = low;
        low = low > step ? low - step : 0;
    }
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t count = count_from(n, a, middle);
        if (count == k) return middle;
        if (count > k)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Powers of sqrt(1/2), and the least share of the scale that each stands for.
 * Logarithmic, for what is chosen spans a decade and Adam cares for ratios. */
static const float topk_levels[8] = {1,     0.70710678f, 0.5f,   0.35355339f,
                                     0.25f, 0.1767767f,  0.125f, 0.0f};
static const float topk_least[7] = {0.84089642f, 0.59460356f, 0.42044821f, 0.29730178f,
                                    0.2102241f,  0.14865089f, 0.10511205f};

/* The indices of the k largest, ascending; index[k] may be written to as well. */
static void topk_choose(uint64_t n, const float *restrict v, uint32_t most, uint64_t k,
                        uint8_t *restrict index)
{
    uint32_t a[PS_CODEC_TOPK_BLOCK];
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        a[i] = ps_float_bits(v[i]) & 0x7FFFFFFFu;
    const uint32_t least = topk_threshold(n, a, k, most);
    uint64_t ties = k - count_from(n, a, least + 1), found = 0;
    // Without branches: which are taken cannot be foreseen.
    for (uint64_t i = 0; i < n; i++) {
        uint64_t tie = (a[i] == least) & (ties > 0);
        index[found] = (uint8_t)i;
        found += (a[i] > least) | tie;
        ties -= tie;
    }
}

/* 4 bits for each of v. */
static void topk_values(uint64_t n, const float *restrict v, float scale,
                        uint8_t *restrict values)
{
    float least[7];
    for (int i = 0; i < 7; i++)
        least[i] = topk_least[i] * scale;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        const float a = fabsf(v[i]);
        uint32_t e = (uint32_t)(a < least[0]) + (a < least[1]) + (a < least[2]) +
                     (a < least[3]) + (a < least[4]) + (a < least[5]) + (a < least[6]);
        values[i] = (uint8_t)(e | (ps_float_bits(v[i]) >> 31) << 3);
    }
}

static void topk_block_encode(uint64_t n, const float *v, uint64_t k, uint8_t *out)
{
    float chosen[PS_CODEC_TOPK_BLOCK];
    uint8_t index[PS_CODEC_TOPK_BLOCK + 1], values[PS_CODEC_TOPK_BLOCK + 1];
    const uint32_t most = largest_bits(n, v);
    const float scale = ps_float_of_bits(most);
    topk_choose(n, v, most, k, index);
    for (uint64_t i = 0; i < k; i++)
        chosen[i] = v[index[i]];
    topk_values(k, chosen, scale, values);
    values[k] = 0;
    memcpy(out, &scale, 4);
    memcpy(out + 4, index, k);
    for (uint64_t i = 0; i < k; i += 2)
        out[4 + k + i / 2] = (uint8_t)(values[i] | values[i + 1] << 4);
}

static void topk_encode(uint64_t n, const float *v, double share, uint8_t *out)
{
    for (uint64_t at = 0; at < n; at += PS_CODEC_TOPK_BLOCK) {
        uint64_t m = min_u64(PS_CODEC_TOPK_BLOCK, n - at), k = topk_count(m, share);
        topk_block_encode(m, v + at, k, out);
        out += topk_block_bytes(k);
    }
}

static ps_err topk_block_decode(uint64_t n, uint64_t k, const uint8_t *in, float *out)
{
    const uint8_t *index = in + 4, *values = index + k;
    float scale;
    memcpy(&scale, in, 4);
    int last = -1;
    for (uint64_t i = 0; i < k; last = index[i++]) {
        if (index[i] <= last || index[i] >= n)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "topk: index %u of a block of %llu is not above %d",
                              index[i], (unsigned long long)n, last);
        uint32_t value = values[i / 2] >> (i % 2 * 4) & 15u;
        float a = topk_levels[value & 7u] * scale;
        out[index[i]] = value & 8u ? -a : a;
    }
    return PS_OK;
}

static ps_err topk_decode(uint64_t n, double share, const uint8_t *in, float *out)
{
    memset(out, 0, n * sizeof *out);
    for (uint64_t at = 0; at < n; at += PS_CODEC_TOPK_BLOCK) {
        uint64_t m = min_u64(PS_CODEC_TOPK_BLOCK, n - at), k = topk_count(m, share);
        PS_TRY(topk_block_decode(m, k, in, out + at));
        in += topk_block_bytes(k);
    }
    return PS_OK;
}

/* ---- one vector ---- */

static void encode_plain(ps_codec codec, double topk, uint64_t n, const float *v,
                         uint64_t draw, void *out)
{
    switch (codec) {
    case PS_CODEC_FP16:
        fp16_encode(n, v, out);
        break;
    case PS_CODEC_BF16:
        bf16_encode(n, v, out);
        break;
    case PS_CODEC_INT8:
        int8_encode(n, v, draw, out);
        break;
    case PS_CODEC_ONEBIT:
        onebit_encode(n, v, out);
        break;
    case PS_CODEC_TOPK:
        topk_encode(n, v, topk, out);
        break;
    default:
        memcpy(out, v, n * sizeof *v);
    }
}

/* A piece of this length, whose payload can be decoded alone. */
static uint64_t block_of(ps_codec codec)
{
    return codec == PS_CODEC_ONEBIT ? PS_CODEC_ONEBIT_BLOCK : PS_CODEC_TOPK_BLOCK;
}

/* residual -= decoded, read from the payload without a second buffer of n. */
static void take_sent(ps_codec codec, double topk, uint64_t n, const void *payload,
                      float *residual)
{
    const uint64_t block = block_of(codec);
    float decoded[PS_CODEC_ONEBIT_BLOCK];
    const uint8_t *at_payload = payload;
    for (uint64_t at = 0; at < n; at += block) {
        uint64_t m = min_u64(block, n - at), bytes = ps_codec_bytes(codec, m, topk);
        // We have just made it: it cannot fail.
        (void)ps_codec_decode(codec, topk, m, at_payload, bytes, decoded);
#pragma omp simd
        for (uint64_t i = 0; i < m; i++)
            residual[at + i] -= decoded[i];
        at_payload += bytes;
    }
}

void ps_codec_encode(ps_codec codec, double topk, uint64_t n, const float *in,
                     float *residual, uint64_t draw, void *out)
{
    if (n == 0) return;
    if (!residual) {
        encode_plain(codec, topk, n, in, draw, out);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        residual[i] += in[i];
    encode_plain(codec, topk, n, residual, draw, out);
    take_sent(codec, topk, n, out, residual);
}

ps_err ps_codec_decode(ps_codec codec, double topk, uint64_t n, const void *payload,
                       uint64_t bytes, float *out)
{
    uint64_t wanted = ps_codec_bytes(codec, n, topk);
    if (bytes != wanted)
        return ps_err_set(
            PS_ERR_PROTOCOL, "%llu bytes for %llu elements, which take %llu",
            (unsigned long long)bytes, (unsigned long long)n, (unsigned long long)wanted);
    if (n == 0) return PS_OK;
    switch (codec) {
    case PS_CODEC_FP16:
        fp16_decode(n, payload, out);
        return PS_OK;
    case PS_CODEC_BF16:
        bf16_decode(n, payload, out);
        return PS_OK;
    case PS_CODEC_INT8:
        int8_decode(n, payload, out);
        return PS_OK;
    case PS_CODEC_ONEBIT:
        return onebit_decode(n, payload, out);
    case PS_CODEC_TOPK:
        return topk_decode(n, topk, payload, out);
    case PS_CODEC_NONE:
        memcpy(out, payload, n * sizeof *out);
        return PS_OK;
    default:
        return ps_err_set(PS_ERR_PROTOCOL, "codec %d does not encode values", (int)codec);
    }
}

uint64_t ps_codec_draw(uint32_t sender, uint64_t step, uint64_t place)
{
    // splitmix64's finalizer over a sum of odd multiples: neighbours share nothing.
    uint64_t x = (sender + UINT64_C(1)) * 0x9E3779B97F4A7C15u +
                 step * 0xD1B54A32D192ED03u + place * 0x8CB92BA72F3D8DD7u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* ---- a chunk: its tensors' pieces one after another ---- */

typedef struct piece {
    uint64_t offset, count; // elements, from the chunk's start
    ps_codec codec;
} piece;

/* The part of tensor t that lies in the chunk. */
static piece piece_of(const ps_chunk_codec *c, const ps_chunk *chunk, ps_codec codec,
                      int t)
{
    const ps_tensor *tensor = &c->spec->tensors[t];
    uint64_t begin = tensor->offset, end = tensor->offset + tensor->count;
    uint64_t chunk_end = chunk->offset + chunk->count;
    if (begin < chunk->offset) begin = chunk->offset;
    if (end > chunk_end) end = chunk_end;
    bool small = tensor->count * sizeof(float) < c->min_bytes;
    return (piece){.offset = begin - chunk->offset,
                   .count = end > begin ? end - begin : 0,
                   .codec = small ? PS_CODEC_NONE : codec};
}

ps_err ps_chunk_codec_init(ps_chunk_codec *c, const ps_config *cfg,
                           const ps_model_spec *spec)
{
    static const struct {
        const char *name;
        ps_codec codec;
    } names[] = {{"none", PS_CODEC_NONE},     {"fp16", PS_CODEC_FP16},
                 {"bf16", PS_CODEC_BF16},     {"int8", PS_CODEC_INT8},
                 {"onebit", PS_CODEC_ONEBIT}, {"topk", PS_CODEC_TOPK}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(cfg->exchange.codec, names[i].name) != 0) continue;
        *c = (ps_chunk_codec){.codec = names[i].codec,
                              .topk = cfg->exchange.topk,
                              .min_bytes = (uint64_t)cfg->exchange.codec_min,
                              .warmup = (uint64_t)cfg->exchange.codec_warmup,
                              .spec = spec};
        return PS_OK;
    }
    return ps_err_set(
        PS_ERR_CONFIG,
        "exchange.codec: '%s' is none of none, fp16, bf16, int8, onebit, topk",
        cfg->exchange.codec);
}

static ps_codec codec_in_step(const ps_chunk_codec *c, ps_coded what, uint64_t step)
{
    if (!ps_codec_feeds_back(c->codec)) return c->codec;
    if (step < c->warmup) return PS_CODEC_INT8;
    return what == PS_CODED_CHANGE ? PS_CODEC_ONEBIT : c->codec;
}

ps_codec ps_chunk_codec_of(const ps_chunk_codec *c, const ps_chunk *chunk, ps_coded what,
                           uint64_t step)
{
    const ps_codec codec = codec_in_step(c, what, step);
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++)
        if (piece_of(c, chunk, codec, t).codec != PS_CODEC_NONE) return codec;
    return PS_CODEC_NONE;
}

uint64_t ps_chunk_codec_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                              ps_codec codec)
{
    if (codec == PS_CODEC_NONE) return chunk->count * sizeof(float);
    uint64_t bytes = 0;
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        piece p = piece_of(c, chunk, codec, t);
        bytes += ps_codec_bytes(p.codec, p.count, c->topk);
    }
    return bytes;
}

uint64_t ps_chunk_codec_most_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                                   ps_coded what)
{
    uint64_t first = ps_chunk_codec_bytes(c, chunk, ps_chunk_codec_of(c, chunk, what, 0));
    uint64_t later =
        ps_chunk_codec_bytes(c, chunk, ps_chunk_codec_of(c, chunk, what, UINT64_MAX));
    return first > later ? first : later;
}

void ps_chunk_codec_step_bytes(const ps_chunk_codec *c, const ps_plan *plan,
                               uint32_t shard, uint64_t *total, uint64_t *largest)
{
    *total = *largest = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        uint64_t bytes =
            ps_chunk_codec_most_bytes(c, &plan->chunks[i], PS_CODED_GRADIENT);
        if (bytes > *largest) *largest = bytes;
        if (plan->chunks[i].shard == shard) *total += bytes;
    }
}

void ps_chunk_codec_encode(const ps_chunk_codec *c, const ps_chunk *chunk, ps_codec codec,
                           const float *values, float *residual, uint64_t draw, void *out)
{
    if (codec == PS_CODEC_NONE) {
        memcpy(out, values, chunk->count * sizeof(float));
        return;
    }
    uint8_t *at = out;
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        piece p = piece_of(c, chunk, codec, t);
        float *kept =
            residual && ps_codec_feeds_back(p.codec) ? residual + p.offset : NULL;
        ps_codec_encode(p.codec, c->topk, p.count, values + p.offset, kept,
                        draw + chunk->offset + p.offset, at);
        if (c->overflow && p.codec == PS_CODEC_FP16)
            fp16_overflow(p.count, values + p.offset, (uint16_t *)(void *)at);
        at += ps_codec_bytes(p.codec, p.count, c->topk);
    }
}

ps_err ps_chunk_codec_decode(const ps_chunk_codec *c, const ps_chunk *chunk,
                             ps_codec codec, const void *payload, uint64_t bytes,
                             float *out)
{
    const uint64_t wanted = ps_chunk_codec_bytes(c, chunk, codec);
    if (bytes != wanted)
        return ps_err_set(PS_ERR_PROTOCOL, "%llu bytes for a chunk that takes %llu",
                          (unsigned long long)bytes, (unsigned long long)wanted);
    if (codec == PS_CODEC_NONE) {
        memcpy(out, payload, bytes);
        return PS_OK;
    }
    memset(out, 0, chunk->count * sizeof *out);
    const uint8_t *at = payload;
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        piece p = piece_of(c, chunk, codec, t);
        uint64_t n = ps_codec_bytes(p.codec, p.count, c->topk);
        PS_TRY(ps_codec_decode(p.codec, c->topk, p.count, at, n, out + p.offset));
        at += n;
    }
    return PS_OK;
}
