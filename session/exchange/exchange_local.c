#include "exchange_local.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "exchange_none.h"
#include "local_steps.h"
#include "shm_offer.h"

typedef struct local_fragment {
    uint64_t begin, end;           // elements of the arena
    uint64_t samples, all_samples; // since the last change was sent
    bool awaited;                  // it was sent; its result is not used yet
    bool mixes;                    // steps are made meanwhile
    uint64_t steps_left;           // of these, with a quorum
    uint64_t rounds;               // with a quorum: that this rank has sent
    uint64_t version;  // of the result, in an outer exchange that goes by chunks
    bool shows_anchor; // the weights are in the gradient arena, the anchor in theirs
} local_fragment;

typedef struct exchange_local {
    ps_exchange base;
    ps_exchange_ops ops; // with the outer exchange's name
    ps_exchange_options o;
    const ps_config *config;
    ps_exchange_options outer_options;
    ps_step_rule rule; // the inner one at the start
    ps_shared_mem anchor;
    ps_shared_mem changes; // empty: they are in the gradient arena
    ps_exchange *steps, *outer;
    ps_device_stream *stream; // of steps: it has the weights
    uint64_t next;            // the step that begins next
    uint64_t total;           // steps, to local_steps.h
    ps_own_rounds rounds;
    double round_weight; // of its share of the samples
    uint32_t n_fragments;
    local_fragment fragments[PS_MAX_FRAGMENTS];
    uint64_t wait_ns;    // for chunks, which the outer exchange does not count
    const void *resumed; // what `local` held; until start
} exchange_local;

static exchange_local *local_of(ps_exchange *x)
{
    return (exchange_local *)x;
}

/* The session's arena. On a GPU it lags behind the weights of the passes and steps, until
 * steps is drained. */
static float *local_weights(const exchange_local *e)
{
    return e->o.params->base;
}

static float *local_anchor(const exchange_local *e)
{
    return e->anchor.base;
}

/* --- life ----------------------------------------------------------------------------
 */

static void local_destroy(ps_exchange **x)
{
    exchange_local *e = local_of(*x);
    ps_exchange_destroy(&e->outer);
    if (e->stream) e->stream->ops->use_anchor(e->stream, NULL, NULL);
    ps_exchange_destroy(&e->steps);
    ps_shared_mem_fini(&e->anchor);
    ps_shared_mem_fini(&e->changes);
    free(e);
    *x = NULL;
}

static void local_map_fragments(exchange_local *e)
{
    const ps_fragments *f = &e->o.plan->fragments;
    e->n_fragments = f->n;
    for (uint32_t i = 0; i < f->n; i++)
        ps_fragments_range(f, i, &e->fragments[i].begin, &e->fragments[i].end);
}

/* The servers read the changes, and write the anchor. */
static ps_err local_make_arenas(exchange_local *e)
{
    const ps_exchange_options *o = &e->o;
    const bool shared =
        o->member && ps_shm_offer_possible(o->local->outer, &o->settings,
                                           ps_member_roster(o->member), o->rank);
    ps_err (*init)(ps_shared_mem *, size_t, const char *) =
        shared ? ps_shared_mem_init : ps_shared_mem_init_private;
    PS_TRY(init(&e->anchor, o->params->bytes, "the anchor"));
    if (e->config->sync.overlap == 0) return PS_OK;
    return init(&e->changes, o->grads->bytes, "the changes");
}

static ps_err local_make_outer(exchange_local *e)
{
    const ps_exchange_options *o = &e->o;
    PS_TRY(local_make_arenas(e));
    e->outer_options = *o;
    e->outer_options.stream = NULL; // its weights are the anchor, on the host
    e->outer_options.rule = o->local->outer_rule;
    e->outer_options.total_steps = ps_local_steps_rounds(e->config, o->total_steps);
    e->outer_options.first_step =
        o->back_at > 0 ? o->back_at : ps_local_steps_round(e->config, o->first_step);
    e->outer_options.ahead = ps_local_steps_ahead(e->config, o->first_step, e->total);
    e->outer_options.params = &e->anchor;
    if (e->changes.base) e->outer_options.grads = &e->changes;
    return o->local->outer->create(&e->outer_options, &e->outer);
}

