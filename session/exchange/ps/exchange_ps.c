/* The exchange through parameter servers: chunks are pushed while the backward pass runs,
 * and the new weights of a chunk are the reply. See ps_comm.h and server/shard.h. */
#include "exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer_sync.h"
#include "exchange_follower.h"
#include "job_keys.h"
#include "levels_gpus.h"
#include "levels_leader.h"
#include "mem.h"
#include "ps_comm.h"
#include "trace.h"
#include "wire.h"

typedef struct exchange_ps {
    ps_exchange base;
    ps_exchange_options o;
    ps_comm *comm;
    // With others on this host whose gradients are summed here; else NULL
    ps_levels *levels;
    ps_levels_sums *sums;
    ps_levels_leader leader; // with sums
    ps_ready_ranges ready;   // this step's gradients, by chunk
    uint32_t *batch;         // scratch: chunks to submit together
    uint64_t step;
    int64_t newest; // version that follows the last step whose gradients are all in
    bool started;
    uint64_t n_buffer_syncs;
    uint64_t wait_ns;
    uint64_t begin_ns, begin_wait_ns; // when the step began
} exchange_ps;

static exchange_ps *exchange_ps_self(ps_exchange *x)
{
    return (exchange_ps *)x;
}

static void ps_ops_destroy(ps_exchange **x)
{
    exchange_ps *e = exchange_ps_self(*x);
    if (e->sums) ps_levels_sums_stop(e->sums);
    ps_comm_destroy(&e->comm);
    ps_levels_sums_destroy(&e->sums);
    ps_levels_close(&e->levels);
    ps_ready_ranges_fini(&e->ready);
    free(e->batch);
    free(e);
    *x = NULL;
}

static ps_err map_chunks(exchange_ps *e)
{
    PS_TRY(PS_NEW(&e->batch, e->o.plan->n_chunks, "chunk map"));
    return ps_ready_ranges_init_chunks(&e->ready, e->o.table, e->o.plan);
}

static ps_err exchange_ps_check_options(const ps_exchange_options *o)
{
    if (!o->member)
        return ps_err_set(PS_ERR_ARG, "the ps exchange needs a member of a job");
    return PS_OK;
}

/* Its thread pushes by comm. */
static ps_err exchange_ps_lead(exchange_ps *e)
{
    ps_levels_leader_init(&e->leader, e->levels, e->comm);
    const ps_levels_sums_hooks hooks = ps_levels_leader_hooks(&e->leader);
    return ps_levels_sums_create(e->levels, &hooks, &e->sums);
}

/* Takes levels over, in case of an error too. */
static ps_err exchange_ps_create(const ps_exchange_ops *ops,
                                 const ps_exchange_options *options, ps_levels *levels,
                                 ps_exchange **out)
{
    exchange_ps *e;
    ps_err err = PS_NEW(&e, 1, "the ps exchange");
    if (err != PS_OK) {
        ps_levels_close(&levels);
        return err;
    }
    e->base = (ps_exchange){.ops = ops, .ready = &e->ready};
    e->o = *options;
    e->levels = levels;
    e->newest = (int64_t)options->first_step;
    e->n_buffer_syncs = options->buffer_pieces;
    ps_exchange *x = &e->base;
    err = map_chunks(e);
    // A leader's gradients are pushed, and its weights awaited, while it computes.
    if (err == PS_OK) err = ps_comm_create(options, !ops->peers, &e->comm);
    if (err == PS_OK && levels) err = exchange_ps_lead(e);
    if (err == PS_OK)
        *out = x;
    else
        ps_ops_destroy(&x);
    return err;
}

static ps_err ps_ops_create(const ps_exchange_options *options, ps_exchange **out)
{
    *out = NULL;
    PS_TRY(exchange_ps_check_options(options));
    return exchange_ps_create(&ps_exchange_ps_ops, options, NULL, out);
}

