#include "check.h"
#include "stl10.h"
#include "temp_files.h"

enum { SIDE = 96, PIXELS = 3 * SIDE * SIDE };

static char x_path[384], y_path[384];
static char *paths[] = {x_path, y_path};

static int name_files(void **state)
{
    if (temp_folder_make(state) != 0) return -1;
    strcpy(x_path, temp_path("X.bin"));
    strcpy(y_path, temp_path("y.bin"));
    return 0;
}
#define WITH_FILES(test) TEST_WITH(test, name_files, temp_folder_remove)

static uint8_t pixel(int n, int c, int y, int x)
{
    return (uint8_t)((n * 7 + c * 31 + y * 3 + x * 5) % 256);
}

/* As MATLAB wrote them: within a channel the row varies fastest. */
static int write_images(int n_images, size_t cut)
{
    uint8_t *file = malloc((size_t)n_images * PIXELS), *at = file;
    for (int n = 0; n < n_images; n++)
        for (int c = 0; c < 3; c++)
            for (int x = 0; x < SIDE; x++)
                for (int y = 0; y < SIDE; y++)
                    *at++ = pixel(n, c, y, x);
    int code = temp_write("X.bin", file, (size_t)n_images * PIXELS - cut);
    free(file);
    return code;
}

WITH_FILES(columns_become_rows)
{
    ps_dataset set;
    assert_int_equal(write_images(2, 0), 0);
    assert_int_equal(temp_write("y.bin", "\x0a\x01", 2), 0);
    assert_ok(ps_stl10_read(paths, 2, &set));
    assert_int_equal(set.n, 2);
    assert_int_equal(set.dims.d[1], SIDE);
    assert_int_equal(set.labels[0], 9);
    assert_int_equal(set.labels[1], 0);
    const uint8_t *v = set.values;
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 3; c++)
            for (int y = 0; y < SIDE; y++)
                for (int x = 0; x < SIDE; x++)
                    assert_true(*v++ == pixel(n, c, y, x));
    ps_dataset_fini(&set);
}

static void check_bad(const char *labels, size_t n, size_t cut, const char *says)
{
    ps_dataset set;
    assert_int_equal(write_images(2, cut), 0);
    assert_int_equal(temp_write("y.bin", labels, n), 0);
    assert_error(ps_stl10_read(paths, 2, &set), PS_ERR_FORMAT, says);
    assert_null(set.values);
    assert_null(set.labels);
}

WITH_FILES(mismatches_are_named)
{
    check_bad("\x01\x02\x03", 3, 0, "3 labels for 2 images");
    check_bad("\x01\x00", 2, 0, "label 1 is 0");
    check_bad("\x0b\x01", 2, 0, "label 0 is 11");
    check_bad("\x01\x02", 2, 1, "not a whole number of images");
    check_bad("\x01\x02", 2, 2 * PIXELS, "not a whole number of images");
}
