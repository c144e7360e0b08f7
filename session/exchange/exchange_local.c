#include "exchange_local.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "exchange_local_state.h"
#include "exchange_none.h"
#include "local_steps.h"
#include "shm_offer.h"

static float *anchor_of(const ps_exchange_local *e)
{
    return e->anchor.base;
}

/* --- life ----------------------------------------------------------------------------
 */

static void local_destroy(ps_exchange **x)
{
    ps_exchange_local *e = ps_exchange_local_of(*x);
    ps_exchange_destroy(&e->steps);
    ps_exchange_destroy(&e->outer);
    ps_shared_mem_fini(&e->anchor);
    ps_shared_mem_fini(&e->changes);
    free(e);
    *x = NULL;
}

static void map_fragments(ps_exchange_local *e)
{
    const ps_fragments *f = &e->o.plan->fragments;
    e->n_fragments = f->n;
    for (uint32_t i = 0; i < f->n; i++)
        ps_fragments_range(f, i, &e->fragments[i].begin, &e->fragments[i].end);
}

/* The servers read the changes, and write the anchor. */
static ps_err local_make_arenas(ps_exchange_local *e, const ps_config *outer)
{
    const ps_exchange_options *o = &e->o;
    const bool shared =
        ps_shm_offer_possible(outer, ps_member_roster(o->member), o->rank);
    ps_err (*init)(ps_shared_mem *, size_t, const char *) =
        shared ? ps_shared_mem_init : ps_shared_mem_init_private;
    PS_TRY(init(&e->anchor, o->params->bytes, "the anchor"));
    if (o->config->sync.overlap == 0) return PS_OK;
    return init(&e->changes, o->grads->bytes, "the changes");
}

static ps_err make_outer(ps_exchange_local *e, const ps_exchange_local_options *outer)
{
    const ps_exchange_options *o = &e->o;
    PS_TRY(local_make_arenas(e, outer->config));
    e->outer_options = *o;
    e->outer_options.config = outer->config;
    e->outer_options.rule = outer->rule;
    e->outer_options.total_steps = ps_local_steps_rounds(o->config, o->total_steps);
    e->outer_options.first_step =
        o->back_at > 0 ? o->back_at : ps_local_steps_round(o->config, o->first_step);
    e->outer_options.ahead = ps_local_steps_ahead(o->config, o->first_step, e->total);
    e->outer_options.params = &e->anchor;
    if (e->changes.base) e->outer_options.grads = &e->changes;
    return outer->ops->create(&e->outer_options, &e->outer);
}

/* To the steps this worker is alone. */
ps_err ps_exchange_local_make_steps(ps_exchange_local *e)
{
    ps_exchange_options alone = e->o;
    if (e->steps) return PS_OK;
    alone.rule = &e->rule;
    alone.member = NULL;
    alone.world_size = 1;
    return ps_exchange_none_ops.create(&alone, &e->steps);
}

static const ps_exchange_ops local_ops;

ps_err ps_exchange_local_create(const ps_exchange_options *options,
                                const ps_exchange_local_options *outer, ps_exchange **out)
{
    ps_exchange_local *e;
    *out = NULL;
    PS_TRY(ps_mem_zalloc(&e, 1, sizeof *e, "the exchange"));
    e->o = *options;
    e->rule = *options->rule;
    e->next = options->first_step;
    e->total = options->total_steps;
    e->round_weight = 1;
    ps_own_rounds_init(&e->rounds, options->config, options->first_step,
                       options->back_at > 0, options->back_fragment);
    // The optimizer begins anew.
    if (options->back_at > 0) e->rule.scale.skipped = options->first_step;
    e->ops = local_ops;
    e->base.ops = &e->ops;
    map_fragments(e);
    ps_exchange *x = &e->base;
    ps_err err = make_outer(e, outer);
    for (uint32_t i = 0; i < e->n_fragments; i++)
        e->fragments[i].rounds = e->outer_options.first_step;
    if (err == PS_OK) {
        e->ops.name = e->outer->ops->name;
        e->ops.mode = e->outer->ops->mode;
        e->ops.servers = e->outer->ops->servers;
        *out = x;
    } else {
        local_destroy(&x);
    }
    return err;
}

