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
 * With a quorum (sync.quorum) a round's steps are the rank's own, and workers rest when
 * they have the last fragment's answer, so with an overlap of T steps T steps into a
 * round. */
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

#endif
