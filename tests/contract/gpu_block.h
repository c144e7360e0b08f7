/* The threads of a GPU's blocks (cuda_block.h), on the host: each runs until it waits at
 * a barrier, or for a shuffle's values, and then the next one does. host_gpu.c runs
 * kernels so with PS_HOST_GPU_THREADS=1. Where a barrier is missing, a thread finds what
 * another one has not written yet, in one of the two orders of the threads. Threads that
 * wait for each other end the test. */
#ifndef PS_GPU_BLOCK_H
#define PS_GPU_BLOCK_H

#include "cuda_gpu.h"

/* Runs a kernel block by block. backward: the last block and the last thread first.
 * False: it is a flat kernel, which has no such threads. */
bool gpu_block_run(ps_kernel kernel, const void *args, int64_t count, bool backward);

#endif
