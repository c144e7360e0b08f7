#include "ref_layers.h"
#include "model_spec.h"
#include "ref_losses.h"
#include "ref_state.h"
#include "ref_windows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void ref_init(ref_model *m, const ps_model_spec *spec, int n, const float *params,
              const void *buffers)
{
    *m = (ref_model){.spec = spec, .n = n};
    m->params = ref_zeros((int64_t)spec->table.arena_count);
    m->grads = ref_zeros((int64_t)spec->table.arena_count);
    m->statistics = ref_zeros((int64_t)spec->table.buffer_bytes / 4);
    m->input = ref_zeros(n * ps_dims_count(&spec->input));
    m->mean = ref_zeros(4096);
    m->var = ref_zeros(4096);
    for (uint64_t i = 0; i < spec->table.arena_count; i++)
        m->params[i] = params[i];
    for (int b = 0; b < spec->table.n_buffers; b++) {
        const ps_tensor *t = &spec->table.buffers[b];
        if (t->role == PS_TENSOR_COUNTER) continue;
        const float *from = (const float *)((const char *)buffers + t->offset);
        for (uint64_t i = 0; i < t->count; i++)
            m->statistics[t->offset / 4 + i] = from[i];
    }
    m->value = calloc((size_t)spec->n_layers, sizeof *m->value);
    m->gradient = calloc((size_t)spec->n_layers, sizeof *m->gradient);
    for (int i = 0; i < spec->n_layers; i++) {
        m->value[i] = ref_zeros(n * ps_dims_count(&spec->layers[i].out));
        m->gradient[i] = ref_zeros(n * ps_dims_count(&spec->layers[i].out));
    }
}

void ref_fini(ref_model *m)
{
    for (int i = 0; i < m->spec->n_layers; i++) {
        free(m->value[i]);
        free(m->gradient[i]);
    }
    free(m->value);
    free(m->gradient);
    free(m->params);
    free(m->grads);
    free(m->statistics);
    free(m->input);
    free(m->mean);
    free(m->var);
}

const double *ref_outputs(const ref_model *m)
{
    return m->value[m->spec->n_layers - 1];
}

/* dy NULL: the forward pass; else the backward pass. dx NULL: it computes no gradient of
 * x.
 */
static void linear(ref_model *m, const ps_layer *l, const double *x, double *y,
                   const double *dy, double *dx)
{
    int64_t I = l->in.d[0], O = l->out.d[0];
    double *weight = ref_rounded(m, ref_tensor(m, m->params, l->weight), O * I);
    double *xr = ref_rounded(m, x, m->n * I), *dyr = ref_rounded(m, dy, m->n * O);
    double *dw = ref_tensor(m, m->grads, l->weight);
    double *db = ref_tensor(m, m->grads, l->bias);
    for (int64_t n = 0; n < m->n; n++) {
        for (int64_t o = 0; o < O; o++) {
            int64_t j = n * O + o;
            if (dy && db) db[o] += dy[j];
            for (int64_t i = 0; i < I; i++) {
                if (!dy) {
                    y[j] += weight[o * I + i] * xr[n * I + i];
                } else {
                    dw[o * I + i] += dyr[j] * xr[n * I + i];
                    if (dx) dx[n * I + i] += dyr[j] * weight[o * I + i];
                }
            }
        }
    }
    if (!dy) ref_add_bias(m, l, y);
    free(weight), free(xr), free(dyr);
}

static void statistics(ref_model *m, const ps_layer *l, const double *x, bool training)
{
    const int64_t C = l->in.d[0], P = ps_dims_count(&l->in) / C;
    double count = (double)(m->n * P);
    double *rm = m->statistics + m->spec->table.buffers[l->running_mean].offset / 4;
    double *rv = m->statistics + m->spec->table.buffers[l->running_var].offset / 4;
    for (int64_t c = 0; c < C; c++) {
        double sum = 0, square = 0;
        for (int64_t n = 0; n < m->n; n++) {
            for (int64_t p = 0; p < P; p++)
                sum += x[(n * C + c) * P + p];
        }
        m->mean[c] = sum / count;
        for (int64_t n = 0; n < m->n; n++) {
            for (int64_t p = 0; p < P; p++)
                square += pow(x[(n * C + c) * P + p] - m->mean[c], 2);
        }
        m->var[c] = square / count;
        if (!training) {
            m->mean[c] = rm[c];
            m->var[c] = rv[c];
        }
    }
}

