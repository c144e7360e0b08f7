/* The vtable of devices, which run the arithmetic.
 *
 * A device compiles a model into a program. The caller owns the arenas: params and grads
 * in host memory (shared, see mem.h), registered with the program. A device with memory
 * of its own keeps copies there and copies ranges when the hooks allow it. */
#ifndef PS_DEVICE_H
#define PS_DEVICE_H

#include "model_spec.h"
#include "numa.h"
#include "rng.h"

typedef struct ps_device ps_device;
typedef struct ps_program ps_program;
struct ps_device_stream; // device_stream.h
struct ps_device_sums;   // device_sums.h
struct ps_device_sums_options;
struct ps_device_codes; // device_codes.h
struct ps_coded_arena;
struct ps_host_stream_options;

typedef struct ps_device_options {
    int index;      // which device of this kind; -1: local_rank decides
    int local_rank; // rank among the workers of this host; -1: unknown
    int threads;    // cpu: number of compute threads
    bool own_waits; // cpu: they wait for each other as OpenMP's variables say
                    // (cpu_waits.h)
    ps_precision precision;
    bool tf32;
    ps_switch cudnn;
    ps_switch channels_last; // cuda: of pictures between layers, in 16 bits
    bool no_graphs;          // cuda: launch kernels one by one, without CUDA graphs
    uint64_t wait_ms;        // cuda: the longest wait for the GPU; 0: a minute
    ps_winograd winograd; // cpu: which passes of 3 x 3 convolutions may use the algorithm
} ps_device_options;

/* As train.* and net.step_timeout_ms say. */
ps_device_options ps_device_options_of(const ps_config *config, int local_rank,
                                       int threads);

/* Forward and backward call these on the calling thread. When a hook fails, the pass ends
 * with its error. Ranges are elements [begin, end) of the arenas, without the gap after
 * the last tensor in them. A hook that is NULL is not called. */
typedef struct ps_pass_hooks {
    void *ctx;
    /* Called before this pass first reads the range of the parameter arena. Returns when
     * the host arena holds the weights for this pass. */
    ps_err (*params_needed)(void *ctx, uint64_t begin, uint64_t end);
    /* The gradients of the range are final in the host arena; each is announced once.
     * This step's passes do not read those parameters again, so they may be overwritten.
     * NULL in hooks that are given: another pass will add to the gradients first, so they
     * need not be in the host arena yet. */
    ps_err (*grads_ready)(void *ctx, uint64_t begin, uint64_t end);
} ps_pass_hooks;

typedef struct ps_batch {
    int n;                 // samples, 1 .. max_batch of the program
    const float *x;        // (n, input dims), row-major, 64-byte aligned
    const uint8_t *bytes;  // (n, input dims) instead of x, of a program with byte_values
    const int32_t *labels; // (n)
    // (n) positions in the epoch's permutation, for dropout's draws
    const uint32_t *positions;
    // (n, outputs): numbers, or the classes' probabilities for cross_entropy; NULL: the
    // labels
    const float *targets;
    /* With embedding tables (ps_model_spec.rows), a CPU's alone: the rows of the samples,
     * (n, dim) of one table after the other. row_grads (the same): backward writes the
     * gradients of what the loss depends on. */
    const float *rows;
    float *row_grads;
} ps_batch;

typedef struct ps_pass {
    bool training;     // dropout and batch statistics on
    bool accumulate;   // add to the gradients of the previous pass instead of overwriting
                       // them; the parameters have not changed since then
    bool same_weights; // evaluation: parameters and buffers have not changed since the
                       // program's last pass
    bool loss_later;   // the caller fetches the result with ps_program_result
    float grad_scale;  // backward: the mean loss is multiplied by it first
    ps_dropout_key dropout;
    const ps_pass_hooks *hooks; // may be NULL
} ps_pass;

typedef struct ps_pass_result {
    double loss_sum; // sum of the samples' losses, weighted (of numbers: mean over them)
    int64_t correct; // samples whose largest output is the label's; of labels only
} ps_pass_result;

