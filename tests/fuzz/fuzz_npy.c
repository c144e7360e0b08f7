/* The npy reader. */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_samples(data, size, ps_npy_read_values, ps_npy_read_labels);
    read_numbers(data, size);
    return 0;
}
