/* Random numbers against PyTorch's and Random123's published streams. */
#include "rng.h"

#include "check.h"

/* std::mt19937 seeded with its default 5489: the 10,000th number ([rand.predef] of the
 * C++ standard). */
TEST(mt19937_standard_stream)
{
    ps_mt19937 g;
    uint32_t last = 0;
    ps_mt19937_seed(&g, 5489);
    for (int i = 0; i < 10000; i++)
        last = ps_mt19937_u32(&g);
    assert_int_equal(last, 4123659995u);
}

TEST(mt19937_seed_high_bits_ignored)
{
    ps_mt19937 a, b;
    ps_mt19937_seed(&a, 7);
    ps_mt19937_seed(&b, 7 | UINT64_C(0xabcdef) << 32);
    uint64_t first = ps_mt19937_u32(&a);
    uint64_t both = first << 32 | ps_mt19937_u32(&a);
    assert_true(ps_mt19937_u64(&b) == both);
}

/* torch.manual_seed(s); torch.randperm(10) */
TEST(randperm_as_torch)
{
    static const struct {
        uint64_t seed;
        int64_t want[10];
    } cases[] = {{0, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
                 {42, {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}}};
    for (int c = 0; c < 2; c++) {
        ps_mt19937 g;
        int64_t got[10];
        ps_mt19937_seed(&g, cases[c].seed);
        ps_randperm(&g, 10, got);
        assert_memory_equal(got, cases[c].want, sizeof got);
    }
}

/* torch: p = randperm(n, generator=manual_seed(s)); sum((p*(i+1)) mod 1000003) and ends.
 */
static void check_long(uint64_t seed, int64_t n, int64_t first, int64_t last, int64_t sum)
{
    ps_mt19937 g;
    int64_t *p = malloc((size_t)n * sizeof *p), got = 0;
    assert_non_null(p);
    ps_mt19937_seed(&g, seed);
    ps_randperm(&g, n, p);
    for (int64_t i = 0; i < n; i++)
        got += p[i] * (i + 1) % 1000003;
    assert_int_equal(p[0], first);
    assert_int_equal(p[n - 1], last);
    assert_int_equal(got, sum);
    free(p);
}

TEST(randperm_long_as_torch)
{
    check_long(7, 60000, 21615, 40145, 29926088039);
    check_long(123, 1797, 1024, 991, 706748877);
}

TEST(randperm_of_nothing_and_one)
{
    ps_mt19937 g;
    int64_t one = -1;
    ps_mt19937_seed(&g, 1);
    ps_randperm(&g, 0, NULL);
    ps_randperm(&g, 1, &one);
    assert_int_equal(one, 0);
}

/* torch.manual_seed(0); torch.rand(4) */
TEST(uniform_as_torch)
{
    static const float want[4] = {0.49625659f, 0.76822180f, 0.08847743f, 0.13203049f};
    for (int fused = 0; fused < 2; fused++) {
        ps_mt19937 g;
        float got[4];
        ps_mt19937_seed(&g, 0);
        ps_uniform(&g, 0, 1, fused, 4, got);
        assert_memory_equal(got, want, sizeof got);
    }
}

/* torch.manual_seed(0); torch.nn.Linear(2, 3): weight, then bias; U(+-1/sqrt(2)) */
TEST(linear_init_as_torch)
{
    static const float want[9] = {-0.00529398f, 0.37932289f,  -0.58198076f,
                                  -0.52038747f, -0.27234524f, 0.18961589f,
                                  -0.01401003f, 0.56065750f,  -0.06275152f};
    ps_mt19937 g;
    float got[9], bound = 0.70710678118654752f;
    ps_mt19937_seed(&g, 0);
    ps_uniform(&g, -bound, bound, 1, 9, got);
    for (int i = 0; i < 9; i++)
        assert_float_equal(got[i], want[i], 5e-9);
}

/* The known-answer vectors of Random123's kat_vectors for philox4x32-10. */
TEST(philox_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u},
         {~0u, ~0u},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int c = 0; c < 3; c++) {
        uint32_t got[4];
        ps_philox4x32(cases[c].key, cases[c].counter, got);
        assert_memory_equal(got, cases[c].want, sizeof got);
    }
}