static void norm(ref_model *m, const ps_layer *l, const double *x, double *y,
                 const double *dy, double *dx, bool training)
{
    const int64_t C = l->in.d[0], P = ps_dims_count(&l->in) / C;
    const double *weight = ref_tensor(m, m->params, l->weight);
    const double *bias = ref_tensor(m, m->params, l->bias);
    double *dw = ref_tensor(m, m->grads, l->weight);
    double *db = ref_tensor(m, m->grads, l->bias);
    double N = (double)(m->n * P);
    statistics(m, l, x, training);
    for (int64_t c = 0; c < C; c++) {
        double inv = 1.0 / sqrt(m->var[c] + l->eps), sum = 0, dot = 0;
        for (int64_t n = 0; n < m->n; n++) {
            for (int64_t p = 0; p < P; p++) {
                int64_t i = (n * C + c) * P + p;
                double hat = (x[i] - m->mean[c]) * inv;
                if (!dy) y[i] = hat * weight[c] + bias[c];
                if (dy) sum += dy[i], dot += dy[i] * hat;
            }
        }
        if (!dy && training) {
            double *rm =
                m->statistics + m->spec->table.buffers[l->running_mean].offset / 4;
            double *rv =
                m->statistics + m->spec->table.buffers[l->running_var].offset / 4;
            rm[c] += l->momentum * (m->mean[c] - rm[c]);
            rv[c] += l->momentum * (m->var[c] * N / (N - 1) - rv[c]);
        }
        if (!dy) continue;
        dw[c] += dot;
        db[c] += sum;
        for (int64_t n = 0; n < m->n && dx; n++) {
            for (int64_t p = 0; p < P; p++) {
                int64_t i = (n * C + c) * P + p;
                double hat = (x[i] - m->mean[c]) * inv;
                dx[i] += weight[c] * inv * (dy[i] - sum / N - hat * dot / N);
            }
        }
    }
}

/* One group of a sample: its first channel is `first` of all samples' channels. */
static void norm_group(ref_model *m, const ps_layer *l, int64_t first, const double *x,
                       double *y, const double *dy, double *dx)
{
    const int64_t C = l->in.d[0], n = C / l->groups, P = ps_dims_count(&l->in) / C;
    const double *weight = ref_tensor(m, m->params, l->weight);
    const double *bias = ref_tensor(m, m->params, l->bias);
    double *dw = ref_tensor(m, m->grads, l->weight);
    double *db = ref_tensor(m, m->grads, l->bias);
    double mean = 0, var = 0, sum = 0, dot = 0;
    const int64_t begin = first * P, end = (first + n) * P, count = n * P;
    for (int64_t i = begin; i < end; i++)
        mean += x[i] / (double)count;
    for (int64_t i = begin; i < end; i++)
        var += pow(x[i] - mean, 2) / (double)count;
    const double inv = 1 / sqrt(var + l->eps);
    for (int64_t i = begin; i < end; i++) {
        const double hat = (x[i] - mean) * inv;
        const int64_t c = i / P % C;
        if (!dy) y[i] = hat * weight[c] + bias[c];
        if (!dy) continue;
        dw[c] += dy[i] * hat;
        db[c] += dy[i];
        sum += weight[c] * dy[i] / (double)count;
        dot += weight[c] * dy[i] * hat / (double)count;
    }
    for (int64_t i = begin; i < end && dx; i++)
        dx[i] += inv * (weight[i / P % C] * dy[i] - sum - (x[i] - mean) * inv * dot);
}

