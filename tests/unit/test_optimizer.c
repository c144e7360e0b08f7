/* Steps from PyTorch's own weights, gradients and state, within 2 ulp of PyTorch's
 * results.
 */
#include "optimizer.h"

#include <math.h>

#include "../support/python.h"
#include "../vectors/optimizer_vectors.h"
#include "check.h"

enum { MAX_N = 512, RECORD = 16, N_VECTORS = sizeof vectors / sizeof vectors[0] };

static ps_optimizer optimizer_of(const double record[RECORD])
{
    ps_optimizer opt = {.kind = (ps_optimizer_kind)record[0],
                        .lr = record[1],
                        .momentum = record[2],
                        .dampening = record[3],
                        .nesterov = record[4] != 0,
                        .weight_decay = record[5],
                        .beta1 = record[6],
                        .beta2 = record[7],
                        .eps = record[8],
                        .pytorch1 = record[11] < 2,
                        .centered = record[12] != 0,
                        .lr_decay = record[13],
                        .initial_accumulator = record[14],
                        .ema = record[15]};
    static const int n_states[] = {[PS_OPTIMIZER_ADAM] = 2,
                                   [PS_OPTIMIZER_ADAMW] = 2,
                                   [PS_OPTIMIZER_RMSPROP] = 1,
                                   [PS_OPTIMIZER_ADAGRAD] = 1,
                                   [PS_OPTIMIZER_LION] = 1};
    opt.n_states =
        n_states[opt.kind] + (opt.momentum != 0) + opt.centered + (opt.ema > 0);
    return opt;
}

/* Distance in units in the last place of the larger of the reference and scale. */
static double ulps(float got, float reference, float scale)
{
    float size = fmaxf(fabsf(reference), fabsf(scale));
    float unit = nextafterf(size, INFINITY) - size;
    return fabs((double)got - (double)reference) / (double)unit;
}

/* The largest distances seen: of weights and of the states. */
enum { N_STATES = 3, N_ARRAYS = 1 + N_STATES };

typedef struct distance {
    double worst[N_ARRAYS];
} distance;

static void measure(distance *d, int what, int n, const float *got, const float *wanted,
                    const float *scale)
{
    for (int i = 0; i < n; i++) {
        double u = ulps(got[i], wanted[i], scale ? scale[i] : 0.0f);
        if (!(u <= d->worst[what])) d->worst[what] = u;
    }
}

/* Whether the step divides by a root. */
static bool divides(const ps_optimizer *opt)
{
    return opt->kind != PS_OPTIMIZER_SGD && opt->kind != PS_OPTIMIZER_LION;
}

/* Makes one step from `before` and compares it with PyTorch's `after`. Each is the
 * weight, then the states. sums: weights are measured in units of the larger of old and
 * new weight. Square roots in pip's PyTorch 2 are MKL's, which are often one unit off.
 * The division and the sum add their errors. Where a step brings a weight close to zero,
 * these are many of its units. RMSprop's momentum is such a sum, too. */
static void compare_step(const ps_optimizer *opt, uint64_t t, int n, const float *grad,
                         float *const before[N_ARRAYS], float *const after[N_ARRAYS],
                         bool sums, distance *d)
{
    float x[N_ARRAYS][MAX_N];
    float *const states[N_STATES] = {x[1], x[2], x[3]};
    for (int k = 0; k < N_ARRAYS; k++)
        memcpy(x[k], before[k], (size_t)n * sizeof *x[k]);
    ps_optimizer_step step = {.lr = opt->lr, .t = t, .grad_scale = 1.0};
    ps_optimizer_apply(opt, &step, opt->weight_decay, (uint64_t)n, x[0], grad, states);
    measure(d, 0, n, x[0], after[0], sums ? before[0] : NULL);
    for (int k = 1; k <= opt->n_states; k++)
        measure(d, k, n, x[k], after[k],
                sums && opt->kind == PS_OPTIMIZER_RMSPROP ? before[k] : NULL);
}

