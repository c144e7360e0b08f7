/* Which files a split is read from. The readers have tests of their own. */
#include "check.h"
#include "data_files.h"
#include "dataset.h"
#include "temp_files.h"

static const ps_dims input = {3, {1, 1, 2}};

/* Writes an IDX pair of n images of 1 x 2. Their first pixels and their labels count from
 * `first`. */
static void write_idx(const char *images, const char *labels, int first, uint8_t n)
{
    uint8_t x[64] = {0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, 1, 0, 0, 0, 2};
    uint8_t y[64] = {0, 0, 8, 1, 0, 0, 0, n};
    for (int i = 0; i < n; i++)
        x[16 + 2 * i] = y[8 + i] = (uint8_t)(first + i);
    assert_int_equal(temp_write_gz(images, x, 16 + 2u * n), 0);
    assert_int_equal(temp_write(labels, y, 8 + (size_t)n), 0);
}

static ps_config config_of(ps_data_kind kind, const char *train, const char *test)
{
    return (ps_config){.file = "",
                       .data = {.kind = kind,
                                .path = folder.path,
                                .train = (char *)train,
                                .test = (char *)test,
                                .target = ""}};
}

static ps_err load(ps_split split, const char *text, ps_dataset *set)
{
    const ps_config config = config_of(PS_DATA_IDX, text, text);
    return ps_dataset_load(&config, split, &input, 0, NULL, set);
}

static void check_labels(ps_split split, const char *text, int first, int n)
{
    ps_dataset set;
    assert_ok(load(split, text, &set));
    assert_int_equal(set.n, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(set.labels[i], first + i);
        assert_int_equal(((uint8_t *)set.values)[2 * i], first + i);
    }
    ps_dataset_fini(&set);
}

/* There are only t10k files. Ranges cut both splits out of them; without ranges they are
 * no training set. */
