#include "cpu_shape.h"

#include <string.h>

#include "cpu_level.h"

PS_PER_LEVEL(ps_cpu_shape, ps_cpu_shape_make,
             (int64_t n, const ps_dims *dims, int64_t lanes), (n, dims, lanes))
{
    ps_cpu_shape s = {.n = n, .c = 1, .h = 1, .w = 1, .lanes = lanes};
    if (dims->n > 0) s.c = dims->d[0];
    if (dims->n > 1) s.h = dims->d[1];
    if (dims->n > 2) s.w = dims->d[2];
    s.blocks = (s.c + lanes - 1) / lanes;
    return s;
}

static dnnl_format_tag_t tag_of(const ps_cpu_shape *s)
{
    if (s->lanes == 1) return dnnl_nchw;
    if (s->lanes == 16) return dnnl_nChw16c;
    if (s->lanes == 8) return dnnl_nChw8c;
    return dnnl_nhwc;
}

PS_PER_LEVEL(ps_err, ps_cpu_shape_md,
             (const ps_cpu_shape *s, const char *who, dnnl_data_type_t type,
              ps_dnnl_md **out),
             (s, who, type, out))
{
    const dnnl_dims_t dims = {s->n, s->c, s->h, s->w};
    return ps_dnnl_md_create_as(who, 4, dims, type, tag_of(s), out);
}

PS_PER_LEVEL(ps_err, ps_cpu_shape_read_md,
             (ps_cpu_shape * shape, const char *who, dnnl_data_type_t type,
              const ps_dnnl_md *md, bool *known),
             (shape, who, type, md, known))
{
    const int64_t candidates[] = {16, 8, 1, shape->c};
    *known = false;
    for (int i = 0; i < 4 && !*known; i++) {
        ps_dnnl_md *candidate = NULL;
        shape->lanes = candidates[i];
        shape->blocks = (shape->c + shape->lanes - 1) / shape->lanes;
        PS_TRY(ps_cpu_shape_md(shape, who, type, &candidate));
        *known = dnnl_memory_desc_equal(candidate, md) != 0;
        ps_dnnl_md_destroy(&candidate);
    }
    return PS_OK;
}

enum { TILE = 16 };

typedef float vector16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t choice16 __attribute__((vector_size(64)));

#if defined __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (choice16){__VA_ARGS__})
#endif

/* Transposes 16 x 16 by interleaving the upper and the lower half of the rows four times.
 * A loop over elements would become gathers, which are several times slower. */
static inline void cpu_shape_transpose16(vector16 v[TILE])
{
    for (int round = 0; round < 4; round++) {
        vector16 w[TILE];
        for (int i = 0; i < 8; i++) {
            w[2 * i] = PICK(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                            22, 7, 23);
            w[2 * i + 1] = PICK(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                29, 14, 30, 15, 31);
        }
        memcpy(v, w, sizeof w);
    }
}

/* from: 16 rows of 16, from_pitch apart; to: the first `rows` rows of its transpose,
 * to_pitch apart. */