static void assert_within(const distance *d, double ulp, int number)
{
    for (int i = 0; i < N_ARRAYS; i++)
        if (!(d->worst[i] <= ulp))
            fail_msg("case %d: %s is %g ulp from PyTorch's", number,
                     i ? "a state" : "a weight", d->worst[i]);
}

TEST(stored_steps_of_pytorch_are_met)
{
    for (int c = 0; c < N_VECTORS; c++) {
        ps_optimizer opt = optimizer_of(vectors[c].record);
        int n = (int)vectors[c].record[9], steps = (int)vectors[c].record[10];
        float zero[MAX_N] = {0};
        distance d = {{0}};
        float *before[N_ARRAYS] = {(float *)(uintptr_t)vectors[c].start, zero, zero,
                                   zero};
        for (int t = 0; t < steps; t++) {
            float *after[N_ARRAYS];
            for (int k = 0; k < N_ARRAYS; k++)
                after[k] = (float *)(uintptr_t)vectors[c].steps[t][k + 1];
            compare_step(&opt, (uint64_t)t + 1, n, vectors[c].steps[t][0], before, after,
                         divides(&opt), &d);
            memcpy(before, after, sizeof before);
        }
        assert_within(&d, 2.0, c);
    }
}

static bool read_floats(FILE *in, int n, float *out)
{
    return fread(out, sizeof *out, (size_t)n, in) == (size_t)n;
}

static void run_case(FILE *in, const double *record, int number)
{
    static float buffers[2][N_ARRAYS][MAX_N], grad[MAX_N];
    ps_optimizer opt = optimizer_of(record);
    int n = (int)record[9], steps = (int)record[10];
    bool sums = record[11] >= 2 && divides(&opt);
    distance d = {{0}};
    memset(buffers, 0, sizeof buffers);
    assert_in_range(n, 1, MAX_N);
    assert_true(read_floats(in, n, buffers[0][0]));
    for (int t = 0; t < steps; t++) {
        float *before[N_ARRAYS], *after[N_ARRAYS];
        for (int k = 0; k < N_ARRAYS; k++) {
            before[k] = buffers[t % 2][k];
            after[k] = buffers[(t + 1) % 2][k];
        }
        assert_true(read_floats(in, n, grad));
        for (int k = 0; k < N_ARRAYS; k++)
            assert_true(read_floats(in, n, after[k]));
        compare_step(&opt, (uint64_t)t + 1, n, grad, before, after, sums, &d);
    }
    print_message("case %d: weights %.2g ulp, states %.2g, %.2g and %.2g\n", number,
                  d.worst[0], d.worst[1], d.worst[2], d.worst[3]);
    const bool buffered = opt.kind == PS_OPTIMIZER_RMSPROP && opt.momentum != 0;
    assert_within(&d, !sums ? 2.0 : buffered ? 8.0 : 4.0, number);
}

TEST(a_hundred_steps_of_the_installed_pytorch_are_met)
{
    FILE *in = python_output("optimizer_vectors.py binary");
    if (!in) skip();
    int cases = 0;
    double record[RECORD];
    while (fread(record, sizeof record, 1, in) == 1)
        run_case(in, record, cases++);
    fclose(in);
    assert_int_equal(cases, N_VECTORS);
}

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Any cut of the range gives the same bits, so the results do not depend on chunks and
 * shards. */
