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
 * What all ranks have to know of a step before it is made, or told to be: the norm of the
 * whole gradient, whether it is finite, is gathered behind the sums of its last bucket.
 *
 * With an engine that queues its sums, a GPU's, nothing is waited for: behind the sum of
 * the last bucket the whole step is queued (stream_step.h).
 */
#ifndef PS_REDUCER_H
#define PS_REDUCER_H

#include "bucket.h"
#include "collective.h"
#include "device_stream.h"
#include "exchange.h"
#include "stream_step.h"

typedef struct ps_reducer {
    const ps_exchange_options *at;
    ps_device_stream *stream;
    ps_collective *collective;
    ps_buckets buckets;
    ps_scatter scatter; // into one part per rank, or one in all
    int own;            // of the parts
    bool waits;         // a step's buckets are applied together: clipping, loss scaling
    bool queues;        // the engine does
    bool made;          // the last step: with loss scaling some are not
    ps_step_rule rule;
    ps_stream_step on_stream; // of an engine that queues

    double *norm_sums; // of the whole arena; NULL without clipping
    /* (parts) of the step: 1 + a tensor that is not finite, or 0. */
    uint32_t *bad_tensors;
    uint64_t *cuts; // of all arrays, (parts + 1) each
    /* What is gathered: bad_tensors and, with clipping, norm_sums of every bucket. */
    ps_collective_parts *arrays;
} ps_reducer;

/* Borrows all three for its life. NOMEM, CONFIG; safe for fini then. */
ps_err ps_reducer_init(ps_reducer *r, const ps_exchange_options *at,
                       ps_device_stream *stream, ps_collective *collective);
void ps_reducer_fini(ps_reducer *r);

/* A bucket of a step, in order: sums it and applies what can be applied. *applied, true
 * with the step's last bucket only: all of the step is, or, with an engine that queues,
 * will be before the device's next pass. NUMERIC, on every rank, at the last bucket of a
 * step with a gradient that is not finite, or, with an engine that queues, when that is
 * settled. */
ps_err ps_reducer_reduce(ps_reducer *r, int bucket, uint64_t step, bool *applied);

/* Then, from the last bucket to the first, as the next forward pass wants them: returns
 * when all of the bucket's new weights are here. */
ps_err ps_reducer_gather(ps_reducer *r, int bucket);

/* *done: whether what was applied is done, and what is to be known of it is; wait:
 * returns when it is. */
ps_err ps_reducer_settle(ps_reducer *r, bool wait, bool *done);

#endif
