#include "cpu_pool.h"

#include <string.h>

#include "arith.h"
#include "cpu_level.h"

enum {
    LANES_MAX = 16,
    /* Prefetch distance in elements: loops stream over planes, and the processor's own
     * prefetching stops at every page. */
    AHEAD = 1024,
    NO_ARGMAX = 255, // a maximum whose gradient the relu stops
    PER_WORD = 4,    // argmax
};

#define INLINE static inline __attribute__((always_inline))

/* One vector of up to LANES_MAX channels at one position of the output. */
typedef struct spot {
    ps_window h, w;
    int64_t kernel_w, in_w;
    int64_t pitch; // elements between two positions of the input
    int shift;     // of this output's argmax in its word
} spot;

/* halves: the usual 2 x 2 windows that do not overlap. It is a compile-time constant in
 * hot loops, which the compiler then unrolls. */
INLINE spot spot_at(const ps_cpu_pool *p, bool halves, int64_t oh, int64_t ow)
{
    spot s = {.kernel_w = halves ? 2 : p->kernel[1],
              .in_w = p->in.w,
              .pitch = p->in.lanes,
              .shift = (int)((oh * p->out.w + ow) % PER_WORD) * 8};
    if (halves) {
        s.h = (ps_window){2 * oh, 2 * oh + 2, 0};
        s.w = (ps_window){2 * ow, 2 * ow + 2, 0};
    } else {
        s.h = ps_window_at(oh, p->stride[0], p->padding[0], p->kernel[0], p->in.h);
        s.w = ps_window_at(ow, p->stride[1], p->padding[1], p->kernel[1], p->in.w);
    }
    return s;
}

INLINE void max_spot(const spot *s, bool with_relu, int lanes, const float *restrict x,
                     float *restrict y, uint32_t *restrict argmax)
{
    float best[LANES_MAX];
    int32_t at[LANES_MAX];
    int32_t first = (int32_t)(s->h.skipped * s->kernel_w + s->w.skipped);
    for (int l = 0; l < lanes; l++) {
        best[l] = -INFINITY;
        at[l] = first;
    }
    for (int64_t h = s->h.begin; h < s->h.end; h++) {
        int32_t k = first + (int32_t)((h - s->h.begin) * s->kernel_w);
        const float *row = x + (h * s->in_w + s->w.begin) * s->pitch;
        for (int64_t w = s->w.begin; w < s->w.end; w++, k++, row += s->pitch) {
            __builtin_prefetch(row + AHEAD);
#pragma omp simd simdlen(16)
            for (int l = 0; l < lanes; l++) {
                bool takes = ps_max_takes(row[l], best[l]);
                best[l] = takes ? row[l] : best[l];
                at[l] = takes ? k : at[l];
            }
        }
    }
#pragma omp simd simdlen(16)
    for (int l = 0; l < lanes; l++) {
        bool stops = with_relu && best[l] <= 0.0f; // NaN passes, as in torch
        uint32_t index = (uint32_t)(stops ? NO_ARGMAX : at[l]);
        y[l] = stops ? 0.0f : best[l];
        argmax[l] = (s->shift == 0 ? 0 : argmax[l]) | index << s->shift;
    }
}

INLINE void avg_spot(const ps_cpu_pool *p, const spot *s, int lanes,
                     const float *restrict x, float *restrict y)
{
    float sum[LANES_MAX] = {0};
    float size = (float)(p->kernel[0] * p->kernel[1]);
    for (int64_t h = s->h.begin; h < s->h.end; h++) {
        const float *row = x + (h * s->in_w + s->w.begin) * s->pitch;
        for (int64_t w = s->w.begin; w < s->w.end; w++, row += s->pitch) {
#pragma omp simd simdlen(16)
            for (int l = 0; l < lanes; l++)
                sum[l] += row[l];
        }
    }
#pragma omp simd simdlen(16)
    for (int l = 0; l < lanes; l++)
        y[l] = sum[l] / size;
}

/* Adds `share` times g to dx at the argmax, or, for averages (argmax NULL), at every
 * position of the window. set: = instead of +=. */
INLINE void spread_spot(const spot *s, int lanes, const float *restrict g,
                        const uint32_t *restrict argmax, float *restrict dx, bool set)
{
    int32_t first = (int32_t)(s->h.skipped * s->kernel_w + s->w.skipped);
    int32_t at[LANES_MAX];
#pragma omp simd simdlen(16)
    for (int l = 0; l < lanes; l++)
        at[l] = argmax ? (int32_t)(argmax[l] >> s->shift & 255u) : 0;
    for (int64_t h = s->h.begin; h < s->h.end; h++) {
        int32_t k = first + (int32_t)((h - s->h.begin) * s->kernel_w);
        float *row = dx + (h * s->in_w + s->w.begin) * s->pitch;
        for (int64_t w = s->w.begin; w < s->w.end; w++, k++, row += s->pitch) {
            __builtin_prefetch(row + AHEAD, 1);
#pragma omp simd simdlen(16)
            for (int l = 0; l < lanes; l++) {
                float share = !argmax || at[l] == k ? g[l] : 0.0f;
                row[l] = set ? share : row[l] + share;
            }
        }
    }
}

