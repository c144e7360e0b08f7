/* Optimizers: one implementation, used by shards and, in all-reduce mode, by workers.
 *
 * Formulas, defaults and roundings are those of PyTorch's single-tensor CPU optimizers
 * (torch/optim): scalars in double, tensors in float32.
 *
 *   SGD    d = g + wd*p; t = 1: buf = d, else buf = mu*buf + (1-damp)*d
 *          nesterov: d + mu*buf, else buf (mu = 0: d); p -= lr*d
 *   Adam   g += wd*p; AdamW: p *= 1 - lr*wd
 *          m += (1-b1)(g-m); PyTorch 1: m = b1*m + (1-b1)g; v = b2*v + (1-b2)g*g
 *          p -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)
 *   RMSprop  g += wd*p; v = a*v + (1-a)g*g; centered: c += (1-a)(g-c), s = v - c*c, else
 *          s = v; momentum: buf = mu*buf + g/(sqrt(s)+eps), p -= lr*buf; without:
 *          p -= lr * g / (sqrt(s)+eps)
 *   Adagrad  g += wd*p; sum += g*g; p -= lr/(1+(t-1)*lr_decay) * g / (sqrt(sum)+eps)
 *   Lion   p *= 1 - lr*wd; p -= lr * sign(b1*m + (1-b1)g); m = b2*m + (1-b2)g
 *          (Chen et al. 2023, arXiv 2302.06675, algorithm 2)
 *   LAMB   lamb.h: a step has two passes, and ps_optimizer_apply makes none
 *
 * With ema, a last array of state is the moving average of p after each step, as
 * torch.optim.swa_utils' AveragedModel with get_ema_multi_avg_fn(ema) has it: p after the
 * first step, then lerp(average, p, 1 - ema).
 *
 * Two kinds make no step, for optimizers that run in the workers: g is the sum of the
 * workers' gradients in rank order, and "new weights" are
 *
 *   sum    p = g
 *   mean   p = g * (1/W), where 1/W is rounded to float32
 */
#ifndef PS_OPTIMIZER_H
#define PS_OPTIMIZER_H

#include "config.h"
#include "tensor.h"

enum { PS_OPTIMIZER_MAX_STATES = 4 };

typedef struct ps_optimizer {
    ps_optimizer_kind kind;
    double lr, momentum, dampening, beta1, beta2, eps,
        weight_decay;                     // RMSprop: a is beta2
    double lr_decay, initial_accumulator; // Adagrad
    bool nesterov, decay_bias_norm;
    bool centered; // RMSprop
    bool pytorch1; // Adam(W), RMSprop: m, c as PyTorch 1 computed them
    double share;  // mean: 1/W; sum: 1
    double ema;    // of the weights; 0: none
    // Arrays of state per parameter: SGD 0, with momentum 1; Adam(W) 2; RMSprop 1, with
    // momentum and centered one more each; Adagrad, Lion 1; LAMB 2. With ema one more.
    // Where parameter groups have optimizers of their own, as many as any of them has.
    int n_states;
    const struct ps_param_groups *groups; // borrowed; NULL: none that a program sets
    bool rates_only; // of the groups' numbers only the rates count (plateau.h)
    /* Of optimizer.groups: tensors of group i + 1. NAN: as the others. */
    int n_fixed;
    struct {
        double lr, weight_decay;
    } fixed[PS_CONFIG_GROUPS_MAX];
} ps_optimizer;

/* What changes from step to step. */
typedef struct ps_optimizer_step {
    double lr;         // from the schedule
    uint64_t t;        // 1 for the first step
    double grad_scale; // the gradient is multiplied by it first (clipping, loss scale);
                       // 1: not at all
    uint64_t step;     // of the job, from 0: skipped ones count
    double fixed_lr[PS_CONFIG_GROUPS_MAX]; // of the optimizer's n_fixed groups
} ps_optimizer_step;

/* PyTorch's word for state array i: "momentum_buffer", "exp_avg", "exp_avg_sq",
 * "square_avg", "grad_avg", "sum"; ours: "ema", always the last. */
const char *ps_optimizer_state_name(const ps_optimizer *opt, int i);

void ps_optimizer_init(ps_optimizer *opt, const ps_config *cfg);

/* The arrays of state that its kind and numbers need, without ema's. */
int ps_optimizer_own_states(const ps_optimizer *opt);

/* Whether it only adds up: sum, mean. */
static inline bool ps_optimizer_adds_up(const ps_optimizer *opt)
{
    return opt->kind == PS_OPTIMIZER_SUM || opt->kind == PS_OPTIMIZER_MEAN;
}

/* The weight decay of a tensor of that role. */
double ps_optimizer_decay(const ps_optimizer *opt, ps_tensor_role role);

/* The scalars that every element of a step uses, rounded once from double as PyTorch
 * does. */
typedef struct ps_optimizer_scalars {
    ps_optimizer_kind kind;
    int n_states;                 // the first ones, which it uses; without ema's
    float scale, decay;           // of the gradient; L2 or 1 - lr*wd
    float lr_neg, momentum, damp; // SGD: -lr, mu, 1 - dampening
    float beta1, lerp, beta2, one_minus_beta2; // Adam; lerp: 1 - beta1
    float root_correction, eps, step_size_neg; // Adam: sqrt(1-b2^t), eps, -lr/(1-b1^t)
    float correction;                          // LAMB: 1 - b1^t
    float accumulator;                         // Adagrad: what the sums begin with
    float ema_lerp;                            // 1 - ema
    bool first, nesterov, pytorch1;
    bool centered, has_momentum; // RMSprop
} ps_optimizer_scalars;

ps_optimizer_scalars ps_optimizer_scalars_of(const ps_optimizer *opt,
                                             const ps_optimizer_step *step,
                                             double weight_decay);

/* The same for the parameters of a group: with its numbers, where the optimizer has
 * groups (param_groups.h) and the step finds some, or has fixed ones; else with lr and
 * weight_decay as given. */
ps_optimizer_scalars ps_optimizer_scalars_in(const ps_optimizer *opt,
                                             const ps_optimizer_step *step, int group,
                                             double weight_decay);

/* One step over n elements. param (n), grad (n, read only), states n_states arrays of
 * (n). Elementwise: any cut of the range gives the same bits. */
void ps_optimizer_apply(const ps_optimizer *opt, const ps_optimizer_step *step,
                        double weight_decay, uint64_t n, float *param, const float *grad,
                        float *const *states);
/* The same with scalars that are computed already: of a group, or for small blocks. */
void ps_optimizer_apply_by(const ps_optimizer *opt, const ps_optimizer_scalars *k,
                           uint64_t n, float *param, const float *grad,
                           float *const *states);

#endif
