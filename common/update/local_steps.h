/* The policy local (sync.policy): a worker makes K steps by itself, with the job's
 * optimizer (the inner one) on its own gradients. Then it sends how far it came, and the
 * servers' optimizer (the outer one) takes the mean of that as its gradient:
 *
 *   g = sum over the ranks of n_r / sum n * (anchor - weights of rank r)
 *   anchor = outer(anchor, g), the weights that all workers go on from
 *
 * n_r: the samples that rank r has seen since it sent the last change. Outer SGD with
 * learning rate 1 and no momentum averages the weights. Sources: FedAvg (McMahan et al.
 * 2017), local SGD (Stich 2018), post-local SGD (Lin et al. 2018), DiLoCo (Douillard et
 * al. 2023), Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512).
 *
 * A round is K steps, or one of the first sync.local_after steps. The last round of a job
 * may be shorter. In each round each fragment of the model (plan.h) is synchronised
 * once; with one fragment that is at the round's end:
 *
 *   F = 2, K = 6   steps        0 1 2 3 4 5 | 6 7 8 9 10 11 | 12 13
 *                  sent after       0     1       0       1       0 and 1
 *
 * Fragment i goes with step (i + 1) K / F of the round. In the last round all go with the
 * job's last step, so that nothing of what workers have learnt is lost.
 *
 * With an overlap of T steps (sync.overlap) a worker makes T more steps while a fragment
 * is on its way. What it has then is mixed with the new anchor (Streaming DiLoCo,
 * algorithm 2):
 *
 *   weights = a * weights + (1 - a) * anchor     a: sync.mixing
 *
 * In rounds of one step, and in the last one, workers wait instead.
 *
 * Everything here is a pure function, so that workers and servers agree without a word.
 * To the exchange a round is one step of a fragment's chunks; its number is the round's.
 */
#ifndef PS_LOCAL_STEPS_H
#define PS_LOCAL_STEPS_H

#include "step_rule.h"

static inline bool ps_local_steps_on(const ps_config *cfg)
{
    return cfg->sync.policy == PS_POLICY_LOCAL;
}

/* The round that a step is in, both from 0. With a quorum, where a job begins and goes on
 * between rounds: the number of the next one, above 0 after a step. */
uint64_t ps_local_steps_round(const ps_config *cfg, uint64_t step);

/* With a quorum, where a job goes on at that step: how many steps of the next round
 * workers have made beyond it, since they rest when they have the last fragment's result.
 * Otherwise, and in a new job, 0. */
uint64_t ps_local_steps_begun(const ps_config *cfg, uint64_t step);

/* How many rounds that many steps are. */
uint64_t ps_local_steps_rounds(const ps_config *cfg, uint64_t total_steps);

/* What follows is of rounds in which all workers make the same steps. With a quorum
 * (sync.quorum) a worker's rounds are its own: exchange_local counts them. */

/* Whether the fragment's change is sent after the step, in a job of that many steps. */
bool ps_local_steps_sends(const ps_config *cfg, uint32_t fragment, uint64_t step,
                          uint64_t total_steps);

/* How many steps are made before the result of what is sent after the step is used. */
uint64_t ps_local_steps_overlap(const ps_config *cfg, uint64_t step,
                                uint64_t total_steps);

/* Whether the fragment is on its way while the step is computed: its result is used after
 * it. */
bool ps_local_steps_awaits(const ps_config *cfg, uint32_t fragment, uint64_t step,
                           uint64_t total_steps);

/* Whether the fragment's weights before the step are those of its last synchronisation,
 * the same in all workers. step may be total_steps. */
bool ps_local_steps_fresh(const ps_config *cfg, uint32_t fragment, uint64_t step,
                          uint64_t total_steps);

/* How many fragments were sent before the step in its round: fragments 0, 1, ... */
uint32_t ps_local_steps_ahead(const ps_config *cfg, uint64_t step, uint64_t total_steps);

/* The settings of the exchange between the rounds: those of a job in bsp whose optimizer
 * is the outer one, with a constant learning rate, no clipping and no loss scale. With a
 * quorum the policy is `backup`, which adds what comes late (sync_policy.h). out
 * borrows from cfg and must not be given to fini. Another policy: a copy of cfg. */
void ps_local_steps_outer(ps_config *out, const ps_config *cfg);

/* The rule of the outer optimizer's steps, started: as with those settings. CONFIG. */
ps_err ps_local_steps_outer_rule(const ps_config *cfg, ps_step_rule *out);

#endif
