#include "cpu_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_activation.h"
#include "cpu_concat.h"
#include "cpu_interaction.h"
#include "cpu_lend.h"
#include "cpu_loss.h"
#include "cpu_narrow.h"
#include "cpu_pointwise.h"
#include "finite.h"
#include "loss_terms.h"
#include "mem.h"
#include "model_spec.h"

ps_err ps_cpu_run_init(ps_cpu_run *run, const ps_program_options *options,
                       const ps_model_graph *graph, int n, const ps_cpu_library *library,
                       const ps_cpu_run *other)
{
    *run = (ps_cpu_run){.n = n, .options = options, .graph = graph, .library = library};
    PS_TRY(PS_NEW(&run->values, (size_t)graph->n_edges, "model"));
    PS_TRY(PS_NEW(&run->steps, (size_t)graph->n_nodes, "model"));
    return ps_cpu_plan(run, other);
}

void ps_cpu_run_fini(ps_cpu_run *run)
{
    for (int i = 0; run->steps && i < run->graph->n_nodes; i++) {
        ps_cpu_step_fini(&run->steps[i]);
    }
    ps_memory_plan_fini(&run->memory, run->library ? run->library->spare : NULL);
    free(run->steps);
    free(run->values);
    *run = (ps_cpu_run){0};
}

/* For a relu that is folded into another step. */
static const ps_layer RELU = {.kind = PS_LAYER_RELU};

static float *cpu_run_gradient(const ps_cpu_run *run, int tensor)
{
    const ps_tensor_table *table = &run->options->spec->table;
    if (!ps_tensor_table_trains(table, tensor)) return NULL;
    return run->options->grads + table->tensors[tensor].offset;
}

/* Calls the hook once for a layer's weight and bias, which are consecutive tensors; not
 * for one that is frozen. */
static ps_err cpu_run_call_hook(const ps_cpu_run *run,
                                ps_err (*hook)(void *, uint64_t, uint64_t), void *ctx,
                                const ps_layer *l)
{
    const ps_tensor_table *table = &run->options->spec->table;
    const bool weight = ps_tensor_table_trains(table, l->weight),
               bias = ps_tensor_table_trains(table, l->bias), both = weight && bias;
    int first = l->weight < l->bias ? l->weight : l->bias;
    if (!hook || (!weight && !bias)) return PS_OK;
    if (!both) first = weight ? l->weight : l->bias;
    uint64_t begin, end;
    ps_tensor_table_range(table, first, both ? 2 : 1, &begin, &end);
    return hook(ctx, begin, end);
}

static ps_err forward_conv(ps_cpu_run *run, ps_cpu_step *s)
{
    return ps_cpu_conv_forward(&s->conv, run->library->stream,
                               ps_cpu_narrow_input(run, s, &s->conv.in));
}

static ps_err forward_norm(ps_cpu_run *run, ps_cpu_step *s, bool training)
{
    const ps_layer *l = s->node->layer;
    int64_t *batches = NULL;
    if (l->num_batches != PS_NONE) {
        const ps_tensor *t = &run->options->spec->table.buffers[l->num_batches];
        batches = (int64_t *)(void *)((char *)run->options->buffers + t->offset);
    }
    return ps_cpu_batchnorm_forward(&s->batchnorm, run->library->stream,
                                    run->values[s->node->in[0]].at, training, batches);
}

static void forward_groupnorm(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_layer *l = s->node->layer;
    ps_cpu_groupnorm_forward(
        &s->groupnorm, run->values[s->node->in[0]].at, ps_cpu_parameter(run, l->weight),
        ps_cpu_parameter(run, l->bias), run->values[s->node->out].at);
}

/* Draws this pass's mask; NULL: nothing is dropped. */
static const uint8_t *draw_mask(ps_cpu_step *s, const ps_batch *batch,
                                const ps_pass *pass)
{
    if (!s->drops || !pass->training) return NULL;
    ps_cpu_dropout_draw(&s->dropout, pass->dropout, batch->positions, s->mask);
    return s->mask;
}

static void forward_dropout(ps_cpu_run *run, ps_cpu_step *s, const uint8_t *mask)
{
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const ps_cpu_value *out = &run->values[s->node->out];
    if (mask)
        ps_cpu_dropout_forward(&s->dropout, mask, in->at, out->at);
    else if (in->at != out->at)
        ps_cpu_pass(ps_cpu_shape_count(&out->shape), in->at, out->at, false);
}

