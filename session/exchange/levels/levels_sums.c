#include "levels_sums.h"

#include <stdlib.h>
#include <string.h>

#include "device_sums.h"
#include "finite.h"
#include "ordered_sum.h"
#include "shm_peers.h"
#include "thread.h"
#include "trace.h"

enum {
    BLOCK = 2048, // elements, which stay in the first cache
    /* Steps that `order` has room for. The main thread gives a chunk that this one adds
     * up again only when it was added, so it is two steps ahead at most. */
    ORDER_STEPS = 3
};

struct ps_levels_sums {
    ps_levels *levels;
    ps_levels_sums_hooks hooks;
    ps_thread thread;
    _Atomic uint32_t *order; // (ORDER_STEPS * n_chunks): chunks as they became final here
    uint64_t n_given;        // ever; the main thread's
    _Atomic uint64_t given;  // the same, for the thread
    _Atomic int awaits;      // 1 + the place of the worker that is waited for; 0: none
    _Atomic int awaits_what; // ps_levels_kind
    const float **from;      // (workers of the host) their gradient arenas
    float *sums;             // the leader's, where sums go
    atomic_bool ended;
    ps_err_saved failure;
    atomic_bool failed; // set when failure is written
};

/* --- waiting ----------------------------------------------------------------------- */

static ps_err host_sums_ended(const void *ctx)
{
    const ps_levels_sums *s = ctx;
    return atomic_load(&s->ended) ? ps_err_set(PS_ERR_NET, "the exchange was ended")
                                  : PS_OK;
}

static ps_err host_sums_await_own(ps_levels_sums *s, uint64_t n)
{
    ps_levels_wait w = {.levels = s->levels,
                        .beside = true,
                        .place = s->levels->own,
                        .also = host_sums_ended,
                        .ctx = s};
    return ps_levels_await(&w, &s->given, n);
}

static ps_levels_wait host_sums_wait_for(const ps_levels_sums *s, int place,
                                         ps_levels_kind kind)
{
    static const char *const what[PS_LEVELS_KINDS] = {
        "weights", "gradients", "sums", "weights on its GPU", "weights on its GPU"};
    return (ps_levels_wait){.levels = s->levels,
                            .beside = true,
                            .place = place,
                            .timeout_ms = s->levels->o.settings.step_timeout_ms,
                            .what = what[kind],
                            .also = host_sums_ended,
                            .ctx = s};
}

static ps_err host_sums_await(ps_levels_sums *s, int place, ps_levels_kind kind,
                              uint32_t chunk, uint64_t count)
{
    const ps_levels *l = s->levels;
    ps_levels_wait w = host_sums_wait_for(s, place, kind);
    // No time limit: the main thread waits for the same servers, and names a late one.
    if (kind == PS_LEVELS_WEIGHTS || kind == PS_LEVELS_HELD) w.timeout_ms = 0;
    atomic_store(&s->awaits_what, (int)kind);
    atomic_store(&s->awaits, place + 1);
    PS_TRY(ps_levels_await(&w, ps_levels_count(l, place, kind, chunk), count));
    atomic_store(&s->awaits, 0);
    return PS_OK;
}

/* Of gradients and sums: how many there are when those of a step are. */
static uint64_t host_sums_count(const ps_levels_sums *s, uint64_t step)
{
    return step - s->levels->o.first_step + 1;
}

/* Whether the worker at that place makes the leader's optimizer's step. */
static ps_err host_sums_check_step_of(const ps_levels_sums *s, int place, uint64_t step)
{
    const ps_levels *l = s->levels;
    const uint32_t ranks[] = {(uint32_t)l->ranks[0], (uint32_t)l->ranks[place]};
    const uint32_t steps_of[] = {ps_levels_step_of(l, 0, step),
                                 ps_levels_step_of(l, place, step)};
    if (steps_of[0] == steps_of[1]) return PS_OK;
    return ps_step_of_differs(PS_ERR_PEER, l->o.table, step, ranks, steps_of);
}