static ps_err ps_ops_create_levels(const ps_exchange_options *options, ps_exchange **out)
{
    ps_levels *levels;
    *out = NULL;
    PS_TRY(exchange_ps_check_options(options));
    PS_TRY(ps_levels_open(options, &levels));
    const ps_err err = ps_levels_meet_gpus(options, levels);
    if (err != PS_OK) {
        ps_levels_close(&levels);
        return err;
    }
    if (levels && !ps_levels_leads(levels))
        return ps_exchange_follower_create(levels, out);
    return exchange_ps_create(&ps_exchange_levels_ops, options, levels, out);
}

static bool exchange_ps_has(const exchange_ps *e, uint32_t first, uint32_t last,
                            int64_t version)
{
    for (uint32_t c = first; c <= last; c++)
        if (!ps_comm_has(e->comm, c, version)) return false;
    return !e->sums || ps_levels_sums_here(e->sums, first, last, version);
}

/* Of a GPU. Its chunks come one after the other, so a server that owes another chunk may
 * be the cause. */
static ps_err exchange_ps_await_here(exchange_ps *e, uint32_t first, uint32_t last,
                                     int64_t version)
{
    const ps_err err = ps_levels_sums_await_here(e->sums, first, last, version);
    if (err != PS_ERR_TIMEOUT) return err;
    const ps_err_saved late = ps_err_save(err);
    const ps_err servers = ps_comm_wait_all(e->comm, version);
    return servers == PS_OK ? ps_err_restore(&late) : servers;
}

/* The outcome of a wait for a version. Instead of a TIMEOUT, one that names the worker of
 * this host whose gradients, or sums, are missing. */
static ps_err exchange_ps_blame(const exchange_ps *e, ps_err err)
{
    const ps_err late =
        e->sums && err == PS_ERR_TIMEOUT ? ps_levels_sums_blame(e->sums) : PS_OK;
    return late == PS_OK ? err : late;
}

/* Waits for a version of chunks first .. last; for all together where it can. Begins with
 * the chunk that arrives last (the lowest index), so that it seldom sleeps twice. */
static ps_err exchange_ps_wait_for(exchange_ps *e, uint32_t first, uint32_t last,
                                   int64_t version)
{
    const bool all = first == 0 && last == e->o.plan->n_chunks - 1;
    if (exchange_ps_has(e, first, last, version)) return PS_OK;
    const uint64_t start = ps_trace_begin(PS_TRACE_WAIT);
    ps_err err = all ? ps_comm_wait_all(e->comm, version) : PS_OK;
    for (uint32_t c = first; c <= last && err == PS_OK; c++)
        err = ps_comm_wait(e->comm, c, version);
    if (err == PS_OK && e->sums) err = exchange_ps_await_here(e, first, last, version);
    e->wait_ns += ps_clock_ns() - start;
    ps_trace_add(PS_TRACE_WAIT, start, e->step);
    return exchange_ps_blame(e, err);
}

/* With a codec the workers' weights lack what the last encodings lost. Evaluation and
 * saving need the exact weights, so every worker asks for them, unencoded. A shard
 * answers when all workers have asked, and from then on takes these as the workers'
 * weights. A worker goes on only when it has received them all. Then both sides are
 * equal, and training continues from the exact weights. */
static ps_err fetch_exact(exchange_ps *e)
{
    const uint64_t start = ps_clock_ns();
    const ps_err err = ps_comm_ask(e->comm, PS_COMM_EXACT, e->o.plan->n_chunks);
    e->wait_ns += ps_clock_ns() - start;
    return exchange_ps_blame(e, err);
}

static ps_err ps_ops_sync_buffers(ps_exchange *x)
{
    exchange_ps *e = exchange_ps_self(x);
    if (e->o.settings.codec.codec != PS_CODEC_NONE) {
        if (e->sums) // the GPU's, too
            PS_TRY(exchange_ps_wait_for(e, 0, e->o.plan->n_chunks - 1, e->newest));
        PS_TRY(fetch_exact(e));
        if (e->sums) ps_levels_leader_exact(&e->leader);
        if (e->sums) PS_TRY(ps_levels_sums_bring_exact(e->sums));
    }
    return ps_buffer_sync(&e->o, &e->n_buffer_syncs);
}

