#include "cpu_factors.h"

#include "cpu_level.h"

PS_PER_LEVEL(size_t, ps_cpu_factor_bytes, (ps_cpu_factors factors), (factors))
{
    return ps_cpu_factors_are_narrow(factors) ? sizeof(uint16_t) : sizeof(float);
}

PS_PER_LEVEL(void, ps_cpu_narrow,
             (ps_cpu_factors factors, int64_t n, const float *restrict x,
              void *restrict out),
             (factors, n, x, out))
{
    uint16_t *restrict half = out;
    float *restrict whole = out;
    const ps_cpu_factors type = ps_cpu_factors_type(factors);
    if (ps_cpu_factors_are_narrow(factors))
        PS_CPU_EACH(type, n, half[i] = ps_cpu_narrow_of(FP16, x[i]));
    else
        PS_CPU_EACH(type, n,
                    whole[i] = ps_cpu_wide_of(FP16, ps_cpu_narrow_of(FP16, x[i])));
}

PS_PER_LEVEL(void, ps_cpu_widen,
             (ps_cpu_factors type, int64_t n, const uint16_t *restrict x,
              float *restrict out),
             (type, n, x, out))
{
    PS_CPU_EACH(type, n, out[i] = ps_cpu_wide_of(FP16, x[i]));
}
