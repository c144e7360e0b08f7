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
static void copy_any_run(int64_t plane, int64_t run, const void *from, int64_t x_pitch,
                         void *to, int64_t y_pitch, bool add)
{
    const float *x = from;
    float *y = to;
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

INLINE void copy_narrow_run(bool fp16, int64_t plane, int64_t run, const void *from,
                            int64_t x_pitch, void *to, int64_t y_pitch, bool add)
{
    for (int64_t p = 0; p < plane; p++) {
        const uint16_t *restrict x = (const uint16_t *)from + p * x_pitch;
        uint16_t *restrict y = (uint16_t *)to + p * y_pitch;
        if (!add) {
            memcpy(y, x, (size_t)run * sizeof *y);
            continue;
        }
#pragma omp simd
        for (int64_t l = 0; l < run; l++)
            y[l] = ps_cpu_narrow_of(fp16, ps_cpu_wide_of(fp16, y[l]) +
                                              ps_cpu_wide_of(fp16, x[l]));
    }
}

static void copy_bf16_run(int64_t plane, int64_t run, const void *from, int64_t x_pitch,
                          void *to, int64_t y_pitch, bool add)
{
    copy_narrow_run(false, plane, run, from, x_pitch, to, y_pitch, add);
}

static void copy_fp16_run(int64_t plane, int64_t run, const void *from, int64_t x_pitch,
                          void *to, int64_t y_pitch, bool add)
{
    copy_narrow_run(true, plane, run, from, x_pitch, to, y_pitch, add);
}

/* How values are stored. */
typedef struct storage {
    int64_t bytes; // of an element
    void (*copy)(int64_t plane, int64_t run, const void *x, int64_t x_pitch, void *y,
                 int64_t y_pitch, bool add);
} storage;

static const storage storages[] = {[PS_CPU_FLOAT32] = {sizeof(float), copy_any_run},
                                   [PS_CPU_BF16] = {sizeof(uint16_t), copy_bf16_run},
                                   [PS_CPU_FP16] = {sizeof(uint16_t), copy_fp16_run}};

/* Copies `channels` channels of sample n. */
static void copy_channels(const storage *as, const ps_cpu_shape *from, int64_t from_first,
                          const char *x, const ps_cpu_shape *to, int64_t to_first,
                          char *y, int64_t n, int64_t channels, bool add)
{
    int64_t run;
    for (int64_t c = 0; c < channels; c += run) {
        const int64_t from_rest = from->lanes - (from_first + c) % from->lanes;
        const int64_t to_rest = to->lanes - (to_first + c) % to->lanes;
        run = from_rest < to_rest ? from_rest : to_rest;
        if (run > channels - c) run = channels - c;
        as->copy(from->h * from->w, run,
                 x + channel_at(from, n, from_first + c) * as->bytes, from->lanes,
                 y + channel_at(to, n, to_first + c) * as->bytes, to->lanes, add);
    }
}

/* Zeroes the lanes after the last channel. */
static void concat_zero_padding(const storage *as, const ps_cpu_shape *s, char *y,
                                int64_t n)
{
    const int64_t used = s->c % s->lanes;
    char *block = y + channel_at(s, n, s->c - used) * as->bytes;
    for (int64_t p = 0; p < s->h * s->w && used; p++)
        memset(block + (p * s->lanes + used) * as->bytes, 0,
               (size_t)((s->lanes - used) * as->bytes));
}

PS_PER_LEVEL(int64_t, ps_cpu_concat_lanes,
             (const ps_cpu_shape *a, int64_t channels, bool last), (a, channels, last))
{
    const bool blocked = a->lanes == 8 || a->lanes == 16;
    const bool is_last = a->lanes > 1 && a->lanes == a->c;
    if (is_last && (last || !blocked)) return channels;
    return blocked ? a->lanes : 1;
}

PS_PER_LEVEL(void, ps_cpu_concat_forward,
             (ps_cpu_factors type, const ps_cpu_shape *from, const void *x,
              const ps_cpu_shape *to, int64_t first, void *y),
             (type, from, x, to, first, y))
{
    const storage *as = &storages[type];
#pragma omp parallel for
    for (int64_t n = 0; n < from->n; n++) {
        copy_channels(as, from, 0, x, to, first, y, n, from->c, false);
        if (first + from->c == to->c) concat_zero_padding(as, to, y, n);
    }
}

PS_PER_LEVEL(void, ps_cpu_concat_backward,
             (ps_cpu_factors type, const ps_cpu_shape *from, int64_t first,
              const void *dy, const ps_cpu_shape *to, void *dx, bool add),
             (type, from, first, dy, to, dx, add))
{
    const storage *as = &storages[type];
#pragma omp parallel for
    for (int64_t n = 0; n < to->n; n++) {
        copy_channels(as, from, first, dy, to, 0, dx, n, to->c, add);
        if (!add) concat_zero_padding(as, to, dx, n);
    }
}
