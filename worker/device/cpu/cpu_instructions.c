#include "cpu_instructions.h"

#include "cpu_processor.h"

/* oneDNN's levels are sets of bits: each includes those below it. */
static bool instructions_has(unsigned level)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & level) == level;
}

bool ps_cpu_has_amx(ps_cpu_factors factors)
{
    return factors == PS_CPU_FP16 ? instructions_has(PS_DNNL_ISA_AMX_FP16)
                                  : instructions_has(dnnl_cpu_isa_avx512_core_amx);
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

static ps_err make_fp16_conv(dnnl_engine_t engine, dnnl_primitive_desc_t *out)
{
    static const char who[] = "fp16";
    const dnnl_dims_t image = {1, 16, 8, 8}, weights = {16, 16, 3, 3};
    ps_dnnl_md *x = NULL, *w = NULL;
    ps_err err = ps_dnnl_md_create_as(who, 4, image, dnnl_f16, dnnl_nhwc, &x);
    if (err == PS_OK)
        err = ps_dnnl_md_create_as(who, 4, weights, dnnl_f16, dnnl_format_tag_any, &w);
    const ps_dnnl_conv conv = {.engine = engine,
                               .who = who,
                               .alg = dnnl_convolution_direct,
                               .src = x,
                               .weights = w,
                               .dst = x,
                               .stride = {1, 1},
                               .padding = {1, 1}};
    if (err == PS_OK) err = ps_dnnl_conv_forward(&conv, true, out);
    ps_dnnl_md_destroy(&x);
    ps_dnnl_md_destroy(&w);
    return err;
}

/* Asks the library for a convolution: versions that know the instructions do not all have
 * code for them. */
static bool has_fp16(void)
{
    dnnl_engine_t engine = NULL;
    dnnl_primitive_desc_t pd = NULL;
    bool fast = false;
    if (!instructions_has(PS_DNNL_ISA_FP16) ||
        dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        return false;
    if (make_fp16_conv(engine, &pd) == PS_OK) fast = !ps_dnnl_pd_is_reference(pd);
    ps_dnnl_pd_destroy(&pd);
    dnnl_engine_destroy(engine);
    return fast;
}

/* Says what the processor and the library offer, and what would mend it. */
static ps_err refuse_fp16(void)
{
    static const char subject[] = "device cpu: train.precision is fp16";
    const dnnl_version_t *v = dnnl_version();
    const char *instead = instructions_has(dnnl_cpu_isa_avx512_core_bf16)
                              ? "train.precision=bf16"
                              : "train.precision=float32";
    const char *own = ps_cpu_processor_has("amx_fp16")      ? "AMX-FP16"
                      : ps_cpu_processor_has("avx512_fp16") ? "AVX512-FP16"
                                                            : NULL;
    if (!own)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "%s; this processor has no AVX512-FP16, and the best that "
                          "oneDNN %d.%d.%d uses here is %s: take %s, or a GPU "
                          "(train.device=cuda)",
                          subject, v->major, v->minor, v->patch, ps_cpu_isa_name(),
                          instead);
    if (v->major < 3)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "%s; this processor has %s, but oneDNN %d.%d.%d has no fp16 "
                          "for CPUs: build with oneDNN 3, or take %s",
                          subject, own, v->major, v->minor, v->patch, instead);
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "%s; this processor has %s, but oneDNN %d.%d.%d uses %s at most: "
                      "unset ONEDNN_MAX_CPU_ISA, build with a newer oneDNN, or take %s",
                      subject, own, v->major, v->minor, v->patch, ps_cpu_isa_name(),
                      instead);
}

ps_err ps_cpu_factors_choose(ps_precision precision, ps_cpu_factors *out)
{
    *out = PS_CPU_FLOAT32;
    if (precision == PS_PRECISION_BF16)
        *out = instructions_has(dnnl_cpu_isa_avx512_core_bf16) ? PS_CPU_BF16
                                                               : PS_CPU_ROUNDED_BF16;
    if (precision != PS_PRECISION_FP16) return PS_OK;
    *out = PS_CPU_FP16;
    return has_fp16() ? PS_OK : refuse_fp16();
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
