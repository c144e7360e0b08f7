#include "cpu_shape.h"

#include <string.h>

ps_cpu_shape ps_cpu_shape_make(int64_t n, const ps_dims *dims, int64_t lanes)
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

ps_err ps_cpu_shape_md(const ps_cpu_shape *s, const char *who, ps_dnnl_md **out)
{
    const dnnl_dims_t dims = {s->n, s->c, s->h, s->w};
    return ps_dnnl_md_create(who, 4, dims, tag_of(s), out);
}

ps_err ps_cpu_shape_read_md(ps_cpu_shape *shape, const char *who, const ps_dnnl_md *md,
                            bool *known)
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

void ps_cpu_block_to_rows(int64_t plane, int64_t lanes, int64_t channels,
                          const float *restrict block, float *restrict rows)
{
    for (int64_t l = 0; l < channels; l++) {
#pragma omp simd
        for (int64_t p = 0; p < plane; p++)
            rows[l * plane + p] = block[p * lanes + l];
    }
}

void ps_cpu_rows_to_block(int64_t plane, int64_t lanes, int64_t channels,
                          const float *restrict rows, float *restrict block)
{
    for (int64_t p = 0; p < plane; p++) {
#pragma omp simd
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

void ps_cpu_convert(const ps_cpu_shape *from, const float *x, const ps_cpu_shape *to,
                    float *y, bool add)
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
