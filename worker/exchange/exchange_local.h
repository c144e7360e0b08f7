/* The policy local: steps that a worker makes by itself, with the exchange `none`, and
 * after each round one step of another exchange, to which the change of the weights is
 * the gradient (local_steps.h).
 *
 *   weights   the session's parameter arena: what the passes read and the steps change
 *   anchor    an arena of its own, which the outer exchange holds: the weights of the
 * last synchronisation. Right after one both are equal.
 *
 * sync_buffers and save leave the anchor in the session's parameter arena, so that
 * evaluations and files have the same weights on every rank. The next begin or drain puts
 * the weights back. */
#ifndef PS_EXCHANGE_LOCAL_H
#define PS_EXCHANGE_LOCAL_H

#include "exchange.h"

typedef struct ps_exchange_local_options { // borrowed for the exchange's life
    const ps_exchange_ops *ops;            // of the outer exchange
    const ps_config *config;               // ps_local_steps_outer's
    const ps_step_rule *rule;              // started with the rounds
} ps_exchange_local_options;

/* Its name and mode are the outer exchange's. Steps, config and rule of `options` are the
 * inner ones. */
ps_err ps_exchange_local_create(const ps_exchange_options *options,
                                const ps_exchange_local_options *outer,
                                ps_exchange **out);

/* What a rank has of its own between two steps: arenas of float32, then this. The first
 * arena is the weights, the others are the inner optimizer's state. */
typedef struct ps_exchange_local_end {
    uint64_t samples, all_samples; // of the round: this rank's, all ranks'
    uint64_t rule_bytes;
    uint8_t rule[PS_STEP_RULE_STATE_BYTES]; // the inner one's, ps_step_rule_save's
} ps_exchange_local_end;

size_t ps_exchange_local_bytes(const ps_tensor_table *table, const ps_optimizer *inner);
float *ps_exchange_local_arena(const ps_tensor_table *table, void *local, int i);
/* Where the end begins: at no particular alignment of a uint64_t. */
void *ps_exchange_local_end_of(const ps_tensor_table *table, const ps_optimizer *inner,
                               void *local);

#endif
