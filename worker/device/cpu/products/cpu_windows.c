#include "cpu_windows.h"

#include <string.h>

#include "cpu_level.h"
#include "float16.h"

PS_PER_LEVEL(ps_cpu_windows, ps_cpu_windows_of,
             (const ps_layer *layer, const ps_cpu_shape *in), (layer, in))
{
    ps_cpu_windows w = {.in = *in, .oh = layer->out.d[1], .ow = layer->out.d[2]};
    for (int i = 0; i < 2; i++) {
        w.kernel[i] = layer->kernel[i];
        w.stride[i] = layer->stride[i];
        w.padding[i] = layer->padding[i];
        w.dilation[i] = layer->dilation[i];
    }
    return w;
}

static inline int64_t windows_columns_of(const ps_cpu_windows *w)
{
    return w->in.c * w->kernel[0] * w->kernel[1];
}

PS_PER_LEVEL(int64_t, ps_cpu_windows_rows, (const ps_cpu_windows *w), (w))
{
    return w->in.n * w->oh * w->ow;
}

PS_PER_LEVEL(int64_t, ps_cpu_windows_columns, (const ps_cpu_windows *w), (w))
{
    return windows_columns_of(w);
}

/* One element of the window, in all channels. */
typedef struct slice {
    int64_t from;  // offset in x of channel 0; negative: padding
    int64_t pitch; // in x, from one block of channels to the next
} slice;

static inline slice slice_of(const ps_cpu_windows *w, int64_t n, int64_t p, int64_t k)
{
    const ps_cpu_shape *in = &w->in;
    const int64_t oh = p / w->ow, ow = p % w->ow;
    const int64_t kh = k / w->kernel[1], kw = k % w->kernel[1];
    const int64_t h = oh * w->stride[0] + kh * w->dilation[0] - w->padding[0];
    const int64_t v = ow * w->stride[1] + kw * w->dilation[1] - w->padding[1];
    slice s = {-1, in->h * in->w * in->lanes};
    if (h >= 0 && h < in->h && v >= 0 && v < in->w)
        s.from = n * in->blocks * s.pitch + (h * in->w + v) * in->lanes;
    return s;
}

/* The channels that are done at a time: their part of a row stays in the L1 cache. */
enum { CHANNELS = 256, SCRATCH = 4096 };

_Static_assert((int)PS_CPU_WINDOW_ELEMENTS <= (int)SCRATCH, "a channel's part fits");

typedef struct group {
    int64_t first, n; // channels
} group;

static inline group windows_group_at(const ps_cpu_windows *w, int64_t first)
{
    const int64_t elements = w->kernel[0] * w->kernel[1];
    int64_t n = SCRATCH / elements < CHANNELS ? SCRATCH / elements : CHANNELS;
    if (n > w->in.c - first) n = w->in.c - first;
    return (group){first, n};
}

/* How many channels from c on, of the group, lie side by side; *at: the offset of the
 * first in x. */
static inline int64_t run_of(const ps_cpu_windows *w, slice s, group g, int64_t c,
                             int64_t *at)
{
    const int64_t lanes = w->in.lanes, left = g.first + g.n - c;
    *at = s.from + c / lanes * s.pitch + c % lanes;
    return lanes - c % lanes < left ? lanes - c % lanes : left;
}

/* out: n channels of the slice, as float32. bytes: of an element of x; 16 bits of any
 * type become the upper half, and are only moved. */
static inline void windows_fetch(const ps_cpu_windows *w, slice s, group g, size_t bytes,
                                 const void *x, float *restrict out)
{
    const float *whole = x;
    const uint16_t *half = x;
    int64_t at, run;
    if (s.from < 0) memset(out, 0, sizeof *out * (size_t)g.n);
    for (int64_t c = g.first; s.from >= 0 && c < g.first + g.n; c += run, out += run) {
        run = run_of(w, s, g, c, &at);
        if (bytes == sizeof(float)) {
            memcpy(out, whole + at, sizeof *out * (size_t)run);
            continue;
        }
#pragma omp simd
        for (int64_t i = 0; i < run; i++)
            out[i] = ps_float_of_bf16(half[at + i]);
    }
}

static inline void gather_row(const ps_cpu_windows *w, int64_t n, int64_t p, size_t bytes,
                              const void *x, void *row)
{
    _Alignas(64) float slices[SCRATCH], turned[SCRATCH];
    const int64_t elements = w->kernel[0] * w->kernel[1];
    float *whole = row;
    uint16_t *half = row;
    for (group g = windows_group_at(w, 0); g.n > 0;
         g = windows_group_at(w, g.first + g.n)) {
        float *to = bytes == sizeof(float) ? whole + g.first * elements : turned;
        for (int64_t k = 0; k < elements; k++)
            windows_fetch(w, slice_of(w, n, p, k), g, bytes, x, slices + k * g.n);
        ps_cpu_rows_to_block(g.n, elements, elements, slices, to);
        if (bytes == sizeof(float)) continue;
#pragma omp simd
        for (int64_t i = 0; i < g.n * elements; i++)
            half[g.first * elements + i] = (uint16_t)(ps_float_bits(turned[i]) >> 16);
    }
}

PS_PER_LEVEL(void, ps_cpu_windows_gather,
             (const ps_cpu_windows *w, size_t bytes, const void *x, void *matrix),
             (w, bytes, x, matrix))
{
    const int64_t positions = w->oh * w->ow, columns = windows_columns_of(w);
#pragma omp parallel for
    for (int64_t r = 0; r < w->in.n * positions; r++)
        gather_row(w, r / positions, r % positions, bytes, x,
                   (char *)matrix + r * columns * (int64_t)bytes);
}

static inline void add_slice(const ps_cpu_windows *w, slice s, group g,
                             const float *restrict from, float *restrict dx)
{
    int64_t at, run;
    for (int64_t c = g.first; s.from >= 0 && c < g.first + g.n; c += run, from += run) {
        run = run_of(w, s, g, c, &at);
#pragma omp simd
        for (int64_t i = 0; i < run; i++)
            dx[at + i] += from[i];
    }
}

static inline void windows_add_row(const ps_cpu_windows *w, int64_t n, int64_t p,
                                   const float *row, float *dx)
{
    _Alignas(64) float slices[SCRATCH];
    const int64_t elements = w->kernel[0] * w->kernel[1];
    for (group g = windows_group_at(w, 0); g.n > 0;
         g = windows_group_at(w, g.first + g.n)) {
        ps_cpu_block_to_rows(g.n, elements, elements, row + g.first * elements, slices);
        for (int64_t k = 0; k < elements; k++)
            add_slice(w, slice_of(w, n, p, k), g, slices + k * g.n, dx);
    }
}

PS_PER_LEVEL(void, ps_cpu_windows_sum,
             (const ps_cpu_windows *w, const float *matrix, float *dx), (w, matrix, dx))
{
    const int64_t positions = w->oh * w->ow, columns = windows_columns_of(w);
    const int64_t sample = ps_cpu_shape_count(&w->in) / w->in.n;
#pragma omp parallel for
    for (int64_t n = 0; n < w->in.n; n++) {
        memset(dx + n * sample, 0, sizeof *dx * (size_t)sample);
        for (int64_t p = 0; p < positions; p++)
            windows_add_row(w, n, p, matrix + (n * positions + p) * columns, dx);
    }
}
