/* The fused multiply-add of processors without one, against the C library's. */
#include "fused.h"

#include "check.h"
#include "rng.h"

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void check(float a, float b, float c)
{
    const float got = ps_fused_by_double(a, b, c), wanted = fmaf(a, b, c);
    if (isnan(got) && isnan(wanted)) return;
    if (bits_of(got) != bits_of(wanted))
        fail_msg("%a * %a + %a: %a, not %a", (double)a, (double)b, (double)c, (double)got,
                 (double)wanted);
}

TEST(any_bits)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, 1);
    for (int i = 0; i < 1000000; i++) {
        const float a = float_of(ps_mt19937_u32(&g)), b = float_of(ps_mt19937_u32(&g));
        check(a, b, float_of(ps_mt19937_u32(&g)));
    }
}

/* Sums with a term far below the last place of a double. A tenth of them are wrong if
 * they are rounded to double first and then to float. */
TEST(sums_next_to_a_tie)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, 2);
    for (int i = 0; i < 1000000; i++) {
        const uint32_t word = ps_mt19937_u32(&g);
        // a * b: a number of 24 bits and half of its last place; c: far smaller
        const float a = (float)(0x1000001 | (ps_mt19937_u32(&g) & 0xFFFFFE)) * 0x1p-24f;
        const float b = word & 1 ? 1.5f : 0x1.000002p0f;
        const float c = ldexpf((word & 2 ? -1.0f : 1.0f) * (float)(1 + (word >> 24)),
                               -20 - (int)(word >> 8 & 63));
        check(a, b, c);
        check(-a, b, c);
        check(ldexpf(a, -100), ldexpf(b, -40),
              ldexpf(c, -110)); // below the smallest normal
    }
}

TEST(special_numbers)
{
    static const float x[] = {0.0f,      -0.0f,           1.0f,
                              -1.0f,     0x1p-149f,       -0x1p-149f,
                              0x1p-126f, 0x1.fffffep127f, -0x1.fffffep127f,
                              INFINITY,  -INFINITY,       NAN,
                              0x1p-75f,  0x1p64f};
    const int n = sizeof x / sizeof x[0];
    for (int i = 0; i < n * n * n; i++)
        check(x[i % n], x[i / n % n], x[i / n / n]);
}