static void forward_max_pool(ps_cpu_run *run, ps_cpu_step *s, const uint8_t *mask)
{
    const float *x = run->values[s->node->in[0]].at;
    float *y = run->values[s->node->out].at;
    if (s->rows)
        ps_cpu_pool_rows_forward(&s->pool, &s->dropout, mask, x, y, s->argmax);
    else
        ps_cpu_max_pool_forward(&s->pool, x, y, s->argmax);
}

static void forward_add(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_cpu_value *a = &run->values[s->node->in[0]];
    const ps_cpu_value *b = &run->values[s->node->in[1]];
    const ps_cpu_value *y = &run->values[s->node->out];
    const float *other = b->at;
    if (ps_cpu_narrow_out(run, s)) {
        ps_cpu_sum_forward_narrow(run->library->factors, ps_cpu_shape_count(&y->shape),
                                  a->at, b->at, y->at, s->node->relu);
        return;
    }
    if (a->shape.lanes != b->shape.lanes) {
        ps_cpu_convert(&b->shape, b->at, &y->shape, y->at, false);
        other = y->at;
    }
    ps_cpu_sum_forward(ps_cpu_shape_count(&y->shape), a->at, other, y->at, s->node->relu);
}

/* How the step's own output lies in memory. */
static ps_cpu_factors output_type(const ps_cpu_run *run, const ps_cpu_step *s)
{
    return ps_cpu_narrow_out(run, s) ? run->library->factors : PS_CPU_FLOAT32;
}

static void forward_concat(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_cpu_value *a = &run->values[s->node->in[0]];
    const ps_cpu_value *b = &run->values[s->node->in[1]];
    const ps_cpu_value *y = &run->values[s->node->out];
    const ps_cpu_factors type = output_type(run, s);
    ps_cpu_concat_forward(type, &a->shape, a->at, &y->shape, 0, y->at);
    ps_cpu_concat_forward(type, &b->shape, b->at, &y->shape, a->shape.c, y->at);
}

static void backward_concat(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_cpu_value *out = &run->values[s->node->out];
    int64_t first = 0;
    for (int k = 0; k < 2; k++) {
        const ps_cpu_value *in = &run->values[s->node->in[k]];
        if (in->grad)
            ps_cpu_concat_backward(output_type(run, s), &out->shape, first, out->grad,
                                   &in->shape, in->grad, s->add[k]);
        first += in->shape.c;
    }
}

static ps_cpu_interaction interaction_of(const ps_cpu_run *run, const ps_cpu_step *s)
{
    const int64_t dim = run->values[s->node->in[0]].shape.c;
    return (ps_cpu_interaction){
        run->n, dim, ps_cpu_shape_features(&run->values[s->node->in[1]].shape) / dim};
}

static void forward_interaction(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_cpu_interaction i = interaction_of(run, s);
    ps_cpu_interaction_forward(&i, run->values[s->node->in[0]].at,
                               run->values[s->node->in[1]].at,
                               run->values[s->node->out].at);
}

static void backward_interaction(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_cpu_value *a = &run->values[s->node->in[0]];
    const ps_cpu_value *b = &run->values[s->node->in[1]];
    const ps_cpu_interaction i = interaction_of(run, s);
    ps_cpu_interaction_backward(&i, a->at, b->at, run->values[s->node->out].grad, a->grad,
                                s->add[0], b->grad, s->add[1]);
}

/* Copies between the batch's rows, (n, dim) of each table, and the layer's value, (n,
 * tables, dim). */
static void cpu_run_copy_rows(const ps_cpu_run *run, const ps_layer *l, float *value,
                              const float *rows, float *grads)
{
    const ps_row_spec *specs = run->options->spec->rows;
    const int64_t width = l->out.d[0];
    uint64_t at = 0;
    for (int t = 0; t < l->first_table; t++)
        at += (uint64_t)run->n * specs[t].dim;
    for (int t = 0; t < l->n_tables; t++) {
        const size_t dim = specs[l->first_table + t].dim;
        for (int64_t i = 0; i < run->n; i++, at += dim) {
            float *own = value + i * width + t * (int64_t)dim;
            memcpy(rows ? own : grads + at, rows ? rows + at : own, dim * sizeof *own);
        }
    }
}

