/* Codecs: their error bounds in closed form, feedback that loses nothing, sizes,
 * refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec.h"
#include "rng.h"

enum { N = 5000 };

static void make(uint64_t n, uint64_t seed, float *out)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, seed);
    ps_uniform(&g, -1.0f, 1.0f, 0, n, out);
    for (uint64_t i = 0; i < n; i++)
        out[i] = out[i] * out[i] * out[i] * 0.01f;
}

static void round_trip(ps_codec codec, double topk, uint64_t n, const float *in,
                       uint64_t draw, float *out)
{
    uint64_t bytes = ps_codec_bytes(codec, n, topk);
    uint8_t *payload = malloc(bytes + 1);
    payload[bytes] = 0xA5;
    ps_codec_encode(codec, topk, n, in, NULL, draw, payload);
    assert_int_equal(payload[bytes], 0xA5);
    assert_int_equal(ps_codec_decode(codec, topk, n, payload, bytes, out), PS_OK);
    free(payload);
}

/* Every one of the 65,536 halves against the compiler's own conversion, both ways. */
static void test_fp16_is_ieee(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t bits = (uint16_t)h;
        _Float16 native;
        memcpy(&native, &bits, 2);
        float got, want = (float)native;
        assert_int_equal(ps_codec_decode(PS_CODEC_FP16, 1, 1, &bits, 2, &got), PS_OK);
        if (isnan(want))
            assert_true(isnan(got));
        else
            assert_memory_equal(&got, &want, 4);
    }
    ps_mt19937 g;
    ps_mt19937_seed(&g, 3);
    for (int i = 0; i < 300000; i++) {
        uint32_t b = ps_mt19937_u32(&g);
        float x;
        memcpy(&x, &b, 4);
        uint16_t got, want;
        _Float16 native = (_Float16)x;
        memcpy(&want, &native, 2);
        ps_codec_encode(PS_CODEC_FP16, 1, 1, &x, NULL, 0, &got);
        if (isnan(x))
            assert_true((got & 0x7FFF) > 0x7C00);
        else if (isfinite(x) && (want & 0x7FFF) == 0x7C00)
            assert_int_equal(got & 0x7FFF, 0x7BFF); // held at the largest
        else
            assert_int_equal(got, want);
    }
}

/* All 65,536 bfloat16, and random floats against the two that enclose them. */
static void test_bf16_is_the_nearest(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t bits = (uint16_t)h, back;
        float x;
        assert_int_equal(ps_codec_decode(PS_CODEC_BF16, 1, 1, &bits, 2, &x), PS_OK);
        assert_true(isnan(x) == ((h & 0x7FFF) > 0x7F80));
        ps_codec_encode(PS_CODEC_BF16, 1, 1, &x, NULL, 0, &back);
        assert_int_equal(back, isnan(x) ? h | 0x40 : h);
    }
    ps_mt19937 g;
    ps_mt19937_seed(&g, 3);
    for (int i = 0; i < 300000; i++) {
        // Half of them ties: only the last of the sixteen bits that go is set.
        uint32_t b = ps_mt19937_u32(&g);
        if (i % 2) b = (b & 0xFFFF0000u) | 0x8000u;
        float x, got;
        memcpy(&x, &b, 4);
        if (isnan(x)) continue;
        uint16_t bits;
        ps_codec_encode(PS_CODEC_BF16, 1, 1, &x, NULL, 0, &bits);
        assert_int_equal(ps_codec_decode(PS_CODEC_BF16, 1, 1, &bits, 2, &got), PS_OK);
        if (isinf(got)) { // from halfway between the largest and what would follow it
            assert_true(fabs((double)x) >= 0x1.FFp127);
            continue;
        }
        double exponent = ldexp(1.0, (bits >> 7 & 0xFF ? bits >> 7 & 0xFF : 1) - 127 - 7);
        double error = fabs((double)x - (double)got);
        assert_true(error <= exponent / 2);
        if (error == exponent / 2) assert_int_equal(bits & 1, 0);
    }
}