/* To the steps this worker is alone. */
static ps_err local_make_steps(exchange_local *e)
{
    ps_exchange_options alone = e->o;
    if (e->steps) return PS_OK;
    alone.rule = &e->rule;
    alone.member = NULL;
    alone.world_size = 1;
    PS_TRY(ps_exchange_none_ops.create(&alone, &e->steps));
    e->base.ready = e->steps->ready;
    e->stream = ps_exchange_none_stream(e->steps);
    return e->stream->ops->use_anchor(e->stream, local_anchor(e),
                                      e->outer_options.grads->base);
}

ps_err ps_exchange_local_create(const ps_exchange_options *options, ps_exchange **out)
{
    exchange_local *e;
    *out = NULL;
    PS_TRY(PS_NEW(&e, 1, "the exchange"));
    e->o = *options;
    e->config = options->local->config;
    e->rule = *options->rule;
    e->next = options->first_step;
    e->total = options->total_steps;
    e->round_weight = 1;
    ps_own_rounds_init(&e->rounds, e->config, options->first_step, options->back_at > 0,
                       options->back_fragment);
    // The optimizer begins anew.
    if (options->back_at > 0) e->rule.scale.skipped = options->first_step;
    e->ops = ps_exchange_local_ops_over(options->local->outer);
    e->base.ops = &e->ops;
    local_map_fragments(e);
    ps_exchange *x = &e->base;
    ps_err err = local_make_outer(e);
    for (uint32_t i = 0; i < e->n_fragments; i++)
        e->fragments[i].rounds = e->outer_options.first_step;
    if (err == PS_OK) {
        e->ops = ps_exchange_local_ops_over(e->outer->ops); // what was chosen
        *out = x;
    } else {
        local_destroy(&x);
    }
    return err;
}

/* --- the outer exchange --------------------------------------------------------------
 */

/* Its chunk c is a part of the fragment. */
static bool local_has_chunk(const exchange_local *e, const local_fragment *f, uint32_t c)
{
    return e->o.plan->chunks[c].fragment == (uint32_t)(f - e->fragments);
}

/* For fragment i. */
static bool local_ends_round(const exchange_local *e, uint32_t i, uint64_t step)
{
    if (e->rounds.on) return ps_own_rounds_sends(&e->rounds, i);
    return ps_local_steps_sends(e->config, i, step, e->total);
}

/* Of the step that was made last, which ends it for the fragment. */
static uint64_t local_next_round(const exchange_local *e, local_fragment *f)
{
    if (!e->rounds.on) return ps_local_steps_round(e->config, e->next - 1);
    return f->rounds++;
}

static uint64_t local_overlap(const exchange_local *e)
{
    if (e->rounds.on) return e->rounds.overlap;
    return ps_local_steps_overlap(e->config, e->next - 1, e->total);
}

/* Its whole step is the one fragment's: any exchange can that. */
static ps_err local_send_step(exchange_local *e, uint64_t round)
{
    PS_TRY(ps_exchange_begin(e->outer, round));
    PS_TRY(ps_exchange_grads_ready(e->outer, 0, e->o.table->arena_count));
    return ps_exchange_finish(e->outer);
}

static ps_err local_send(exchange_local *e, local_fragment *f)
{
    const uint64_t round = local_next_round(e, f);
    f->awaited = true;
    f->steps_left = local_overlap(e);
    f->mixes = f->steps_left > 0;
    if (e->n_fragments == 1) return local_send_step(e, round);
    f->version = round + 1;
    for (uint32_t c = 0; c < e->o.plan->n_chunks; c++)
        if (local_has_chunk(e, f, c)) PS_TRY(ps_exchange_push_chunk(e->outer, c, round));
    return PS_OK;
}

