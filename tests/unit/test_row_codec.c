/* Rows as they travel: their bytes, how far they are from the rows, and what is refused.
 */
#include "row_codec.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "codec.h"
#include "rng.h"

enum { ROWS = 5, DIM_MOST = 1025 };

static const uint64_t ids[ROWS] = {3, 1, UINT64_MAX, 7, 0};
static float rows[ROWS * DIM_MOST], sent[ROWS * DIM_MOST], got[ROWS * DIM_MOST];

static ps_row_spec table(ps_codec codec, uint32_t dim)
{
    return (ps_row_spec){.name = "user", .number = 2, .dim = dim, .codec = codec};
}

/* Of very different sizes, row by row; the last one is zero. */
static void draw_rows(uint32_t dim)
{
    static const float sizes[ROWS] = {1, 1e-9f, 3e20f, 0.01f, 0};
    ps_mt19937 rng;
    ps_mt19937_seed(&rng, dim);
    for (uint32_t i = 0; i < ROWS * dim; i++)
        rows[i] = sizes[i / dim] * ((float)ps_mt19937_u32(&rng) * 0x1p-31f - 1);
}

static void travel(const ps_row_spec *spec, bool gradients, uint64_t key)
{
    const uint64_t *of = gradients ? ids : NULL;
    const size_t bytes = (size_t)ROWS * spec->dim * sizeof *rows;
    memcpy(sent, rows, bytes);
    ps_row_codec_encode(spec, ROWS, of, key, sent);
    assert_ok(ps_row_codec_decode(spec, ROWS, ids, sent, got));
    memcpy(sent, rows, bytes);
    ps_row_codec_round(spec, ROWS, of, key, sent);
    assert_memory_equal(sent, got, bytes); // as through an arena
}

static float largest(const float *row, uint32_t dim)
{
    float most = 0;
    for (uint32_t i = 0; i < dim; i++)
        most = fmaxf(most, fabsf(row[i]));
    return most;
}

TEST(bytes_and_distances)
{
    static const struct {
        uint32_t dim, fp16, int8; // bytes of a row
    } cases[] = {
        {1, 4, 4},     {2, 6, 6},       {3, 8, 7},           {16, 34, 20},
        {64, 130, 68}, {256, 514, 260}, {257, 516, 257 + 8}, {1025, 2054, 1025 + 20}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const uint32_t dim = cases[c].dim;
        draw_rows(dim);
        for (int gradients = 0; gradients < 2; gradients++) {
            ps_row_spec spec = table(PS_CODEC_FP16, dim);
            assert_int_equal(ps_row_codec_row_bytes(&spec), cases[c].fp16);
            assert_int_equal(ps_row_codec_size(&spec, ROWS),
                             (ROWS * cases[c].fp16 + 3) / 4);
            travel(&spec, gradients, 9);
            for (uint32_t i = 0; i < ROWS * dim; i++) { // 11 bits, 2^-24 of small ones
                const float most = largest(rows + i / dim * dim, dim);
                assert_true(fabsf(got[i] - rows[i]) <=
                            fmaxf(fabsf(rows[i]) * 0x1p-11f, most * 0x1p-38f));
            }
            spec.codec = PS_CODEC_INT8;
            assert_int_equal(ps_row_codec_row_bytes(&spec), cases[c].int8);
            assert_int_equal(ps_row_codec_size(&spec, ROWS),
                             (ROWS * cases[c].int8 + 3) / 4);
            travel(&spec, gradients, 9);
            for (uint32_t i = 0; i < ROWS * dim; i++) {
                const float scale = largest(rows + i / dim * dim, dim) / 127;
                assert_true(fabsf(got[i] - rows[i]) <=
                            scale * (gradients ? 1.001f : 0.501f));
            }
        }
    }
}

/* Over many steps the mean is the gradient: its error is that of independent draws, at
 * most scale / 2 over the root of their number. */
