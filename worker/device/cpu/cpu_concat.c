#include "cpu_concat.h"

#include <string.h>

#include "cpu_level.h"

#define INLINE static inline __attribute__((always_inline))

/* Where a channel of a sample begins; its positions are `lanes` apart. */
static int64_t channel_at(const ps_cpu_shape *s, int64_t n, int64_t c)
{
    return (n * s->blocks + c / s->lanes) * s->h * s->w * s->lanes + c % s->lanes;
}

static void copy_elements(int64_t n, const float *restrict x, float *restrict y, bool add)
{
    if (!add) {
        memcpy(y, x, (size_t)n * sizeof *y);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* `run` channels of all positions, which stand side by side in both layouts. */
INLINE void copy_run(int64_t plane, int64_t run, const float *restrict x, int64_t x_pitch,
                     float *restrict y, int64_t y_pitch, bool add)
{
    for (int64_t p = 0; p < plane; p++) {
#pragma omp simd
        for (int64_t l = 0; l < run; l++) {
            const float old = add ? y[p * y_pitch + l] : 0.0f;
            y[p * y_pitch + l] = old + x[p * x_pitch + l];
        }
    }
}

/* The length of a run is a constant in the usual cases. */
static void copy_any_run(int64_t plane, int64_t run, const float *x, int64_t x_pitch,
                         float *y, int64_t y_pitch, bool add)
{
    if (run == x_pitch && run == y_pitch)
        copy_elements(plane * run, x, y, add);
    else if (run == 16)
        copy_run(plane, 16, x, x_pitch, y, y_pitch, add);
    else if (run == 8)
        copy_run(plane, 8, x, x_pitch, y, y_pitch, add);
    else if (run == 1)
        copy_run(plane, 1, x, x_pitch, y, y_pitch, add);
    else
        copy_run(plane, run, x, x_pitch, y, y_pitch, add);
}

/* Copies `channels` channels of sample n. */
static void copy_channels(const ps_cpu_shape *from, int64_t from_first, const float *x,
                          const ps_cpu_shape *to, int64_t to_first, float *y, int64_t n,
                          int64_t channels, bool add)
{
    int64_t run;
    for (int64_t c = 0; c < channels; c += run) {
        const int64_t from_rest = from->lanes - (from_first + c) % from->lanes;
        const int64_t to_rest = to->lanes - (to_first + c) % to->lanes;
        run = from_rest < to_rest ? from_rest : to_rest;
        if (run > channels - c) run = channels - c;
        copy_any_run(from->h * from->w, run, x + channel_at(from, n, from_first + c),
                     from->lanes, y + channel_at(to, n, to_first + c), to->lanes, add);
    }
}

/* Zeroes the lanes after the last channel. */
static void zero_padding(const ps_cpu_shape *s, float *y, int64_t n)
{
    const int64_t used = s->c % s->lanes;
    float *block = y + channel_at(s, n, s->c - used);
    for (int64_t p = 0; p < s->h * s->w && used; p++)
        memset(block + p * s->lanes + used, 0, sizeof *y * (size_t)(s->lanes - used));
}

PS_PER_LEVEL(int64_t, ps_cpu_concat_lanes, (const ps_cpu_shape *a), (a))
{
    return a->lanes == 8 || a->lanes == 16 ? a->lanes : 1;
}

PS_PER_LEVEL(void, ps_cpu_concat_forward,
             (const ps_cpu_shape *from, const float *x, const ps_cpu_shape *to,
              int64_t first, float *y),
             (from, x, to, first, y))
{
#pragma omp parallel for
    for (int64_t n = 0; n < from->n; n++) {
        copy_channels(from, 0, x, to, first, y, n, from->c, false);
        if (first + from->c == to->c) zero_padding(to, y, n);
    }
}

PS_PER_LEVEL(void, ps_cpu_concat_backward,
             (const ps_cpu_shape *from, int64_t first, const float *dy,
              const ps_cpu_shape *to, float *dx, bool add),
             (from, first, dy, to, dx, add))
{
#pragma omp parallel for
    for (int64_t n = 0; n < to->n; n++) {
        copy_channels(from, first, dy, to, 0, dx, n, to->c, add);
        if (!add) zero_padding(to, dx, n);
    }
}
