#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

enum { WARP = 32, THREADS = 256, STACK_BYTES = 64 << 10 };

typedef enum thread_state { READY, AT_BARRIER, IN_SHUFFLE, ENDED } thread_state;

typedef struct gpu_thread {
    ucontext_t context;
    void *fiber; // of ThreadSanitizer
    thread_state state;
    uint64_t given, got; // of shuffles: for the present one, of the last one
} gpu_thread;

typedef struct gpu_index {
    uint32_t x;
} gpu_index;

static gpu_index threadIdx, blockIdx; // of the thread that runs
static gpu_thread threads[THREADS];
static char stacks[THREADS][STACK_BYTES] __attribute__((aligned(64)));
static ucontext_t scheduler;
static void *scheduler_fiber;

static void gpu_block_broken(const char *what)
{
    fprintf(stderr, "gpu_block: %s\n", what);
    abort();
}

/* ----------------------------------------------------------------------- switching */

static void gpu_block_switch(ucontext_t *from, ucontext_t *to, void *fiber)
{
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(fiber, 0);
#endif
    swapcontext(from, to);
}

/* The thread that runs stops in that state. */
static void gpu_block_stop(thread_state state)
{
    gpu_thread *t = &threads[threadIdx.x];
    t->state = state;
    gpu_block_switch(&t->context, &scheduler, scheduler_fiber);
}

static void gpu_block_make_thread(uint32_t number, void (*run)(void))
{
    gpu_thread *t = &threads[number];
    getcontext(&t->context);
    t->context.uc_stack = (stack_t){.ss_sp = stacks[number], .ss_size = STACK_BYTES};
    t->context.uc_link = NULL;
    makecontext(&t->context, run, 0);
#ifdef __SANITIZE_THREAD__
    t->fiber = __tsan_create_fiber(0);
#endif
}

/* ----------------------------------------------------------- what CUDA's threads have */

static void gpu_block_barrier(void)
{
    gpu_block_stop(AT_BARRIER);
}

/* The value that the warp's lane has given. */
static uint64_t gpu_block_value_of(uint32_t mask, uint64_t own, uint32_t lane)
{
    if (mask != UINT32_MAX) gpu_block_broken("a shuffle of some lanes alone");
    threads[threadIdx.x].given = own;
    gpu_block_stop(IN_SHUFFLE);
    return threads[threadIdx.x / WARP * WARP + lane].got;
}

static uint32_t gpu_block_xor(uint32_t mask, uint32_t own, int other)
{
    const uint32_t lane = threadIdx.x % WARP ^ (uint32_t)other;
    return (uint32_t)gpu_block_value_of(mask, own, lane);
}

/* Beyond the warp: the own value. */
static double gpu_block_down(uint32_t mask, double own, uint32_t by)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint64_t bits;
    double far;
    memcpy(&bits, &own, sizeof bits);
    bits = gpu_block_value_of(mask, bits, lane + by < WARP ? lane + by : lane);
    memcpy(&far, &bits, sizeof far);
    return far;
}

// what the kernels take for CUDA
#define __CUDACC__
#define __host__
#define __device__
#define __global__       __attribute__((unused))
#define __shared__       static
#define __syncthreads    gpu_block_barrier
#define __shfl_xor_sync  gpu_block_xor
#define __shfl_down_sync gpu_block_down

#include "cuda_block.h"
#include "gpu_block.h"

_Static_assert((int)WARP == (int)PS_TEAM_WARP, "a warp");
_Static_assert((int)THREADS == (int)PS_TEAM_BLOCK, "a block of teams");
_Static_assert((int)THREADS == (int)PS_SUM_LANES, "a block of sums");

/* -------------------------------------------------------------------------- kernels */

static struct {
    ps_kernel kernel;
    const void *args;
    int64_t count;
    bool backward;
} launch; // that runs

