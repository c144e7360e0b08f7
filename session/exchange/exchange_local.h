/* The policy local: steps that a worker makes by itself, with the exchange `none`, and in
 * each round one step of another exchange, to which the change of the weights is the
 * gradient (local_steps.h). With several fragments that step is made fragment by
 * fragment, as chunks that go on by themselves (exchange.h).
 *
 *   weights   the session's parameter arena: what the passes read and the steps change
 *   anchor    an arena of its own, which the outer exchange holds: of each fragment the
 *             weights of its last synchronisation. Right after one both are equal, unless
 *             steps were made meanwhile (sync.overlap).
 *   changes   what the outer exchange reads: the gradient arena, or, where steps are made
 *             while it reads, an arena of its own
 *
 * sync_buffers and save leave the anchor in the session's parameter arena, so that
 * evaluations and files have the same weights on every rank. The weights are in the
 * gradient arena meanwhile; the next begin or drain puts them back. A fragment that is on
 * its way has arrived in the anchor then, but is mixed into the weights at its step, as
 * if nobody had looked.
 *
 * On a GPU weights, inner steps and changes are in its memory, beside a copy of the
 * anchor. In each round the changes of a fragment come to the host once, and its anchor
 * goes back once. What is said of the session's parameter arena holds after drain.
 *
 * With a quorum (sync.quorum) a round's steps are the rank's own, and workers rest when
 * they have the last fragment's answer, so with an overlap of T steps T steps into a
 * round. */
#ifndef PS_EXCHANGE_LOCAL_H
#define PS_EXCHANGE_LOCAL_H

#include "exchange.h"

typedef struct ps_exchange_local_options { // borrowed for the exchange's life
    const ps_config *config;               // the job's
    const ps_exchange_ops *outer;
    const ps_step_rule *outer_rule; // started with the rounds
} ps_exchange_local_options;

/* The table of this exchange over an outer one, whose name and mode it has. */
ps_exchange_ops ps_exchange_local_ops_over(const ps_exchange_ops *outer);

/* options->local says what the outer exchange is; steps and rule of options are the inner
 * ones. */
ps_err ps_exchange_local_create(const ps_exchange_options *options, ps_exchange **out);

/* What a rank has of its own between two steps: arenas of float32, then a ps_local_end.
 * The first arena is the weights, the others are the inner optimizer's state. */
typedef struct ps_local_part {     // of a fragment
    uint64_t samples, all_samples; // since its last change: this rank's, all ranks'
    uint64_t awaited;              // 1: a change was sent, and its result is not used yet
} ps_local_part;

typedef struct ps_local_end {
    uint64_t n_parts; // sync.fragments
    ps_local_part parts[PS_MAX_FRAGMENTS];
    uint64_t rule_bytes;
    uint8_t rule[PS_STEP_RULE_STATE_BYTES]; // the inner one's, ps_step_rule_save's
} ps_local_end;

size_t ps_local_memory_bytes(const ps_tensor_table *table, const ps_optimizer *inner);
float *ps_local_memory_arena(const ps_tensor_table *table, void *local, int i);
/* Where the end begins: at no particular alignment of a uint64_t. */
void *ps_local_memory_end(const ps_tensor_table *table, const ps_optimizer *inner,
                          void *local);

#endif
