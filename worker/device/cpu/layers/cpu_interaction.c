#include "cpu_interaction.h"

#include <string.h>

#include "cpu_level.h"

enum { LANES = 8 };

/* Over a fixed number of lanes, so that every vector length gives the same bits. */
static float interaction_dot(int64_t n, const float *restrict x, const float *restrict y)
{
    float lanes[LANES] = {0}, rest = 0;
    const int64_t whole = n - n % LANES;
    for (int64_t at = 0; at < whole; at += LANES) {
#pragma omp simd
        for (int k = 0; k < LANES; k++)
            lanes[k] += x[at + k] * y[at + k];
    }
    for (int64_t at = whole; at < n; at++)
        rest += x[at] * y[at];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            lanes[k] += lanes[k + half];
    return lanes[0] + rest;
}

static void interaction_add(int64_t n, float factor, const float *restrict x,
                            float *restrict y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

static int64_t interaction_outputs(const ps_cpu_interaction *i)
{
    return i->dim + (i->vectors + 1) * i->vectors / 2;
}

PS_PER_LEVEL(void, ps_cpu_interaction_forward,
             (const ps_cpu_interaction *i, const float *a, const float *b, float *y),
             (i, a, b, y))
{
    const int64_t dim = i->dim, vectors = i->vectors, outputs = interaction_outputs(i);
#pragma omp parallel for
    for (int64_t s = 0; s < i->samples; s++) {
        const float *first = a + s * dim, *rest = b + s * vectors * dim;
        float *to = y + s * outputs;
        memcpy(to, first, (size_t)dim * sizeof *to);
        to += dim;
        for (int64_t k = 0; k < vectors; k++) {
            *to++ = interaction_dot(dim, rest + k * dim, first);
            for (int64_t m = 0; m < k; m++)
                *to++ = interaction_dot(dim, rest + k * dim, rest + m * dim);
        }
    }
}

PS_PER_LEVEL(void, ps_cpu_interaction_backward,
             (const ps_cpu_interaction *i, const float *a, const float *b,
              const float *dy, float *da, bool add_a, float *db, bool add_b),
             (i, a, b, dy, da, add_a, db, add_b))
{
    const int64_t dim = i->dim, vectors = i->vectors, outputs = interaction_outputs(i);
#pragma omp parallel for
    for (int64_t s = 0; s < i->samples; s++) {
        const float *first = a + s * dim, *rest = b + s * vectors * dim;
        const float *from = dy + s * outputs;
        float *to_first = da ? da + s * dim : NULL;
        float *to_rest = db ? db + s * vectors * dim : NULL;
        if (to_first && !add_a) memset(to_first, 0, (size_t)dim * sizeof *to_first);
        if (to_rest && !add_b)
            memset(to_rest, 0, (size_t)(vectors * dim) * sizeof *to_rest);
        if (to_first) interaction_add(dim, 1, from, to_first);
        from += dim;
        for (int64_t k = 0; k < vectors; k++) {
            if (to_first) interaction_add(dim, *from, rest + k * dim, to_first);
            if (to_rest) interaction_add(dim, *from, first, to_rest + k * dim);
            from++;
            for (int64_t m = 0; m < k; m++, from++) {
                if (!to_rest) continue;
                interaction_add(dim, *from, rest + m * dim, to_rest + k * dim);
                interaction_add(dim, *from, rest + k * dim, to_rest + m * dim);
            }
        }
    }
}