/* --- the outer exchange --------------------------------------------------------------
 */

/* Its chunk c is a part of the fragment. */
static bool has_chunk(const ps_exchange_local *e, const ps_local_fragment *f, uint32_t c)
{
    return e->o.plan->chunks[c].fragment == (uint32_t)(f - e->fragments);
}

/* For fragment i. */
static bool ends_round(const ps_exchange_local *e, uint32_t i, uint64_t step)
{
    if (e->rounds.on) return ps_own_rounds_sends(&e->rounds, i);
    return ps_local_steps_sends(e->o.config, i, step, e->total);
}

/* Of the step that was made last, which ends it for the fragment. */
static uint64_t next_round(const ps_exchange_local *e, ps_local_fragment *f)
{
    if (!e->rounds.on) return ps_local_steps_round(e->o.config, e->next - 1);
    return f->rounds++;
}

static uint64_t overlap_of(const ps_exchange_local *e)
{
    if (e->rounds.on) return e->rounds.overlap;
    return ps_local_steps_overlap(e->o.config, e->next - 1, e->total);
}

/* Its whole step is the one fragment's: any exchange can that. */
static ps_err send_step(ps_exchange_local *e, uint64_t round)
{
    PS_TRY(ps_exchange_begin(e->outer, round));
    PS_TRY(ps_exchange_grads_ready(e->outer, 0, e->o.table->arena_count));
    return ps_exchange_finish(e->outer);
}

static ps_err local_send(ps_exchange_local *e, ps_local_fragment *f)
{
    const uint64_t round = next_round(e, f);
    f->awaited = true;
    f->steps_left = overlap_of(e);
    f->mixes = f->steps_left > 0;
    if (e->n_fragments == 1) return send_step(e, round);
    f->version = round + 1;
    for (uint32_t c = 0; c < e->o.plan->n_chunks; c++)
        if (has_chunk(e, f, c)) PS_TRY(e->outer->ops->push_chunk(e->outer, c, round));
    return PS_OK;
}

/* Blocks until the result of what was sent is in the anchor. */
static ps_err local_await(ps_exchange_local *e, const ps_local_fragment *f)
{
    if (e->n_fragments == 1) return ps_exchange_drain(e->outer);
    const uint64_t start_ns = ps_clock_ns();
    for (uint32_t c = 0; c < e->o.plan->n_chunks; c++)
        if (has_chunk(e, f, c))
            PS_TRY(e->outer->ops->wait_chunk(e->outer, c, f->version));
    e->wait_ns += ps_clock_ns() - start_ns;
    return PS_OK;
}

/* --- rounds --------------------------------------------------------------------------
 */

static void local_mix(ps_exchange_local *e, const ps_local_fragment *f)
{
    const float kept = (float)e->o.config->sync.mixing, taken = 1 - kept;
    const float *anchor = anchor_of(e);
    float *weights = ps_exchange_local_weights(e);
    for (uint64_t i = f->begin; i < f->end; i++)
        weights[i] = kept * weights[i] + taken * anchor[i];
}

static size_t local_bytes_of(const ps_local_fragment *f)
{
    return (f->end - f->begin) * sizeof(float);
}

static void copy_anchor(ps_exchange_local *e, const ps_local_fragment *f)
{
    memcpy(ps_exchange_local_weights(e) + f->begin, anchor_of(e) + f->begin,
           local_bytes_of(f));
}

/* Waits for the anchor that the change leads to; the worker goes on from it. */
static ps_err local_take(ps_exchange_local *e, ps_local_fragment *f)
{
    if (!f->awaited) return PS_OK;
    PS_TRY(local_await(e, f));
    if (f->mixes)
        local_mix(e, f);
    else
        copy_anchor(e, f);
    f->awaited = false;
    return PS_OK;
}

/* Pushes this rank's share of the mean change, as a gradient that points away from it. At
 * the job's end the result of the change before may not have been used yet. */
static ps_err local_push(ps_exchange_local *e, ps_local_fragment *f)
{
    PS_TRY(local_take(e, f));
    const float share =
        (float)((double)f->samples / (double)f->all_samples * e->round_weight);
    const float *anchor = anchor_of(e), *weights = ps_exchange_local_weights(e);
    float *change = e->outer_options.grads->base;
    for (uint64_t i = f->begin; i < f->end; i++)
        change[i] = (anchor[i] - weights[i]) * share;
    f->samples = f->all_samples = 0;
    return local_send(e, f);
}

