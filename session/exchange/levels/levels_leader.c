#include "levels_leader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "finite.h"
#include "ordered_sum.h"
#include "shm_peers.h"
#include "thread.h"
#include "trace.h"

enum { BLOCK = 2048 }; // elements, which stay in the first cache

struct ps_levels_leader {
    ps_levels *levels;
    ps_comm *comm;
    pthread_t thread;
    bool running;
    uint32_t *order;        // (n_chunks) of the step: chunks as they became final here
    uint64_t n_given;       // ever; the main thread's
    _Atomic uint64_t given; // the same, for the thread
    _Atomic int awaits; // the place of the worker whose gradients are missing; 0: none
    const float **from; // (workers of the host) their gradient arenas
    _Atomic bool ended;
};

/* --- the thread -------------------------------------------------------------------- */

static ps_err is_ended(const void *ctx)
{
    const ps_levels_leader *l = ctx;
    return atomic_load(&l->ended) ? ps_err_set(PS_ERR_NET, "the exchange was ended")
                                  : PS_OK;
}

static ps_err await_own(ps_levels_leader *l, uint64_t n)
{
    ps_levels_wait w = {.levels = l->levels, .also = is_ended, .ctx = l};
    return ps_levels_await(&w, &l->given, n);
}

static ps_levels_wait leader_wait_for(const ps_levels_leader *l, int place)
{
    return (ps_levels_wait){.levels = l->levels,
                            .place = place,
                            .timeout_ms = l->levels->o.settings.step_timeout_ms,
                            .what = "gradients",
                            .also = is_ended,
                            .ctx = l};
}

/* Whether the worker at that place makes the same optimizer's step. */
static ps_err leader_check_step_of(const ps_levels_leader *l, int place, uint64_t step)
{
    const ps_levels *levels = l->levels;
    const uint32_t ranks[] = {(uint32_t)levels->ranks[0], (uint32_t)levels->ranks[place]};
    const uint32_t steps_of[] = {ps_levels_step_of(levels, 0, step),
                                 ps_levels_step_of(levels, place, step)};
    if (steps_of[0] == steps_of[1]) return PS_OK;
    return ps_step_of_differs(PS_ERR_PEER, levels->o.table, step, ranks, steps_of);
}

static ps_err await_others(ps_levels_leader *l, uint32_t chunk, uint64_t step)
{
    const uint64_t n = step - l->levels->o.first_step + 1;
    for (int i = 1; i < l->levels->n; i++) {
        ps_levels_wait w = leader_wait_for(l, i);
        atomic_store(&l->awaits, i);
        PS_TRY(ps_levels_await(&w, &l->levels->boards[i]->shared[chunk], n));
        PS_TRY(leader_check_step_of(l, i, step));
    }
    atomic_store(&l->awaits, 0);
    return PS_OK;
}

/* The worker whose elements [begin, end) of a tensor are not finite, or their sum. */
static ps_err bad_worker(const ps_levels_leader *l, const ps_tensor *t, uint64_t begin,
                         uint64_t end, uint64_t step)
{
    for (int i = 0; i < l->levels->n; i++)
        if (!ps_finite_all(l->from[i] + begin, end - begin))
            return ps_step_rule_not_finite(l->levels->ranks[i], t->name, step);
    return ps_step_rule_not_finite(PS_STEP_RULE_OVERFLOW, t->name, step);
}

/* Refuses a sum of elements [begin, end) of the arena that is not finite. A gap between
 * tensors does not count. */
static ps_err check_sum(const ps_levels_leader *l, const ps_chunk *c, const float *sum,
                        uint64_t begin, uint64_t end, uint64_t step)
{
    const ps_exchange_options *o = &l->levels->o;
    if (!o->rule->refuses || ps_finite_all(sum, end - begin)) return PS_OK;
    for (int i = c->first_tensor; i <= c->last_tensor; i++) {
        const ps_tensor *t = &o->table->tensors[i];
        const uint64_t last = t->offset + t->count;
        const uint64_t from = t->offset > begin ? t->offset : begin;
        const uint64_t to = last < end ? last : end;
        if (from < to && !ps_finite_all(sum + (from - begin), to - from))
            return bad_worker(l, t, from, to, step);
    }
    return PS_OK;
}

/* In the leader's arena the chunk becomes the host's sum. */
static ps_err leader_sum(const ps_levels_leader *l, const ps_chunk *c, uint64_t step)
{
    float *own = l->levels->o.grads->base;
    const uint64_t last = c->offset + c->count;
    float block[BLOCK];
    for (uint64_t at = c->offset; at < last; at += BLOCK) {
        const uint64_t n = last - at < BLOCK ? last - at : BLOCK;
        ps_ordered_sum(block, l->from, l->levels->n, at, n);
        PS_TRY(check_sum(l, c, block, at, at + n, step));
        memcpy(own + at, block, n * sizeof *block);
    }
    return PS_OK;
}

