#include "cpu_windows.h"

#include <string.h>

#include "cpu_level.h"

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

static inline int64_t columns_of(const ps_cpu_windows *w)
{
    return w->in.c * w->kernel[0] * w->kernel[1];
}

PS_PER_LEVEL(int64_t, ps_cpu_windows_rows, (const ps_cpu_windows *w), (w))
{
    return w->in.n * w->oh * w->ow;
}

PS_PER_LEVEL(int64_t, ps_cpu_windows_columns, (const ps_cpu_windows *w), (w))
{
    return columns_of(w);
}

/* One element of the window, in all channels: elements of x, `lanes` channels at a time,
 * and every kernel[0] * kernel[1]-th column of a row. */
typedef struct slice {
    int64_t from;   // offset in x of channel 0; negative: padding
    int64_t pitch;  // in x, from one block of channels to the next
    int64_t column; // of channel 0
} slice;

static inline slice slice_of(const ps_cpu_windows *w, int64_t n, int64_t oh, int64_t ow,
                             int64_t k)
{
    const ps_cpu_shape *in = &w->in;
    const int64_t kh = k / w->kernel[1], kw = k % w->kernel[1];
    const int64_t h = oh * w->stride[0] + kh * w->dilation[0] - w->padding[0];
    const int64_t v = ow * w->stride[1] + kw * w->dilation[1] - w->padding[1];
    slice s = {-1, in->h * in->w * in->lanes, k};
    if (h >= 0 && h < in->h && v >= 0 && v < in->w)
        s.from = n * in->blocks * s.pitch + (h * in->w + v) * in->lanes;
    return s;
}

static inline int64_t channels_of(const ps_cpu_shape *in, int64_t block)
{
    const int64_t left = in->c - block * in->lanes;
    return left < in->lanes ? left : in->lanes;
}

/* bytes is known where this is inlined, so that each copy is one instruction. */
static inline __attribute__((always_inline)) void copy_slice(const ps_cpu_windows *w,
                                                             slice s, size_t bytes,
                                                             const char *restrict x,
                                                             char *restrict row)
{
    static const char zero[sizeof(float)];
    const int64_t step = w->kernel[0] * w->kernel[1] * (int64_t)bytes;
    char *to = row + s.column * (int64_t)bytes;
    for (int64_t b = 0; b < w->in.blocks; b++) {
        const char *from = x + (s.from + b * s.pitch) * (int64_t)bytes;
        const int64_t channels = channels_of(&w->in, b);
        for (int64_t c = 0; c < channels; c++, to += step)
            memcpy(to, s.from < 0 ? zero : from + c * (int64_t)bytes, bytes);
    }
}

static inline __attribute__((always_inline)) void gather_sample(const ps_cpu_windows *w,
                                                                int64_t n, size_t bytes,
                                                                const char *x,
                                                                char *matrix)
{
    const int64_t elements = w->kernel[0] * w->kernel[1], columns = columns_of(w);
    for (int64_t p = 0; p < w->oh * w->ow; p++) {
        char *row = matrix + (n * w->oh * w->ow + p) * columns * (int64_t)bytes;
        for (int64_t k = 0; k < elements; k++)
            copy_slice(w, slice_of(w, n, p / w->ow, p % w->ow, k), bytes, x, row);
    }
}

PS_PER_LEVEL(void, ps_cpu_windows_gather,
             (const ps_cpu_windows *w, size_t bytes, const void *x, void *matrix),
             (w, bytes, x, matrix))
{
#pragma omp parallel for
    for (int64_t n = 0; n < w->in.n; n++) {
        if (bytes == 2)
            gather_sample(w, n, 2, x, matrix);
        else
            gather_sample(w, n, 4, x, matrix);
    }
}

static inline void add_slice(const ps_cpu_windows *w, slice s, const float *restrict row,
                             float *restrict dx)
{
    const int64_t step = w->kernel[0] * w->kernel[1];
    const float *from = row + s.column;
    for (int64_t b = 0; b < w->in.blocks; b++) {
        float *to = dx + s.from + b * s.pitch;
        const int64_t channels = channels_of(&w->in, b);
        for (int64_t c = 0; c < channels; c++, from += step)
            to[c] += *from;
    }
}

PS_PER_LEVEL(void, ps_cpu_windows_sum,
             (const ps_cpu_windows *w, const float *matrix, float *dx), (w, matrix, dx))
{
    const int64_t elements = w->kernel[0] * w->kernel[1], columns = columns_of(w);
    const int64_t positions = w->oh * w->ow,
                  sample = ps_cpu_shape_count(&w->in) / w->in.n;
#pragma omp parallel for
    for (int64_t n = 0; n < w->in.n; n++) {
        memset(dx + n * sample, 0, sizeof *dx * (size_t)sample);
        for (int64_t p = 0; p < positions; p++) {
            const float *row = matrix + (n * positions + p) * columns;
            for (int64_t k = 0; k < elements; k++) {
                const slice s = slice_of(w, n, p / w->ow, p % w->ow, k);
                if (s.from >= 0) add_slice(w, s, row, dx);
            }
        }
    }
}
