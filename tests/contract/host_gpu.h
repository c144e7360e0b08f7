/* What tests see of the host in the GPU's place (host_gpu.c). */
#ifndef PS_HOST_GPU_H
#define PS_HOST_GPU_H

#include "cuda_gpu.h"

/* Since the start, of all GPUs, on the compute queue. */
typedef struct host_gpu_counts {
    long launches; // one by one, products included
    long captures, replays;
} host_gpu_counts;

extern host_gpu_counts host_gpu_counted;

#endif
