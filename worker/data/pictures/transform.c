#include "transform.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "rng.h"

/* Whether the data may be (channels, length), which is (channels, 1, length) in the
 * model. */
static bool may_be_sequences(const ps_dims *stored, const ps_dims *to)
{
    return stored->n < 3 && to->n == 3 && to->d[1] == 1;
}

/* Whether the data are (H, W, C) or (length, C), and the model's channels stand first. */
static bool has_channels_last(const ps_dims *stored, const ps_dims *to)
{
    const bool can = stored->n == 3 || (stored->n == 2 && may_be_sequences(stored, to));
    return can && to->n == 3 && stored->d[stored->n - 1] == to->d[0] &&
           stored->d[0] != to->d[0];
}

/* Both shapes are said as the user has them. */
static ps_err does_not_fit(const ps_dims *stored, const ps_dims *to, const char *mend)
{
    char a[PS_DIMS_TEXT], b[PS_DIMS_TEXT];
    const ps_dims sequence = {2, {to->d[0], to->d[2]}};
    if (has_channels_last(stored, to))
        mend = stored->n == 3 ? "the channels stand last: save "
                                "numpy.ascontiguousarray(x.transpose(0, 3, 1, 2))"
                              : "the channels stand last: save "
                                "numpy.ascontiguousarray(x.transpose(0, 2, 1))";
    return ps_err_set(
        PS_ERR_SHAPE, "data is %s, the model's input is %s: %s", ps_dims_text(stored, a),
        ps_dims_text(may_be_sequences(stored, to) ? &sequence : to, b), mend);
}

static ps_image_size image_size(const ps_dims *dims)
{
    if (dims->n == 3) return (ps_image_size){dims->d[0], dims->d[1], dims->d[2]};
    return (ps_image_size){1, 1, ps_dims_count(dims)};
}

static bool same_size(ps_image_size a, ps_image_size b)
{
    return a.c == b.c && a.h == b.h && a.w == b.w;
}

/* Whether data of (channels, length), which readers take for an image of one channel, is
 * read by a model of sequences: as (channels, 1, length). */
static bool are_sequences(const ps_dims *from, const ps_dims *to)
{
    return from->n == 3 && to->n == 3 && from->d[0] == 1 && to->d[1] == 1 &&
           from->d[1] == to->d[0] && from->d[2] == to->d[2];
}

/* Sets resized and to. Images need (C, H, W), or (H, W) of one channel; the model's input
 * may be the flattened form of it. */
static ps_err transform_fit(ps_transform *t, const ps_config_data *config,
                            const ps_dims *stored, const ps_dims *to, const char *mend)
{
    const ps_dims gray = {3, {1, stored->d[0], stored->d[1]}};
    const ps_dims *from = stored->n == 2 ? &gray : stored;
    if (!mend) mend = from->n == 3 ? "set data.resize or model.input" : "set model.input";
    if (are_sequences(from, to)) from = to;
    t->from = t->resized = image_size(from);
    if (config->resize.n > 0) {
        t->resized.h = config->resize.v[0];
        t->resized.w = config->resize.v[config->resize.n > 1 ? 1 : 0];
    }
    t->to = to->n == 3 ? image_size(to) : t->resized;
    if (from->n != 3 && ps_dims_count(from) == ps_dims_count(to)) {
        t->to = t->resized; // features, which the model may see as an image
        return PS_OK;
    }
    int64_t count = t->to.c * t->to.h * t->to.w;
    if (from->n != 3 || t->to.c != t->resized.c || count != ps_dims_count(to))
        return does_not_fit(stored, to, mend);
    if (t->crop && (t->to.h > t->resized.h || t->to.w > t->resized.w))
        return does_not_fit(stored, to,
                            "data.crop_padding crops to the input's size, which is "
                            "larger than the image; set data.resize or model.input");
    if (!t->crop && !same_size(t->to, t->resized)) return does_not_fit(stored, to, mend);
    return PS_OK;
}

