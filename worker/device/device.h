/* Devices: where arithmetic runs. One of the project's vtables.
 *
 * A device compiles a model into a program. The caller owns the arenas: params and grads
 * in host memory (shared, see mem.h), registered with the program. A device with memory
 * of its own keeps copies there and moves ranges when the hooks say that they may move.
 */
#ifndef PS_DEVICE_H
#define PS_DEVICE_H

#include "model_spec.h"
#include "rng.h"

typedef struct ps_device ps_device;
typedef struct ps_program ps_program;
struct ps_device_stream; // device_stream.h
struct ps_host_stream_options;

typedef struct ps_device_options {
    int index;      // of several of its kind; -1: chosen by the device, by local_rank
    int local_rank; // among the workers of this host; -1: unknown
    int threads;    // cpu: of arithmetic
    ps_precision precision;
    bool tf32;
    ps_switch cudnn;
    bool no_graphs;       // cuda: launches one by one, no CUDA graphs
    ps_winograd winograd; // cpu: the passes of 3 x 3 convolutions that may be by it
} ps_device_options;

/* Called by forward and backward on the calling thread; a failure ends the pass with it.
 * tensor indices are those of ps_model_spec.tensors. NULL hooks are not called. */
typedef struct ps_pass_hooks {
    void *ctx;
    /* Before the first read of tensors [first, first + n) of the parameter arena in this
     * pass: returns when the host arena holds the weights that the pass wants. */
    ps_err (*params_needed)(void *ctx, int first, int n);
    /* The gradients of tensors [first, first + n) are final in the host arena and this
     * step's passes read those parameters no more: they may be overwritten. NULL in hooks
     * that are given: the gradients need not be in the host arena, another pass adds to
     * them first. */
    ps_err (*grads_ready)(void *ctx, int first, int n);
} ps_pass_hooks;

typedef struct ps_batch {
    int n;                 // samples, 1 .. max_batch of the program
    const float *x;        // (n, input dims), row-major, 64-byte aligned
    const int32_t *labels; // (n)
    const uint32_t
        *positions; // (n) positions in the epoch's permutation (dropout's draws)
} ps_batch;

typedef struct ps_pass {
    bool training;   // dropout and batch statistics on
    bool accumulate; // add to what the pass before left in the gradient arena instead of
                     // overwriting it; the parameters are still that pass's
    bool same_weights; // evaluation: parameters and buffers are those of the program's
                       // last pass
    bool loss_later;   // ps_program_result is asked for the result
    float grad_scale;  // backward: the mean loss is multiplied by it first
    ps_dropout_key dropout;
    const ps_pass_hooks *hooks; // may be NULL
} ps_pass;

typedef struct ps_pass_result {
    double loss_sum; // sum over samples of each one's loss (mse: its mean over outputs)
    int64_t correct; // samples whose largest output is the label's
} ps_pass_result;

/* Results that a program owes at most (loss_later). */
enum { PS_RESULTS_KEPT = 4 };

typedef struct ps_program_options {
    const ps_model_spec *spec; // borrowed for the program's life
    int max_batch;
    bool training; // false: forward only
    float *params; // host arena, spec->table.arena_count elements; borrowed
    float *grads;  // host arena; borrowed; NULL when not training
    void *buffers; // host buffer arena (spec->table.buffer_bytes); borrowed
    /* Of parameters and gradients that travel together. A device with memory of its own
     * calls hooks, and moves ranges, for so many at a time, and at least for a layer's.
     * 0: layer by layer. */
    size_t group_bytes;
} ps_program_options;

typedef struct ps_device_ops {
    ps_device_kind kind;
    const char *name;
    bool uses_cores; // passes keep the threads of this host's processor busy
    /* *out is owned by the caller. UNSUPPORTED when the machine has none (says what was
     * asked for and what there is). */
    ps_err (*open)(const ps_device_options *options, ps_device **out);
    void (*close)(ps_device **device);
    /* A line for people: "cpu: AMD EPYC, 1 thread, oneDNN 2.6.3 avx512_core_bf16". */
    void (*describe)(const ps_device *device, char *out, size_t bytes);
    /* Prepares everything that a pass needs: nothing is allocated in a pass (but for the
     * first pass of another batch size). */
    ps_err (*program_create)(ps_device *device, const ps_program_options *options,
                             ps_program **out);
    void (*program_destroy)(ps_program **program);
    /* Runs the model on the batch. result NULL: it is not wanted, or later
     * (pass->loss_later). Returns as early as the device likes: the host's parameters
     * stay as they are until the result is known or backward, with grads_ready, has
     * returned. In training, running statistics are updated, in the buffer arena at the
     * latest when settle_buffers is called. After a failure, only destroy may be called.
     */
    ps_err (*forward)(ps_program *program, const ps_batch *batch, const ps_pass *pass,
                      ps_pass_result *result);
    /* After a forward with the same batch and, but for grad_scale, pass. Calls
     * grads_ready from the last layer to the first. */
    ps_err (*backward)(ps_program *program, const ps_batch *batch, const ps_pass *pass);
    /* The last forward's outputs (n, outputs), copied to host memory. */
    ps_err (*outputs)(ps_program *program, float *out, size_t count);
    /* The oldest result that is owed (pass->loss_later): waits for that pass alone. ARG
     * when none is. */
    ps_err (*result)(ps_program *program, ps_pass_result *out);
    /* The batch that the next forward will be given, with the same content: a device with
     * memory of its own copies it there beside the pass that it is at. NULL: it would
     * gain nothing, and passes are done when their call returns. */
    ps_err (*prefetch)(ps_program *program, const ps_batch *batch);
    /* The buffer arena holds what the passes until now have made of it, and may be
     * changed before the next one. NULL: always so. */
    ps_err (*settle_buffers)(ps_program *program);
    /* Keeps the arenas of these parameters on the device, with the optimizer's states:
     * programs made for them afterwards work there, move nothing between there and the
     * host arenas (hooks are called all the same), and are destroyed before the stream.
     * One stream at a time. *out is owned by the caller. NULL: the arenas are host memory
     * anyway. */
    ps_err (*stream_create)(ps_device *device,
                            const struct ps_host_stream_options *options,
                            struct ps_device_stream **out);
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
static inline void ps_device_describe(const ps_device *device, char *out, size_t bytes)
{
    device->ops->describe(device, out, bytes);
}
static inline ps_err
ps_program_create(ps_device *device, const ps_program_options *options, ps_program **out)
{
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
static inline ps_err ps_program_settle_buffers(ps_program *program)
{
    const ps_device_ops *ops = program->device->ops;
    return ops->settle_buffers ? ops->settle_buffers(program) : PS_OK;
}

#endif
