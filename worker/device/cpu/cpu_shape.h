/* How an activation (N, C, H, W) lies in memory: (outer, H x W, lanes), where `lanes`
 * channels stand side by side. lanes 1 is PyTorch's row-major order, 8 and 16 are
 * oneDNN's blocked layouts, C is channels-last; a kernel walks over outer and over the
 * plane in the same way in all of them. Channels are padded to a multiple of lanes; the
 * padding is zero. */
#ifndef PS_CPU_SHAPE_H
#define PS_CPU_SHAPE_H

#include "dnnl_compat.h"
#include "tensor.h"

typedef struct ps_cpu_shape {
    int64_t n, c, h, w;
    int64_t lanes;
    int64_t blocks; // of lanes channels: ceil(c / lanes)
} ps_cpu_shape;

/* One sample's dims (C, H, W) or (F), which is (F, 1, 1). */
ps_cpu_shape ps_cpu_shape_make(int64_t n, const ps_dims *dims, int64_t lanes);

static inline int64_t ps_cpu_shape_outer(const ps_cpu_shape *s)
{
    return s->n * s->blocks;
}
static inline int64_t ps_cpu_shape_plane(const ps_cpu_shape *s)
{
    return s->h * s->w;
}
/* Elements, padding included. */
static inline int64_t ps_cpu_shape_count(const ps_cpu_shape *s)
{
    return s->n * s->blocks * s->h * s->w * s->lanes;
}
/* One sample's elements without padding. */
static inline int64_t ps_cpu_shape_features(const ps_cpu_shape *s)
{
    return s->c * s->h * s->w;
}
/* Whether the memory is in row-major order without padding. */
static inline bool ps_cpu_shape_is_plain(const ps_cpu_shape *s)
{
    return s->lanes == 1 || (s->h * s->w == 1 && s->c % s->lanes == 0);
}

/* Whether the elements of two equal shapes lie in the same order. */
static inline bool ps_cpu_shape_same_lanes(const ps_cpu_shape *a, const ps_cpu_shape *b)
{
    return a->lanes == b->lanes || (ps_cpu_shape_is_plain(a) && ps_cpu_shape_is_plain(b));
}

/* The library's descriptor; *out is owned by the caller. type: of an element. */
ps_err ps_cpu_shape_md(const ps_cpu_shape *shape, const char *who, dnnl_data_type_t type,
                       ps_dnnl_md **out);

/* Sets shape's lanes from md, which describes the same (n, c, h, w) of that type. *known
 * false: md has none of these layouts. */
ps_err ps_cpu_shape_read_md(ps_cpu_shape *shape, const char *who, dnnl_data_type_t type,
                            const ps_dnnl_md *md, bool *known);

/* Copies x, laid out as from, to y, laid out as to; same (n, c, h, w). add: y += x. */
void ps_cpu_convert(const ps_cpu_shape *from, const float *x, const ps_cpu_shape *to,
                    float *y, bool add);

/* Convert one block of channels between its own layout (plane, lanes) and row-major
 * (channels, plane); channels <= lanes. Padding lanes of a block are set to zero. */
void ps_cpu_block_to_rows(int64_t plane, int64_t lanes, int64_t channels,
                          const float *restrict block, float *restrict rows);
void ps_cpu_rows_to_block(int64_t plane, int64_t lanes, int64_t channels,
                          const float *restrict rows, float *restrict block);

#endif
