/* Steps from PyTorch's own weights, gradients and state, within 2 ulp of PyTorch's
 * results.
 */
#include "optimizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../support/python.h"
#include "../vectors/optimizer_vectors.h"

enum { MAX_N = 512, RECORD = 12, N_VECTORS = sizeof vectors / sizeof vectors[0] };

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
                        .n_states = 2};
    if (opt.kind == PS_OPTIMIZER_SGD) opt.n_states = opt.momentum != 0;
    return opt;
}

/* Distance in units in the last place of the larger of the reference and scale. */
static double ulps(float got, float reference, float scale)
{
    float size = fmaxf(fabsf(reference), fabsf(scale));
    float unit = nextafterf(size, INFINITY) - size;
    return fabs((double)got - (double)reference) / (double)unit;
}

/* The largest distances seen: of weights and of both states. */
typedef struct distance {
    double worst[3];
} distance;

static void measure(distance *d, int what, int n, const float *got, const float *wanted,
                    const float *scale)
{
    for (int i = 0; i < n; i++) {
        double u = ulps(got[i], wanted[i], scale ? scale[i] : 0.0f);
        if (!(u <= d->worst[what])) d->worst[what] = u;
    }
}

/* One step of ours from before to beside PyTorch's after; each is weight, state, state.
 * sums: weights are measured in units of the larger of old and new: the square root of
 * pip's PyTorch 2 is MKL's, often one unit off, which a weight that the step brings close
 * to zero shows enlarged; the division and the sum add theirs. */
static void compare_step(const ps_optimizer *opt, uint64_t t, int n, const float *grad,
                         float *const before[3], float *const after[3], bool sums,
                         distance *d)
{
    float p[MAX_N], s1[MAX_N], s2[MAX_N];
    float *states[2] = {s1, s2};
    memcpy(p, before[0], (size_t)n * sizeof *p);
    memcpy(s1, before[1], (size_t)n * sizeof *p);
    memcpy(s2, before[2], (size_t)n * sizeof *p);
    ps_optimizer_step step = {.lr = opt->lr, .t = t, .grad_scale = 1.0};
    ps_optimizer_apply(opt, &step, opt->weight_decay, (uint64_t)n, p, grad, states);
    measure(d, 0, n, p, after[0], sums ? before[0] : NULL);
    if (opt->n_states > 0) measure(d, 1, n, s1, after[1], NULL);
    if (opt->n_states > 1) measure(d, 2, n, s2, after[2], NULL);
}

static void assert_within(const distance *d, double ulp, int number)
{
    for (int i = 0; i < 3; i++)
        if (!(d->worst[i] <= ulp))
            fail_msg("case %d: %s is %g ulp from PyTorch's", number,
                     i ? "a state" : "a weight", d->worst[i]);
}