/* Blocks until the result of what was sent is in the anchor. */
static ps_err local_await(exchange_local *e, const local_fragment *f)
{
    if (e->n_fragments == 1) return ps_exchange_drain(e->outer);
    const uint64_t start_ns = ps_clock_ns();
    for (uint32_t c = 0; c < e->o.plan->n_chunks; c++)
        if (local_has_chunk(e, f, c))
            PS_TRY(ps_exchange_wait_chunk(e->outer, c, f->version));
    e->wait_ns += ps_clock_ns() - start_ns;
    return PS_OK;
}

/* --- rounds --------------------------------------------------------------------------
 */

static size_t local_bytes_of(const local_fragment *f)
{
    return (f->end - f->begin) * sizeof(float);
}

/* Waits for the anchor that the change leads to; the worker goes on from it. */
static ps_err local_take(exchange_local *e, local_fragment *f)
{
    if (!f->awaited) return PS_OK;
    const float kept = f->mixes ? (float)e->config->sync.mixing : 0;
    PS_TRY(local_await(e, f));
    PS_TRY(e->stream->ops->take_anchor(e->stream, f->begin, f->end - f->begin, kept));
    f->awaited = false;
    return PS_OK;
}

/* Pushes this rank's share of the mean change, as a gradient that points away from it. At
 * the job's end the result of the change before may not have been used yet. */
static ps_err local_push(exchange_local *e, local_fragment *f)
{
    PS_TRY(local_take(e, f));
    PS_TRY(ps_exchange_none_settle(e->steps));
    const float share =
        (float)((double)f->samples / (double)f->all_samples * e->round_weight);
    PS_TRY(e->stream->ops->change(e->stream, f->begin, f->end - f->begin, share));
    f->samples = f->all_samples = 0;
    return local_send(e, f);
}

/* The fragment's weights while the anchor is shown. The gradient arena is nobody's then.
 */
static float *local_kept(const exchange_local *e, const local_fragment *f)
{
    return (float *)e->o.grads->base + f->begin;
}

static bool local_is_fresh(const exchange_local *e, uint32_t i)
{
    if (e->rounds.on) return e->rounds.in_round == 0 && i + 1 == e->n_fragments;
    return ps_local_steps_fresh(e->config, i, e->next, e->total);
}

/* Leaves the anchor in the session's arena, which was drained, and where passes read. The
 * anchor's own arena is only read: it is what the outer exchange sends, again after a
 * lost connection. */
static ps_err local_show_anchor(exchange_local *e)
{
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        local_fragment *f = &e->fragments[i];
        f->shows_anchor = !local_is_fresh(e, i);
        if (f->shows_anchor)
            memcpy(local_kept(e, f), local_weights(e) + f->begin, local_bytes_of(f));
        memcpy(local_weights(e) + f->begin, local_anchor(e) + f->begin,
               local_bytes_of(f));
    }
    return e->stream->ops->from_host(e->stream, PS_STREAM_PARAMS);
}

static ps_err local_show_weights(exchange_local *e)
{
    bool back = false;
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        local_fragment *f = &e->fragments[i];
        if (f->shows_anchor)
            memcpy(local_weights(e) + f->begin, local_kept(e, f), local_bytes_of(f));
        back = back || f->shows_anchor;
        f->shows_anchor = false;
    }
    return back ? e->stream->ops->from_host(e->stream, PS_STREAM_PARAMS) : PS_OK;
}

/* --- steps ---------------------------------------------------------------------------
 */

static ps_err local_begin(ps_exchange *x, uint64_t step)
{
    exchange_local *e = local_of(x);
    PS_TRY(local_show_weights(e));
    for (uint32_t i = 0; i < e->n_fragments && !e->rounds.on; i++)
        if (!ps_local_steps_awaits(e->config, i, step, e->total))
            PS_TRY(local_take(e, &e->fragments[i]));
    return ps_exchange_begin(e->steps, step);
}

/* A rank that comes back pushes nothing first. The answer has the present weights, of one
 * version of each fragment. */
