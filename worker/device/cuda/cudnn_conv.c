#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conv_library.h"
#include "dynlib.h"
#include "mem.h"

/* Uses the graph API of cuDNN 8 and newer: the older API is deprecated in cuDNN 9. */
#define CUDNN_FUNCTIONS(X)                                                               \
    X(GetVersion)                                                                        \
    X(GetCudartVersion)                                                                  \
    X(GetErrorString)                                                                    \
    X(Create)                                                                            \
    X(Destroy)                                                                           \
    X(SetStream)                                                                         \
    X(BackendCreateDescriptor)                                                           \
    X(BackendDestroyDescriptor)                                                          \
    X(BackendFinalize)                                                                   \
    X(BackendSetAttribute)                                                               \
    X(BackendGetAttribute)                                                               \
    X(BackendExecute)

typedef cudnnBackendDescriptor_t descriptor;

struct ps_conv_library {
#define MEMBER(name) __typeof__(cudnn##name) *name;
    CUDNN_FUNCTIONS(MEMBER)
#undef MEMBER
    cudnnHandle_t handle;   // NULL: the GPU is only described
    descriptor description; // of the described GPU
    bool tf32;
};

/* Limits of a plan; its descriptors are kept in the order in which they were made. */
enum { MOST_DESCRIPTORS = 16, MOST_CANDIDATES = 64, POINTERS = 4 };

/* The engine that takes every shape. cuDNN 9.19 ranks it last, except for images of one
 * channel, where it ranks it before other engines of the same accuracy. */
enum { GENERIC_ENGINE = 0 };

struct ps_conv_plan {
    ps_conv_library *lib;
    descriptor made[MOST_DESCRIPTORS];
    int n_made;
    descriptor execution, pack; // pack: the variant pack, the arguments of the last run
    void *pointers[POINTERS];   // of the pack: x, w, y, scratch
    int64_t bytes, engine;
};

/* ------------------------------------------------------------------------- errors */

static bool cudnn_lacks_memory(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
           status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

static ps_err cudnn_error(const ps_conv_library *lib, cudnnStatus_t status,
                          const char *what)
{
    return ps_err_set(cudnn_lacks_memory(status) ? PS_ERR_NOMEM : PS_ERR_INTERNAL,
                      "cuDNN: %s: %s; train.cudnn=off avoids cuDNN", what,
                      lib->GetErrorString(status));
}

#define CUDNN(lib, what, call)                                                           \
    do {                                                                                 \
        cudnnStatus_t cudnn_rc_ = (call);                                                \
        if (cudnn_rc_ != CUDNN_STATUS_SUCCESS) return cudnn_error(lib, cudnn_rc_, what); \
    } while (0)

/* ------------------------------------------------------------------------- library */

static ps_err cudnn_load(ps_conv_library *lib)
{
    const ps_dynlib cudnn = {"train.cudnn", "libcudnn.so.9", "cuDNN 9"};
    const ps_dynlib_symbol symbols[] = {
#define SYMBOL(name) {"cudnn" #name, (void **)&lib->name, false},
        CUDNN_FUNCTIONS(SYMBOL)
#undef SYMBOL
    };
    PS_TRY(ps_dynlib_open(&cudnn, symbols, sizeof symbols / sizeof symbols[0]));
    // The builds for CUDA 12 and 13 have the same name.
    const size_t cuda = lib->GetCudartVersion() / 1000;
    if (cuda == CUDART_VERSION / 1000) return PS_OK;
    return ps_err_set(
        PS_ERR_UNSUPPORTED,
        "train.cudnn: the libcudnn.so.9 that is found was built for CUDA %zu, "
        "this program for CUDA %d: install cuDNN for CUDA %d, or put its "
        "folder first into LD_LIBRARY_PATH",
        cuda, CUDART_VERSION / 1000, CUDART_VERSION / 1000);
}

static ps_err describe_gpu(ps_conv_library *lib, const char *text)
{
    CUDNN(lib, "a GPU's description",
          lib->BackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
                                       &lib->description));
    CUDNN(lib, "a GPU's description",
          lib->BackendSetAttribute(lib->description,
                                   CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                   CUDNN_TYPE_CHAR, (int64_t)strlen(text), text));
    CUDNN(lib, "a GPU's description", lib->BackendFinalize(lib->description));
    return PS_OK;
}

/* cuDNN loads its sub-libraries here. One may be missing, have another version, or not
 * support the GPU. */
