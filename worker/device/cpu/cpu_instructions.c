#include "cpu_instructions.h"

/* oneDNN's levels are sets of bits: each includes those below it. */
static bool has(unsigned level)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & level) == level;
}

bool ps_cpu_has_amx(ps_cpu_factors factors)
{
    return factors == PS_CPU_FP16 ? has(PS_DNNL_ISA_AMX_FP16)
                                  : has(dnnl_cpu_isa_avx512_core_amx);
}

const char *ps_cpu_products_name(ps_cpu_factors factors)
{
    if (factors == PS_CPU_FP16)
        return ps_cpu_has_amx(factors) ? "amx_fp16" : "avx512_fp16";
    if (factors == PS_CPU_BF16)
        return ps_cpu_has_amx(factors) ? "amx_bf16" : "avx512_bf16";
    return "emulated";
}

dnnl_data_type_t ps_cpu_factor_type(ps_cpu_factors factors)
{
    if (factors == PS_CPU_BF16) return dnnl_bf16;
    return factors == PS_CPU_FP16 ? dnnl_f16 : dnnl_f32;
}

/* The CPU has no code for fp16. */
static ps_err refuse_fp16(void)
{
    const bool bf16 = has(dnnl_cpu_isa_avx512_core_bf16);
    if (!bf16)
        return ps_err_set(
            PS_ERR_UNSUPPORTED,
            "device cpu: train.precision is fp16, which NVIDIA GPUs compute "
            "in (train.device=cuda); this processor has instructions for "
            "float32 alone (train.precision=float32)");
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "device cpu: train.precision is fp16, which NVIDIA GPUs compute in "
                      "(train.device=cuda); this processor has %s (train.precision=bf16)",
                      ps_cpu_products_name(PS_CPU_BF16));
}

ps_err ps_cpu_factors_choose(ps_precision precision, ps_cpu_factors *out)
{
    *out = PS_CPU_FLOAT32;
    if (precision == PS_PRECISION_BF16)
        *out = has(dnnl_cpu_isa_avx512_core_bf16) ? PS_CPU_BF16 : PS_CPU_ROUNDED_BF16;
    return precision == PS_PRECISION_FP16 ? refuse_fp16() : PS_OK;
}

const char *ps_cpu_isa_name(void)
{
    switch ((int)dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
        return "sse41";
    case dnnl_cpu_isa_avx:
        return "avx";
    case dnnl_cpu_isa_avx2:
    case dnnl_cpu_isa_avx2_vnni:
        return "avx2";
    case dnnl_cpu_isa_avx512_core:
        return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "avx512_core_bf16";
    case PS_DNNL_ISA_FP16:
        return "avx512_core_fp16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "avx512_core_amx";
    case PS_DNNL_ISA_AMX_FP16:
        return "avx512_core_amx_fp16";
    default:
        return "for processors newer than avx512_core_amx";
    }
}