/* The most results that may be outstanding (loss_later). */
enum { PS_RESULTS_KEPT = 4 };

typedef struct ps_program_options {
    const ps_model_spec *spec; // borrowed for the program's life
    int max_batch;
    bool training;     // false: forward only
    bool soft_targets; // batches may have targets although the loss is of classes
    float *params;     // host arena, spec->table.arena_count elements; borrowed
    float *grads;      // host arena; borrowed; NULL when not training
    void *buffers;     // host buffer arena (spec->table.buffer_bytes); borrowed
    /* Batches have bytes. Byte v of channel c, of `channels` equal parts of a sample,
     * stands for element 256 c + v. Copied. NULL: batches have x. Only of a device that
     * takes_bytes. */
    const float *byte_values;
    int64_t channels;
    /* A device with memory of its own calls hooks and copies ranges for groups of layers
     * with at least this many bytes of parameters. 0: layer by layer. */
    size_t group_bytes;
    /* A device without memory of its own calls hooks for blocks of rows of at least this
     * many bytes of a large layer's weight, where that changes no bit. 0: for whole
     * layers. */
    size_t row_bytes;
} ps_program_options;

typedef struct ps_device_ops {
    ps_device_kind kind;
    const char *name;
    bool uses_cores;  // passes run on this host's processor cores
    bool takes_bytes; // of batches, a quarter of what floats would be to copy
    /* *out is owned by the caller. UNSUPPORTED when the machine has no such device; the
     * message says what was asked for and what there is. */
    ps_err (*open)(const ps_device_options *options, ps_device **out);
    void (*close)(ps_device **device);
    /* A line for people: "cpu: AMD EPYC, 1 thread, oneDNN 2.6.3 avx512_core_bf16". */
    void (*describe)(const ps_device *device, char *out, size_t bytes);
    /* Prepares everything that a pass needs. Passes allocate nothing, except the first
     * pass of another batch size. */
    ps_err (*program_create)(ps_device *device, const ps_program_options *options,
                             ps_program **out);
    void (*program_destroy)(ps_program **program);
    /* Runs the model on the batch. result NULL: the caller needs no result, or it is
     * fetched later (pass->loss_later). May return before the work is done: the caller
     * leaves the host's parameters unchanged until the result is known, or until backward
     * (with grads_ready) has returned. Training updates the running statistics; the
     * buffer arena has them at the latest when fetch_buffers returns. After a failure,
     * only destroy may be called. */
    ps_err (*forward)(ps_program *program, const ps_batch *batch, const ps_pass *pass,
                      ps_pass_result *result);
    /* Follows a forward with the same batch and the same pass, except grad_scale. Calls
     * grads_ready from the last layer to the first. */
    ps_err (*backward)(ps_program *program, const ps_batch *batch, const ps_pass *pass);
    /* Copies the last forward's outputs (n, outputs) to host memory. */
    ps_err (*outputs)(ps_program *program, float *out, size_t count);
    /* The oldest outstanding result (pass->loss_later). Waits for that pass only. ARG
     * when no result is outstanding. */
    ps_err (*result)(ps_program *program, ps_pass_result *out);
    /* Announces the batch, with its final content, that the next forward will be given. A
     * device with memory of its own copies it there during the current pass. NULL:
     * prefetching gains nothing, and passes are done when their call returns. */
    ps_err (*prefetch)(ps_program *program, const ps_batch *batch);
    /* Waits until the buffer arena holds the results of all passes so far; it may then be
     * changed before the next pass. NULL: this always holds. */
    ps_err (*fetch_buffers)(ps_program *program);
    /* Keeps the arenas of these parameters on the device, with the optimizer's states.
     * Programs made for these parameters afterwards work on the device's arenas and copy
     * nothing to or from the host arenas; hooks are still called. Destroy these programs
     * before the stream. Only one stream may exist at a time. *out is owned by the
     * caller. NULL: the device works on the host arenas. */
    ps_err (*stream_create)(ps_device *device,
                            const struct ps_host_stream_options *options,
                            struct ps_device_stream **out);
    /* Keeps the gradients of programs that are made afterwards on the device, for the
     * processes of the host. Only one may exist at a time. *out is owned by the caller.
     * UNSUPPORTED says why it cannot be; NULL: gradients are in host memory anyway. */
    ps_err (*sums_create)(ps_device *device, const struct ps_device_sums_options *options,
                          struct ps_device_sums **out);
    /* Memory of the device, in bytes: what all processes use, and all. False: not known.
     * NULL: it is the host's. */
    bool (*memory)(ps_device *device, uint64_t *used, uint64_t *total);
    /* Whether the device has failed in a way that only another process can mend. NULL:
     * never. */
    bool (*lost)(ps_device *device);
    /* The part of the host on which the device is. False: not known, or the host has one
     * part. NULL: no device of its own. */
    bool (*numa)(const ps_device *device, ps_numa *out);
    /* Encodes the gradients of programs that are made afterwards, for that arena, into
     * out, which is borrowed (device_codes.h). Only one may exist at a time. *codes is
     * owned by the caller. UNSUPPORTED, NULL: the host encodes. */
    ps_err (*codes_create)(ps_device *device, const struct ps_coded_arena *out,
                           const float *grads, struct ps_device_codes **codes);
} ps_device_ops;

