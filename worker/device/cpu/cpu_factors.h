/* The factors of products: float32, or rounded to bf16 with train.precision=bf16. Sums
 * are float32 in all cases. */
#ifndef PS_CPU_FACTORS_H
#define PS_CPU_FACTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config_words.h"
#include "err.h"

typedef enum ps_cpu_factors {
    PS_CPU_FLOAT32,
    PS_CPU_BF16,   // 16 bits each, for the processor's instructions
    PS_CPU_ROUNDED // bf16's values stored as float32, where there are no such
                   // instructions
} ps_cpu_factors;

/* What this processor has for the precision. UNSUPPORTED for fp16; the message says what
 * the processor offers. */
ps_err ps_cpu_factors_choose(ps_precision precision, ps_cpu_factors *out);

bool ps_cpu_has_amx(void);
/* "amx_bf16", "avx512_bf16", or "emulated". */
const char *ps_cpu_bf16_name(void);

/* Of one factor. */
size_t ps_cpu_factor_bytes(ps_cpu_factors factors);
/* Rounds n numbers to nearest, ties to even; out holds n factors. Neither FLOAT32 nor an
 * overlap of x and out is allowed. */
void ps_cpu_narrow(ps_cpu_factors factors, int64_t n, const float *restrict x,
                   void *restrict out);
/* The reverse of BF16; exact. */
void ps_cpu_widen(int64_t n, const uint16_t *restrict x, float *restrict out);

#endif
