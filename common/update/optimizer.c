#include "optimizer.h"

#include <math.h>

#include "optimizer_loops.h"
#include "param_groups.h"

typedef ps_optimizer_scalars scalars;

static bool optimizer_decouples(const ps_optimizer *opt)
{
    return opt->kind == PS_OPTIMIZER_ADAMW || opt->kind == PS_OPTIMIZER_LION;
}

/* What the kinds with moments use. */
static void take_moments(scalars *k, const ps_optimizer *opt,
                         const ps_optimizer_step *step)
{
    const double t = (double)step->t;
    k->pytorch1 = opt->pytorch1;
    k->beta1 = (float)opt->beta1;
    k->lerp = (float)(1.0 - opt->beta1);
    k->beta2 = (float)opt->beta2;
    k->one_minus_beta2 = (float)(1.0 - opt->beta2);
    k->root_correction = (float)sqrt(1.0 - pow(opt->beta2, t));
    k->eps = (float)opt->eps;
    k->correction = (float)(1.0 - pow(opt->beta1, t));
    k->step_size_neg = (float)-(step->lr / (1.0 - pow(opt->beta1, t)));
}

static void take_rmsprop(scalars *k, const ps_optimizer *opt)
{
    k->beta1 = k->beta2;
    k->lerp = k->one_minus_beta2;
    k->centered = opt->centered;
    k->has_momentum = opt->momentum != 0.0;
}

static void take_adagrad(scalars *k, const ps_optimizer *opt,
                         const ps_optimizer_step *step)
{
    const double before = (double)(step->t - 1);
    k->accumulator = (float)opt->initial_accumulator;
    k->lr_neg = (float)-(step->lr / (1.0 + before * opt->lr_decay));
}

ps_optimizer_scalars ps_optimizer_scalars_of(const ps_optimizer *opt,
                                             const ps_optimizer_step *step,
                                             double weight_decay)
{
    scalars k = {.kind = opt->kind,
                 .n_states = ps_optimizer_own_states(opt),
                 .scale = (float)step->grad_scale,
                 .decay = (float)weight_decay,
                 .lr_neg = (float)-step->lr,
                 .momentum = (float)opt->momentum,
                 .damp = (float)(1.0 - opt->dampening),
                 .ema_lerp = (float)(1.0 - opt->ema),
                 .first = step->t == 1,
                 .nesterov = opt->nesterov};
    if (opt->kind == PS_OPTIMIZER_SGD) return k;
    if (ps_optimizer_adds_up(opt)) {
        k.scale = (float)(step->grad_scale * opt->share);
        return k;
    }
    take_moments(&k, opt, step);
    if (opt->kind == PS_OPTIMIZER_RMSPROP) take_rmsprop(&k, opt);
    if (opt->kind == PS_OPTIMIZER_ADAGRAD) take_adagrad(&k, opt, step);
    if (optimizer_decouples(opt)) k.decay = (float)(1.0 - step->lr * weight_decay);
    return k;
}

/* i below 0: no group. */
static scalars scalars_of_fixed(const ps_optimizer *opt, const ps_optimizer_step *step,
                                int i, double weight_decay)
{
    if (i < 0 || i >= opt->n_fixed)
        return ps_optimizer_scalars_of(opt, step, weight_decay);
    ps_optimizer_step now = *step;
    now.lr = step->fixed_lr[i];
    const double decay = opt->fixed[i].weight_decay;
    return ps_optimizer_scalars_of(opt, &now, isnan(decay) ? weight_decay : decay);
}

scalars ps_optimizer_scalars_in(const ps_optimizer *opt, const ps_optimizer_step *step,
                                int group, double weight_decay)
{
    const ps_group_numbers *numbers = opt->groups && !opt->rates_only
                                          ? ps_param_groups_at(opt->groups, step->step)
                                          : NULL;
    if (!numbers) return scalars_of_fixed(opt, step, group - 1, weight_decay);
    const ps_optimizer of_group = ps_param_groups_optimizer(opt, &numbers[group]);
    ps_optimizer_step now = *step;
    now.lr = of_group.lr;
    return ps_optimizer_scalars_of(&of_group, &now, of_group.weight_decay);
}

