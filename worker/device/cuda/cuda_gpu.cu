#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern "C" {
#include "cuda_gpu.h"
#include "log.h"
#include "mem.h"
}
#include "cuda_block.h"
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

enum { WORKSPACE_BYTES = 32 << 20 };

struct ps_gpu {
    int index;
    cudaDeviceProp prop;
    cudaStream_t queues[PS_GPU_QUEUES];
    cudaEvent_t forked, joined; // of the side queue
    cublasHandle_t blas;
    void *workspace;
    ps_format format;
    ps_gpu_patience *patience;
};

struct ps_gpu_event {
    cudaEvent_t event;
};

struct ps_gpu_graph {
    cudaGraphExec_t exec;
};

/* ------------------------------------------------------------------------- errors */

/* file:line is the call's; who: the layer, the buffer, or what was being done. */
static ps_err cuda_error(cudaError_t rc, const char *who, const char *call,
                         const char *file, int line)
{
    const char *base = strrchr(file, '/');
    cudaGetLastError(); // clears the error, so that the next call does not report it;
                        // sticky errors stay
    return ps_err_set(rc == cudaErrorMemoryAllocation ? PS_ERR_NOMEM : PS_ERR_INTERNAL,
                      "cuda: %s: %s: %s (%s:%d)", who, call, cudaGetErrorString(rc),
                      base ? base + 1 : file, line);
}

#define CUDA(who, call)                                                                  \
    do {                                                                                 \
        cudaError_t cuda_rc_ = (call);                                                   \
        if (cuda_rc_ != cudaSuccess)                                                     \
            return cuda_error(cuda_rc_, who, #call, __FILE__, __LINE__);                 \
    } while (0)

#define BLAS(who, call)                                                                  \
    do {                                                                                 \
        cublasStatus_t blas_rc_ = (call);                                                \
        if (blas_rc_ != CUBLAS_STATUS_SUCCESS)                                           \
            return ps_err_set(blas_rc_ == CUBLAS_STATUS_ALLOC_FAILED ? PS_ERR_NOMEM      \
                                                                     : PS_ERR_INTERNAL,  \
                              "cuda: %s: %s: %s (cuda_gpu.cu:%d)", who, #call,           \
                              cublasGetStatusString(blas_rc_), __LINE__);                \
    } while (0)

/* ------------------------------------------------------------------------ kernels */

#define LAUNCH_FLAT(name)                                                                \
    case PS_KERNEL_##name:                                                               \
        flat_##name<<<blocks, PS_FLAT_THREADS, 0, stream>>>(*(const ps_k_##name *)args,  \
                                                            (uint32_t)count);            \
        break;
#define LAUNCH_SUM(name)                                                                 \
    case PS_KERNEL_##name:                                                               \
        sum_##name<<<(unsigned)count, PS_SUM_LANES, 0, stream>>>(                        \
            *(const ps_k_##name *)args);                                                 \
        break;
#define LAUNCH_TEAM(name)                                                                \
    case PS_KERNEL_##name: {                                                             \
        const ps_k_##name *k = (const ps_k_##name *)args;                                \
        const int64_t rows = PS_TEAM_BLOCK / k->lanes;                                   \
        team_##name<<<(unsigned)((count + rows - 1) / rows), PS_TEAM_BLOCK, 0,           \
                      stream>>>(*k, (uint32_t)count);                                    \
        break;                                                                           \
    }