static ps_err local_ask_for_weights(exchange_local *e)
{
    memset(e->outer_options.grads->base, 0, e->o.grads->bytes);
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        PS_TRY(local_send(e, &e->fragments[i]));
        e->fragments[i].steps_left = 0;
        e->fragments[i].mixes = false;
    }
    return PS_OK;
}

static ps_err local_start(ps_exchange *x)
{
    exchange_local *e = local_of(x);
    const size_t bytes = e->o.params->bytes;
    PS_TRY(local_make_steps(e));
    memcpy(local_anchor(e), local_weights(e), bytes);
    PS_TRY(ps_exchange_start(e->outer));
    PS_TRY(e->stream->ops->take_anchor(e->stream, 0, e->o.table->arena_count, 0));
    memcpy(local_weights(e), e->resumed ? e->resumed : local_anchor(e), bytes);
    e->resumed = NULL;
    PS_TRY(ps_exchange_start(e->steps));
    return e->o.back_at > 0 ? local_ask_for_weights(e) : PS_OK;
}

static ps_err local_params_needed(ps_exchange *x, uint64_t begin, uint64_t end)
{
    return ps_exchange_params_needed(local_of(x)->steps, begin, end);
}

static ps_err local_params_ready(ps_exchange *x, uint64_t begin, uint64_t end,
                                 bool *ready)
{
    return ps_exchange_params_ready(local_of(x)->steps, begin, end, ready);
}

static ps_err local_grads_ready(ps_exchange *x, uint64_t begin, uint64_t end)
{
    return ps_exchange_grads_ready(local_of(x)->steps, begin, end);
}

static void local_count(ps_exchange *x, uint64_t mine, uint64_t all)
{
    exchange_local *e = local_of(x);
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        e->fragments[i].samples += mine;
        e->fragments[i].all_samples += all;
    }
}

static ps_err local_finish(ps_exchange *x)
{
    exchange_local *e = local_of(x);
    PS_TRY(ps_exchange_finish(e->steps));
    if (e->fragments[0].all_samples == 0)
        return ps_err_set(PS_ERR_ARG, "a step ends, but its samples were not counted");
    const uint64_t step = e->next++;
    ps_own_rounds_step(&e->rounds);
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        local_fragment *f = &e->fragments[i];
        if (f->steps_left > 0) f->steps_left--;
        if (local_ends_round(e, i, step)) PS_TRY(local_push(e, f));
    }
    ps_own_rounds_sent(&e->rounds);
    return PS_OK;
}

static void local_set_round(ps_exchange *x, uint64_t steps, double weight)
{
    exchange_local *e = local_of(x);
    ps_own_rounds_set_steps(&e->rounds, steps);
    e->round_weight = weight;
}

/* With a quorum. Takes the answers that are due. The last fragment's says who goes on. */
static ps_err local_rest(ps_exchange *x, bool *rests, bool *over)
{
    exchange_local *e = local_of(x);
    *rests = *over = false;
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        local_fragment *f = &e->fragments[i];
        if (!f->awaited || f->steps_left > 0) continue;
        PS_TRY(local_take(e, f));
        if (i + 1 == e->n_fragments) PS_TRY(ps_exchange_rest(e->outer, rests, over));
    }
    if (*rests && e->rounds.plan.round > 0)
        return ps_err_set(PS_ERR_FORMAT,
                          "the record cuts round %" PRIu64 " short, which was not made",
                          e->rounds.plan.round);
    if (*rests) ps_own_rounds_rest(&e->rounds);
    return PS_OK;
}

static bool local_awaits_any(const exchange_local *e)
{
    for (uint32_t i = 0; i < e->n_fragments; i++)
        if (e->fragments[i].awaited) return true;
    return false;
}

/* Those fragments go first that were not sent in this round: for their answers, with
 * which this rank has the same anchor as the others. */
static ps_err local_send_last(exchange_local *e)
{
    for (uint32_t i = 0; i + 1 < e->n_fragments; i++) {
        local_fragment *f = &e->fragments[i];
        if (ps_own_rounds_has_sent(&e->rounds, i)) continue;
        PS_TRY(local_push(e, f));
        f->steps_left = 0;
        f->mixes = false;
        PS_TRY(local_take(e, f));
    }
    ps_own_rounds_cut(&e->rounds);
    return local_push(e, &e->fragments[e->n_fragments - 1]);
}