TEST(gradients_are_right_on_average)
{
    enum { DIM = 16, STEPS = 4000 };
    static double sums[ROWS * DIM];
    const ps_row_spec spec = table(PS_CODEC_INT8, DIM);
    draw_rows(DIM);
    for (uint64_t step = 0; step < STEPS; step++) {
        travel(&spec, true, ps_codec_draw_key(1, step));
        for (int i = 0; i < ROWS * DIM; i++)
            sums[i] += got[i];
    }
    for (int i = 0; i < ROWS * DIM; i++) {
        const double scale = largest(rows + i / DIM * DIM, DIM) / 127;
        assert_true(fabs(sums[i] / STEPS - rows[i]) <= 4.5 * scale / 2 / sqrt(STEPS));
    }
}

/* A row's bits do not depend on what it travels with. */
TEST(rows_by_themselves)
{
    enum { DIM = 16 };
    static float one[DIM];
    const ps_row_spec spec = table(PS_CODEC_INT8, DIM);
    draw_rows(DIM);
    travel(&spec, true, 5);
    for (int i = 0; i < ROWS; i++) {
        memcpy(one, rows + i * DIM, sizeof one);
        ps_row_codec_round(&spec, 1, &ids[i], 5, one);
        assert_memory_equal(one, got + i * DIM, sizeof one);
    }
    ps_row_codec_round(&spec, 1, &ids[0], 6, memcpy(one, rows, sizeof one));
    assert_memory_not_equal(one, got, sizeof one); // another step or rank
}

TEST(what_no_sender_encodes)
{
    static const struct {
        ps_codec codec;
        uint32_t bits; // of the second row's scale
        ps_err err;
        const char *says;
    } cases[] = {
        {PS_CODEC_INT8, 0x7FC00000, PS_ERR_NUMERIC,
         "'user': the row or gradient of id 1 is"},
        {PS_CODEC_INT8, 0x7F800000, PS_ERR_PROTOCOL, "table 'user', id 1, with a scale"},
        {PS_CODEC_INT8, 0xBF800000, PS_ERR_PROTOCOL, "that int8 has not"},
        {PS_CODEC_INT8, 0x00000001, PS_ERR_PROTOCOL, "that int8 has not"},
        {PS_CODEC_FP16, 0x7FC0, PS_ERR_PROTOCOL, "that fp16 has not"},
        {PS_CODEC_FP16, 0xBF80, PS_ERR_PROTOCOL, "that fp16 has not"},
        {PS_CODEC_FP16, 0x3FC0, PS_ERR_PROTOCOL, "that fp16 has not"},
        {PS_CODEC_FP16, 0, PS_ERR_PROTOCOL, "that fp16 has not"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const ps_row_spec spec = table(cases[c].codec, 16);
        draw_rows(16);
        ps_row_codec_encode(&spec, ROWS, NULL, 0, rows);
        memcpy((uint8_t *)rows + ps_row_codec_row_bytes(&spec), &cases[c].bits,
               spec.codec == PS_CODEC_INT8 ? 4 : 2);
        assert_error(ps_row_codec_decode(&spec, ROWS, ids, rows, got), cases[c].err,
                     cases[c].says);
    }
}

/* A number that is not finite is found at the other end. */
TEST(what_is_not_finite)
{
    for (int k = 0; k < 2; k++) {
        ps_row_spec spec = table(PS_CODEC_FP16, 16);
        draw_rows(16);
        rows[3] = k ? NAN : -INFINITY;
        memcpy(sent, rows, sizeof *rows * 16);
        ps_row_codec_encode(&spec, 1, ids, 0, sent);
        assert_ok(ps_row_codec_decode(&spec, 1, ids, sent, got));
        assert_false(isfinite(got[3]));
        spec.codec = PS_CODEC_INT8;
        ps_row_codec_encode(&spec, 1, ids, 0, rows);
        assert_error(ps_row_codec_decode(&spec, 1, ids, rows, got), PS_ERR_NUMERIC,
                     "id 3");
    }
}
