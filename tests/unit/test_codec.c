/* Codecs: their error bounds in closed form, feedback that loses nothing, sizes,
 * refusals. */
#include <float.h>
#include <math.h>

#include "../support/half.h"
#include "check.h"
#include "chunk_codec.h"
#include "model_spec.h"
#include "rng.h"
#include "schedule.h"

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
    ps_codec_encode(codec, topk, n, in, NULL, (ps_codec_draw){draw, 0}, payload);
    assert_int_equal(payload[bytes], 0xA5);
    assert_ok(ps_codec_decode(codec, topk, n, payload, bytes, out));
    free(payload);
}

/* Every one of the 65,536 halves, and random floats, against the definition. */
TEST(test_fp16_is_ieee)
{
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t bits = (uint16_t)h;
        float got, want = (float)half_value(bits);
        assert_ok(ps_codec_decode(PS_CODEC_FP16, 1, 1, &bits, 2, &got));
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
        uint16_t got, want = half_nearest(x);
        ps_codec_encode(PS_CODEC_FP16, 1, 1, &x, NULL, (ps_codec_draw){0, 0}, &got);
        if (isnan(x))
            assert_true((got & 0x7FFF) > 0x7C00);
        else if (isfinite(x) && (want & 0x7FFF) == 0x7C00)
            assert_int_equal(got & 0x7FFF, 0x7BFF); // kept at the largest number
        else
            assert_int_equal(got, want);
    }
}

/* All 65,536 bfloat16, and random floats against the two that enclose them. */
TEST(test_bf16_is_the_nearest)
{
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t bits = (uint16_t)h, back;
        float x;
        assert_ok(ps_codec_decode(PS_CODEC_BF16, 1, 1, &bits, 2, &x));
        assert_true(isnan(x) == ((h & 0x7FFF) > 0x7F80));
        ps_codec_encode(PS_CODEC_BF16, 1, 1, &x, NULL, (ps_codec_draw){0, 0}, &back);
        assert_int_equal(back, isnan(x) ? h | 0x40 : h);
    }
    ps_mt19937 g;
    ps_mt19937_seed(&g, 3);
    for (int i = 0; i < 300000; i++) {
        // Half of them are ties: of the sixteen bits that are dropped, only the highest
        // is set.
        uint32_t b = ps_mt19937_u32(&g);
        if (i % 2) b = (b & 0xFFFF0000u) | 0x8000u;
        float x, got;
        memcpy(&x, &b, 4);
        if (isnan(x)) continue;
        uint16_t bits;
        ps_codec_encode(PS_CODEC_BF16, 1, 1, &x, NULL, (ps_codec_draw){0, 0}, &bits);
        assert_ok(ps_codec_decode(PS_CODEC_BF16, 1, 1, &bits, 2, &got));
        if (isinf(got)) { // from halfway between the largest and the next power of two
            assert_true(fabs((double)x) >= 0x1.FFp127);
            continue;
        }
        double exponent = ldexp(1.0, (bits >> 7 & 0xFF ? bits >> 7 & 0xFF : 1) - 127 - 7);
        double error = fabs((double)x - (double)got);
        assert_true(error <= exponent / 2);
        if (error == exponent / 2) assert_int_equal(bits & 1, 0);
    }
}

/* Under a loss scale the shards have to see which gradients fp16 cannot hold. */
TEST(test_fp16_overflows_where_it_is_asked_to)
{
    const char *sets[] = {"model.input=[4]", "model.layers=[{linear: {name: l, out: 1}}]",
                          "model.loss=mse", "exchange.codec=fp16",
                          "exchange.codec_min=0"};
    ps_config cfg;
    ps_model_spec spec;
    ps_plan plan;
    ps_chunk_codec c;
    assert_ok(ps_config_load(&cfg, NULL, sets, 5));
    assert_ok(ps_model_spec_init(&spec, &cfg));
    assert_ok(ps_plan_init(&plan, &spec.table, (ps_chunk_size){0}, 1));
    ps_chunk_codec_init(&c, &cfg, &spec.table);
    const ps_chunk *chunk = &plan.chunks[plan.n_chunks - 1];
    float values[64] = {65504, -65519, 65520, -1e9f}, out[64];
    uint8_t payload[256];
    uint64_t bytes = ps_chunk_codec_bytes(&c, chunk, PS_CODEC_FP16);
    assert_true(chunk->count <= 64 && bytes <= sizeof payload);
    for (int overflow = 0; overflow < 2; overflow++) {
        c.overflow = overflow;
        ps_chunk_codec_encode(&c, chunk, PS_CODEC_FP16, values, NULL, 0, payload);
        assert_ok(ps_chunk_codec_decode(&c, chunk, PS_CODEC_FP16, payload, bytes, out));
        assert_true(out[0] == 65504 && out[1] == -65504);
        assert_true(out[2] == (overflow ? INFINITY : 65504));
        assert_true(out[3] == (overflow ? -INFINITY : -65504));
    }
    ps_plan_fini(&plan);
    ps_model_spec_fini(&spec);
    ps_config_fini(&cfg);
}