/* Not while a fragment is on its way. */
static ps_err local_end_round(ps_exchange *x, bool now, bool *sent)
{
    exchange_local *e = local_of(x);
    const bool planned = ps_own_rounds_ends_here(&e->rounds);
    *sent = planned ||
            (now && e->fragments[e->n_fragments - 1].samples > 0 && !local_awaits_any(e));
    if (!*sent) return PS_OK;
    if (local_awaits_any(e))
        return ps_err_set(PS_ERR_FORMAT,
                          "the record cuts a round short while a fragment is on its way");
    return local_send_last(e);
}

static ps_round_cut local_swap_cut(ps_exchange *x, ps_round_cut plan)
{
    exchange_local *e = local_of(x);
    const ps_round_cut cut = e->rounds.cut;
    e->rounds.cut = (ps_round_cut){0};
    e->rounds.plan = plan;
    return cut;
}

static ps_err local_drain(ps_exchange *x)
{
    exchange_local *e = local_of(x);
    PS_TRY(local_show_weights(e));
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        local_fragment *f = &e->fragments[i];
        PS_TRY(f->awaited && f->mixes ? local_await(e, f) : local_take(e, f));
    }
    return ps_exchange_drain(e->steps);
}

static ps_err local_loss_scale(ps_exchange *x, float *scale)
{
    return ps_exchange_loss_scale(local_of(x)->steps, scale);
}

static ps_err local_sync_buffers(ps_exchange *x)
{
    exchange_local *e = local_of(x);
    PS_TRY(local_drain(x));
    PS_TRY(ps_exchange_sync_buffers(e->outer));
    return local_show_anchor(e);
}

/* --- state ---- */

static size_t local_arenas_bytes(const ps_tensor_table *table, const ps_optimizer *inner)
{
    return (size_t)(1 + inner->n_states) * table->arena_count * sizeof(float);
}

size_t ps_local_memory_bytes(const ps_tensor_table *table, const ps_optimizer *inner)
{
    return local_arenas_bytes(table, inner) + sizeof(ps_local_end);
}

float *ps_local_memory_arena(const ps_tensor_table *table, void *local, int i)
{
    return (float *)local + (size_t)i * table->arena_count;
}

void *ps_local_memory_end(const ps_tensor_table *table, const ps_optimizer *inner,
                          void *local)
{
    return (char *)local + local_arenas_bytes(table, inner);
}

/* Points the optimizer's state to the arenas that follow the weights. */
static ps_exchange_state local_inner_state(const exchange_local *e, void *local)
{
    ps_exchange_state s = {0};
    for (int i = 0; i < e->rule.optimizer.n_states; i++)
        s.states[i] = ps_local_memory_arena(e->o.table, local, 1 + i);
    return s;
}

static ps_err local_save_own(exchange_local *e, void *local)
{
    const ps_optimizer *inner = &e->rule.optimizer;
    ps_local_end end = {.n_parts = e->n_fragments};
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        const local_fragment *f = &e->fragments[i];
        end.parts[i] = (ps_local_part){f->samples, f->all_samples, f->awaited};
    }
    ps_exchange_state s = local_inner_state(e, local);
    memcpy(local, local_weights(e), e->o.params->bytes);
    PS_TRY(ps_exchange_save(e->steps, &s));
    end.rule_bytes = s.rule_bytes;
    memcpy(end.rule, s.rule, s.rule_bytes);
    memcpy(ps_local_memory_end(e->o.table, inner, local), &end, sizeof end);
    return PS_OK;
}