#define LAUNCH_CHANNEL(name)                                                             \
    case PS_KERNEL_##name:                                                               \
        channel_##name<<<(unsigned)count, PS_SUM_LANES, 0, stream>>>(                    \
            *(const ps_k_##name *)args);                                                 \
        break;

static const char *const kernel_names[] = {
#define KERNEL_NAME(name) #name,
    PS_ALL_KERNELS(KERNEL_NAME)
#undef KERNEL_NAME
};

ps_err ps_gpu_launch(ps_gpu *gpu, ps_gpu_queue queue, ps_kernel kernel, const void *args,
                     int64_t count, const char *who)
{
    if (count == 0) return PS_OK;
    if (count < 0 || count > PS_INDEX_MAX)
        return ps_err_set(PS_ERR_INTERNAL, "cuda: %s: %s over %lld elements", who,
                          kernel_names[kernel], (long long)count);
    unsigned blocks = (unsigned)((count + PS_FLAT_THREADS - 1) / PS_FLAT_THREADS);
    cudaStream_t stream = gpu->queues[queue];
    switch (kernel) {
        PS_FLAT_KERNELS(LAUNCH_FLAT)
        PS_SUM_KERNELS(LAUNCH_SUM)
        PS_TEAM_KERNELS(LAUNCH_TEAM)
        PS_CHANNEL_KERNELS(LAUNCH_CHANNEL)
    case PS_KERNEL_COUNT:
        break;
    }
    cudaError_t rc = cudaGetLastError();
    if (rc == cudaSuccess) return PS_OK;
    return cuda_error(rc, who, kernel_names[kernel], __FILE__, __LINE__);
}

static cudaDataType_t cuda_type(ps_format format)
{
    if (format == PS_FORMAT_FP32) return CUDA_R_32F;
    return format == PS_FORMAT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

ps_err ps_gpu_multiply(ps_gpu *gpu, const ps_gpu_gemm *g, const char *who)
{
    const float one = 1.0f;
    const cublasOperation_t ta = g->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t tb = g->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t type = cuda_type(g->a.format);
    if (g->m == 0 || g->n == 0) return PS_OK;
    if (type == CUDA_R_32F)
        BLAS(who, cublasSgemm(gpu->blas, ta, tb, (int)g->m, (int)g->n, (int)g->k, &one,
                              (const float *)g->a.at, (int)g->lda, (const float *)g->b.at,
                              (int)g->ldb, &g->beta, (float *)g->c.at, (int)g->ldc));
    else
        BLAS(who, cublasGemmEx(gpu->blas, ta, tb, (int)g->m, (int)g->n, (int)g->k, &one,
                               g->a.at, type, (int)g->lda, g->b.at, type, (int)g->ldb,
                               &g->beta, g->c.at, cuda_type(g->c.format), (int)g->ldc,
                               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return PS_OK;
}

ps_format ps_gpu_format(const ps_gpu *gpu)
{
    return gpu->format;
}

/* ------------------------------------------------------------------------ opening */

static ps_err no_gpu(cudaError_t rc, int index)
{
    char asked[32] = "cuda";
    int driver = 0;
    if (index >= 0) snprintf(asked, sizeof asked, "cuda:%d", index);
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "train.device: %s: this machine has no usable NVIDIA GPU (%s); see "
                      "what nvidia-smi says, or use train.device=cpu",
                      asked, driver == 0 ? "no NVIDIA driver" : cudaGetErrorString(rc));
}

/* Whether NVIDIA's MPS lets the processes of the GPU run together. */
static bool gpu_has_mps(int index)
{
    const int mps_enabled =
        133; // cudaDevAttrMpsEnabled, which older CUDA 12 does not name
    int on = 0;
    if (cudaDeviceGetAttribute(&on, (cudaDeviceAttr)mps_enabled, index) == cudaSuccess)
        return on != 0;
    cudaGetLastError();
    return false;
}

/* Of n GPUs. Workers of one GPU take turns, which looks like slow servers. */
static int gpu_of_worker(int local_rank, int n)
{
    if (local_rank < 0 && n > 1)
        PS_WARN("first-gpu",
                "gpus=%d used=cuda:0 reason=\"LOCAL_RANK is not set: every "
                "worker of this host takes the first one\"",
                n);
    if (local_rank >= n && !gpu_has_mps(local_rank % n))
        PS_WARN("gpu-shared",
                "gpus=%d used=cuda:%d reason=\"worker %d of this host sees %d: "
                "it shares the GPU with another one, unless each sees its own\" "
                "mend=\"psrun --mps, so that they run together, or fewer workers\"",
                n, local_rank % n, local_rank, n);
    return local_rank > 0 ? local_rank % n : 0;
}

static ps_err gpu_choose(const ps_gpu_options *options, int *index)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc == cudaSuccess && n == 0) rc = cudaErrorNoDevice;
    if (rc != cudaSuccess) return no_gpu(rc, options->index);
    *index = options->index;
    if (*index < 0) *index = gpu_of_worker(options->local_rank, n);
    if (*index < n) return PS_OK;
    return ps_err_set(
        PS_ERR_UNSUPPORTED,
        "train.device: cuda:%d was asked for, but this machine has %d GPU%s "
        "(from cuda:0)",
        *index, n, n == 1 ? "" : "s");
}

/* Whether this build's machine code runs on the GPU. */
static ps_err check_image(ps_gpu *gpu)
{
    cudaFuncAttributes attributes;
    cudaError_t rc = cudaFuncGetAttributes(&attributes, flat_pass);
    if (rc == cudaSuccess) return PS_OK;
    bool image = rc == cudaErrorNoKernelImageForDevice ||
                 rc == cudaErrorInvalidDeviceFunction ||
                 rc == cudaErrorUnsupportedPtxVersion;
    if (!image) return no_gpu(rc, gpu->index);
    cudaGetLastError();
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "cuda:%d is a %s of compute capability %d.%d; this build has "
                      "machine code for %s (%s): configure with "
                      "-DCMAKE_CUDA_ARCHITECTURES=%d%d",
                      gpu->index, gpu->prop.name, gpu->prop.major, gpu->prop.minor,
                      PS_CUDA_ARCHITECTURES, cudaGetErrorString(rc), gpu->prop.major,
                      gpu->prop.minor);
}