void ps_optimizer_apply(const ps_optimizer *opt, const ps_optimizer_step *step,
                        double weight_decay, uint64_t n, float *param, const float *grad,
                        float *const *states)
{
    const scalars k = ps_optimizer_scalars_of(opt, step, weight_decay);
    ps_optimizer_apply_by(opt, &k, n, param, grad, states);
}

void ps_optimizer_apply_by(const ps_optimizer *opt, const ps_optimizer_scalars *k,
                           uint64_t n, float *param, const float *grad,
                           float *const *states)
{
    float *mine[PS_OPTIMIZER_MAX_STATES] = {NULL};
    for (int i = 0; i < k->n_states; i++)
        mine[i] = states[i];
    ps_optimizer_loops(k, n, param, grad, mine,
                       opt->ema > 0 ? states[opt->n_states - 1] : NULL);
}

const char *ps_optimizer_state_name(const ps_optimizer *opt, int i)
{
    static const char *const adam[] = {"exp_avg", "exp_avg_sq"};
    const int buffer = opt->momentum != 0.0 ? 1 : 0; // RMSprop's second, if any
    if (opt->ema > 0 && i == opt->n_states - 1) return "ema";
    switch (opt->kind) {
    case PS_OPTIMIZER_SGD:
        return "momentum_buffer";
    case PS_OPTIMIZER_RMSPROP:
        if (i == 0) return "square_avg";
        return i == buffer ? "momentum_buffer" : "grad_avg";
    case PS_OPTIMIZER_ADAGRAD:
        return "sum";
    default:
        return adam[i != 0];
    }
}

int ps_optimizer_own_states(const ps_optimizer *opt)
{
    const int momentum = opt->momentum != 0.0;
    switch (opt->kind) {
    case PS_OPTIMIZER_SGD:
        return momentum;
    case PS_OPTIMIZER_ADAM:
    case PS_OPTIMIZER_ADAMW:
    case PS_OPTIMIZER_LAMB:
        return 2;
    case PS_OPTIMIZER_RMSPROP:
        return 1 + momentum + opt->centered;
    case PS_OPTIMIZER_ADAGRAD:
    case PS_OPTIMIZER_LION:
        return 1;
    default:
        return 0;
    }
}

void ps_optimizer_init(ps_optimizer *opt, const ps_config *cfg)
{
    const ps_config_optimizer *c = &cfg->optimizer;
    *opt = (ps_optimizer){.kind = c->name,
                          .lr = c->lr,
                          .momentum = c->momentum,
                          .dampening = c->dampening,
                          .beta1 = c->betas.v[0],
                          .beta2 = c->betas.v[1],
                          .eps = c->eps,
                          .lr_decay = c->lr_decay,
                          .initial_accumulator = c->initial_accumulator,
                          .centered = c->centered,
                          .weight_decay = c->weight_decay,
                          .nesterov = c->nesterov,
                          .decay_bias_norm = c->decay_bias_norm,
                          .pytorch1 = c->pytorch == 1,
                          .share = 1,
                          .ema = cfg->train.ema,
                          .rates_only = cfg->schedule.name == PS_SCHEDULE_PLATEAU};
    if (opt->kind == PS_OPTIMIZER_RMSPROP) opt->beta2 = c->alpha;
    if (opt->kind == PS_OPTIMIZER_MEAN) opt->share = 1.0 / (double)cfg->job.workers;
    opt->n_states = ps_optimizer_own_states(opt) + (opt->ema > 0);
    opt->n_fixed = c->groups.n;
    for (int i = 0; i < c->groups.n; i++) {
        opt->fixed[i].lr = c->groups.v[i].lr;
        opt->fixed[i].weight_decay = c->groups.v[i].weight_decay;
    }
}

double ps_optimizer_decay(const ps_optimizer *opt, ps_tensor_role role)
{
    bool bias_or_norm = role == PS_TENSOR_BIAS || role == PS_TENSOR_BATCHNORM;
    return bias_or_norm && !opt->decay_bias_norm ? 0.0 : opt->weight_decay;
}
