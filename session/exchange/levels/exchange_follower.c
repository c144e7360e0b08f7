#include "exchange_follower.h"

#include <stdlib.h>
#include <string.h>

#include "buffer_sync.h"
#include "levels_sums.h"
#include "shm_peers.h"
#include "trace.h"

typedef struct exchange_follower {
    ps_exchange base;
    ps_exchange_options o;
    ps_levels *levels;
    ps_levels_sums *sums;
    bool shows;            // the arena of parameters is the leader's memory
    ps_ready_ranges ready; // this step's gradients, by chunk
    uint32_t *batch;       // scratch: chunks
    uint64_t *copied;      // (n_chunks) versions that were copied
    uint64_t step;
    int64_t newest; // version that follows the last step whose gradients are all in
    uint64_t n_buffer_syncs, n_exact;
    uint64_t wait_ns, shm_sent, shm_received;
} exchange_follower;

static const ps_exchange_ops follower_ops;

static exchange_follower *follower_self(ps_exchange *x)
{
    return (exchange_follower *)x;
}

static void follower_destroy(ps_exchange **x)
{
    exchange_follower *e = follower_self(*x);
    ps_levels_sums_destroy(&e->sums);
    ps_levels_close(&e->levels);
    ps_ready_ranges_fini(&e->ready);
    free(e->batch);
    free(e->copied);
    free(e);
    *x = NULL;
}

/* Passes read the weights on the GPU. Whoever reads them in host memory finds the
 * leader's there. */
static ps_err follower_show_weights(exchange_follower *e)
{
    const ps_levels *l = e->levels;
    e->shows = l->sums != NULL;
    return e->shows ? ps_shm_peers_show_params(l->peers, l->ranks[0], e->o.params)
                    : PS_OK;
}

static ps_err follower_prepare(exchange_follower *e)
{
    const size_t n = e->o.plan->n_chunks;
    PS_TRY(follower_show_weights(e));
    PS_TRY(PS_NEW(&e->batch, n, "chunk map"));
    PS_TRY(PS_NEW(&e->copied, n, "chunk map"));
    PS_TRY(ps_ready_ranges_init_chunks(&e->ready, e->o.table, e->o.plan));
    return ps_levels_sums_create(e->levels, &(ps_levels_sums_hooks){0}, &e->sums);
}

ps_err ps_exchange_follower_create(ps_levels *levels, ps_exchange **out)
{
    exchange_follower *e;
    *out = NULL;
    ps_err err = PS_NEW(&e, 1, "the exchange on this host");
    if (err != PS_OK) {
        ps_levels_close(&levels);
        return err;
    }
    e->base = (ps_exchange){.ops = &follower_ops, .ready = &e->ready};
    e->o = levels->o;
    e->levels = levels;
    e->newest = (int64_t)e->o.first_step;
    ps_exchange *x = &e->base;
    err = follower_prepare(e);
    if (err == PS_OK)
        *out = x;
    else
        follower_destroy(&x);
    return err;
}

/* --- weights ------------------------------------------------------------------------ */

/* The leader waits for servers, and says so first when these are late. */
static ps_err await_leader(exchange_follower *e, const _Atomic uint64_t *count,
                           uint64_t target)
{
    const uint64_t timeout_ms = e->o.settings.step_timeout_ms;
    ps_levels_wait w = {.levels = e->levels,
                        .timeout_ms = timeout_ms + timeout_ms / 4,
                        .what = "weights",
                        .also = ps_levels_sums_check,
                        .ctx = e->sums};
    return ps_levels_await(&w, count, target);
}

static void follower_copy(exchange_follower *e, uint32_t chunk)
{
    const ps_chunk *c = &e->o.plan->chunks[chunk];
    const float *from = ps_shm_peers_params(e->levels->peers, e->levels->ranks[0]);
    e->shm_received += c->count * sizeof *from;
    if (e->shows) return;
    memcpy((float *)e->o.params->base + c->offset, from + c->offset,
           c->count * sizeof *from);
}

static bool follower_has(const exchange_follower *e, uint32_t chunk, int64_t version)
{
    return (int64_t)e->copied[chunk] > version - (int64_t)e->o.first_step;
}

static ps_err follower_fetch(exchange_follower *e, uint32_t chunk, int64_t version)
{
    if (follower_has(e, chunk, version)) return PS_OK;
    const uint64_t target = (uint64_t)(version - (int64_t)e->o.first_step) + 1;
    PS_TRY(
        await_leader(e, ps_levels_count(e->levels, 0, PS_LEVELS_WEIGHTS, chunk), target));
    PS_TRY(ps_levels_sums_await_here(e->sums, chunk, chunk, version));
    follower_copy(e, chunk);
    e->copied[chunk] = target;
    return PS_OK;
}

/* Begins with the last chunk: the next forward pass needs it first. */
static ps_err fetch_all(exchange_follower *e, uint32_t first, uint32_t last,
                        int64_t version)
{
    uint32_t c = first;
    while (c <= last && follower_has(e, c, version))
        c++;
    if (c > last) return PS_OK;
    const uint64_t begin_ns = ps_trace_begin(PS_TRACE_WAIT);
    ps_err err = PS_OK;
    for (c = last + 1; c-- > first && err == PS_OK;)
        err = follower_fetch(e, c, version);
    e->wait_ns += ps_clock_ns() - begin_ns;
    ps_trace_add(PS_TRACE_WAIT, begin_ns, e->step);
    return err;
}

static ps_err follower_drain(ps_exchange *x)
{
    exchange_follower *e = follower_self(x);
    return fetch_all(e, 0, e->o.plan->n_chunks - 1, e->newest);
}