/* |error| < scale, without bias: the mean over many draws comes near the value. */
TEST(test_int8_bound_and_bias)
{
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

/* Numbers become 0 if the inverse of their scale would be infinite. The largest ones
 * stay finite. */
TEST(test_int8_of_extreme_numbers)
{
    static const float sizes[] = {1e-45f, 1e-40f, FLT_MIN, 3e-37f,
                                  1e-36f, 2e-36f, FLT_MAX};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        float in[300], out[300];
        for (int i = 0; i < 300; i++)
            in[i] = i % 3 ? sizes[k] / (float)(i % 3) : 0;
        round_trip(PS_CODEC_INT8, 1, 300, in, k, out);
        for (int i = 0; i < 300; i++)
            assert_true(sizes[k] < 127 * FLT_MIN
                            ? out[i] == 0
                            : fabsf(out[i] - in[i]) <= sizes[k] / 126);
    }
}

/* Each number becomes the nearest of 15 between -max|v| and max|v| of its block. max|v|
 * travels with eight bits of its mantissa. */
TEST(test_int4_rounds_to_the_nearest)
{
    static float in[N], out[N];
    make(N, 1, in);
    round_trip(PS_CODEC_INT4, 1, N, in, 0, out);
    for (int i = 0; i < N; i++) {
        const int begin = i / 64 * 64, end = begin + 64 < N ? begin + 64 : N;
        float most = 0;
        for (int j = begin; j < end; j++)
            most = fmaxf(most, fabsf(in[j]));
        assert_true(fabsf(out[i] - in[i]) <= most / 14.0f * 1.0001f);
        if (fabsf(in[i]) < most / 15) assert_true(out[i] == 0);
    }
    for (int i = 0; i < 100; i++)
        in[i] = i % 2 ? 1e-40f : -1e-44f; // the scale has no inverse
    round_trip(PS_CODEC_INT4, 1, 100, in, 0, out);
    for (int i = 0; i < 100; i++)
        assert_true(out[i] == 0);
}

/* Returns the decoded value of a group's sent elements; 0 when none was sent. */
static double onebit_magnitude(int n, const float *out)
{
    double a = 0;
    for (int i = 0; i < n; i++)
        a = fmax(a, fabs(out[i]));
    return a;
}

/* Each element of a group of 16 becomes a, 0 or -a, whichever is nearest. a is 5/8 of the
 * group's largest element, rounded to half powers of two. Groups far below the block's
 * largest element are not sent. */
TEST(test_onebit_is_the_nearest_of_three)
{
    static float in[N], out[N];
    make(N, 2, in);
    for (int i = 0; i < N; i++) // groups of very different magnitude
        in[i] *= exp2f((float)(i / 16 % 7) - 6);
    round_trip(PS_CODEC_ONEBIT, 1, N, in, 0, out);
    for (int begin = 0; begin < N; begin += 16) {
        const int n = begin + 16 < N ? 16 : N - begin;
        const double a = onebit_magnitude(n, out + begin);
        const double largest = onebit_magnitude(n, in + begin);
        assert_true(a / largest > 0.5 && a / largest < 0.79);
        for (int j = begin; j < begin + n; j++) {
            assert_true(out[j] == 0 || fabs(out[j]) == a);
            if (out[j] != 0) assert_int_equal(signbit(out[j]) != 0, signbit(in[j]) != 0);
            if (fabs(in[j]) > 0.601 * a) assert_true(out[j] != 0);
            if (fabs(in[j]) < 0.599 * a) assert_true(out[j] == 0);
        }
    }
}

/* A group a thousandth as large as its block's largest element is not sent. What is sent
 * brings the residual of each group nearer to 0, as feedback requires. */
