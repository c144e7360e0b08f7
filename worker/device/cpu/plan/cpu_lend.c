#include "cpu_lend.h"

/* Whether the backward pass reads the input and the output: their copies are kept for
 * it. */
static bool lend_keeps(const ps_cpu_step *s)
{
    const ps_layer_kind kind = s->node->layer->kind;
    return s->node->relu || kind == PS_LAYER_BATCH_NORM2D ||
           kind == PS_LAYER_INTERACTION || ps_model_is_group_norm(kind) ||
           ps_model_is_activation(kind);
}

static ps_err lend_take(ps_cpu_run *run, bool needed, int v, ps_cpu_loan *loan)
{
    const int64_t count = ps_cpu_shape_count(&run->values[v].shape);
    return ps_memory_plan_take(&run->memory, needed ? sizeof(float) * (size_t)count : 0,
                               &loan->slot);
}

ps_err ps_cpu_lend_plan_forward(ps_cpu_run *run, ps_cpu_step *s)
{
    for (int k = 0; k < PS_CPU_INPUTS; k++)
        s->loan[k].slot = s->loan_grad[k].slot = PS_NO_SLOT;
    s->loan_out_grad.slot = PS_NO_SLOT;
    for (int k = 0; k < s->node->n_in; k++)
        PS_TRY(lend_take(run, s->lends[k], s->node->in[k], &s->loan[k]));
    return lend_take(run, s->lends_out, s->node->out, &s->loan_out);
}

static void lend_give(ps_cpu_run *run, ps_cpu_step *s)
{
    for (int k = 0; k < PS_CPU_INPUTS; k++)
        ps_memory_plan_give(&run->memory, s->loan[k].slot);
    ps_memory_plan_give(&run->memory, s->loan_out.slot);
}

void ps_cpu_lend_give_forward(ps_cpu_run *run, ps_cpu_step *s, bool training)
{
    if (!training || !lend_keeps(s)) lend_give(run, s);
}

ps_err ps_cpu_lend_plan_backward(ps_cpu_run *run, ps_cpu_step *s)
{
    for (int k = 0; k < s->node->n_in; k++) {
        const bool needed = run->graph->edges[s->node->in[k]].needs_grad;
        PS_TRY(lend_take(run, s->lends[k] && needed, s->node->in[k], &s->loan_grad[k]));
    }
    return lend_take(run, s->lends_out, s->node->out, &s->loan_out_grad);
}

void ps_cpu_lend_give_backward(ps_cpu_run *run, ps_cpu_step *s)
{
    for (int k = 0; k < PS_CPU_INPUTS; k++)
        ps_memory_plan_give(&run->memory, s->loan_grad[k].slot);
    ps_memory_plan_give(&run->memory, s->loan_out_grad.slot);
    if (lend_keeps(s)) lend_give(run, s);
}

/* place: of the value, or of its gradient. */
static void lend_put(ps_cpu_loan *loan, void **place)
{
    if (!loan->copy) return;
    loan->own = *place;
    *place = loan->copy;
}

static void take_back(const ps_cpu_loan *loan, void **place)
{
    if (loan->copy) *place = loan->own;
}

/* v: the value, or the value of the gradient, that was lent. */
static void lend_fill(const ps_cpu_run *run, const ps_cpu_loan *loan, int v)
{
    if (loan->copy)
        ps_cpu_widen(run->library->factors, ps_cpu_shape_count(&run->values[v].shape),
                     loan->own, loan->copy);
}

static void lend_keep(const ps_cpu_run *run, const ps_cpu_loan *loan, int v)
{
    if (loan->copy)
        ps_cpu_narrow(run->library->factors, ps_cpu_shape_count(&run->values[v].shape),
                      loan->copy, loan->own);
}

static void lend_put_values(ps_cpu_run *run, ps_cpu_step *s)
{
    for (int k = 0; k < s->node->n_in; k++)
        lend_put(&s->loan[k], &run->values[s->node->in[k]].at);
    lend_put(&s->loan_out, &run->values[s->node->out].at);
}

/* In the reverse order: an output may share its input's memory. */
static void take_values_back(ps_cpu_run *run, ps_cpu_step *s)
{
    take_back(&s->loan_out, &run->values[s->node->out].at);
    for (int k = s->node->n_in - 1; k >= 0; k--)
        take_back(&s->loan[k], &run->values[s->node->in[k]].at);
}

static void lend_put_gradients(ps_cpu_run *run, ps_cpu_step *s)
{
    for (int k = 0; k < s->node->n_in; k++)
        lend_put(&s->loan_grad[k], &run->values[s->node->in[k]].grad);
    lend_put(&s->loan_out_grad, &run->values[s->node->out].grad);
}

static void take_gradients_back(ps_cpu_run *run, ps_cpu_step *s)
{
    take_back(&s->loan_out_grad, &run->values[s->node->out].grad);
    for (int k = s->node->n_in - 1; k >= 0; k--)
        take_back(&s->loan_grad[k], &run->values[s->node->in[k]].grad);
}

void ps_cpu_lend_bind(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_memory_plan *m = &run->memory;
    for (int k = 0; k < PS_CPU_INPUTS; k++) {
        s->loan[k].copy = ps_memory_plan_at(m, s->loan[k].slot);
        s->loan_grad[k].copy = ps_memory_plan_at(m, s->loan_grad[k].slot);
    }
    s->loan_out.copy = ps_memory_plan_at(m, s->loan_out.slot);
    s->loan_out_grad.copy = ps_memory_plan_at(m, s->loan_out_grad.slot);
    lend_put_values(run, s);
    lend_put_gradients(run, s);
}

void ps_cpu_lend_take_back(ps_cpu_run *run, ps_cpu_step *s)
{
    take_gradients_back(run, s);
    take_values_back(run, s);
}

void ps_cpu_lend_forward(ps_cpu_run *run, ps_cpu_step *s)
{
    lend_put_values(run, s);
    for (int k = 0; k < s->node->n_in; k++)
        lend_fill(run, &s->loan[k], s->node->in[k]);
}

void ps_cpu_lend_forward_end(ps_cpu_run *run, ps_cpu_step *s)
{
    lend_keep(run, &s->loan_out, s->node->out);
    take_values_back(run, s);
}

void ps_cpu_lend_backward(ps_cpu_run *run, ps_cpu_step *s)
{
    if (lend_keeps(s)) lend_put_values(run, s);
    lend_put_gradients(run, s);
    lend_fill(run, &s->loan_out_grad, s->node->out);
    for (int k = 0; k < s->node->n_in; k++)
        if (s->add[k]) lend_fill(run, &s->loan_grad[k], s->node->in[k]);
}

void ps_cpu_lend_backward_end(ps_cpu_run *run, ps_cpu_step *s)
{
    for (int k = 0; k < s->node->n_in; k++)
        lend_keep(run, &s->loan_grad[k], s->node->in[k]);
    take_gradients_back(run, s);
    if (lend_keeps(s)) take_values_back(run, s);
}