/* Gradients under a loss scale: what fp16 cannot hold has to be seen by the shards. */
static void test_fp16_overflows_where_it_is_asked_to(void **state)
{
    (void)state;
    const char *sets[] = {"model.input=[4]", "model.layers=[{linear: {name: l, out: 1}}]",
                          "model.loss=mse", "exchange.codec=fp16",
                          "exchange.codec_min=0"};
    ps_config cfg;
    ps_model_spec spec;
    ps_plan plan;
    ps_chunk_codec c;
    assert_int_equal(ps_config_load(&cfg, NULL, sets, 5), PS_OK);
    assert_int_equal(ps_model_spec_init(&spec, &cfg), PS_OK);
    assert_int_equal(ps_plan_init(&plan, &spec, 0, 1), PS_OK);
    assert_int_equal(ps_chunk_codec_init(&c, &cfg, &spec), PS_OK);
    const ps_chunk *chunk = &plan.chunks[plan.n_chunks - 1];
    float values[64] = {65504, -65519, 65520, -1e9f}, out[64];
    uint8_t payload[256];
    uint64_t bytes = ps_chunk_codec_bytes(&c, chunk);
    assert_true(chunk->count <= 64 && bytes <= sizeof payload);
    for (int overflow = 0; overflow < 2; overflow++) {
        c.overflow = overflow;
        ps_chunk_codec_encode(&c, chunk, values, NULL, 0, payload);
        assert_int_equal(ps_chunk_codec_decode(&c, chunk, payload, bytes, out), PS_OK);
        assert_true(out[0] == 65504 && out[1] == -65504);
        assert_true(out[2] == (overflow ? INFINITY : 65504));
        assert_true(out[3] == (overflow ? -INFINITY : -65504));
    }
    ps_plan_fini(&plan);
    ps_model_spec_fini(&spec);
    ps_config_fini(&cfg);
}

/* |error| < scale, and unbiased: the mean over draws comes near the value. */
static void test_int8_bound_and_bias(void **state)
{
    (void)state;
    static float in[N], out[N];
    static double sum[N];
    make(N, 1, in);
    const int draws = 400;
    for (int d = 0; d < draws; d++) {
        round_trip(PS_CODEC_INT8, 1, N, in, (uint64_t)d * 7919, out);
        for (int i = 0; i < N; i++) {
            int begin = i / 256 * 256, end = begin + 256 < N ? begin + 256 : N;
            float most = 0;
            if (d == 0) {
                for (int j = begin; j < end; j++)
                    most = fmaxf(most, fabsf(in[j]));
                assert_true(fabsf(out[i] - in[i]) <= most / 127.0f * 1.0001f);
            }
            sum[i] += out[i];
        }
    }
    double worst = 0;
    for (int i = 0; i < N; i++)
        worst = fmax(worst, fabs(sum[i] / draws - in[i]));
    // Standard error of a uniform rounding: scale / sqrt(12 * draws); five of them.
    assert_true(worst < 5 * (0.01 / 127) * 0.5 / sqrt(draws));
}

static void test_onebit_is_sign_times_mean(void **state)
{
    (void)state;
    static float in[N], out[N];
    make(N, 2, in);
    round_trip(PS_CODEC_ONEBIT, 1, N, in, 0, out);
    for (int begin = 0; begin < N; begin += 1024) {
        int end = begin + 1024 < N ? begin + 1024 : N;
        double mean = 0;
        for (int j = begin; j < end; j++)
            mean += fabs(in[j]) / (end - begin);
        for (int j = begin; j < end; j++) {
            assert_true(fabs(fabs(out[j]) - mean) < 1e-6 * mean);
            assert_int_equal(signbit(out[j]) != 0, signbit(in[j]) != 0);
        }
    }
}

static int descending(const void *a, const void *b)
{
    float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
    return x < y ? 1 : x > y ? -1 : 0;
}

static void test_topk_keeps_the_largest(void **state)
{
    (void)state;
    static float in[N], out[N], sorted[N];
    make(N, 4, in);
    for (int i = 0; i < N; i += 3)
        in[i] = i % 2 ? 0.004f : -0.004f; // many of equal size
    memcpy(sorted, in, sizeof in);
    qsort(sorted, N, sizeof *sorted, descending);
    for (double share = 0.001; share <= 1; share *= 3) {
        uint64_t k = (uint64_t)ceil(share * N), kept = 0;
        round_trip(PS_CODEC_TOPK, share, N, in, 0, out);
        for (int i = 0; i < N; i++) {
            if (out[i] == 0) {
                assert_true(fabsf(in[i]) <= fabsf(sorted[k - 1]));
                continue;
            }
            assert_memory_equal(&out[i], &in[i], 4);
            kept++;
        }
        assert_int_equal(kept, k);
    }
}

/* What was sent plus what is kept is what went in: nothing is lost, only late. */
static void test_feedback_loses_nothing(void **state)
{
    (void)state;
    const ps_codec codecs[] = {PS_CODEC_ONEBIT, PS_CODEC_TOPK};
    static float in[N], out[N], residual[N];
    static double sent[N], given[N];
    for (int c = 0; c < 2; c++) {
        memset(residual, 0, sizeof residual);
        memset(sent, 0, sizeof sent);
        memset(given, 0, sizeof given);
        uint64_t bytes = ps_codec_bytes(codecs[c], N, 0.01);
        uint8_t *payload = malloc(bytes);
        for (int step = 0; step < 50; step++) {
            make(N, 100 + (uint64_t)step, in);
            ps_codec_encode(codecs[c], 0.01, N, in, residual, 0, payload);
            assert_int_equal(ps_codec_decode(codecs[c], 0.01, N, payload, bytes, out),
                             PS_OK);
            for (int i = 0; i < N; i++) {
                sent[i] += out[i];
                given[i] += in[i];
            }
        }
        for (int i = 0; i < N; i++)
            assert_true(fabs(sent[i] + residual[i] - given[i]) < 1e-6);
        free(payload);
    }
}