TEST(test_onebit_of_uneven_groups)
{
    float in[320], out[320];
    make(320, 9, in);
    for (int i = 0; i < 320; i++)
        in[i] = (i % 16 ? in[i] : 0.01f) * exp2f(-(float)(i / 16) / 2);
    round_trip(PS_CODEC_ONEBIT, 1, 320, in, 0, out);
    for (int begin = 0; begin < 320; begin += 16) {
        double left = 0, whole = 0;
        for (int j = begin; j < begin + 16; j++) {
            left += (in[j] - out[j]) * (in[j] - out[j]);
            whole += in[j] * in[j];
        }
        assert_true(left <= (begin < 256 ? 0.4 : 1) * whole);
    }
    for (int i = 16; i < 320; i++)
        in[i] *= 1e-3f;
    round_trip(PS_CODEC_ONEBIT, 1, 320, in, 0, out);
    assert_true(onebit_magnitude(16, out) > 0);
    assert_true(onebit_magnitude(320 - 32, out + 32) == 0);
}

/* The best three values for a uniform density on [-1, 1] are -2/3, 0 and 2/3: the squared
 * error is then 1/27, a ninth of the variance (Max 1960). The codec knows only the
 * largest element, so its bound is wider. */
TEST(test_onebit_of_uniform_numbers)
{
    enum { MANY = 320 * 300 };
    static float in[MANY], out[MANY];
    ps_mt19937 g;
    ps_mt19937_seed(&g, 8);
    ps_uniform(&g, -1.0f, 1.0f, 0, MANY, in);
    round_trip(PS_CODEC_ONEBIT, 1, MANY, in, 0, out);
    double error = 0, whole = 0;
    for (int i = 0; i < MANY; i++) {
        error += (in[i] - out[i]) * (in[i] - out[i]);
        whole += in[i] * in[i];
    }
    if (!(error / whole < 1.25 / 9)) fail_msg("%g of the variance", error / whole);
}

/* If all elements are equal, all are sent. Zeros decode to zeros. */
TEST(test_onebit_of_equal_numbers)
{
    float in[700], out[700];
    for (int i = 0; i < 700; i++)
        in[i] = i < 320 ? (i % 3 ? 0.3f : -0.3f) : 0.0f;
    round_trip(PS_CODEC_ONEBIT, 1, 700, in, 0, out);
    for (int i = 0; i < 700; i++)
        assert_true(fabsf(out[i] - 0.625f * in[i]) <= fabsf(in[i]) / 128);
}

static int descending(const void *a, const void *b)
{
    float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
    return x < y ? 1 : x > y ? -1 : 0;
}

/* In every block k elements are chosen, none smaller than one left out, and those of at
 * least an eighth of the largest arrive within a quarter of an octave. */
static void check_topk_block(int n, double share, const float *in, const float *out,
                             const uint8_t *index)
{
    const int k = (int)ceil(share * n);
    float sorted[256];
    bool chosen[256] = {false};
    memcpy(sorted, in, (size_t)n * sizeof *in);
    qsort(sorted, (size_t)n, sizeof *sorted, descending);
    for (int i = 0; i < k; i++) {
        assert_true(fabsf(in[index[i]]) >= fabsf(sorted[k - 1]));
        chosen[index[i]] = true;
    }
    for (int i = 0; i < n; i++) {
        double most = fabs(sorted[0]), a = fabs(in[i]), ratio = fabs(out[i]) / a;
        if (!chosen[i]) {
            assert_true(out[i] == 0 && fabs(in[i]) <= fabsf(sorted[k - 1]));
        } else if (a > 0.125 * most) {
            assert_true(ratio > 0.8408 && ratio < 1.1893);
            assert_int_equal(signbit(out[i]) != 0, signbit(in[i]) != 0);
        } else {
            assert_true(fabs(out[i]) < 0.1251 * most && a < most);
        }
    }
}

static void check_topk(const float *in)
{
    static float out[N];
    static uint8_t payload[4 * N];
    for (double share = 0.001; share <= 1; share *= 3) {
        uint64_t bytes = ps_codec_bytes(PS_CODEC_TOPK, N, share);
        ps_codec_encode(PS_CODEC_TOPK, share, N, in, NULL, (ps_codec_draw){0, 0},
                        payload);
        assert_ok(ps_codec_decode(PS_CODEC_TOPK, share, N, payload, bytes, out));
        const uint8_t *block = payload;
        for (int at = 0; at < N; at += 256) {
            int n = at + 256 < N ? 256 : N - at, k = (int)ceil(share * n);
            check_topk_block(n, share, in + at, out + at, block + 4);
            block += 4 + k + (k + 1) / 2;
        }
        assert_int_equal(block - payload, bytes);
    }
}

