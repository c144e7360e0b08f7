/* Which positions of an axis a position of the output reads, and with which weights:
 * PyTorch's upsample (nearest; bilinear with align_corners=False) and adaptive pools,
 * written once for every device. A plane's output is the product of its two axes. A
 * maximum has no weights. */
#ifndef PS_INTERPOLATE_H
#define PS_INTERPOLATE_H

#include "arith.h"
#include "layer_settings.h"

typedef struct ps_axis {
    int32_t in, out; // positions
    ps_interpolation mode;
} ps_axis;

/* Positions [begin, end) of the input: at most 2 if bilinear, 1 if nearest. */
typedef struct ps_taps {
    int32_t begin, end;
    float first, last; // the weights of begin, and of the others
} ps_taps;

PS_ARITH float ps_axis_scale(const ps_axis *a)
{
    return (float)a->in / (float)a->out;
}

/* aten/src/ATen/native/UpSample.h: area_pixel_compute_source_index. */
PS_ARITH ps_taps ps_taps_bilinear(const ps_axis *a, int32_t o)
{
    float at = ps_axis_scale(a) * ((float)o + 0.5f) - 0.5f;
    ps_taps t;
    if (at < 0.0f) at = 0.0f;
    t.begin = (int32_t)at;
    if (t.begin > a->in - 1) t.begin = a->in - 1;
    t.last = at - (float)t.begin;
    t.end = t.begin + 2;
    if (t.end > a->in || t.last == 0.0f) t.end = t.begin + 1;
    t.first = t.end == t.begin + 1 ? 1.0f : 1.0f - t.last;
    return t;
}

/* nearest: aten/src/ATen/native/UpSample.h: nearest_neighbor_compute_source_index. mean
 * and max: AdaptivePooling.h: start_index and end_index. */
PS_ARITH ps_taps ps_taps_at(const ps_axis *a, int32_t o)
{
    ps_taps t;
    if (a->mode == PS_INTERPOLATE_BILINEAR) return ps_taps_bilinear(a, o);
    if (a->mode == PS_INTERPOLATE_NEAREST) {
        t.begin = (int32_t)floorf((float)o * ps_axis_scale(a));
        if (t.begin > a->in - 1) t.begin = a->in - 1;
        t.end = t.begin + 1;
        t.first = t.last = 1.0f;
        return t;
    }
    t.begin = (int32_t)((int64_t)o * a->in / a->out);
    t.end = (int32_t)(((int64_t)(o + 1) * a->in + a->out - 1) / a->out);
    t.first = t.last = 1.0f / (float)(t.end - t.begin);
    return t;
}

/* The weight of a position in the taps; 0 if they do not hold it. */
PS_ARITH float ps_tap_weight(const ps_taps *t, int32_t position)
{
    if (position < t->begin || position >= t->end) return 0.0f;
    return position == t->begin ? t->first : t->last;
}

/* The outputs that may read a position of the input: [*begin, *end). Some of them may
 * not.
 */
PS_ARITH void ps_taps_readers(const ps_axis *a, int32_t position, int32_t *begin,
                              int32_t *end)
{
    const int64_t in = a->in, out = a->out;
    const int64_t low = ((int64_t)position - 1) * out / in - 1;
    const int64_t high = ((int64_t)position + 2) * out / in + 2;
    *begin = low < 0 ? 0 : (int32_t)low;
    *end = high > out ? a->out : (int32_t)high;
}

#endif
