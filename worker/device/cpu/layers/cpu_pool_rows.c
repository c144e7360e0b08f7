#include "cpu_pool_rows.h"

#include "cpu_level.h"

/* Elements: two blocks fit on the stack, and in the L2 cache; those of blocked layouts in
 * the L1 cache, too. */
enum { BLOCK_MAX = 16384 };

/* One block of channels in both orders. */
typedef struct block {
    int64_t plane, lanes, channels;
    int64_t row; // its offset in row-major order
} block;

static block pool_rows_block_at(const ps_cpu_pool *p, int64_t o)
{
    const ps_cpu_shape *s = &p->in;
    int64_t plane = ps_cpu_shape_plane(&p->out), c = (o % s->blocks) * s->lanes;
    return (block){plane, s->lanes, s->c - c < s->lanes ? s->c - c : s->lanes,
                   (o / s->blocks * s->c + c) * plane};
}

PS_PER_LEVEL(bool, ps_cpu_pool_rows_fit, (const ps_cpu_pool *p), (p))
{
    return ps_cpu_shape_plane(&p->out) * p->in.lanes <= BLOCK_MAX;
}

PS_PER_LEVEL(void, ps_cpu_pool_rows_forward,
             (const ps_cpu_pool *p, const ps_cpu_dropout *d, const uint8_t *mask,
              const float *x, float *y, uint32_t *argmax),
             (p, d, mask, x, y, argmax))
{
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&p->in); o++) {
        _Alignas(64) float pooled[BLOCK_MAX], rows[BLOCK_MAX];
        block b = pool_rows_block_at(p, o);
        float *out = y + b.row, *turned = mask ? rows : out;
        ps_cpu_max_pool_block_forward(p, o, x, pooled, argmax);
        ps_cpu_block_to_rows(b.plane, b.lanes, b.channels, pooled, turned);
        if (mask) ps_cpu_dropout_apply(d, b.channels * b.plane, mask + b.row, rows, out);
    }
}

PS_PER_LEVEL(void, ps_cpu_pool_rows_backward,
             (const ps_cpu_pool *p, const ps_cpu_dropout *d, const uint8_t *mask,
              const float *dy, const uint32_t *argmax, float *dx, bool add),
             (p, d, mask, dy, argmax, dx, add))
{
#pragma omp parallel for
    for (int64_t o = 0; o < ps_cpu_shape_outer(&p->in); o++) {
        _Alignas(64) float masked[BLOCK_MAX], pooled[BLOCK_MAX];
        block b = pool_rows_block_at(p, o);
        const float *rows = dy + b.row;
        if (mask) {
            ps_cpu_dropout_apply(d, b.channels * b.plane, mask + b.row, rows, masked);
            rows = masked;
        }
        ps_cpu_rows_to_block(b.plane, b.lanes, b.channels, rows, pooled);
        ps_cpu_max_pool_block_backward(p, o, pooled, argmax, dx, add);
    }
}