TEST(test_topk_keeps_the_largest)
{
    static float in[N];
    make(N, 4, in);
    check_topk(in);
    for (int i = 0; i < N; i += 3)
        in[i] = i % 2 ? 0.004f : -0.004f; // many are equally large
    check_topk(in);
    for (int i = 0; i < N; i++) // they differ only in float32's last bits
        in[i] = 0.75f + (float)(i * 7919 % 97) * 0x1p-24f;
    check_topk(in);
}

/* Decoding with addition has the bits of decoding and then adding. Some codecs have a
 * function of their own for it. */
TEST(test_adding_is_decoding_and_an_addition)
{
    const ps_codec codecs[] = {PS_CODEC_NONE, PS_CODEC_FP16, PS_CODEC_BF16,
                               PS_CODEC_INT8, PS_CODEC_INT4, PS_CODEC_ONEBIT,
                               PS_CODEC_TOPK};
    static float in[N], out[N], sum[N], expected[N];
    static uint8_t payload[4 * N];
    for (int c = 0; c < (int)(sizeof codecs / sizeof *codecs); c++) {
        const uint64_t bytes = ps_codec_bytes(codecs[c], N, 0.1);
        make(N, 7, in);
        make(N, 8, sum);
        ps_codec_encode(codecs[c], 0.1, N, in, NULL, (ps_codec_draw){1, 0}, payload);
        assert_ok(ps_codec_decode(codecs[c], 0.1, N, payload, bytes, out));
        for (int i = 0; i < N; i++)
            expected[i] = sum[i] + out[i];
        assert_ok(ps_codec_decode_add(codecs[c], 0.1, N, payload, bytes, sum));
        assert_memory_equal(sum, expected, sizeof sum);
    }
}

/* The sum of what was sent and what is kept equals the input: nothing is lost, only late.
 */
