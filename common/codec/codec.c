#include "codec.h"

#include "codec_block.h"
#include "codec_math.h"

/* NULL when the codec does not encode values. */
static const ps_codec_block *codec_block_of(ps_codec codec)
{
    switch (codec) {
    case PS_CODEC_NONE:
        return &PS_AT_LEVEL(ps_codec_none_block);
    case PS_CODEC_FP16:
        return &PS_AT_LEVEL(ps_codec_fp16_block);
    case PS_CODEC_BF16:
        return &PS_AT_LEVEL(ps_codec_bf16_block);
    case PS_CODEC_INT8:
        return &PS_AT_LEVEL(ps_codec_int8_block);
    case PS_CODEC_INT4:
        return &PS_AT_LEVEL(ps_codec_int4_block);
    case PS_CODEC_ONEBIT:
        return &PS_AT_LEVEL(ps_codec_onebit_block);
    case PS_CODEC_TOPK:
        return &PS_AT_LEVEL(ps_codec_topk_block);
    default:
        return NULL;
    }
}

/* n: at most a span. */
static uint64_t bytes_in_span(const ps_codec_block *b, uint64_t n, double topk)
{
    const uint64_t rest = n % b->size;
    const uint64_t bytes = n / b->size * b->bytes(b->size, topk);
    return rest ? bytes + b->bytes(rest, topk) : bytes;
}

PS_PER_LEVEL(uint64_t, ps_codec_bytes, (ps_codec codec, uint64_t n, double topk),
             (codec, n, topk))
{
    const ps_codec_block *b = codec_block_of(codec);
    if (!b) return 0;
    return n / PS_CODEC_SPAN * bytes_in_span(b, PS_CODEC_SPAN, topk) +
           bytes_in_span(b, n % PS_CODEC_SPAN, topk);
}

/* The elements of the block that starts at `at`, and its bytes. Those of a whole block
 * are known. */
typedef struct block_size {
    uint64_t n, bytes;
} block_size;

static inline block_size codec_block_at(const ps_codec_block *b, uint64_t n, uint64_t at,
                                        uint64_t whole_bytes, double topk)
{
    const uint64_t span_left = PS_CODEC_SPAN - at % PS_CODEC_SPAN;
    const uint64_t left = n - at < span_left ? n - at : span_left;
    if (left >= b->size) return (block_size){b->size, whole_bytes};
    return (block_size){left, b->bytes(left, topk)};
}

/* Prefetches data some blocks after v[0 .. m): during the arithmetic on a block the
 * processor has too few loads in flight to hide the memory's latency. An address past the
 * vector's end does no harm. */
static inline void codec_prefetch(const float *v, uint64_t m)
{
    enum { AHEAD = 1024, LINE = 16 }; // elements; other distances were no better
    for (uint64_t i = 0; i < m; i += LINE)
        __builtin_prefetch((const void *)((uintptr_t)(v + i) + AHEAD * sizeof *v));
}

/* Adds a block's values, multiplied by times (1 or -1), to sum. */
static ps_err add_decoded(const ps_codec_block *b, uint64_t n, const uint8_t *in,
                          double topk, float times, float *restrict sum)
{
    _Alignas(64) float values[PS_CODEC_MAX_BLOCK];
    if (b->add) return b->add(n, in, topk, times, sum);
    PS_TRY(b->decode(n, in, topk, values));
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        sum[i] += times * values[i];
    return PS_OK;
}

static ps_codec_how how_of(double topk, uint64_t key)
{
    return (ps_codec_how){.topk = topk, .key = ps_codec_vector_key(key)};
}

static void encode_by(const ps_codec_block *b, double topk, uint64_t n, const float *in,
                      ps_codec_draw draw, uint8_t *out)
{
    const ps_codec_how how = how_of(topk, draw.key);
    const uint64_t whole = b->bytes(b->size, topk);
    for (uint64_t at = 0; at < n;) {
        const block_size block = codec_block_at(b, n, at, whole, topk);
        const uint64_t m = block.n;
        codec_prefetch(in + at, m);
        b->encode(m, in + at, &how, draw.first + at, out);
        at += m;
        out += block.bytes;
    }
}

static void encode_and_keep(const ps_codec_block *b, double topk, uint64_t n,
                            const float *in, float *residual, ps_codec_draw draw,
                            uint8_t *out)
{
    const ps_codec_how how = how_of(topk, draw.key);
    const uint64_t whole = b->bytes(b->size, topk);
    for (uint64_t at = 0; at < n;) {
        const block_size block = codec_block_at(b, n, at, whole, topk);
        const uint64_t m = block.n;
        float *v = residual + at;
        codec_prefetch(in + at, m);
        codec_prefetch(v, m);
#pragma omp simd
        for (uint64_t i = 0; i < m; i++)
            v[i] += in[at + i];
        b->encode(m, v, &how, draw.first + at, out);
        (void)add_decoded(b, m, out, topk, -1, v); // just made: it cannot fail
        at += m;
        out += block.bytes;
    }
}