/* The chunks of fragments that have made the first step already: the first ones. */
static uint32_t chunks_ahead(const exchange_ps *e)
{
    uint32_t n = 0;
    while (n < e->o.plan->n_chunks && e->o.plan->chunks[n].fragment < e->o.ahead)
        n++;
    return n;
}

static ps_err ps_ops_start(ps_exchange *x)
{
    exchange_ps *e = exchange_ps_self(x);
    const uint32_t n = e->o.plan->n_chunks, ahead = chunks_ahead(e);
    const uint64_t first = e->o.first_step;
    e->started = true;
    PS_TRY(ps_comm_wait_ready(e->comm));
    for (uint32_t c = 0; c < n; c++)
        e->batch[c] = c;
    const bool has_weights = e->o.rank == 0 && e->o.back_at == 0;
    const ps_comm_command command = has_weights ? PS_COMM_INIT : PS_COMM_PULL;
    PS_TRY(ps_comm_submit(e->comm, command, first + 1, e->batch, ahead));
    PS_TRY(ps_comm_submit(e->comm, command, first, e->batch + ahead, n - ahead));
    PS_TRY(exchange_ps_wait_for(e, 0, n - 1, (int64_t)first));
    for (uint32_t c = 0; c < ahead; c++)
        PS_TRY(exchange_ps_wait_for(e, c, c, (int64_t)first + 1));
    e->wait_ns = 0;                     // the start is not counted
    if (e->o.back_at > 0) return PS_OK; // the others do so at rest
    return ps_buffer_sync(&e->o, &e->n_buffer_syncs);
}

static ps_err ps_ops_begin(ps_exchange *x, uint64_t step)
{
    exchange_ps *e = exchange_ps_self(x);
    e->step = step;
    if (e->o.coded) e->o.coded->key = ps_codec_draw_key((uint32_t)e->o.rank, step);
    e->begin_ns = ps_clock_ns();
    e->begin_wait_ns = e->wait_ns;
    ps_ready_ranges_restart(&e->ready);
    return PS_OK;
}

static void ps_ops_set_step_of(ps_exchange *x, uint32_t step_of)
{
    exchange_ps *e = exchange_ps_self(x);
    ps_comm_set_step_of(e->comm, e->step, step_of);
    if (e->sums) ps_levels_set_step_of(e->levels, e->step, step_of);
}

static ps_err ps_ops_params_needed(ps_exchange *x, uint64_t begin, uint64_t end)
{
    exchange_ps *e = exchange_ps_self(x);
    uint32_t first, last;
    ps_ready_ranges_touched(&e->ready, begin, end, &first, &last);
    return exchange_ps_wait_for(e, first, last, e->newest);
}

static ps_err ps_ops_params_ready(ps_exchange *x, uint64_t begin, uint64_t end,
                                  bool *ready)
{
    exchange_ps *e = exchange_ps_self(x);
    uint32_t first, last;
    ps_ready_ranges_touched(&e->ready, begin, end, &first, &last);
    PS_TRY(ps_comm_look(e->comm));
    *ready = exchange_ps_has(e, first, last, e->newest);
    return PS_OK;
}

static ps_err ps_ops_grads_ready(ps_exchange *x, uint64_t begin, uint64_t end)
{
    exchange_ps *e = exchange_ps_self(x);
    uint32_t n = 0;
    PS_TRY(ps_ready_ranges_add(&e->ready, begin, end, e->batch, &n));
    const bool all = ps_ready_ranges_all(&e->ready);
    if (all)
        ps_comm_computed(e->comm, e->step,
                         ps_clock_ns() - e->begin_ns - (e->wait_ns - e->begin_wait_ns));
    if (n == 0) return PS_OK;
    if (!e->sums) return ps_comm_push(e->comm, e->step, e->batch, n, !all);
    for (uint32_t i = 0; i < n; i++) // as the leader asks for
        PS_TRY(exchange_ps_wait_for(e, e->batch[i], e->batch[i], (int64_t)e->step));
    ps_levels_sums_give(e->sums, e->batch, n);
    return PS_OK;
}

static ps_err ps_ops_finish(ps_exchange *x)
{
    exchange_ps *e = exchange_ps_self(x);
    e->newest = (int64_t)e->step + 1;
    return PS_OK;
}