TEST(cuts_do_not_change_a_bit)
{
    enum { N = 1000 };
    uint32_t seed = 1;
    float start[5][N], whole[5][N], cut[5][N];
    for (int c = 0; c < N_VECTORS; c++) {
        ps_optimizer opt = optimizer_of(vectors[c].record);
        ps_optimizer_step step = {.lr = opt.lr, .t = 3, .grad_scale = 0.37};
        for (int i = 0; i < 5 * N; i++)
            start[i / N][i % N] = (float)draw(&seed) / 0x1p24f - (i < 3 * N ? 0.5f : 0);
        memcpy(whole, start, sizeof whole);
        memcpy(cut, start, sizeof cut);
        float *const states[] = {whole[2], whole[3], whole[4]};
        ps_optimizer_apply(&opt, &step, 0.01, N, whole[0], whole[1], states);
        for (int at = 0; at < N;) {
            int n = 1 + (int)(draw(&seed) % 77);
            if (n > N - at) n = N - at;
            float *const part[] = {cut[2] + at, cut[3] + at, cut[4] + at};
            ps_optimizer_apply(&opt, &step, 0.01, (uint64_t)n, cut[0] + at, cut[1] + at,
                               part);
            at += n;
        }
        assert_memory_equal(whole, cut, sizeof whole);
    }
}

/* Subnormal numbers are slow, and PyTorch's moments of dead inputs stay such for ever. */
TEST(moments_without_gradients_become_zero)
{
    enum { N = 40, STEPS = 400 };
    static const float grad[N];
    for (int c = 0; c < N_VECTORS; c++) {
        ps_optimizer opt = optimizer_of(vectors[c].record);
        float p[N] = {0}, s[3][N];
        float *const states[] = {s[0], s[1], s[2]};
        for (int i = 0; i < 3 * N; i++)
            s[i / N][i % N] = 1e-36f / (float)(i % N + 1);
        for (uint64_t t = 2; t < STEPS; t++) {
            const ps_optimizer_step step = {.lr = opt.lr, .t = t, .grad_scale = 1};
            ps_optimizer_apply(&opt, &step, 0.01, N, p, grad, states);
        }
        for (int i = 0; i < opt.n_states * N; i++)
            if (fpclassify(s[i / N][i % N]) == FP_SUBNORMAL)
                fail_msg("vector %d, state %d: %g", c, i / N, (double)s[i / N][i % N]);
    }
}

/* Clipping scales the gradient before the step, as clip_grad_norm_ does in place. */
TEST(the_gradient_is_scaled_first)
{
    for (int c = 0; c < N_VECTORS; c++) {
        ps_optimizer opt = optimizer_of(vectors[c].record);
        float p[2][6], s[2][N_STATES][6] = {{{0}}}, grad[6];
        for (int k = 0; k < 2; k++) {
            float *const states[] = {s[k][0], s[k][1], s[k][2]};
            double scale = k ? 1.0 : 0.3;
            ps_optimizer_step step = {.lr = opt.lr, .t = 2, .grad_scale = scale};
            memcpy(p[k], vectors[c].start, sizeof p[k]);
            for (int i = 0; i < 6; i++) {
                float g = vectors[c].steps[1][0][i];
                grad[i] = k ? 0.3f * g : g;
            }
            ps_optimizer_apply(&opt, &step, 0.01, 6, p[k], grad, states);
        }
        assert_memory_equal(p[0], p[1], sizeof p[0]);
        assert_memory_equal(s[0], s[1], sizeof s[0]);
    }
}

static ps_err init_from(ps_optimizer *opt, const char *const *set, int n)
{
    ps_config cfg;
    ps_err err = ps_config_load(&cfg, NULL, set, n);
    if (err == PS_OK) ps_optimizer_init(opt, &cfg);
    ps_config_fini(&cfg);
    return err;
}

