/* CUDA's driver, loaded on demand: the calls that the copies of a GPU's arenas need. Its
 * types are written here, so that nothing of CUDA is needed to build the library. */
#ifndef PSTRAIN_DRIVER_H
#define PSTRAIN_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

typedef int cuda_result; // CUresult; 0: success, CUDA_NOT_READY
enum { CUDA_NOT_READY = 600 };
typedef uint64_t cuda_address; // CUdeviceptr
typedef void *cuda_context, *cuda_stream, *cuda_event;

/* X(the member, the driver's name, parameters) */
#define CUDA_CALLS(X)                                                                    \
    X(init, cuInit, (unsigned flags))                                                    \
    X(name_of_error, cuGetErrorName, (cuda_result, const char **name))                   \
    X(text_of_error, cuGetErrorString, (cuda_result, const char **text))                 \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                               \
    X(context_retain, cuDevicePrimaryCtxRetain, (cuda_context *, int device))            \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                       \
    X(context_push, cuCtxPushCurrent_v2, (cuda_context))                                 \
    X(context_pop, cuCtxPopCurrent_v2, (cuda_context *))                                 \
    X(priorities, cuCtxGetStreamPriorityRange, (int *least, int *greatest))              \
    X(stream_create, cuStreamCreateWithPriority,                                         \
      (cuda_stream *, unsigned flags, int priority))                                     \
    X(stream_destroy, cuStreamDestroy_v2, (cuda_stream))                                 \
    X(stream_query, cuStreamQuery, (cuda_stream))                                        \
    X(stream_wait, cuStreamWaitEvent, (cuda_stream, cuda_event, unsigned flags))         \
    X(stream_capturing, cuStreamIsCapturing, (cuda_stream, int *status))                 \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                      \
    X(stream_call, cuLaunchHostFunc, (cuda_stream, void (*)(void *), void *))            \
    X(event_create, cuEventCreate, (cuda_event *, unsigned flags))                       \
    X(event_destroy, cuEventDestroy_v2, (cuda_event))                                    \
    X(event_record, cuEventRecord, (cuda_event, cuda_stream))                            \
    X(copy_to_device, cuMemcpyHtoDAsync_v2,                                              \
      (cuda_address, const void *, size_t bytes, cuda_stream))                           \
    X(copy_to_host, cuMemcpyDtoHAsync_v2,                                                \
      (void *, cuda_address, size_t bytes, cuda_stream))                                 \
    X(pin, cuMemHostRegister_v2, (void *, size_t bytes, unsigned flags))                 \
    X(unpin, cuMemHostUnregister, (void *))

typedef struct pstrain_driver {
#define CUDA_MEMBER(member, name, parameters) cuda_result(*member) parameters;
    CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
} pstrain_driver;

/* file: NULL is libcuda.so.1. UNSUPPORTED: there is no driver, or no GPU that it takes.
 */
ps_err pstrain_driver_load(pstrain_driver *d, const char *file);
/* PS_OK, or IO: "cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY, out of memory". */
ps_err pstrain_driver_check(const pstrain_driver *d, cuda_result result,
                            const char *call);

/* Returns on failure. call: a member of *d. */
#define CUDA_TRY(d, call, ...)                                                           \
    PS_TRY(pstrain_driver_check((d), (d)->call(__VA_ARGS__), #call))

#endif
