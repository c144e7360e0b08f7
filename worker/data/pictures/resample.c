#include "resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum { WEIGHT_BITS = 22, HALF = 1 << (WEIGHT_BITS - 1) };

static uint8_t resample_clip8(int32_t sum)
{
    const int32_t v = sum >> WEIGHT_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static double resample_triangle(double x)
{
    const double distance = fabs(x);
    return distance < 1 ? 1 - distance : 0;
}

/* The inputs and weights of output i, which is axis->begin + i of all. */
static void set_weights(ps_resample_axis *axis, int64_t i)
{
    const double scale = (double)axis->from / (double)axis->to;
    const double reach = scale > 1 ? scale : 1, inverse = 1 / reach;
    const double center = ((double)(axis->begin + i) + 0.5) * scale;
    const double low = center - reach + 0.5, high = center + reach + 0.5;
    const int64_t first = low > 0 ? (int64_t)low : 0;
    const int64_t end = high < (double)axis->from ? (int64_t)high : axis->from;
    int32_t *weights = axis->weights + i * axis->taps;
    double sum = 0;
    for (int64_t k = first; k < end; k++)
        sum += resample_triangle(((double)k - center + 0.5) * inverse);
    for (int64_t k = first; k < end; k++) {
        double w = resample_triangle(((double)k - center + 0.5) * inverse);
        if (sum != 0) w /= sum;
        weights[k - first] = (int32_t)(0.5 + w * (1 << WEIGHT_BITS));
    }
    axis->first[i] = (int32_t)first;
    axis->count[i] = (int32_t)(end - first);
}

static ps_err plan_axis(ps_resample_axis *axis, int64_t from, int64_t to, int64_t begin,
                        int64_t n)
{
    if (axis->from == from && axis->to == to && axis->begin == begin && axis->n == n)
        return PS_OK;
    const double scale = (double)from / (double)to;
    const int64_t taps = (int64_t)ceil(scale > 1 ? scale : 1) * 2 + 1;
    const size_t bytes = (size_t)(n * (taps + 2)) * sizeof(int32_t);
    axis->from = 0; // no plan, should memory be lacking
    if (bytes > axis->room) {
        free(axis->first);
        axis->first = NULL;
        axis->room = 0;
        PS_TRY(ps_mem_zalloc(&axis->first, bytes, 1, "a picture's resizing"));
        axis->room = bytes;
    }
    axis->count = axis->first + n;
    axis->weights = axis->count + n;
    axis->from = from;
    axis->to = to;
    axis->begin = begin;
    axis->n = n;
    axis->taps = taps;
    for (int64_t i = 0; i < n; i++)
        set_weights(axis, i);
    return PS_OK;
}

static void resample_row(const ps_resample_axis *x, int channels,
                         const uint8_t *restrict in, uint8_t *restrict out)
{
    for (int64_t i = 0; i < x->n; i++) {
        const int32_t *w = x->weights + i * x->taps;
        const uint8_t *at = in + (int64_t)x->first[i] * channels;
        for (int c = 0; c < channels; c++) {
            int32_t sum = HALF;
            for (int32_t k = 0; k < x->count[i]; k++)
                sum += w[k] * at[k * channels + c];
            out[i * channels + c] = resample_clip8(sum);
        }
    }
}

static const uint8_t *pixel_at(const ps_picture *p, int64_t x, int64_t y)
{
    return p->pixels + (y * p->width + x) * p->channels;
}

/* Resizes the rows that the wanted outputs need: first .. first + height - 1 of the part.
 */
static ps_err resize_rows(ps_resampler *r, const ps_picture *p, const ps_resample_size *s,
                          int64_t first, int64_t height)
{
    const int64_t to = r->x.n * p->channels;
    PS_TRY(ps_picture_reserve(&r->rows, "resizing", r->x.n, height, p->channels));
    for (int64_t y = 0; y < height; y++)
        resample_row(&r->x, p->channels,
                     pixel_at(p, s->from_left, s->from_top + first + y),
                     r->rows.pixels + y * to);
    return PS_OK;
}

static void resample_add_row(int32_t *restrict sums, int32_t weight,
                             const uint8_t *restrict in, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sums[i] += weight * in[i];
}

/* Output row y, from the rows that resize_rows made from `first` on. */
static void resize_column(ps_resampler *r, int64_t first, int64_t y, uint8_t *out)
{
    const ps_resample_axis *axis = &r->y;
    const int64_t n = r->rows.width * r->rows.channels;
    for (int64_t i = 0; i < n; i++)
        r->sums[i] = HALF;
    for (int32_t k = 0; k < axis->count[y]; k++)
        resample_add_row(r->sums, axis->weights[y * axis->taps + k],
                         r->rows.pixels + (axis->first[y] - first + k) * n, n);
    const int channels = r->rows.channels;
    const int64_t plane = axis->n * r->rows.width;
    for (int c = 0; c < channels; c++)
        for (int64_t x = 0; x < r->rows.width; x++)
            out[c * plane + y * r->rows.width + x] =
                resample_clip8(r->sums[x * channels + c]);
}

/* Without resizing: copies the part, plane by plane. */
static void copy_part(const ps_picture *p, const ps_resample_size *s, uint8_t *out)
{
    for (int c = 0; c < p->channels; c++)
        for (int64_t y = 0; y < s->crop_height; y++) {
            const uint8_t *in =
                pixel_at(p, s->from_left + s->left, s->from_top + s->top + y) + c;
            for (int64_t x = 0; x < s->crop_width; x++)
                *out++ = in[x * p->channels];
        }
}

static ps_err reserve_sums(ps_resampler *r, int64_t n)
{
    if (n <= r->n_sums) return PS_OK;
    free(r->sums);
    r->sums = NULL;
    r->n_sums = 0;
    PS_TRY(PS_NEW(&r->sums, (size_t)n, "a picture's resizing"));
    r->n_sums = n;
    return PS_OK;
}

ps_err ps_resample(ps_resampler *r, const ps_picture *p, const ps_resample_size *s,
                   uint8_t *out)
{
    if (s->width == s->from_width && s->height == s->from_height) {
        copy_part(p, s, out);
        return PS_OK;
    }
    PS_TRY(plan_axis(&r->x, s->from_width, s->width, s->left, s->crop_width));
    PS_TRY(plan_axis(&r->y, s->from_height, s->height, s->top, s->crop_height));
    PS_TRY(reserve_sums(r, r->x.n * p->channels));
    const int64_t last = r->y.n - 1, first = r->y.first[0];
    const int64_t end = r->y.first[last] + r->y.count[last];
    PS_TRY(resize_rows(r, p, s, first, end - first));
    for (int64_t y = 0; y < r->y.n; y++)
        resize_column(r, first, y, out);
    return PS_OK;
}

void ps_resampler_fini(ps_resampler *r)
{
    free(r->x.first);
    free(r->y.first);
    free(r->sums);
    ps_picture_fini(&r->rows);
    memset(r, 0, sizeof *r);
}
