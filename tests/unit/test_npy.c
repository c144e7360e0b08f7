/* Files that numpy 1.24 wrote (tests/fuzz/corpus/npy) are read as numpy reads them. */
#include <unistd.h>

#include "check.h"
#include "npy.h"
#include "temp_files.h"

static const ps_wanted classes = {0};

static ps_err read_pair(const char *x, const char *y, ps_dataset *set)
{
    char a[256], b[256];
    snprintf(a, sizeof a, "tests/fuzz/corpus/npy/%s", x);
    snprintf(b, sizeof b, "tests/fuzz/corpus/npy/%s", y);
    char *paths[] = {a, b};
    return ps_npy_read(paths, 2, &classes, set);
}

static void check_good(const char *x, const char *y, int n_dims, bool is_float)
{
    ps_dataset set;
    assert_ok(read_pair(x, y, &set));
    assert_int_equal(set.n, 2);
    assert_int_equal(set.dims.n, n_dims);
    assert_int_equal(set.is_float, is_float);
    assert_int_equal(set.dims.d[n_dims - 1], 3);
    ps_dataset_fini(&set);
}

TEST(every_version_and_type_is_read)
{
    check_good("f4_2x3.npy", "i8_2.npy", 1, true);
    check_good("f8_2x3_v2.npy", "i4_2.npy", 1, true);
    check_good("u1_2x1x2x3_v3.npy", "i2_2x1.npy", 3, false);
    check_good("u1_2x2x3.npy", "i8_2.npy", 2, false);
    check_good("good_gz.npy.gz", "i8_2.npy", 1, true);
}

TEST(values_are_numpys)
{
    ps_dataset set;
    assert_ok(read_pair("f8_2x3_v2.npy", "i2_2x1.npy", &set));
    for (int i = 0; i < 6; i++)
        assert_true(((float *)set.values)[i] == (float)((double)i / 3));
    assert_int_equal(set.labels[0], 300);
    assert_int_equal(set.labels[1], 0);
    ps_dataset_fini(&set);
    assert_ok(read_pair("u1_2x2x3.npy", "i8_2.npy", &set));
    for (int i = 0; i < 12; i++)
        assert_int_equal(((uint8_t *)set.values)[i], i);
    assert_int_equal(set.labels[0], 1);
    ps_dataset_fini(&set);
    assert_ok(read_pair("nan.npy", "i8_2.npy", &set));
    set.first = 10;
    assert_error(ps_dataset_check(&set, &classes), PS_ERR_NUMERIC, "sample 10: value 1");
    ps_dataset_fini(&set);
}

/* A file of two bytes, 3 and 1. */
static char *write_labels(const char *descr, const char *fortran, const char *shape)
{
    char text[128], *path = temp_path("labels.npy");
    const int n =
        snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': %s, 'shape': %s}\n",
                 descr, fortran, shape);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fwrite("\x93NUMPY\x01", 1, 8, f); // and a NUL
    fprintf(f, "%c%c%s%c%c", n, 0, text, 3, 1);
    fclose(f);
    return path;
}