static ps_cpu_linear_range cpu_run_place_of(const ps_cpu_run *run, const ps_layer *l)
{
    ps_cpu_linear_range p;
    ps_tensor_table_range(&run->options->spec->table, l->weight,
                          l->bias == PS_NONE ? 1 : 2, &p.weight, &p.end);
    return p;
}

/* Whether the step's forward pass itself calls params_needed: block by block. */
static bool brings_rows(const ps_cpu_step *s, const ps_pass *pass)
{
    // nan_is_hidden reads the weights first
    return s->linear.forward_rows && !s->before_library_relu && pass->hooks &&
           pass->hooks->params_needed;
}

static ps_err forward_linear(ps_cpu_run *run, ps_cpu_step *s, const ps_pass *pass)
{
    const ps_layer *l = s->node->layer;
    const float *x = run->values[s->node->in[0]].at;
    const float *weight = ps_cpu_parameter(run, l->weight);
    const float *bias = ps_cpu_parameter(run, l->bias);
    float *y = run->values[s->node->out].at;
    if (s->factors != PS_CPU_FLOAT32) return ps_cpu_narrow_linear_forward(run, s);
    if (!brings_rows(s, pass))
        return ps_cpu_linear_forward(&s->linear, x, weight, bias, y, s->node->relu);
    const ps_cpu_linear_range place = cpu_run_place_of(run, l);
    return ps_cpu_linear_rows_forward(&s->linear, pass->hooks, &place, x, weight, bias, y,
                                      s->node->relu);
}

static void forward_activation(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const ps_cpu_value *out = &run->values[s->node->out];
    if (ps_cpu_narrow_out(run, s))
        ps_cpu_activation_forward_narrow(run->library->factors, l, &in->shape, in->at,
                                         out->at);
    else
        ps_cpu_activation_forward(l, &in->shape, in->at, out->at);
}

/* Of the step's layer, or of a relu that is folded into it. v: the values that the
 * gradient is computed of. */
static void backward_activation(ps_cpu_run *run, ps_cpu_step *s, const ps_layer *l,
                                const void *v, void *dx, bool add)
{
    const ps_cpu_value *out = &run->values[s->node->out];
    const int64_t count = ps_cpu_shape_count(&out->shape);
    if (ps_cpu_narrow_out(run, s))
        ps_cpu_activation_backward_narrow(run->library->factors, l, count, v, out->grad,
                                          dx, add);
    else
        ps_cpu_activation_backward(l, count, v, out->grad, dx, add);
}

/* Layers without parameters. */
static ps_err forward_plain(ps_cpu_run *run, ps_cpu_step *s, const uint8_t *mask)
{
    const ps_layer *l = s->node->layer;
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const ps_cpu_value *out = &run->values[s->node->out];
    if (ps_model_is_activation(l->kind)) {
        forward_activation(run, s);
        return PS_OK;
    }
    switch (l->kind) {
    case PS_LAYER_MAX_POOL2D:
        forward_max_pool(run, s, mask);
        return PS_OK;
    case PS_LAYER_AVG_POOL2D:
        ps_cpu_avg_pool_forward(&s->pool, in->at, out->at);
        return PS_OK;
    case PS_LAYER_ADAPTIVE_AVG_POOL2D:
    case PS_LAYER_ADAPTIVE_MAX_POOL2D:
    case PS_LAYER_UPSAMPLE:
        ps_cpu_interpolate_forward(&s->interpolate, in->at, out->at, s->argmax);
        return PS_OK;
    case PS_LAYER_CONCAT:
        forward_concat(run, s);
        return PS_OK;
    case PS_LAYER_EMBEDDING_BAG:
        cpu_run_copy_rows(run, l, out->at, run->batch->rows, NULL);
        return PS_OK;
    case PS_LAYER_INTERACTION:
        forward_interaction(run, s);
        return PS_OK;
    case PS_LAYER_DROPOUT:
        forward_dropout(run, s, mask);
        return PS_OK;
    case PS_LAYER_FLATTEN:
        ps_cpu_convert(&in->shape, in->at, &out->shape, out->at, false);
        return PS_OK;
    case PS_LAYER_ADD:
        forward_add(run, s);
        return PS_OK;
    case PS_LAYER_LOG_SOFTMAX:
        ps_cpu_log_softmax_forward(run->n, in->shape.c, in->at, out->at);
        return PS_OK;
    default:
        return ps_err_set(PS_ERR_INTERNAL, "%s: unknown kind of layer", l->name);
    }
}

