/* The policy local (sync.policy): a worker makes K steps by itself, with the job's
 * optimizer (the inner one) on its own gradients. Then it pushes how far it came, and the
 * servers' optimizer (the outer one) takes the mean of that as its gradient:
 *
 *   g = sum over the ranks of n_r / sum n * (anchor - weights of rank r)
 *   anchor = outer(anchor, g), the weights that all workers go on from
 *
 * n_r: the samples that rank r has seen in the round. Outer SGD with learning rate 1 and
 * no momentum averages the weights. Sources: FedAvg (McMahan et al. 2017), local SGD
 * (Stich 2018), post-local SGD (Lin et al. 2018), DiLoCo (Douillard et al. 2023).
 *
 * A round is what lies between two synchronisations: K steps, or one of the first
 * sync.local_after steps. The last round of a job may be shorter. Everything here is a
 * pure function, so that workers and servers agree without a word. To the exchange a
 * round is one step; its number is the round's. */
#ifndef PS_LOCAL_STEPS_H
#define PS_LOCAL_STEPS_H

#include "config.h"

static inline bool ps_local_steps_on(const ps_config *cfg)
{
    return cfg->sync.policy == PS_POLICY_LOCAL;
}

/* The round that a step is in, both from 0. */
uint64_t ps_local_steps_round(const ps_config *cfg, uint64_t step);

/* Whether a step begins its round. */
bool ps_local_steps_begins(const ps_config *cfg, uint64_t step);

/* Whether a step ends its round, in a job of that many steps. */
bool ps_local_steps_ends(const ps_config *cfg, uint64_t step, uint64_t total_steps);

/* How many rounds that many steps are. */
uint64_t ps_local_steps_rounds(const ps_config *cfg, uint64_t total_steps);

/* The settings of the exchange between the rounds: those of a job in bsp whose optimizer
 * is the outer one, with a constant learning rate, no clipping and no loss scale. out
 * borrows from cfg and must not be given to fini. Another policy: a copy of cfg. */
void ps_local_steps_outer(ps_config *out, const ps_config *cfg);

#endif