static ps_err open_library(ps_conv_library *lib, const ps_conv_library_options *options)
{
    PS_TRY(cudnn_load(lib));
    if (options->described) return describe_gpu(lib, options->described);
    cudnnStatus_t rc = lib->Create(&lib->handle);
    if (cudnn_lacks_memory(rc)) return cudnn_error(lib, rc, "opening");
    if (rc != CUDNN_STATUS_SUCCESS)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "train.cudnn: cuDNN does not start on this GPU: %s",
                          lib->GetErrorString(rc));
    CUDNN(lib, "opening", lib->SetStream(lib->handle, options->queue));
    return PS_OK;
}

ps_err ps_conv_library_open(const ps_conv_library_options *options, ps_conv_library **out)
{
    *out = NULL;
    ps_conv_library *lib = NULL;
    PS_TRY(PS_NEW(&lib, 1, "cuDNN"));
    lib->tf32 = options->tf32;
    ps_err err = open_library(lib, options);
    if (err == PS_OK)
        *out = lib;
    else
        ps_conv_library_close(&lib);
    return err;
}

void ps_conv_library_close(ps_conv_library **library)
{
    ps_conv_library *lib = *library;
    if (!lib) return;
    if (lib->description) lib->BackendDestroyDescriptor(lib->description);
    if (lib->handle) lib->Destroy(lib->handle);
    free(lib);
    *library = NULL;
}

void ps_conv_library_describe(const ps_conv_library *lib, char *out, size_t bytes)
{
    size_t v = lib->GetVersion(); // 9.19.0: 91900
    snprintf(out, bytes, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

bool ps_conv_library_exact(const ps_conv_library *lib)
{
    return !lib->tf32;
}

/* --------------------------------------------------------------------- descriptors */

/* Owned by the plan. */
static ps_err cudnn_make(ps_conv_plan *p, cudnnBackendDescriptorType_t type,
                         descriptor *out)
{
    *out = NULL;
    if (p->n_made == MOST_DESCRIPTORS)
        return ps_err_set(PS_ERR_INTERNAL, "cuDNN: too many descriptors");
    CUDNN(p->lib, "a descriptor", p->lib->BackendCreateDescriptor(type, out));
    p->made[p->n_made++] = *out;
    return PS_OK;
}

static ps_err cudnn_set(const ps_conv_plan *p, descriptor d, int name,
                        cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    CUDNN(p->lib, "an attribute",
          p->lib->BackendSetAttribute(d, (cudnnBackendAttributeName_t)name, type, n,
                                      values));
    return PS_OK;
}

static ps_err cudnn_finalize(const ps_conv_plan *p, descriptor d, const char *what)
{
    CUDNN(p->lib, what, p->lib->BackendFinalize(d));
    return PS_OK;
}

static cudnnDataType_t type_of(ps_format format)
{
    if (format == PS_FORMAT_FP32) return CUDNN_DATA_FLOAT;
    return format == PS_FORMAT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/* Alignment: 32 bytes, as the arenas' tensors have in 16 bits; kernels need 16. */
static ps_err make_tensor(ps_conv_plan *p, int64_t id, cudnnDataType_t type,
                          const int64_t dims[4], const int64_t strides[4],
                          descriptor *out)
{
    const int64_t alignment = 16;
    PS_TRY(cudnn_make(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR, out));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    PS_TRY(
        cudnn_set(p, *out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1,
                     &alignment));
    return cudnn_finalize(p, *out, "a tensor");
}

/* dims: images and channels, or weights' outputs and inputs, then the plane's sides. */
static ps_err make_planes(ps_conv_plan *p, int64_t id, const ps_conv_shape *s,
                          const int64_t dims[4], descriptor *out)
{
    const int64_t plane = dims[2] * dims[3], outer = dims[1] * plane;
    const int64_t first[4] = {outer, plane, dims[3], 1};
    const int64_t last[4] = {outer, 1, dims[3] * dims[1], dims[1]};
    return make_tensor(p, id, type_of(s->format), dims, s->channels_last ? last : first,
                       out);
}

static ps_err make_images(ps_conv_plan *p, int64_t id, const ps_conv_shape *s,
                          const int64_t size[3], descriptor *out)
{
    const int64_t dims[4] = {s->n, size[0], size[1], size[2]};
    return make_planes(p, id, s, dims, out);
}

static ps_err cudnn_make_weights(ps_conv_plan *p, int64_t id, const ps_conv_shape *s,
                                 descriptor *out)
{
    const int64_t in = s->in[0] / s->groups; // cuDNN finds the groups by it
    const int64_t dims[4] = {s->out[0], in, s->kernel[0], s->kernel[1]};
    return make_planes(p, id, s, dims, out);
}

static ps_err make_convolution(ps_conv_plan *p, const ps_conv_shape *s, descriptor *out)
{
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION; // torch's
    const int64_t n = 2, dilation[2] = {s->dilation[0], s->dilation[1]};
    const int64_t padding[2] = {s->padding[0], s->padding[1]};
    const int64_t stride[2] = {s->stride[0], s->stride[1]};
    PS_TRY(cudnn_make(p, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, out));
    PS_TRY(
        cudnn_set(p, *out, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
                     &sums));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
                     CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2,
                     padding));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2,
                     padding));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2,
                     dilation));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2,
                     stride));
    return cudnn_finalize(p, *out, "a convolution");
}

