/* Codecs, optimizer steps and sums give the same bits on processors with vectors of any
 * length. */
#include "cpu_level.h"

#include <math.h>

#include "../support/levels.h"
#include "check.h"
#include "codec.h"
#include "finite.h"
#include "floats.h"
#include "memory_sum.h"
#include "nontemporal_copy.h"
#include "optimizer.h"
#include "optimizer_loops.h"
#include "row_codec.h"
#include "row_loops.h"
#include "row_pool.h"
#include "row_set.h"

enum { MOST = 5003 };

static const uint64_t counts[] = {1, 7, 15, 64, 255, 256, 257, 319, 320, 1000, MOST};
enum { N_COUNTS = sizeof counts / sizeof counts[0] };

static void put_codec(output *o, ps_codec codec, uint64_t n)
{
    static float in[MOST], kept[MOST], told[MOST], out[MOST];
    static uint8_t payload[5 * MOST];
    const uint64_t bytes = ps_codec_bytes(codec, n, 0.1);
    assert_true(bytes <= sizeof payload);
    fill(n, n, in);
    fill(n + 1, n, kept);
    fill(n + 2, n, told);
    fill(n + 3, n, out);
    ps_codec_encode(codec, 0.1, n, in, NULL, (ps_codec_draw){77, 5}, payload);
    put(o, payload, bytes);
    assert_ok(ps_codec_decode_add(codec, 0.1, n, payload, bytes, out));
    put(o, out, n * sizeof *out);
    ps_codec_encode(codec, 0.1, n, in, kept, (ps_codec_draw){78, 5}, payload);
    put(o, payload, bytes);
    put(o, kept, n * sizeof *kept);
    assert_ok(ps_codec_decode(codec, 0.1, n, payload, bytes, out));
    put(o, out, n * sizeof *out);
    ps_codec_encode_change(codec, 0.1, n, in, told, (ps_codec_draw){79, 5}, payload);
    put(o, payload, bytes);
    put(o, told, n * sizeof *told);
}

static void compute_codecs(output *o)
{
    static const ps_codec all[] = {PS_CODEC_NONE, PS_CODEC_FP16, PS_CODEC_BF16,
                                   PS_CODEC_INT8, PS_CODEC_INT4, PS_CODEC_ONEBIT,
                                   PS_CODEC_TOPK};
    for (size_t c = 0; c < sizeof all / sizeof all[0]; c++) {
        for (int i = 0; i < N_COUNTS; i++)
            put_codec(o, all[c], counts[i]);
    }
    static float in[MOST];
    static uint16_t half[MOST];
    fill(5, MOST, in);
    ps_codec_encode_fp16_overflow(MOST, in, half);
    put(o, half, sizeof half);
}

TEST(codecs)
{
    same_at_every_level(compute_codecs);
}

/* Encodes numbers with an infinity and a NaN. It does not add the decoded numbers up: the
 * bits of a sum of two NaNs depend on the order of the operands. */
static void compute_infinite(output *o)
{
    static const ps_codec all[] = {PS_CODEC_FP16, PS_CODEC_BF16, PS_CODEC_INT8,
                                   PS_CODEC_INT4};
    static float in[MOST];
    static uint8_t payload[5 * MOST];
    for (size_t c = 0; c < sizeof all / sizeof all[0]; c++) {
        fill(c, MOST, in);
        in[700] = INFINITY;
        in[1801] = -NAN;
        ps_codec_encode(all[c], 1, MOST, in, NULL, (ps_codec_draw){0, 0}, payload);
        put(o, payload, ps_codec_bytes(all[c], MOST, 1));
    }
}

TEST(infinite_numbers)
{
    same_at_every_level(compute_infinite);
}

static void put_steps(output *o, const ps_optimizer *opt, uint64_t n)
{
    static float param[MOST], grad[MOST], first[MOST], second[MOST], third[MOST];
    float *const states[] = {first, second, third};
    memset(first, 0, sizeof first);
    memset(second, 0, sizeof second);
    memset(third, 0, sizeof third);
    fill(1, n, param);
    for (uint64_t t = 1; t <= 3; t++) {
        const ps_optimizer_step step = {
            .lr = 1e-3, .t = t, .grad_scale = t == 2 ? 0.3 : 1};
        fill(t + 1, n, grad);
        ps_optimizer_apply(opt, &step, opt->weight_decay, n, param, grad, states);
        put(o, param, n * sizeof *param);
        put(o, first, n * sizeof *first);
        put(o, second, n * sizeof *second);
        put(o, third, n * sizeof *third);
    }
}

