/* A device's stream, for all-reduce engines: a queue of work that runs beside the passes,
 * in the memory where the device keeps the arenas.
 *
 * On the cpu device the arenas are host memory, and queued work is done when the call
 * returns (ps_host_stream). A device with memory of its own gives its copy stream, its
 * addresses, and kernels for the optimizer. One thread at a time uses a stream: the
 * exchange's communication thread. */
#ifndef PS_DEVICE_STREAM_H
#define PS_DEVICE_STREAM_H

#include "optimizer.h"
#include "plan.h"
#include "tensor_table.h"

typedef struct ps_device_stream ps_device_stream;

/* Arenas that move between the host and the stream's memory. */
enum { PS_STREAM_PARAMS = 1, PS_STREAM_BUFFERS = 2 };
/* For save_state and load_state: ps_exchange_state.missed. */
enum { PS_STREAM_MISSED = PS_OPTIMIZER_MAX_STATES };

typedef struct ps_device_stream_ops {
    /* Copies host arenas (PS_STREAM_...) to the stream's memory, or back, after the
     * queued work, and waits for the copy. Does nothing where both are the same memory.
     */
    ps_err (*from_host)(ps_device_stream *s, unsigned arenas);
    ps_err (*to_host)(ps_device_stream *s, unsigned arenas);
    /* Work queued from now on waits until every gradient that the backward pass has
     * announced (grads_ready) is written. */
    ps_err (*wait_compute)(ps_device_stream *s);
    /* Passes started from now on wait for the work that is queued now. */
    ps_err (*release_compute)(ps_device_stream *s);
    /* mark records an event after everything queued; done tells whether it has passed.
     * Neither blocks. */
    ps_err (*mark)(ps_device_stream *s);
    ps_err (*done)(ps_device_stream *s, bool *done);
    /* *finite: whether all of grads [offset, offset + count) are finite. Waits for the
     * queue. */
    ps_err (*check_finite)(ps_device_stream *s, uint64_t offset, uint64_t count,
                           bool *finite);
    /* Multiplies grads [offset, offset + count) by factor; *finite: whether all products
     * are finite. Waits for the queue. */
    ps_err (*unscale)(ps_device_stream *s, uint64_t offset, uint64_t count, float factor,
                      bool *finite);
    /* The chunk's block sums (gradnorm.h). Waits for the queue. */
    ps_err (*gradnorm_sums)(ps_device_stream *s, const ps_chunk *chunk, double *sums);
    /* Copies elements [offset, offset + count) of the optimizer's state i, or of
     * PS_STREAM_MISSED, to or from host memory (count), after the queued work. Waits for
     * the copy. */
    ps_err (*save_state)(ps_device_stream *s, int i, uint64_t offset, uint64_t count,
                         float *out);
    ps_err (*load_state)(ps_device_stream *s, int i, uint64_t offset, uint64_t count,
                         const float *from);
    /* Notes which tensors of the chunk lack a gradient in the step (absent.h), before
     * anything else is done with it. With table->optional alone. NULL: the stream is of
     * no such table. */
    ps_err (*note_absent)(ps_device_stream *s, const ps_chunk *chunk);
    /* Queues one optimizer step over a chunk. */
    ps_err (*apply)(ps_device_stream *s, const ps_optimizer_step *step,
                    const ps_chunk *chunk);
    /* LAMB's two passes over a chunk (lamb.h). NULL: the stream cannot. */
    ps_err (*lamb_update)(ps_device_stream *s, const ps_optimizer_step *step,
                          const ps_chunk *chunk, double *weight_sums,
                          double *update_sums);
    ps_err (*lamb_apply)(ps_device_stream *s, const ps_optimizer_step *step,
                         const ps_chunk *chunk, const double *sums);
    /* The policy local (exchange_local.h), whose anchor is the host's. use_anchor borrows
     * the host's arenas of the anchor and of the changes until it is called with NULL,
     * which waits for the queue and cannot fail. */
    ps_err (*use_anchor)(ps_device_stream *s, float *anchor, float *changes);
    /* Queues weights = kept * weights + (1 - kept) * anchor for elements [offset, offset
     * + count); kept 0: the anchor itself. Passes started from now on have them. The
     * anchor's elements stay unchanged until the next change of them. */
    ps_err (*take_anchor)(ps_device_stream *s, uint64_t offset, uint64_t count,
                          float kept);
    /* changes = (anchor - weights) * share, where the anchor is as it was last taken.
     * Overwrites the stream's gradients. Waits for the queue. */
    ps_err (*change)(ps_device_stream *s, uint64_t offset, uint64_t count, float share);
    /* Queues a step over the whole arena, after every announced gradient: check that the
     * gradients are finite, clip to clip_norm (0: no clipping), apply. Does not wait.
     * When a gradient is not finite, the step is refused: neither it nor any later step
     * is applied. NULL: this stream does queued work at once. */
    ps_err (*step)(ps_device_stream *s, const ps_optimizer_step *step, bool check,
                   double clip_norm);
    /* Queues a step on gradients multiplied by inverse. It is skipped when a product is
     * not finite, independently of earlier steps. scaled_step_made waits for the last
     * such step, and for nothing queued after it, and tells whether it was applied. NULL
     * where step is NULL. */
    ps_err (*scaled_step)(ps_device_stream *s, const ps_optimizer_step *step,
                          float inverse, double clip_norm);
    ps_err (*scaled_step_made)(ps_device_stream *s, bool *made);
    /* *t: the ps_optimizer_step.t of the first step that was refused; 0: none. With wait,
     * all queued steps are considered, otherwise only those known to be done. *tensor: a
     * tensor whose gradient is not finite. */
    ps_err (*refused)(ps_device_stream *s, bool wait, uint64_t *t, int *tensor);
    void (*destroy)(ps_device_stream **s);
} ps_device_stream_ops;

struct ps_device_stream {
    const ps_device_stream_ops *ops;
    void *native; // the queue's handle (cudaStream_t), borrowed; NULL: host memory
    /* The arenas where the stream works on them. Borrowed. */
    float *params, *grads;
    void *buffers;
};

typedef struct ps_host_stream_options { // all borrowed for the stream's life
    const ps_tensor_table *table;
    const ps_optimizer *optimizer;
    float *params, *grads; // table->arena_count elements
    void *buffers;
    /* This stream steps all elements, so the optimizer's state is allocated in large
     * pages. Otherwise only the pages that are used take memory. */
    bool whole;
} ps_host_stream_options;

/* The stream of a device whose arenas are host memory. Holds the optimizer's state. *out
 * is owned by the caller. */
ps_err ps_host_stream_create(const ps_host_stream_options *options,
                             ps_device_stream **out);

#endif
