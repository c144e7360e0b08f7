/* Weights and gradients on the GPU that other processes of the host read (device_sums.h).
 */
#ifndef PS_CUDA_SHARED_H
#define PS_CUDA_SHARED_H

#include "cuda_plan.h"
#include "device_sums.h"

/* options are borrowed for the call. *shared points to the arena until it is destroyed.
 * *out is owned by the caller. UNSUPPORTED where the system cannot share the GPU's
 * memory. */
ps_err ps_cuda_shared_create(ps_gpu *gpu, const ps_device_sums_options *options,
                             const ps_cuda_shared **shared, ps_device_sums **out);

#endif