IN_FOLDER(labels_of_other_kinds_say_what_makes_them_integers)
{
    static const struct {
        const char *descr, *shape, *says;
    } cases[] = {
        {"<f8", "(2, 3)", "these are of type f8; save y.argmax(1), or take a loss"},
        {"<i8", "(2, 3)", "labels have one dimension, these have 2; save y.argmax(1)"},
        {"<f4", "(2,)", "type f4; save them with astype('int64'), or take a loss"},
        {"|b1", "(2,)", "type b1; save them with astype('int64')"},
        {"<U1", "(2,)", "type U1; save numpy.unique(y, return_inverse=True)[1], of"},
        {"<U12", "(2,)", "type U12; save numpy.unique("},
        {"|O", "(2,)", "type O; save numpy.unique("},
        {"<M8[ns]", "(2,)", "type M8[ns]; save them with astype('int64')"},
        {"<i4x", "(2,)", "type i4x; save them with astype"},
        {"i4", "(2,)", "a descr that is no type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ps_dataset set;
        char *y = write_labels(cases[i].descr, "False", cases[i].shape);
        char *paths[] = {"tests/fuzz/corpus/npy/f4_2x3.npy", y};
        assert_int_not_equal(ps_npy_read(paths, 2, &classes, &set), PS_OK);
        if (!strstr(ps_err_message(), cases[i].says)) fail_msg("%s", ps_err_message());
    }
    const ps_wanted numbers = {.numbers = true, .n = 1};
    char *paths[] = {"tests/fuzz/corpus/npy/f4_2x3.npy",
                     write_labels("|b", "False", "(2,)")};
    ps_dataset set;
    assert_error(ps_npy_read(paths, 2, &numbers, &set), PS_ERR_UNSUPPORTED,
                 "of type b are not supported");
    assert_int_equal(temp_write("labels.npy", "PK\3\4abcdefgh", 12), 0);
    assert_error(
        ps_npy_read(paths, 2, &classes, &set), PS_ERR_FORMAT,
        ": is an .npz file, of several arrays: save each of them with numpy.save");
}

/* numpy.asfortranarray of labels has the bytes of other labels. */
IN_FOLDER(fortran_order_of_one_dimension_is_no_order)
{
    const char *const shapes[] = {"(2,)", "(2, 1)"};
    for (int i = 0; i < 2; i++) {
        char *path = write_labels("|u1", "True", shapes[i]);
        char *paths[] = {"tests/fuzz/corpus/npy/f4_2x3.npy", path};
        ps_dataset set;
        assert_ok(ps_npy_read(paths, 2, &classes, &set));
        assert_int_equal(set.labels[0], 3);
        assert_int_equal(set.labels[1], 1);
        ps_dataset_fini(&set);
    }
}

static void check_bad(const char *x, const char *y, ps_err expected, const char *says)
{
    ps_dataset set;
    assert_error(read_pair(x, y, &set), expected, says);
    assert_null(set.values);
    assert_null(set.labels);
}

TEST(what_is_not_read_is_said)
{
    const char *y = "i8_2.npy", *x = "f4_2x3.npy";
    check_bad("fortran.npy", y, PS_ERR_UNSUPPORTED, "Fortran order");
    check_bad("big_endian.npy", y, PS_ERR_UNSUPPORTED, "big-endian");
    check_bad("f2.npy", y, PS_ERR_UNSUPPORTED, "type f2");
    check_bad("i4_2.npy", y, PS_ERR_UNSUPPORTED, "type i4");
    check_bad("structured.npy", y, PS_ERR_FORMAT, "string");
    check_bad("scalar.npy", y, PS_ERR_FORMAT, "single number");
    check_bad("empty.npy", y, PS_ERR_FORMAT, "no samples");
    check_bad("huge_shape.npy", y, PS_ERR_FORMAT, "can address");
    check_bad("huge_size.npy", y, PS_ERR_FORMAT, "too large");
    check_bad("no_end.npy", y, PS_ERR_FORMAT, "not a list of sizes");
    check_bad("twice.npy", y, PS_ERR_FORMAT, "twice");
    check_bad("lacks.npy", y, PS_ERR_FORMAT, "lacks descr");
    check_bad("nine_dims.npy", y, PS_ERR_FORMAT, "too many dimensions");
    check_bad("header_cut.npy", y, PS_ERR_FORMAT, "claims an npy header");
    check_bad("claim_gz.npy.gz", y, PS_ERR_FORMAT, "claims 1073741824 bytes");
    check_bad("../idx/images", y, PS_ERR_FORMAT, "is not an npy file");
    check_bad("absent.npy", y, PS_ERR_IO, "absent.npy");
    check_bad(x, "negative_i1.npy", PS_ERR_FORMAT, "label 1 is -1");
    check_bad(x, "u8_too_large.npy", PS_ERR_FORMAT, "label 1 is 1099511627776");
    check_bad(x, "u8_most.npy", PS_ERR_FORMAT,
              "label 1 is 18446744073709551615; labels count from 0, below 2147483647");
    check_bad(x, "f4_2x3.npy", PS_ERR_UNSUPPORTED, "labels are integers");
    check_bad("u1_2x2x3.npy", "empty.npy", PS_ERR_UNSUPPORTED, "labels are integers");
}

/* Each sample of a file that stays on disk equals that of a file that is read at once. */
static void check_streamed(const char *x)
{
    char a[256], b[] = "tests/fuzz/corpus/npy/i8_2.npy";
    snprintf(a, sizeof a, "tests/fuzz/corpus/npy/%s", x);
    char *paths[] = {a, b};
    ps_dataset whole, open;
    assert_ok(ps_npy_read(paths, 2, &classes, &whole));
    assert_ok(ps_npy_open(paths, 2, &classes, &open));
    assert_null(open.values);
    assert_memory_equal(&open.dims, &whole.dims, sizeof open.dims);
    assert_int_equal(open.is_float, whole.is_float);
    const size_t bytes = (size_t)ps_dims_count(&open.dims) * (open.is_float ? 4 : 1);
    void *room = malloc(ps_sample_file_room(open.stream));
    for (int64_t i = 2; i-- > 0;) {
        assert_ok(ps_sample_file_read(open.stream, i, room));
        assert_memory_equal(room, (char *)whole.values + (size_t)i * bytes, bytes);
    }
    assert_ok(ps_dataset_slice(&open, 1, 1));
    assert_ok(ps_sample_file_read(open.stream, 0, room));
    assert_memory_equal(room, (char *)whole.values + bytes, bytes);
    free(room);
    ps_dataset_fini(&open);
    ps_dataset_fini(&whole);
}

TEST(samples_may_stay_in_their_file)
{
    check_streamed("f4_2x3.npy");
    check_streamed("f8_2x3_v2.npy");
    check_streamed("u1_2x1x2x3_v3.npy");
    check_streamed("u1_2x2x3.npy");
}

static void cannot_stream(const char *x, ps_err expected, const char *says)
{
    char b[] = "tests/fuzz/corpus/npy/i8_2.npy", a[256];
    char *paths[] = {a, b};
    ps_dataset set;
    snprintf(a, sizeof a, "%s", x);
    assert_error(ps_npy_open(paths, 2, &classes, &set), expected, says);
    assert_null(set.stream);
}

/* Writes the first `bytes` of the 152 bytes of a file of two samples. */
static void write_cut(size_t bytes)
{
    char content[256] = {0};
    FILE *f = fopen("tests/fuzz/corpus/npy/f4_2x3.npy", "rb");
    assert_non_null(f);
    assert_int_equal(fread(content, 1, sizeof content, f), 152);
    fclose(f);
    assert_int_equal(temp_write("x.npy", content, bytes), 0);
}

IN_FOLDER(a_file_that_cannot_be_streamed_is_refused)
{
    cannot_stream("tests/fuzz/corpus/npy/good_gz.npy.gz", PS_ERR_UNSUPPORTED,
                  "is compressed");
    cannot_stream("tests/fuzz/corpus/npy/fortran.npy", PS_ERR_UNSUPPORTED, "Fortran");
    cannot_stream("tests/fuzz/corpus/npy/empty.npy", PS_ERR_FORMAT, "no samples");
    cannot_stream("tests/fuzz/corpus/npy/huge_shape.npy", PS_ERR_FORMAT, "can address");
    write_cut(151);
    cannot_stream(temp_path("x.npy"), PS_ERR_FORMAT,
                  "has 151 bytes, and its header says 152");
    write_cut(153);
    cannot_stream(temp_path("x.npy"), PS_ERR_FORMAT,
                  "has 153 bytes, and its header says 152");
}

IN_FOLDER(a_file_that_becomes_shorter_names_the_sample)
{
    char x[384], y[] = "tests/fuzz/corpus/npy/i8_2.npy";
    char *paths[] = {x, y};
    float room[3];
    ps_dataset set;
    write_cut(152);
    snprintf(x, sizeof x, "%s", temp_path("x.npy"));
    assert_ok(ps_npy_open(paths, 2, &classes, &set));
    assert_int_equal(truncate(x, 151), 0);
    assert_ok(ps_sample_file_read(set.stream, 0, room));
    assert_error(ps_sample_file_read(set.stream, 1, room), PS_ERR_FORMAT,
                 "x.npy: has become shorter: sample 1 is");
    ps_dataset_fini(&set);
}

TEST(a_number_that_is_not_finite_is_found_when_it_is_read)
{
    char x[] = "tests/fuzz/corpus/npy/nan.npy", y[] = "tests/fuzz/corpus/npy/i8_2.npy";
    char *paths[] = {x, y};
    float room[3];
    ps_dataset set;
    assert_ok(ps_npy_open(paths, 2, &classes, &set));
    assert_ok(ps_dataset_check(&set, &classes));
    assert_error(ps_sample_file_read(set.stream, 0, room), PS_ERR_NUMERIC,
                 "nan.npy: sample 0: value 1");
    ps_dataset_fini(&set);
}