/* The three operations' attributes for the same things. */
static const struct {
    cudnnBackendDescriptorType_t type;
    int alpha, beta, convolution, x, w, y;
} operations[PS_CONV_KINDS] = {
    [PS_CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    [PS_CONV_BACKWARD_DATA] =
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
    [PS_CONV_BACKWARD_WEIGHT] =
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
};

static const int64_t tensor_ids[] = {'x', 'w', 'y'};

static ps_err make_operation(ps_conv_plan *p, const ps_conv_shape *s, descriptor *out)
{
    const float alpha = 1.0f, beta = s->add ? 1.0f : 0.0f;
    const int names[] = {operations[s->kind].x, operations[s->kind].w,
                         operations[s->kind].y};
    descriptor convolution, tensors[3];
    PS_TRY(make_images(p, tensor_ids[0], s, s->in, &tensors[0]));
    PS_TRY(cudnn_make_weights(p, tensor_ids[1], s, &tensors[1]));
    PS_TRY(make_images(p, tensor_ids[2], s, s->out, &tensors[2]));
    PS_TRY(make_convolution(p, s, &convolution));
    PS_TRY(cudnn_make(p, operations[s->kind].type, out));
    PS_TRY(cudnn_set(p, *out, operations[s->kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha));
    PS_TRY(cudnn_set(p, *out, operations[s->kind].beta, CUDNN_TYPE_FLOAT, 1, &beta));
    PS_TRY(cudnn_set(p, *out, operations[s->kind].convolution,
                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &convolution));
    for (int i = 0; i < 3; i++)
        PS_TRY(
            cudnn_set(p, *out, names[i], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensors[i]));
    return cudnn_finalize(p, *out, "an operation");
}

static ps_err make_graph(ps_conv_plan *p, const ps_conv_shape *s, descriptor *out)
{
    descriptor operation;
    PS_TRY(make_operation(p, s, &operation));
    PS_TRY(cudnn_make(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, out));
    PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation));
    if (p->lib->handle)
        PS_TRY(cudnn_set(p, *out, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                         &p->lib->handle));
    return cudnn_finalize(p, *out, "an operation's graph");
}

/* ---------------------------------------------------------------------- candidates */

/* Checks an engine's notes: it must give the same bits every time, not be said to round
 * more than products and sums of float32, and need no compiler at run time. cuDNN 9.19
 * does not say so of its Winograd kernels for the gradient of weights. */
static bool is_allowed(const ps_conv_plan *p, ps_format format,
                       const cudnnBackendNumericalNote_t *numbers, int64_t n_numbers,
                       const cudnnBackendBehaviorNote_t *behavior, int64_t n_behavior)
{
    bool exact = format == PS_FORMAT_FP32 && !p->lib->tf32, allowed = true;
    for (int64_t i = 0; i < n_numbers; i++) {
        switch (numbers[i]) {
        case CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP:
            break;
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
            allowed = allowed && !exact;
            break;
        default: // FFT, Winograd, sums of reduced precision, any order of sums, or
                 // unknown to us
            allowed = false;
        }
    }
    for (int64_t i = 0; i < n_behavior; i++)
        allowed = allowed && behavior[i] != CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    return allowed;
}

