#include "check.h"
#include "cifar.h"
#include "temp_files.h"

enum { PIXELS = 3072 };

/* Writes n records. Pixel i of record k is (i + k) % 251. Its label is k % 10, or 90 + k
 * behind a coarse one. */
static unsigned make_records(uint8_t *out, int first, int n, bool coarse)
{
    uint8_t *at = out;
    for (int k = first; k < first + n; k++) {
        if (coarse) *at++ = 19;
        *at++ = (uint8_t)(coarse ? 90 + k : k % 10);
        for (int i = 0; i < PIXELS; i++)
            *at++ = (uint8_t)((i + k) % 251);
    }
    return (unsigned)(at - out);
}

IN_FOLDER(batches_follow_each_other)
{
    static uint8_t file[4 * (PIXELS + 1)];
    unsigned bytes = make_records(file, 0, 3, false);
    assert_int_equal(temp_write("a.bin", file, bytes), 0);
    bytes = make_records(file, 3, 2, false);
    assert_int_equal(temp_write_gz("b.bin.gz", file, bytes), 0);
    char a[384], b[384];
    char *paths[] = {strcpy(a, temp_path("a.bin")), strcpy(b, temp_path("b.bin.gz"))};
    ps_dataset set;
    assert_ok(ps_cifar10_read(paths, 2, &set));
    assert_int_equal(set.n, 5);
    assert_int_equal(set.dims.n, 3);
    assert_int_equal(set.dims.d[0], 3);
    assert_int_equal(set.dims.d[2], 32);
    for (int k = 0; k < 5; k++) {
        assert_int_equal(set.labels[k], k);
        for (int i = 0; i < PIXELS; i++)
            assert_int_equal(((uint8_t *)set.values)[k * PIXELS + i], (i + k) % 251);
    }
    ps_dataset_fini(&set);
}

IN_FOLDER(the_fine_label_counts)
{
    static uint8_t file[3 * (PIXELS + 2)];
    unsigned bytes = make_records(file, 0, 3, true);
    assert_int_equal(temp_write("fine", file, bytes), 0);
    char *paths[] = {temp_path("fine")};
    ps_dataset set;
    assert_ok(ps_cifar100_read(paths, 1, &set));
    assert_int_equal(set.n, 3);
    assert_int_equal(set.labels[2], 92);
    assert_int_equal(((uint8_t *)set.values)[2 * PIXELS], 2);
    ps_dataset_fini(&set);
    file[1] = 100;
    assert_int_equal(temp_write("fine", file, bytes), 0);
    assert_error(ps_cifar100_read(paths, 1, &set), PS_ERR_FORMAT,
                 "record 0 has the label 100");
}

IN_FOLDER(parts_of_records_are_refused)
{
    static uint8_t file[2 * (PIXELS + 1)];
    unsigned bytes = make_records(file, 0, 2, false);
    char *paths[] = {temp_path("cut")};
    ps_dataset set;
    for (unsigned n = 0; n < bytes; n += n == 0 || n == PIXELS ? 2 : 1023) {
        assert_int_equal(temp_write("cut", file, n), 0);
        assert_error(ps_cifar10_read(paths, 1, &set), PS_ERR_FORMAT, "records of 3073");
        assert_null(set.values);
    }
    paths[0] = temp_path("absent");
    assert_int_equal(ps_cifar10_read(paths, 1, &set), PS_ERR_IO);
}
