/* The part of one GPU that the CUDA device needs: memory, queues, copies, launches and
 * matrix products, with every error checked. No CUDA type appears here.
 *
 * cuda_gpu.cu implements it with CUDA and cuBLAS. tests/contract/host_gpu.c implements it
 * on the host and runs queued work as late or as early as the order between queues
 * allows. So everything above this file is tested without a GPU. */
#ifndef PS_CUDA_GPU_H
#define PS_CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_kernels.h"
#include "cuda_wait.h"
#include "err.h"
#include "numa.h"
#include "trace.h"

typedef struct ps_gpu ps_gpu;
typedef struct ps_gpu_event ps_gpu_event;
typedef struct ps_gpu_graph ps_gpu_graph;

/* Work of one queue runs in order; only events order work of different queues. */
typedef enum ps_gpu_queue {
    PS_GPU_COMPUTE,
    PS_GPU_UPLOAD,   // weights
    PS_GPU_DOWNLOAD, // gradients, losses
    PS_GPU_EXCHANGE, // used by the exchange's thread
    PS_GPU_SIDE,     // beside compute, between ps_gpu_fork and ps_gpu_join
    PS_GPU_SAMPLES,  // batches, which no weights shall wait for
    PS_GPU_QUEUES
} ps_gpu_queue;

/* Whether other workers wait for the queue's work: it has the GPU's highest priority.
 * Today's GPUs let kernels alone go first by it, and no copy between host and GPU. */
static inline bool ps_gpu_queue_is_urgent(ps_gpu_queue queue)
{
    return queue == PS_GPU_UPLOAD || queue == PS_GPU_DOWNLOAD || queue == PS_GPU_EXCHANGE;
}

typedef enum ps_kernel {
#define PS_KERNEL_ENUM(name) PS_KERNEL_##name,
    PS_ALL_KERNELS(PS_KERNEL_ENUM)
#undef PS_KERNEL_ENUM
        PS_KERNEL_COUNT
} ps_kernel;

typedef struct ps_gpu_options {
    int index;        // the GPU; -1: local_rank picks one
    int local_rank;   // several workers of a host spread over its GPUs; -1: the first
    bool tf32;        // products may round their factors to TF32
    ps_format format; // see ps_gpu_format
    uint64_t wait_ms; // the longest wait (cuda_wait.h)
} ps_gpu_options;

/* UNSUPPORTED names what is missing: the driver, the GPU, or machine code for the GPU. */
ps_err ps_gpu_open(const ps_gpu_options *options, ps_gpu **out);
void ps_gpu_close(ps_gpu **gpu);
/* NVTX's, which Nsight shows beside kernels and copies; NULL: built without it. */
const ps_trace_ranges *ps_gpu_ranges(void);
/* "NVIDIA H100 80GB HBM3, sm_90, CUDA 13.0". */
void ps_gpu_describe(const ps_gpu *gpu, char *out, size_t bytes);
/* See numa.h. */
bool ps_gpu_numa(const ps_gpu *gpu, ps_numa *out);
/* The format of matrix products' factors and of the values between layers. */
ps_format ps_gpu_format(const ps_gpu *gpu);
/* The calling thread works with this GPU from now on. */
ps_err ps_gpu_enter(ps_gpu *gpu);
/* Whether an error, such as a kernel's bad access, has ended the use of GPUs for this
 * process: CUDA gives it to every call from then on. Or whether a kernel hangs. */
bool ps_gpu_lost(ps_gpu *gpu);
/* Whether everything queued is done, or has failed. Never blocks. */
bool ps_gpu_rests(ps_gpu *gpu);
/* Waits until everything queued is done, whether it succeeds or not. Call it before
 * giving back memory that queued work may use. False: a kernel hangs. */
bool ps_gpu_drain(ps_gpu *gpu);
ps_gpu_patience *ps_gpu_patience_of(ps_gpu *gpu); // borrowed
/* The queue in CUDA's own type (cudaStream_t), for libraries. */
void *ps_gpu_native(ps_gpu *gpu, ps_gpu_queue queue);

/* Takes zeroed GPU memory, 256-byte aligned. what names it in the error message, which
 * also says how much was asked for and how much is free. */
ps_err ps_gpu_take(ps_gpu *gpu, size_t bytes, const char *what, void *out);
void ps_gpu_give(ps_gpu *gpu, void *at); // NULL: nothing
/* The same memory, which other processes of the host may map: handle tells them where it
 * is. UNSUPPORTED where the system cannot. Given back by ps_gpu_give_shared alone;
 * mapped: a process may have mapped it, and perhaps still does. */
enum { PS_GPU_HANDLE = 64 };
ps_err ps_gpu_take_shared(ps_gpu *gpu, size_t bytes, const char *what, void *out,
                          uint8_t handle[PS_GPU_HANDLE]);
void ps_gpu_give_shared(ps_gpu *gpu, void *at, bool mapped); // NULL: nothing
/* Maps what another process has shared, of this GPU or another one of the host.
 * UNSUPPORTED says why it cannot be read from here. */
ps_err ps_gpu_map(ps_gpu *gpu, const uint8_t handle[PS_GPU_HANDLE], size_t bytes,
                  const char *what, void *out);
