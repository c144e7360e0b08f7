/* The npy reader: samples are read at once, or stay in their file. */
#include <stdio.h>
#include <string.h>

#include "fuzz_samples.h"
#include "npy.h"

static void read_numbers(const uint8_t *data, size_t size)
{
    const ps_wanted any = {.numbers = true};
    ps_source source;
    ps_dataset set = {0};
    int64_t n = 0;
    fuzz_open_bytes(data, size, &source);
    if (ps_npy_read_answers(&source, &any, &set, &n) == PS_OK &&
        !set.labels == !set.targets)
        abort();
    ps_dataset_fini(&set);
    ps_source_fini(&source);
}

/* If an uncompressed file can be read, each of its samples can be read from the open
 * file, too. */
static void compare_streamed(const ps_dataset *whole, const ps_dataset *open)
{
    const size_t bytes = (size_t)ps_dims_count(&whole->dims) * (whole->is_float ? 4 : 1);
    void *room = malloc(ps_sample_file_room(open->stream));
    if (room == NULL || open->n != whole->n) abort();
    for (int64_t i = 0; i < open->n && i < 64; i++) {
        const ps_err err = ps_sample_file_read(open->stream, i, room);
        if (err != PS_OK && err != PS_ERR_NUMERIC) abort();
        if (err == PS_OK &&
            memcmp(room, (char *)whole->values + (size_t)i * bytes, bytes))
            abort();
    }
    free(room);
}

/* read: the result of reading the file at once. */
static void open_streamed(const uint8_t *data, size_t size, ps_err read, bool compressed,
                          const ps_dataset *whole)
{
    char path[32];
    ps_source opened;
    ps_dataset open = {0};
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ps_source_init(&opened, path) != PS_OK) abort();
    const ps_err err = ps_npy_open_values(&opened, &open);
    if ((err == PS_OK) != (read == PS_OK && !compressed)) abort();
    if (err == PS_OK) compare_streamed(whole, &open);
    ps_dataset_fini(&open);
    ps_source_fini(&opened);
    close(fd);
}

/* Writing a file costs more than all the rest, so only a few of the refused inputs get
 * one. */
static void read_streamed(const uint8_t *data, size_t size)
{
    ps_source source;
    ps_dataset whole = {0};
    fuzz_open_bytes(data, size, &source);
    const bool compressed = !gzdirect(source.file);
    const ps_err read = ps_npy_read_values(&source, &whole);
    if (read == PS_OK || size % 32 == 0)
        open_streamed(data, size, read, compressed, &whole);
    ps_dataset_fini(&whole);
    ps_source_fini(&source);
}

static ps_err read_labels(ps_source *source, int32_t **labels, int64_t *n)
{
    const ps_wanted any = {0};
    ps_dataset set = {0};
    *labels = NULL;
    PS_TRY(ps_npy_read_answers(source, &any, &set, n));
    *labels = set.labels;
    return PS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_samples(data, size, ps_npy_read_values, read_labels);
    read_numbers(data, size);
    read_streamed(data, size);
    return 0;
}
