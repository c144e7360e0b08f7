#include "cpu_interpolate.h"

#include <string.h>

#include "arith.h"
#include "cpu_level.h"
#include "interpolate.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES_MAX = 16,
    COLUMNS = 64, // whose taps are computed once for all rows
};

static ps_axis interpolate_axis_of(const ps_cpu_interpolate *op, bool height)
{
    return (ps_axis){.in = (int32_t)(height ? op->in.h : op->in.w),
                     .out = (int32_t)(height ? op->out.h : op->out.w),
                     .mode = op->mode};
}

/* Copies, or adds back, one position of each column: nearest reads a single one. */
INLINE void copy_row(bool back, int64_t h, const ps_taps *taps, int32_t n, int64_t in_w,
                     int64_t pitch, int lanes, const float *restrict from,
                     float *restrict to)
{
    for (int32_t k = 0; k < n; k++) {
        const int64_t in = (h * in_w + taps[k].begin) * pitch, out = k * pitch;
#pragma omp simd simdlen(16)
        for (int l = 0; l < lanes; l++) {
            if (back)
                to[in + l] += from[out + l];
            else
                to[out + l] = from[in + l];
        }
    }
}

/* One position of the output: y = the weighted sum of the taps. lanes: of this group of
 * at most LANES_MAX channels, which stand pitch elements from the next position's. */
INLINE void gather(const ps_taps *h, const ps_taps *w, int64_t in_w, int64_t pitch,
                   int lanes, const float *restrict x, float *restrict y)
{
    float sum[LANES_MAX] = {0};
    for (int64_t a = h->begin; a < h->end; a++) {
        const float up = a == h->begin ? h->first : h->last;
        const float *at = x + (a * in_w + w->begin) * pitch;
        for (int64_t b = w->begin; b < w->end; b++, at += pitch) {
            const float weight = up * (b == w->begin ? w->first : w->last);
#pragma omp simd simdlen(16)
            for (int l = 0; l < lanes; l++)
                sum[l] += weight * at[l];
        }
    }
#pragma omp simd simdlen(16)
    for (int l = 0; l < lanes; l++)
        y[l] = sum[l];
}

INLINE void spread(const ps_taps *h, const ps_taps *w, int64_t in_w, int64_t pitch,
                   int lanes, const float *restrict dy, float *restrict dx)
{
    for (int64_t a = h->begin; a < h->end; a++) {
        const float up = a == h->begin ? h->first : h->last;
        float *at = dx + (a * in_w + w->begin) * pitch;
        for (int64_t b = w->begin; b < w->end; b++, at += pitch) {
            const float weight = up * (b == w->begin ? w->first : w->last);
#pragma omp simd simdlen(16)
            for (int l = 0; l < lanes; l++)
                at[l] += weight * dy[l];
        }
    }
}

/* As gather, for the maximum. */
INLINE void take_max(const ps_taps *h, const ps_taps *w, int64_t in_w, int64_t pitch,
                     int lanes, const float *restrict x, float *restrict y,
                     uint32_t *restrict argmax)
{
    float best[LANES_MAX];
    uint32_t place[LANES_MAX];
    for (int l = 0; l < lanes; l++) {
        best[l] = -INFINITY;
        place[l] = (uint32_t)(h->begin * in_w + w->begin);
    }
    for (int64_t a = h->begin; a < h->end; a++) {
        uint32_t k = (uint32_t)(a * in_w + w->begin);
        const float *at = x + k * pitch;
        for (int64_t b = w->begin; b < w->end; b++, k++, at += pitch) {
#pragma omp simd simdlen(16)
            for (int l = 0; l < lanes; l++) {
                const bool takes = ps_max_takes(at[l], best[l]);
                best[l] = takes ? at[l] : best[l];
                place[l] = takes ? k : place[l];
            }
        }
    }
#pragma omp simd simdlen(16)
    for (int l = 0; l < lanes; l++) {
        y[l] = best[l];
        argmax[l] = place[l];
    }
}

INLINE void give_back(int64_t pitch, int lanes, const float *restrict dy,
                      const uint32_t *restrict argmax, float *restrict dx)
{
    for (int l = 0; l < lanes; l++)
        dx[argmax[l] * pitch + l] += dy[l];
}

