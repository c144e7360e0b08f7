#include "ref_layers.h"
#include "model_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *zeros(int64_t n)
{
    return calloc((size_t)n + 1, sizeof(double));
}

void ref_init(ref_model *m, const ps_model_spec *spec, int n, const float *params,
              const void *buffers)
{
    *m = (ref_model){.spec = spec, .n = n};
    m->params = zeros((int64_t)spec->table.arena_count);
    m->grads = zeros((int64_t)spec->table.arena_count);
    m->statistics = zeros((int64_t)spec->table.buffer_bytes / 4);
    m->input = zeros(n * ps_dims_count(&spec->input));
    m->mean = zeros(4096);
    m->var = zeros(4096);
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
        m->value[i] = zeros(n * ps_dims_count(&spec->layers[i].out));
        m->gradient[i] = zeros(n * ps_dims_count(&spec->layers[i].out));
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

static double *tensor_of(const ref_model *m, double *arena, int t)
{
    return t == PS_NONE ? NULL : arena + m->spec->table.tensors[t].offset;
}

/* Calls body for every (n, output position, window position inside the input). */
#define EACH_WINDOW(...)                                                                 \
    for (int64_t oh = 0; oh < H2; oh++)                                                  \
        for (int64_t ow = 0; ow < W2; ow++)                                              \
            for (int64_t kh = 0; kh < l->kernel[0]; kh++)                                \
                for (int64_t kw = 0; kw < l->kernel[1]; kw++) {                          \
                    int64_t h = oh * l->stride[0] - l->padding[0] + kh * l->dilation[0]; \
                    int64_t w = ow * l->stride[1] - l->padding[1] + kw * l->dilation[1]; \
                    if (h < 0 || h >= H || w < 0 || w >= W) continue;                    \
                    __VA_ARGS__                                                          \
                }
#define PLANES                                                                           \
    const int64_t C = l->in.d[0], H = l->in.d[1], W = l->in.d[2], H2 = l->out.d[1],      \
                  W2 = l->out.d[2]

/* Rounds to nearest, ties to even. */
static void round_all(const ref_model *m, double *x, int64_t n)
{
    for (int64_t i = 0; i < n && m->digits; i++) {
        int exponent;
        frexp(x[i], &exponent);
        int unit = exponent - m->digits;
        if (unit < m->least) unit = m->least;
        x[i] = ldexp(nearbyint(ldexp((float)x[i], -unit)), unit);
    }
}

/* Owned by the caller. NULL for NULL. */
static double *rounded(const ref_model *m, const double *x, int64_t n)
{
    if (!x) return NULL;
    double *out = zeros(n);
    memcpy(out, x, sizeof *out * (size_t)n);
    round_all(m, out, n);
    return out;
}

/* Whether a relu that follows the layer is computed together with it. */
static bool takes_relu(const ps_layer *l)
{
    return l->kind == PS_LAYER_CONV2D || l->kind == PS_LAYER_LINEAR ||
           l->kind == PS_LAYER_BATCH_NORM2D || l->kind == PS_LAYER_ADD;
}

/* Whether the output of a layer, or the input (PS_INPUT), is stored in full. */
static bool is_wide(const ref_model *m, int i)
{
    const ps_model_spec *spec = m->spec;
    if (i == spec->n_layers - 1) return true;
    if (i != PS_INPUT && spec->layers[i].kind == PS_LAYER_LOG_SOFTMAX) return true;
    for (int k = 0; k < spec->n_layers; k++) {
        const ps_layer *l = &spec->layers[k];
        if (l->input[0] != i) continue;
        if (l->kind == PS_LAYER_LOG_SOFTMAX) return true;
        bool folded =
            i != PS_INPUT && l->kind == PS_LAYER_RELU && takes_relu(&spec->layers[i]);
        if (folded && is_wide(m, k)) return true;
    }
    return false;
}

static void store(const ref_model *m, int i, double *x)
{
    const ps_dims *d = i == PS_INPUT ? &m->spec->input : &m->spec->layers[i].out;
    if (!m->whole_values && !is_wide(m, i)) round_all(m, x, m->n * ps_dims_count(d));
}

/* A product is stored before its bias is added, unless the device rounds once. */
static void add_bias(ref_model *m, const ps_layer *l, double *y)
{
    const double *bias = tensor_of(m, m->params, l->bias);
    int64_t O = l->out.d[0], P = ps_dims_count(&l->out) / O;
    int i = (int)(l - m->spec->layers);
    if (!m->rounds_once) store(m, i, y);
    for (int64_t k = 0; k < m->n * O * P && bias; k++)
        y[k] += bias[k / P % O];
}

/* dy NULL: the forward pass; else the backward pass. dx NULL: no gradient of x is wanted.
 */
static void conv(ref_model *m, const ps_layer *l, const double *x, double *y,
                 const double *dy, double *dx)
{
    PLANES;
    int64_t O = l->out.d[0], K = l->kernel[0] * l->kernel[1];
    int64_t I = C / l->groups; // channels of a group
    double *weight = rounded(m, tensor_of(m, m->params, l->weight), O * I * K);
    double *xr = rounded(m, x, m->n * C * H * W);
    double *dyr = rounded(m, dy, m->n * O * H2 * W2);
    double *dw = tensor_of(m, m->grads, l->weight);
    double *db = tensor_of(m, m->grads, l->bias);
    for (int64_t n = 0; n < m->n; n++) {
        for (int64_t o = 0; o < O; o++) {
            int64_t out = (n * O + o) * H2 * W2;
            for (int64_t p = 0; p < H2 * W2; p++) {
                // the gradient that is stored, or the factor
                if (dy && db) db[o] += (m->whole_values ? dyr : dy)[out + p];
            }
            int64_t first = o / (O / l->groups) * I;
            for (int64_t c = first; c < first + I; c++) {
                EACH_WINDOW({
                    int64_t i = ((n * C + c) * H + h) * W + w, j = out + oh * W2 + ow;
                    int64_t k = (o * I + c - first) * K + kh * l->kernel[1] + kw;
                    if (!dy) {
                        y[j] += weight[k] * xr[i];
                    } else {
                        dw[k] += dyr[j] * xr[i];
                        if (dx) dx[i] += dyr[j] * weight[k];
                    }
                })
            }
        }
    }
    if (!dy) add_bias(m, l, y);
    free(weight), free(xr), free(dyr);
}

static void linear(ref_model *m, const ps_layer *l, const double *x, double *y,
                   const double *dy, double *dx)
{
    int64_t I = l->in.d[0], O = l->out.d[0];
    double *weight = rounded(m, tensor_of(m, m->params, l->weight), O * I);
    double *xr = rounded(m, x, m->n * I), *dyr = rounded(m, dy, m->n * O);
    double *dw = tensor_of(m, m->grads, l->weight);
    double *db = tensor_of(m, m->grads, l->bias);
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
    if (!dy) add_bias(m, l, y);
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
    const double *weight = tensor_of(m, m->params, l->weight);
    const double *bias = tensor_of(m, m->params, l->bias);
    double *dw = tensor_of(m, m->grads, l->weight);
    double *db = tensor_of(m, m->grads, l->bias);
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
    const double *weight = tensor_of(m, m->params, l->weight);
    const double *bias = tensor_of(m, m->params, l->bias);
    double *dw = tensor_of(m, m->grads, l->weight);
    double *db = tensor_of(m, m->grads, l->bias);
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

static void pool(ref_model *m, const ps_layer *l, const double *x, double *y,
                 const double *dy, double *dx)
{
    PLANES;
    bool max = l->kind == PS_LAYER_MAX_POOL2D;
    double size = (double)(l->kernel[0] * l->kernel[1]);
    int64_t *best = malloc(sizeof *best * (size_t)(H2 * W2));
    for (int64_t o = 0; o < m->n * C; o++) {
        for (int64_t p = 0; p < H2 * W2; p++)
            best[p] = -1;
        if (!dy) memset(y + o * H2 * W2, 0, sizeof *y * (size_t)(H2 * W2));
        EACH_WINDOW({
            int64_t i = (o * H + h) * W + w;
            int64_t p = oh * W2 + ow;
            int64_t j = o * H2 * W2 + p;
            if (best[p] < 0 || x[i] > x[best[p]]) best[p] = i;
            if (!max && !dy) y[j] += x[i] / size;
            if (!max && dy) dx[i] += dy[j] / size;
        })
        for (int64_t p = 0; p < H2 * W2 && max; p++) {
            if (!dy)
                y[o * H2 * W2 + p] = x[best[p]];
            else
                dx[best[p]] += dy[o * H2 * W2 + p];
        }
    }
    free(best);
}

/* How much position i of the input adds to position o of the output, along one axis: the
 * formulas of torch.nn.Upsample and AdaptiveAvgPool2d. */
static double axis_weight(ps_interpolation mode, int64_t in, int64_t out, int64_t o,
                          int64_t i)
{
    const double ratio = (double)in / (double)out, at = ((double)o + 0.5) * ratio - 0.5;
    const double centre = fmin(fmax(at, 0), (double)(in - 1));
    const int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    switch (mode) {
    case PS_INTERPOLATE_NEAREST:
        return i == begin;
    case PS_INTERPOLATE_BILINEAR:
        return fmax(0, 1 - fabs(centre - (double)i));
    default:
        return i >= begin && i < end ? 1.0 / (double)(end - begin) : 0;
    }
}

/* dy NULL: the forward pass. */
static void interpolate(ref_model *m, const ps_layer *l, const double *x, double *y,
                        const double *dy, double *dx)
{
    PLANES;
    for (int64_t k = 0; k < H2 * W2 * H * W; k++) {
        const int64_t ow = k % W2, oh = k / W2 % H2, w = k / W2 / H2 % W,
                      h = k / W2 / H2 / W;
        const double weight =
            axis_weight(l->mode, H, H2, oh, h) * axis_weight(l->mode, W, W2, ow, w);
        for (int64_t o = 0; o < m->n * C && weight != 0; o++) {
            const int64_t i = (o * H + h) * W + w, j = (o * H2 + oh) * W2 + ow;
            if (dy)
                dx[i] += weight * dy[j];
            else
                y[j] += weight * x[i];
        }
    }
}

/* The position of the first maximum in window (oh, ow) of a plane: torch.nn's
 * AdaptiveMaxPool2d. */
static int64_t adaptive_argmax(const ps_layer *l, const double *x, int64_t oh, int64_t ow)
{
    const int64_t H = l->in.d[1], W = l->in.d[2], H2 = l->out.d[1], W2 = l->out.d[2];
    int64_t best = oh * H / H2 * W + ow * W / W2;
    for (int64_t h = oh * H / H2; h * H2 < (oh + 1) * H; h++)
        for (int64_t w = ow * W / W2; w * W2 < (ow + 1) * W; w++)
            if (x[h * W + w] > x[best]) best = h * W + w;
    return best;
}

/* dy NULL: the forward pass. */
static void adaptive_max(ref_model *m, const ps_layer *l, const double *x, double *y,
                         const double *dy, double *dx)
{
    PLANES;
    for (int64_t j = 0; j < m->n * C * H2 * W2; j++) {
        const int64_t plane = j / (H2 * W2) * H * W;
        const int64_t i = plane + adaptive_argmax(l, x + plane, j / W2 % H2, j % W2);
        if (dy)
            dx[i] += dy[j];
        else
            y[j] = x[i];
    }
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

/* tanh's argument in gelu_tanh; *slope: its derivative. */
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

/* From the input; of relu and its like from the output, which decides for a device. */
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
        conv(m, l, x, y, NULL, NULL);
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
        pool(m, l, x, y, NULL, NULL);
        break;
    case PS_LAYER_ADAPTIVE_AVG_POOL2D:
    case PS_LAYER_UPSAMPLE:
        interpolate(m, l, x, y, NULL, NULL);
        break;
    case PS_LAYER_ADAPTIVE_MAX_POOL2D:
        adaptive_max(m, l, x, y, NULL, NULL);
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
    store(m, i, y);
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
        conv(m, l, x, NULL, dy, dx);
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
            pool(m, l, x, NULL, dy, dx);
        } else if (l->kind == PS_LAYER_ADAPTIVE_AVG_POOL2D ||
                   l->kind == PS_LAYER_UPSAMPLE) {
            interpolate(m, l, x, NULL, dy, dx);
        } else if (l->kind == PS_LAYER_ADAPTIVE_MAX_POOL2D) {
            adaptive_max(m, l, x, NULL, dy, dx);
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

/* One sample's loss of classes, from the softmax; d (classes), if not NULL, its gradient.
 * PyTorch's cross_entropy of the probabilities q: given, or the label's, partly spread
 * over all classes. Returns the sample's weight in *weight: its class's, if it has a
 * label. */
static double class_loss(const ps_model_spec *spec, const double *out, int32_t label,
                         const float *given, double *d, double *weight)
{
    const int64_t n = spec->n_outputs;
    const bool logits = spec->loss == PS_LOSS_CROSS_ENTROPY;
    const double s = (double)spec->label_smoothing;
    const float *w = spec->class_weights;
    double sum = 0, loss = 0, all = 0;
    for (int64_t c = 0; c < n; c++) {
        sum += logits ? exp(out[c]) : 0;
        if (d) d[c] = 0;
    }
    *weight = 0;
    if (!given && label == spec->ignore_index) return 0;
    *weight = w && !given ? (double)w[label] : 1;
    for (int64_t c = 0; c < n; c++) {
        const double own = given ? (double)given[c] : c == label;
        const double q = s / (double)n + (1 - s) * own;
        const double part = q * (w ? (double)w[c] : 1);
        loss -= part * (out[c] - (logits ? log(sum) : 0));
        all += part;
        if (d) d[c] = -part;
    }
    for (int64_t c = 0; c < n && d && logits; c++)
        d[c] += all * exp(out[c]) / sum;
    return loss;
}

/* One number's loss; *d its gradient. */
static double number_loss(ps_loss_kind kind, double x, double t, double *d)
{
    const double off = x - t, sign = off > 0 ? 1 : off < 0 ? -1 : 0;
    switch (kind) {
    case PS_LOSS_L1:
        *d = sign;
        return sign * off;
    case PS_LOSS_SMOOTH_L1:
        *d = sign * off < 1 ? off : sign;
        return sign * off < 1 ? off * off / 2 : sign * off - 0.5;
    case PS_LOSS_BCE_WITH_LOGITS:
        *d = 1 / (1 + exp(-x)) - t;
        return -t * log(1 / (1 + exp(-x))) - (1 - t) * log(1 / (1 + exp(x)));
    default:
        *d = 2 * off;
        return off * off;
    }
}

/* Sample i's loss; d (outputs), if not NULL, its gradient; *weight is its part in the
 * mean. */
static double loss(const ref_model *m, const ps_batch *batch, int64_t i, double *d,
                   double *weight)
{
    const int64_t n = m->spec->n_outputs;
    const double *out = ref_outputs(m) + i * n;
    double sum = 0, one;
    if (m->spec->loss == PS_LOSS_NLL || m->spec->loss == PS_LOSS_CROSS_ENTROPY)
        return class_loss(m->spec, out, batch->targets ? 0 : batch->labels[i],
                          batch->targets ? batch->targets + i * n : NULL, d, weight);
    *weight = 1;
    for (int64_t c = 0; c < n; c++) {
        const double t =
            batch->targets ? (double)batch->targets[i * n + c] : c == batch->labels[i];
        sum += number_loss(m->spec->loss, out[c], t, &one) / (double)n;
        if (d) d[c] = one / (double)n;
    }
    return sum;
}

double ref_forward(ref_model *m, const ps_batch *batch, const ps_pass *pass)
{
    double sum = 0, weight;
    for (int64_t i = 0; i < m->n * ps_dims_count(&m->spec->input); i++)
        m->input[i] = batch->x[i];
    if (!m->rounds_once) store(m, PS_INPUT, m->input);
    for (int i = 0; i < m->spec->n_layers; i++)
        forward_layer(m, i, batch, pass);
    m->weight = 0;
    for (int64_t n = 0; n < m->n; n++) {
        sum += loss(m, batch, n, NULL, &weight);
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
        loss(m, batch, n, d, &unused);
        for (int64_t c = 0; c < classes; c++)
            d[c] *= (double)pass->grad_scale / m->weight;
    }
    for (int i = last; i >= 0; i--) {
        const ps_layer *l = &m->spec->layers[i];
        backward_layer(m, i, batch, pass);
        for (int k = 0; k < l->n_inputs; k++) // each part is stored as it is added
            if (l->input[k] != PS_INPUT) store(m, l->input[k], m->gradient[l->input[k]]);
    }
}
