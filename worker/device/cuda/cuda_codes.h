/* The CUDA device encodes gradients before it copies them to the host (device_codes.h).
 */
#ifndef PS_CUDA_CODES_H
#define PS_CUDA_CODES_H

#include "cuda_gpu.h"
#include "device_codes.h"

typedef struct ps_cuda_codes {
    const float *host_grads;   // identifies the arena
    const ps_coded_arena *out; // borrowed
    uint8_t *coded;            // on the GPU
    ps_code_part *parts;       // likewise, of all tensors
    uint32_t *first;           // (n_tensors + 1) the first part of each tensor
    bool pinned;
} ps_cuda_codes;

/* Borrows out. *codes points to it until it is destroyed. *made is owned by the caller.
 */
ps_err ps_cuda_codes_create(ps_gpu *gpu, const ps_coded_arena *out, const float *grads,
                            const ps_cuda_codes **codes, ps_device_codes **made);

/* Queues for download: encodes the gradients (the GPU's arena) of tensors [first, first +
 * n), and copies them to the host. */
ps_err ps_cuda_codes_fetch(const ps_cuda_codes *c, ps_gpu *gpu, const float *grads,
                           int first, int n, const char *who);
/* Once they are there: copies those that travel as float32 to the host's gradient arena.
 */
void ps_cuda_codes_unpack(const ps_cuda_codes *c, float *host_grads, int first, int n);

#endif