static void groupnorm(ref_model *m, const ps_layer *l, const double *x, double *y,
                      const double *dy, double *dx)
{
    const int64_t C = l->in.d[0];
    for (int64_t first = 0; first < m->n * C; first += C / l->groups)
        norm_group(m, l, first, x, y, dy, dx);
}

/* Copies or adds the k-th input's part of a concatenation. */
static void concat_part(ref_model *m, const ps_layer *l, int k, const double *x,
                        double *y, const double *dy, double *dx)
{
    const int64_t whole = ps_dims_count(&l->out), first = ps_dims_count(&l->in);
    const int64_t begin = k ? first : 0, count = k ? whole - first : first;
    for (int64_t e = 0; e < m->n * count; e++) {
        const int64_t at = e / count * whole + begin + e % count;
        if (dy)
            dx[e] += dy[at];
        else
            y[at] = x[e];
    }
}

static void dropout(ref_model *m, const ps_layer *l, const double *x, double *y,
                    const ps_batch *batch, const ps_pass *pass)
{
    int64_t F = ps_dims_count(&l->in);
    const uint32_t key[2] = {(uint32_t)pass->dropout.seed,
                             (uint32_t)(pass->dropout.seed >> 32)};
    for (int64_t i = 0; i < m->n * F; i++) {
        uint32_t e = (uint32_t)(i % F), words[4];
        const uint32_t counter[4] = {e / 8, (uint32_t)l->dropout_id,
                                     batch->positions[i / F], pass->dropout.epoch};
        ps_philox4x32(key, counter, words);
        uint32_t draw = words[e % 8 / 2] >> (16 * (e % 2)) & 0xFFFF;
        bool keep = draw >= l->p * 65536.0;
        double scaled = keep ? x[i] / (1.0 - l->p) : 0.0;
        if (!pass->training || l->p == 0.0) scaled = x[i];
        y[i] += scaled;
    }
}

static void log_softmax(ref_model *m, const ps_layer *l, const double *x, double *y,
                        const double *dy, double *dx)
{
    int64_t F = l->in.d[0];
    for (int64_t n = 0; n < m->n; n++) {
        double sum = 0, total = 0, max = x[n * F];
        for (int64_t c = 0; c < F; c++)
            max = fmax(max, x[n * F + c]);
        for (int64_t c = 0; c < F; c++) {
            sum += exp(x[n * F + c] - max);
            if (dy) total += dy[n * F + c];
        }
        for (int64_t c = 0; c < F; c++) {
            int64_t i = n * F + c;
            double log_prob = x[i] - max - log(sum);
            if (!dy) y[i] = log_prob;
            if (dy && dx) dx[i] += dy[i] - exp(log_prob) * total;
        }
    }
}

/* Returns the argument of tanh in gelu_tanh. *slope gets its derivative. */
static double gelu_inner(double x, double *slope)
{
    const double a = sqrt(2 / acos(-1));
    *slope = a * (1 + 3 * 0.044715 * x * x);
    return a * (x + 0.044715 * x * x * x);
}

static double activation(const ps_layer *l, double x)
{
    double unused;
    switch (l->kind) {
    case PS_LAYER_RELU:
        return x > 0 ? x : 0;
    case PS_LAYER_TANH:
        return tanh(x);
    case PS_LAYER_RELU6:
        return fmin(fmax(x, 0), 6);
    case PS_LAYER_LEAKY_RELU:
        return x > 0 ? x : l->alpha * x;
    case PS_LAYER_ELU:
        return x > 0 ? x : l->alpha * expm1(x);
    case PS_LAYER_SILU:
        return x / (1 + exp(-x));
    case PS_LAYER_GELU:
        return x * erfc(-x / sqrt(2)) / 2;
    case PS_LAYER_GELU_TANH:
        return x / 2 * (1 + tanh(gelu_inner(x, &unused)));
    default:
        return 1 / (1 + exp(-x));
    }
}

