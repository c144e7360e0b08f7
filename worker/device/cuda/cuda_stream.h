/* The CUDA device's stream (device_stream.h): the arenas on the GPU, the optimizer's
 * states beside them, and one queue of their own for the exchange. */
#ifndef PS_CUDA_STREAM_H
#define PS_CUDA_STREAM_H

#include "cuda_plan.h"
#include "device_stream.h"

/* options are borrowed for the stream's life, *resident is set for that long. *out is
 * owned by the caller. */
ps_err ps_cuda_stream_create(ps_gpu *gpu, const ps_host_stream_options *options,
                             const ps_cuda_resident **resident, ps_device_stream **out);

#endif