static inline void transpose_tile(const float *from, int64_t from_pitch, float *to,
                                  int64_t to_pitch, int64_t rows)
{
    vector16 v[TILE];
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
        v[i] = *(const vector16 *)(from + i * from_pitch);
    cpu_shape_transpose16(v);
    if (rows == TILE) {
#pragma GCC unroll 16
        for (int i = 0; i < TILE; i++)
            *(vector16 *)(to + i * to_pitch) = v[i];
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        *(vector16 *)(to + i * to_pitch) = v[i];
}

/* from: `rows` rows of 16, from_pitch apart; to: 16 rows of 16, to_pitch apart: its
 * transpose, padded with zeros. Rows are written in ascending order. */
static inline void transpose_rows(const float *from, int64_t from_pitch, int64_t rows,
                                  float *to, int64_t to_pitch)
{
    vector16 v[TILE] = {0};
    for (int64_t i = 0; i < rows; i++)
        v[i] = *(const vector16 *)(from + i * from_pitch);
    cpu_shape_transpose16(v);
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
        *(vector16 *)(to + i * to_pitch) = v[i];
}

/* How many positions of the plane may be done in whole tiles of 16 lanes from lane
 * `first` on. Such a tile also touches what follows a position's last lane: the lanes of
 * the next position. */
static int64_t cpu_shape_tiled(int64_t plane, int64_t lanes, int64_t first)
{
    int64_t behind = first + TILE - lanes;
    int64_t safe = behind > 0 ? plane - (behind + lanes - 1) / lanes : plane;
    return safe > 0 ? safe / TILE * TILE : 0;
}

static int64_t cpu_shape_group_of(int64_t channels, int64_t first)
{
    return channels - first < TILE ? channels - first : TILE;
}

PS_PER_LEVEL(void, ps_cpu_block_to_rows,
             (int64_t plane, int64_t lanes, int64_t channels, const float *restrict block,
              float *restrict rows),
             (plane, lanes, channels, block, rows))
{
    for (int64_t first = 0; first < channels; first += TILE) {
        int64_t group = cpu_shape_group_of(channels, first),
                done = cpu_shape_tiled(plane, lanes, first);
        for (int64_t p = 0; p < done; p += TILE)
            transpose_tile(block + p * lanes + first, lanes, rows + first * plane + p,
                           plane, group);
        for (int64_t l = first; l < first + group; l++) {
            for (int64_t p = done; p < plane; p++)
                rows[l * plane + p] = block[p * lanes + l];
        }
    }
}

PS_PER_LEVEL(void, ps_cpu_rows_to_block,
             (int64_t plane, int64_t lanes, int64_t channels, const float *restrict rows,
              float *restrict block),
             (plane, lanes, channels, rows, block))
{
    int64_t last = (channels - 1) / TILE * TILE;
    // The last group comes first: its tiles spill into lanes that are written later.
    for (int64_t first = last; first >= 0; first -= TILE) {
        int64_t group = cpu_shape_group_of(channels, first),
                done = cpu_shape_tiled(plane, lanes, first);
        for (int64_t p = 0; p < done; p += TILE) {
            const float *from = rows + first * plane + p;
            float *to = block + p * lanes + first;
            if (group == TILE)
                transpose_rows(from, plane, TILE, to, lanes);
            else
                transpose_rows(from, plane, group, to, lanes);
        }
        for (int64_t p = done; p < plane; p++) {
            for (int64_t l = first; l < first + group; l++)
                block[p * lanes + l] = rows[l * plane + p];
            for (int64_t l = channels; first == last && l < lanes; l++)
                block[p * lanes + l] = 0.0f;
        }
    }
}

static int64_t index_of(const ps_cpu_shape *s, int64_t n, int64_t c, int64_t p)
{
    int64_t outer = n * s->blocks + c / s->lanes;
    return (outer * s->h * s->w + p) * s->lanes + c % s->lanes;
}

/* Adding is rare, so this is simple rather than fast. */
static void add_any(const ps_cpu_shape *from, const float *x, const ps_cpu_shape *to,
                    float *y)
{
    int64_t plane = ps_cpu_shape_plane(from);
#pragma omp parallel for
    for (int64_t n = 0; n < from->n; n++) {
        for (int64_t c = 0; c < from->c; c++) {
            for (int64_t p = 0; p < plane; p++)
                y[index_of(to, n, c, p)] += x[index_of(from, n, c, p)];
        }
    }
}

/* Copies one sample's channels [c, c + run), which are contiguous in both layouts. */
static inline void copy_run(const ps_cpu_shape *from, const float *x,
                            const ps_cpu_shape *to, float *y, int64_t n, int64_t c,
                            int64_t run)
{
    const float *source = x + index_of(from, n, c, 0);
    float *target = y + index_of(to, n, c, 0);
    int64_t end = (c / to->lanes + 1) * to->lanes - c; // to the end of the target's block
    bool last = c + run == to->c;
    for (int64_t p = 0; p < ps_cpu_shape_plane(from); p++) {
        float *at = target + p * to->lanes;
#pragma omp simd
        for (int64_t l = 0; l < run; l++)
            at[l] = source[p * from->lanes + l];
        for (int64_t l = run; last && l < end; l++)
            at[l] = 0.0f;
    }
}

/* Converts between two layouts that are not plain: one's lanes are a multiple of the
 * other's, or are all channels. */
static void copy_runs(const ps_cpu_shape *from, const float *x, const ps_cpu_shape *to,
                      float *y)
{
    int64_t lanes = from->lanes < to->lanes ? from->lanes : to->lanes;
#pragma omp parallel for
    for (int64_t n = 0; n < from->n; n++) {
        for (int64_t c = 0; c < from->c; c += lanes) {
            int64_t run = from->c - c < lanes ? from->c - c : lanes;
            if (run == TILE)
                copy_run(from, x, to, y, n, c, TILE);
            else
                copy_run(from, x, to, y, n, c, run);
        }
    }
}

PS_PER_LEVEL(void, ps_cpu_convert,
             (const ps_cpu_shape *from, const float *x, const ps_cpu_shape *to, float *y,
              bool add),
             (from, x, to, y, add))
{
    bool to_plain = ps_cpu_shape_is_plain(to), from_plain = ps_cpu_shape_is_plain(from);
    if (add) {
        add_any(from, x, to, y);
        return;
    }
    if (to_plain && from_plain) {
        memcpy(y, x, sizeof(float) * (size_t)ps_cpu_shape_count(to));
        return;
    }
    if (!to_plain && !from_plain) {
        copy_runs(from, x, to, y);
        return;
    }
    const ps_cpu_shape *blocked = to_plain ? from : to;
    int64_t plane = ps_cpu_shape_plane(blocked), lanes = blocked->lanes;
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(blocked); o++) {
        int64_t c = (o % blocked->blocks) * lanes;
        int64_t channels = blocked->c - c < lanes ? blocked->c - c : lanes;
        int64_t row = (o / blocked->blocks * blocked->c + c) * plane;
        if (to_plain)
            ps_cpu_block_to_rows(plane, lanes, channels, x + o * plane * lanes, y + row);
        else
            ps_cpu_rows_to_block(plane, lanes, channels, x + row, y + o * plane * lanes);
    }
}
