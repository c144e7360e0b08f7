/* Convolutions by a library of the GPU's vendor: the part that the CUDA device needs.
 *
 * cudnn_conv.c implements it with cuDNN; no_conv_library.c is built where cuDNN was not
 * found. tests/contract/host_conv.c implements it on the host, for host_gpu.c.
 *
 * A plan is one direction of a convolution for one number of samples: the library's
 * kernel, and the GPU memory that it needs as scratch. The choice depends only on the
 * shape, the GPU's model and the library's version, never on a measurement. So two runs,
 * and two workers on GPUs of one model, compute the same sums in the same order. */
#ifndef PS_CONV_LIBRARY_H
#define PS_CONV_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_values.h"
#include "err.h"

typedef struct ps_conv_library ps_conv_library;
typedef struct ps_conv_plan ps_conv_plan;

typedef struct ps_conv_library_options {
    void *queue; // ps_gpu_native of the compute queue, of the calling thread's GPU
    bool tf32;   // float32 factors may be rounded to TF32
    /* For tests: properties of another GPU, in the library's own format. Plans for it can
     * be made but not run. NULL: the GPU of this machine. */
    const char *described;
} ps_conv_library_options;

typedef enum ps_conv_kind {
    PS_CONV_FORWARD,         // y = or += conv(x, w)
    PS_CONV_BACKWARD_DATA,   // x = or +=, from y and w
    PS_CONV_BACKWARD_WEIGHT, // w = or +=, from x and y
    PS_CONV_KINDS
} ps_conv_kind;

/* Images x (n, C, H, W) and y (n, C', H', W'), weights w (C', C / groups, kh, kw),
 * row-major. channels_last: images (n, H, W, C), weights (C', kh, kw, C / groups). All
 * have one format; sums are float32. */
typedef struct ps_conv_shape {
    ps_conv_kind kind;
    ps_format format;
    bool add; // += instead of =
    bool channels_last;
    int64_t n, in[3], out[3];
    int kernel[2], stride[2], padding[2], dilation[2];
    int64_t groups;
} ps_conv_shape;

/* UNSUPPORTED says what is missing. *out is owned by the caller. */
ps_err ps_conv_library_open(const ps_conv_library_options *options,
                            ps_conv_library **out);
void ps_conv_library_close(ps_conv_library **library);
/* "cuDNN 9.19.0". */
void ps_conv_library_describe(const ps_conv_library *library, char *out, size_t bytes);

/* Whether products of float32 factors are exact: not rounded to TF32. */
bool ps_conv_library_exact(const ps_conv_library *library);

/* The first of the library's kernels, in the library's own order of preference, that
 * gives the same bits every time, needs at most most_bytes of scratch, and in float32
 * does not round factors unless options.tf32 allows it. *out NULL: there is no such
 * kernel. */
ps_err ps_conv_plan_create(ps_conv_library *library, const ps_conv_shape *shape,
                           size_t most_bytes, ps_conv_plan **out);
void ps_conv_plan_destroy(ps_conv_plan **plan); // *plan may be NULL
size_t ps_conv_plan_bytes(const ps_conv_plan *plan);
/* The library's name of the kernel. */
void ps_conv_plan_describe(const ps_conv_plan *plan, char *out, size_t bytes);

/* Queues the convolution. x, y, w and scratch (ps_conv_plan_bytes) are 64-byte aligned.
 * Every run except a plan's first may be captured in a graph. who names the layer in
 * messages. */
ps_err ps_conv_plan_run(ps_conv_plan *plan, void *x, void *w, void *y, void *scratch,
                        const char *who);

#endif