TEST(defaults_are_pytorchs)
{
    ps_optimizer opt;
    const char *adamw[] = {"optimizer.name=adamw"};
    assert_ok(init_from(&opt, adamw, 1));
    assert_true(opt.lr == 1e-3 && opt.beta1 == 0.9 && opt.beta2 == 0.999);
    assert_true(opt.eps == 1e-8 && opt.weight_decay == 0.01);
    assert_int_equal(opt.n_states, 2);
    const char *adam[] = {"optimizer.name=adam"};
    assert_ok(init_from(&opt, adam, 1));
    assert_true(opt.weight_decay == 0.0);
    const char *sgd[] = {"optimizer.name=sgd"};
    assert_ok(init_from(&opt, sgd, 1));
    assert_int_equal(opt.n_states, 0);
    const char *momentum[] = {"optimizer.name=sgd", "optimizer.momentum=0.9"};
    assert_ok(init_from(&opt, momentum, 2));
    assert_int_equal(opt.n_states, 1);
    const char *rmsprop[] = {"optimizer.name=rmsprop"};
    assert_ok(init_from(&opt, rmsprop, 1));
    assert_true(opt.lr == 1e-2 && opt.beta2 == 0.99 && opt.eps == 1e-8);
    assert_true(opt.n_states == 1 && !opt.centered);
    const char *adagrad[] = {"optimizer.name=adagrad"};
    assert_ok(init_from(&opt, adagrad, 1));
    assert_true(opt.lr == 1e-2 && opt.eps == 1e-10 && opt.n_states == 1);
    const char *lion[] = {"optimizer.name=lion"};
    assert_ok(init_from(&opt, lion, 1));
    assert_true(opt.lr == 1e-4 && opt.beta1 == 0.9 && opt.beta2 == 0.99);
}

/* As in PyTorch's state_dict: checkpoints have them. */
TEST(states_have_pytorchs_names)
{
    ps_optimizer opt;
    const char *rmsprop[] = {"optimizer.name=rmsprop", "optimizer.centered=true",
                             "optimizer.momentum=0.9"};
    static const char *const names[] = {"square_avg", "momentum_buffer", "grad_avg"};
    assert_ok(init_from(&opt, rmsprop, 3));
    assert_int_equal(opt.n_states, 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(ps_optimizer_state_name(&opt, i), names[i]);
    assert_ok(init_from(&opt, rmsprop, 2));
    assert_int_equal(opt.n_states, 2);
    assert_string_equal(ps_optimizer_state_name(&opt, 1), "grad_avg");
    const char *adagrad[] = {"optimizer.name=adagrad"};
    assert_ok(init_from(&opt, adagrad, 1));
    assert_string_equal(ps_optimizer_state_name(&opt, 0), "sum");
    const char *lion[] = {"optimizer.name=lion"};
    assert_ok(init_from(&opt, lion, 1));
    assert_string_equal(ps_optimizer_state_name(&opt, 0), "exp_avg");
}

TEST(what_pytorch_refuses_is_refused)
{
    ps_optimizer opt;
    const char *nesterov[] = {"optimizer.name=sgd", "optimizer.nesterov=true"};
    assert_error(init_from(&opt, nesterov, 2), PS_ERR_CONFIG, "nesterov");
    const char *betas[] = {"optimizer.name=adam", "optimizer.betas=[0.9, 1]"};
    assert_int_equal(init_from(&opt, betas, 2), PS_ERR_CONFIG);
    const char *alpha[] = {"optimizer.name=rmsprop", "optimizer.alpha=1"};
    assert_error(init_from(&opt, alpha, 2), PS_ERR_CONFIG,
                 "optimizer.alpha: has to be below 1");
}

TEST(biases_and_norms_can_be_spared_from_decay)
{
    ps_optimizer opt;
    const char *set[] = {"optimizer.name=adamw", "optimizer.decay_bias_norm=false"};
    assert_ok(init_from(&opt, set, 2));
    assert_true(ps_optimizer_decay(&opt, PS_TENSOR_WEIGHT) == 0.01);
    assert_true(ps_optimizer_decay(&opt, PS_TENSOR_BIAS) == 0.0);
    assert_true(ps_optimizer_decay(&opt, PS_TENSOR_BATCHNORM) == 0.0);
    assert_ok(init_from(&opt, set, 1));
    assert_true(ps_optimizer_decay(&opt, PS_TENSOR_BIAS) == 0.01);
}
