/* A device's stream as an all-reduce engine sees it: a queue of work beside the passes,
 * on the memory where the device keeps the arenas.
 *
 * On the cpu device the arenas are host memory and the queue is empty at every moment:
 * what is queued is done when the call returns (ps_host_stream). A device with memory of
 * its own gives its copy stream, its addresses, and kernels for the optimizer. One thread
 * at a time uses a stream: the exchange's communication thread.
 */
#ifndef PS_DEVICE_STREAM_H
#define PS_DEVICE_STREAM_H

#include "optimizer.h"
#include "plan.h"
#include "tensor_table.h"

typedef struct ps_device_stream ps_device_stream;

/* Arenas that move between the host and the stream's memory. */
enum { PS_STREAM_PARAMS = 1, PS_STREAM_BUFFERS = 2 };

typedef struct ps_device_stream_ops {
    const char *name;
    /* Copies host arenas (PS_STREAM_...) to where the stream works, or back, behind what
     * is queued, and waits for it. Nothing where these are the same. */
    ps_err (*from_host)(ps_device_stream *s, unsigned arenas);
    ps_err (*to_host)(ps_device_stream *s, unsigned arenas);
    /* The library's handle of the queue (cudaStream_t); NULL: host memory. Borrowed. */
    void *(*native)(ps_device_stream *s);
    /* The arenas where the stream works on them. Borrowed. */
    float *(*params)(ps_device_stream *s);
    float *(*grads)(ps_device_stream *s);
    void *(*buffers)(ps_device_stream *s);
    /* What is queued from now on waits until every gradient that the backward pass has
     * announced (grads_ready) is written. */
    ps_err (*wait_compute)(ps_device_stream *s);
    /* Passes started from now on wait until what is queued now is done. */
    ps_err (*release_compute)(ps_device_stream *s);
    /* Records an event behind everything queued; done tells whether it has passed. Never
     * blocks. */
    ps_err (*mark)(ps_device_stream *s);
    ps_err (*done)(ps_device_stream *s, bool *done);
    /* *finite: whether all of grads [offset, offset + count) is. Waits for the queue. */
    ps_err (*check_finite)(ps_device_stream *s, uint64_t offset, uint64_t count,
                           bool *finite);
    /* Multiplies grads [offset, offset + count) by factor; *finite: whether all are then.
     * Waits for the queue. */
    ps_err (*unscale)(ps_device_stream *s, uint64_t offset, uint64_t count, float factor,
                      bool *finite);
    /* The chunk's block sums (grad_norm.h). Waits for the queue. */
    ps_err (*norm_sums)(ps_device_stream *s, const ps_chunk *chunk, double *sums);
    /* Elements [offset, offset + count) of the optimizer's state i, behind what is
     * queued, to host memory (count), or from it. Waits for the queue. */
    ps_err (*save_state)(ps_device_stream *s, int i, uint64_t offset, uint64_t count,
                         float *out);
    ps_err (*load_state)(ps_device_stream *s, int i, uint64_t offset, uint64_t count,
                         const float *from);
    /* One optimizer step over a chunk, queued. */
    ps_err (*apply)(ps_device_stream *s, const ps_optimizer_step *step,
                    const ps_chunk *chunk);
    /* Queues a step of the whole arena behind every gradient announced: checked to be
     * finite, clipped to clip_norm (0: not), applied, with no wait between. A step that
     * is refused for a gradient that is not finite is not applied, nor is any after it.
     * NULL: what is queued is done anyway. */
    ps_err (*step)(ps_device_stream *s, const ps_optimizer_step *step, bool check,
                   double clip_norm);
    /* Queues a step of gradients that are multiplied by inverse first. It is not made
     * where one is not finite then, whatever became of the steps before. made waits for
     * the last of them, and for nothing behind it. NULL as step. */
    ps_err (*scaled_step)(ps_device_stream *s, const ps_optimizer_step *step,
                          float inverse, double clip_norm);
    ps_err (*scaled_step_made)(ps_device_stream *s, bool *made);
    /* *t: the first step (its ps_optimizer_step.t) that was refused, as far as is known
     * without a wait, or, with wait, of all that are queued; 0: none. *tensor: one whose
     * gradient is not finite. */
    ps_err (*refused)(ps_device_stream *s, bool wait, uint64_t *t, int *tensor);
    void (*destroy)(ps_device_stream **s);
} ps_device_stream_ops;

struct ps_device_stream {
    const ps_device_stream_ops *ops;
};

typedef struct ps_host_stream_options { // all borrowed for the stream's life
    const ps_tensor_table *table;
    const ps_optimizer *optimizer;
    float *params, *grads; // table->arena_count elements
    void *buffers;
    /* All elements are stepped here: the optimizer's state lies in large pages. Otherwise
     * only the pages that are used take memory. */
    bool whole;
} ps_host_stream_options;

/* The stream of a device whose arenas are host memory. Holds the optimizer's state. *out
 * is owned by the caller. */
ps_err ps_host_stream_create(const ps_host_stream_options *options,
                             ps_device_stream **out);

#endif