static void stored_steps_of_pytorch_are_met(void **state)
{
    for (int c = 0; c < N_VECTORS; c++) {
        ps_optimizer opt = optimizer_of(vectors[c].record);
        int n = (int)vectors[c].record[9], steps = (int)vectors[c].record[10];
        float zero[MAX_N] = {0};
        distance d = {{0}};
        float *before[3] = {(float *)(uintptr_t)vectors[c].start, zero, zero};
        for (int t = 0; t < steps; t++) {
            float *after[3];
            for (int k = 0; k < 3; k++)
                after[k] = (float *)(uintptr_t)vectors[c].steps[t][k + 1];
            compare_step(&opt, (uint64_t)t + 1, n, vectors[c].steps[t][0], before, after,
                         false, &d);
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
    static float buffers[2][3][MAX_N], grad[MAX_N];
    ps_optimizer opt = optimizer_of(record);
    int n = (int)record[9], steps = (int)record[10];
    bool sums = record[11] >= 2 && opt.kind != PS_OPTIMIZER_SGD;
    distance d = {{0}};
    memset(buffers, 0, sizeof buffers);
    assert_in_range(n, 1, MAX_N);
    assert_true(read_floats(in, n, buffers[0][0]));
    for (int t = 0; t < steps; t++) {
        float *before[3], *after[3];
        for (int k = 0; k < 3; k++) {
            before[k] = buffers[t % 2][k];
            after[k] = buffers[(t + 1) % 2][k];
        }
        assert_true(read_floats(in, n, grad));
        for (int k = 0; k < 3; k++)
            assert_true(read_floats(in, n, after[k]));
        compare_step(&opt, (uint64_t)t + 1, n, grad, before, after, sums, &d);
    }
    print_message("case %d: weights %.2g ulp, states %.2g and %.2g\n", number, d.worst[0],
                  d.worst[1], d.worst[2]);
    assert_within(&d, sums ? 4.0 : 2.0, number);
}

static void a_hundred_steps_of_the_installed_pytorch_are_met(void **state)
{
    char path[] = "/tmp/pstrain-optimizer-XXXXXX", arguments[64];
    int fd = mkstemp(path), cases = 0;
    assert_true(fd >= 0);
    close(fd);
    snprintf(arguments, sizeof arguments, "binary %s", path);
    int status = python_run("optimizer_vectors.py", arguments);
    FILE *in = fopen(path, "rb");
    unlink(path);
    assert_non_null(in);
    if (status == PYTHON_SKIP || status == PYTHON_MISSING) {
        fclose(in);
        skip();
    }
    assert_int_equal(status, 0);
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
static void cuts_do_not_change_a_bit(void **state)
{
    enum { N = 1000 };
    uint32_t seed = 1;
    float start[4][N], whole[4][N], cut[4][N];
    for (int c = 0; c < N_VECTORS; c++) {
        ps_optimizer opt = optimizer_of(vectors[c].record);
        ps_optimizer_step step = {.lr = opt.lr, .t = 3, .grad_scale = 0.37};
        for (int i = 0; i < 4 * N; i++)
            start[i / N][i % N] = (float)draw(&seed) / 0x1p24f - (i < 3 * N ? 0.5f : 0);
        memcpy(whole, start, sizeof whole);
        memcpy(cut, start, sizeof cut);
        float *states[2] = {whole[2], whole[3]};
        ps_optimizer_apply(&opt, &step, 0.01, N, whole[0], whole[1], states);
        for (int at = 0; at < N;) {
            int n = 1 + (int)(draw(&seed) % 77);
            if (n > N - at) n = N - at;
            float *part[2] = {cut[2] + at, cut[3] + at};
            ps_optimizer_apply(&opt, &step, 0.01, (uint64_t)n, cut[0] + at, cut[1] + at,
                               part);
            at += n;
        }
        assert_memory_equal(whole, cut, sizeof whole);
    }
}

/* Clipping scales the gradient before the step, as clip_grad_norm_ does in place. */
static void the_gradient_is_scaled_first(void **state)
{
    for (int c = 0; c < N_VECTORS; c++) {
        ps_optimizer opt = optimizer_of(vectors[c].record);
        float p[2][6], s1[2][6] = {{0}}, s2[2][6] = {{0}}, grad[6];
        for (int k = 0; k < 2; k++) {
            float *states[2] = {s1[k], s2[k]};
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
        assert_memory_equal(s1[0], s1[1], sizeof s1[0]);
    }
}

static ps_err init_from(ps_optimizer *opt, const char *const *set, int n)
{
    ps_config cfg;
    ps_err err = ps_config_load(&cfg, NULL, set, n);
    if (err == PS_OK) err = ps_optimizer_init(opt, &cfg);
    ps_config_fini(&cfg);
    return err;
}

static void defaults_are_pytorchs(void **state)
{
    ps_optimizer opt;
    const char *adamw[] = {"optimizer.name=adamw"};
    assert_int_equal(init_from(&opt, adamw, 1), PS_OK);
    assert_true(opt.lr == 1e-3 && opt.beta1 == 0.9 && opt.beta2 == 0.999);
    assert_true(opt.eps == 1e-8 && opt.weight_decay == 0.01);
    assert_int_equal(opt.n_states, 2);
    const char *adam[] = {"optimizer.name=adam"};
    assert_int_equal(init_from(&opt, adam, 1), PS_OK);
    assert_true(opt.weight_decay == 0.0);
    const char *sgd[] = {"optimizer.name=sgd"};
    assert_int_equal(init_from(&opt, sgd, 1), PS_OK);
    assert_int_equal(opt.n_states, 0);
    const char *momentum[] = {"optimizer.name=sgd", "optimizer.momentum=0.9"};
    assert_int_equal(init_from(&opt, momentum, 2), PS_OK);
    assert_int_equal(opt.n_states, 1);
}

static void what_pytorch_refuses_is_refused(void **state)
{
    ps_optimizer opt;
    const char *nesterov[] = {"optimizer.name=sgd", "optimizer.nesterov=true"};
    assert_int_equal(init_from(&opt, nesterov, 2), PS_ERR_CONFIG);
    assert_non_null(strstr(ps_err_message(), "nesterov"));
    const char *betas[] = {"optimizer.name=adam", "optimizer.betas=[0.9, 1]"};
    assert_int_equal(init_from(&opt, betas, 2), PS_ERR_CONFIG);
}

static void biases_and_norms_can_be_spared_from_decay(void **state)
{
    ps_optimizer opt;
    const char *set[] = {"optimizer.name=adamw", "optimizer.decay_bias_norm=false"};
    assert_int_equal(init_from(&opt, set, 2), PS_OK);
    assert_true(ps_optimizer_decay(&opt, PS_TENSOR_WEIGHT) == 0.01);
    assert_true(ps_optimizer_decay(&opt, PS_TENSOR_BIAS) == 0.0);
    assert_true(ps_optimizer_decay(&opt, PS_TENSOR_BATCHNORM) == 0.0);
    assert_int_equal(init_from(&opt, set, 1), PS_OK);
    assert_true(ps_optimizer_decay(&opt, PS_TENSOR_BIAS) == 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_steps_of_pytorch_are_met),
        cmocka_unit_test(a_hundred_steps_of_the_installed_pytorch_are_met),
        cmocka_unit_test(cuts_do_not_change_a_bit),
        cmocka_unit_test(the_gradient_is_scaled_first),
        cmocka_unit_test(defaults_are_pytorchs),
        cmocka_unit_test(what_pytorch_refuses_is_refused),
        cmocka_unit_test(biases_and_norms_can_be_spared_from_decay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
