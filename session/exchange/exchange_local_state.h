/* The inside of exchange_local, for its files. */
#ifndef PS_EXCHANGE_LOCAL_STATE_H
#define PS_EXCHANGE_LOCAL_STATE_H

#include "exchange.h"
#include "own_rounds.h"

typedef struct ps_local_fragment {
    uint64_t begin, end;           // elements of the arena
    uint64_t samples, all_samples; // since the last change was sent
    bool awaited;                  // it was sent; its result is not used yet
    bool mixes;                    // steps are made meanwhile
    uint64_t steps_left;           // of these, with a quorum
    uint64_t rounds;               // with a quorum: that this rank has sent
    uint64_t version;  // of the result, in an outer exchange that goes by chunks
    bool shows_anchor; // the weights are in the gradient arena, the anchor in theirs
} ps_local_fragment;

typedef struct ps_exchange_local {
    ps_exchange base;
    ps_exchange_ops ops; // with the outer exchange's name
    ps_exchange_options o;
    ps_exchange_options outer_options;
    ps_step_rule rule; // the inner one at the start
    ps_shared_mem anchor;
    ps_shared_mem changes; // empty: they are in the gradient arena
    ps_exchange *steps, *outer;
    uint64_t next;  // the step that begins next
    uint64_t total; // steps, to local_steps.h
    ps_own_rounds rounds;
    double round_weight; // of its share of the samples
    uint32_t n_fragments;
    ps_local_fragment fragments[PS_MAX_FRAGMENTS];
    uint64_t wait_ns;    // for chunks, which the outer exchange does not count
    const void *resumed; // what `local` held; until start
} ps_exchange_local;

static inline ps_exchange_local *ps_exchange_local_of(ps_exchange *x)
{
    return (ps_exchange_local *)x;
}

/* What the passes read and the steps change. */
static inline float *ps_exchange_local_weights(const ps_exchange_local *e)
{
    return e->o.params->base;
}

/* To the steps this worker is alone. Does nothing when that exchange is there. */
ps_err ps_exchange_local_make_steps(ps_exchange_local *e);
/* The exchange's drain. */
ps_err ps_exchange_local_drain(ps_exchange *x);
/* Leaves the anchor in the session's arena (exchange_local.h). */
void ps_exchange_local_show_anchor(ps_exchange_local *e);

/* The exchange's save and load (exchange_local_save.c). */
ps_err ps_exchange_local_save(ps_exchange *x, ps_exchange_state *out);
ps_err ps_exchange_local_load(ps_exchange *x, const ps_exchange_state *in);

#endif
