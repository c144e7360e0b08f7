/* The all-reduce exchange: buckets of gradients are summed by a collective while the
 * backward pass goes on, and the workers apply the optimizer.
 *
 * One communication thread takes the buckets in order, the last layer's first, which is
 * the same order on every rank. The optimizer's step follows a sum at once. With clipping
 * it waits for the norm of the whole gradient, with loss scaling until it is known
 * whether the gradient is finite (reducer.h). Sums are the same bits on every rank, and
 * so is everything computed from them. The next pass waits for new weights from the first
 * layer on.
 *
 * On a GPU the host waits for none of this: sums and the step are queued in the device's
 * stream behind the gradients, and the next pass behind them. The thread watches for
 * their completion. Only what depends on the outcome (the loss scale, reading the
 * weights) waits. */
#ifndef PS_ALLREDUCE_H
#define PS_ALLREDUCE_H

#include "collective.h"
#include "device_stream.h"
#include "exchange.h"

/* Connects an engine that works on the stream; *out is owned by the exchange. */
typedef ps_err ps_allreduce_connect(const ps_exchange_options *options,
                                    ps_device_stream *stream, ps_collective **out);

/* ops: the engine's table, whose other slots are the functions below. */
ps_err ps_allreduce_create(const ps_exchange_ops *ops, const ps_exchange_options *options,
                           ps_allreduce_connect *connect, ps_exchange **out);

ps_err ps_allreduce_start(ps_exchange *x);
ps_err ps_allreduce_begin(ps_exchange *x, uint64_t step);
ps_err ps_allreduce_params_needed(ps_exchange *x, uint64_t begin, uint64_t end);
ps_err ps_allreduce_params_ready(ps_exchange *x, uint64_t begin, uint64_t end,
                                 bool *ready);
ps_err ps_allreduce_grads_ready(ps_exchange *x, uint64_t begin, uint64_t end);
ps_err ps_allreduce_finish(ps_exchange *x);
ps_err ps_allreduce_drain(ps_exchange *x);
ps_err ps_allreduce_loss_scale(ps_exchange *x, float *scale);
ps_err ps_allreduce_sync_buffers(ps_exchange *x);
ps_err ps_allreduce_save(ps_exchange *x, ps_exchange_state *out);
ps_err ps_allreduce_load(ps_exchange *x, const ps_exchange_state *in);
void ps_allreduce_stats(const ps_exchange *x, ps_exchange_stats *out);
ps_err ps_allreduce_stop(ps_exchange *x);
void ps_allreduce_destroy(ps_exchange **x);
void ps_allreduce_set_step_of(ps_exchange *x, uint32_t step_of);

/* The table of an engine whose create is `make`; device: it works on the stream of a
 * device that has one. */
#define PS_ALLREDUCE_OPS(engine, device, make)                                           \
    {                                                                                    \
        .name = engine, .mode = "allreduce", .servers = false, .peers = true,            \
        .alone = false, .on_device = device, .chunks = NULL, .rests = NULL,              \
        .rounds = NULL, .rows = NULL, .create = make, .start = ps_allreduce_start,       \
        .begin = ps_allreduce_begin, .params_needed = ps_allreduce_params_needed,        \
        .params_ready = ps_allreduce_params_ready,                                       \
        .grads_ready = ps_allreduce_grads_ready, .finish = ps_allreduce_finish,          \
        .drain = ps_allreduce_drain, .loss_scale = ps_allreduce_loss_scale,              \
        .sync_buffers = ps_allreduce_sync_buffers, .save = ps_allreduce_save,            \
        .load = ps_allreduce_load, .stats = ps_allreduce_stats,                          \
        .stop = ps_allreduce_stop, .destroy = ps_allreduce_destroy,                      \
        .set_step_of = ps_allreduce_set_step_of, .leaves_out = false, .coded = false,    \
    }

#endif
