/* The figures of an evaluation, against scikit-learn 1.7. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "figures.h"

static void assert_near(double value, double wanted)
{
    assert_true(fabs(value - wanted) < 1e-12);
}

static json_t *json_of(const ps_figures *f)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    ps_figures_write_json(f, file);
    rewind(file);
    json_t *json = json_loadf(file, 0, NULL);
    assert_non_null(json);
    fclose(file);
    return json;
}

/* Another process's part is added as numbers. */
static void add_in_two_parts(const ps_model_spec *spec, const ps_dataset *set,
                             const float *rows, ps_figures *out)
{
    ps_figures other;
    assert_ok(ps_figures_init(out, spec, set));
    assert_ok(ps_figures_init(&other, spec, set));
    for (int64_t i = 0; i < set->n; i++)
        ps_figures_add(i < set->n / 3 ? out : &other, i, rows + i * spec->n_outputs);
    const int64_t n = ps_figures_size(out);
    double *a = calloc((size_t)n, sizeof *a), *b = calloc((size_t)n, sizeof *b);
    ps_figures_save(out, a);
    ps_figures_save(&other, b);
    for (int64_t i = 0; i < n; i++)
        a[i] += b[i];
    ps_figures_clear(out);
    ps_figures_load(out, a);
    free(a);
    free(b);
    ps_figures_fini(&other);
}

static const double scores[12] = {2.0,  -2.5, 0.5,  -0.5, -0.5, 0.0,
                                  -2.0, 0.0,  -1.0, 3.5,  0.0,  -0.5};
static int32_t labels[12] = {1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 1};

static void assert_two_classes(const ps_figures *f)
{
    const ps_measures m = ps_figures_measure(f);
    assert_int_equal(m.samples, 12);
    assert_near(m.accuracy, 0.4166666666666667);
    assert_near(m.precision, 0.38888888888888884);
    assert_near(m.recall, 0.41666666666666663);
    assert_near(m.f1, 0.37777777777777777);
    assert_near(m.auc, 0.5277777777777778);
    assert_true(isnan(m.r2) && isnan(m.top5));
}

TEST(two_classes_with_equal_scores)
{
    float rows[24];
    ps_figures f;
    const ps_model_spec spec = {
        .n_outputs = 2, .loss = PS_LOSS_CROSS_ENTROPY, .ignore_index = -100};
    const ps_dataset set = {.n = 12, .labels = labels};
    for (int i = 0; i < 12; i++) {
        rows[2 * i] = 1;
        rows[2 * i + 1] = (float)(1 + scores[i]);
    }
    add_in_two_parts(&spec, &set, rows, &f);
    assert_two_classes(&f);
    rows[3] = NAN; // no order: no area
    ps_figures_clear(&f);
    for (int i = 0; i < 12; i++)
        ps_figures_add(&f, i, rows + 2 * i);
    assert_true(isnan(ps_figures_measure(&f).auc));
    ps_figures_fini(&f);
}

/* A model that says nothing: of ten equal outputs five are the five largest, as for
 * scikit-learn's top_k_accuracy_score. */
TEST(equal_outputs_are_not_all_among_the_five_largest)
{
    enum { N = 10 };
    const ps_model_spec spec = {
        .n_outputs = N, .loss = PS_LOSS_CROSS_ENTROPY, .ignore_index = -100};
    for (int k = 0; k < 2; k++) {
        float rows[N * N];
        int32_t each[N];
        ps_figures f;
        const ps_dataset set = {.n = N, .labels = each};
        for (int i = 0; i < N * N; i++)
            rows[i] = k == 0 ? 0.25f : NAN;
        for (int i = 0; i < N; i++)
            each[i] = i;
        add_in_two_parts(&spec, &set, rows, &f);
        const ps_measures m = ps_figures_measure(&f);
        assert_near(m.accuracy, 0.1);
        assert_near(m.top5, 0.5);
        ps_figures_fini(&f);
    }
}

