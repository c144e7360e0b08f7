/* BLAS's product for the host-run GPU (host_gpu.c), in double. */
#ifndef PS_HOST_GEMM_H
#define PS_HOST_GEMM_H

#include "cuda_gpu.h"

/* Writes g->c. Elements of 16 bits are read and written by their definition. */
void host_gemm(const ps_gpu_gemm *g);

#endif