/* The slope at the input x. For relu and its like the output y decides, as it does for a
 * device. */
static double slope(const ps_layer *l, double x, double y)
{
    const double s = 1 / (1 + exp(-x));
    double inner, t;
    switch (l->kind) {
    case PS_LAYER_RELU:
        return y > 0;
    case PS_LAYER_TANH:
        return 1 - y * y;
    case PS_LAYER_RELU6:
        return y > 0 && y < 6;
    case PS_LAYER_LEAKY_RELU:
        return y > 0 ? 1 : l->alpha;
    case PS_LAYER_ELU:
        return y > 0 ? 1 : y + l->alpha;
    case PS_LAYER_SILU:
        return s * (1 + x * (1 - s));
    case PS_LAYER_GELU:
        return erfc(-x / sqrt(2)) / 2 + x * exp(-x * x / 2) / sqrt(2 * acos(-1));
    case PS_LAYER_GELU_TANH:
        t = tanh(gelu_inner(x, &inner));
        return (1 + t + x * (1 - t * t) * inner) / 2;
    default:
        return y * (1 - y);
    }
}

static const double *input_of(const ref_model *m, int layer)
{
    return layer == PS_INPUT ? m->input : m->value[layer];
}

static void forward_layer(ref_model *m, int i, const ps_batch *batch, const ps_pass *pass)
{
    const ps_layer *l = &m->spec->layers[i];
    const double *x = input_of(m, l->input[0]);
    double *y = m->value[i];
    int64_t count = m->n * ps_dims_count(&l->out);
    memset(y, 0, sizeof *y * (size_t)count);
    switch (l->kind) {
    case PS_LAYER_CONV2D:
        ref_conv(m, l, x, y, NULL, NULL);
        break;
    case PS_LAYER_LINEAR:
        linear(m, l, x, y, NULL, NULL);
        break;
    case PS_LAYER_BATCH_NORM2D:
        norm(m, l, x, y, NULL, NULL, pass->training);
        break;
    case PS_LAYER_GROUP_NORM:
    case PS_LAYER_LAYER_NORM:
        groupnorm(m, l, x, y, NULL, NULL);
        break;
    case PS_LAYER_MAX_POOL2D:
    case PS_LAYER_AVG_POOL2D:
        ref_pool(m, l, x, y, NULL, NULL);
        break;
    case PS_LAYER_ADAPTIVE_AVG_POOL2D:
    case PS_LAYER_UPSAMPLE:
        ref_interpolate(m, l, x, y, NULL, NULL);
        break;
    case PS_LAYER_ADAPTIVE_MAX_POOL2D:
        ref_adaptive_max(m, l, x, y, NULL, NULL);
        break;
    case PS_LAYER_CONCAT:
        concat_part(m, l, 0, x, y, NULL, NULL);
        concat_part(m, l, 1, input_of(m, l->input[1]), y, NULL, NULL);
        break;
    case PS_LAYER_DROPOUT:
        dropout(m, l, x, y, batch, pass);
        break;
    case PS_LAYER_LOG_SOFTMAX:
        log_softmax(m, l, x, y, NULL, NULL);
        break;
    case PS_LAYER_FLATTEN:
        memcpy(y, x, sizeof *y * (size_t)count);
        break;
    case PS_LAYER_ADD:
        for (int64_t e = 0; e < count; e++)
            y[e] = x[e] + input_of(m, l->input[1])[e];
        break;
    default:
        for (int64_t e = 0; e < count; e++)
            y[e] = activation(l, x[e]);
    }
    ref_store(m, i, y);
}

