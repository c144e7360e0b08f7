/* Any bytes are either a safetensors file or an error. The reader stays within them. */
#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    ps_st_file file;
    if (ps_st_parse("fuzz", bytes, n, &file) == PS_OK) {
        volatile uint8_t sum = 0;
        for (int i = 0; i < file.n; i++)
            for (uint64_t k = 0; k < file.tensors[i].bytes; k++)
                sum = (uint8_t)(sum + ((const uint8_t *)file.tensors[i].data)[k]);
    }
    ps_st_fini(&file);
    return 0;
}
