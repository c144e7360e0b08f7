/* The npy reader. */
#include "fuzz_samples.h"
#include "npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_samples(data, size, ps_npy_read_values, ps_npy_read_labels);
    return 0;
}