static void gpu_block_call(void)
{
    switch (launch.kernel) {
#define SUM(name)                                                                        \
    case PS_KERNEL_##name:                                                               \
        sum_##name(*(const ps_k_##name *)launch.args);                                   \
        break;
#define TEAM(name)                                                                       \
    case PS_KERNEL_##name:                                                               \
        team_##name(*(const ps_k_##name *)launch.args, (uint32_t)launch.count);          \
        break;
#define CHANNEL(name)                                                                    \
    case PS_KERNEL_##name:                                                               \
        channel_##name(*(const ps_k_##name *)launch.args);                               \
        break;
        PS_SUM_KERNELS(SUM)
        PS_TEAM_KERNELS(TEAM)
        PS_CHANNEL_KERNELS(CHANNEL)
    default:
        break;
    }
}

/* One block after the other. */
static void gpu_block_thread(void)
{
    for (;;) {
        gpu_block_call();
        gpu_block_stop(ENDED);
    }
}

static void gpu_block_make_threads(void)
{
    for (uint32_t t = 0; t < THREADS; t++)
        gpu_block_make_thread(t, gpu_block_thread);
}

/* How many blocks there are. 0: a flat kernel. */
static int64_t gpu_block_blocks(ps_kernel kernel, const void *args, int64_t count)
{
    switch (kernel) {
#define ONE(name) case PS_KERNEL_##name:
#define ROWS(name)                                                                       \
    case PS_KERNEL_##name: {                                                             \
        const int64_t rows = PS_TEAM_BLOCK / ((const ps_k_##name *)args)->lanes;         \
        return (count + rows - 1) / rows;                                                \
    }
        PS_SUM_KERNELS(ONE)
        PS_CHANNEL_KERNELS(ONE)
        return count;
        PS_TEAM_KERNELS(ROWS)
    default:
        return 0;
    }
}

/* ------------------------------------------------------------------------- scheduling */

static bool gpu_block_all(uint32_t first, uint32_t n, thread_state a, thread_state b)
{
    for (uint32_t t = first; t < first + n; t++)
        if (threads[t].state != a && threads[t].state != b) return false;
    return true;
}

static void gpu_block_free(uint32_t first, uint32_t n)
{
    for (uint32_t t = first; t < first + n; t++) {
        threads[t].got = threads[t].given;
        if (threads[t].state != ENDED) threads[t].state = READY;
    }
}

/* Lets go on what has waited for each other: warps whose threads all are in a shuffle, or
 * the block when all threads that have not ended are at a barrier. False: all ended. */
static bool gpu_block_go_on(void)
{
    bool some = false;
    if (gpu_block_all(0, THREADS, ENDED, ENDED)) return false;
    for (uint32_t first = 0; first < THREADS; first += WARP)
        if (gpu_block_all(first, WARP, IN_SHUFFLE, IN_SHUFFLE)) {
            gpu_block_free(first, WARP);
            some = true;
        }
    if (!some && gpu_block_all(0, THREADS, AT_BARRIER, ENDED)) {
        gpu_block_free(0, THREADS);
        some = true;
    }
    if (!some) gpu_block_broken("threads wait for each other in different places");
    return true;
}

static void gpu_block_run_one(void)
{
    for (uint32_t t = 0; t < THREADS; t++)
        threads[t].state = READY;
    do {
        for (uint32_t i = 0; i < THREADS; i++) {
            const uint32_t t = launch.backward ? THREADS - 1 - i : i;
            threadIdx.x = t;
            if (threads[t].state == READY)
                gpu_block_switch(&scheduler, &threads[t].context, threads[t].fiber);
        }
    } while (gpu_block_go_on());
}

bool gpu_block_run(ps_kernel kernel, const void *args, int64_t count, bool backward)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; // launch at a time
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    const int64_t blocks = gpu_block_blocks(kernel, args, count);
    if (blocks == 0) return false;
    pthread_mutex_lock(&one);
    pthread_once(&made, gpu_block_make_threads);
#ifdef __SANITIZE_THREAD__
    scheduler_fiber = __tsan_get_current_fiber();
#endif
    launch.kernel = kernel;
    launch.args = args;
    launch.count = count;
    launch.backward = backward;
    for (int64_t i = 0; i < blocks; i++) {
        blockIdx.x = (uint32_t)(backward ? blocks - 1 - i : i);
        gpu_block_run_one();
    }
    pthread_mutex_unlock(&one);
    return true;
}