static ps_err leader_run(ps_levels_leader *l)
{
    const ps_exchange_options *o = &l->levels->o;
    const uint32_t n = o->plan->n_chunks;
    for (uint64_t k = 0;; k++) {
        PS_TRY(await_own(l, k + 1));
        const uint32_t chunk = l->order[k % n];
        const uint64_t step = o->first_step + k / n;
        PS_TRY(await_others(l, chunk, step));
        const uint64_t begin_ns = ps_trace_now();
        const ps_chunk *c = &o->plan->chunks[chunk];
        if (!ps_chunk_is_idle(c, o->table, ps_levels_step_of(l->levels, 0, step)))
            PS_TRY(leader_sum(l, c, step));
        ps_trace_add_chunk(PS_TRACE_SUM, begin_ns, step, chunk, PS_TRACE_NONE);
        PS_TRY(ps_comm_submit(l->comm, PS_COMM_PUSH, step, &chunk, 1));
    }
}

static void *leader_main(void *arg)
{
    ps_levels_leader *l = arg;
    const ps_err err = leader_run(l); // it ends only by an error
    if (!atomic_load(&l->ended)) ps_comm_give_up(l->comm, err);
    return NULL;
}

/* --- the communication thread ------------------------------------------------------- */

static void weights_are_here(void *ctx, uint32_t chunk, int64_t version)
{
    ps_levels_leader *l = ctx;
    ps_shm_board *own = l->levels->boards[l->levels->own];
    const int64_t n = version - (int64_t)l->levels->o.first_step + 1;
    if (n <= (int64_t)atomic_load(&own->shared[chunk])) return; // again
    const float scale = ps_comm_loss_scale(l->comm);
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    atomic_store(&own->scale_bits, bits);
    ps_levels_post(l->levels, &own->shared[chunk]);
}

/* --- the main thread ---------------------------------------------------------------- */

static void leader_wake(ps_levels_leader *l)
{
    ps_bell *bell = &l->levels->boards[l->levels->own]->bell;
    if (atomic_load(&bell->wanted) == (uint32_t)l->levels->own + 1) ps_bell_ring(bell);
}

void ps_levels_leader_give(ps_levels_leader *l, const uint32_t *chunks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        l->order[l->n_given++ % l->levels->o.plan->n_chunks] = chunks[i];
    atomic_store(&l->given, l->n_given);
    leader_wake(l);
}

void ps_levels_leader_exact(ps_levels_leader *l)
{
    ps_levels_post(l->levels, &l->levels->boards[l->levels->own]->rounds);
}

ps_err ps_levels_leader_blame(const ps_levels_leader *l, ps_err err)
{
    const int place = atomic_load(&l->awaits);
    if (err != PS_ERR_TIMEOUT || place == 0) return err;
    const ps_levels_wait w = leader_wait_for(l, place);
    return ps_levels_late(&w);
}

static ps_err leader_prepare(ps_levels_leader *l)
{
    const ps_levels *levels = l->levels;
    PS_TRY(ps_mem_zalloc(&l->order, levels->o.plan->n_chunks, sizeof *l->order,
                         "a leader's chunks"));
    PS_TRY(ps_mem_zalloc(&l->from, (size_t)levels->n, sizeof *l->from,
                         "a leader's workers"));
    l->from[0] = levels->o.grads->base;
    for (int i = 1; i < levels->n; i++)
        l->from[i] = ps_shm_peers_grads(levels->peers, levels->ranks[i]);
    return PS_OK;
}

ps_err ps_levels_leader_create(ps_levels *levels, ps_comm *comm, ps_levels_leader **out)
{
    ps_levels_leader *l;
    *out = NULL;
    PS_TRY(ps_mem_zalloc(&l, 1, sizeof *l, "a leader"));
    l->levels = levels;
    l->comm = comm;
    ps_err err = leader_prepare(l);
    if (err == PS_OK) ps_comm_tell(comm, weights_are_here, l);
    if (err == PS_OK) err = ps_thread_start(&l->thread, "host sum", leader_main, l);
    l->running = err == PS_OK;
    *out = l;
    return err;
}

void ps_levels_leader_stop(ps_levels_leader *l)
{
    atomic_store(&l->ended, true);
    ps_bell_ring(&l->levels->boards[l->levels->own]->bell);
    if (l->running) pthread_join(l->thread, NULL);
    l->running = false;
}

void ps_levels_leader_destroy(ps_levels_leader **pointer)
{
    ps_levels_leader *l = *pointer;
    if (!l) return;
    free(l->order);
    free((void *)l->from);
    free(l);
    *pointer = NULL;
}