static ps_err forward_step(ps_cpu_run *run, ps_cpu_step *s, const ps_batch *batch,
                           const ps_pass *pass)
{
    const ps_layer_kind kind = s->node->layer->kind;
    if (s->view) return PS_OK;
    if (kind == PS_LAYER_CONV2D) return forward_conv(run, s);
    if (kind == PS_LAYER_LINEAR) return forward_linear(run, s, pass);
    if (kind == PS_LAYER_EMBEDDING) {
        ps_cpu_embedding_forward(&s->embedding, run->values[s->node->in[0]].at,
                                 ps_cpu_parameter(run, s->node->layer->weight),
                                 run->values[s->node->out].at);
        return PS_OK;
    }
    if (kind == PS_LAYER_BATCH_NORM2D) return forward_norm(run, s, pass->training);
    if (ps_model_is_group_norm(kind)) {
        forward_groupnorm(run, s);
        return PS_OK;
    }
    return forward_plain(run, s, draw_mask(s, batch, pass));
}

/* Sets the address of the pass's input and of its views. */
static ps_err cpu_run_set_input(ps_cpu_run *run, const ps_batch *batch)
{
    run->batch = batch;
    if (run->options->spec->n_rows > 0 &&
        (!batch->rows || (run->options->training && !batch->row_grads)))
        return ps_err_set(PS_ERR_ARG, "the batch has no rows of the embedding tables");
    for (int v = 0; v < run->graph->n_edges; v++) {
        // No step writes to the model's input.
        if (run->values[v].root == 0) run->values[v].at = (float *)(uintptr_t)batch->x;
    }
    return PS_OK;
}

/* ---- NaN that oneDNN hides ----
 *
 * oneDNN's relu turns NaN into 0; torch's keeps it, which shows that training has
 * diverged. A separate check of every convolution's output would take a twentieth of a
 * step. Samples are finite, so NaN has two sources:
 *
 * - Values between layers that became infinite. The gradient of the weights that read
 *   them is NaN anyway, since 0 times infinity is NaN; exchange.nan=error refuses it.
 * - A parameter that is not finite, from a file or with exchange.nan=allow. Weights in
 *   the middle of a model make the gradients of the layers before them NaN, by the same
 *   rule. Weights of the first layer, and biases, do not, and evaluation has no
 *   gradients: such parameters are checked directly. If one is not finite, the outputs
 *   are known to be NaN without computing them.
 */

static bool nan_is_finite(const ps_cpu_run *run, int tensor)
{
    if (tensor == PS_NONE) return true;
    const ps_tensor *t = ps_tensor_table_at(&run->options->spec->table, tensor);
    return ps_finite_all(ps_cpu_parameter(run, tensor), t->count);
}

static bool nan_has_finite_statistics(const ps_cpu_step *s)
{
    if (s->node->layer->kind != PS_LAYER_BATCH_NORM2D) return true;
    const uint64_t channels = (uint64_t)s->batchnorm.shape.c;
    return ps_finite_all(s->batchnorm_arrays.running_mean, channels) &&
           ps_finite_all(s->batchnorm_arrays.running_variance, channels);
}

/* True when the step has a parameter (in evaluation also a running statistic) that is not
 * finite, one of oneDNN's relus is in this step or after it, and no gradient of this pass
 * shows it. */
static bool nan_is_hidden(const ps_cpu_run *run, const ps_cpu_step *s,
                          const ps_pass *pass)
{
    const ps_layer *l = s->node->layer;
    if (!s->before_library_relu || pass->same_weights) return false; // or checked before
    bool goes_on = pass->training && run->graph->edges[s->node->in[0]].needs_grad;
    return !nan_is_finite(run, l->bias) || (!goes_on && !nan_is_finite(run, l->weight)) ||
           (!pass->training && !nan_has_finite_statistics(s));
}

/* Sets all outputs to NaN. */
static void nan_show(const ps_cpu_run *run)
{
    float *out = run->values[run->graph->output].at;
    for (int64_t i = 0; i < run->n * run->options->spec->n_outputs; i++)
        out[i] = NAN;
}

