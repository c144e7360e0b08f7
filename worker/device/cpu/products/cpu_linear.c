#include "cpu_linear.h"

#include "arith.h"
#include "cpu_level.h"
#include "cpu_shape.h"
#include "dnnl_compat.h"

/* From this many samples, and outputs per sample, computing y^T was faster. */
enum { TURNED_SAMPLES = 16, TURNED_OUTPUTS = 4 };

PS_PER_LEVEL(size_t, ps_cpu_linear_turned_bytes, (const ps_cpu_linear *l), (l))
{
    const bool turned = l->n >= TURNED_SAMPLES && l->out >= TURNED_OUTPUTS * l->n;
    return turned ? (size_t)(l->n * l->out) * sizeof(float) : 0;
}

/* y = x W^T, or in the scratch y^T = W x^T. */
PS_PER_LEVEL(ps_err, ps_cpu_linear_forward_rows,
             (const ps_cpu_linear *l, const float *x, const float *weight, int64_t first,
              int64_t rows, float *y),
             (l, x, weight, first, rows, y))
{
    const float *w = weight + first * l->in;
    if (!l->turned)
        return ps_dnnl_check(dnnl_sgemm('N', 'T', l->n, rows, l->in, 1.0f, x, l->in, w,
                                        l->in, 0.0f, y + first, l->out),
                             l->name, "sgemm");
    return ps_dnnl_check(dnnl_sgemm('N', 'T', rows, l->n, l->in, 1.0f, w, l->in, x, l->in,
                                    0.0f, l->turned + first * l->n, l->n),
                         l->name, "sgemm");
}

PS_PER_LEVEL(void, ps_cpu_linear_forward_end,
             (const ps_cpu_linear *l, const float *bias, float *y, bool relu),
             (l, bias, y, relu))
{
    if (l->turned) ps_cpu_block_to_rows(l->out, l->n, l->n, l->turned, y);
    if (!bias && !relu) return;
    for (int64_t i = 0; i < l->n; i++) {
        float *row = y + i * l->out;
#pragma omp simd
        for (int64_t o = 0; o < l->out; o++) {
            float v = bias ? row[o] + bias[o] : row[o];
            row[o] = relu ? ps_relu(v) : v;
        }
    }
}

PS_PER_LEVEL(ps_err, ps_cpu_linear_forward,
             (const ps_cpu_linear *l, const float *x, const float *weight,
              const float *bias, float *y, bool relu),
             (l, x, weight, bias, y, relu))
{
    PS_TRY(ps_cpu_linear_forward_rows(l, x, weight, 0, l->out, y));
    ps_cpu_linear_forward_end(l, bias, y, relu);
    return PS_OK;
}

PS_PER_LEVEL(ps_err, ps_cpu_linear_backward_rows,
             (const ps_cpu_linear *l, const float *x, const float *dy, int64_t first,
              int64_t rows, float *dweight, bool accumulate),
             (l, x, dy, first, rows, dweight, accumulate))
{
    return ps_dnnl_check(dnnl_sgemm('T', 'N', rows, l->in, l->n, 1.0f, dy + first, l->out,
                                    x, l->in, accumulate ? 1.0f : 0.0f,
                                    dweight + first * l->in, l->in),
                         l->name, "sgemm");
}

PS_PER_LEVEL(void, ps_cpu_linear_backward_bias,
             (const ps_cpu_linear *l, const float *dy, float *dbias, bool accumulate),
             (l, dy, dbias, accumulate))
{
    for (int64_t i = 0; i < l->n; i++) {
        const float *row = dy + i * l->out;
        bool set = i == 0 && !accumulate;
#pragma omp simd
        for (int64_t o = 0; o < l->out; o++)
            dbias[o] = set ? row[o] : dbias[o] + row[o];
    }
}

PS_PER_LEVEL(ps_err, ps_cpu_linear_backward_weights,
             (const ps_cpu_linear *l, const float *x, const float *dy, float *dweight,
              float *dbias, bool accumulate),
             (l, x, dy, dweight, dbias, accumulate))
{
    if (dweight)
        PS_TRY(ps_cpu_linear_backward_rows(l, x, dy, 0, l->out, dweight, accumulate));
    if (dbias) ps_cpu_linear_backward_bias(l, dy, dbias, accumulate);
    return PS_OK;
}

PS_PER_LEVEL(ps_err, ps_cpu_linear_backward_data,
             (const ps_cpu_linear *l, const float *weight, const float *dy, float *dx,
              bool add),
             (l, weight, dy, dx, add))
{
    return ps_dnnl_check(dnnl_sgemm('N', 'N', l->n, l->in, l->out, 1.0f, dy, l->out,
                                    weight, l->in, add ? 1.0f : 0.0f, dx, l->in),
                         l->name, "sgemm");
}
