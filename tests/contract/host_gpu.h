/* The part of the host-run GPU (host_gpu.c) that tests use. */
#ifndef PS_HOST_GPU_H
#define PS_HOST_GPU_H

#include "cuda_gpu.h"

/* Counts since the start, of all GPUs. */
typedef struct host_gpu_counts {
    long launches; // on the compute queue, without replays; with products
    long captures, replays;
    size_t copied;      // bytes, between the host and the GPU
    size_t urgent;      // of these: by queues with priority
    long channels_last; // convolutions by the library (host_conv.c)
    long ranges;        // of a profiler
    int open_ranges;    // of these, now
} host_gpu_counts;

extern host_gpu_counts host_gpu_counted;

/* For libraries that also run on the host. Queues run(args) with a copy of args. native:
 * from ps_gpu_native. first: the call must not be captured. */
ps_err host_gpu_call(void *native, void (*run)(const void *args), const void *args,
                     size_t bytes, bool first, const char *who);
/* Queues work that depends on other ranks: when its turn comes, poll(args) is called,
 * with a copy of args, until it returns true. Never blocks. */
void host_gpu_poll(void *native, bool (*poll)(void *args), const void *args,
                   size_t bytes);
/* Ends the test unless all of [at, at + bytes) is GPU memory, aligned as tensors are. */
void host_gpu_check(void *native, const void *at, size_t bytes, const char *who);

#endif