/* ---- passes ---- */

ps_err ps_cpu_run_forward(ps_cpu_run *run, const ps_batch *batch, const ps_pass *pass,
                          ps_pass_result *result)
{
    const ps_model_spec *spec = run->options->spec;
    const ps_pass_hooks *hooks = pass->hooks;
    PS_TRY(ps_answers_check(spec, batch));
    bool hidden_nan = false;
    PS_TRY(cpu_run_set_input(run, batch));
    for (int i = 0; i < run->graph->n_nodes; i++) {
        ps_cpu_step *s = &run->steps[i];
        if (hooks && !brings_rows(s, pass))
            PS_TRY(
                cpu_run_call_hook(run, hooks->params_needed, hooks->ctx, s->node->layer));
        hidden_nan = hidden_nan || nan_is_hidden(run, s, pass);
        ps_cpu_lend_forward(run, s);
        ps_err err = forward_step(run, s, batch, pass);
        ps_cpu_lend_forward_end(run, s);
        PS_TRY(err);
    }
    if (hidden_nan) nan_show(run);
    if (result)
        ps_cpu_loss_forward(spec, batch, run->values[run->graph->output].at, result);
    return PS_OK;
}

static void backward_loss(ps_cpu_run *run, const ps_batch *batch, const ps_pass *pass)
{
    const ps_model_spec *spec = run->options->spec;
    const ps_model_graph *g = run->graph;
    int producer = g->edges[g->output].producer;
    const ps_cpu_value *out = &run->values[g->output];
    if (producer != PS_NONE && g->nodes[producer].with_loss) {
        float *dx = run->values[g->nodes[producer].in[0]].grad;
        if (dx)
            ps_cpu_nll_log_softmax_backward(spec, batch, out->at, pass->grad_scale, dx);
    } else if (out->grad) {
        ps_cpu_loss_backward(spec, batch, out->at, pass->grad_scale, out->grad);
    }
}

/* Copies or adds a gradient that a primitive wrote to its own memory to where it belongs.
 */
static void finish_gradient(ps_cpu_run *run, ps_cpu_step *s, const ps_cpu_shape *shape,
                            bool narrow_dx)
{
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    if (!s->dx || !in->grad) return;
    const bool narrow = ps_cpu_narrow_in(run, s, 0);
    if (narrow && narrow_dx)
        ps_cpu_pass_narrow(run->library->factors, ps_cpu_shape_count(shape), s->dx,
                           in->grad, s->add[0]);
    else if (narrow)
        ps_cpu_pass_rounded(run->library->factors, ps_cpu_shape_count(shape), s->dx,
                            in->grad, s->add[0]);
    else if (shape->lanes == in->shape.lanes)
        ps_cpu_pass(ps_cpu_shape_count(shape), s->dx, in->grad, s->add[0]);
    else
        ps_cpu_convert(shape, s->dx, &in->shape, in->grad, s->add[0]);
}

static ps_err backward_conv(ps_cpu_run *run, ps_cpu_step *s, bool accumulate)
{
    const ps_layer *l = s->node->layer;
    const void *x = s->x ? s->x : run->values[s->node->in[0]].at;
    ps_cpu_narrow_gradient(run, s);
    PS_TRY(ps_cpu_conv_backward(&s->conv, run->library->stream, x,
                                cpu_run_gradient(run, l->weight),
                                cpu_run_gradient(run, l->bias), accumulate));
    finish_gradient(run, s, &s->conv.in, s->conv.narrow_dx);
    return PS_OK;
}

/* Whether the step's backward pass itself calls grads_ready: block by block. */
static bool announces_rows(const ps_cpu_step *s, const ps_pass *pass)
{
    return s->linear.backward_rows && pass->hooks && pass->hooks->grads_ready;
}

/* The input's gradient first: it reads the weights, and they may be overwritten as soon
 * as the first block is announced. */
