#include "mixup.h"

#include <math.h>
#include <string.h>

enum { ATTEMPTS = 64 }; // each succeeds with a probability above 0.95

static double mixup_uniform(uint32_t word) // above 0, below 1
{
    return ((double)word + 0.5) * 0x1p-32;
}

/* An attempt at the logarithm of a Gamma(alpha) number: that of a Gamma(alpha + 1)
 * number, times U^(1 / alpha). As a logarithm it cannot become 0 for a small alpha. */
static bool draw_log_gamma(double alpha, const uint32_t words[4], double *out)
{
    const double d = alpha + 1 - 1.0 / 3, c = 1 / sqrt(9 * d);
    const double radius = sqrt(-2 * log(mixup_uniform(words[0])));
    const double normal =
        radius * cos(2 * 3.14159265358979323846 * mixup_uniform(words[1]));
    const double root = 1 + c * normal, v = root * root * root;
    if (root <= 0) return false;
    if (log(mixup_uniform(words[2])) >= normal * normal / 2 + d - d * v + d * log(v))
        return false;
    *out = log(d * v) + log(mixup_uniform(words[3])) / alpha;
    return true;
}

/* which: 0 or 1 of the two. */
static double log_gamma_of(double alpha, ps_draw_key key, uint32_t which)
{
    double out = log(alpha); // of the mean, which 64 failures in a row give
    for (uint32_t i = 0; i < ATTEMPTS; i++) {
        uint32_t words[4];
        ps_draw_words(key, 2 * i + which, PS_MIXUP_STREAM, words);
        if (draw_log_gamma(alpha, words, &out)) break;
    }
    return out;
}

float ps_mixup_lambda(double alpha, ps_draw_key key)
{
    const double x = log_gamma_of(alpha, key, 0), y = log_gamma_of(alpha, key, 1);
    return (float)(1 / (1 + exp(y - x)));
}

static void mixup_mix(float lambda, int64_t count, const float *restrict before,
                      float *restrict x)
{
    const float rest = (float)(1.0 - (double)lambda);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        x[i] = before[i] * rest + x[i] * lambda;
}

void ps_mixup_samples(float lambda, int64_t n, int64_t count, float *x, float *last)
{
    memcpy(last, x + (n - 1) * count, (size_t)count * sizeof *x);
    for (int64_t i = n - 1; i > 0; i--)
        mixup_mix(lambda, count, x + (i - 1) * count, x + i * count);
    mixup_mix(lambda, count, last, x);
}

void ps_mixup_targets(float lambda, int64_t n, int64_t classes, const int32_t *labels,
                      float *targets)
{
    const float rest = (float)(1.0 - (double)lambda);
    memset(targets, 0, (size_t)(n * classes) * sizeof *targets);
    for (int64_t i = 0; i < n; i++) {
        float *row = targets + i * classes;
        row[labels[i > 0 ? i - 1 : n - 1]] = rest;
        row[labels[i]] += lambda;
    }
}