/* Channel c's mean or std (which 0 or 1): the list has one for each, or one for all. */
static float normal_of(const ps_float_list *list, int which, int64_t c, int64_t channels)
{
    if (list->n == 0) return (float)which;
    return (float)(list->n == 2 ? list->v[which] : list->v[which * channels + c]);
}

static ps_err init_normalise(ps_transform *t, const ps_config_data *config)
{
    int64_t channels = t->from.c;
    const ps_float_list *list = &config->normalize;
    if (list->n != 0 && list->n != 2 && list->n != 2 * channels)
        return ps_err_set(PS_ERR_CONFIG,
                          "data.normalize has %d numbers; %" PRId64
                          " channels need 2 (mean, std) or %" PRId64
                          " (the means, then the stds)",
                          list->n, channels, 2 * channels);
    size_t n = (size_t)channels;
    PS_TRY(PS_NEW(&t->mean, n, "means"));
    PS_TRY(PS_NEW(&t->std, n, "standard deviations"));
    PS_TRY(PS_NEW(&t->table, n * 256, "pixel values"));
    for (int64_t c = 0; c < channels; c++) {
        t->mean[c] = normal_of(list, 0, c, channels);
        t->std[c] = normal_of(list, 1, c, channels);
        if (!(t->std[c] > 0) || !isfinite(t->std[c]) || !isfinite(t->mean[c]))
            return ps_err_set(PS_ERR_CONFIG,
                              "data.normalize: mean %g and standard deviation %g of "
                              "channel %" PRId64 "; the second has to be above 0",
                              (double)t->mean[c], (double)t->std[c], c);
        for (int v = 0; v < 256; v++)
            t->table[c * 256 + v] = ((float)(v * config->scale) - t->mean[c]) / t->std[c];
    }
    return PS_OK;
}

/* PyTorch's area_pixel_compute_source_index in float32, and the two neighbours. */
static float source_index(float scale, int64_t out, int64_t in, int32_t *low)
{
    float at = scale * ((float)out + 0.5f) - 0.5f;
    if (at < 0) at = 0;
    *low = (int32_t)at;
    if (*low > in - 1) *low = (int32_t)(in - 1);
    return at - (float)*low;
}

static ps_err init_resize(ps_transform *t)
{
    size_t w = (size_t)t->resized.w;
    size_t count = (size_t)(t->resized.c * t->resized.h) * w;
    PS_TRY(PS_NEW(&t->image, count, "the resized image"));
    PS_TRY(PS_NEW(&t->row, w, "a row"));
    PS_TRY(PS_NEW(&t->left, w, "columns"));
    PS_TRY(PS_NEW(&t->weight, w, "columns"));
    float scale = (float)t->from.w / (float)t->resized.w;
    for (int64_t x = 0; x < t->resized.w; x++)
        t->weight[x] = source_index(scale, x, t->from.w, &t->left[x]);
    return PS_OK;
}

ps_err ps_transform_init(ps_transform *t, const ps_config_data *config,
                         const ps_dims *from, bool is_float, const ps_dims *to,
                         bool augment, const char *mend)
{
    memset(t, 0, sizeof *t);
    t->is_float = is_float;
    t->augment = augment;
    t->padding = config->crop_padding;
    t->scale = (float)config->scale;
    t->crop = config->crop_padding > 0;
    t->flip = config->flip;
    if (from->n == 1 &&
        (config->resize.n > 0 || config->crop_padding > 0 || config->flip))
        return does_not_fit(from, to,
                            "data.resize, data.crop_padding and data.flip need images "
                            "(C, H, W)");
    PS_TRY(transform_fit(t, config, from, to, mend));
    ps_err err = init_normalise(t, config);
    if (err == PS_OK && !same_size(t->from, t->resized)) err = init_resize(t);
    if (err == PS_OK && !is_float && !t->image)
        err = ps_mem_zalloc(&t->cut, (size_t)(t->to.c * t->to.h * t->to.w), 1,
                            "a cropped image");
    if (err != PS_OK) ps_transform_fini(t);
    return err;
}

void ps_transform_fini(ps_transform *t)
{
    free(t->table);
    free(t->mean);
    free(t->std);
    free(t->image);
    free(t->row);
    free(t->cut);
    free(t->left);
    free(t->weight);
    memset(t, 0, sizeof *t);
}