static void put_lamb(output *o, uint64_t n)
{
    static float param[MOST], grad[MOST], mean[MOST], square[MOST], average[MOST];
    const ps_optimizer opt = {
        .kind = PS_OPTIMIZER_LAMB, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .ema = 0.9};
    const ps_optimizer_step step = {.lr = 1e-3, .t = 2, .grad_scale = 0.3};
    const ps_optimizer_scalars k = ps_optimizer_scalars_of(&opt, &step, 1e-2);
    float *const arrays[] = {param, grad, mean, square, average};
    for (uint64_t i = 0; i < 5; i++)
        fill(i + 1, n, arrays[i]);
    for (uint64_t i = 0; i < n; i++)
        square[i] *= square[i];
    ps_lamb_loop_update(&k, n, param, grad, mean, square);
    ps_lamb_loop_apply(&k, 0.7f, n, param, grad, average);
    for (int i = 0; i < 5; i++)
        put(o, arrays[i], n * sizeof *param);
}

static void compute_lamb(output *o)
{
    for (int i = 0; i < N_COUNTS; i++)
        put_lamb(o, counts[i]);
}

#define KIND(of, states, ...)                                                            \
    {                                                                                    \
        .kind = PS_OPTIMIZER_##of, .n_states = (states), __VA_ARGS__                     \
    }

static void compute_steps(output *o)
{
    const ps_optimizer kinds[] = {
        KIND(SGD, 0, .weight_decay = 1e-4),
        KIND(SGD, 1, .momentum = 0.9, .dampening = 0.1),
        KIND(SGD, 1, .momentum = 0.9, .nesterov = true),
        KIND(ADAM, 2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2),
        KIND(ADAMW, 2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2),
        KIND(ADAMW, 2, .beta1 = 0.3, .beta2 = 0.99, .eps = 1e-8),
        KIND(ADAM, 2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .pytorch1 = true),
        KIND(RMSPROP, 1, .beta2 = 0.99, .eps = 1e-8),
        KIND(RMSPROP, 3, .beta2 = 0.9, .eps = 1e-2, .weight_decay = 1e-2, .momentum = 0.9,
             .centered = true),
        KIND(ADAGRAD, 1, .eps = 1e-10, .lr_decay = 0.1, .initial_accumulator = 0.1),
        KIND(LION, 1, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 1e-2),
    };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int i = 0; i < N_COUNTS; i++)
            put_steps(o, &kinds[k], counts[i]);
    }
}

TEST(optimizer_steps)
{
    same_at_every_level(compute_steps);
    same_at_every_level(compute_lamb);
}

static void compute_sums(output *o)
{
    static float a[MOST], b[MOST], out[MOST + 16];
    fill(1, MOST, a);
    fill(2, MOST, b);
    for (int i = 0; i < N_COUNTS; i++) {
        const uint64_t n = counts[i];
        const double squares = ps_floats_square_sum(a, n);
        put(o, &squares, sizeof squares);
        ps_floats_sum(out, a, b, n);
        ps_floats_add(out, b, n);
        ps_floats_scale(out, 0.7f, n);
        ps_floats_compensate(out, out, a, b, 0.3f, n);
        put(o, out, n * sizeof *out);
        for (int shift = 0; shift < 16; shift += 5) {
            ps_nontemporal_copy(out + shift, a, n);
            ps_nontemporal_copy_done();
            put(o, out + shift, n * sizeof *out);
            ps_nontemporal_scaled_copy(out + shift, a, 0.7f, n);
            ps_nontemporal_copy_done();
            for (uint64_t at = 0; at < n; at++)
                assert_true(out[shift + at] == a[at] * 0.7f);
        }
        for (uint64_t at = 0; at < n; at += 13) {
            const float kept = b[at];
            b[at] = at % 2 ? NAN : -INFINITY;
            const bool finite = ps_finite_all(b, n);
            const uint32_t memory = ps_memory_sum(b, n * sizeof *b - 1);
            put(o, &memory, sizeof memory);
            b[at] = kept;
            put(o, &finite, sizeof finite);
        }
    }
}

TEST(sums_and_copies)
{
    same_at_every_level(compute_sums);
}

enum { ROWS = 9, ROW_DIM = 65, ROW_WIDTH = 3 * ROW_DIM };

/* Without what becomes infinite: a NaN's bits depend on the order of the operands. */
static void fill_rows(uint64_t seed, uint64_t n, float *out)
{
    fill(seed, n, out);
    for (uint64_t i = 0; i < n; i++)
        if (fabsf(out[i]) > 1e9f) out[i] = 1;
}