static bool read_attribute(const ps_conv_plan *p, descriptor d, int name,
                           cudnnBackendAttributeType_t type, int64_t most, int64_t *n,
                           void *out)
{
    return p->lib->BackendGetAttribute(d, (cudnnBackendAttributeName_t)name, type, most,
                                       n, out) == CUDNN_STATUS_SUCCESS;
}

/* Whether the candidate's engine may be used; *index: its number. */
static bool cudnn_examine(const ps_conv_plan *p, ps_format format, descriptor candidate,
                          int64_t *index)
{
    cudnnBackendNumericalNote_t numbers[32];
    cudnnBackendBehaviorNote_t behavior[32];
    int64_t one, n_numbers = 0, n_behavior = 0;
    descriptor engine = NULL;
    if (p->lib->BackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS)
        return false;
    bool known = read_attribute(p, candidate, CUDNN_ATTR_ENGINECFG_ENGINE,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &engine) &&
                 read_attribute(p, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                CUDNN_TYPE_INT64, 1, &one, index) &&
                 read_attribute(p, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                CUDNN_TYPE_NUMERICAL_NOTE, 32, &n_numbers, numbers) &&
                 read_attribute(p, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                CUDNN_TYPE_BEHAVIOR_NOTE, 32, &n_behavior, behavior);
    p->lib->BackendDestroyDescriptor(engine);
    return known && n_numbers <= 32 && n_behavior <= 32 &&
           is_allowed(p, format, numbers, n_numbers, behavior, n_behavior);
}

/* Sets p->execution if the candidate runs on the GPU with at most the given memory. A GPU
 * that is full is an error: with the next candidate the bits would depend on it. */
static ps_err try_candidate(ps_conv_plan *p, descriptor candidate, size_t most_bytes)
{
    const ps_conv_library *lib = p->lib;
    descriptor plan = NULL;
    int64_t one, bytes = 0;
    CUDNN(lib, "a plan",
          lib->BackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan));
    cudnnStatus_t rc =
        lib->handle ? lib->BackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                               CUDNN_TYPE_HANDLE, 1, &lib->handle)
                    : lib->BackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                               &lib->description);
    if (rc == CUDNN_STATUS_SUCCESS)
        rc = lib->BackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &candidate);
    if (rc == CUDNN_STATUS_SUCCESS) rc = lib->BackendFinalize(plan);
    if (cudnn_lacks_memory(rc)) {
        lib->BackendDestroyDescriptor(plan);
        return cudnn_error(lib, rc, "a plan");
    }
    bool fits = rc == CUDNN_STATUS_SUCCESS &&
                read_attribute(p, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                               CUDNN_TYPE_INT64, 1, &one, &bytes) &&
                bytes >= 0 && (uint64_t)bytes <= most_bytes;
    p->bytes = bytes;
    if (fits)
        p->execution = plan;
    else
        lib->BackendDestroyDescriptor(plan);
    return PS_OK;
}

static ps_err cudnn_choose(ps_conv_plan *p, ps_format format, descriptor *candidates,
                           int64_t n, size_t most_bytes, bool generic)
{
    for (int64_t i = 0; i < n && !p->execution; i++) {
        if (!cudnn_examine(p, format, candidates[i], &p->engine)) continue;
        if (p->engine == GENERIC_ENGINE && !generic) continue;
        PS_TRY(try_candidate(p, candidates[i], most_bytes));
        if (!p->execution) continue;
        p->made[p->n_made++] = candidates[i]; // the plan owns it from now on
        candidates[i] = NULL;
    }
    return PS_OK;
}

/* Gets cuDNN's candidates for the graph, in the order of speed that cuDNN expects. */
static ps_err cudnn_rank(ps_conv_plan *p, descriptor graph, cudnnBackendHeurMode_t mode,
                         descriptor *candidates, int64_t *n)
{
    descriptor ranking;
    *n = 0;
    PS_TRY(cudnn_make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &ranking));
    PS_TRY(cudnn_set(p, ranking, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph));
    PS_TRY(cudnn_set(p, ranking, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1,
                     &mode));
    if (!p->lib->handle)
        PS_TRY(cudnn_set(p, ranking, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &p->lib->description));
    const cudnnStatus_t rc = p->lib->BackendFinalize(ranking);
    if (cudnn_lacks_memory(rc)) return cudnn_error(p->lib, rc, "a ranking");
    if (rc != CUDNN_STATUS_SUCCESS) return PS_OK; // it may have no kernels for the shape
    if (!read_attribute(p, ranking, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                        CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_CANDIDATES, n, candidates))
        *n = 0;
    if (*n > MOST_CANDIDATES) *n = MOST_CANDIDATES;
    return PS_OK;
}