static void backward_layer(ref_model *m, int i, const ps_batch *batch,
                           const ps_pass *pass)
{
    const ps_layer *l = &m->spec->layers[i];
    const double *x = input_of(m, l->input[0]), *dy = m->gradient[i];
    double *dx = l->input[0] == PS_INPUT ? NULL : m->gradient[l->input[0]];
    int64_t count = m->n * ps_dims_count(&l->out);
    switch (l->kind) {
    case PS_LAYER_CONV2D:
        ref_conv(m, l, x, NULL, dy, dx);
        break;
    case PS_LAYER_LINEAR:
        linear(m, l, x, NULL, dy, dx);
        break;
    case PS_LAYER_BATCH_NORM2D:
        norm(m, l, x, NULL, dy, dx, true);
        break;
    case PS_LAYER_GROUP_NORM:
    case PS_LAYER_LAYER_NORM:
        groupnorm(m, l, x, NULL, dy, dx);
        break;
    case PS_LAYER_LOG_SOFTMAX:
        log_softmax(m, l, x, NULL, dy, dx);
        break;
    case PS_LAYER_CONCAT:
        for (int k = 0; k < 2; k++)
            if (l->input[k] != PS_INPUT)
                concat_part(m, l, k, NULL, NULL, dy, m->gradient[l->input[k]]);
        break;
    default:
        if (!dx && l->kind != PS_LAYER_ADD) break;
        if (l->kind == PS_LAYER_MAX_POOL2D || l->kind == PS_LAYER_AVG_POOL2D) {
            ref_pool(m, l, x, NULL, dy, dx);
        } else if (l->kind == PS_LAYER_ADAPTIVE_AVG_POOL2D ||
                   l->kind == PS_LAYER_UPSAMPLE) {
            ref_interpolate(m, l, x, NULL, dy, dx);
        } else if (l->kind == PS_LAYER_ADAPTIVE_MAX_POOL2D) {
            ref_adaptive_max(m, l, x, NULL, dy, dx);
        } else if (l->kind == PS_LAYER_DROPOUT) {
            dropout(m, l, dy, dx, batch, pass);
        } else if (l->kind == PS_LAYER_FLATTEN || l->kind == PS_LAYER_ADD) {
            for (int k = 0; k < l->n_inputs; k++) {
                if (l->input[k] == PS_INPUT) continue;
                for (int64_t e = 0; e < count; e++)
                    m->gradient[l->input[k]][e] += dy[e];
            }
        } else {
            for (int64_t e = 0; e < count; e++)
                dx[e] += dy[e] * slope(l, x[e], m->value[i][e]);
        }
    }
}

double ref_forward(ref_model *m, const ps_batch *batch, const ps_pass *pass)
{
    double sum = 0, weight;
    for (int64_t i = 0; i < m->n * ps_dims_count(&m->spec->input); i++)
        m->input[i] = batch->x[i];
    if (!m->rounds_once) ref_store(m, PS_INPUT, m->input);
    for (int i = 0; i < m->spec->n_layers; i++)
        forward_layer(m, i, batch, pass);
    m->weight = 0;
    for (int64_t n = 0; n < m->n; n++) {
        sum += ref_loss(m, batch, n, NULL, &weight);
        m->weight += weight;
    }
    return sum;
}

void ref_backward(ref_model *m, const ps_batch *batch, const ps_pass *pass)
{
    int last = m->spec->n_layers - 1;
    int64_t classes = m->spec->n_outputs;
    double unused;
    for (int i = 0; i <= last; i++)
        memset(m->gradient[i], 0,
               sizeof(double) * (size_t)(m->n * ps_dims_count(&m->spec->layers[i].out)));
    for (int64_t n = 0; n < m->n; n++) {
        double *d = m->gradient[last] + n * classes;
        ref_loss(m, batch, n, d, &unused);
        for (int64_t c = 0; c < classes; c++)
            d[c] *= (double)pass->grad_scale / m->weight;
    }
    for (int i = last; i >= 0; i--) {
        const ps_layer *l = &m->spec->layers[i];
        backward_layer(m, i, batch, pass);
        for (int k = 0; k < l->n_inputs; k++) // each part is stored as it is added
            if (l->input[k] != PS_INPUT)
                ref_store(m, l->input[k], m->gradient[l->input[k]]);
    }
}