static ps_err backward_linear_rows(ps_cpu_run *run, ps_cpu_step *s, const ps_pass *pass)
{
    const ps_layer *l = s->node->layer;
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const float *dy = run->values[s->node->out].grad;
    const ps_cpu_linear_range place = cpu_run_place_of(run, l);
    if (in->grad)
        PS_TRY(ps_cpu_linear_backward_data(&s->linear, ps_cpu_parameter(run, l->weight),
                                           dy, in->grad, s->add[0]));
    return ps_cpu_linear_rows_backward(&s->linear, pass->hooks, &place, in->at, dy,
                                       cpu_run_gradient(run, l->weight),
                                       cpu_run_gradient(run, l->bias), pass->accumulate);
}

static ps_err backward_narrow_linear(ps_cpu_run *run, ps_cpu_step *s, bool accumulate)
{
    const ps_layer *l = s->node->layer;
    PS_TRY(ps_cpu_narrow_linear_backward(run, s, cpu_run_gradient(run, l->weight),
                                         cpu_run_gradient(run, l->bias), accumulate));
    finish_gradient(run, s, &s->conv.in, false);
    return PS_OK;
}

static ps_err backward_linear(ps_cpu_run *run, ps_cpu_step *s, const ps_pass *pass)
{
    const ps_layer *l = s->node->layer;
    if (s->factors != PS_CPU_FLOAT32)
        return backward_narrow_linear(run, s, pass->accumulate);
    if (announces_rows(s, pass)) return backward_linear_rows(run, s, pass);
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const float *dy = run->values[s->node->out].grad;
    PS_TRY(ps_cpu_linear_backward_weights(
        &s->linear, in->at, dy, cpu_run_gradient(run, l->weight),
        cpu_run_gradient(run, l->bias), pass->accumulate));
    if (!in->grad) return PS_OK;
    return ps_cpu_linear_backward_data(&s->linear, ps_cpu_parameter(run, l->weight), dy,
                                       in->grad, s->add[0]);
}

static ps_err backward_norm(ps_cpu_run *run, ps_cpu_step *s, bool accumulate)
{
    const ps_layer *l = s->node->layer;
    PS_TRY(ps_cpu_batchnorm_backward(
        &s->batchnorm, run->library->stream, run->values[s->node->in[0]].at,
        cpu_run_gradient(run, l->weight), cpu_run_gradient(run, l->bias), accumulate,
        s->add[0]));
    finish_gradient(run, s, &s->batchnorm.shape, ps_cpu_narrow_in(run, s, 0));
    return PS_OK;
}

static void backward_groupnorm(ps_cpu_run *run, ps_cpu_step *s, bool accumulate)
{
    const ps_layer *l = s->node->layer;
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    ps_cpu_groupnorm_backward(
        &s->groupnorm, in->at, run->values[s->node->out].grad,
        ps_cpu_parameter(run, l->weight), cpu_run_gradient(run, l->weight),
        cpu_run_gradient(run, l->bias), accumulate, in->grad, s->add[0]);
}

/* Passes the gradient to every input of an ADD, or through a flatten in the layout of its
 * input. */
static void backward_pass_on(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_cpu_value *out = &run->values[s->node->out];
    for (int k = 0; k < s->node->n_in; k++) {
        const ps_cpu_value *in = &run->values[s->node->in[k]];
        if (!in->grad) continue;
        if (ps_cpu_narrow_in(run, s, k))
            ps_cpu_pass_narrow(run->library->factors, ps_cpu_shape_count(&out->shape),
                               out->grad, in->grad, s->add[k]);
        else if (in->shape.lanes == out->shape.lanes || s->view)
            ps_cpu_pass(ps_cpu_shape_count(&out->shape), out->grad, in->grad, s->add[k]);
        else
            ps_cpu_convert(&out->shape, out->grad, &in->shape, in->grad, s->add[k]);
    }
}

static void backward_max_pool(ps_cpu_run *run, ps_cpu_step *s)
{
    const float *dy = run->values[s->node->out].grad;
    float *dx = run->values[s->node->in[0]].grad;
    if (s->rows)
        ps_cpu_pool_rows_backward(&s->pool, &s->dropout, s->drops ? s->mask : NULL, dy,
                                  s->argmax, dx, s->add[0]);
    else
        ps_cpu_max_pool_backward(&s->pool, dy, s->argmax, dx, s->add[0]);
}

