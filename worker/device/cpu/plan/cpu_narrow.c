#include "cpu_narrow.h"

#include "layer_precision.h"

ps_cpu_factors ps_cpu_narrow_factors(const ps_cpu_run *run, const ps_model_node *node)
{
    const bool narrow = ps_layer_precision_of(node->layer->kind) == PS_MULTIPLIES_NARROW;
    return narrow ? run->library->factors : PS_CPU_FLOAT32;
}

void ps_cpu_narrow_choose(ps_cpu_run *run)
{
    for (int v = 1; v < run->graph->n_edges; v++)
        run->values[v].narrow = ps_cpu_factors_are_narrow(run->library->factors) &&
                                !ps_edge_stays_float32(run->graph, v);
}

/* Whether all values of the step have 16 bits. */
static bool is_narrow(const ps_cpu_run *run, const ps_cpu_step *s)
{
    bool all = run->values[s->node->out].narrow;
    for (int k = 0; k < s->node->n_in; k++)
        all = all && run->values[s->node->in[k]].narrow;
    return all;
}

/* The same, in one layout. */
static bool is_uniform(const ps_cpu_run *run, const ps_cpu_step *s)
{
    bool all = is_narrow(run, s);
    for (int k = 0; k < s->node->n_in; k++)
        all = all && ps_cpu_shape_same_lanes(&run->values[s->node->in[k]].shape,
                                             &run->values[s->node->out].shape);
    return all;
}

/* Whether the step, as it was planned, has code for the narrow values that it reads. */
static bool takes_inputs(const ps_cpu_run *run, const ps_cpu_step *s)
{
    const ps_cpu_shape *in = &run->values[s->node->in[0]].shape;
    const ps_layer_kind kind = s->node->layer->kind;
    if (ps_model_is_activation(kind)) return is_uniform(run, s);
    switch (kind) {
    case PS_LAYER_CONV2D:
        return ps_cpu_shape_same_lanes(in, &s->conv.in);
    case PS_LAYER_LINEAR:
        return ps_cpu_factors_are_narrow(s->factors) && ps_cpu_shape_is_plain(in);
    case PS_LAYER_BATCH_NORM2D:
        return is_uniform(run, s) && !s->batchnorm.own;
    case PS_LAYER_CONCAT:
        return is_narrow(run, s);
    case PS_LAYER_ADD:
        return is_uniform(run, s);
    default:
        return s->view && is_uniform(run, s);
    }
}

void ps_cpu_narrow_lend(const ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_layer_kind kind = s->node->layer->kind;
    const bool takes = takes_inputs(run, s);
    for (int k = 0; k < s->node->n_in; k++)
        s->lends[k] = run->values[s->node->in[k]].narrow && !takes;
    const bool out = kind == PS_LAYER_CONV2D ? ps_cpu_factors_are_narrow(s->factors)
                                             : takes && kind != PS_LAYER_LINEAR;
    s->lends_out = run->values[s->node->out].narrow && !out;
}

bool ps_cpu_narrow_in(const ps_cpu_run *run, const ps_cpu_step *s, int k)
{
    return run->values[s->node->in[k]].narrow && !s->lends[k];
}

bool ps_cpu_narrow_out(const ps_cpu_run *run, const ps_cpu_step *s)
{
    return run->values[s->node->out].narrow && !s->lends_out;
}

ps_err ps_cpu_narrow_plan_input(ps_cpu_run *run, ps_cpu_step *s,
                                const ps_cpu_shape *wanted)
{
    const ps_cpu_shape *in = &run->values[s->node->in[0]].shape;
    const size_t count = (size_t)ps_cpu_shape_count(wanted);
    const bool same = ps_cpu_shape_same_lanes(in, wanted),
               narrow = s->factors != PS_CPU_FLOAT32;
    if (ps_cpu_narrow_in(run, s, 0) && ps_cpu_factors_are_narrow(s->factors))
        return PS_OK;
    if (same && !narrow) return PS_OK;
    PS_TRY(ps_memory_plan_take(&run->memory, count * ps_cpu_factor_bytes(s->factors),
                               &s->slot_x));
    if (same || !narrow) return PS_OK;
    PS_TRY(ps_memory_plan_take(&run->memory, count * sizeof(float), &s->slot_turned_x));
    ps_memory_plan_give(&run->memory, s->slot_turned_x);
    return PS_OK;
}

const void *ps_cpu_narrow_input(const ps_cpu_run *run, const ps_cpu_step *s,
                                const ps_cpu_shape *wanted)
{
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const float *x = in->at;
    if (!s->x) return in->at;
    if (ps_cpu_narrow_in(run, s, 0)) { // they have been rounded
        ps_cpu_widen(run->library->factors, ps_cpu_shape_count(wanted), in->at, s->x);
        return s->x;
    }
    float *turned = s->factors == PS_CPU_FLOAT32
                        ? s->x
                        : ps_memory_plan_at(&run->memory, s->slot_turned_x);
    if (turned) {
        ps_cpu_convert(&in->shape, x, wanted, turned, false);
        x = turned;
    }
    if (s->factors != PS_CPU_FLOAT32)
        ps_cpu_narrow(s->factors, ps_cpu_shape_count(wanted), x, s->x);
    return s->x;
}

const void *ps_cpu_narrow_gradient(const ps_cpu_run *run, const ps_cpu_step *s)
{
    const ps_cpu_value *out = &run->values[s->node->out];
    if (!s->dy) return out->grad;
    ps_cpu_narrow(s->factors, ps_cpu_shape_count(&out->shape), out->grad, s->dy);
    return s->dy;
}

ps_err ps_cpu_narrow_linear_forward(const ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const float *weight = ps_cpu_parameter(run, l->weight);
    const float *bias = ps_cpu_parameter(run, l->bias);
    float *y = run->values[s->node->out].at;
    const void *x = ps_cpu_narrow_input(run, s, &in->shape);
    if (ps_cpu_factors_are_rounded(s->factors)) {
        ps_cpu_narrow(s->factors, s->linear.out * s->linear.in, weight, s->weights);
        return ps_cpu_linear_forward(&s->linear, x, s->weights, bias, y, s->node->relu);
    }
    PS_TRY(ps_cpu_conv_forward(&s->conv, run->library->stream, x));
    // the library's relu would turn NaN into 0
    ps_cpu_linear_forward_end(&s->linear, bias, y, s->node->relu);
    return PS_OK;
}

ps_err ps_cpu_narrow_linear_backward(const ps_cpu_run *run, ps_cpu_step *s,
                                     float *dweight, float *dbias, bool accumulate)
{
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const void *dy = ps_cpu_narrow_gradient(run, s);
    if (dbias)
        ps_cpu_linear_backward_bias(&s->linear, run->values[s->node->out].grad, dbias,
                                    accumulate);
    if (ps_cpu_factors_are_narrow(s->factors))
        return ps_cpu_conv_backward(&s->conv, run->library->stream, s->x ? s->x : in->at,
                                    dweight, NULL, accumulate);
    PS_TRY(
        ps_cpu_linear_backward_weights(&s->linear, s->x, dy, dweight, NULL, accumulate));
    if (!in->grad) return PS_OK;
    return ps_cpu_linear_backward_data(&s->linear, s->weights, dy, in->grad, s->add[0]);
}
