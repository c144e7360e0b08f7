#include "check.h"
#include "idx.h"
#include "temp_files.h"

/* Two images of 2 x 3, pixels 0 .. 11; labels 7 and 1. */
static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0,  0,
                                 0, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 7, 1};

static ps_err read_pair(const char *x, const char *y, ps_dataset *set)
{
    char a[384], b[384];
    snprintf(a, sizeof a, "%s", temp_path(x));
    snprintf(b, sizeof b, "%s", temp_path(y));
    char *paths[] = {a, b};
    return ps_idx_read(paths, 2, set);
}

static void check_pair(const char *x, const char *y)
{
    ps_dataset set;
    assert_ok(read_pair(x, y, &set));
    assert_int_equal(set.n, 2);
    assert_int_equal(set.dims.n, 3);
    assert_int_equal(set.dims.d[0], 1);
    assert_int_equal(set.dims.d[1], 2);
    assert_int_equal(set.dims.d[2], 3);
    assert_false(set.is_float);
    assert_memory_equal(set.values, images + 16, 12);
    assert_int_equal(set.labels[0], 7);
    assert_int_equal(set.labels[1], 1);
    ps_dataset_fini(&set);
}

IN_FOLDER(plain_and_gzip_are_read)
{
    assert_int_equal(temp_write("x", images, sizeof images), 0);
    assert_int_equal(temp_write("y", labels, sizeof labels), 0);
    assert_int_equal(temp_write_gz("x.gz", images, sizeof images), 0);
    assert_int_equal(temp_write_gz("y.gz", labels, sizeof labels), 0);
    check_pair("x", "y");
    check_pair("x.gz", "y.gz");
}

IN_FOLDER(float_images_are_big_endian)
{
    // 1.0f = 3f800000, -2.5f = c0200000; one sample of 2 features
    static const uint8_t file[] = {0, 0, 0x0d, 2,    0, 0, 0,    1,    0, 0,
                                   0, 2, 0x3f, 0x80, 0, 0, 0xc0, 0x20, 0, 0};
    static const uint8_t one[] = {0, 0, 8, 1, 0, 0, 0, 1, 0};
    ps_dataset set;
    assert_int_equal(temp_write("f", file, sizeof file), 0);
    assert_int_equal(temp_write("one", one, sizeof one), 0);
    assert_ok(read_pair("f", "one", &set));
    assert_true(set.is_float);
    assert_int_equal(set.dims.n, 1);
    assert_float_equal(((float *)set.values)[0], 1.0f, 0);
    assert_float_equal(((float *)set.values)[1], -2.5f, 0);
    ps_dataset_fini(&set);
}

/* Reads "bad" as images, with good labels. The message has to name the file and contain
 * the text. */
static void check_bad(const char *says)
{
    ps_dataset set;
    assert_int_equal(temp_write("y", labels, sizeof labels), 0);
    assert_error(read_pair("bad", "y", &set), PS_ERR_FORMAT, temp_path("bad"));
    if (strstr(ps_err_message(), says) == NULL) fail_msg("%s", ps_err_message());
    assert_null(set.values);
    assert_null(set.labels);
}

static void check_bad_byte(size_t at, uint8_t value, const char *says)
{
    uint8_t file[sizeof images];
    memcpy(file, images, sizeof file);
    file[at] = value;
    assert_int_equal(temp_write("bad", file, sizeof file), 0);
    check_bad(says);
    assert_int_equal(temp_write_gz("bad", file, sizeof file), 0);
    check_bad(says);
}

IN_FOLDER(damaged_headers_are_named)
{
    check_bad_byte(0, 1, "is not an IDX file");
    check_bad_byte(2, 9, "type 0x09");
    check_bad_byte(2, 14, "values of type 0x0e (float64); 0x08 (uint8) and 0x0d");
    check_bad_byte(3, 9, "9 dimensions");
    check_bad_byte(3, 1, "has one dimension");
    check_bad_byte(7, 0, "no samples");
    check_bad_byte(7, 1, "more bytes");
    check_bad_byte(4, 0xff, "claims 2566914"); // 4278190082 * 6
}

IN_FOLDER(truncation_is_found_everywhere)
{
    ps_dataset set;
    assert_int_equal(temp_write("y", labels, sizeof labels), 0);
    for (size_t n = 0; n < sizeof images; n++) {
        assert_int_equal(temp_write("bad", images, n), 0);
        assert_int_equal(read_pair("bad", "y", &set), PS_ERR_FORMAT);
        assert_int_equal(temp_write_gz("bad", images, (unsigned)n), 0);
        assert_int_equal(read_pair("bad", "y", &set), PS_ERR_FORMAT);
    }
    // A gzip file that is itself cut off, at every byte.
    assert_int_equal(temp_write_gz("whole", images, sizeof images), 0);
    uint8_t gz[256];
    FILE *f = fopen(temp_path("whole"), "rb");
    size_t bytes = fread(gz, 1, sizeof gz, f);
    fclose(f);
    for (size_t n = 0; n < bytes; n++) {
        assert_int_equal(temp_write("bad", gz, n), 0);
        assert_int_equal(read_pair("bad", "y", &set), PS_ERR_FORMAT);
    }
    check_bad("the gzip file is truncated; download it again");
    gz[bytes - 5] ^= 1;
    assert_int_equal(temp_write("bad", gz, bytes), 0);
    check_bad("the gzip file is damaged (incorrect data check)");
}

/* A gzip file of a few bytes that claims 4 GB is refused by its size alone. */
IN_FOLDER(claims_are_held_against_the_file)
{
    static const uint8_t header[] = {0, 0, 8, 2, 0, 0, 0x10, 0, 0, 0x10, 0, 0};
    assert_int_equal(temp_write_gz("bad", header, sizeof header), 0);
    check_bad("claims 4294967296 bytes");
}

IN_FOLDER(counts_have_to_match)
{
    static const uint8_t three[] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 1, 2};
    ps_dataset set;
    assert_int_equal(temp_write("x", images, sizeof images), 0);
    assert_int_equal(temp_write("y3", three, sizeof three), 0);
    assert_error(read_pair("x", "y3", &set), PS_ERR_FORMAT, "2 images");
    assert_non_null(strstr(ps_err_message(), "3 labels"));
    assert_error(read_pair("x", "x", &set), PS_ERR_FORMAT, "labels are one dimension");
    static const uint8_t floats[] = {0, 0, 0x0d, 1, 0, 0, 0, 1, 0, 0, 0, 0};
    assert_int_equal(temp_write("floats", floats, sizeof floats), 0);
    assert_error(read_pair("x", "floats", &set), PS_ERR_FORMAT,
                 "this has 1 of type 0x0d (float32)");
    assert_int_equal(read_pair("x", "absent", &set), PS_ERR_IO);
    assert_int_equal(read_pair(".", "y3", &set), PS_ERR_IO);
}
