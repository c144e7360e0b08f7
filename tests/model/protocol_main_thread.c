/* What a worker's main thread does, in steps that do not block: exchange_ps.c and the
 * trainer, without the arithmetic of a model. */
#include <string.h>

#include "protocol_world.h"

/* The first step of this incarnation; a newer or older snapshot is for the next one. */
static uint64_t first_step(uint32_t rank)
{
    return world_comm(rank)->o.first_step;
}

/* The arrays of a snapshot, in their order: the optimizer's states, with a codec the
 * servers' weights, and, when it is made, the step rule. */
static uint32_t array_of(uint32_t i, bool with_rule)
{
    const uint32_t n_states = (uint32_t)K.rule.optimizer.n_states;
    if (i < n_states) return i;
    if (i == n_states && K.coded) return PS_WIRE_STATE_WEIGHTS;
    return with_rule && i == n_states + K.coded ? PS_WIRE_STATE_RULE : UINT32_MAX;
}

static uint32_t chunks_of(uint32_t array)
{
    return array == PS_WIRE_STATE_RULE ? 1 : SHARDS; // all shards have the same rule
}

static void enter(worker *w, phase p)
{
    w->phase = p;
    w->acted = false;
    w->array = 0;
}

static void enter_step(worker *w, uint64_t step)
{
    const scenario *s = world_scenario();
    w->step = step;
    w->exact_due = s->exact_at && step == s->exact_at && K.coded;
    w->snapshot_due = s->snapshot_at && step == s->snapshot_at;
    enter(w, PHASE_STEP);
}

/* ---- going on from a snapshot ---- */

static void restore(uint32_t rank)
{
    worker *w = &W.workers[rank];
    ps_comm *c = world_comm(rank);
    const uint32_t array = array_of(w->array, false);
    if (w->acted) {
        w->acted = false;
        w->array++;
        return;
    }
    if (array == UINT32_MAX) {
        enter(w, PHASE_FIRST);
        return;
    }
    c->snapshot.array = array;
    c->snapshot.arena = W.newest.arrays[array];
    world_order(rank, PS_MSG_RESTORE, first_step(rank) - 1, SHARDS);
    w->acted = true;
}

static void begin(uint32_t rank)
{
    worker *w = &W.workers[rank];
    if (w->acted) {
        enter_step(w, first_step(rank));
        w->exact_due = w->snapshot_due = false; // done before the snapshot; it is one
        return;
    }
    world_order(rank, rank == 0 ? PS_MSG_INIT : PS_MSG_PULL, first_step(rank), SHARDS);
    w->acted = true;
}

/* ---- making one ---- */

/* Every worker's feedback travels to worker 0, which has the rest of it. */
static void stage_feedback(uint32_t rank)
{
    const float *feedback = world_comm(rank)->residual;
    if (feedback) memcpy(W.next.feedback[rank], feedback, ARENA * sizeof *feedback);
    W.staged |= 1u << rank;
}

static void keep_snapshot(const worker *w)
{
    const ps_comm *c = world_comm(0);
    W.next.version = w->step;
    memcpy(W.next.params, w->params, sizeof w->params);
    memcpy(W.next.arrays, w->arenas, sizeof w->arenas);
    W.next.rule_bytes = (uint32_t)c->snapshot.rule_bytes;
    memcpy(W.next.rule, c->snapshot.rule, sizeof W.next.rule);
    W.newest = W.next;
}

static void save(uint32_t rank)
{
    worker *w = &W.workers[rank];
    ps_comm *c = world_comm(rank);
    if (!w->acted && w->array == 0) stage_feedback(rank);
    const uint32_t array = rank == 0 ? array_of(w->array, true) : UINT32_MAX;
    if (w->acted) {
        w->acted = false;
        w->array++;
        return;
    }
    if (array == UINT32_MAX) {
        if (rank == 0) keep_snapshot(w);
        w->snapshot_due = false;
        enter(w, PHASE_STEP);
        return;
    }
    c->snapshot.array = array;
    if (array != PS_WIRE_STATE_RULE) c->snapshot.arena = w->arenas[array];
    world_order(rank, PS_MSG_FETCH, w->step, chunks_of(array));
    w->acted = true;
}

/* ---- steps ---- */

static void fetch_exact_weights(uint32_t rank)
{
    worker *w = &W.workers[rank];
    if (w->acted) {
        w->exact_due = false;
        enter(w, PHASE_STEP);
        return;
    }
    world_order(rank, PS_MSG_EXACT, w->step, SHARDS);
    w->acted = true;
}

static void leave(uint32_t rank)
{
    ps_comm *c = world_comm(rank);
    c->bye = true;
    enter(&W.workers[rank], PHASE_LEAVE);
    if (ps_comm_send_allowed(c) != PS_OK)
        world_wrong("worker %u: %s", rank, ps_err_message());
}

static void make_step(uint32_t rank)
{
    worker *w = &W.workers[rank];
    if (w->exact_due || w->snapshot_due) {
        enter(w, w->exact_due ? PHASE_EXACT : PHASE_SNAPSHOT);
        return;
    }
    expected *e = &E[w->step];
    world_expect(e->params, &e->knows_params, w->params, 0, ARENA, "a worker's weights",
                 w->step);
    const float *feedback = world_comm(rank)->residual;
    if (feedback)
        world_expect(e->feedback[rank], &e->knows_feedback[rank], feedback, 0, ARENA,
                     "a worker's feedback", w->step);
    if (w->step == world_scenario()->steps) {
        leave(rank);
        return;
    }
    world_gradient(rank, w->step, w->params, w->grads);
    world_order(rank, PS_MSG_PUSH, w->step, SHARDS);
    enter_step(w, w->step + 1);
}

bool world_main_can(uint32_t rank)
{
    const worker *w = &W.workers[rank];
    const ps_comm *c = world_comm(rank);
    if (w->n_orders > 0) return false;
    switch (w->phase) {
    case PHASE_READY:
        return c->n_ready == SHARDS;
    case PHASE_RESTORE:
        return !w->acted || world_has(rank, SHARDS, (int64_t)first_step(rank) - 1);
    case PHASE_FIRST:
        return !w->acted || world_has(rank, SHARDS, (int64_t)first_step(rank));
    case PHASE_STEP:
        return world_has(rank, SHARDS, (int64_t)w->step);
    case PHASE_SNAPSHOT:
        if (w->acted)
            return world_has(rank, chunks_of(array_of(w->array, true)), (int64_t)w->step);
        return rank != 0 || array_of(w->array, true) != UINT32_MAX ||
               W.staged == (1u << WORKERS) - 1;
    case PHASE_EXACT:
        return !w->acted || world_has(rank, SHARDS, (int64_t)w->step);
    case PHASE_LEAVE:
        return c->n_left == SHARDS;
    default:
        return false;
    }
}

void world_main_act(uint32_t rank)
{
    worker *w = &W.workers[rank];
    switch (w->phase) {
    case PHASE_READY:
        enter(w, rank == 0 && first_step(rank) > 0 ? PHASE_RESTORE : PHASE_FIRST);
        break;
    case PHASE_RESTORE:
        restore(rank);
        break;
    case PHASE_FIRST:
        begin(rank);
        break;
    case PHASE_STEP:
        make_step(rank);
        break;
    case PHASE_SNAPSHOT:
        save(rank);
        break;
    case PHASE_EXACT:
        fetch_exact_weights(rank);
        break;
    default:
        enter(w, PHASE_DONE);
    }
}
