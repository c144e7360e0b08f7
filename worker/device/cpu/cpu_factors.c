#include "cpu_factors.h"

#include "cpu_level.h"
#include "dnnl_compat.h"
#include "float16.h"

/* oneDNN's levels are sets of bits: each includes those below it. */
static bool has(unsigned level)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & level) == level;
}

PS_PER_LEVEL(bool, ps_cpu_has_amx, (void), ())
{
    return has(dnnl_cpu_isa_avx512_core_amx);
}

PS_PER_LEVEL(const char *, ps_cpu_bf16_name, (void), ())
{
    if (has(dnnl_cpu_isa_avx512_core_amx)) return "amx_bf16";
    return has(dnnl_cpu_isa_avx512_core_bf16) ? "avx512_bf16" : "emulated";
}

PS_PER_LEVEL(ps_err, ps_cpu_factors_choose, (ps_precision precision, ps_cpu_factors *out),
             (precision, out))
{
    const bool bf16 = has(dnnl_cpu_isa_avx512_core_bf16);
    *out = PS_CPU_FLOAT32;
    if (precision == PS_PRECISION_BF16) *out = bf16 ? PS_CPU_BF16 : PS_CPU_ROUNDED;
    if (precision != PS_PRECISION_FP16) return PS_OK;
    if (!bf16)
        return ps_err_set(
            PS_ERR_UNSUPPORTED,
            "device cpu: train.precision is fp16, which NVIDIA GPUs compute "
            "in (train.device=cuda); this processor has instructions for "
            "float32 alone (train.precision=float32)");
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "device cpu: train.precision is fp16, which NVIDIA GPUs compute in "
                      "(train.device=cuda); this processor has %s (train.precision=bf16)",
                      ps_cpu_bf16_name());
}

PS_PER_LEVEL(size_t, ps_cpu_factor_bytes, (ps_cpu_factors factors), (factors))
{
    return factors == PS_CPU_BF16 ? sizeof(uint16_t) : sizeof(float);
}

PS_PER_LEVEL(void, ps_cpu_narrow,
             (ps_cpu_factors factors, int64_t n, const float *restrict x,
              void *restrict out),
             (factors, n, x, out))
{
    uint16_t *restrict half = out;
    float *restrict whole = out;
    if (factors == PS_CPU_BF16) {
#pragma omp parallel for simd
        for (int64_t i = 0; i < n; i++)
            half[i] = ps_bf16_of(x[i]);
        return;
    }
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++)
        whole[i] = ps_float_of_bf16(ps_bf16_of(x[i]));
}

PS_PER_LEVEL(void, ps_cpu_widen,
             (int64_t n, const uint16_t *restrict x, float *restrict out), (n, x, out))
{
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++)
        out[i] = ps_float_of_bf16(x[i]);
}
