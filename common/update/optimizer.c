#include "optimizer.h"

#include <math.h>
#include <string.h>

#include "optimizer_loops.h"

typedef ps_optimizer_scalars scalars;

ps_optimizer_scalars ps_optimizer_scalars_of(const ps_optimizer *opt,
                                             const ps_optimizer_step *step,
                                             double weight_decay)
{
    double t = (double)step->t;
    scalars k = {.scale = (float)step->grad_scale,
                 .decay = (float)weight_decay,
                 .lr_neg = (float)-step->lr,
                 .momentum = (float)opt->momentum,
                 .damp = (float)(1.0 - opt->dampening),
                 .first = step->t == 1,
                 .nesterov = opt->nesterov};
    if (opt->kind == PS_OPTIMIZER_SGD) return k;
    k.pytorch1 = opt->pytorch1;
    k.beta1 = (float)opt->beta1;
    k.lerp = (float)(1.0 - opt->beta1);
    k.beta2 = (float)opt->beta2;
    k.one_minus_beta2 = (float)(1.0 - opt->beta2);
    k.root_correction = (float)sqrt(1.0 - pow(opt->beta2, t));
    k.eps = (float)opt->eps;
    k.step_size_neg = (float)-(step->lr / (1.0 - pow(opt->beta1, t)));
    if (opt->kind == PS_OPTIMIZER_ADAMW) k.decay = (float)(1.0 - step->lr * weight_decay);
    return k;
}

void ps_optimizer_apply(const ps_optimizer *opt, const ps_optimizer_step *step,
                        double weight_decay, uint64_t n, float *param, const float *grad,
                        float *const *states)
{
    scalars k = ps_optimizer_scalars_of(opt, step, weight_decay);
    float *mine[PS_OPTIMIZER_MAX_STATES] = {NULL, NULL};
    for (int i = 0; i < opt->n_states; i++)
        mine[i] = states[i];
    ps_optimizer_loops(opt->kind, &k, n, param, grad, mine);
}

const char *ps_optimizer_state_name(const ps_optimizer *opt, int i)
{
    if (opt->kind == PS_OPTIMIZER_SGD) return "momentum_buffer";
    return i == 0 ? "exp_avg" : "exp_avg_sq";
}

static ps_err parse_kind(const char *name, ps_optimizer_kind *out)
{
    static const char *const names[] = {"sgd", "adam", "adamw"};
    for (int i = 0; i < 3; i++) {
        *out = (ps_optimizer_kind)i;
        if (strcmp(names[i], name) == 0) return PS_OK;
    }
    return ps_err_set(PS_ERR_CONFIG,
                      "optimizer.name: \"%s\" is not one of sgd, adam, adamw", name);
}

/* What PyTorch's constructors refuse. */
static ps_err check(const ps_optimizer *opt)
{
    if (opt->lr < 0.0)
        return ps_err_set(PS_ERR_CONFIG, "optimizer.lr: %g is below 0", opt->lr);
    if (opt->weight_decay < 0.0)
        return ps_err_set(PS_ERR_CONFIG, "optimizer.weight_decay: %g is below 0",
                          opt->weight_decay);
    if (opt->nesterov && (opt->momentum <= 0.0 || opt->dampening != 0.0))
        return ps_err_set(PS_ERR_CONFIG, "optimizer.nesterov: wants momentum above 0 and "
                                         "no dampening");
    if (opt->beta1 < 0.0 || opt->beta1 >= 1.0 || opt->beta2 < 0.0 || opt->beta2 >= 1.0)
        return ps_err_set(PS_ERR_CONFIG, "optimizer.betas: %g, %g are not in [0, 1)",
                          opt->beta1, opt->beta2);
    return PS_OK;
}

ps_err ps_optimizer_init(ps_optimizer *opt, const ps_config *cfg)
{
    const ps_config_optimizer *c = &cfg->optimizer;
    *opt = (ps_optimizer){.lr = c->lr,
                          .momentum = c->momentum,
                          .dampening = c->dampening,
                          .beta1 = 0.9,
                          .beta2 = 0.999,
                          .eps = c->eps,
                          .weight_decay = c->weight_decay,
                          .nesterov = c->nesterov,
                          .decay_bias_norm = c->decay_bias_norm,
                          .pytorch1 = c->pytorch == 1};
    if (c->betas.n != 0 && c->betas.n != 2)
        return ps_err_set(PS_ERR_CONFIG, "optimizer.betas: two numbers are wanted");
    if (c->betas.n == 2) opt->beta1 = c->betas.v[0], opt->beta2 = c->betas.v[1];
    PS_TRY(parse_kind(c->name, &opt->kind));
    PS_TRY(check(opt));
    opt->n_states = 2;
    if (opt->kind == PS_OPTIMIZER_SGD) opt->n_states = opt->momentum != 0.0;
    return PS_OK;
}

double ps_optimizer_decay(const ps_optimizer *opt, ps_tensor_role role)
{
    bool bias_or_norm = role == PS_TENSOR_BIAS || role == PS_TENSOR_NORM;
    return bias_or_norm && !opt->decay_bias_norm ? 0.0 : opt->weight_decay;
}
