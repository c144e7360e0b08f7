#include "synthetic.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "criteo.h"
#include "mem.h"
#include "rng.h"
#include "row_partition.h"

enum {
    CELL = 4, // pixels of a pattern's cell in each direction
    // Streams: philox's second counter word. Each split has one, from STREAM_SAMPLES on.
    STREAM_PATTERN = 0x53590000u,
    STREAM_LABEL = 0x53590001u,
    STREAM_SAMPLES = 0x53591000u,
    CLICK_IDS = 1000, // of a column
    FACTORS = 3       // of an id: what it adds alone, and what pairs multiply
};

typedef struct shape {
    int64_t c, h, w;    // of a sample
    int64_t rows, cols; // of one channel of a pattern
} shape;

static shape synthetic_shape_of(const ps_dims *dims)
{
    if (dims->n != 3) {
        int64_t features = ps_dims_count(dims);
        return (shape){1, 1, features, 1, features};
    }
    return (shape){dims->d[0], dims->d[1], dims->d[2], (dims->d[1] + CELL - 1) / CELL,
                   (dims->d[2] + CELL - 1) / CELL};
}

/* n uniform bytes: block b is philox(seed, {b, stream, item, item >> 32}). */
static void random_bytes(uint64_t seed, uint32_t stream, uint64_t item, uint8_t *out,
                         int64_t n)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int64_t at = 0; at < n; at += 16) {
        uint32_t counter[4] = {(uint32_t)(at / 16), stream, (uint32_t)item,
                               (uint32_t)(item >> 32)};
        uint32_t words[4];
        ps_philox4x32(key, counter, words);
        memcpy(out + at, words, (size_t)(n - at < 16 ? n - at : 16));
    }
}

/* Blends a sample's noise, which pixels holds, with its class's pattern. */
static void synthetic_blend(const shape *s, const uint8_t *pattern, uint8_t *pixels)
{
    bool coarse = s->cols < s->w || s->rows < s->h;
    for (int64_t y = 0; y < s->c * s->h; y++) {
        int64_t channel = y / s->h, row = y % s->h;
        const uint8_t *level =
            pattern + (channel * s->rows + (coarse ? row / CELL : row)) * s->cols;
        uint8_t *out = pixels + y * s->w;
        for (int64_t x = 0; x < s->w; x++) {
            int64_t cell = coarse ? x / CELL : x;
            out[x] = (uint8_t)((3 * level[cell] + 5 * out[x]) >> 3);
        }
    }
}

/* One of the integers from 0 to below - 1, from 32 random bits. */
static int64_t synthetic_scaled(uint32_t draw, int64_t below)
{
    return (int64_t)(((uint64_t)draw * (uint64_t)below) >> 32);
}

/* The class that sample i shows, and in *label the one that is said of it. */
static int64_t draw_class(const ps_synthetic_spec *spec, int64_t i, int32_t *label)
{
    uint32_t draws[3] = {0}; // the class, whether the label is another draw, that draw
    random_bytes(spec->seed, STREAM_LABEL + 1 + spec->split, (uint64_t)i,
                 (uint8_t *)draws, sizeof draws);
    const bool noisy = draws[1] < spec->label_noise * 0x1p32;
    *label = (int32_t)synthetic_scaled(draws[noisy ? 2 : 0], spec->n_classes);
    return synthetic_scaled(draws[0], spec->n_classes);
}

static void synthetic_fill(const ps_synthetic_spec *spec, const shape *s,
                           const uint8_t *patterns, ps_dataset *set)
{
    int64_t count = s->c * s->h * s->w, cells = s->c * s->rows * s->cols;
    for (int64_t i = 0; i < set->n; i++) {
        uint8_t *pixels = (uint8_t *)set->values + i * count;
        const int64_t class = draw_class(spec, i, &set->labels[i]);
        random_bytes(spec->seed, STREAM_SAMPLES + spec->split, (uint64_t)i, pixels,
                     count);
        synthetic_blend(s, patterns + class * cells, pixels);
    }
}

static ps_err synthetic_check(int64_t n, const ps_dims *dims, int64_t n_classes)
{
    if (n < 1)
        return ps_err_set(PS_ERR_CONFIG,
                          "synthetic data: %" PRId64 " samples; at least 1 is needed", n);
    if (n_classes < 1 || n_classes > INT32_MAX)
        return ps_err_set(PS_ERR_CONFIG,
                          "synthetic data: %" PRId64 " classes; the model has to say how "
                          "many there are",
                          n_classes);
    if (dims->n != 1 && dims->n != 3)
        return ps_err_set(
            PS_ERR_CONFIG,
            "synthetic data: model.input has to be [C, H, W], [C, length] or [features]");
    return PS_OK;
}

