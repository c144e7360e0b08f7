/* The digits that the repository ships, read as a configuration in configs/ does. */
#include <math.h>

#include "check.h"
#include "dataset.h"

static ps_config config = {
    .file = "configs/digits-basicnet.yaml",
    .data = {.kind = PS_DATA_IDX, .path = "digits", .train = "", .test = ""},
};
static const ps_dims input = {3, {1, 8, 8}};

/* The index of the original's first line is divisible by 5, so it is the first test
 * image. The second line is the first training image. */
TEST(first_images_are_the_originals)
{
    static const uint8_t first_test[16] = {0, 0, 5,  13, 9,  1,  0, 0,
                                           0, 0, 13, 15, 10, 15, 5, 0};
    static const uint8_t first_train[16] = {0, 0, 0, 12, 13, 5, 0, 0,
                                            0, 0, 0, 11, 16, 9, 0, 0};
    ps_dataset train, test;
    assert_ok(ps_dataset_load(&config, PS_SPLIT_TRAIN, &input, 10, NULL, &train));
    assert_ok(ps_dataset_load(&config, PS_SPLIT_TEST, &input, 10, NULL, &test));
    assert_int_equal(train.n, 1437);
    assert_int_equal(test.n, 360);
    assert_int_equal(train.n_classes, 10);
    assert_int_equal(train.dims.d[1], 8);
    assert_memory_equal(test.values, first_test, sizeof first_test);
    assert_memory_equal(train.values, first_train, sizeof first_train);
    assert_int_equal(test.labels[0], 0);
    assert_int_equal(train.labels[0], 1);
    ps_dataset_fini(&train);
    ps_dataset_fini(&test);
}

/* Published facts about the set: 178 182 177 183 181 182 181 179 174 180 of each digit,
 * values 0 to 16 (scikit-learn's documentation of load_digits; its mean is 4.884). */
TEST(all_of_them_are_there)
{
    static const int published[10] = {178, 182, 177, 183, 181, 182, 181, 179, 174, 180};
    int counts[10] = {0};
    int64_t sum = 0;
    for (int split = 0; split < 2; split++) {
        ps_dataset set;
        assert_ok(ps_dataset_load(&config, (ps_split)split, &input, 10, NULL, &set));
        for (int64_t i = 0; i < set.n; i++)
            counts[set.labels[i]]++;
        for (int64_t i = 0; i < set.n * 64; i++) {
            assert_true(((uint8_t *)set.values)[i] <= 16);
            sum += ((uint8_t *)set.values)[i];
        }
        ps_dataset_fini(&set);
    }
    assert_memory_equal(counts, published, sizeof counts);
    assert_true(fabs((double)sum / (1797 * 64) - 4.884) < 0.0005);
}

TEST(ranges_cut_the_files)
{
    ps_config c = config;
    c.data.path = "configs/digits";
    c.data.train = "10-19";
    c.data.test = "test-images-idx3-ubyte.gz, test-labels-idx1-ubyte.gz@350-359";
    ps_dataset all, part;
    assert_ok(ps_dataset_load(&config, PS_SPLIT_TRAIN, &input, 10, NULL, &all));
    assert_ok(ps_dataset_load(&c, PS_SPLIT_TRAIN, &input, 10, NULL, &part));
    assert_int_equal(part.n, 10);
    assert_memory_equal(part.values, (char *)all.values + 10 * 64, 640);
    assert_memory_equal(part.labels, all.labels + 10, 10 * sizeof *all.labels);
    ps_dataset_fini(&part);
    assert_ok(ps_dataset_load(&c, PS_SPLIT_TEST, &input, 10, NULL, &part));
    assert_int_equal(part.n, 10);
    ps_dataset_fini(&part);
    ps_dataset_fini(&all);
}

static void check_error(const char *path, const char *train, int64_t n_classes,
                        ps_err expected, const char *says)
{
    ps_config c = config;
    c.data.path = (char *)path;
    c.data.train = (char *)train;
    ps_dataset set;
    assert_error(ps_dataset_load(&c, PS_SPLIT_TRAIN, &input, n_classes, NULL, &set),
                 expected, says);
    assert_null(set.values);
}

TEST(errors_say_what_to_mend)
{
    check_error("nowhere", "", 10, PS_ERR_IO, "configs/nowhere");
    check_error("configs", "", 10, PS_ERR_IO, "train-images-idx3-ubyte");
    check_error("digits", "9-1", 10, PS_ERR_CONFIG, "ends before it starts");
    check_error("digits", "a,b@x", 10, PS_ERR_CONFIG, "not a range");
    check_error("digits", "a,,b", 10, PS_ERR_CONFIG, "empty");
    check_error("digits", "one", 10, PS_ERR_CONFIG,
                "needs 2 files; the configuration names 1");
    check_error("digits", "0-1437", 10, PS_ERR_FORMAT, "the last is number 1436");
    check_error(
        "digits", "2-99", 5, PS_ERR_FORMAT,
        "data.train: 2-99: sample 4 has the label 6; the model's 5 classes are 0 "
        "to 4: give the last layer 10 outputs, or mend the 52 labels that are too "
        "large");
}
