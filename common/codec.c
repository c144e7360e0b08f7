#include "codec.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "float16.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t topk_count(uint64_t n, double share)
{
    uint64_t k = (uint64_t)ceil(share * (double)n);
    if (k < 1) k = 1;
    return min_u64(k, n);
}

uint64_t ps_codec_bytes(ps_codec codec, uint64_t n, double topk)
{
    switch (codec) {
    case PS_CODEC_FP16:
    case PS_CODEC_BF16:
        return 2 * n;
    case PS_CODEC_INT8:
        return n + 4 * ((n + PS_CODEC_INT8_BLOCK - 1) / PS_CODEC_INT8_BLOCK);
    case PS_CODEC_ONEBIT:
        return (n + 7) / 8 +
               4 * ((n + PS_CODEC_ONEBIT_BLOCK - 1) / PS_CODEC_ONEBIT_BLOCK);
    case PS_CODEC_TOPK:
        return 8 * topk_count(n, topk);
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

static void onebit_encode(uint64_t n, const float *in, uint8_t *out)
{
    for (uint64_t at = 0; at < n; at += PS_CODEC_ONEBIT_BLOCK) {
        uint64_t m = min_u64(PS_CODEC_ONEBIT_BLOCK, n - at);
        float scale = mean_magnitude(m, in + at);
        memcpy(out, &scale, 4);
        out += 4;
        for (uint64_t i = 0; i < m; i += 8) {
            uint64_t left = min_u64(8, m - i);
            uint32_t byte = 0;
            for (uint64_t j = 0; j < left; j++)
                byte |= (ps_float_bits(in[at + i + j]) >> 31) << j;
            *out++ = (uint8_t)byte;
        }
    }
}

static void onebit_decode(uint64_t n, const uint8_t *in, float *restrict out)
{
    for (uint64_t at = 0; at < n; at += PS_CODEC_ONEBIT_BLOCK) {
        uint64_t m = min_u64(PS_CODEC_ONEBIT_BLOCK, n - at);
        uint32_t scale;
        memcpy(&scale, in, 4);
        const uint8_t *restrict bits = in + 4;
#pragma omp simd
        for (uint64_t i = 0; i < m; i++) {
            uint32_t sign = (uint32_t)(bits[i / 8] >> (i % 8) & 1u) << 31;
            out[at + i] = ps_float_of_bits(scale ^ sign);
        }
        in += 4 + (m + 7) / 8;
    }
}

/* ---- topk: the threshold by three passes of a radix selection over |v|'s bits ---- */

/* The bits of the k-th largest |v|, and how many elements of exactly those bits to take.
 */
static uint32_t topk_threshold(uint64_t n, const float *v, uint64_t k, uint64_t *ties)
{
    static const int shifts[] = {20, 10, 0}; // 31 bits: 11, 10 and 10 of them
    uint32_t prefix = 0, known = 0;
    for (int pass = 0; pass < 3; pass++) {
        uint32_t counts[2048] = {0};
        uint32_t mask = pass == 0 ? 2047u : 1023u;
        for (uint64_t i = 0; i < n; i++) {
            uint32_t a = ps_float_bits(v[i]) & 0x7FFFFFFFu;
            if ((a & known) == prefix) counts[a >> shifts[pass] & mask]++;
        }
        uint32_t bin = mask;
        while (counts[bin] < k)
            k -= counts[bin--];
        prefix |= bin << shifts[pass];
        known |= mask << shifts[pass];
    }
    *ties = k;
    return prefix;
}

static void topk_encode(uint64_t n, const float *v, uint64_t k, uint8_t *out)
{
    uint64_t ties;
    const uint32_t threshold = topk_threshold(n, v, k, &ties);
    uint8_t *indices = out, *values = out + 4 * k;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t a = ps_float_bits(v[i]) & 0x7FFFFFFFu;
        if (a < threshold || (a == threshold && ties == 0)) continue;
        if (a == threshold) ties--;
        uint32_t index = (uint32_t)i;
        memcpy(indices, &index, 4);
        memcpy(values, &v[i], 4);
        indices += 4;
        values += 4;
    }
}

static ps_err topk_decode(uint64_t n, uint64_t k, const uint8_t *in, float *out)
{
    memset(out, 0, n * sizeof *out);
    int64_t last = -1;
    for (uint64_t i = 0; i < k; i++) {
        uint32_t index;
        memcpy(&index, in + 4 * i, 4);
        if ((int64_t)index <= last || index >= n)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "topk: index %u of %llu elements is not above %lld", index,
                              (unsigned long long)n, (long long)last);
        last = index;
        memcpy(&out[index], in + 4 * (k + i), 4);
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
        topk_encode(n, v, topk_count(n, topk), out);
        break;
    default:
        memcpy(out, v, n * sizeof *v);
    }
}

