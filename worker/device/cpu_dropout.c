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

/* keep (DRAWS) for the counters from first on. */
static void draw_group(const uint32_t key[2], uint32_t first, uint32_t id,
                       uint32_t position, uint32_t epoch, uint32_t threshold,
                       uint8_t *restrict keep)
{
    uint32_t words[4][COUNTERS];
#pragma omp simd
    for (uint32_t j = 0; j < COUNTERS; j++) {
        const uint32_t counter[4] = {first + j, id, position, epoch};
        uint32_t out[4];
        ps_philox4x32(key, counter, out);
        words[0][j] = out[0], words[1][j] = out[1];
        words[2][j] = out[2], words[3][j] = out[3];
    }
    uint32_t ordered[COUNTERS * 4];
    for (int j = 0; j < COUNTERS; j++) {
        for (int k = 0; k < 4; k++)
            ordered[j * 4 + k] = words[k][j];
    }
    for (int j = 0; j < COUNTERS * 4; j++) {
        keep[j * 2] = (ordered[j] & 0xFFFFu) >= threshold;
        keep[j * 2 + 1] = (ordered[j] >> 16) >= threshold;
    }
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

/* dx (blocked) = or += mask ? dy (plain) * scale : 0 for one block. */
static void unblock_gradient(const block *b, float scale, const uint8_t *restrict mask,
                             const float *restrict dy, float *restrict dx, bool add)
{
    for (int64_t p = 0; p < b->plane; p++) {
        for (int64_t l = 0; l < b->lanes; l++) {
            int64_t i = b->row + l * b->plane + p;
            float g = l < b->channels && mask[i] ? dy[i] * scale : 0.0f;
            float *to = dx + b->at + p * b->lanes + l;
            *to = add ? *to + g : g;
        }
    }
}

void ps_cpu_dropout_backward(const ps_cpu_dropout *d, const uint8_t *mask,
                             const float *dy, float *dx, bool add)
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
        unblock_gradient(&b, scale, mask, dy, dx, add);
    }
}