IN_FOLDER(bare_ranges_fall_back_to_the_other_files)
{
    ps_dataset set;
    write_idx("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte", 0, 10);
    check_labels(PS_SPLIT_TRAIN, "0-7", 0, 8);
    check_labels(PS_SPLIT_TEST, "8-9", 8, 2);
    check_labels(PS_SPLIT_TEST, "", 0, 10);
    assert_error(load(PS_SPLIT_TRAIN, "", &set), PS_ERR_IO, "data.train: ");
    assert_non_null(strstr(ps_err_message(), "train-images-idx3-ubyte"));

    write_idx("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 100, 10);
    check_labels(PS_SPLIT_TRAIN, "0-7", 100, 8); // now there are training files
    check_labels(PS_SPLIT_TRAIN, "", 100, 10);
    check_labels(PS_SPLIT_TEST, "8-9", 8, 2);
}

IN_FOLDER(named_files_and_ranges)
{
    write_idx("a,x", "y@1", 20, 5);
    write_idx("a", "b", 40, 5);
    check_labels(PS_SPLIT_TRAIN, "a,b", 40, 5);
    check_labels(PS_SPLIT_TEST, " a , b @2-2", 42, 1);
    ps_dataset set;
    assert_error(load(PS_SPLIT_TRAIN, "a,b@0-5", &set), PS_ERR_FORMAT,
                 "there are 5 samples");
    assert_int_equal(load(PS_SPLIT_TRAIN, "a,c", &set), PS_ERR_IO);
    char absolute[900];
    snprintf(absolute, sizeof absolute, "%s/a,%s/b", folder.path, folder.path);
    check_labels(PS_SPLIT_TRAIN, absolute, 40, 5);
}

IN_FOLDER(a_range_without_some_classes_is_doubted)
{
    ps_config config = config_of(PS_DATA_IDX, "a,b@1-3", "");
    ps_dataset set;
    write_idx("a", "b", 0, 5); // a sample of each class
    assert_ok(ps_dataset_load(&config, PS_SPLIT_TRAIN, &input, 5, NULL, &set));
    assert_non_null(
        strstr(set.doubts, "classes without a sample: 2 of 5, the first is 0:"));
    ps_dataset_fini(&set);
    config.data.train = "a,b@0-4";
    assert_ok(ps_dataset_load(&config, PS_SPLIT_TRAIN, &input, 5, NULL, &set));
    assert_null(set.doubts);
    ps_dataset_fini(&set);
}

/* The list of names beside 3 samples of the classes 0 to 2. says: NULL: nothing. */
static void check_names(const char *names, int64_t outputs, const char *says)
{
    static const char rows[] = "1,0\n2,1\n3,2\n";
    const ps_config config = config_of(PS_DATA_CSV, "rows.csv", "");
    const ps_dims one = {.n = 1, .d = {1}};
    ps_preprocessing *state = NULL;
    ps_dataset set;
    assert_int_equal(temp_write("rows.csv", rows, strlen(rows)), 0);
    assert_int_equal(temp_write("class_names.txt", names, strlen(names)), 0);
    assert_ok(ps_dataset_load(&config, PS_SPLIT_TRAIN, &one, outputs, &state, &set));
    if (!says) assert_null(set.doubts);
    if (says && !(set.doubts && strstr(set.doubts, says)))
        fail_msg("'%s' lacks '%s'", set.doubts ? set.doubts : "", says);
    ps_dataset_fini(&set);
    ps_preprocessing_destroy(&state);
}

IN_FOLDER(a_list_of_names_of_other_classes_is_doubted)
{
    check_names("ant\nbee\ncat\n", 3, NULL);
    check_names("ant\nbee\n", 3, "2 classes have names, and the labels have 3");
    check_names("ant\nbee\n", 4, "there are 3 classes, and the model has 4 outputs");
    check_names(
        "class\nant\nbee\ncat\n", 3,
        "4 classes have names, and the model has 3 outputs: the first name, class, "
        "is that of class 0");
}

/* says: NULL: nothing is doubted. */
static void check_shared(const char *train, const char *test, const char *says)
{
    const ps_config config = config_of(PS_DATA_IDX, train, test);
    ps_dataset set;
    assert_ok(ps_dataset_load(&config, PS_SPLIT_TEST, &input, 0, NULL, &set));
    assert_ok(ps_dataset_doubt_shared(&config, &set));
    if (!set.doubts != !says || (says && !strstr(set.doubts, says)))
        fail_msg("%s, %s: %s", train, test, set.doubts ? set.doubts : "nothing");
    ps_dataset_fini(&set);
}

IN_FOLDER(samples_of_both_parts_are_doubted)
{
    write_idx("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 0, 10);
    check_shared("", "0-3", "4 samples of "); // as there are no other files
    check_shared("0-7", "7-9", "1 sample of ");
    check_shared("0-6", "7-9", NULL);
    check_shared("7-9", "0-6", NULL);
    write_idx("a", "b", 40, 5);
    assert_int_equal(symlink("a", temp_path("c")), 0);
    check_shared("a,b", "a,b", "5 samples of ");
    check_shared("a,b@1-2", "c,b", "2 samples of ");
    check_shared("a,b@1-2", "c,b@3-4", NULL);
    check_shared("", "a,b", NULL);
    write_idx("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte", 0, 10);
    check_shared("", "", NULL);
    check_shared("", "0-3", NULL);
}

IN_FOLDER(a_link_that_leads_nowhere_is_no_missing_test_set)
{
    ps_dataset set;
    write_idx("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 0, 10);
    assert_ok(load(PS_SPLIT_TEST, "", &set));
    assert_int_equal(set.n, 0);
    assert_int_equal(symlink("nowhere", temp_path("t10k-images-idx3-ubyte")), 0);
    assert_int_equal(load(PS_SPLIT_TEST, "", &set), PS_ERR_IO);
    assert_int_equal(symlink("nowhere", temp_path("t10k-labels-idx1-ubyte")), 0);
    assert_error(load(PS_SPLIT_TEST, "", &set), PS_ERR_IO,
                 "t10k-images-idx3-ubyte: No such");
}

static void check_path(const char *parent, const char *name, const char *path)
{
    char *out;
    assert_ok(ps_data_path(parent, name, &out));
    assert_string_equal(out, path);
    free(out);
}

/* As messages and predictions.csv have it. */
IN_FOLDER(a_part_that_is_the_folder_itself_has_its_path)
{
    check_path("pets", ".", "pets");
    check_path("pets", "train", "pets/train");
    check_path("pets", ".hidden", "pets/.hidden");
    check_path("pets", "/elsewhere", "/elsewhere");
}

IN_FOLDER(split_texts_are_parsed)
{
    ps_data_spec spec;
    assert_ok(ps_data_spec_init(&spec, "k", "0-7999"));
    assert_true(spec.has_range && spec.first == 0 && spec.last == 7999);
    assert_int_equal(spec.n_files, 0);
    assert_ok(ps_data_spec_init(&spec, "k", "@3-4"));
    assert_true(spec.has_range && spec.first == 3);
    assert_ok(ps_data_spec_init(&spec, "k", "./0-7999,b"));
    assert_int_equal(spec.n_files, 2);
    assert_string_equal(spec.files[0], "./0-7999");
    assert_false(spec.has_range);
    ps_data_spec_fini(&spec);
    assert_ok(ps_data_spec_init(&spec, "k", "folder/me@work/a.csv"));
    assert_int_equal(spec.n_files, 1);
    ps_data_spec_fini(&spec);
    assert_ok(ps_data_spec_init(&spec, "k", "folder/me@work/a.csv@3-4"));
    assert_true(spec.has_range && spec.n_files == 1);
    assert_string_equal(spec.files[0], "folder/me@work/a.csv");
    ps_data_spec_fini(&spec);
    static const char *const bad[] = {
        "a@",  "a@1-", "a@-1", "a@1-2-3", "a@9999999999999999999-1",
        "5-4", ",",    "a,",   " ",       "a,b@1 - 2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_error(ps_data_spec_init(&spec, "data.test", bad[i]), PS_ERR_CONFIG,
                     "data.test: ");
        ps_data_spec_fini(&spec);
    }
}

IN_FOLDER(synthetic_data_has_the_models_shape)
{
    ps_config config = config_of(PS_DATA_SYNTHETIC, "", "2-5");
    config.data.path = "", config.data.samples = 30, config.data.test_samples = 9;
    ps_dataset set;
    assert_ok(ps_dataset_load(&config, PS_SPLIT_TRAIN, &input, 3, NULL, &set));
    assert_int_equal(set.n, 30);
    assert_memory_equal(&set.dims, &input, sizeof input);
    assert_true(set.n_classes <= 3);
    ps_dataset_fini(&set);
    assert_ok(ps_dataset_load(&config, PS_SPLIT_TEST, &input, 3, NULL, &set));
    assert_int_equal(set.n, 4);
    ps_dataset_fini(&set);
    config.data.train = "a,b";
    assert_int_equal(ps_dataset_load(&config, PS_SPLIT_TRAIN, &input, 3, NULL, &set),
                     PS_ERR_CONFIG);
}

/* "." exists beside the configuration file and in the working folder: the former counts.
 */
IN_FOLDER(folders_are_beside_the_configuration_file)
{
    const struct {
        const char *path, *want;
    } cases[] = {{".", "/."}, {"", "/."}, {"tmp", NULL}, {"/tmp", NULL}};
    char config[96], here[1024], beside[160], *found = NULL;
    snprintf(config, sizeof config, "%s/job.yaml", folder.path);
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir("/"), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(ps_data_folder(cases[i].path, config, &found));
        snprintf(beside, sizeof beside, "%s%s", folder.path,
                 cases[i].want ? cases[i].want : "");
        assert_string_equal(found, cases[i].want ? beside : cases[i].path);
        free(found);
    }
    assert_int_equal(ps_data_folder("nowhere", config, &found), PS_ERR_IO);
    assert_int_equal(chdir(here), 0);
    snprintf(beside, sizeof beside, "there is no folder %s/nowhere, nor nowhere",
             folder.path);
    assert_non_null(strstr(ps_err_message(), beside));
    assert_null(found);
}
