/* Reductions of all types: closed forms. */
#include <math.h>

#include "check.h"
#include "float16.h"
#include "typed_reduce.h"

TEST(integers_wrap_around_and_means_go_to_0)
{
    const int8_t a[] = {127, -7, 5}, b[] = {1, 2, 2};
    const void *const from[] = {a, b};
    int8_t out[3];
    ps_typed_reduce(out, from, 2, 3, PS_DTYPE_INT8, PS_REDUCE_SUM);
    assert_int_equal(out[0], -128);
    ps_typed_reduce(out, from, 2, 3, PS_DTYPE_INT8, PS_REDUCE_AVG);
    assert_int_equal(out[1], -2);
    assert_int_equal(out[2], 3);
    ps_typed_reduce(out, from, 2, 3, PS_DTYPE_INT8, PS_REDUCE_BXOR);
    assert_int_equal(out[2], 7);
}

/* out may be one of several operands, at any place. */
TEST(sums_are_in_order)
{
    enum { N = 3000 };
    static float values[3][N];
    for (int place = 0; place < 3; place++) {
        const void *const from[] = {values[0], values[1], values[2]};
        for (int i = 0; i < N; i++) {
            values[0][i] = 3;
            values[1][i] = 1e8f;
            values[2][i] = -1e8f;
        }
        ps_typed_reduce(values[place], from, 3, N, PS_DTYPE_FLOAT32, PS_REDUCE_SUM);
        for (int i = 0; i < N; i++)
            assert_true(values[place][i] == 0); // 3 + 1e8 is 1e8
    }
}

/* 2048 + 1 + 1 in halves: 2048 + 1 would be rounded to 2048. */
TEST(halves_are_rounded_once)
{
    const uint16_t large = ps_fp16_of(2048), one = ps_fp16_of(1);
    const void *const from[] = {&large, &one, &one};
    uint16_t out;
    ps_typed_reduce(&out, from, 3, 1, PS_DTYPE_FLOAT16, PS_REDUCE_SUM);
    assert_true(ps_float_of_fp16(out) == 2050);
    const uint16_t b = ps_bf16_of(3);
    const void *const two[] = {&b, &b};
    ps_typed_reduce(&out, two, 2, 1, PS_DTYPE_BFLOAT16, PS_REDUCE_PRODUCT);
    assert_true(ps_float_of_bf16(out) == 9);
}

/* Whoever has it: torch.minimum, torch.maximum. */
TEST(a_nan_is_no_number)
{
    const double one = 1, nan = NAN;
    const float one32 = 1, nan32 = NAN;
    const uint16_t one16 = ps_bf16_of(1), nan16 = ps_bf16_of(NAN);
    for (int op = PS_REDUCE_MIN; op <= PS_REDUCE_MAX; op++)
        for (int n = 2; n <= 3; n++)
            for (int place = 0; place < n; place++) {
                const void *f64[] = {&one, &one, &one}, *f32[] = {&one32, &one32, &one32};
                const void *bf16[] = {&one16, &one16, &one16};
                double out64;
                float out32;
                uint16_t out16;
                f64[place] = &nan;
                f32[place] = &nan32;
                bf16[place] = &nan16;
                ps_typed_reduce(&out64, f64, n, 1, PS_DTYPE_FLOAT64, op);
                ps_typed_reduce(&out32, f32, n, 1, PS_DTYPE_FLOAT32, op);
                ps_typed_reduce(&out16, bf16, n, 1, PS_DTYPE_BFLOAT16, op);
                assert_true(isnan(out64) && isnan(out32));
                assert_true(isnan(ps_float_of_bf16(out16)));
            }
}

TEST(what_fits)
{
    assert_true(ps_reduce_fits(PS_DTYPE_INT64, PS_REDUCE_BAND));
    assert_false(ps_reduce_fits(PS_DTYPE_BFLOAT16, PS_REDUCE_BAND));
    assert_false(ps_reduce_fits(PS_DTYPES, PS_REDUCE_SUM));
    assert_false(ps_reduce_fits(PS_DTYPE_FLOAT32, PS_REDUCE_OPS));
    assert_false(ps_reduce_fits(-1, PS_REDUCE_SUM));
}
