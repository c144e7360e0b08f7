#include "param_groups.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

ps_err ps_param_groups_init(ps_param_groups *g, int n)
{
    *g = (ps_param_groups){.n = n};
    return PS_NEW(&g->sets, (size_t)n * PS_GROUP_SETS, "parameter groups");
}

void ps_param_groups_fini(ps_param_groups *g)
{
    free(g->sets);
    free(g->first);
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
    o.lr_decay = numbers->lr_decay;
    o.initial_accumulator = numbers->initial_accumulator;
    o.kind = (ps_optimizer_kind)numbers->kind;
    o.centered = numbers->centered != 0;
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
                              .nesterov = opt->nesterov,
                              .lr_decay = opt->lr_decay,
                              .initial_accumulator = opt->initial_accumulator,
                              .kind = (double)opt->kind,
                              .centered = opt->centered};
}

static ps_err groups_bad(int group, const char *name, double value, const char *wanted)
{
    return ps_err_set(PS_ERR_CONFIG, "parameter group %d: %s is %g; it has to be %s",
                      group, name, value, wanted);
}

static ps_err check_momentum(const ps_group_numbers *n, int group)
{
    if (n->momentum >= 0 && isfinite(n->momentum)) return PS_OK;
    return groups_bad(group, "momentum", n->momentum, "a number from 0 on");
}

static ps_err check_sgd(const ps_group_numbers *n, int group)
{
    PS_TRY(check_momentum(n, group));
    if (!isfinite(n->dampening))
        return groups_bad(group, "dampening", n->dampening, "a finite number");
    if (n->nesterov != 0 && (n->momentum == 0 || n->dampening != 0))
        return groups_bad(group, "nesterov", n->nesterov,
                          "0 without a momentum above 0, or with dampening");
    return PS_OK;
}

static ps_err check_moments(const ps_group_numbers *n, int group)
{
    if (!(n->beta1 >= 0 && n->beta1 < 1))
        return groups_bad(group, "beta1", n->beta1, "a number from 0 to below 1");
    if (!(n->beta2 >= 0 && n->beta2 < 1))
        return groups_bad(group, "beta2", n->beta2, "a number from 0 to below 1");
    if (!(n->eps >= 0 && isfinite(n->eps)))
        return groups_bad(group, "eps", n->eps, "a number from 0 on");
    if (!isfinite(n->lr_decay) || !isfinite(n->initial_accumulator))
        return groups_bad(group, "lr_decay", n->lr_decay,
                          "a finite number, as is "
                          "initial_accumulator");
    return PS_OK;
}

/* That they are possible, for a group that begins with them. */
static ps_err check_numbers(const ps_group_numbers *n, int group)
{
    if (!(n->kind >= 0 && n->kind <= PS_OPTIMIZER_MEAN && n->kind == floor(n->kind)))
        return groups_bad(group, "kind", n->kind, "one of ps_optimizer_kind");
    if (!(n->owner >= 0 && n->owner < PS_MAX_GROUPS && n->owner == floor(n->owner)))
        return groups_bad(group, "owner", n->owner, "one of the optimizers");
    if (!isfinite(n->lr)) return groups_bad(group, "lr", n->lr, "a finite number");
    if (!isfinite(n->weight_decay))
        return groups_bad(group, "weight_decay", n->weight_decay, "a finite number");
    switch ((ps_optimizer_kind)n->kind) {
    case PS_OPTIMIZER_SGD:
        return check_sgd(n, group);
    case PS_OPTIMIZER_SUM:
    case PS_OPTIMIZER_MEAN:
        return PS_OK;
    case PS_OPTIMIZER_RMSPROP:
        PS_TRY(check_momentum(n, group));
        return check_moments(n, group);
    default:
        return check_moments(n, group);
    }
}

ps_err ps_param_groups_check(const ps_param_groups *g, const ps_group_numbers *n,
                             int group)
{
    const ps_group_numbers *first = &g->first[group];
    PS_TRY(check_numbers(n, group));
    if (n->kind != first->kind || n->centered != first->centered ||
        n->owner != first->owner)
        return ps_err_set(PS_ERR_CONFIG,
                          "parameter group %d: its optimizer, and centered, have to stay "
                          "what they were in the first step",
                          group);
    if ((n->momentum != 0) != (first->momentum != 0))
        return groups_bad(group, "momentum", n->momentum,
                          first->momentum != 0 ? "above 0, as it was in the first step"
                                               : "0, as it was in the first step");
    return PS_OK;
}

/* LAMB's steps have two passes over all tensors, and sums make none. */
static bool goes_alone(ps_optimizer_kind kind)
{
    return kind == PS_OPTIMIZER_LAMB || kind == PS_OPTIMIZER_SUM ||
           kind == PS_OPTIMIZER_MEAN;
}

static ps_err groups_check_company(const ps_optimizer *opt, const ps_group_numbers *n,
                                   int group)
{
    const ps_optimizer_kind kind = (ps_optimizer_kind)n->kind;
    if (kind == opt->kind || (!goes_alone(kind) && !goes_alone(opt->kind))) return PS_OK;
    return ps_err_set(
        PS_ERR_CONFIG,
        "parameter group %d: lamb, sum and mean have to be the optimizer of "
        "all parameters, or of none",
        group);
}

ps_err ps_param_groups_open(ps_param_groups *g, const ps_optimizer *opt,
                            const ps_group_numbers *numbers)
{
    PS_TRY(PS_NEW(&g->first, (size_t)g->n, "parameter groups"));
    for (int i = 0; i < g->n; i++) {
        g->first[i] = numbers ? numbers[i] : ps_param_groups_numbers(opt);
        PS_TRY(check_numbers(&g->first[i], i));
        PS_TRY(groups_check_company(opt, &g->first[i], i));
        const ps_optimizer of_group = ps_param_groups_optimizer(opt, &g->first[i]);
        const int n = ps_optimizer_own_states(&of_group);
        if (n > g->n_states) g->n_states = n;
    }
    return PS_OK;
}

void ps_param_groups_use(const ps_param_groups *g, ps_optimizer *opt)
{
    opt->groups = g;
    if (g && g->first) opt->n_states = g->n_states + (opt->ema > 0);
}
