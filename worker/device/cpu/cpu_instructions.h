/* Which instructions the processor and oneDNN have for products of 16 bits. */
#ifndef PS_CPU_INSTRUCTIONS_H
#define PS_CPU_INSTRUCTIONS_H

#include "config_words.h"
#include "cpu_factors.h"
#include "dnnl_compat.h"

/* The factors for the precision; bf16 is rounded where it has to be emulated.
 * UNSUPPORTED for fp16 where the processor or the library has no code for it; the message
 * says what they have. */
ps_err ps_cpu_factors_choose(ps_precision precision, ps_cpu_factors *out);

/* The library's type of a factor. */
dnnl_data_type_t ps_cpu_factor_type(ps_cpu_factors factors);

/* Whether AMX multiplies the factors, which are BF16 or FP16. */
bool ps_cpu_has_amx(ps_cpu_factors factors);

/* What computes their products: "amx_bf16", "avx512_bf16", "amx_fp16", "avx512_fp16", or
 * "emulated" for those that are rounded. */
const char *ps_cpu_products_name(ps_cpu_factors factors);

/* The best instructions that the library uses: "avx512_core_bf16". */
const char *ps_cpu_isa_name(void);

#endif
