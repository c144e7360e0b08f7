/* Parameter groups: tensors with learning rate, decay and moments of their own, as in
 * PyTorch's optimizers, and numbers that may change from step to step, as a scheduler
 * there sets them. Groups may have optimizers of different kinds.
 *
 * Numbers count from a step on, until there are newer ones. A step is applied while the
 * next one is being prepared, perhaps by another thread, so the last few sets are kept.
 * One thread sets; the numbers of step s must be set before another thread may apply it.
 */
#ifndef PS_PARAM_GROUPS_H
#define PS_PARAM_GROUPS_H

#include <stdatomic.h>

#include "optimizer.h"

enum { PS_MAX_GROUPS = 4096, PS_GROUP_SETS = 4 };

/* Of one group; as the fields of ps_optimizer. On the wire: these doubles. Those in the
 * second part never change. */
typedef struct ps_group_numbers {
    double lr, momentum, dampening, beta1, beta2, eps, weight_decay;
    double nesterov; // 0 or 1
    double lr_decay, initial_accumulator;

    double kind;     // a ps_optimizer_kind
    double centered; // 0 or 1
    double owner;    // which of the program's optimizers it belongs to, from 0
} ps_group_numbers;

typedef struct ps_param_groups {
    int n;
    ps_group_numbers *sets;  // (PS_GROUP_SETS, n), owned
    ps_group_numbers *first; // (n), owned: ps_param_groups_open's; NULL before it
    int n_states;            // then: the most that the optimizer of any group has
    uint64_t from[PS_GROUP_SETS];
    _Atomic uint64_t n_sets; // ever; set k is at place k % PS_GROUP_SETS
} ps_param_groups;

/* n groups without numbers. NOMEM; safe for fini then, and zeroed. */
ps_err ps_param_groups_init(ps_param_groups *g, int n);
void ps_param_groups_fini(ps_param_groups *g);

/* The numbers (n; NULL: the optimizer's own) that the groups begin with. They decide on
 * the kind and the state of each. CONFIG names the group and the number that does not
 * fit; NOMEM. */
ps_err ps_param_groups_open(ps_param_groups *g, const ps_optimizer *opt,
                            const ps_group_numbers *numbers);
/* The optimizer steps by the groups, and has as much state as they need. Borrows g, which
 * may be NULL or not opened. */
void ps_param_groups_use(const ps_param_groups *g, ps_optimizer *opt);

/* numbers (n ps_group_numbers, of any alignment) count from step `from` on, which is
 * later than those before. */
void ps_param_groups_set(ps_param_groups *g, uint64_t from, const void *numbers);
/* The numbers (n) of a step; NULL: none were set for it. */
const ps_group_numbers *ps_param_groups_at(const ps_param_groups *g, uint64_t step);
/* Set k, one of the last PS_GROUP_SETS; *from: its step. */
const ps_group_numbers *ps_param_groups_get(const ps_param_groups *g, uint64_t k,
                                            uint64_t *from);

/* The optimizer with a group's numbers. */
ps_optimizer ps_param_groups_optimizer(const ps_optimizer *opt,
                                       const ps_group_numbers *numbers);
/* The numbers that the optimizer has itself. */
ps_group_numbers ps_param_groups_numbers(const ps_optimizer *opt);
/* Whether group `group` can step with them: finite, in their ranges, and with the kind
 * and the state that it began with. CONFIG names the number. */
ps_err ps_param_groups_check(const ps_param_groups *g, const ps_group_numbers *numbers,
                             int group);

#endif