/* Tries the candidates that cuDNN expects to be fast on the GPU's model, then its
 * fallbacks, then the generic engine. */
static ps_err find_execution(ps_conv_plan *p, const ps_conv_shape *s, size_t most_bytes)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    const ps_conv_library *lib = p->lib;
    descriptor graph, candidates[MOST_CANDIDATES] = {NULL};
    PS_TRY(make_graph(p, s, &graph));
    ps_err err = PS_OK;
    int made = 0;
    for (; made < MOST_CANDIDATES && err == PS_OK; made++) {
        cudnnStatus_t rc = lib->BackendCreateDescriptor(
            CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &candidates[made]);
        if (rc != CUDNN_STATUS_SUCCESS) err = cudnn_error(lib, rc, "a candidate");
    }
    for (int m = 0; m < 4 && err == PS_OK && !p->execution; m++) {
        int64_t n;
        err = cudnn_rank(p, graph, modes[m % 2], candidates, &n);
        if (err == PS_OK)
            err = cudnn_choose(p, s->format, candidates, n, most_bytes, m >= 2);
    }
    for (int i = 0; i < made; i++)
        if (candidates[i]) lib->BackendDestroyDescriptor(candidates[i]);
    return err;
}

ps_err ps_conv_plan_create(ps_conv_library *lib, const ps_conv_shape *shape,
                           size_t most_bytes, ps_conv_plan **out)
{
    ps_conv_plan *p = NULL;
    *out = NULL;
    PS_TRY(PS_NEW(&p, 1, "a convolution"));
    p->lib = lib;
    ps_err err = find_execution(p, shape, most_bytes);
    if (err == PS_OK && p->execution)
        *out = p;
    else
        ps_conv_plan_destroy(&p);
    return err;
}

void ps_conv_plan_destroy(ps_conv_plan **plan)
{
    ps_conv_plan *p = *plan;
    if (!p) return;
    if (p->pack) p->lib->BackendDestroyDescriptor(p->pack);
    if (p->execution) p->lib->BackendDestroyDescriptor(p->execution);
    while (p->n_made > 0)
        p->lib->BackendDestroyDescriptor(p->made[--p->n_made]);
    free(p);
    *plan = NULL;
}

size_t ps_conv_plan_bytes(const ps_conv_plan *plan)
{
    return (size_t)plan->bytes;
}

void ps_conv_plan_describe(const ps_conv_plan *plan, char *out, size_t bytes)
{
    snprintf(out, bytes, "engine %lld, %.1f MiB", (long long)plan->engine,
             (double)plan->bytes / 1048576.0);
}

/* ------------------------------------------------------------------------- running */

/* Addresses do not change from run to run, so a plan that one layer uses needs one pack
 * for all its runs. */
static ps_err make_pack(ps_conv_plan *p, void *const pointers[POINTERS])
{
    const ps_conv_library *lib = p->lib;
    if (p->pack && memcmp(p->pointers, pointers, sizeof p->pointers) == 0) return PS_OK;
    if (p->pack) lib->BackendDestroyDescriptor(p->pack);
    p->pack = NULL;
    CUDNN(lib, "arguments",
          lib->BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &p->pack));
    PS_TRY(cudnn_set(p, p->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3,
                     tensor_ids));
    PS_TRY(cudnn_set(p, p->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                     CUDNN_TYPE_VOID_PTR, 3, pointers));
    PS_TRY(cudnn_set(p, p->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
                     1, &pointers[3]));
    PS_TRY(cudnn_finalize(p, p->pack, "arguments"));
    memcpy(p->pointers, pointers, sizeof p->pointers);
    return PS_OK;
}

ps_err ps_conv_plan_run(ps_conv_plan *p, void *x, void *w, void *y, void *scratch,
                        const char *who)
{
    void *const pointers[POINTERS] = {x, w, y, scratch};
    if (!p->lib->handle)
        return ps_err_set(PS_ERR_ARG, "%s: a plan for a described GPU cannot run", who);
    PS_TRY(make_pack(p, pointers));
    CUDNN(p->lib, who, p->lib->BackendExecute(p->lib->handle, p->execution, p->pack));
    return PS_OK;
}