PS_PER_LEVEL(void, ps_codec_encode,
             (ps_codec codec, double topk, uint64_t n, const float *in, float *residual,
              ps_codec_draw draw, void *out),
             (codec, topk, n, in, residual, draw, out))
{
    if (residual)
        encode_and_keep(codec_block_of(codec), topk, n, in, residual, draw, out);
    else
        encode_by(codec_block_of(codec), topk, n, in, draw, out);
}

PS_PER_LEVEL(void, ps_codec_encode_fp16_overflow,
             (uint64_t n, const float *in, void *out), (n, in, out))
{
    encode_by(&PS_AT_LEVEL(ps_codec_fp16_overflow_block), 0, n, in, (ps_codec_draw){0},
              out);
}

PS_PER_LEVEL(void, ps_codec_encode_change,
             (ps_codec codec, double topk, uint64_t n, const float *values, float *known,
              ps_codec_draw draw, void *out),
             (codec, topk, n, values, known, draw, out))
{
    _Alignas(64) float change[PS_CODEC_MAX_BLOCK];
    const ps_codec_block *b = codec_block_of(codec);
    const ps_codec_how how = how_of(topk, draw.key);
    const uint64_t whole = b->bytes(b->size, topk);
    uint8_t *to = out;
    for (uint64_t at = 0; at < n;) {
        const block_size block = codec_block_at(b, n, at, whole, topk);
        const uint64_t m = block.n;
        codec_prefetch(values + at, m);
        codec_prefetch(known + at, m);
#pragma omp simd
        for (uint64_t i = 0; i < m; i++)
            change[i] = values[at + i] - known[at + i];
        b->encode(m, change, &how, draw.first + at, to);
        (void)add_decoded(b, m, to, topk, 1, known + at); // just made: it cannot fail
        at += m;
        to += block.bytes;
    }
}

static ps_err codec_check_bytes(ps_codec codec, double topk, uint64_t n, uint64_t bytes)
{
    if (!codec_block_of(codec))
        return ps_err_set(PS_ERR_PROTOCOL, "codec %d does not encode values", (int)codec);
    const uint64_t wanted = ps_codec_bytes(codec, n, topk);
    if (bytes == wanted) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "%llu bytes for %llu elements, which take %llu",
                      (unsigned long long)bytes, (unsigned long long)n,
                      (unsigned long long)wanted);
}

/* Sets out to the values or, where it adds, adds them. */
static ps_err decode_blocks(ps_codec codec, double topk, uint64_t n, const uint8_t *in,
                            uint64_t bytes, float *out, bool adds)
{
    PS_TRY(codec_check_bytes(codec, topk, n, bytes));
    const ps_codec_block *b = codec_block_of(codec);
    const uint64_t whole = b->bytes(b->size, topk);
    for (uint64_t at = 0; at < n;) {
        const block_size block = codec_block_at(b, n, at, whole, topk);
        if (adds) codec_prefetch(out + at, block.n);
        PS_TRY(adds ? add_decoded(b, block.n, in, topk, 1, out + at)
                    : b->decode(block.n, in, topk, out + at));
        at += block.n;
        in += block.bytes;
    }
    return PS_OK;
}

PS_PER_LEVEL(ps_err, ps_codec_decode,
             (ps_codec codec, double topk, uint64_t n, const void *payload,
              uint64_t bytes, float *out),
             (codec, topk, n, payload, bytes, out))
{
    return decode_blocks(codec, topk, n, payload, bytes, out, false);
}

PS_PER_LEVEL(ps_err, ps_codec_decode_add,
             (ps_codec codec, double topk, uint64_t n, const void *payload,
              uint64_t bytes, float *sum),
             (codec, topk, n, payload, bytes, sum))
{
    return decode_blocks(codec, topk, n, payload, bytes, sum, true);
}

PS_PER_LEVEL(uint64_t, ps_codec_draw_key, (uint32_t sender, uint64_t step),
             (sender, step))
{
    // splitmix64's finalizer over a sum of odd multiples: keys of neighbours are
    // unrelated.
    uint64_t x =
        (sender + UINT64_C(1)) * 0x9E3779B97F4A7C15u + step * 0xD1B54A32D192ED03u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}
