#include "typed_reduce.h"

#include <string.h>

#include "float16.h"

enum { BLOCK = 1024 }; // elements of a sum that is made beside its operands

#define EACH(n) _Pragma("omp simd") for (uint64_t i = 0; i < (n); i++)

#define IS_NAN(x) ((x) != (x))
#define NEVER(x)  false

/* out = a op b. Integers add and multiply as unsigned, which may wrap around. */
#define ARITHMETIC(type, wraps, is_nan)                                                  \
    case PS_REDUCE_SUM:                                                                  \
    case PS_REDUCE_AVG:                                                                  \
        EACH(n) out[i] = (type)((wraps)a[i] + (wraps)b[i]);                              \
        break;                                                                           \
    case PS_REDUCE_PRODUCT:                                                              \
        EACH(n) out[i] = (type)((wraps)a[i] * (wraps)b[i]);                              \
        break;                                                                           \
    case PS_REDUCE_MIN:                                                                  \
        EACH(n) out[i] = (b[i] < a[i]) | is_nan(b[i]) ? b[i] : a[i];                     \
        break;                                                                           \
    case PS_REDUCE_MAX:                                                                  \
        EACH(n) out[i] = (b[i] > a[i]) | is_nan(b[i]) ? b[i] : a[i];                     \
        break;

#define BITS(type)                                                                       \
    case PS_REDUCE_BAND:                                                                 \
        EACH(n) out[i] = (type)(a[i] & b[i]);                                            \
        break;                                                                           \
    case PS_REDUCE_BOR:                                                                  \
        EACH(n) out[i] = (type)(a[i] | b[i]);                                            \
        break;                                                                           \
    case PS_REDUCE_BXOR:                                                                 \
        EACH(n) out[i] = (type)(a[i] ^ b[i]);                                            \
        break;
#define NO_BITS(type)

/* typed_pair: out = a op b; typed_share: out /= n_from. */
#define TYPED(name, type, wraps, divides, is_nan, bits)                                  \
    static void typed_pair_##name(void *to, const void *first, const void *second,       \
                                  uint64_t n, int op)                                    \
    {                                                                                    \
        type *out = to;                                                                  \
        const type *a = first, *b = second;                                              \
        switch (op) {                                                                    \
            ARITHMETIC(type, wraps, is_nan)                                              \
            bits(type) default : break;                                                  \
        }                                                                                \
    }                                                                                    \
    static void typed_share_##name(void *to, int n_from, uint64_t n)                     \
    {                                                                                    \
        type *out = to;                                                                  \
        for (uint64_t i = 0; i < n; i++)                                                 \
            out[i] = (type)(out[i] / (divides)n_from);                                   \
    }
TYPED(float32, float, float, float, IS_NAN, NO_BITS)
TYPED(float64, double, double, double, IS_NAN, NO_BITS)
TYPED(int8, int8_t, uint32_t, int, NEVER, BITS)
TYPED(uint8, uint8_t, uint32_t, int, NEVER, BITS)
TYPED(int16, int16_t, uint32_t, int, NEVER, BITS)
TYPED(int32, int32_t, uint32_t, int, NEVER, BITS)
TYPED(int64, int64_t, uint64_t, int, NEVER, BITS)

#define HALF(name)                                                                       \
    static void typed_widen_##name(float *out, const void *from, uint64_t n)             \
    {                                                                                    \
        const uint16_t *in = from;                                                       \
        EACH(n) out[i] = ps_float_of_##name(in[i]);                                      \
    }                                                                                    \
    static void typed_round_##name(void *to, const float *in, uint64_t n)                \
    {                                                                                    \
        uint16_t *out = to;                                                              \
        EACH(n) out[i] = ps_##name##_of(in[i]);                                          \
    }
HALF(fp16)
HALF(bf16)

static const struct {
    size_t bytes;
    void (*pair)(void *out, const void *a, const void *b, uint64_t n, int op);
    void (*share)(void *out, int n_from, uint64_t n);
    void (*widen)(float *out, const void *from, uint64_t n); // of halves
    void (*round)(void *out, const float *in, uint64_t n);
} reduced_types[] = {
    [PS_DTYPE_FLOAT32] = {4, typed_pair_float32, typed_share_float32, NULL, NULL},
    [PS_DTYPE_FLOAT64] = {8, typed_pair_float64, typed_share_float64, NULL, NULL},
    [PS_DTYPE_INT8] = {1, typed_pair_int8, typed_share_int8, NULL, NULL},
    [PS_DTYPE_UINT8] = {1, typed_pair_uint8, typed_share_uint8, NULL, NULL},
    [PS_DTYPE_INT16] = {2, typed_pair_int16, typed_share_int16, NULL, NULL},
    [PS_DTYPE_INT32] = {4, typed_pair_int32, typed_share_int32, NULL, NULL},
    [PS_DTYPE_INT64] = {8, typed_pair_int64, typed_share_int64, NULL, NULL},
    [PS_DTYPE_FLOAT16] = {2, typed_pair_float32, typed_share_float32, typed_widen_fp16,
                          typed_round_fp16},
    [PS_DTYPE_BFLOAT16] = {2, typed_pair_float32, typed_share_float32, typed_widen_bf16,
                           typed_round_bf16},
};

static bool dtype_is_float(int dtype)
{
    return dtype <= PS_DTYPE_FLOAT64 || dtype >= PS_DTYPE_FLOAT16;
}

size_t ps_dtype_bytes(int dtype)
{
    return dtype >= 0 && dtype < PS_DTYPES ? reduced_types[dtype].bytes : 0;
}

bool ps_reduce_fits(int dtype, int op)
{
    return ps_dtype_bytes(dtype) > 0 && op >= 0 && op < PS_REDUCE_OPS &&
           (op < PS_REDUCE_BAND || !dtype_is_float(dtype));
}

/* At most a block, of elements `at` on. */
static void reduce_block(uint8_t *out, const void *const *from, int n_from, uint64_t at,
                         uint64_t n, int dtype, int op)
{
    const size_t bytes = reduced_types[dtype].bytes;
    _Alignas(64) uint8_t sum[BLOCK * sizeof(double)];
    _Alignas(64) float wide[BLOCK];
    for (int r = 0; r < n_from; r++) {
        const void *next = (const uint8_t *)from[r] + at * bytes;
        if (reduced_types[dtype].widen) {
            reduced_types[dtype].widen(r ? wide : (float *)(void *)sum, next, n);
            next = wide;
        } else if (r == 0) {
            memcpy(sum, next, n * bytes);
        }
        if (r > 0) reduced_types[dtype].pair(sum, sum, next, n, op);
    }
    if (op == PS_REDUCE_AVG) reduced_types[dtype].share(sum, n_from, n);
    if (reduced_types[dtype].round)
        reduced_types[dtype].round(out + at * bytes, (const float *)(void *)sum, n);
    else
        memcpy(out + at * bytes, sum, n * bytes);
}

void ps_typed_reduce(void *out, const void *const *from, int n_from, uint64_t n,
                     int dtype, int op)
{
    if (n_from == 2 && !reduced_types[dtype].widen) {
        reduced_types[dtype].pair(out, from[0], from[1], n, op);
        if (op == PS_REDUCE_AVG) reduced_types[dtype].share(out, 2, n);
        return;
    }
    for (uint64_t at = 0; at < n; at += BLOCK)
        reduce_block(out, from, n_from, at, n - at < BLOCK ? n - at : BLOCK, dtype, op);
}