struct ps_device {
    const ps_device_ops *ops;
};
struct ps_program {
    ps_device *device;
};

/* Opens the back end of that kind; AUTO: the first that the machine has. UNSUPPORTED
 * names what the build or the machine lacks. */
ps_err ps_device_open(ps_device_kind kind, const ps_device_options *options,
                      ps_device **out);

static inline void ps_device_close(ps_device **device)
{
    if (*device) (*device)->ops->close(device);
}
/* False, and zeros, where it is not known, or the host's. */
static inline bool ps_device_memory(ps_device *device, uint64_t *used, uint64_t *total)
{
    *used = *total = 0;
    return device->ops->memory && device->ops->memory(device, used, total);
}
static inline bool ps_device_lost(ps_device *device)
{
    return device && device->ops->lost && device->ops->lost(device);
}
static inline void ps_device_describe(const ps_device *device, char *out, size_t bytes)
{
    device->ops->describe(device, out, bytes);
}
static inline ps_err
ps_program_create(ps_device *device, const ps_program_options *options, ps_program **out)
{
    *out = NULL;
    if (options->max_batch < 1 || (options->training && !options->grads))
        return ps_err_set(PS_ERR_ARG, "a program needs a batch size, and gradients to "
                                      "train");
    if (options->byte_values && !device->ops->takes_bytes)
        return ps_err_set(PS_ERR_ARG, "the device %s takes no bytes", device->ops->name);
    return device->ops->program_create(device, options, out);
}
static inline void ps_program_destroy(ps_program **program)
{
    if (*program) (*program)->device->ops->program_destroy(program);
}
static inline ps_err ps_program_forward(ps_program *program, const ps_batch *batch,
                                        const ps_pass *pass, ps_pass_result *result)
{
    return program->device->ops->forward(program, batch, pass, result);
}
static inline ps_err ps_program_backward(ps_program *program, const ps_batch *batch,
                                         const ps_pass *pass)
{
    return program->device->ops->backward(program, batch, pass);
}
static inline ps_err ps_program_outputs(ps_program *program, float *out, size_t count)
{
    return program->device->ops->outputs(program, out, count);
}
static inline ps_err ps_program_result(ps_program *program, ps_pass_result *out)
{
    return program->device->ops->result(program, out);
}
static inline bool ps_program_prefetches(const ps_program *program)
{
    return program->device->ops->prefetch != NULL;
}
static inline ps_err ps_program_prefetch(ps_program *program, const ps_batch *batch)
{
    return program->device->ops->prefetch(program, batch);
}
static inline ps_err ps_program_fetch_buffers(ps_program *program)
{
    const ps_device_ops *ops = program->device->ops;
    return ops->fetch_buffers ? ops->fetch_buffers(program) : PS_OK;
}

#endif