/* Windows that do not overlap and cover the input write every element exactly once. */
static bool tiles_input(const ps_cpu_pool *p)
{
    return p->stride[0] == p->kernel[0] && p->stride[1] == p->kernel[1] &&
           p->padding[0] == 0 && p->padding[1] == 0 &&
           p->out.h * p->kernel[0] == p->in.h && p->out.w * p->kernel[1] == p->in.w;
}

static bool is_halves(const ps_cpu_pool *p)
{
    return tiles_input(p) && p->kernel[0] == 2 && p->kernel[1] == 2;
}

static int64_t block_words(const ps_cpu_pool *p)
{
    return (p->out.h * p->out.w + PER_WORD - 1) / PER_WORD * p->in.lanes;
}

PS_PER_LEVEL(size_t, ps_cpu_pool_argmax_bytes, (const ps_cpu_pool *p), (p))
{
    return sizeof(uint32_t) * (size_t)(ps_cpu_shape_outer(&p->in) * block_words(p));
}

/* Pools the outputs [from, to) of a block, in `lanes` lanes from lane l on. lanes is at
 * most LANES_MAX and a compile-time constant in hot loops. argmax NULL: averages. */
INLINE void forward_lanes(const ps_cpu_pool *p, bool halves, int64_t from, int64_t to,
                          int64_t l, int lanes, const float *x, float *y,
                          uint32_t *argmax)
{
    int64_t pitch = p->in.lanes, oh = from / p->out.w, ow = from % p->out.w;
    for (int64_t at = from; at < to; at++) {
        spot s = spot_at(p, halves, oh, ow);
        if (argmax)
            max_spot(&s, p->with_relu, lanes, x + l, y + at * pitch + l,
                     argmax + at / PER_WORD * pitch + l);
        else
            avg_spot(p, &s, lanes, x + l, y + at * pitch + l);
        if (++ow < p->out.w) continue;
        ow = 0;
        oh++;
    }
}

static inline int group_size(int64_t lanes, int64_t from)
{
    return lanes - from < LANES_MAX ? (int)(lanes - from) : LANES_MAX;
}

/* How many of a block's first positions may use whole vectors from lane l on: beyond the
 * last lane, such a vector touches the next positions, which must be inside the block. */
static int64_t whole_vectors(const ps_cpu_pool *p, int64_t l)
{
    int64_t lanes = p->in.lanes, over = l + LANES_MAX - lanes;
    if (over <= 0) return p->out.h * p->out.w;
    int64_t behind = (over + lanes - 1) / lanes; // positions
    int64_t words = (p->out.h * p->out.w + PER_WORD - 1) / PER_WORD - behind;
    int64_t most = p->out.h * p->out.w - behind;
    most = words * PER_WORD < most ? words * PER_WORD : most;
    // rows whose windows end before the last `behind` positions of the input
    int64_t rows = 0;
    while (rows < p->out.h &&
           ps_window_at(rows, p->stride[0], p->padding[0], p->kernel[0], p->in.h).end *
                   p->in.w <=
               p->in.h * p->in.w - behind)
        rows++;
    most = rows * p->out.w < most ? rows * p->out.w : most;
    return most > 0 ? most : 0;
}

static void forward_block(const ps_cpu_pool *p, const float *x, float *y,
                          uint32_t *argmax)
{
    bool halves = is_halves(p);
    int64_t count = p->out.h * p->out.w, lanes = p->in.lanes;
    // The last group comes first: its vectors spill into lanes that are written later.
    for (int64_t l = (lanes - 1) / LANES_MAX * LANES_MAX; l >= 0; l -= LANES_MAX) {
        int64_t whole = whole_vectors(p, l);
        if (halves && argmax)
            forward_lanes(p, true, 0, whole, l, LANES_MAX, x, y, argmax);
        else if (argmax)
            forward_lanes(p, false, 0, whole, l, LANES_MAX, x, y, argmax);
        else
            forward_lanes(p, false, 0, whole, l, LANES_MAX, x, y, NULL);
        forward_lanes(p, false, whole, count, l, group_size(lanes, l), x, y, argmax);
    }
}

