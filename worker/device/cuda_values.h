/* How kernels read and write values in the GPU's memory. */
#ifndef PS_CUDA_VALUES_H
#define PS_CUDA_VALUES_H

#include <stddef.h>

#include "cuda_index.h"
#include "float16.h"

PS_ARITH void ps_store(float *to, float value, bool add)
{
    *to = add ? *to + value : value;
}

/* What the factors of products are rounded to. */
typedef enum ps_factors { PS_FACTORS_FP32, PS_FACTORS_BF16, PS_FACTORS_FP16 } ps_factors;

PS_ARITH uint16_t ps_narrow(float x, ps_factors kind)
{
    return kind == PS_FACTORS_BF16 ? ps_bf16_of(x) : ps_fp16_of(x);
}

#endif