ps_err ps_synthetic_make(const ps_synthetic_spec *spec, ps_dataset *out)
{
    const ps_dims *dims = &spec->dims;
    const int64_t n = spec->n, n_classes = spec->n_classes;
    memset(out, 0, sizeof *out);
    uint64_t bytes = 0, pattern_bytes = 0;
    PS_TRY(synthetic_check(n, dims, n_classes));
    PS_TRY(ps_dataset_bytes("synthetic data", n, dims, false, &bytes));
    PS_TRY(ps_dataset_bytes("synthetic data", n_classes, dims, false, &pattern_bytes));
    shape s = synthetic_shape_of(dims);
    int64_t cells = s.c * s.rows * s.cols;
    uint8_t *patterns = NULL;
    ps_err err = PS_OK;
    PS_TRY_GOTO(ps_mem_zalloc(&patterns, (size_t)n_classes, (size_t)cells, "patterns"),
                err, out);
    for (int64_t k = 0; k < n_classes; k++)
        random_bytes(spec->seed, STREAM_PATTERN, (uint64_t)k, patterns + k * cells,
                     cells);
    PS_TRY_GOTO(ps_mem_zalloc(&out->values, bytes, 1, "synthetic data"), err, out);
    PS_TRY_GOTO(PS_NEW(&out->labels, (size_t)n, "labels"), err, out);
    out->n = n;
    out->dims = *dims;
    out->n_classes = n_classes;
    synthetic_fill(spec, &s, patterns, out);
out:
    free(patterns);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}

/* --- clicks ------------------------------------------------------------------------ */

typedef struct click_draws {
    uint32_t ids[PS_CRITEO_IDS], counts[PS_CRITEO_COUNTS], click;
} click_draws;

/* Within (0, 1). */
static double clicks_unit(uint32_t draw)
{
    return (draw + 0.5) * 0x1p-32;
}

/* About normal: of mean 0 and variance 1. */
static double clicks_normal(const uint32_t draws[4])
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += clicks_unit(draws[i]) - 0.5;
    return sum * sqrt(3);
}

/* factors: (26, CLICK_IDS, FACTORS). */
static void clicks_draw_factors(uint64_t seed, float *factors)
{
    for (int64_t i = 0; i < PS_CRITEO_IDS * CLICK_IDS * FACTORS; i++) {
        uint32_t draws[4];
        random_bytes(seed, STREAM_PATTERN, (uint64_t)i, (uint8_t *)draws, sizeof draws);
        factors[i] = (float)clicks_normal(draws);
    }
}

static void clicks_sample(const click_draws *draws, const float *factors, float *counts,
                          int64_t *ids, int32_t *label)
{
    double logit = -1.35, alone = 0, sum[FACTORS] = {0}, squares = 0;
    for (int k = 0; k < PS_CRITEO_IDS; k++) {
        const int64_t rank =
            (int64_t)pow(CLICK_IDS, clicks_unit(draws->ids[k])) - 1; // Zipf's law
        const float *f = factors + (k * CLICK_IDS + rank) * FACTORS;
        ids[k] = (int64_t)(ps_row_mix((uint64_t)(k * CLICK_IDS + rank)) >> 32);
        alone += f[0];
        for (int j = 1; j < FACTORS; j++) {
            sum[j] += f[j];
            squares += f[j] * f[j];
        }
    }
    for (int k = 0; k < PS_CRITEO_COUNTS; k++) {
        const double u = clicks_unit(draws->counts[k]);
        counts[k] = (float)log1p(floor(pow(u / (1 - u), 0.8) * exp(1))); // log-logistic
        logit += counts[k] * (k - 6) / 60.0;
    }
    logit += 1.21 * alone / sqrt(PS_CRITEO_IDS) +
             0.12 * (sum[1] * sum[1] + sum[2] * sum[2] - squares) /
                 sqrt(PS_CRITEO_IDS * (PS_CRITEO_IDS - 1));
    *label = clicks_unit(draws->click) < 1 / (1 + exp(-logit));
}

ps_err ps_synthetic_clicks(const ps_synthetic_spec *spec, ps_dataset *out)
{
    const size_t n = (size_t)spec->n;
    float *factors = NULL;
    click_draws draws;
    ps_err err = PS_OK;
    *out = (ps_dataset){.n = spec->n,
                        .dims = {1, {PS_CRITEO_COUNTS}},
                        .is_float = true,
                        .n_ids = PS_CRITEO_IDS,
                        .n_classes = 2};
    PS_TRY_GOTO(PS_NEW(&factors, PS_CRITEO_IDS * CLICK_IDS * FACTORS, "clicks"), err,
                out);
    PS_TRY_GOTO(
        ps_mem_zalloc(&out->values, n, PS_CRITEO_COUNTS * sizeof(float), "clicks"), err,
        out);
    PS_TRY_GOTO(ps_mem_zalloc(&out->ids, n, PS_CRITEO_IDS * sizeof *out->ids, "clicks"),
                err, out);
    PS_TRY_GOTO(PS_NEW(&out->labels, n, "labels"), err, out);
    clicks_draw_factors(spec->seed, factors);
    for (int64_t i = 0; i < spec->n; i++) {
        random_bytes(spec->seed, STREAM_SAMPLES + spec->split, (uint64_t)i,
                     (uint8_t *)&draws, sizeof draws);
        clicks_sample(&draws, factors, (float *)out->values + i * PS_CRITEO_COUNTS,
                      out->ids + i * PS_CRITEO_IDS, &out->labels[i]);
    }
out:
    free(factors);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}