/* Before Ampere bf16 is a storage format without products. */
static ps_err check_format(const ps_gpu *gpu)
{
    if (gpu->format != PS_FORMAT_BF16 || gpu->prop.major >= 8) return PS_OK;
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "train.precision: bf16 needs a GPU of compute capability 8.0; "
                      "cuda:%d is a %s of %d.%d: use fp16",
                      gpu->index, gpu->prop.name, gpu->prop.major, gpu->prop.minor);
}

/* On a full GPU cuBLAS says that it was not initialized. */
static ps_err open_blas(ps_gpu *gpu)
{
    size_t free_bytes = 0, total = 0;
    const cublasStatus_t rc = cublasCreate(&gpu->blas);
    if (rc == CUBLAS_STATUS_SUCCESS) return PS_OK;
    cudaMemGetInfo(&free_bytes, &total);
    cudaGetLastError();
    const bool full =
        rc == CUBLAS_STATUS_ALLOC_FAILED || rc == CUBLAS_STATUS_NOT_INITIALIZED;
    return ps_err_set(full ? PS_ERR_NOMEM : PS_ERR_INTERNAL,
                      "cuda:%d: cuBLAS does not start: %s; %.1f of %.1f MiB are free",
                      gpu->index, cublasGetStatusString(rc),
                      (double)free_bytes / 1048576.0, (double)total / 1048576.0);
}