/* One stored row, as float32, resized to t->resized.w columns. */
static void transform_resize_row(const ps_transform *t, const void *sample, int64_t row,
                                 float *restrict out)
{
    int64_t w = t->from.w;
    const uint8_t *u8 = (const uint8_t *)sample + row * w;
    const float *f32 = (const float *)sample + row * w;
    for (int64_t x = 0; x < t->resized.w; x++) {
        int64_t a = t->left[x], b = a + 1 < w ? a + 1 : a;
        float va = t->is_float ? f32[a] : (float)u8[a];
        float vb = t->is_float ? f32[b] : (float)u8[b];
        out[x] = (1 - t->weight[x]) * va + t->weight[x] * vb;
    }
}

static void transform_resize(ps_transform *t, const void *sample)
{
    int64_t h = t->resized.h, w = t->resized.w;
    float scale = (float)t->from.h / (float)h;
    for (int64_t y = 0; y < t->resized.c * h; y++) {
        int32_t top;
        float weight = source_index(scale, y % h, t->from.h, &top);
        int64_t base = y / h * t->from.h, a = top, b = a + 1 < t->from.h ? a + 1 : a;
        float *restrict out = t->image + y * w;
        float *restrict below = t->row;
        transform_resize_row(t, sample, base + a, out);
        transform_resize_row(t, sample, base + b, below);
#pragma omp simd
        for (int64_t x = 0; x < w; x++)
            out[x] = (1 - weight) * out[x] + weight * below[x];
    }
}

typedef struct window { // of the image, where the input is taken from
    int64_t top, left;  // negative: in the padding
    bool flip;
} window;

void ps_draw_words(ps_draw_key key, uint32_t counter, uint32_t stream, uint32_t words[4])
{
    const uint32_t k[2] = {(uint32_t)key.seed, (uint32_t)(key.seed >> 32)};
    const uint32_t c[4] = {counter, stream, key.position, key.epoch};
    ps_philox4x32(k, c, words);
}

int64_t ps_draw_pick(uint32_t word, int64_t n)
{
    return (int64_t)(((uint64_t)word * (uint64_t)n) >> 32);
}

static window draw_window(const ps_transform *t, ps_draw_key key)
{
    int64_t spare_h = t->resized.h - t->to.h, spare_w = t->resized.w - t->to.w;
    // CenterCrop rounds half to even, as Python does.
    if (!t->augment)
        return (window){lrint((double)spare_h / 2), lrint((double)spare_w / 2), false};
    uint32_t words[4];
    ps_draw_words(key, 0, PS_TRANSFORM_STREAM, words);
    window at = {0, 0, t->flip && words[2] >> 31};
    if (t->crop) {
        const int64_t above = t->resized.h > 1 ? t->padding : 0; // a sequence has no rows
        at.top = ps_draw_pick(words[0], spare_h + 2 * above + 1) - above;
        at.left = ps_draw_pick(words[1], spare_w + 2 * t->padding + 1) - t->padding;
    }
    return at;
}

static void normalise_u8(const float *restrict table, const uint8_t *restrict in,
                         int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = table[in[i]];
}

static void normalise_f32(float scale, float mean, float std, const float *restrict in,
                          int64_t n, float *restrict out)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = (in[i] * scale - mean) / std;
}

static void mirror_bytes(uint8_t *row, int64_t n)
{
    for (int64_t a = 0, b = n - 1; a < b; a++, b--) {
        const uint8_t v = row[a];
        row[a] = row[b];
        row[b] = v;
    }
}

static void mirror_floats(float *row, int64_t n)
{
    for (int64_t a = 0, b = n - 1; a < b; a++, b--) {
        const float v = row[a];
        row[a] = row[b];
        row[b] = v;
    }
}

/* Columns [*begin, *end) of an input's row lie inside the image. */
static void transform_columns(const ps_transform *t, const window *at, int64_t *begin,
                              int64_t *end)
{
    *begin = at->left < 0 ? -at->left : 0;
    *end = t->resized.w - at->left < t->to.w ? t->resized.w - at->left : t->to.w;
    if (*begin > *end) *begin = *end = 0;
}