static int64_t in_block(const ps_cpu_pool *p)
{
    return ps_cpu_shape_plane(&p->in) * p->in.lanes;
}

static int64_t out_block(const ps_cpu_pool *p)
{
    return ps_cpu_shape_plane(&p->out) * p->in.lanes;
}

PS_PER_LEVEL(void, ps_cpu_max_pool_block_forward,
             (const ps_cpu_pool *p, int64_t o, const float *x, float *y,
              uint32_t *argmax),
             (p, o, x, y, argmax))
{
    forward_block(p, x + o * in_block(p), y, argmax + o * block_words(p));
}

PS_PER_LEVEL(void, ps_cpu_max_pool_forward,
             (const ps_cpu_pool *p, const float *x, float *y, uint32_t *argmax),
             (p, x, y, argmax))
{
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&p->in); o++)
        ps_cpu_max_pool_block_forward(p, o, x, y + o * out_block(p), argmax);
}

PS_PER_LEVEL(void, ps_cpu_avg_pool_forward,
             (const ps_cpu_pool *p, const float *x, float *y), (p, x, y))
{
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&p->in); o++)
        forward_block(p, x + o * in_block(p), y + o * out_block(p), NULL);
}

/* As forward_lanes; of its `lanes` only the first `used` have a gradient. */
INLINE void backward_lanes(const ps_cpu_pool *p, bool halves, int64_t from, int64_t to,
                           int64_t l, int lanes, int used, const float *dy,
                           const uint32_t *argmax, float *dx, bool set)
{
    int64_t pitch = p->in.lanes, oh = from / p->out.w, ow = from % p->out.w;
    float size = (float)(p->kernel[0] * p->kernel[1]);
    for (int64_t at = from; at < to; at++) {
        float g[LANES_MAX];
        const float *y = dy + at * pitch + l;
        spot s = spot_at(p, halves, oh, ow);
#pragma omp simd simdlen(16)
        for (int i = 0; i < lanes; i++)
            g[i] = i >= used ? 0.0f : argmax ? y[i] : y[i] / size;
        spread_spot(&s, lanes, g, argmax ? argmax + at / PER_WORD * pitch + l : NULL,
                    dx + l, set);
        if (++ow < p->out.w) continue;
        ow = 0;
        oh++;
    }
}

static void backward_block(const ps_cpu_pool *p, const float *dy, const uint32_t *argmax,
                           float *dx, bool add)
{
    int64_t count = p->out.h * p->out.w, lanes = p->in.lanes;
    // A vector that is not full adds zeros to lanes that are not its own.
    bool set = !add && tiles_input(p) && lanes % LANES_MAX == 0, halves = is_halves(p);
    if (!add && !set) memset(dx, 0, sizeof(float) * (size_t)in_block(p));
    for (int64_t l = 0; l < lanes; l += LANES_MAX) {
        int used = group_size(lanes, l);
        int64_t whole = whole_vectors(p, l);
        if (argmax && halves && set)
            backward_lanes(p, true, 0, whole, l, LANES_MAX, LANES_MAX, dy, argmax, dx,
                           true);
        else if (argmax && halves)
            backward_lanes(p, true, 0, whole, l, LANES_MAX, used, dy, argmax, dx, false);
        else if (argmax)
            backward_lanes(p, false, 0, whole, l, LANES_MAX, used, dy, argmax, dx, set);
        else
            backward_lanes(p, false, 0, whole, l, LANES_MAX, used, dy, NULL, dx, set);
        backward_lanes(p, false, whole, count, l, used, used, dy, argmax, dx, set);
    }
}

PS_PER_LEVEL(void, ps_cpu_max_pool_block_backward,
             (const ps_cpu_pool *p, int64_t o, const float *dy, const uint32_t *argmax,
              float *dx, bool add),
             (p, o, dy, argmax, dx, add))
{
    backward_block(p, dy, argmax + o * block_words(p), dx + o * in_block(p), add);
}

PS_PER_LEVEL(void, ps_cpu_max_pool_backward,
             (const ps_cpu_pool *p, const float *dy, const uint32_t *argmax, float *dx,
              bool add),
             (p, dy, argmax, dx, add))
{
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&p->in); o++)
        ps_cpu_max_pool_block_backward(p, o, dy + o * out_block(p), argmax, dx, add);
}

PS_PER_LEVEL(void, ps_cpu_avg_pool_backward,
             (const ps_cpu_pool *p, const float *dy, float *dx, bool add),
             (p, dy, dx, add))
{
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&p->in); o++)
        backward_block(p, dy + o * out_block(p), NULL, dx + o * in_block(p), add);
}