static ps_err open_gpu(ps_gpu *gpu, bool tf32)
{
    int highest = 0;
    cudaError_t rc = cudaSetDevice(gpu->index);
    if (rc == cudaSuccess) rc = cudaGetDeviceProperties(&gpu->prop, gpu->index);
    if (rc == cudaErrorMemoryAllocation)
        return cuda_error(rc, "the GPU is full", "cudaSetDevice", __FILE__, __LINE__);
    if (rc != cudaSuccess) return no_gpu(rc, gpu->index);
    PS_TRY(check_image(gpu));
    PS_TRY(check_format(gpu));
    CUDA("queue", cudaDeviceGetStreamPriorityRange(NULL, &highest));
    for (int q = 0; q < PS_GPU_QUEUES; q++)
        CUDA("queue", cudaStreamCreateWithPriority(
                          &gpu->queues[q], cudaStreamNonBlocking,
                          ps_gpu_queue_is_urgent((ps_gpu_queue)q) ? highest : 0));
    CUDA("queue", cudaEventCreateWithFlags(&gpu->forked, cudaEventDisableTiming));
    CUDA("queue", cudaEventCreateWithFlags(&gpu->joined, cudaEventDisableTiming));
    PS_TRY(open_blas(gpu));
    BLAS("cuBLAS", cublasSetStream(gpu->blas, gpu->queues[PS_GPU_COMPUTE]));
    // sums stay float32, whatever the product writes
    const int math = (tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH) |
                     CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    BLAS("cuBLAS", cublasSetMathMode(gpu->blas, (cublasMath_t)math));
    // with our own workspace, products give the same bits in every run
    PS_TRY(ps_gpu_take(gpu, WORKSPACE_BYTES, "cuBLAS's workspace", &gpu->workspace));
    BLAS("cuBLAS", cublasSetWorkspace(gpu->blas, gpu->workspace, WORKSPACE_BYTES));
    return PS_OK;
}

ps_err ps_gpu_open(const ps_gpu_options *options, ps_gpu **out)
{
    int index = 0;
    ps_gpu *gpu = NULL;
    *out = NULL;
    PS_TRY(gpu_choose(options, &index));
    PS_TRY(ps_mem_zalloc(&gpu, 1, sizeof *gpu, "device"));
    gpu->index = index;
    gpu->format = options->format;
    ps_err err = ps_gpu_patience_create(options->wait_ms, &gpu->patience);
    if (err == PS_OK) err = open_gpu(gpu, options->tf32);
    if (err == PS_OK)
        *out = gpu;
    else
        ps_gpu_close(&gpu);
    return err;
}

void ps_gpu_close(ps_gpu **out)
{
    ps_gpu *gpu = *out;
    if (!gpu) return;
    if (gpu->blas && ps_gpu_drain(gpu)) cublasDestroy(gpu->blas);
    ps_gpu_give(gpu, gpu->workspace);
    if (gpu->forked) cudaEventDestroy(gpu->forked);
    if (gpu->joined) cudaEventDestroy(gpu->joined);
    for (int q = 0; q < PS_GPU_QUEUES; q++)
        if (gpu->queues[q]) cudaStreamDestroy(gpu->queues[q]);
    ps_gpu_patience_destroy(&gpu->patience);
    free(gpu);
    *out = NULL;
}

#if __has_include(<nvtx3/nvToolsExt.h>)
/* Its functions find a profiler by themselves, and do nothing without one. */
const ps_trace_ranges *ps_gpu_ranges(void)
{
    static const ps_trace_ranges ranges = {[](const char *name) { nvtxRangePushA(name); },
                                           [] { nvtxRangePop(); }};
    return &ranges;
}
#else
const ps_trace_ranges *ps_gpu_ranges(void)
{
    return NULL;
}
#endif

void ps_gpu_describe(const ps_gpu *gpu, char *out, size_t bytes)
{
    int driver = 0;
    cudaDriverGetVersion(&driver);
    snprintf(out, bytes, "cuda:%d: %s, %.0f GiB, sm_%d%d, CUDA %d.%d, driver for %d.%d",
             gpu->index, gpu->prop.name,
             (double)gpu->prop.totalGlobalMem / (1024.0 * 1024.0 * 1024.0),
             gpu->prop.major, gpu->prop.minor, CUDART_VERSION / 1000,
             CUDART_VERSION / 10 % 100, driver / 1000, driver / 10 % 100);
}

bool ps_gpu_numa(const ps_gpu *gpu, ps_numa *out)
{
    char address[32] = "";
    if (cudaDeviceGetPCIBusId(address, sizeof address, gpu->index) == cudaSuccess)
        return ps_numa_of_pci("/sys", address, out);
    cudaGetLastError();
    return false;
}