/* Layers without parameters; their input, or a row, needs a gradient. */
static ps_err backward_plain(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const ps_cpu_value *out = &run->values[s->node->out];
    if (ps_model_is_activation(l->kind)) {
        const void *v = ps_model_grad_reads_input(l->kind) ? in->at : out->at;
        backward_activation(run, s, l, v, in->grad, s->add[0]);
        return PS_OK;
    }
    switch (l->kind) {
    case PS_LAYER_MAX_POOL2D:
        backward_max_pool(run, s);
        return PS_OK;
    case PS_LAYER_AVG_POOL2D:
        ps_cpu_avg_pool_backward(&s->pool, out->grad, in->grad, s->add[0]);
        return PS_OK;
    case PS_LAYER_ADAPTIVE_AVG_POOL2D:
    case PS_LAYER_ADAPTIVE_MAX_POOL2D:
    case PS_LAYER_UPSAMPLE:
        ps_cpu_interpolate_backward(&s->interpolate, out->grad, s->argmax, in->grad,
                                    s->add[0]);
        return PS_OK;
    case PS_LAYER_CONCAT:
        backward_concat(run, s);
        return PS_OK;
    case PS_LAYER_EMBEDDING_BAG:
        cpu_run_copy_rows(run, l, out->grad, NULL, run->batch->row_grads);
        return PS_OK;
    case PS_LAYER_INTERACTION:
        backward_interaction(run, s);
        return PS_OK;
    case PS_LAYER_DROPOUT:
        ps_cpu_dropout_backward(&s->dropout, s->mask, out->grad, in->grad, s->add[0]);
        return PS_OK;
    case PS_LAYER_LOG_SOFTMAX:
        ps_cpu_log_softmax_backward(run->n, in->shape.c, out->at, out->grad, in->grad,
                                    s->add[0]);
        return PS_OK;
    case PS_LAYER_FLATTEN:
    case PS_LAYER_ADD:
        backward_pass_on(run, s);
        return PS_OK;
    default:
        return ps_err_set(PS_ERR_INTERNAL, "%s: unknown kind of layer", l->name);
    }
}

static ps_err backward_step(ps_cpu_run *run, ps_cpu_step *s, const ps_pass *pass)
{
    const bool accumulate = pass->accumulate;
    const ps_model_node *node = s->node;
    const ps_cpu_value *out = &run->values[node->out];
    ps_layer_kind kind = node->layer->kind;
    if (s->view) {
        backward_pass_on(run, s);
        return PS_OK;
    }
    // batch norm does its relu's gradient too
    if (node->relu && !node->relu_by_pool && kind != PS_LAYER_BATCH_NORM2D)
        backward_activation(run, s, &RELU, out->at, out->grad, false);
    if (kind == PS_LAYER_CONV2D) return backward_conv(run, s, accumulate);
    if (kind == PS_LAYER_LINEAR) return backward_linear(run, s, pass);
    if (kind == PS_LAYER_EMBEDDING) {
        ps_cpu_embedding_backward(&s->embedding, run->values[node->in[0]].at, out->grad,
                                  cpu_run_gradient(run, node->layer->weight), accumulate);
        return PS_OK;
    }
    if (kind == PS_LAYER_BATCH_NORM2D) return backward_norm(run, s, accumulate);
    if (ps_model_is_group_norm(kind)) {
        backward_groupnorm(run, s, accumulate);
        return PS_OK;
    }
    return backward_plain(run, s);
}

static ps_err lent_backward_step(ps_cpu_run *run, ps_cpu_step *s, const ps_pass *pass)
{
    ps_cpu_lend_backward(run, s);
    ps_err err = backward_step(run, s, pass);
    ps_cpu_lend_backward_end(run, s);
    return err;
}

ps_err ps_cpu_run_backward(ps_cpu_run *run, const ps_batch *batch, const ps_pass *pass)
{
    const ps_pass_hooks *hooks = pass->hooks;
    PS_TRY(cpu_run_set_input(run, batch));
    backward_loss(run, batch, pass);
    for (int i = run->graph->n_nodes - 1; i >= 0; i--) {
        ps_cpu_step *s = &run->steps[i];
        if (!run->graph->edges[s->node->out].needs_grad) continue;
        if (!s->node->with_loss) PS_TRY(lent_backward_step(run, s, pass));
        if (hooks && !announces_rows(s, pass))
            PS_TRY(
                cpu_run_call_hook(run, hooks->grads_ready, hooks->ctx, s->node->layer));
    }
    return PS_OK;
}