/* The own one is here already. */
static ps_err host_sums_await_gradients(ps_levels_sums *s, uint32_t chunk, uint64_t step)
{
    for (int i = 0; i < s->levels->n; i++) {
        if (i != s->levels->own)
            PS_TRY(host_sums_await(s, i, PS_LEVELS_GRADIENTS, chunk,
                                   host_sums_count(s, step)));
        PS_TRY(host_sums_check_step_of(s, i, step));
    }
    return PS_OK;
}

/* --- adding ------------------------------------------------------------------------ */

/* Whether elements [begin, end) of the worker at that place are finite. */
static ps_err host_sums_look(const ps_levels_sums *s, int place, uint64_t begin,
                             uint64_t end, bool *finite)
{
    ps_device_sums *there = s->levels->sums;
    *finite = true;
    for (uint64_t at = begin, n; there && at < end && *finite; at += n) {
        float block[BLOCK];
        n = end - at < BLOCK ? end - at : BLOCK;
        PS_TRY(there->ops->fetch(there, place, at, n, block));
        *finite = ps_finite_all(block, n);
    }
    if (!there) *finite = ps_finite_all(s->from[place] + begin, end - begin);
    return PS_OK;
}

/* The worker whose elements [begin, end) of a tensor are not finite, or their sum. */
static ps_err bad_worker(const ps_levels_sums *s, const ps_tensor *t, uint64_t begin,
                         uint64_t end, uint64_t step)
{
    for (int i = 0; i < s->levels->n; i++) {
        bool finite;
        PS_TRY(host_sums_look(s, i, begin, end, &finite));
        if (!finite) return ps_step_rule_not_finite(s->levels->ranks[i], t->name, step);
    }
    return ps_step_rule_not_finite(PS_STEP_RULE_OVERFLOW, t->name, step);
}

/* Refuses a sum of elements [begin, end) of the arena that is not finite. A gap between
 * tensors does not count. */
static ps_err check_sum(const ps_levels_sums *s, const ps_chunk *c, const float *sum,
                        uint64_t begin, uint64_t end, uint64_t step)
{
    const ps_exchange_options *o = &s->levels->o;
    if (!o->rule->refuses || ps_finite_all(sum, end - begin)) return PS_OK;
    for (int i = c->first_tensor; i <= c->last_tensor; i++) {
        const ps_tensor *t = &o->table->tensors[i];
        const uint64_t last = t->offset + t->count;
        const uint64_t from = t->offset > begin ? t->offset : begin;
        const uint64_t to = last < end ? last : end;
        if (from < to && !ps_finite_all(sum + (from - begin), to - from))
            return bad_worker(s, t, from, to, step);
    }
    return PS_OK;
}

/* In the leader's arena the chunk becomes the host's sum. */
static ps_err host_sums_add(const ps_levels_sums *s, const ps_chunk *c, uint64_t step)
{
    ps_device_sums *there = s->levels->sums;
    const uint64_t last = c->offset + c->count;
    if (there) {
        PS_TRY(there->ops->add(there, c->offset, c->count));
        return check_sum(s, c, s->sums + c->offset, c->offset, last, step);
    }
    float block[BLOCK];
    for (uint64_t at = c->offset; at < last; at += BLOCK) {
        const uint64_t n = last - at < BLOCK ? last - at : BLOCK;
        ps_ordered_sum(block, s->from, s->levels->n, at, n);
        PS_TRY(check_sum(s, c, block, at, at + n, step));
        memcpy(s->sums + at, block, n * sizeof *block);
    }
    return PS_OK;
}

/* A chunk that is this worker's to add. */
static ps_err host_sums_make(ps_levels_sums *s, uint32_t chunk, uint64_t step)
{
    ps_levels *l = s->levels;
    const ps_chunk *c = &l->o.plan->chunks[chunk];
    PS_TRY(host_sums_await_gradients(s, chunk, step));
    const uint64_t begin_ns = ps_trace_now();
    if (!ps_chunk_is_idle(c, l->o.table, ps_levels_step_of(l, 0, step)))
        PS_TRY(host_sums_add(s, c, step));
    ps_trace_add_chunk(PS_TRACE_SUM, begin_ns, step, chunk, PS_TRACE_NONE);
    ps_levels_post(l, ps_levels_count(l, l->own, PS_LEVELS_SUMS, chunk));
    return PS_OK;
}