ps_err ps_gpu_enter(ps_gpu *gpu)
{
    CUDA("device", cudaSetDevice(gpu->index));
    return PS_OK;
}

bool ps_gpu_lost(ps_gpu *gpu)
{
    const cudaError_t rc = cudaStreamQuery(gpu->queues[PS_GPU_COMPUTE]);
    cudaGetLastError();
    return (rc != cudaSuccess && rc != cudaErrorNotReady) ||
           ps_gpu_patience_is_over(gpu->patience);
}

bool ps_gpu_rests(ps_gpu *gpu)
{
    bool rests = true;
    for (int q = 0; q < PS_GPU_QUEUES && rests; q++)
        rests = !gpu->queues[q] || cudaStreamQuery(gpu->queues[q]) != cudaErrorNotReady;
    cudaGetLastError(); // "not ready" is no error of the launch that comes next
    return rests;
}

ps_gpu_patience *ps_gpu_patience_of(ps_gpu *gpu)
{
    return gpu->patience;
}

void *ps_gpu_native(ps_gpu *gpu, ps_gpu_queue queue)
{
    return gpu->queues[queue];
}

/* ------------------------------------------------------------------------- memory */

ps_err ps_gpu_take(ps_gpu *gpu, size_t bytes, const char *what, void *out)
{
    void *at = NULL;
    size_t free_bytes = 0, total = 0;
    cudaError_t rc = cudaMalloc(&at, bytes > 0 ? bytes : 1);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &total);
        return ps_err_set(PS_ERR_NOMEM,
                          "cuda:%d: %s: %.1f MiB were asked for, %.1f of %.1f MiB are "
                          "free; a smaller data.batch needs less",
                          gpu->index, what, (double)bytes / 1048576.0,
                          (double)free_bytes / 1048576.0, (double)total / 1048576.0);
    }
    if (rc != cudaSuccess) return cuda_error(rc, what, "cudaMalloc", __FILE__, __LINE__);
    rc = cudaMemset(at, 0, bytes);
    // the memset runs in the default stream, which the queues do not wait for
    if (rc == cudaSuccess) rc = cudaStreamSynchronize(0);
    if (rc != cudaSuccess) {
        cudaFree(at);
        return cuda_error(rc, what, "cudaMemset", __FILE__, __LINE__);
    }
    *(void **)out = at;
    return PS_OK;
}

ps_err ps_gpu_take_shared(ps_gpu *gpu, size_t bytes, const char *what, void *out,
                          uint8_t handle[PS_GPU_HANDLE])
{
    // what lies beside it in a block of cudaMalloc's would be shared, too
    const size_t block = 2 << 20, whole = (bytes + block - 1) / block * block;
    cudaIpcMemHandle_t found;
    void *at = NULL;
    static_assert(sizeof found == PS_GPU_HANDLE, "the bytes of a handle");
    PS_TRY(ps_gpu_take(gpu, whole, what, &at));
    const cudaError_t rc = cudaIpcGetMemHandle(&found, at);
    if (rc != cudaSuccess) {
        cudaGetLastError();
        cudaFree(at);
        return ps_err_set(PS_ERR_UNSUPPORTED, "cuda:%d cannot share its memory: %s",
                          gpu->index, cudaGetErrorString(rc));
    }
    memcpy(handle, &found, sizeof found);
    *(void **)out = at;
    return PS_OK;
}

/* cudaFree is not defined while another process maps it. The end of the process is. */
void ps_gpu_give_shared(ps_gpu *gpu, void *at, bool mapped)
{
    if (at && !mapped && ps_gpu_drain(gpu)) cudaFree(at);
}

ps_err ps_gpu_map(ps_gpu *gpu, const uint8_t handle[PS_GPU_HANDLE], size_t bytes,
                  const char *what, void *out)
{
    cudaIpcMemHandle_t found;
    memcpy(&found, handle, sizeof found);
    const cudaError_t rc =
        cudaIpcOpenMemHandle((void **)out, found, cudaIpcMemLazyEnablePeerAccess);
    if (rc == cudaSuccess) return PS_OK;
    cudaGetLastError();
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "cuda:%d cannot read the memory of another process's GPU: %s",
                      gpu->index, cudaGetErrorString(rc));
}

