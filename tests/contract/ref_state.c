#include "ref_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double *ref_zeros(int64_t n)
{
    return calloc((size_t)n + 1, sizeof(double));
}

double *ref_tensor(const ref_model *m, double *arena, int t)
{
    return t == PS_NONE ? NULL : arena + m->spec->table.tensors[t].offset;
}

static void nudge_all(uint64_t seed, double *x, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    const double rms = n > 0 ? sqrt(squares / (double)n) : 0;
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        const double draw = (double)(seed >> 40) / (1 << 23) - 1.0; // [-1, 1)
        if (x[i] != 0.0) x[i] += draw * 0x1p-20 * (fabs(x[i]) + rms);
    }
}

/* What was computed; the input was not. A layer's output and its gradient get draws of
 * their own. */
static void nudge(const ref_model *m, int layer, double *x, int64_t n)
{
    uint64_t first;
    if (!m->digits || !m->nudge || layer == PS_INPUT || n == 0) return;
    memcpy(&first, x, sizeof first);
    nudge_all(m->nudge + 1000 * (uint64_t)layer + first, x, n);
}

/* frexp and ldexp take a fifth of the time of a test of 16 bits. */
static int exponent_of(double x) // x is in [2^(exponent - 1), 2^exponent)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 2047) - 1022;
}

static double power_of_two(int n) // a normal number
{
    const uint64_t bits = (uint64_t)(n + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* Rounds to nearest, ties to even. */
static void round_all(const ref_model *m, double *x, int64_t n)
{
    for (int64_t i = 0; i < n && m->digits; i++) {
        int unit = exponent_of(x[i]) - m->digits;
        if (unit < m->least) unit = m->least;
        x[i] = nearbyint((float)x[i] * power_of_two(-unit)) * power_of_two(unit);
    }
}

double *ref_rounded(const ref_model *m, const double *x, int64_t n)
{
    if (!x) return NULL;
    double *out = ref_zeros(n);
    memcpy(out, x, sizeof *out * (size_t)n);
    round_all(m, out, n);
    return out;
}

/* Whether the layer is computed together with a relu that follows it. */
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

void ref_store(const ref_model *m, int i, double *x)
{
    const ps_dims *d = i == PS_INPUT ? &m->spec->input : &m->spec->layers[i].out;
    const int64_t n = m->n * ps_dims_count(d);
    if (m->whole_values || is_wide(m, i)) return;
    nudge(m, i, x, n);
    round_all(m, x, n);
}

void ref_add_bias(ref_model *m, const ps_layer *l, double *y)
{
    const double *bias = ref_tensor(m, m->params, l->bias);
    int64_t O = l->out.d[0], P = ps_dims_count(&l->out) / O;
    int i = (int)(l - m->spec->layers);
    if (!m->rounds_once) ref_store(m, i, y);
    for (int64_t k = 0; k < m->n * O * P && bias; k++)
        y[k] += bias[k / P % O];
}
