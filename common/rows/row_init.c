#include "row_init.h"

#include <math.h>
#include <string.h>

#include "rng.h"

/* log(x) for a normal x > 0, by the series of atanh((m - 1) / (m + 1)). */
static double init_log(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffff) | (int64_t)1023 << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    const double s = (m - 1) / (m + 1), z = s * s; // |s| < 0.1716
    double sum = 0;
    for (int k = 21; k >= 1; k -= 2)
        sum = sum * z + 1.0 / k;
    return 2 * s * sum + (double)exponent * 0.6931471805599453;
}

/* cos and sin of 2 pi u, 0 <= u < 1, by Taylor's series within an eighth of the circle.
 */
static void init_circle(double u, double *cosine, double *sine)
{
    const int quarter = (int)(4 * u + 0.5);
    const double x = (4 * u - quarter) * 1.5707963267948966, z = x * x;
    double c = 0, s = 0;
    for (int k = 16; k >= 2; k -= 2) {
        c = (c + 1) * -z / (k * (k - 1));
        s = (s + 1) * -z / (k * (k + 1));
    }
    c += 1;
    s = x * (s + 1);
    const double turned[] = {c, -s, -c, s, c};
    *cosine = turned[quarter];
    *sine = turned[quarter == 0 ? 3 : quarter - 1];
}

/* Box and Muller: two words become two numbers. */
static void init_normal(const uint32_t words[2], float scale, float out[2])
{
    const double u = (words[0] + 0.5) * 0x1p-32, v = words[1] * 0x1p-32;
    const double radius = sqrt(-2 * init_log(u));
    double cosine, sine;
    init_circle(v, &cosine, &sine);
    out[0] = (float)(radius * cosine) * scale;
    out[1] = (float)(radius * sine) * scale;
}

static float init_uniform(uint32_t word, float scale)
{
    return ((float)(word >> 8) * 0x1p-23f - 1.0f) * scale;
}

void ps_row_init_fill(const ps_row_spec *spec, uint64_t id, float *out)
{
    const float scale = (float)spec->init_scale;
    const uint32_t key[] = {(uint32_t)spec->seed, (uint32_t)(spec->seed >> 32)};
    for (uint32_t at = 0; at < spec->dim; at += 4) {
        const uint32_t counter[] = {(uint32_t)id, (uint32_t)(id >> 32), spec->number,
                                    at / 4};
        uint32_t words[4];
        float four[4] = {scale, scale, scale, scale};
        if (spec->init != PS_ROW_CONSTANT) ps_philox4x32(key, counter, words);
        for (int i = 0; spec->init == PS_ROW_UNIFORM && i < 4; i++)
            four[i] = init_uniform(words[i], scale);
        for (int i = 0; spec->init == PS_ROW_NORMAL && i < 4; i += 2)
            init_normal(words + i, scale, four + i);
        const uint32_t n = spec->dim - at < 4 ? spec->dim - at : 4;
        memcpy(out + at, four, n * sizeof *out);
    }
}
