/* The idx reader. */
#include "fuzz_samples.h"
#include "idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_samples(data, size, ps_idx_read_values, ps_idx_read_labels);
    return 0;
}
