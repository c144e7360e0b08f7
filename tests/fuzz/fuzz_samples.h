/* A reader of sample files: any bytes as a file of samples, and as a file of labels. */
#ifndef PS_FUZZ_SAMPLES_H
#define PS_FUZZ_SAMPLES_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data_files.h"
#include "dataset.h"

typedef ps_err (*fuzz_read_values)(ps_source *source, ps_dataset *set);
typedef ps_err (*fuzz_read_labels)(ps_source *source, int32_t **labels, int64_t *n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_open_bytes(const uint8_t *data, size_t size, ps_source *source)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || lseek(fd, 0, SEEK_SET) != 0)
        abort();
    if (ps_source_init_fd(source, fd, "fuzz") != PS_OK) abort();
}

static void fuzz_samples(const uint8_t *data, size_t size, fuzz_read_values read_values,
                         fuzz_read_labels read_labels)
{
    ps_source source;
    const ps_wanted any = {0};
    ps_dataset set = {0};
    fuzz_open_bytes(data, size, &source);
    if (read_values(&source, &set) == PS_OK) {
        set.labels = calloc((size_t)set.n, sizeof *set.labels);
        if (set.labels == NULL) abort();
        if (ps_dataset_check(&set, &any) == PS_OK &&
            ps_dataset_slice(&set, 0, 0) != PS_OK)
            abort();
    }
    ps_dataset_fini(&set);
    ps_source_fini(&source);

    int32_t *labels = NULL;
    int64_t n = 0;
    fuzz_open_bytes(data, size, &source);
    ps_err err = read_labels(&source, &labels, &n);
    if ((err == PS_OK) != (labels != NULL)) abort();
    free(labels);
    ps_source_fini(&source);
}

#endif