void ps_gpu_unmap(ps_gpu *gpu, void *at)
{
    if (ps_gpu_drain(gpu) && cudaIpcCloseMemHandle(at) != cudaSuccess) cudaGetLastError();
}

bool ps_gpu_memory(ps_gpu *gpu, uint64_t *used, uint64_t *total)
{
    size_t free_bytes = 0, all = 0;
    const bool known = cudaMemGetInfo(&free_bytes, &all) == cudaSuccess;
    if (!known) cudaGetLastError();
    *used = all - free_bytes;
    *total = all;
    return known;
}

void ps_gpu_give(ps_gpu *gpu, void *at)
{
    if (at && ps_gpu_drain(gpu)) cudaFree(at);
}

ps_err ps_gpu_take_pinned(ps_gpu *gpu, size_t bytes, const char *what, void *out)
{
    void *at = NULL;
    CUDA(what, cudaHostAlloc(&at, bytes > 0 ? bytes : 1, cudaHostAllocDefault));
    memset(at, 0, bytes);
    *(void **)out = at;
    return PS_OK;
}

void ps_gpu_give_pinned(ps_gpu *gpu, void *at)
{
    if (at && ps_gpu_drain(gpu)) cudaFreeHost(at);
}

ps_err ps_gpu_pin(ps_gpu *gpu, void *at, size_t bytes, const char *what, bool *pinned)
{
    *pinned = false;
    if (bytes == 0 || (uintptr_t)at % (uintptr_t)sysconf(_SC_PAGESIZE) != 0) return PS_OK;
    const cudaError_t rc = cudaHostRegister(at, bytes, cudaHostRegisterDefault);
    *pinned = rc == cudaSuccess;
    if (!*pinned) cudaGetLastError();
    if (!*pinned && rc != cudaErrorHostMemoryAlreadyRegistered)
        PS_WARN(
            "memory-not-pinned",
            "what=\"%s\" mib=%.1f effect=\"copies to and from the GPU are 5 to 10 times "
            "slower\" mend=\"ulimit -l unlimited; a container: --ulimit memlock=-1\" "
            "reason=\"%s\"",
            what, (double)bytes / 1048576.0, cudaGetErrorString(rc));
    return PS_OK;
}

void ps_gpu_unpin(ps_gpu *gpu, void *at)
{
    if (ps_gpu_drain(gpu) && cudaHostUnregister(at) != cudaSuccess) cudaGetLastError();
}

/* ------------------------------------------------------------------ copies, events */

ps_err ps_gpu_copy_in(ps_gpu *gpu, ps_gpu_queue queue, void *to, const void *from,
                      size_t bytes, const char *who)
{
    CUDA(who,
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, gpu->queues[queue]));
    return PS_OK;
}

ps_err ps_gpu_copy_out(ps_gpu *gpu, ps_gpu_queue queue, void *to, const void *from,
                       size_t bytes, const char *who)
{
    CUDA(who,
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, gpu->queues[queue]));
    return PS_OK;
}

ps_err ps_gpu_copy_within(ps_gpu *gpu, ps_gpu_queue queue, void *to, const void *from,
                          size_t bytes, const char *who)
{
    CUDA(who,
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, gpu->queues[queue]));
    return PS_OK;
}

ps_err ps_gpu_event_create(ps_gpu *gpu, ps_gpu_event **out)
{
    ps_gpu_event *e = NULL;
    *out = NULL;
    PS_TRY(ps_mem_zalloc(&e, 1, sizeof *e, "event"));
    cudaError_t rc = cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming);
    if (rc != cudaSuccess) {
        free(e);
        return cuda_error(rc, "event", "cudaEventCreate", __FILE__, __LINE__);
    }
    *out = e;
    return PS_OK;
}