/* The rule is rank 0's inner one. */
static ps_err local_save(ps_exchange *x, ps_exchange_state *out)
{
    exchange_local *e = local_of(x);
    ps_local_end end;
    PS_TRY(local_drain(x));
    PS_TRY(ps_exchange_save(e->outer, out));
    PS_TRY(local_save_own(e, out->local));
    memcpy(&end, ps_local_memory_end(e->o.table, &e->rule.optimizer, out->local),
           sizeof end);
    out->rule_bytes = end.rule_bytes;
    memcpy(out->rule, end.rule, end.rule_bytes);
    return local_show_anchor(e);
}

/* A change that is awaited has arrived in the anchor: no version of it is awaited. */
static void local_load_parts(exchange_local *e, const ps_local_end *end)
{
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        local_fragment *f = &e->fragments[i];
        f->samples = end->parts[i].samples;
        f->all_samples = end->parts[i].all_samples;
        f->awaited = f->mixes = end->parts[i].awaited;
    }
}

/* The inner optimizer's next step is its first one. */
static void local_begin_anew(exchange_local *e)
{
    e->rule.scale.skipped =
        e->o.first_step + ps_local_steps_begun(e->config, e->o.first_step);
}

static ps_err local_load_own(exchange_local *e, const ps_exchange_state *in)
{
    ps_local_end end;
    memcpy(&end, ps_local_memory_end(e->o.table, &e->rule.optimizer, in->local),
           sizeof end);
    if (end.rule_bytes > sizeof end.rule || end.n_parts != e->n_fragments)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "the state of a worker's own steps is damaged");
    if (end.rule_bytes > 0)
        PS_TRY(ps_step_rule_load(&e->rule, end.rule, end.rule_bytes));
    else
        local_begin_anew(e);
    local_load_parts(e, &end);
    e->resumed = in->local;
    return PS_OK;
}

/* Until the first synchronisation the outer exchange is as in a new job: there is nothing
 * to load. A rank without a state of its own begins anew, from the anchor. */
static ps_err local_load(ps_exchange *x, const ps_exchange_state *in)
{
    exchange_local *e = local_of(x);
    if (in->local) PS_TRY(local_load_own(e, in));
    if (!in->local) local_begin_anew(e);
    if (e->outer_options.first_step > 0 || e->outer_options.ahead > 0)
        PS_TRY(ps_exchange_load(e->outer, in));
    PS_TRY(local_make_steps(e));
    if (!in->local) return PS_OK;
    const ps_exchange_state own = local_inner_state(e, in->local);
    return ps_exchange_load(e->steps, &own);
}

/* --- the end -------------------------------------------------------------------------
 */

static void local_stats(const ps_exchange *x, ps_exchange_stats *out)
{
    const exchange_local *e = (const exchange_local *)x;
    ps_exchange_stats_get(e->outer, out);
    out->wait_seconds += (double)e->wait_ns * 1e-9;
}

static ps_err local_stop(ps_exchange *x)
{
    exchange_local *e = local_of(x);
    PS_TRY(local_drain(x));
    PS_TRY(ps_exchange_stop(e->steps));
    return ps_exchange_stop(e->outer);
}

static const ps_exchange_rounds local_rounds = {.count = local_count,
                                                .set = local_set_round,
                                                .end = local_end_round,
                                                .swap_cut = local_swap_cut};
static const ps_exchange_rests local_rests = {.rest = local_rest};

/* Steps are made where the device has the weights. The outer exchange works in the host's
 * memory. */
ps_exchange_ops ps_exchange_local_ops_over(const ps_exchange_ops *outer)
{
    return (ps_exchange_ops){
        .name = outer->name,
        .mode = outer->mode,
        .servers = outer->servers,
        .peers = outer->peers,
        .rests = &local_rests,
        .rounds = &local_rounds,
        .on_device = true,
        .create = ps_exchange_local_create,
        .start = local_start,
        .begin = local_begin,
        .params_needed = local_params_needed,
        .params_ready = local_params_ready,
        .grads_ready = local_grads_ready,
        .finish = local_finish,
        .drain = local_drain,
        .loss_scale = local_loss_scale,
        .sync_buffers = local_sync_buffers,
        .save = local_save,
        .load = local_load,
        .stats = local_stats,
        .stop = local_stop,
        .destroy = local_destroy,
    };
}
