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

/* For libraries that are made of the host, too; native: what ps_gpu_native gave. Queues
 * run(args), with a copy of args. first: may not be captured yet. */
ps_err host_gpu_call(void *native, void (*run)(const void *args), const void *args,
                     size_t bytes, bool first, const char *who);
/* Queues what others take part in: poll(args) is called with a copy of args, when its
 * turn has come, until it is done. Never blocks. */
void host_gpu_poll(void *native, bool (*poll)(void *args), const void *args,
                   size_t bytes);
/* Ends the test unless all of it is memory of the GPU, aligned as tensors are. */
void host_gpu_check(void *native, const void *at, size_t bytes, const char *who);

#endif
