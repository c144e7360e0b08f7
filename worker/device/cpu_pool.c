#include "cpu_pool.h"

#include <string.h>

#include "arith.h"

enum {
    LANES_MAX = 16,
    /* Elements ahead of the one at hand: planes are streamed through, and the processor's
     * own prefetching stops at every page. */
    AHEAD = 1024,
    NO_PLACE = 255, // of a maximum whose gradient a relu stopped
};

/* One vector of up to LANES_MAX channels at one position of the output. x: the input's
 * plane at the first of these channels; `pitch` elements from one position to the next.
 */
typedef struct spot {
    ps_window h, w;
    int64_t pitch;
} spot;

static inline spot spot_at(const ps_cpu_pool *p, int64_t oh, int64_t ow)
{
    return (spot){
        ps_window_at(oh, p->stride[0], p->padding[0], p->kernel[0], p->in.h),
        ps_window_at(ow, p->stride[1], p->padding[1], p->kernel[1], p->in.w),
        p->in.lanes,
    };
}

static inline __attribute__((always_inline)) void
max_spot(const ps_cpu_pool *p, const spot *s, int lanes, const float *restrict x,
         float *restrict y, uint8_t *restrict place)
{
    float best[LANES_MAX];
    int32_t at[LANES_MAX];
    int32_t first = (int32_t)(s->h.skipped * p->kernel[1] + s->w.skipped);
    for (int l = 0; l < lanes; l++) {
        best[l] = -INFINITY;
        at[l] = first;
    }
    for (int64_t h = s->h.begin; h < s->h.end; h++) {
        int32_t k = first + (int32_t)((h - s->h.begin) * p->kernel[1]);
        const float *row = x + (h * p->in.w + s->w.begin) * s->pitch;
        for (int64_t w = s->w.begin; w < s->w.end; w++, k++, row += s->pitch) {
            __builtin_prefetch(row + AHEAD);
#pragma omp simd
            for (int l = 0; l < lanes; l++) {
                bool takes = ps_max_takes(row[l], best[l]);
                best[l] = takes ? row[l] : best[l];
                at[l] = takes ? k : at[l];
            }
        }
    }
#pragma omp simd
    for (int l = 0; l < lanes; l++) {
        bool stops = p->with_relu && best[l] <= 0.0f; // NaN goes on, as in torch
        y[l] = stops ? 0.0f : best[l];
        place[l] = (uint8_t)(stops ? NO_PLACE : at[l]);
    }
}

static inline __attribute__((always_inline)) void avg_spot(const ps_cpu_pool *p,
                                                           const spot *s, int lanes,
                                                           const float *restrict x,
                                                           float *restrict y)
{
    float sum[LANES_MAX] = {0};
    float size = (float)(p->kernel[0] * p->kernel[1]);
    for (int64_t h = s->h.begin; h < s->h.end; h++) {
        const float *row = x + (h * p->in.w + s->w.begin) * s->pitch;
        for (int64_t w = s->w.begin; w < s->w.end; w++, row += s->pitch) {
#pragma omp simd
            for (int l = 0; l < lanes; l++)
                sum[l] += row[l];
        }
    }
#pragma omp simd
    for (int l = 0; l < lanes; l++)
        y[l] = sum[l] / size;
}

typedef uint8_t bytes __attribute__((vector_size(LANES_MAX)));
typedef int32_t ints __attribute__((vector_size(4 * LANES_MAX)));

/* Whole vectors at once: written in parts and read as a whole, they would stall. */
static inline __attribute__((always_inline)) void widen(const uint8_t *from, int lanes,
                                                        int32_t *to)
{
    if (lanes == LANES_MAX) {
        bytes b;
        memcpy(&b, from, sizeof b);
        ints wide = __builtin_convertvector(b, ints);
        memcpy(to, &wide, sizeof wide);
        return;
    }
    for (int l = 0; l < lanes; l++)
        to[l] = from[l];
}

/* dx of the window's positions += share of g: all of it at its place, or, for averages
 * (place NULL), of every position. set: = instead of +=. */
