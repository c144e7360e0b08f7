#include "cpu_dropout.h"

#include <string.h>

#include "arith.h"
#include "cpu_level.h"

/* A vector of counters, each in the low half of a 64-bit lane. The high halves never
 * matter: a product reads only the low halves, and everything else is bitwise. So no word
 * has to change its lane in a round. */
#if defined __SSE2__
#include <immintrin.h>
#endif
#if defined __AVX512BW__
enum { VECTOR_BYTES = 64 };
#define PRODUCT(a, b) (counters) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#elif defined __AVX2__
enum { VECTOR_BYTES = 32 };
#define PRODUCT(a, b) (counters) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#elif defined __SSE2__
enum { VECTOR_BYTES = 16 };
#define PRODUCT(a, b) (counters) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#else // compilers do not turn this into the multiply instruction above
enum { VECTOR_BYTES = 16 };
#define PRODUCT(a, b) (((a)&0xFFFFFFFFu) * (b))
#endif

typedef uint64_t counters __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t draws __attribute__((vector_size(VECTOR_BYTES)));

enum { COUNTERS = VECTOR_BYTES / 8, DRAWS = COUNTERS * 8 };

enum { ROUNDS = 10 };

/* The rounds' keys, in every lane. */
typedef struct round_keys {
    counters k[ROUNDS][2];
} round_keys;

static inline counters dropout_everywhere(uint32_t value)
{
    return (counters){0} + value;
}

static void round_keys_init(round_keys *keys, uint64_t seed)
{
    for (uint32_t i = 0; i < ROUNDS; i++) {
        keys->k[i][0] = dropout_everywhere((uint32_t)seed + i * 0x9E3779B9u);
        keys->k[i][1] = dropout_everywhere((uint32_t)(seed >> 32) + i * 0xBB67AE85u);
    }
}

/* As ps_philox4x32 (rng.h). */
static inline void dropout_philox(const round_keys *keys, counters c[4])
{
    const counters m0 = dropout_everywhere(0xD2511F53u),
                   m1 = dropout_everywhere(0xCD9E8D57u);
    for (int i = 0; i < ROUNDS; i++) {
        counters p0 = PRODUCT(c[0], m0), p1 = PRODUCT(c[2], m1);
        c[0] = p1 >> 32 ^ c[1] ^ keys->k[i][0];
        c[2] = p0 >> 32 ^ c[3] ^ keys->k[i][1];
        c[1] = p1;
        c[3] = p0;
    }
}

/* The low half-words of four words, one after the other. */
static inline draws low_halves(const counters c[4], int shift)
{
    const uint64_t half = 0xFFFFu;
    return (draws)((c[0] >> shift & half) | (c[1] >> shift & half) << 16 |
                   (c[2] >> shift & half) << 32 | c[3] >> shift << 48);
}

/* Elements from e on, below n, of one sample in row-major order; mask is the sample's.
 * Padding is not written: its values are 0 anyway. */
static void put_group(const ps_cpu_shape *s, int64_t e, int64_t n, const counters *bytes,
                      uint8_t *mask)
{
    int64_t plane = ps_cpu_shape_plane(s);
    uint8_t keep[DRAWS];
    memcpy(keep, bytes, sizeof keep);
    for (int i = 0; i < DRAWS && e + i < n; i++) {
        int64_t c = (e + i) / plane, p = (e + i) % plane;
        mask[(c / s->lanes * plane + p) * s->lanes + c % s->lanes] = keep[i];
    }
}

/* A draw that is kept is above `last`. */
static void draw_sample(const ps_cpu_dropout *d, const round_keys *keys,
                        const uint32_t counter[4], uint16_t last, uint8_t *mask)
{
    int64_t n = ps_cpu_shape_features(&d->shape);
    counters at;
    for (uint32_t j = 0; j < COUNTERS; j++)
        at[j] = counter[0] + j;
    bool plain = ps_cpu_shape_is_plain(&d->shape);
    for (int64_t e = 0; e < n; e += DRAWS, at += COUNTERS) {
        counters c[4] = {at, dropout_everywhere(counter[1]),
                         dropout_everywhere(counter[2]), dropout_everywhere(counter[3])};
        dropout_philox(keys, c);
        // half-words in turn, the low one first: even and odd bytes, little-endian
        counters bytes = ((counters)(low_halves(c, 0) > last) & 0x0001000100010001u) |
                         ((counters)(low_halves(c, 16) > last) & 0x0100010001000100u);
        if (plain && n - e >= DRAWS)
            memcpy(mask + e, &bytes, sizeof bytes);
        else
            put_group(&d->shape, e, n, &bytes, mask);
    }
}

PS_PER_LEVEL(size_t, ps_cpu_dropout_mask_bytes, (const ps_cpu_dropout *d), (d))
{
    return (size_t)ps_cpu_shape_count(&d->shape);
}

PS_PER_LEVEL(void, ps_cpu_dropout_draw,
             (const ps_cpu_dropout *d, ps_dropout_key key, const uint32_t *positions,
              uint8_t *mask),
             (d, key, positions, mask))
{
    round_keys keys;
    round_keys_init(&keys, key.seed);
    int64_t sample = ps_cpu_shape_count(&d->shape) / d->shape.n;
    uint16_t last = (uint16_t)(ps_dropout_threshold(d->p) - 1); // p is above 0
#pragma omp parallel for
    for (int64_t n = 0; n < d->shape.n; n++) {
        const uint32_t counter[4] = {0, d->id, positions[n], key.epoch};
        draw_sample(d, &keys, counter, last, mask + n * sample);
    }
}

PS_PER_LEVEL(void, ps_cpu_dropout_apply,
             (const ps_cpu_dropout *d, int64_t count, const uint8_t *mask, const float *x,
              float *y),
             (d, count, mask, x, y))
{
    float scale = ps_dropout_scale(d->p);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        y[i] = mask[i] ? x[i] * scale : 0.0f;
}

PS_PER_LEVEL(void, ps_cpu_dropout_forward,
             (const ps_cpu_dropout *d, const uint8_t *mask, const float *x, float *y),
             (d, mask, x, y))
{
    ps_cpu_dropout_apply(d, ps_cpu_shape_count(&d->shape), mask, x, y);
}

PS_PER_LEVEL(void, ps_cpu_dropout_backward,
             (const ps_cpu_dropout *d, const uint8_t *mask, const float *dy, float *dx,
              bool add),
             (d, mask, dy, dx, add))
{
    int64_t count = ps_cpu_shape_count(&d->shape);
    float scale = ps_dropout_scale(d->p);
    if (!add) {
        ps_cpu_dropout_apply(d, count, mask, dy, dx);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        dx[i] += mask[i] ? dy[i] * scale : 0.0f;
}