/* A chunk that another worker adds. It waits for the gradients first: where one is
 * missing, the error names the worker that owes it, not the one that adds. */
static ps_err host_sums_take(ps_levels_sums *s, uint32_t chunk, uint64_t step)
{
    PS_TRY(host_sums_await_gradients(s, chunk, step));
    return host_sums_await(s, ps_levels_adder(s->levels, chunk), PS_LEVELS_SUMS, chunk,
                           host_sums_count(s, step));
}

/* --- weights on GPUs ---------------------------------------------------------------- */

/* The n-th version of a chunk, the first weights included. */
static ps_err host_sums_bring(ps_levels_sums *s, uint32_t chunk, uint64_t n)
{
    ps_levels *l = s->levels;
    const ps_device_sums_ops *ops = l->sums->ops;
    const ps_chunk *c = &l->o.plan->chunks[chunk];
    const int adder = ps_levels_adder(l, chunk);
    if (adder == l->own) {
        PS_TRY(host_sums_await(s, 0, PS_LEVELS_WEIGHTS, chunk, n));
        PS_TRY(ops->bring(l->sums, c->offset, c->count));
        ps_levels_post(l, ps_levels_count(l, l->own, PS_LEVELS_HELD, chunk));
    } else {
        PS_TRY(host_sums_await(s, adder, PS_LEVELS_HELD, chunk, n));
        PS_TRY(ops->take(l->sums, adder, c->offset, c->count));
    }
    ps_levels_post(l, ps_levels_count(l, l->own, PS_LEVELS_HERE, chunk));
    return PS_OK;
}

/* About in the order of the gradients, in which weights come, and the same in every
 * worker: nobody waits for a chunk that comes after one that the other waits for. */
static ps_err host_sums_bring_all(ps_levels_sums *s, uint64_t n)
{
    const uint32_t chunks = s->levels->o.plan->n_chunks;
    if (!s->levels->sums) return PS_OK;
    for (uint32_t c = chunks; c-- > 0;)
        PS_TRY(host_sums_bring(s, c, n));
    return PS_OK;
}

/* --- the thread -------------------------------------------------------------------- */

static ps_err host_sums_run(ps_levels_sums *s)
{
    const ps_levels *l = s->levels;
    const uint32_t n = l->o.plan->n_chunks;
    PS_TRY(host_sums_bring_all(s, 1));
    for (uint64_t k = 0;; k++) {
        PS_TRY(host_sums_await_own(s, k + 1));
        const uint32_t chunk = s->order[k % ((uint64_t)ORDER_STEPS * n)];
        const uint64_t step = l->o.first_step + k / n;
        if (ps_levels_adder(l, chunk) == l->own)
            PS_TRY(host_sums_make(s, chunk, step));
        else if (s->hooks.push)
            PS_TRY(host_sums_take(s, chunk, step));
        if (s->hooks.push) PS_TRY(s->hooks.push(s->hooks.ctx, chunk, step));
        if (k % n == n - 1) PS_TRY(host_sums_bring_all(s, k / n + 2));
    }
}

static void *host_sums_main(void *arg)
{
    ps_levels_sums *s = arg;
    const ps_err err = host_sums_run(s); // it ends only by an error
    if (atomic_load(&s->ended)) return NULL;
    s->failure = ps_err_save(err);
    atomic_store(&s->failed, true);
    if (s->hooks.failed) s->hooks.failed(s->hooks.ctx, err);
    ps_bell_ring(&s->levels->boards[s->levels->own]->bell);
    return NULL;
}

/* --- the main thread --------------------------------------------------------------- */

void ps_levels_sums_give(ps_levels_sums *s, const uint32_t *chunks, uint32_t n)
{
    ps_levels *l = s->levels;
    const uint64_t room = (uint64_t)ORDER_STEPS * l->o.plan->n_chunks;
    for (uint32_t i = 0; i < n; i++) {
        ps_levels_post(l, ps_levels_count(l, l->own, PS_LEVELS_GRADIENTS, chunks[i]));
        s->order[s->n_given++ % room] = chunks[i];
    }
    atomic_store(&s->given, s->n_given);
    ps_levels_wake_own(l);
}

ps_err ps_levels_sums_check(const void *sums)
{
    const ps_levels_sums *s = sums;
    return atomic_load(&s->failed) ? ps_err_restore(&s->failure) : PS_OK;
}

