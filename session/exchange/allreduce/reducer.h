/* The reducer: what the communication thread of the all-reduce exchange does with a
 * bucket of gradients.
 *
 * With an engine that scatters (Gloo), every rank sums its own part of a bucket, makes
 * the optimizer's step for that part alone, and the new weights are gathered: the bytes
 * of an all-reduce, and 1/W of the sums, of the optimizer's work and of its states on
 * each rank (weight-update sharding, Xu et al. 2020, arXiv:2004.13336; ZeRO stage 1). The
 * optimizer is elementwise: weights are the same bits as if each rank made the whole
 * step. All this goes segment by segment: the weights of one travel while the gradients
 * of the next arrive. With an engine that only sums (NCCL), the rank's own part is the
 * whole bucket, and the only segment.
 *
 * What all ranks must know before a step counts as made (the norm of the whole gradient,
 * whether it is finite) is gathered after the sums of its last bucket.
 *
 * With an engine that queues its sums (on a GPU) the host does not wait: the whole step
 * is queued behind the sum of the last bucket (stream_step.h). */
#ifndef PS_REDUCER_H
#define PS_REDUCER_H

#include <stdatomic.h>

#include "bucket.h"
#include "collective.h"
#include "device_stream.h"
#include "exchange.h"
#include "stream_step.h"

typedef struct ps_reducer_note {
    uint32_t bad_tensor; // 1 + a tensor that is not finite, or 0
    uint32_t step_of;    // whose step it is (plan.h)
} ps_reducer_note;

typedef struct ps_reducer {
    const ps_exchange_options *at;
    ps_device_stream *stream;
    ps_collective *collective;
    ps_buckets buckets;
    ps_scatter scatter; // into one part per rank, or one in all
    int own;            // of the parts
    bool waits;         // a step's buckets are applied together: clipping, loss scaling
    bool queues;        // the engine queues its sums
    bool made;          // the last step was made; loss scaling skips some
    ps_step_rule rule;
    ps_stream_step on_stream; // of an engine that queues

    double *gradnorm_sums; // of the whole arena; NULL without clipping
    double *lamb_sums;     // (ps_lamb_sums); NULL: another optimizer
    double *sums[3];       // (n_sums) those of them that there are, by kind
    int n_sums;
    ps_reducer_note *notes;       // (parts) of the step
    _Atomic uint32_t steps_of[2]; // by step % 2: the own notes' step_of
    uint64_t *cuts;               // of all arrays, (parts + 1) each
    /* What is gathered: notes, and of every bucket each of `sums`. */
    ps_collective_parts *arrays;
} ps_reducer;

/* Borrows all three for its life. NOMEM, CONFIG; safe for fini then. */
ps_err ps_reducer_init(ps_reducer *r, const ps_exchange_options *at,
                       ps_device_stream *stream, ps_collective *collective);
void ps_reducer_fini(ps_reducer *r);

/* Whose step it is, before its last bucket is given. By any thread. */
void ps_reducer_set_step_of(ps_reducer *r, uint64_t step, uint32_t step_of);

/* Takes a step's buckets in order: sums each and applies what can be applied. *applied is
 * true with the last bucket only: the whole step is applied, or, with an engine that
 * queues, will be before the device's next pass. NUMERIC, on every rank, at the last
 * bucket of a step with a gradient that is not finite, or, with an engine that queues,
 * when that is completed. PEER, likewise, where ranks step different optimizers, with an
 * engine that scatters. */
ps_err ps_reducer_reduce(ps_reducer *r, int bucket, uint64_t step, bool *applied);

/* Called after that, from the last bucket to the first, as the next forward pass needs
 * them. Returns when all of the bucket's new weights are here. */
ps_err ps_reducer_gather(ps_reducer *r, int bucket);

/* *done: whether what was applied is complete and its outcome known; wait: returns when
 * it is. */
ps_err ps_reducer_complete(ps_reducer *r, bool wait, bool *done);

/* ps_exchange_ops's save and load, while nothing is being reduced: moves the optimizer
 * states to rank 0's arenas, or back. Every rank has its own parts of them. */
ps_err ps_reducer_save(ps_reducer *r, ps_exchange_state *out);
ps_err ps_reducer_load(ps_reducer *r, const ps_exchange_state *in);

#endif