static void test_not_finite_stays_so(void **state)
{
    (void)state;
    const ps_codec codecs[] = {PS_CODEC_FP16, PS_CODEC_BF16, PS_CODEC_INT8,
                               PS_CODEC_ONEBIT, PS_CODEC_TOPK};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    static float in[N], out[N];
    for (int c = 0; c < 4; c++)
        for (int b = 0; b < 3; b++) {
            make(N, 5, in);
            in[4321] = bad[b];
            round_trip(codecs[c], 0.01, N, in, 0, out);
            assert_false(isfinite(out[4321]));
        }
}

static void test_wrong_sizes_and_indices_are_refused(void **state)
{
    (void)state;
    float out[64], in[64] = {1};
    uint8_t payload[512];
    for (int c = PS_CODEC_FP16; c < PS_CODEC_COUNT; c++) {
        uint64_t bytes = ps_codec_bytes((ps_codec)c, 64, 0.1);
        ps_codec_encode((ps_codec)c, 0.1, 64, in, NULL, 0, payload);
        assert_int_equal(ps_codec_decode((ps_codec)c, 0.1, 64, payload, bytes - 1, out),
                         PS_ERR_PROTOCOL);
        assert_int_equal(ps_codec_decode((ps_codec)c, 0.1, 64, payload, bytes + 1, out),
                         PS_ERR_PROTOCOL);
    }
    uint32_t index = 64; // one past the end
    ps_codec_encode(PS_CODEC_TOPK, 0.1, 64, in, NULL, 0, payload);
    memcpy(payload, &index, 4);
    assert_int_equal(ps_codec_decode(PS_CODEC_TOPK, 0.1, 64, payload, 56, out),
                     PS_ERR_PROTOCOL);
    memset(payload, 0, sizeof payload); // the same index twice
    assert_int_equal(ps_codec_decode(PS_CODEC_TOPK, 0.1, 64, payload, 56, out),
                     PS_ERR_PROTOCOL);
}

/* A chunk of a small tensor, a gap and part of a large one. */
static void test_chunk_codes_large_tensors_alone(void **state)
{
    (void)state;
    char bias_name[] = "bias", weight_name[] = "weight";
    ps_tensor tensors[] = {{.name = bias_name, .offset = 0, .count = 10},
                           {.name = weight_name, .offset = 16, .count = 8192}};
    ps_model_spec spec = {.n_tensors = 2, .tensors = tensors, .arena_count = 16 + 8192};
    ps_chunk chunk = {
        .offset = 0, .count = 16 + 4096, .first_tensor = 0, .last_tensor = 1};
    ps_chunk_codec c = {
        .codec = PS_CODEC_INT8, .topk = 0.01, .min_bytes = 4096, .spec = &spec};
    static float in[16 + 4096], out[16 + 4096];
    make(16 + 4096, 6, in);
    uint64_t bytes = ps_chunk_codec_bytes(&c, &chunk);
    assert_int_equal(bytes, 40 + 4096 + 4 * 16);
    uint8_t *payload = malloc(bytes);
    ps_chunk_codec_encode(&c, &chunk, in, NULL, 9, payload);
    assert_int_equal(ps_chunk_codec_decode(&c, &chunk, payload, bytes, out), PS_OK);
    assert_memory_equal(out, in, 40);
    for (int i = 10; i < 16; i++)
        assert_true(out[i] == 0.0f);
    for (int i = 16; i < 16 + 4096; i++)
        assert_true(fabsf(out[i] - in[i]) < 0.01f / 127 * 1.001f);
    assert_int_equal(ps_chunk_codec_decode(&c, &chunk, payload, bytes - 1, out),
                     PS_ERR_PROTOCOL);
    free(payload);
    ps_chunk small = {.offset = 0, .count = 16, .first_tensor = 0, .last_tensor = 0};
    assert_int_equal(ps_chunk_codec_of(&c, &small), PS_CODEC_NONE);
    assert_int_equal(ps_chunk_codec_bytes(&c, &small), 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp16_is_ieee),
        cmocka_unit_test(test_bf16_is_the_nearest),
        cmocka_unit_test(test_fp16_overflows_where_it_is_asked_to),
        cmocka_unit_test(test_int8_bound_and_bias),
        cmocka_unit_test(test_onebit_is_sign_times_mean),
        cmocka_unit_test(test_topk_keeps_the_largest),
        cmocka_unit_test(test_feedback_loses_nothing),
        cmocka_unit_test(test_not_finite_stays_so),
        cmocka_unit_test(test_wrong_sizes_and_indices_are_refused),
        cmocka_unit_test(test_chunk_codes_large_tensors_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