/* TIMEOUT where the thread waits for another worker, and that is what it waits for. */
static ps_err host_sums_late(const ps_levels_sums *s, bool weights)
{
    const int place = atomic_load(&s->awaits) - 1;
    const ps_levels_kind kind = (ps_levels_kind)atomic_load(&s->awaits_what);
    if (place < 0 || kind == PS_LEVELS_WEIGHTS || (kind == PS_LEVELS_HELD) != weights)
        return PS_OK;
    const ps_levels_wait w = host_sums_wait_for(s, place, kind);
    return ps_levels_late(&w);
}

ps_err ps_levels_sums_blame(const ps_levels_sums *s)
{
    return host_sums_late(s, false);
}

/* How often a chunk has come to the own GPU when that version has. */
static uint64_t host_sums_versions(const ps_levels_sums *s, int64_t version)
{
    return (uint64_t)(version - (int64_t)s->levels->o.first_step) + 1;
}

bool ps_levels_sums_here(const ps_levels_sums *s, uint32_t first, uint32_t last,
                         int64_t version)
{
    const ps_levels *l = s->levels;
    const uint64_t n = host_sums_versions(s, version);
    for (uint32_t c = first; c <= last && l->sums; c++)
        if (atomic_load(ps_levels_count(l, l->own, PS_LEVELS_HERE, c)) < n) return false;
    return true;
}

ps_err ps_levels_sums_await_here(ps_levels_sums *s, uint32_t first, uint32_t last,
                                 int64_t version)
{
    ps_levels *l = s->levels;
    const uint64_t n = host_sums_versions(s, version);
    for (uint32_t c = first; c <= last && l->sums; c++) {
        ps_levels_wait w = host_sums_wait_for(s, l->own, PS_LEVELS_HERE);
        w.beside = false;
        w.timeout_ms += w.timeout_ms / 2; // the leader names a late server before
        w.also = ps_levels_sums_check;
        const ps_err err =
            ps_levels_await(&w, ps_levels_count(l, l->own, PS_LEVELS_HERE, c), n);
        if (err == PS_ERR_TIMEOUT) (void)host_sums_late(s, true);
        if (err != PS_OK) return err;
    }
    return PS_OK;
}

ps_err ps_levels_sums_bring_exact(ps_levels_sums *s)
{
    ps_device_sums *there = s->levels->sums;
    return there ? there->ops->bring(there, 0, s->levels->o.table->arena_count) : PS_OK;
}

static ps_err host_sums_prepare(ps_levels_sums *s)
{
    const ps_levels *l = s->levels;
    PS_TRY(PS_NEW(&s->order, (size_t)ORDER_STEPS * l->o.plan->n_chunks,
                  "the host's chunks"));
    PS_TRY(PS_NEW(&s->from, (size_t)l->n, "the host's workers"));
    for (int i = 0; i < l->n; i++)
        s->from[i] =
            i == l->own ? l->o.grads->base : ps_shm_peers_grads(l->peers, l->ranks[i]);
    s->sums = ps_levels_sums_arena(l);
    return PS_OK;
}

ps_err ps_levels_sums_create(ps_levels *levels, const ps_levels_sums_hooks *hooks,
                             ps_levels_sums **out)
{
    ps_levels_sums *s;
    *out = NULL;
    PS_TRY(PS_NEW(&s, 1, "the host's sums"));
    s->levels = levels;
    s->hooks = *hooks;
    ps_err err = host_sums_prepare(s);
    if (err == PS_OK) err = ps_thread_start(&s->thread, "host sum", host_sums_main, s);
    *out = s;
    return err;
}

void ps_levels_sums_stop(ps_levels_sums *s)
{
    atomic_store(&s->ended, true);
    ps_bell_ring(&s->levels->boards[s->levels->own]->beside);
    ps_thread_join(&s->thread);
}

void ps_levels_sums_destroy(ps_levels_sums **pointer)
{
    ps_levels_sums *s = *pointer;
    if (!s) return;
    ps_levels_sums_stop(s);
    free((void *)s->order);
    free((void *)s->from);
    free(s);
    *pointer = NULL;
}