static inline __attribute__((always_inline)) void
spread_spot(const ps_cpu_pool *p, const spot *s, int lanes, const float *restrict g,
            const uint8_t *restrict place, float *restrict dx, bool set)
{
    int32_t first = (int32_t)(s->h.skipped * p->kernel[1] + s->w.skipped);
    int32_t at[LANES_MAX]; // of one width with g, for the vectoriser
    widen(place, place ? lanes : 0, at);
    for (int64_t h = s->h.begin; h < s->h.end; h++) {
        int32_t k = first + (int32_t)((h - s->h.begin) * p->kernel[1]);
        float *row = dx + (h * p->in.w + s->w.begin) * s->pitch;
        for (int64_t w = s->w.begin; w < s->w.end; w++, k++, row += s->pitch) {
            __builtin_prefetch(row + AHEAD, 1);
#pragma omp simd
            for (int l = 0; l < lanes; l++) {
                float share = !place || at[l] == k ? g[l] : 0.0f;
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

/* lanes: all of them, at most LANES_MAX, constant where it matters. */
static inline __attribute__((always_inline)) void forward_lanes(const ps_cpu_pool *p,
                                                                int64_t o, int64_t l,
                                                                int lanes, const float *x,
                                                                float *y, uint8_t *place)
{
    int64_t pitch = p->in.lanes, at = o * p->out.h * p->out.w * pitch + l;
    x += o * ps_cpu_shape_plane(&p->in) * pitch + l;
    for (int64_t oh = 0; oh < p->out.h; oh++) {
        for (int64_t ow = 0; ow < p->out.w; ow++, at += pitch) {
            spot s = spot_at(p, oh, ow);
            if (place)
                max_spot(p, &s, lanes, x, y + at, place + at);
            else
                avg_spot(p, &s, lanes, x, y + at);
        }
    }
}

static inline int group_size(int64_t lanes, int64_t from)
{
    return lanes - from < LANES_MAX ? (int)(lanes - from) : LANES_MAX;
}

static void forward_plane(const ps_cpu_pool *p, int64_t o, const float *x, float *y,
                          uint8_t *place)
{
    for (int64_t l = 0; l < p->in.lanes; l += LANES_MAX) {
        int lanes = group_size(p->in.lanes, l);
        if (lanes == LANES_MAX && place)
            forward_lanes(p, o, l, LANES_MAX, x, y, place);
        else if (lanes == LANES_MAX)
            forward_lanes(p, o, l, LANES_MAX, x, y, NULL);
        else
            forward_lanes(p, o, l, lanes, x, y, place);
    }
}

void ps_cpu_max_pool_forward(const ps_cpu_pool *p, const float *x, float *y,
                             uint8_t *place)
{
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&p->in); o++)
        forward_plane(p, o, x, y, place);
}

void ps_cpu_avg_pool_forward(const ps_cpu_pool *p, const float *x, float *y)
{
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&p->in); o++)
        forward_plane(p, o, x, y, NULL);
}

static inline __attribute__((always_inline)) void
backward_lanes(const ps_cpu_pool *p, int64_t o, int64_t l, int lanes, const float *dy,
               const uint8_t *place, float *dx, bool set)
{
    int64_t pitch = p->in.lanes, at = o * p->out.h * p->out.w * pitch + l;
    float size = (float)(p->kernel[0] * p->kernel[1]);
    dx += o * ps_cpu_shape_plane(&p->in) * pitch + l;
    for (int64_t oh = 0; oh < p->out.h; oh++) {
        for (int64_t ow = 0; ow < p->out.w; ow++, at += pitch) {
            float g[LANES_MAX];
            spot s = spot_at(p, oh, ow);
#pragma omp simd
            for (int i = 0; i < lanes; i++) {
                g[i] = place ? dy[at + i] : dy[at + i] / size;
            }
            spread_spot(p, &s, lanes, g, place ? place + at : NULL, dx, set);
        }
    }
}

static void backward_plane(const ps_cpu_pool *p, int64_t o, const float *dy,
                           const uint8_t *place, float *dx, bool set)
{
    for (int64_t l = 0; l < p->in.lanes; l += LANES_MAX) {
        int lanes = group_size(p->in.lanes, l);
        if (lanes == LANES_MAX && place && set)
            backward_lanes(p, o, l, LANES_MAX, dy, place, dx, true);
        else if (lanes == LANES_MAX && place)
            backward_lanes(p, o, l, LANES_MAX, dy, place, dx, false);
        else
            backward_lanes(p, o, l, lanes, dy, place, dx, set);
    }
}

static void backward(const ps_cpu_pool *p, const float *dy, const uint8_t *place,
                     float *dx, bool add)
{
    bool set = !add && tiles_input(p);
    if (!add && !set) memset(dx, 0, sizeof(float) * (size_t)ps_cpu_shape_count(&p->in));
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&p->in); o++)
        backward_plane(p, o, dy, place, dx, set);
}

void ps_cpu_max_pool_backward(const ps_cpu_pool *p, const float *dy, const uint8_t *place,
                              float *dx, bool add)
{
    backward(p, dy, place, dx, add);
}

void ps_cpu_avg_pool_backward(const ps_cpu_pool *p, const float *dy, float *dx, bool add)
{
    backward(p, dy, NULL, dx, add);
}
