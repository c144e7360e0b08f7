#include "check.h"
#include "synthetic.h"

static ps_dataset make(uint64_t seed, uint32_t split, int64_t n, ps_dims dims,
                       int64_t n_classes)
{
    ps_dataset set;
    const ps_synthetic_spec spec = {seed, split, n, dims, n_classes, 0};
    assert_ok(ps_synthetic_make(&spec, &set));
    assert_int_equal(set.n, n);
    assert_false(set.is_float);
    return set;
}

/* The share of test's samples that lie nearest to their class's mean in train. */
static double nearest_mean_accuracy(const ps_dataset *train, const ps_dataset *test)
{
    int64_t count = ps_dims_count(&train->dims), n_classes = train->n_classes;
    double *means = calloc((size_t)(n_classes * count), sizeof *means);
    int64_t *seen = calloc((size_t)n_classes, sizeof *seen), right = 0;
    for (int64_t i = 0; i < train->n; i++) {
        seen[train->labels[i]]++;
        for (int64_t j = 0; j < count; j++)
            means[train->labels[i] * count + j] +=
                ((uint8_t *)train->values)[i * count + j];
    }
    for (int64_t i = 0; i < test->n; i++) {
        int64_t best = -1;
        double best_distance = 0;
        for (int64_t k = 0; k < n_classes; k++) {
            double distance = 0;
            assert_true(seen[k] > 0);
            for (int64_t j = 0; j < count; j++) {
                double d = ((uint8_t *)test->values)[i * count + j] -
                           means[k * count + j] / (double)seen[k];
                distance += d * d;
            }
            if (best < 0 || distance < best_distance) best = k, best_distance = distance;
        }
        right += best == test->labels[i];
    }
    free(means);
    free(seen);
    return (double)right / (double)test->n;
}

TEST(classes_can_be_learnt)
{
    const ps_dims shapes[] = {{3, {3, 32, 32}}, {3, {1, 7, 9}}, {1, {40}}};
    for (int i = 0; i < 3; i++) {
        ps_dataset train = make(1, 0, 600, shapes[i], 10);
        ps_dataset test = make(1, 1, 200, shapes[i], 10);
        assert_true(nearest_mean_accuracy(&train, &test) > 0.9);
        assert_memory_not_equal(train.values, test.values, 100);
        ps_dataset_fini(&train);
        ps_dataset_fini(&test);
    }
}

TEST(the_seed_decides_all)
{
    const ps_dims dims = {3, {3, 5, 6}};
    ps_dataset a = make(7, 0, 20, dims, 4), b = make(7, 0, 10, dims, 4);
    ps_dataset c = make(8, 0, 10, dims, 4);
    assert_memory_equal(a.values, b.values, 900); // earlier samples stay the same
    assert_memory_equal(a.labels, b.labels, 40);
    assert_memory_not_equal(b.values, c.values, 900);
    ps_dataset_fini(&a);
    ps_dataset_fini(&b);
    ps_dataset_fini(&c);
}

TEST(labels_can_be_noisy)
{
    enum { N = 4000, CLASSES = 5 };
    const ps_synthetic_spec spec = {7, 1, N, {1, {6}}, CLASSES, 0.25};
    ps_dataset set, pure = make(7, 1, N, spec.dims, CLASSES);
    assert_ok(ps_synthetic_make(&spec, &set));
    assert_memory_equal(set.values, pure.values, N * 6);
    int64_t others = 0, counts[CLASSES] = {0};
    for (int64_t i = 0; i < N; i++) {
        others += set.labels[i] != pure.labels[i];
        counts[set.labels[i]]++;
    }
    assert_in_range(others, 700, 900); // 0.25 * 4 / 5 of them: 800, deviation 25
    for (int k = 0; k < CLASSES; k++)
        assert_in_range(counts[k], 675, 925); // 800
    ps_dataset_fini(&pure);
    ps_dataset_fini(&set);
}

static ps_err make_of(int64_t n, ps_dims dims, int64_t n_classes)
{
    ps_dataset set;
    return ps_synthetic_make(&(ps_synthetic_spec){0, 0, n, dims, n_classes, 0}, &set);
}

TEST(senseless_sizes_are_errors)
{
    const ps_dims good = {1, {4}}, huge = {3, {1 << 30, 1 << 30, 1 << 30}},
                  two = {2, {3, 3}};
    assert_int_equal(make_of(0, good, 2), PS_ERR_CONFIG);
    assert_int_equal(make_of(9, good, 0), PS_ERR_CONFIG);
    assert_int_equal(make_of(9, two, 2), PS_ERR_CONFIG);
    assert_int_equal(make_of(9, huge, 2), PS_ERR_FORMAT);
}