/* residual -= decoded, read from the payload without a second buffer of n. */
static void take_sent(ps_codec codec, double topk, uint64_t n, const void *payload,
                      float *residual)
{
    if (codec == PS_CODEC_TOPK) { // what was sent was sent exactly
        uint64_t k = topk_count(n, topk);
        for (uint64_t i = 0; i < k; i++) {
            uint32_t index;
            memcpy(&index, (const uint8_t *)payload + 4 * i, 4);
            residual[index] = 0.0f;
        }
        return;
    }
    float decoded[PS_CODEC_ONEBIT_BLOCK];
    const uint8_t *at_payload = payload;
    for (uint64_t at = 0; at < n; at += PS_CODEC_ONEBIT_BLOCK) {
        uint64_t m = min_u64(PS_CODEC_ONEBIT_BLOCK, n - at);
        uint64_t bytes = ps_codec_bytes(codec, m, topk);
        // The size is the block's own and no index is in it: it cannot fail.
        (void)ps_codec_decode(codec, topk, m, at_payload, bytes, decoded);
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
        onebit_decode(n, payload, out);
        return PS_OK;
    case PS_CODEC_TOPK:
        return topk_decode(n, topk_count(n, topk), payload, out);
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
static piece piece_of(const ps_chunk_codec *c, const ps_chunk *chunk, int t)
{
    const ps_tensor *tensor = &c->spec->tensors[t];
    uint64_t begin = tensor->offset, end = tensor->offset + tensor->count;
    uint64_t chunk_end = chunk->offset + chunk->count;
    if (begin < chunk->offset) begin = chunk->offset;
    if (end > chunk_end) end = chunk_end;
    // topk's indices have 32 bits; a tensor of that size is cut into chunks long before.
    bool small = tensor->count * sizeof(float) < c->min_bytes;
    return (piece){.offset = begin - chunk->offset,
                   .count = end > begin ? end - begin : 0,
                   .codec = small ? PS_CODEC_NONE : c->codec};
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
                              .spec = spec};
        return PS_OK;
    }
    return ps_err_set(
        PS_ERR_CONFIG,
        "exchange.codec: '%s' is none of none, fp16, bf16, int8, onebit, topk",
        cfg->exchange.codec);
}

ps_codec ps_chunk_codec_of(const ps_chunk_codec *c, const ps_chunk *chunk)
{
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++)
        if (piece_of(c, chunk, t).codec != PS_CODEC_NONE) return c->codec;
    return PS_CODEC_NONE;
}

uint64_t ps_chunk_codec_bytes(const ps_chunk_codec *c, const ps_chunk *chunk)
{
    if (ps_chunk_codec_of(c, chunk) == PS_CODEC_NONE) return chunk->count * sizeof(float);
    uint64_t bytes = 0;
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        piece p = piece_of(c, chunk, t);
        bytes += ps_codec_bytes(p.codec, p.count, c->topk);
    }
    return bytes;
}

void ps_chunk_codec_step_bytes(const ps_chunk_codec *c, const ps_plan *plan,
                               uint32_t shard, uint64_t *total, uint64_t *largest)
{
    *total = *largest = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        uint64_t bytes = ps_chunk_codec_bytes(c, &plan->chunks[i]);
        if (bytes > *largest) *largest = bytes;
        if (plan->chunks[i].shard == shard) *total += bytes;
    }
}

void ps_chunk_codec_encode(const ps_chunk_codec *c, const ps_chunk *chunk,
                           const float *values, float *residual, uint64_t draw, void *out)
{
    if (ps_chunk_codec_of(c, chunk) == PS_CODEC_NONE) {
        memcpy(out, values, chunk->count * sizeof(float));
        return;
    }
    uint8_t *at = out;
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        piece p = piece_of(c, chunk, t);
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
                             const void *payload, uint64_t bytes, float *out)
{
    if (bytes != ps_chunk_codec_bytes(c, chunk))
        return ps_err_set(PS_ERR_PROTOCOL, "%llu bytes for a chunk that takes %llu",
                          (unsigned long long)bytes,
                          (unsigned long long)ps_chunk_codec_bytes(c, chunk));
    if (ps_chunk_codec_of(c, chunk) == PS_CODEC_NONE) {
        memcpy(out, payload, bytes);
        return PS_OK;
    }
    memset(out, 0, chunk->count * sizeof *out);
    const uint8_t *at = payload;
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        piece p = piece_of(c, chunk, t);
        uint64_t n = ps_codec_bytes(p.codec, p.count, c->topk);
        PS_TRY(ps_codec_decode(p.codec, c->topk, p.count, at, n, out + p.offset));
        at += n;
    }
    return PS_OK;
}