static ps_err ps_ops_drain(ps_exchange *x)
{
    exchange_ps *e = exchange_ps_self(x);
    return exchange_ps_wait_for(e, 0, e->o.plan->n_chunks - 1, e->newest);
}

static ps_err ps_ops_loss_scale(ps_exchange *x, float *scale)
{
    exchange_ps *e = exchange_ps_self(x);
    *scale = 1;
    if (!e->o.rule->scale.on) return PS_OK;
    PS_TRY(ps_ops_drain(x));
    *scale = ps_comm_loss_scale(e->comm);
    return PS_OK;
}

static ps_err ps_ops_rest(ps_exchange *x, bool *rests, bool *over)
{
    exchange_ps *e = exchange_ps_self(x);
    PS_TRY(ps_ops_drain(x));
    ps_comm_rest(e->comm, rests, over);
    return PS_OK;
}

/* The servers' arrays, one after the other. */
static ps_err fetch_arrays(exchange_ps *e, ps_exchange_state *out)
{
    const bool over = out->over_gradients;
    for (int i = 0; i < e->o.rule->optimizer.n_states; i++)
        PS_TRY(ps_comm_snapshot_fetch(e->comm, (uint64_t)i, over, out->states[i]));
    if (out->missed)
        PS_TRY(ps_comm_snapshot_fetch(e->comm, PS_WIRE_STATE_MISSED, false, out->missed));
    if (out->weights)
        PS_TRY(
            ps_comm_snapshot_fetch(e->comm, PS_WIRE_STATE_WEIGHTS, over, out->weights));
    return ps_comm_snapshot_fetch_rule(e->comm, out->rule, &out->rule_bytes);
}

static ps_err ps_ops_save(ps_exchange *x, ps_exchange_state *out)
{
    exchange_ps *e = exchange_ps_self(x);
    const float *feedback = ps_comm_snapshot_feedback(e->comm);
    if (feedback && out->feedback) memcpy(out->feedback, feedback, e->o.params->bytes);
    return e->o.rank == 0 || e->o.rank == out->holder ? fetch_arrays(e, out) : PS_OK;
}

static ps_err ps_ops_load(ps_exchange *x, const ps_exchange_state *in)
{
    exchange_ps *e = exchange_ps_self(x);
    float *feedback = ps_comm_snapshot_feedback(e->comm);
    if (feedback && in->feedback) memcpy(feedback, in->feedback, e->o.params->bytes);
    if (e->o.rank != 0) return PS_OK;
    PS_TRY(ps_comm_wait_ready(e->comm));
    for (int i = 0; i < e->o.rule->optimizer.n_states; i++)
        PS_TRY(ps_comm_snapshot_restore(e->comm, (uint64_t)i, in->states[i]));
    if (in->missed)
        PS_TRY(ps_comm_snapshot_restore(e->comm, PS_WIRE_STATE_MISSED, in->missed));
    if (!in->weights) return PS_OK;
    return ps_comm_snapshot_restore(e->comm, PS_WIRE_STATE_WEIGHTS, in->weights);
}

static ps_err ps_ops_push_chunk(ps_exchange *x, uint32_t chunk, uint64_t step)
{
    return ps_comm_submit(exchange_ps_self(x)->comm, PS_COMM_PUSH, step, &chunk, 1);
}

static ps_err ps_ops_wait_chunk(ps_exchange *x, uint32_t chunk, uint64_t version)
{
    return ps_comm_wait(exchange_ps_self(x)->comm, chunk, (int64_t)version);
}

static void ps_ops_stats(const ps_exchange *x, ps_exchange_stats *out)
{
    const exchange_ps *e = (const exchange_ps *)x;
    ps_comm_stats comm;
    ps_comm_get_stats(e->comm, &comm);
    *out = (ps_exchange_stats){
        .bytes_sent = comm.bytes_sent,
        .bytes_received = comm.bytes_received,
        .raw_bytes = comm.raw_bytes,
        .shm_sent = comm.shm_sent,
        .shm_received = comm.shm_received,
        .buffer_pieces = e->n_buffer_syncs,
        .most_in_flight = comm.most_on_the_way,
        .wait_seconds = (double)e->wait_ns * 1e-9,
        .encode_seconds = (double)comm.encode_ns * 1e-9,
        .send_seconds = (double)comm.send_ns * 1e-9,
    };
}

