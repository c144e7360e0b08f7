/* The CUDA device's stream (device_stream.h): it has the arenas and the optimizer's
 * states on the GPU, and a queue for the exchange. */
#ifndef PS_CUDA_STREAM_H
#define PS_CUDA_STREAM_H

#include "cuda_plan.h"
#include "device_stream.h"

/* options are borrowed for the stream's life. *resident points to the stream's arenas
 * until the stream is destroyed. *out is owned by the caller. */
ps_err ps_cuda_stream_create(ps_gpu *gpu, const ps_host_stream_options *options,
                             const ps_cuda_resident **resident, ps_device_stream **out);

#endif
