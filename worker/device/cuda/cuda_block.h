/* What each thread of a GPU runs of a kernel (cuda_kernels.h). cuda_gpu.cu launches these
 * functions; tests/contract/gpu_block.c runs them with threads of the host.
 *
 * A block of a sum or channel kernel has PS_SUM_LANES threads, one of a team kernel
 * PS_TEAM_BLOCK. A flat kernel's threads have nothing in common. */
#ifndef PS_CUDA_BLOCK_H
#define PS_CUDA_BLOCK_H

#include "cuda_kernels.h"

enum { PS_FLAT_THREADS = 256 };

#ifdef __CUDACC__

#define PS_FLAT_KERNEL(name)                                                             \
    static __global__ void flat_##name(const ps_k_##name k, uint32_t count)              \
    {                                                                                    \
        uint32_t i = blockIdx.x * (uint32_t)PS_FLAT_THREADS + threadIdx.x;               \
        if (i < count) ps_k_##name##_at(&k, i);                                          \
    }
PS_FLAT_KERNELS(PS_FLAT_KERNEL)

/* Adds the sums of a block's lanes: the upper half to the lower, and so on. Thread 0 gets
 * the result. */
static __device__ inline ps_sums ps_block_sum(ps_sums own)
{
    __shared__ ps_sums lanes[PS_SUM_LANES];
    const uint32_t t = threadIdx.x;
    lanes[t] = own;
    for (uint32_t half = PS_SUM_LANES / 2; half >= 32; half /= 2) {
        __syncthreads();
        if (t >= half) continue;
        own.a += lanes[t + half].a;
        own.b += lanes[t + half].b;
        lanes[t] = own;
    }
    for (uint32_t half = 16; half > 0 && t < 32; half /= 2) { // within a warp
        own.a += __shfl_down_sync(0xFFFFFFFFu, own.a, half);
        own.b += __shfl_down_sync(0xFFFFFFFFu, own.b, half);
    }
    return own;
}

#define PS_SUM_KERNEL(name)                                                              \
    static __global__ void sum_##name(const ps_k_##name k)                               \
    {                                                                                    \
        const uint32_t t = threadIdx.x;                                                  \
        const ps_sums s = ps_block_sum(ps_k_##name##_lane(&k, blockIdx.x, t));           \
        if (t == 0) ps_k_##name##_done(&k, blockIdx.x, s);                               \
    }
PS_SUM_KERNELS(PS_SUM_KERNEL)

/* A team is in one block, and in one warp if it is as small. */
#define PS_TEAM_KERNEL(name)                                                             \
    static __global__ void team_##name(const ps_k_##name k, uint32_t rows)               \
    {                                                                                    \
        const ps_team team = {k.lanes, threadIdx.x % k.lanes};                           \
        const uint32_t row =                                                             \
            blockIdx.x * (PS_TEAM_BLOCK / k.lanes) + threadIdx.x / k.lanes;              \
        if (row < rows) ps_k_##name##_row(&k, row, team);                                \
    }
PS_TEAM_KERNELS(PS_TEAM_KERNEL)

/* The same for the sums of channels: lane l gets the sums of lanes l, l + across, .. */
static __device__ inline void ps_block_channels(ps_sums own[PS_WIDE], uint32_t across)
{
    __shared__ ps_sums lanes[PS_WIDE][PS_SUM_LANES];
    const uint32_t t = threadIdx.x;
    for (int j = 0; j < PS_WIDE; j++)
        lanes[j][t] = own[j];
    for (uint32_t half = PS_SUM_LANES / 2; half >= across; half /= 2) {
        __syncthreads();
        if (t >= half) continue;
        for (int j = 0; j < PS_WIDE; j++) {
            own[j].a += lanes[j][t + half].a;
            own[j].b += lanes[j][t + half].b;
            lanes[j][t] = own[j];
        }
    }
}

#define PS_CHANNEL_KERNEL(name)                                                          \
    static __global__ void channel_##name(const ps_k_##name k)                           \
    {                                                                                    \
        const uint32_t t = threadIdx.x;                                                  \
        ps_sums sums[PS_WIDE];                                                           \
        ps_k_##name##_lane(&k, blockIdx.x, t, sums);                                     \
        ps_block_channels(sums, k.columns.across);                                       \
        if (t < k.columns.across) ps_k_##name##_done(&k, blockIdx.x, t, sums);           \
    }
PS_CHANNEL_KERNELS(PS_CHANNEL_KERNEL)

#endif

#endif
