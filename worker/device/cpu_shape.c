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
             (const ps_cpu_shape *s, const char *who, ps_dnnl_md **out), (s, who, out))
{
    const dnnl_dims_t dims = {s->n, s->c, s->h, s->w};
    return ps_dnnl_md_create(who, 4, dims, tag_of(s), out);
}

PS_PER_LEVEL(ps_err, ps_cpu_shape_read_md,
             (ps_cpu_shape * shape, const char *who, const ps_dnnl_md *md, bool *known),
             (shape, who, md, known))
{
    const int64_t candidates[] = {16, 8, 1, shape->c};
    *known = false;
    for (int i = 0; i < 4 && !*known; i++) {
        ps_dnnl_md *candidate = NULL;
        shape->lanes = candidates[i];
        shape->blocks = (shape->c + shape->lanes - 1) / shape->lanes;
        PS_TRY(ps_cpu_shape_md(shape, who, &candidate));
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

/* Transposes 16 x 16: four riffles of the upper with the lower half of the rows. A loop
 * over elements would be gathers, several times slower. */
static inline void transpose16(vector16 v[TILE])
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

/* from: 16 rows of 16, from_pitch apart; to: its transpose, to_pitch apart. */
static void transpose_tile(const float *from, int64_t from_pitch, float *to,
                           int64_t to_pitch)
{
    vector16 v[TILE];
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
        v[i] = *(const vector16 *)(from + i * from_pitch);
    transpose16(v);
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
        *(vector16 *)(to + i * to_pitch) = v[i];
}

/* Positions of the plane that whole tiles cover. */
static int64_t tiled(int64_t plane, int64_t lanes, int64_t channels)
{
    return lanes == TILE && channels == TILE ? plane / TILE * TILE : 0;
}

PS_PER_LEVEL(void, ps_cpu_block_to_rows,
             (int64_t plane, int64_t lanes, int64_t channels, const float *restrict block,
              float *restrict rows),
             (plane, lanes, channels, block, rows))
{
    int64_t done = tiled(plane, lanes, channels);
    for (int64_t p = 0; p < done; p += TILE)
        transpose_tile(block + p * lanes, lanes, rows + p, plane);
    for (int64_t l = 0; l < channels; l++) {
        for (int64_t p = done; p < plane; p++)
            rows[l * plane + p] = block[p * lanes + l];
    }
}

PS_PER_LEVEL(void, ps_cpu_rows_to_block,
             (int64_t plane, int64_t lanes, int64_t channels, const float *restrict rows,
              float *restrict block),
             (plane, lanes, channels, rows, block))
{
    int64_t done = tiled(plane, lanes, channels);
    for (int64_t p = 0; p < done; p += TILE)
        transpose_tile(rows + p, plane, block + p * lanes, lanes);
    for (int64_t p = done; p < plane; p++) {
        for (int64_t l = 0; l < channels; l++)
            block[p * lanes + l] = rows[l * plane + p];
        for (int64_t l = channels; l < lanes; l++)
            block[p * lanes + l] = 0.0f;
    }
}

static int64_t index_of(const ps_cpu_shape *s, int64_t n, int64_t c, int64_t p)
{
    int64_t outer = n * s->blocks + c / s->lanes;
    return (outer * s->h * s->w + p) * s->lanes + c % s->lanes;
}

/* Layouts of which neither is plain, or sums: rare, so simple. */
static void convert_any(const ps_cpu_shape *from, const float *x, const ps_cpu_shape *to,
                        float *y, bool add)
{
    int64_t plane = ps_cpu_shape_plane(from);
    if (!add) memset(y, 0, sizeof(float) * (size_t)ps_cpu_shape_count(to));
#pragma omp parallel for
    for (int64_t n = 0; n < from->n; n++) {
        for (int64_t c = 0; c < from->c; c++) {
            for (int64_t p = 0; p < plane; p++)
                y[index_of(to, n, c, p)] += x[index_of(from, n, c, p)];
        }
    }
}

PS_PER_LEVEL(void, ps_cpu_convert,
             (const ps_cpu_shape *from, const float *x, const ps_cpu_shape *to, float *y,
              bool add),
             (from, x, to, y, add))
{
    bool to_plain = ps_cpu_shape_is_plain(to), from_plain = ps_cpu_shape_is_plain(from);
    if (add || to_plain == from_plain) {
        convert_any(from, x, to, y, add);
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