/* Else there is no area under the curve. */
TEST(both_classes_have_samples_or_not)
{
    const ps_model_spec spec = {
        .n_outputs = 2, .loss = PS_LOSS_CROSS_ENTROPY, .ignore_index = -100};
    static const struct {
        int32_t labels[3];
        bool both;
    } cases[] = {{{0, 1, 0}, true}, {{1, 1, 1}, false}, {{0, 0, -100}, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ps_figures f;
        const ps_dataset set = {.n = 3, .labels = (int32_t *)cases[i].labels};
        assert_ok(ps_figures_init(&f, &spec, &set));
        assert_int_equal(ps_figures_have_both_classes(&f), cases[i].both);
        ps_figures_fini(&f);
    }
}

TEST(one_output_that_says_yes_or_no)
{
    float rows[12], targets[12];
    ps_figures f;
    const ps_model_spec spec = {.n_outputs = 1, .loss = PS_LOSS_BCE_WITH_LOGITS};
    ps_dataset set = {.n = 12, .targets = targets, .n_targets = 1};
    for (int i = 0; i < 12; i++) {
        rows[i] = (float)scores[i];
        targets[i] = (float)labels[i];
    }
    add_in_two_parts(&spec, &set, rows, &f);
    assert_two_classes(&f);
    ps_figures_fini(&f);
    targets[4] = 0.5f; // neither
    assert_ok(ps_figures_init(&f, &spec, &set));
    assert_int_equal(f.truth, PS_TRUTH_NONE);
    ps_figures_add(&f, 0, rows);
    assert_int_equal(ps_figures_measure(&f).samples, 0);
    ps_figures_fini(&f);
}

static void expect_quality(ps_quality wanted, ps_loss_kind loss, int64_t n, float first)
{
    float targets[3] = {first, 1, 0}, rows[3] = {NAN, NAN, NAN};
    const ps_model_spec spec = {.n_outputs = 1, .loss = loss};
    const ps_dataset set = {.n = n, .targets = targets, .n_targets = 1};
    ps_figures f;
    assert_ok(ps_figures_init(&f, &spec, &set));
    assert_int_equal(ps_figures_quality(&f), wanted);
    for (int64_t i = 0; i < n; i++)
        ps_figures_add(&f, i, rows + i);
    const ps_measures m = ps_figures_measure(&f);
    assert_true(isnan(m.auc) && isnan(m.r2));
    assert_int_equal(ps_figures_quality(&f), wanted);
    ps_figures_fini(&f);
}

/* It is the same where training has diverged, and there is no such figure. */
TEST(the_figure_by_which_to_judge_follows_from_the_set)
{
    expect_quality(PS_QUALITY_AUC, PS_LOSS_BCE_WITH_LOGITS, 3, 0);
    expect_quality(PS_QUALITY_ACCURACY, PS_LOSS_BCE_WITH_LOGITS, 2, 1); // one class
    expect_quality(PS_QUALITY_ACCURACY, PS_LOSS_BCE_WITH_LOGITS, 3, 0.5f);
    expect_quality(PS_QUALITY_R2, PS_LOSS_MSE, 3, 0.5f);
    expect_quality(PS_QUALITY_ACCURACY, PS_LOSS_MSE, 1, 0.5f); // no R2 of one sample
}

TEST(classes_that_never_occur)
{
    static int32_t truth[11] = {0, 0, 1, 1, 1, 2, 2, 0, 1, 0, -100};
    static const int said[11] = {0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 2};
    float rows[44] = {0};
    ps_figures f;
    const ps_model_spec spec = {
        .n_outputs = 4, .loss = PS_LOSS_NLL, .ignore_index = -100};
    const ps_dataset set = {.n = 11, .labels = truth};
    for (int i = 0; i < 11; i++)
        rows[4 * i + said[i]] = 1;
    add_in_two_parts(&spec, &set, rows, &f);
    const ps_measures m = ps_figures_measure(&f);
    assert_int_equal(m.samples, 10); // one is ignored
    assert_near(m.accuracy, 0.6);
    assert_near(m.precision, 0.4);
    assert_near(m.recall, 0.5);
    assert_near(m.f1, 0.4444444444444444);
    assert_true(isnan(m.auc));
    json_t *json = json_of(&f);
    const json_t *third = json_array_get(json_object_get(json, "classes"), 3);
    assert_true(json_is_null(json_object_get(third, "f1")));
    json_decref(json);
    ps_figures_fini(&f);
}

TEST(numbers)
{
    static float targets[10] = {2000, 1, 2003, 2, 1999, 4, 2010, 4.5f, 2004, 3};
    static const float said[10] = {2001, 1.5f, 2002, 2, 2000.5f, 3, 2007, 5, 2004, 2.5f};
    ps_figures f;
    const ps_model_spec spec = {.n_outputs = 2, .loss = PS_LOSS_MSE};
    const ps_dataset set = {.n = 5, .targets = targets, .n_targets = 2};
    add_in_two_parts(&spec, &set, said, &f);
    const ps_measures m = ps_figures_measure(&f);
    assert_int_equal(m.samples, 5);
    assert_near(m.mae, 0.9);
    assert_near(m.rmse, 1.109745018959966);
    assert_near(m.r2, 0.8047231642102517);
    json_t *json = json_of(&f);
    const json_t *first = json_array_get(json_object_get(json, "numbers"), 0);
    assert_true(fabs(json_real_value(json_object_get(first, "r2")) - 0.82286096) < 1e-6);
    json_decref(json);
    ps_figures_fini(&f);
}

/* In the units of the table: what is compared is scaled. */
TEST(numbers_of_a_table)
{
    ps_column column = {.name = "price", .mean = 500, .std = 200};
    const ps_preprocessing scaled = {.named = true, .n_targets = 1, .targets = &column};
    float targets[3] = {-1, 0, 1}, rows[3] = {-1, 0.5f, 1};
    const ps_model_spec spec = {.n_outputs = 1, .loss = PS_LOSS_MSE};
    const ps_dataset set = {
        .n = 3, .targets = targets, .n_targets = 1, .preprocessing = &scaled};
    ps_figures f;
    add_in_two_parts(&spec, &set, rows, &f);
    const ps_measures m = ps_figures_measure(&f);
    assert_near(m.mae, 100.0 / 3);
    assert_near(m.rmse, sqrt(10000.0 / 3));
    assert_near(m.r2, 1 - 0.25 / 2);
    ps_figures_fini(&f);
}