/* The fragment's weights while the anchor is shown. The gradient arena is nobody's then.
 */
static float *kept_of(const ps_exchange_local *e, const ps_local_fragment *f)
{
    return (float *)e->o.grads->base + f->begin;
}

static bool is_fresh(const ps_exchange_local *e, uint32_t i)
{
    if (e->rounds.on) return e->rounds.in_round == 0 && i + 1 == e->n_fragments;
    return ps_local_steps_fresh(e->o.config, i, e->next, e->total);
}

/* Leaves the anchor in the session's arena. The anchor's own arena is only read: it is
 * what the outer exchange sends, again after a lost connection. */
void ps_exchange_local_show_anchor(ps_exchange_local *e)
{
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        ps_local_fragment *f = &e->fragments[i];
        f->shows_anchor = !is_fresh(e, i);
        if (f->shows_anchor)
            memcpy(kept_of(e, f), ps_exchange_local_weights(e) + f->begin,
                   local_bytes_of(f));
        copy_anchor(e, f);
    }
}

static void show_weights(ps_exchange_local *e)
{
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        ps_local_fragment *f = &e->fragments[i];
        if (f->shows_anchor)
            memcpy(ps_exchange_local_weights(e) + f->begin, kept_of(e, f),
                   local_bytes_of(f));
        f->shows_anchor = false;
    }
}

/* --- steps ---------------------------------------------------------------------------
 */

static ps_err local_begin(ps_exchange *x, uint64_t step)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    show_weights(e);
    for (uint32_t i = 0; i < e->n_fragments && !e->rounds.on; i++)
        if (!ps_local_steps_awaits(e->o.config, i, step, e->total))
            PS_TRY(local_take(e, &e->fragments[i]));
    return ps_exchange_begin(e->steps, step);
}

/* A rank that comes back pushes nothing first. The answer has the present weights, of one
 * version of each fragment. */
static ps_err ask_for_weights(ps_exchange_local *e)
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
    ps_exchange_local *e = ps_exchange_local_of(x);
    const size_t bytes = e->o.params->bytes;
    PS_TRY(ps_exchange_local_make_steps(e));
    memcpy(anchor_of(e), ps_exchange_local_weights(e), bytes);
    PS_TRY(ps_exchange_start(e->outer));
    memcpy(ps_exchange_local_weights(e), e->resumed ? e->resumed : anchor_of(e), bytes);
    e->resumed = NULL;
    PS_TRY(ps_exchange_start(e->steps));
    return e->o.back_at > 0 ? ask_for_weights(e) : PS_OK;
}

static ps_err local_params_needed(ps_exchange *x, uint64_t begin, uint64_t end)
{
    return ps_exchange_params_needed(ps_exchange_local_of(x)->steps, begin, end);
}

static ps_err local_params_ready(ps_exchange *x, uint64_t begin, uint64_t end,
                                 bool *ready)
{
    return ps_exchange_params_ready(ps_exchange_local_of(x)->steps, begin, end, ready);
}

static ps_err local_grads_ready(ps_exchange *x, uint64_t begin, uint64_t end)
{
    return ps_exchange_grads_ready(ps_exchange_local_of(x)->steps, begin, end);
}

static void local_count(ps_exchange *x, uint64_t mine, uint64_t all)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        e->fragments[i].samples += mine;
        e->fragments[i].all_samples += all;
    }
}

static ps_err local_finish(ps_exchange *x)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    PS_TRY(ps_exchange_finish(e->steps));
    if (e->fragments[0].all_samples == 0)
        return ps_err_set(PS_ERR_ARG, "a step ends, but its samples were not counted");
    const uint64_t step = e->next++;
    ps_own_rounds_step(&e->rounds);
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        ps_local_fragment *f = &e->fragments[i];
        if (f->steps_left > 0) f->steps_left--;
        if (ends_round(e, i, step)) PS_TRY(local_push(e, f));
    }
    ps_own_rounds_sent(&e->rounds);
    return PS_OK;
}