/* The columns [first, end) of all rows, for a group of channels of one block. argmax: of
 * mode max alone; it is read if back. */
INLINE void some_columns(const ps_cpu_interpolate *op, bool back, int lanes,
                         const ps_taps *taps, int32_t first, int32_t end,
                         const float *restrict from, float *restrict to,
                         uint32_t *restrict argmax)
{
    const ps_axis rows = interpolate_axis_of(op, true);
    const int64_t pitch = op->in.lanes;
    for (int32_t oh = 0; oh < rows.out; oh++) {
        const ps_taps h = ps_taps_at(&rows, oh);
        if (op->mode == PS_INTERPOLATE_NEAREST) {
            const int64_t row = ((int64_t)oh * op->out.w + first) * pitch;
            copy_row(back, h.begin, taps, end - first, op->in.w, pitch, lanes,
                     back ? from + row : from, back ? to : to + row);
            continue;
        }
        for (int32_t ow = first; ow < end; ow++) {
            const int64_t out = ((int64_t)oh * op->out.w + ow) * pitch;
            const ps_taps *w = &taps[ow - first];
            if (argmax && back)
                give_back(pitch, lanes, from + out, argmax + out, to);
            else if (argmax)
                take_max(&h, w, op->in.w, pitch, lanes, from, to + out, argmax + out);
            else if (back)
                spread(&h, w, op->in.w, pitch, lanes, from + out, to);
            else
                gather(&h, w, op->in.w, pitch, lanes, from, to + out);
        }
    }
}

INLINE void each_position(const ps_cpu_interpolate *op, bool back, int lanes,
                          const float *restrict from, float *restrict to,
                          uint32_t *restrict argmax)
{
    const ps_axis columns = interpolate_axis_of(op, false);
    ps_taps taps[COLUMNS];
    for (int32_t first = 0; first < columns.out; first += COLUMNS) {
        int32_t end = first + COLUMNS < columns.out ? first + COLUMNS : columns.out;
        for (int32_t ow = first; ow < end; ow++)
            taps[ow - first] = ps_taps_at(&columns, ow);
        some_columns(op, back, lanes, taps, first, end, from, to, argmax);
    }
}

/* Lanes are a constant in hot loops. */
INLINE void each_group(const ps_cpu_interpolate *op, bool back,
                       const float *restrict from, float *restrict to,
                       uint32_t *restrict argmax)
{
    for (int64_t l = 0; l < op->in.lanes; l += LANES_MAX) {
        const int64_t rest = op->in.lanes - l;
        uint32_t *at = argmax ? argmax + l : NULL;
        if (rest >= LANES_MAX)
            each_position(op, back, LANES_MAX, from + l, to + l, at);
        else if (rest == 8)
            each_position(op, back, 8, from + l, to + l, at);
        else if (rest == 1)
            each_position(op, back, 1, from + l, to + l, at);
        else
            each_position(op, back, (int)rest, from + l, to + l, at);
    }
}

PS_PER_LEVEL(void, ps_cpu_interpolate_forward,
             (const ps_cpu_interpolate *op, const float *x, float *y, uint32_t *argmax),
             (op, x, y, argmax))
{
    const int64_t in = ps_cpu_shape_plane(&op->in) * op->in.lanes;
    const int64_t out = ps_cpu_shape_plane(&op->out) * op->out.lanes;
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&op->in); o++)
        each_group(op, false, x + o * in, y + o * out, argmax ? argmax + o * out : NULL);
}

PS_PER_LEVEL(void, ps_cpu_interpolate_backward,
             (const ps_cpu_interpolate *op, const float *dy, const uint32_t *argmax,
              float *dx, bool add),
             (op, dy, argmax, dx, add))
{
    const int64_t in = ps_cpu_shape_plane(&op->in) * op->in.lanes;
    const int64_t out = ps_cpu_shape_plane(&op->out) * op->out.lanes;
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&op->in); o++) {
        if (!add) memset(dx + o * in, 0, sizeof *dx * (size_t)in);
        each_group(op, true, dy + o * out, dx + o * in,
                   argmax ? (uint32_t *)argmax + o * out : NULL);
    }
}
