/* The reduction of arrays of one element type, as collectives need it. */
#ifndef PS_TYPED_REDUCE_H
#define PS_TYPED_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ps_dtype { // pstrain_dtype's numbers
    PS_DTYPE_FLOAT32,
    PS_DTYPE_FLOAT64,
    PS_DTYPE_INT8,
    PS_DTYPE_UINT8,
    PS_DTYPE_INT16,
    PS_DTYPE_INT32,
    PS_DTYPE_INT64,
    PS_DTYPE_FLOAT16,
    PS_DTYPE_BFLOAT16,
    PS_DTYPES
} ps_dtype;

typedef enum ps_reduce_op { // pstrain_op's numbers
    PS_REDUCE_SUM,
    PS_REDUCE_MIN,
    PS_REDUCE_MAX,
    PS_REDUCE_PRODUCT,
    PS_REDUCE_AVG, // the sum, divided by the number of arrays; integers towards 0
    PS_REDUCE_BAND,
    PS_REDUCE_BOR,
    PS_REDUCE_BXOR,
    PS_REDUCE_OPS
} ps_reduce_op;

/* Of an element; 0: there is no such type. */
size_t ps_dtype_bytes(int dtype);

/* Whether arrays of the type can be reduced so: the bits of floats cannot be combined. */
bool ps_reduce_fits(int dtype, int op);

/* out (n) = (from[0] op from[1]) op from[2] ..., in the type itself; halves in float32,
 * rounded once. Integers wrap around. The minimum and the maximum of a NaN and anything
 * are NaN, as PyTorch's. out may be one of from, or other memory. n_from: 1 at least. */
void ps_typed_reduce(void *out, const void *const *from, int n_from, uint64_t n,
                     int dtype, int op);

#endif