/* The coordinator ends when the workers have left, so rank 0 stays until every server has
 * published its figures, but no longer than the others wait for it. A server that a
 * worker's goodbye did not reach publishes none; the job ends without them. */
static ps_err await_server_stats(exchange_ps *e)
{
    const ps_deadline deadline = ps_deadline_in_ms(e->o.settings.step_timeout_ms / 2);
    for (int i = 0; i < ps_member_roster(e->o.member)->n_servers; i++) {
        const ps_job_key key = ps_job_key_stats(i);
        void *value = NULL;
        size_t bytes;
        ps_err err = ps_member_get(e->o.member, key.text, &value, &bytes, deadline);
        if (err != PS_OK && err != PS_ERR_TIMEOUT) return err;
        free(value);
    }
    return PS_OK;
}

static ps_err ps_ops_stop(ps_exchange *x)
{
    exchange_ps *e = exchange_ps_self(x);
    if (e->started) PS_TRY(ps_ops_drain(x));
    PS_TRY(ps_comm_stop(e->comm, x->returns));
    return e->o.rank == 0 && !x->returns ? await_server_stats(e) : PS_OK;
}

static ps_err ps_ops_rows_send(ps_exchange *x, int kind, uint64_t step,
                               const ps_exchange_body *bodies, ps_exchange_body *answers,
                               uint64_t *sent)
{
    return ps_comm_rows_send(exchange_ps_self(x)->comm, kind, step, bodies, answers,
                             sent);
}

static void *ps_ops_rows_arena(ps_exchange *x, uint32_t shard)
{
    return ps_comm_rows_arena(exchange_ps_self(x)->comm, shard);
}

static ps_err ps_ops_rows_wait(ps_exchange *x, uint64_t sent)
{
    exchange_ps *e = exchange_ps_self(x);
    const uint64_t start = ps_clock_ns();
    const ps_err err = ps_comm_rows_wait(e->comm, sent);
    e->wait_ns += ps_clock_ns() - start;
    return err;
}

static const ps_exchange_rows ps_ops_rows = {
    .send = ps_ops_rows_send, .wait = ps_ops_rows_wait, .arena = ps_ops_rows_arena};
static const ps_exchange_chunks ps_ops_chunks = {.push = ps_ops_push_chunk,
                                                 .wait = ps_ops_wait_chunk};
static const ps_exchange_rests ps_ops_rests = {.rest = ps_ops_rest};

#define PS_OPS(make, has_peers, of_chunks, of_rests, of_rows)                            \
    {                                                                                    \
        .name = "ps", .mode = "ps", .servers = true, .peers = has_peers,                 \
        .chunks = of_chunks, .rests = of_rests, .rows = of_rows, .create = make,         \
        .start = ps_ops_start, .begin = ps_ops_begin,                                    \
        .params_needed = ps_ops_params_needed, .params_ready = ps_ops_params_ready,      \
        .grads_ready = ps_ops_grads_ready, .finish = ps_ops_finish,                      \
        .drain = ps_ops_drain, .loss_scale = ps_ops_loss_scale,                          \
        .sync_buffers = ps_ops_sync_buffers, .save = ps_ops_save, .load = ps_ops_load,   \
        .stats = ps_ops_stats, .stop = ps_ops_stop, .destroy = ps_ops_destroy,           \
        .set_step_of = ps_ops_set_step_of, .leaves_out = true, .coded = !(has_peers),    \
    }

const ps_exchange_ops ps_exchange_ps_ops =
    PS_OPS(ps_ops_create, false, &ps_ops_chunks, &ps_ops_rests, &ps_ops_rows);
const ps_exchange_ops ps_exchange_levels_ops =
    PS_OPS(ps_ops_create_levels, true, NULL, NULL, NULL);
