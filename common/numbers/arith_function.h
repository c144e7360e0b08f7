/* PS_ARITH: a plain inline function that both a C and a CUDA compiler accept. */
#ifndef PS_ARITH_FUNCTION_H
#define PS_ARITH_FUNCTION_H

#ifdef __CUDACC__
#define PS_ARITH static __host__ __device__ inline
#else
#define PS_ARITH static inline
#endif

/* In front of a loop of a constant length: a GPU keeps arrays in registers only if their
 * indices are constants. */
#ifdef __CUDA_ARCH__
#define PS_UNROLLED _Pragma("unroll")
#else
#define PS_UNROLLED
#endif

#endif
