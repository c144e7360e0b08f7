/* BLAS's product for the host-run GPU (host_gpu.c), in double. */
#ifndef PS_HOST_GEMM_H
#define PS_HOST_GEMM_H

#include "cuda_gpu.h"

/* Writes g->c. Halves are read by their definition. It is not sanitized: the caller
 * checks that the operands lie in memory. */
void host_gemm(const ps_gpu_gemm *g);

#endif
