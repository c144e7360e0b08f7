#include "param_groups.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

ps_err ps_param_groups_init(ps_param_groups *g, int n)
{
    *g = (ps_param_groups){.n = n};
    return ps_mem_zalloc(&g->sets, (size_t)n * PS_GROUP_SETS, sizeof *g->sets,
                         "parameter groups");
}

void ps_param_groups_fini(ps_param_groups *g)
{
    free(g->sets);
    *g = (ps_param_groups){0};
}

static ps_group_numbers *groups_place(const ps_param_groups *g, uint64_t k)
{
    return g->sets + (k % PS_GROUP_SETS) * (uint64_t)g->n;
}

void ps_param_groups_set(ps_param_groups *g, uint64_t from, const void *numbers)
{
    const uint64_t k = atomic_load(&g->n_sets);
    memcpy(groups_place(g, k), numbers, (size_t)g->n * sizeof *g->sets);
    g->from[k % PS_GROUP_SETS] = from;
    atomic_store(&g->n_sets, k + 1);
}

const ps_group_numbers *ps_param_groups_get(const ps_param_groups *g, uint64_t k,
                                            uint64_t *from)
{
    *from = g->from[k % PS_GROUP_SETS];
    return groups_place(g, k);
}

const ps_group_numbers *ps_param_groups_at(const ps_param_groups *g, uint64_t step)
{
    const uint64_t n = atomic_load(&g->n_sets);
    const uint64_t oldest = n > PS_GROUP_SETS - 1 ? n - (PS_GROUP_SETS - 1) : 0;
    for (uint64_t k = n; k-- > oldest;) // the place of the next set is not looked at
        if (g->from[k % PS_GROUP_SETS] <= step) return groups_place(g, k);
    return NULL;
}

ps_optimizer ps_param_groups_optimizer(const ps_optimizer *opt,
                                       const ps_group_numbers *numbers)
{
    ps_optimizer o = *opt;
    o.lr = numbers->lr;
    o.momentum = numbers->momentum;
    o.dampening = numbers->dampening;
    o.beta1 = numbers->beta1;
    o.beta2 = numbers->beta2;
    o.eps = numbers->eps;
    o.weight_decay = numbers->weight_decay;
    o.nesterov = numbers->nesterov != 0;
    return o;
}

ps_group_numbers ps_param_groups_numbers(const ps_optimizer *opt)
{
    return (ps_group_numbers){.lr = opt->lr,
                              .momentum = opt->momentum,
                              .dampening = opt->dampening,
                              .beta1 = opt->beta1,
                              .beta2 = opt->beta2,
                              .eps = opt->eps,
                              .weight_decay = opt->weight_decay,
                              .nesterov = opt->nesterov};
}

static ps_err groups_bad(int group, const char *name, double value, const char *wanted)
{
    return ps_err_set(PS_ERR_CONFIG, "parameter group %d: %s is %g; it has to be %s",
                      group, name, value, wanted);
}

/* Each group has the same arrays of state. */
static ps_err check_momentum(const ps_optimizer *opt, const ps_group_numbers *n,
                             int group)
{
    static const char same[] =
        "a momentum in all groups, from the first step on, or in none";
    if (!(n->momentum >= 0 && isfinite(n->momentum)))
        return groups_bad(group, "momentum", n->momentum, "a number from 0 on");
    if ((n->momentum != 0) != (opt->momentum != 0))
        return groups_bad(group, "momentum", n->momentum, same);
    return PS_OK;
}

static ps_err check_sgd(const ps_optimizer *opt, const ps_group_numbers *n, int group)
{
    PS_TRY(check_momentum(opt, n, group));
    if (!isfinite(n->dampening))
        return groups_bad(group, "dampening", n->dampening, "a finite number");
    if (n->nesterov != 0 && (n->momentum == 0 || n->dampening != 0))
        return groups_bad(group, "nesterov", n->nesterov,
                          "0 without a momentum above 0, or with dampening");
    return PS_OK;
}

ps_err ps_param_groups_check(const ps_optimizer *opt, const ps_group_numbers *n,
                             int group)
{
    if (!isfinite(n->lr)) return groups_bad(group, "lr", n->lr, "a finite number");
    if (!isfinite(n->weight_decay))
        return groups_bad(group, "weight_decay", n->weight_decay, "a finite number");
    if (opt->kind == PS_OPTIMIZER_SGD) return check_sgd(opt, n, group);
    if (ps_optimizer_adds_up(opt)) return PS_OK;
    if (opt->kind == PS_OPTIMIZER_RMSPROP) PS_TRY(check_momentum(opt, n, group));
    if (!(n->beta1 >= 0 && n->beta1 < 1))
        return groups_bad(group, "beta1", n->beta1, "a number from 0 to below 1");
    if (!(n->beta2 >= 0 && n->beta2 < 1))
        return groups_bad(group, "beta2", n->beta2, "a number from 0 to below 1");
    if (!(n->eps >= 0 && isfinite(n->eps)))
        return groups_bad(group, "eps", n->eps, "a number from 0 on");
    return PS_OK;
}