static void put_row_steps(output *o, uint32_t dim)
{
    static float rows[ROWS * ROW_WIDTH], grads[ROWS * ROW_DIM];
    static const uint32_t positions[ROWS] = {0, 1, 2, 1, 4, 0, 6, 7, 3};
    for (int k = 0; k <= PS_ROW_ROWWISE_ADAGRAD; k++) {
        const ps_row_scalars scalars = {.optimizer = (ps_row_optimizer)k,
                                        .lr_neg = -0.3f,
                                        .eps = 1e-8f,
                                        .lerp1 = 0.1f,
                                        .lerp2 = 0.001f};
        float *at[ROWS];
        fill_rows(1, ROWS * ROW_WIDTH, rows);
        fill_rows(2, ROWS * ROW_DIM, grads);
        for (int r = 0; r < ROWS; r++) {
            at[r] = r == 3 ? NULL : rows + r * ROW_WIDTH;
            for (uint32_t i = dim; i < ROW_WIDTH; i++)
                rows[(uint32_t)r * ROW_WIDTH + i] =
                    fabsf(rows[(uint32_t)r * ROW_WIDTH + i]);
        }
        ps_row_loops_apply(&scalars, dim, ROWS, at, grads);
        put(o, rows, sizeof rows);
        ps_row_loops_gather(dim, ROWS, (const float *const *)at, grads);
        uint32_t filled = 7; // row 7 is set
        ps_row_loops_add(dim, ROWS, positions, rows, grads, &filled);
        put(o, grads, ROWS * dim * sizeof *grads);
    }
}

static void put_pooling(output *o, uint32_t dim)
{
    static float rows[ROWS * ROW_DIM], out[ROWS * ROW_DIM], weights[ROWS];
    static const uint32_t row[ROWS] = {3, 1, 1, PS_ROW_PADDING, 0, 2, 8, 7, 3};
    static const uint32_t place[] = {3, 1, 0, PS_ROW_PADDING}; // the others hold something
    static const int64_t offsets[] = {0, 3, 3, 4};
    for (int k = 0; k < 3; k++) {
        const ps_row_bags bags = {.mode = k == 1 ? PS_ROW_MEAN : PS_ROW_SUM,
                                  .dim = dim,
                                  .n_lookups = ROWS,
                                  .n_bags = 4,
                                  .offsets = offsets,
                                  .row = row,
                                  .weights = k == 2 ? weights : NULL};
        fill_rows(3, ROWS * ROW_DIM, rows);
        fill_rows(4, ROWS, weights);
        ps_row_pool_forward(&bags, rows, out);
        put(o, out, 4 * dim * sizeof *out);
        ps_row_pool_weights_backward(&bags, rows, out, weights);
        put(o, weights, sizeof weights);
        ps_row_pool_backward(&bags, out, place, rows);
        put(o, rows, ROWS * dim * sizeof *rows);
    }
}

static void put_coded_rows(output *o, uint32_t dim, ps_codec codec)
{
    static float rows[ROWS * ROW_DIM], out[ROWS * ROW_DIM];
    static const uint64_t ids[ROWS] = {5, 4, 3, 9};
    const ps_row_spec spec = {.dim = dim, .codec = codec};
    for (int k = 0; k < 2; k++) {
        fill_rows(5, ROWS * ROW_DIM, rows);
        ps_row_codec_encode(&spec, ROWS, k ? ids : NULL, 7, rows);
        put(o, rows, ps_row_codec_size(&spec, ROWS) * sizeof *rows);
        assert_ok(ps_row_codec_decode(&spec, ROWS, ids, rows, out));
        put(o, out, ROWS * dim * sizeof *out);
    }
}

static void compute_rows(output *o)
{
    static const uint32_t dims[] = {1, 7, 8, 16, 33, 64, ROW_DIM};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        put_row_steps(o, dims[i]);
        put_pooling(o, dims[i]);
        put_coded_rows(o, dims[i], PS_CODEC_FP16);
        put_coded_rows(o, dims[i], PS_CODEC_INT8);
    }
}

TEST(rows_of_tables)
{
    same_at_every_level(compute_rows);
}

TEST(levels_have_names)
{
    const ps_cpu_level best = ps_cpu_level_find();
    assert_ok(ps_cpu_level_use("plain"));
    assert_error(ps_cpu_level_use("sse9"), PS_ERR_ARG, "sse9");
    assert_int_equal(ps_cpu_level_find(), PS_CPU_PLAIN);
    assert_ok(ps_cpu_level_use("auto"));
    assert_int_equal(ps_cpu_level_find(), best);
}