void ps_gpu_event_destroy(ps_gpu_event **event)
{
    if (!*event) return;
    cudaEventDestroy((*event)->event);
    free(*event);
    *event = NULL;
}

ps_err ps_gpu_record(ps_gpu *gpu, ps_gpu_event *event, ps_gpu_queue queue)
{
    CUDA("event", cudaEventRecord(event->event, gpu->queues[queue]));
    ps_gpu_patience_moved(gpu->patience);
    return PS_OK;
}

ps_err ps_gpu_await(ps_gpu *gpu, ps_gpu_queue queue, ps_gpu_event *event)
{
    CUDA("event", cudaStreamWaitEvent(gpu->queues[queue], event->event, 0));
    return PS_OK;
}

ps_err ps_gpu_fork(ps_gpu *gpu)
{
    CUDA("fork", cudaEventRecord(gpu->forked, gpu->queues[PS_GPU_COMPUTE]));
    CUDA("fork", cudaStreamWaitEvent(gpu->queues[PS_GPU_SIDE], gpu->forked, 0));
    return PS_OK;
}

ps_err ps_gpu_join(ps_gpu *gpu)
{
    CUDA("join", cudaEventRecord(gpu->joined, gpu->queues[PS_GPU_SIDE]));
    CUDA("join", cudaStreamWaitEvent(gpu->queues[PS_GPU_COMPUTE], gpu->joined, 0));
    return PS_OK;
}

ps_err ps_gpu_passed(ps_gpu *gpu, ps_gpu_event *event, const char *who, bool *passed)
{
    cudaError_t rc = cudaEventQuery(event->event);
    *passed = rc == cudaSuccess;
    if (rc == cudaSuccess) return PS_OK;
    if (rc != cudaErrorNotReady)
        return cuda_error(rc, who, "cudaEventQuery", __FILE__, __LINE__);
    cudaGetLastError(); // "not ready" is no error of the launch that comes next
    return PS_OK;
}

/* ------------------------------------------------------------------------- graphs */

/* The capture does not restrict other threads' calls, such as NCCL's or a loader's. */
ps_err ps_gpu_capture_begin(ps_gpu *gpu)
{
    CUDA("graph", cudaStreamBeginCapture(gpu->queues[PS_GPU_COMPUTE],
                                         cudaStreamCaptureModeThreadLocal));
    return PS_OK;
}

void ps_gpu_capture_cancel(ps_gpu *gpu)
{
    cudaGraph_t graph = NULL;
    cudaStreamEndCapture(gpu->queues[PS_GPU_COMPUTE], &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
}

ps_err ps_gpu_capture_end(ps_gpu *gpu, ps_gpu_graph **out)
{
    cudaGraph_t graph = NULL;
    ps_gpu_graph *g = NULL;
    *out = NULL;
    CUDA("graph", cudaStreamEndCapture(gpu->queues[PS_GPU_COMPUTE], &graph));
    ps_err err = ps_mem_zalloc(&g, 1, sizeof *g, "graph");
    if (err == PS_OK) {
        cudaError_t rc = cudaGraphInstantiate(&g->exec, graph, 0);
        if (rc != cudaSuccess)
            err = cuda_error(rc, "graph", "cudaGraphInstantiate", __FILE__, __LINE__);
    }
    cudaGraphDestroy(graph);
    if (err == PS_OK)
        *out = g;
    else
        free(g);
    return err;
}

ps_err ps_gpu_replay(ps_gpu *gpu, ps_gpu_graph *graph)
{
    CUDA("graph", cudaGraphLaunch(graph->exec, gpu->queues[PS_GPU_COMPUTE]));
    return PS_OK;
}

void ps_gpu_graph_destroy(ps_gpu *gpu, ps_gpu_graph **graph)
{
    if (!*graph) return;
    cudaGraphExecDestroy((*graph)->exec);
    free(*graph);
    *graph = NULL;
}