void ps_gpu_unmap(ps_gpu *gpu, void *at);
/* Of all processes on the GPU, in bytes. False: not known. */
bool ps_gpu_memory(ps_gpu *gpu, uint64_t *used, uint64_t *total);
/* Takes zeroed, pinned host memory: copies from and to it run asynchronously. */
ps_err ps_gpu_take_pinned(ps_gpu *gpu, size_t bytes, const char *what, void *out);
void ps_gpu_give_pinned(ps_gpu *gpu, void *at); // NULL: nothing
/* Pins existing host memory until ps_gpu_unpin. The memory should be a mapping of its
 * own: whole pages are pinned, and CUDA refuses copies to or from memory that is pinned
 * in part, as a neighbour in these pages would be. Memory that does not begin at a page
 * boundary, or that is already pinned, is left unchanged: then *pinned is false, the
 * caller does not unpin, and copies are still correct but slower. So they are where the
 * system refuses, which the log says. */
ps_err ps_gpu_pin(ps_gpu *gpu, void *at, size_t bytes, const char *what, bool *pinned);
void ps_gpu_unpin(ps_gpu *gpu, void *at);

/* Queue a copy. The host memory is pinned, and stays unchanged until the copy has run.
 * who names the layer in messages. */
ps_err ps_gpu_copy_in(ps_gpu *gpu, ps_gpu_queue queue, void *to, const void *from,
                      size_t bytes, const char *who);
ps_err ps_gpu_copy_out(ps_gpu *gpu, ps_gpu_queue queue, void *to, const void *from,
                       size_t bytes, const char *who);

/* From memory of this GPU, or what ps_gpu_map has found, to memory of this GPU. */
ps_err ps_gpu_copy_within(ps_gpu *gpu, ps_gpu_queue queue, void *to, const void *from,
                          size_t bytes, const char *who);

ps_err ps_gpu_event_create(ps_gpu *gpu, ps_gpu_event **out);
void ps_gpu_event_destroy(ps_gpu_event **event); // *event may be NULL
/* The event passes when everything that is queued now is done. */
ps_err ps_gpu_record(ps_gpu *gpu, ps_gpu_event *event, ps_gpu_queue queue);
/* Work queued from now on waits for the event's latest recording. */
ps_err ps_gpu_await(ps_gpu *gpu, ps_gpu_queue queue, ps_gpu_event *event);
/* Never blocks. Returns errors of the work before it. */
ps_err ps_gpu_passed(ps_gpu *gpu, ps_gpu_event *event, const char *who, bool *passed);
/* Blocks until the event has passed. Returns errors of the work before it; TIMEOUT: a
 * kernel hangs (cuda_wait.h). */
ps_err ps_gpu_sync(ps_gpu *gpu, ps_gpu_event *event, const char *who);

/* The side queue runs small launches beside the compute queue. After fork, side waits for
 * everything queued on compute so far; after join, compute waits for side. Both also work
 * in a capture. */
ps_err ps_gpu_fork(ps_gpu *gpu);
ps_err ps_gpu_join(ps_gpu *gpu);

/* Queues a kernel (cuda_kernels.h): args is its struct, which is copied. count: calls of
 * a flat kernel, blocks of a sum or channel kernel, rows of a team kernel; at most
 * PS_INDEX_MAX. */
ps_err ps_gpu_launch(ps_gpu *gpu, ps_gpu_queue queue, ps_kernel kernel, const void *args,
                     int64_t count, const char *who);

/* Between begin and end (or cancel), launches and products on the compute queue, and
 * those on the side queue from fork to join, are recorded in a graph with their arguments
 * instead of being queued. Call nothing else in between. *out is owned by the caller.
 * cancel keeps the message of the error that led to it. */
ps_err ps_gpu_capture_begin(ps_gpu *gpu);
ps_err ps_gpu_capture_end(ps_gpu *gpu, ps_gpu_graph **out);
void ps_gpu_capture_cancel(ps_gpu *gpu);
/* Queues all of the graph's launches on the compute queue, in their order. */
ps_err ps_gpu_replay(ps_gpu *gpu, ps_gpu_graph *graph);
/* *graph may be NULL. The graph must not be running. */
void ps_gpu_graph_destroy(ps_gpu *gpu, ps_gpu_graph **graph);

/* C (m, n) = op(A) op(B) + beta C in BLAS's column-major order: op(A) is (m, k), op(B)
 * (k, n); t: transposed. A and B have the format ps_gpu_format, C has that format or
 * float32; sums are float32. Queued on the compute queue. */
typedef struct ps_gpu_gemm {
    bool ta, tb;
    int64_t m, n, k;
    ps_values a;
    int64_t lda;
    ps_values b;
    int64_t ldb;
    float beta;
    ps_values c;
    int64_t ldc;
} ps_gpu_gemm;

ps_err ps_gpu_multiply(ps_gpu *gpu, const ps_gpu_gemm *g, const char *who);

/* PS_LAUNCH(gpu, bias, count, who, .y = y, ...) launches on the compute queue. */
#define PS_LAUNCH(gpu, name, count, who, ...)                                            \
    PS_LAUNCH_ON(gpu, PS_GPU_COMPUTE, name, count, who, __VA_ARGS__)
/* The same of a wide kernel: n elements. */
#define PS_LAUNCH_WIDE(gpu, name, n, who, ...)                                           \
    PS_LAUNCH(gpu, name, ((n) + PS_WIDE - 1) / PS_WIDE, who, .count = (uint32_t)(n),     \
              __VA_ARGS__)
#define PS_LAUNCH_ON(gpu, queue, name, count, who, ...)                                  \
    ps_gpu_launch(gpu, queue, PS_KERNEL_##name, &(const ps_k_##name){__VA_ARGS__},       \
                  count, who)

#endif
