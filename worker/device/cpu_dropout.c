#include "cpu_dropout.h"

#include <string.h>

#include "arith.h"

/* Sixteen counters at a time fill AVX-512's lanes; eight draws each. */
enum { COUNTERS = 16, DRAWS = COUNTERS * 8 };

static int64_t rounded(const ps_cpu_dropout *d)
{
    return (ps_cpu_shape_features(&d->in) + DRAWS - 1) / DRAWS * DRAWS;
}

/* Both layouts have the channels in blocks: the mask is kept in that order. */
static bool in_blocks(const ps_cpu_dropout *d)
{
    return !ps_cpu_shape_is_plain(&d->in) && !ps_cpu_shape_is_plain(&d->out);
}

size_t ps_cpu_dropout_mask_bytes(const ps_cpu_dropout *d)
{
    return in_blocks(d) ? (size_t)ps_cpu_shape_count(&d->in)
                        : (size_t)(d->in.n * ps_cpu_shape_features(&d->in) + DRAWS);
}

size_t ps_cpu_dropout_scratch_bytes(const ps_cpu_dropout *d)
{
    return (size_t)rounded(d);
}

/* One round of Philox for COUNTERS counters side by side; c[w][j] is word w of counter j.
 * The same as ps_philox4x32 (rng.h), which compilers do not vectorise as it stands. */
static inline void philox_round(uint32_t c[4][COUNTERS], uint32_t k0, uint32_t k1)
{
#pragma omp simd
    for (int j = 0; j < COUNTERS; j++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0][j];
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2][j];
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1][j] ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c[3][j] ^ k1;
        c[1][j] = (uint32_t)p1;
        c[3][j] = (uint32_t)p0;
        c[0][j] = n0;
        c[2][j] = n2;
    }
}

/* keep (DRAWS) for the counters from first on. */
static void draw_group(const uint32_t key[2], uint32_t first, uint32_t id,
                       uint32_t position, uint32_t epoch, uint32_t threshold,
                       uint8_t *restrict keep)
{
    uint32_t c[4][COUNTERS], words[COUNTERS * 4];
    uint16_t draws[DRAWS];
    for (uint32_t j = 0; j < COUNTERS; j++)
        c[0][j] = first + j, c[1][j] = id, c[2][j] = position, c[3][j] = epoch;
    for (uint32_t round = 0; round < 10; round++)
        philox_round(c, key[0] + round * 0x9E3779B9u, key[1] + round * 0xBB67AE85u);
    for (int j = 0; j < COUNTERS; j++) {
        words[j * 4] = c[0][j], words[j * 4 + 1] = c[1][j];
        words[j * 4 + 2] = c[2][j], words[j * 4 + 3] = c[3][j];
    }
    memcpy(draws, words, sizeof draws); // little-endian: the low half-word first
#pragma omp simd
    for (int i = 0; i < DRAWS; i++)
        keep[i] = (uint32_t)draws[i] >= threshold;
}

static void mask_to_blocks(const ps_cpu_shape *s, int64_t n, const uint8_t *restrict rows,
                           uint8_t *restrict mask)
{
    int64_t plane = ps_cpu_shape_plane(s), lanes = s->lanes;
    mask += n * s->blocks * plane * lanes;
    for (int64_t b = 0; b < s->blocks; b++) {
        for (int64_t p = 0; p < plane; p++) {
            for (int64_t l = 0; l < lanes; l++) {
                int64_t c = b * lanes + l;
                *mask++ = c < s->c ? rows[c * plane + p] : 0;
            }
        }
    }
}

void ps_cpu_dropout_draw(const ps_cpu_dropout *d, ps_dropout_key key,
                         const uint32_t *positions, uint8_t *mask, uint8_t *scratch)
{
    const uint32_t k[2] = {(uint32_t)key.seed, (uint32_t)(key.seed >> 32)};
    int64_t features = ps_cpu_shape_features(&d->in);
    uint32_t threshold = ps_dropout_threshold(d->p);
    for (int64_t n = 0; n < d->in.n; n++) {
        for (int64_t e = 0; e < features; e += DRAWS)
            draw_group(k, (uint32_t)(e / 8), d->id, positions[n], key.epoch, threshold,
                       scratch + e);
        if (in_blocks(d))
            mask_to_blocks(&d->in, n, scratch, mask);
        else
            memcpy(mask + n * features, scratch, (size_t)features);
    }
}

static void apply(int64_t count, float scale, const uint8_t *mask, const float *x,
                  float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        y[i] = mask[i] ? x[i] * scale : 0.0f;
}

static void apply_add(int64_t count, float scale, const uint8_t *mask, const float *x,
                      float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        y[i] += mask[i] ? x[i] * scale : 0.0f;
}

/* One block of channels at a time, so that what is turned stays in the first cache. */
typedef struct block {
    int64_t plane, lanes, channels;
    int64_t at, row; // elements from the start in the blocked and the plain array
} block;

static block block_at(const ps_cpu_shape *s, int64_t o)
{
    int64_t plane = ps_cpu_shape_plane(s), c = (o % s->blocks) * s->lanes;
    return (block){plane, s->lanes, s->c - c < s->lanes ? s->c - c : s->lanes,
                   o * plane * s->lanes, (o / s->blocks * s->c + c) * plane};
}

static bool same_layout(const ps_cpu_dropout *d)
{
    return in_blocks(d) ||
           (ps_cpu_shape_is_plain(&d->in) && ps_cpu_shape_is_plain(&d->out));
}

void ps_cpu_dropout_forward(const ps_cpu_dropout *d, const uint8_t *mask, const float *x,
                            float *y)
{
    float scale = ps_dropout_scale(d->p);
    if (same_layout(d)) {
        apply(ps_cpu_shape_count(&d->in), scale, mask, x, y);
        return;
    }
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&d->in); o++) {
        block b = block_at(&d->in, o);
        float *rows = y + b.row;
        ps_cpu_block_to_rows(b.plane, b.lanes, b.channels, x + b.at, rows);
        apply(b.channels * b.plane, scale, mask + b.row, rows, rows);
    }
}

void ps_cpu_dropout_backward(const ps_cpu_dropout *d, const uint8_t *mask, float *dy,
                             float *dx, bool add)
{
    float scale = ps_dropout_scale(d->p);
    if (same_layout(d)) {
        if (add)
            apply_add(ps_cpu_shape_count(&d->in), scale, mask, dy, dx);
        else
            apply(ps_cpu_shape_count(&d->in), scale, mask, dy, dx);
        return;
    }
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&d->in); o++) {
        block b = block_at(&d->in, o);
        float *rows = dy + b.row;
        apply(b.channels * b.plane, scale, mask + b.row, rows, rows);
        if (!add) ps_cpu_rows_to_block(b.plane, b.lanes, b.channels, rows, dx + b.at);
    }
    if (add) ps_cpu_convert(&d->out, dy, &d->in, dx, true);
}