static ps_err follower_start(ps_exchange *x)
{
    exchange_follower *e = follower_self(x);
    PS_TRY(follower_drain(x));
    e->wait_ns = 0; // the start is not counted
    return ps_buffer_sync(&e->o, &e->n_buffer_syncs);
}

static ps_err follower_params_needed(ps_exchange *x, uint64_t begin, uint64_t end)
{
    exchange_follower *e = follower_self(x);
    uint32_t first, last;
    ps_ready_ranges_touched(&e->ready, begin, end, &first, &last);
    return fetch_all(e, first, last, e->newest);
}

static ps_err follower_params_ready(ps_exchange *x, uint64_t begin, uint64_t end,
                                    bool *ready)
{
    const exchange_follower *e = follower_self(x);
    const uint64_t n = (uint64_t)e->newest - e->o.first_step + 1;
    uint32_t first, last;
    ps_ready_ranges_touched(&e->ready, begin, end, &first, &last);
    *ready = ps_levels_sums_here(e->sums, first, last, e->newest);
    for (uint32_t c = first; c <= last; c++)
        *ready = *ready &&
                 atomic_load(ps_levels_count(e->levels, 0, PS_LEVELS_WEIGHTS, c)) >= n;
    return PS_OK;
}

static ps_err follower_loss_scale(ps_exchange *x, float *scale)
{
    exchange_follower *e = follower_self(x);
    *scale = 1;
    if (!e->o.rule->scale.on) return PS_OK;
    PS_TRY(follower_drain(x));
    const uint32_t bits = atomic_load(&e->levels->boards[0]->scale_bits);
    memcpy(scale, &bits, sizeof *scale);
    return PS_OK;
}

/* With a codec the leader fetches the exact weights into its arena. */
static ps_err follower_sync_buffers(ps_exchange *x)
{
    exchange_follower *e = follower_self(x);
    if (e->o.settings.codec.codec != PS_CODEC_NONE) {
        PS_TRY(follower_drain(x));
        PS_TRY(await_leader(e, &e->levels->boards[0]->rounds, ++e->n_exact));
        PS_TRY(ps_levels_sums_bring_exact(e->sums));
        for (uint32_t c = 0; c < e->o.plan->n_chunks; c++)
            follower_copy(e, c);
    }
    return ps_buffer_sync(&e->o, &e->n_buffer_syncs);
}

/* --- gradients ---------------------------------------------------------------------- */

static ps_err follower_begin(ps_exchange *x, uint64_t step)
{
    exchange_follower *e = follower_self(x);
    e->step = step;
    ps_ready_ranges_restart(&e->ready);
    return PS_OK;
}

static void follower_set_step_of(ps_exchange *x, uint32_t step_of)
{
    ps_levels_set_step_of(follower_self(x)->levels, follower_self(x)->step, step_of);
}

/* What answers the gradient takes the place of the present weights, so these are copied
 * before, even if nobody has needed them. */
static ps_err follower_grads_ready(ps_exchange *x, uint64_t begin, uint64_t end)
{
    exchange_follower *e = follower_self(x);
    uint32_t n = 0;
    PS_TRY(ps_ready_ranges_add(&e->ready, begin, end, e->batch, &n));
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t chunk = e->batch[i];
        PS_TRY(follower_fetch(e, chunk, (int64_t)e->step));
        e->shm_sent += e->o.plan->chunks[chunk].count * sizeof(float);
    }
    ps_levels_sums_give(e->sums, e->batch, n);
    return PS_OK;
}

static ps_err follower_finish(ps_exchange *x)
{
    exchange_follower *e = follower_self(x);
    e->newest = (int64_t)e->step + 1;
    return PS_OK;
}

/* --- snapshots ---------------------------------------------------------------------- */

static ps_err follower_save(ps_exchange *x, ps_exchange_state *out)
{
    // What a codec keeps back is the leader's.
    if (out->feedback) memset(out->feedback, 0, follower_self(x)->o.params->bytes);
    return PS_OK;
}

static ps_err follower_load(ps_exchange *x, const ps_exchange_state *in)
{
    const exchange_follower *e = follower_self(x);
    const uint64_t n = e->o.table->arena_count;
    for (uint64_t i = 0; in->feedback && i < n; i++)
        if (in->feedback[i] != 0)
            return ps_err_set(PS_ERR_CONFIG,
                              "exchange.levels: the checkpoint has gradients that worker "
                              "%d kept back, but worker %d sends for it now: resume with "
                              "exchange.levels 1, or with the workers on the hosts of "
                              "before",
                              e->o.rank, e->levels->ranks[0]);
    return PS_OK;
}

static void follower_stats(const ps_exchange *x, ps_exchange_stats *out)
{
    const exchange_follower *e = (const exchange_follower *)x;
    *out = (ps_exchange_stats){.shm_sent = e->shm_sent,
                               .shm_received = e->shm_received,
                               .wait_seconds = (double)e->wait_ns * 1e-9};
}

static const ps_exchange_ops follower_ops = {
    .name = "ps",
    .mode = "ps",
    .servers = true,
    .peers = true,
    .start = follower_start,
    .begin = follower_begin,
    .params_needed = follower_params_needed,
    .params_ready = follower_params_ready,
    .grads_ready = follower_grads_ready,
    .finish = follower_finish,
    .drain = follower_drain,
    .loss_scale = follower_loss_scale,
    .sync_buffers = follower_sync_buffers,
    .save = follower_save,
    .load = follower_load,
    .stats = follower_stats,
    .stop = follower_drain, // nothing is on its way then
    .destroy = follower_destroy,
    .set_step_of = follower_set_step_of,
    .leaves_out = true,
};
