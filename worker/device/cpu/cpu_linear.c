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

/* y = x W^T. */
static ps_err multiply(const ps_cpu_linear *l, const float *x, const float *weight,
                       float *y)
{
    if (!l->turned)
        return ps_dnnl_check(dnnl_sgemm('N', 'T', l->n, l->out, l->in, 1.0f, x, l->in,
                                        weight, l->in, 0.0f, y, l->out),
                             l->name, "sgemm");
    PS_TRY(ps_dnnl_check(dnnl_sgemm('N', 'T', l->out, l->n, l->in, 1.0f, weight, l->in, x,
                                    l->in, 0.0f, l->turned, l->n),
                         l->name, "sgemm"));
    ps_cpu_block_to_rows(l->out, l->n, l->n, l->turned, y);
    return PS_OK;
}

PS_PER_LEVEL(ps_err, ps_cpu_linear_forward,
             (const ps_cpu_linear *l, const float *x, const float *weight,
              const float *bias, float *y, bool relu),
             (l, x, weight, bias, y, relu))
{
    PS_TRY(multiply(l, x, weight, y));
    if (!bias && !relu) return PS_OK;
    for (int64_t i = 0; i < l->n; i++) {
        float *row = y + i * l->out;
#pragma omp simd
        for (int64_t o = 0; o < l->out; o++) {
            float v = bias ? row[o] + bias[o] : row[o];
            row[o] = relu ? ps_relu(v) : v;
        }
    }
    return PS_OK;
}

PS_PER_LEVEL(ps_err, ps_cpu_linear_backward_weights,
             (const ps_cpu_linear *l, const float *x, const float *dy, float *dweight,
              float *dbias, bool accumulate),
             (l, x, dy, dweight, dbias, accumulate))
{
    PS_TRY(ps_dnnl_check(dnnl_sgemm('T', 'N', l->out, l->in, l->n, 1.0f, dy, l->out, x,
                                    l->in, accumulate ? 1.0f : 0.0f, dweight, l->in),
                         l->name, "sgemm"));
    if (!dbias) return PS_OK;
    for (int64_t i = 0; i < l->n; i++) {
        const float *row = dy + i * l->out;
        bool set = i == 0 && !accumulate;
#pragma omp simd
        for (int64_t o = 0; o < l->out; o++)
            dbias[o] = set ? row[o] : dbias[o] + row[o];
    }
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