TEST(test_feedback_loses_nothing)
{
    const ps_codec codecs[] = {PS_CODEC_INT4, PS_CODEC_ONEBIT, PS_CODEC_TOPK};
    static float in[N], out[N], residual[N];
    static double sent[N], given[N];
    for (int c = 0; c < (int)(sizeof codecs / sizeof *codecs); c++) {
        memset(residual, 0, sizeof residual);
        memset(sent, 0, sizeof sent);
        memset(given, 0, sizeof given);
        uint64_t bytes = ps_codec_bytes(codecs[c], N, 0.01);
        uint8_t *payload = malloc(bytes);
        for (int step = 0; step < 50; step++) {
            make(N, 100 + (uint64_t)step, in);
            ps_codec_encode(codecs[c], 0.01, N, in, residual, (ps_codec_draw){0, 0},
                            payload);
            assert_ok(ps_codec_decode(codecs[c], 0.01, N, payload, bytes, out));
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

TEST(test_not_finite_stays_so)
{
    const ps_codec codecs[] = {PS_CODEC_FP16, PS_CODEC_BF16,   PS_CODEC_INT8,
                               PS_CODEC_INT4, PS_CODEC_ONEBIT, PS_CODEC_TOPK};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    static float in[N], out[N];
    for (int c = 0; c < (int)(sizeof codecs / sizeof *codecs); c++)
        for (int b = 0; b < 3; b++) {
            make(N, 5, in);
            in[4321] = bad[b];
            round_trip(codecs[c], 0.01, N, in, 0, out);
            assert_false(isfinite(out[4321]));
        }
}

TEST(test_wrong_sizes_and_indices_are_refused)
{
    float out[64], in[64] = {1};
    uint8_t payload[512];
    for (int c = PS_CODEC_FP16; c < PS_CODEC_IDLE; c++) {
        uint64_t bytes = ps_codec_bytes((ps_codec)c, 64, 0.1);
        ps_codec_encode((ps_codec)c, 0.1, 64, in, NULL, (ps_codec_draw){0, 0}, payload);
        assert_int_equal(ps_codec_decode((ps_codec)c, 0.1, 64, payload, bytes - 1, out),
                         PS_ERR_PROTOCOL);
        assert_int_equal(ps_codec_decode((ps_codec)c, 0.1, 64, payload, bytes + 1, out),
                         PS_ERR_PROTOCOL);
    }
    uint64_t bytes = ps_codec_bytes(PS_CODEC_TOPK, 64, 0.1); // 7 of 64
    ps_codec_encode(PS_CODEC_TOPK, 0.1, 64, in, NULL, (ps_codec_draw){0, 0}, payload);
    payload[4 + 6] = 64; // one past the end
    assert_int_equal(ps_codec_decode(PS_CODEC_TOPK, 0.1, 64, payload, bytes, out),
                     PS_ERR_PROTOCOL);
    memset(payload, 0, sizeof payload); // the same index twice
    assert_int_equal(ps_codec_decode(PS_CODEC_TOPK, 0.1, 64, payload, bytes, out),
                     PS_ERR_PROTOCOL);
    bytes = ps_codec_bytes(PS_CODEC_INT4, 63, 1);
    ps_codec_encode(PS_CODEC_INT4, 1, 63, in, NULL, (ps_codec_draw){0, 0}, payload);
    for (uint64_t i = 2; i < bytes; i++) { // 0 is below -7; the last byte has one number
        const uint8_t good = payload[i], bad[] = {good & 0xF0u, good & 0x0Fu};
        for (size_t b = 0; b < 2; b++) {
            payload[i] = bad[b];
            assert_int_equal(ps_codec_decode(PS_CODEC_INT4, 1, 63, payload, bytes, out),
                             PS_ERR_PROTOCOL);
        }
        payload[i] = good;
    }
    assert_ok(ps_codec_decode(PS_CODEC_INT4, 1, 63, payload, bytes, out));
    bytes = ps_codec_bytes(PS_CODEC_ONEBIT, 64, 1);
    payload[2] = 242; // five times the last digit
    assert_ok(ps_codec_decode(PS_CODEC_ONEBIT, 1, 64, payload, bytes, out));
    payload[2 + 12] = 243;
    assert_int_equal(ps_codec_decode(PS_CODEC_ONEBIT, 1, 64, payload, bytes, out),
                     PS_ERR_PROTOCOL);
}

/* A chunk of a small tensor, a gap and part of a large one. */
TEST(test_chunk_codes_large_tensors_alone)
{
    char bias_name[] = "bias", weight_name[] = "weight";
    ps_tensor tensors[] = {{.name = bias_name, .offset = 0, .count = 10},
                           {.name = weight_name, .offset = 16, .count = 8192}};
    ps_tensor_table table = {
        .n_tensors = 2, .tensors = tensors, .arena_count = 16 + 8192};
    ps_chunk chunk = {
        .offset = 0, .count = 16 + 4096, .first_tensor = 0, .last_tensor = 1};
    ps_chunk_codec c = {
        .codec = PS_CODEC_INT8, .topk = 0.01, .min_bytes = 4096, .table = &table};
    static float in[16 + 4096], out[16 + 4096];
    make(16 + 4096, 6, in);
    uint64_t bytes = ps_chunk_codec_bytes(&c, &chunk, PS_CODEC_INT8);
    assert_int_equal(bytes, 40 + 4096 + 4 * 16);
    uint8_t *payload = malloc(bytes);
    ps_chunk_codec_encode(&c, &chunk, PS_CODEC_INT8, in, NULL, 9, payload);
    assert_ok(ps_chunk_codec_decode(&c, &chunk, PS_CODEC_INT8, payload, bytes, out));
    assert_memory_equal(out, in, 40);
    for (int i = 10; i < 16; i++)
        assert_true(out[i] == 0.0f);
    for (int i = 16; i < 16 + 4096; i++)
        assert_true(fabsf(out[i] - in[i]) < 0.01f / 127 * 1.001f);
    assert_int_equal(
        ps_chunk_codec_decode(&c, &chunk, PS_CODEC_INT8, payload, bytes - 1, out),
        PS_ERR_PROTOCOL);
    free(payload);
    ps_chunk small = {.offset = 0, .count = 16, .first_tensor = 0, .last_tensor = 0};
    assert_int_equal(ps_chunk_codec_of(&c, &small, PS_CODED_GRADIENT, 0), PS_CODEC_NONE);
    assert_int_equal(ps_chunk_codec_bytes(&c, &small, PS_CODEC_NONE), 64);
}

typedef struct phases {
    ps_codec codec, fine, gradient, change; // fine: at the beginning and at the end
} phases;

static void check_phases(const phases *p, uint64_t total_steps)
{
    char name[] = "weight";
    ps_tensor tensor = {.name = name, .count = 8192};
    ps_tensor_table table = {.n_tensors = 1, .tensors = &tensor, .arena_count = 8192};
    ps_chunk chunk = {.count = 8192};
    ps_chunk_codec c = {
        .codec = p->codec, .topk = 0.125, .warmup = 3, .cooldown = 2, .table = &table};
    ps_chunk_codec_end(&c, total_steps);
    for (uint64_t step = 0; step < 9; step++) {
        const bool fine = step < 3 || (total_steps == 9 && step >= 7);
        assert_int_equal(ps_chunk_codec_of(&c, &chunk, PS_CODED_GRADIENT, step),
                         fine ? p->fine : p->gradient);
        assert_int_equal(ps_chunk_codec_of(&c, &chunk, PS_CODED_CHANGE, step),
                         fine ? p->fine : p->change);
        assert_int_equal(ps_chunk_codec_keeps(&c, step),
                         p->gradient != p->fine && step >= 3);
    }
    const uint64_t fine = ps_chunk_codec_bytes(&c, &chunk, p->fine);
    const uint64_t coarse = ps_chunk_codec_bytes(&c, &chunk, p->gradient);
    assert_int_equal(ps_chunk_codec_most_bytes(&c, &chunk, PS_CODED_CHANGE), fine);
    c.warmup = 0;
    assert_int_equal(ps_chunk_codec_most_bytes(&c, &chunk, PS_CODED_GRADIENT),
                     total_steps == 9 ? fine : coarse);
    c.cooldown = 0;
    assert_int_equal(ps_chunk_codec_most_bytes(&c, &chunk, PS_CODED_GRADIENT), coarse);
}

/* Which codec each step uses: coarse codecs have int8 in the first steps and, where the
 * job's end is known, in the last ones. */
TEST(test_warmup_and_cooldown)
{
    static const phases cases[] = {
        {PS_CODEC_NONE, PS_CODEC_NONE, PS_CODEC_NONE, PS_CODEC_NONE},
        {PS_CODEC_FP16, PS_CODEC_FP16, PS_CODEC_FP16, PS_CODEC_FP16},
        {PS_CODEC_INT8, PS_CODEC_INT8, PS_CODEC_INT8, PS_CODEC_INT8},
        {PS_CODEC_INT4, PS_CODEC_INT8, PS_CODEC_INT4, PS_CODEC_INT4},
        {PS_CODEC_ONEBIT, PS_CODEC_INT8, PS_CODEC_ONEBIT, PS_CODEC_ONEBIT},
        {PS_CODEC_TOPK, PS_CODEC_INT8, PS_CODEC_TOPK, PS_CODEC_ONEBIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_phases(&cases[i], PS_STEPS_UNKNOWN);
        check_phases(&cases[i], 9);
    }
}

static void assert_phases(const char *codec, uint64_t total_steps, uint64_t warmup,
                          uint64_t cooldown)
{
    ps_config cfg;
    ps_chunk_codec c;
    assert_ok(ps_config_load(&cfg, NULL, &codec, 1));
    ps_chunk_codec_init(&c, &cfg, NULL);
    ps_chunk_codec_end(&c, total_steps);
    assert_int_equal(c.warmup, warmup);
    assert_int_equal(c.cooldown, cooldown);
    ps_config_fini(&cfg);
}

/* By default onebit's warmup and cooldown are shorter in a shorter job. */
TEST(test_automatic_phases)
{
    assert_phases("exchange.codec=onebit", 64, 8, 8);
    assert_phases("exchange.codec=onebit", 7, 0, 0);
    assert_phases("exchange.codec=onebit", 160, 20, 16);
    assert_phases("exchange.codec=onebit", 10000, 32, 16);
    assert_phases("exchange.codec=onebit", PS_STEPS_UNKNOWN, 32, 16);
    assert_phases("exchange.codec=topk", 64, 32, 16);
    assert_phases("exchange.codec=int4", 64, 0, 0);
}

/* The sizes that the coarse codecs are made for. */
TEST(test_coarse_codecs_are_small)
{
    const uint64_t n = 1179648; // BasicNet's largest tensor
    assert_true(ps_codec_bytes(PS_CODEC_ONEBIT, n, 1) * 16 < 4 * n);
    assert_true(ps_codec_bytes(PS_CODEC_TOPK, n, 0.125) * 19 < 4 * n);
    assert_true(ps_codec_bytes(PS_CODEC_INT4, n, 1) * 7.5 < 4.0 * (double)n);
}