/* The rest is padding: a stored 0. */
static void cut_bytes(const ps_transform *t, const uint8_t *image, const window *at,
                      uint8_t *out)
{
    const int64_t h = t->to.h, w = t->to.w;
    int64_t begin, end;
    transform_columns(t, at, &begin, &end);
    for (int64_t y = 0; y < t->to.c * h; y++) {
        const int64_t from = y % h + at->top;
        const bool inside = from >= 0 && from < t->resized.h;
        uint8_t *row = out + y * w;
        memset(row, 0, (size_t)w);
        if (inside && begin < end)
            memcpy(row + begin,
                   image + (y / h * t->resized.h + from) * t->resized.w + at->left +
                       begin,
                   (size_t)(end - begin));
        if (at->flip) mirror_bytes(row, w);
    }
}

/* Writes one row of the input from the columns inside the image. in NULL: the whole row
 * is padding. */
static void place_row(const ps_transform *t, int64_t c, const float *in, float scale,
                      const window *at, float *out)
{
    int64_t w = t->to.w, begin = 0, end = 0;
    if (in) transform_columns(t, at, &begin, &end);
    float padding = (0 - t->mean[c]) / t->std[c];
    for (int64_t x = 0; x < begin; x++)
        out[x] = padding;
    if (begin < end)
        normalise_f32(scale, t->mean[c], t->std[c], in + at->left + begin, end - begin,
                      out + begin);
    for (int64_t x = end; x < w; x++)
        out[x] = padding;
    if (at->flip) mirror_floats(out, w);
}

/* Whether the image is neither cropped nor flipped: a channel is one long row. */
static bool takes_whole(const ps_transform *t, const window *at)
{
    return same_size(t->to, t->resized) && at->top == 0 && at->left == 0 && !at->flip;
}

static void place_floats(const ps_transform *t, const float *image, float scale,
                         const window *at, float *out)
{
    const int64_t plane = t->to.h * t->to.w;
    for (int64_t c = 0; c < t->to.c && takes_whole(t, at); c++)
        normalise_f32(scale, t->mean[c], t->std[c], image + c * plane, plane,
                      out + c * plane);
    if (takes_whole(t, at)) return;
    for (int64_t c = 0; c < t->to.c; c++)
        for (int64_t y = 0; y < t->to.h; y++) {
            int64_t from = y + at->top;
            bool inside = from >= 0 && from < t->resized.h;
            place_row(t, c,
                      inside ? image + (c * t->resized.h + from) * t->resized.w : NULL,
                      scale, at, out + (c * t->to.h + y) * t->to.w);
        }
}

static void place_bytes(const ps_transform *t, const uint8_t *image, const window *at,
                        float *out)
{
    const int64_t plane = t->to.h * t->to.w;
    if (!takes_whole(t, at)) {
        cut_bytes(t, image, at, t->cut);
        image = t->cut;
    }
    for (int64_t c = 0; c < t->to.c; c++)
        normalise_u8(t->table + c * 256, image + c * plane, plane, out + c * plane);
}

void ps_transform_apply(ps_transform *t, const void *sample, ps_draw_key key, float *out)
{
    window at = draw_window(t, key);
    if (t->image) transform_resize(t, sample);
    if (t->cut)
        place_bytes(t, sample, &at, out);
    else
        place_floats(t, t->image ? t->image : sample, t->is_float ? 1 : t->scale, &at,
                     out);
}

const float *ps_transform_byte_values(const ps_transform *t, int64_t *channels)
{
    *channels = t->to.c;
    return t->cut ? t->table : NULL;
}

void ps_transform_bytes(const ps_transform *t, const uint8_t *sample, ps_draw_key key,
                        uint8_t *out)
{
    const window at = draw_window(t, key);
    if (takes_whole(t, &at))
        memcpy(out, sample, (size_t)(t->to.c * t->to.h * t->to.w));
    else
        cut_bytes(t, sample, &at, out);
}