static void local_set_round(ps_exchange *x, uint64_t steps, double weight)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    ps_own_rounds_set_steps(&e->rounds, steps);
    e->round_weight = weight;
}

/* With a quorum. Takes the answers that are due. The last fragment's says who goes on. */
static ps_err local_rest(ps_exchange *x, bool *rests, bool *over)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    *rests = *over = false;
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        ps_local_fragment *f = &e->fragments[i];
        if (!f->awaited || f->steps_left > 0) continue;
        PS_TRY(local_take(e, f));
        if (i + 1 == e->n_fragments) PS_TRY(e->outer->ops->rest(e->outer, rests, over));
    }
    if (*rests && e->rounds.plan.round > 0)
        return ps_err_set(PS_ERR_FORMAT,
                          "the record cuts round %" PRIu64 " short, which was not made",
                          e->rounds.plan.round);
    if (*rests) ps_own_rounds_rest(&e->rounds);
    return PS_OK;
}

static bool is_any_awaited(const ps_exchange_local *e)
{
    for (uint32_t i = 0; i < e->n_fragments; i++)
        if (e->fragments[i].awaited) return true;
    return false;
}

/* Those fragments go first that were not sent in this round: for their answers, with
 * which this rank has the same anchor as the others. */
static ps_err end_round(ps_exchange_local *e)
{
    for (uint32_t i = 0; i + 1 < e->n_fragments; i++) {
        ps_local_fragment *f = &e->fragments[i];
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
    ps_exchange_local *e = ps_exchange_local_of(x);
    const bool planned = ps_own_rounds_ends_here(&e->rounds);
    *sent = planned ||
            (now && e->fragments[e->n_fragments - 1].samples > 0 && !is_any_awaited(e));
    if (!*sent) return PS_OK;
    if (is_any_awaited(e))
        return ps_err_set(PS_ERR_FORMAT,
                          "the record cuts a round short while a fragment is on its way");
    return end_round(e);
}

static ps_round_cut local_swap_cut(ps_exchange *x, ps_round_cut plan)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    const ps_round_cut cut = e->rounds.cut;
    e->rounds.cut = (ps_round_cut){0};
    e->rounds.plan = plan;
    return cut;
}

ps_err ps_exchange_local_drain(ps_exchange *x)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    show_weights(e);
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        ps_local_fragment *f = &e->fragments[i];
        PS_TRY(f->awaited && f->mixes ? local_await(e, f) : local_take(e, f));
    }
    return ps_exchange_drain(e->steps);
}

static ps_err local_loss_scale(ps_exchange *x, float *scale)
{
    return ps_exchange_loss_scale(ps_exchange_local_of(x)->steps, scale);
}

static ps_err local_sync_buffers(ps_exchange *x)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    PS_TRY(ps_exchange_local_drain(x));
    PS_TRY(ps_exchange_sync_buffers(e->outer));
    ps_exchange_local_show_anchor(e);
    return PS_OK;
}

/* --- the end -------------------------------------------------------------------------
 */

static void local_stats(const ps_exchange *x, ps_exchange_stats *out)
{
    const ps_exchange_local *e = (const ps_exchange_local *)x;
    ps_exchange_stats_get(e->outer, out);
    out->wait_seconds += (double)e->wait_ns * 1e-9;
}

static ps_err local_stop(ps_exchange *x)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    PS_TRY(ps_exchange_local_drain(x));
    PS_TRY(ps_exchange_stop(e->steps));
    return ps_exchange_stop(e->outer);
}

static const ps_exchange_ops local_ops = {
    .create = NULL, // ps_exchange_local_create
    .start = local_start,
    .begin = local_begin,
    .params_needed = local_params_needed,
    .params_ready = local_params_ready,
    .grads_ready = local_grads_ready,
    .finish = local_finish,
    .drain = ps_exchange_local_drain,
    .loss_scale = local_loss_scale,
    .sync_buffers = local_sync_buffers,
    .save = ps_exchange_local_save,
    .load = ps_exchange_local_load,
    .count = local_count,
    .set_round = local_set_round,
    .end_round = local_end_round,
    .swap_cut = local_swap_cut,
    .rest = local_rest,
    .stats = local_stats,
    .stop = local_stop,
    .destroy = local_destroy,
};
