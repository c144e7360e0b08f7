#include "cpu_plan.h"

#include "cpu_concat.h"
#include "cpu_lend.h"
#include "cpu_narrow.h"
#include "log.h"

static size_t cpu_plan_value_bytes(const ps_cpu_value *v)
{
    const size_t element = v->narrow ? sizeof(uint16_t) : sizeof(float);
    return element * (size_t)ps_cpu_shape_count(&v->shape);
}

static ps_cpu_pool pool_of(const ps_layer *l, const ps_cpu_shape *in,
                           const ps_cpu_shape *out)
{
    ps_cpu_pool p = {.in = *in, .out = *out};
    for (int i = 0; i < 2; i++) {
        p.kernel[i] = l->kernel[i];
        p.stride[i] = l->stride[i];
        p.padding[i] = l->padding[i];
    }
    return p;
}

static ps_cpu_dropout dropout_of(const ps_layer *l, const ps_cpu_shape *shape)
{
    return (ps_cpu_dropout){*shape, l->p, (uint32_t)l->dropout_id};
}

/* The node that produces the step's first input; PS_NONE: the model's input. */
static int producer_of(const ps_cpu_run *run, const ps_cpu_step *s)
{
    return run->graph->edges[s->node->in[0]].producer;
}

/* Whether the step also does the dropout after it. */
static bool is_joined(const ps_cpu_run *run, int node)
{
    const ps_cpu_step *s = &run->steps[node];
    return s->drops && s->node->layer->kind == PS_LAYER_MAX_POOL2D;
}

/* A max_pool2d whose only reader is a flatten, possibly after a dropout, writes its
 * output in row-major order. It does the dropout too; the dropout is then a view. */
static void join_flatten(const ps_cpu_run *run, ps_cpu_step *s, ps_cpu_shape *out)
{
    const ps_model_graph *g = run->graph;
    const ps_model_edge *edge = &g->edges[s->node->out];
    const ps_layer *after = NULL;
    if (edge->n_readers == 1 && edge->last_reader < g->n_nodes) {
        const ps_model_node *reader = &g->nodes[edge->last_reader];
        if (reader->layer->kind == PS_LAYER_DROPOUT && g->edges[reader->out].flat_reader)
            after = reader->layer;
    }
    s->rows = (after || edge->flat_reader) && !ps_cpu_shape_is_plain(&s->pool.in) &&
              ps_cpu_pool_rows_fit(&s->pool);
    if (!s->rows) return;
    *out = ps_cpu_shape_make(run->n, &s->node->layer->out, 1);
    s->pool.out = *out;
    s->drops = after != NULL;
    if (after) s->dropout = dropout_of(after, out);
}

/* Whether oneDNN does the node's relu: after a convolution without a following pool, or
 * after batch norm. */
static bool has_library_relu(const ps_model_node *node)
{
    ps_layer_kind kind = node->layer->kind;
    return node->relu && !node->relu_by_pool &&
           (kind == PS_LAYER_CONV2D || kind == PS_LAYER_BATCH_NORM2D);
}

static void mark_library_relus(ps_cpu_run *run)
{
    bool later = false;
    for (int i = run->graph->n_nodes - 1; i >= 0; i--) {
        later |= has_library_relu(run->steps[i].node);
        run->steps[i].before_library_relu = later;
    }
}

/* Whether the step has a backward pass. */
static bool goes_back(const ps_cpu_run *run, const ps_cpu_step *s)
{
    return run->options->training && run->graph->edges[s->node->out].needs_grad;
}

static ps_err init_conv(ps_cpu_run *run, ps_cpu_step *s, const ps_cpu_shape *in,
                        ps_cpu_shape *out)
{
    const ps_model_edge *edge = &run->graph->edges[s->node->in[0]];
    const ps_cpu_conv_use use = {
        .relu = has_library_relu(s->node),
        .training = goes_back(run, s),
        .data_gradient = edge->needs_grad,
        .winograd = run->library->winograd,
        .factors = s->factors,
        .narrow_y = ps_cpu_narrow_out(run, s),
        // a part of a sum is not rounded before it is added
        .narrow_dx = ps_cpu_narrow_in(run, s, 0) && edge->n_readers == 1,
    };
    PS_TRY(ps_cpu_conv_init(&s->conv, run->library->engine, s->node->layer, in, &use));
    s->factors = s->conv.factors;
    *out = s->conv.out;
    return PS_OK;
}

static ps_err cpu_plan_init_norm(ps_cpu_run *run, ps_cpu_step *s, const ps_cpu_shape *in)
{
    const ps_cpu_batchnorm_use use = {
        .relu = has_library_relu(s->node),
        .training = run->options->training,
        .type = ps_cpu_narrow_in(run, s, 0) ? run->library->factors : PS_CPU_FLOAT32};
    return ps_cpu_batchnorm_init(&s->batchnorm, run->library->engine, s->node->layer, in,
                                 &use);
}

static void init_pool(ps_cpu_run *run, ps_cpu_step *s, const ps_cpu_shape *in,
                      ps_cpu_shape *out)
{
    const int before = producer_of(run, s);
    s->pool = pool_of(s->node->layer, in, out);
    s->pool.with_relu = before != PS_NONE && run->graph->nodes[before].relu_by_pool;
    if (s->node->layer->kind == PS_LAYER_MAX_POOL2D) join_flatten(run, s, out);
}

static void init_dropout(ps_cpu_run *run, ps_cpu_step *s, const ps_cpu_shape *in)
{
    const int before = producer_of(run, s);
    s->view = before != PS_NONE && is_joined(run, before);
    s->drops = !s->view;
    s->dropout = dropout_of(s->node->layer, in);
}

/* Makes primitives for products of 16 bits, where the library has fast ones; elsewhere
 * float32's products take rounded factors. */
static ps_err init_narrow_linear(ps_cpu_run *run, ps_cpu_step *s, const ps_cpu_shape *in)
{
    const ps_cpu_conv_use use = {
        .training = goes_back(run, s),
        .data_gradient = run->graph->edges[s->node->in[0]].needs_grad,
        .factors = s->factors,
    };
    if (ps_cpu_factors_are_rounded(s->factors)) return PS_OK;
    ps_err err =
        ps_cpu_conv_init(&s->conv, run->library->engine, s->node->layer, in, &use);
    if (err != PS_ERR_UNSUPPORTED) return err;
    s->factors = ps_cpu_factors_rounded(s->factors);
    return PS_OK;
}

static ps_err init_linear(ps_cpu_run *run, ps_cpu_step *s, const ps_cpu_shape *in,
                          const ps_cpu_shape *out)
{
    const ps_layer *l = s->node->layer;
    s->linear = (ps_cpu_linear){.name = l->name, .n = run->n, .in = in->c, .out = out->c};
    if (s->factors != PS_CPU_FLOAT32) return init_narrow_linear(run, s, in);
    // a block's range ends with the bias
    const ps_tensor_table *table = &run->options->spec->table;
    const bool together = l->bias == PS_NONE || l->bias == l->weight + 1;
    const bool trains = ps_tensor_table_trains(table, l->weight) &&
                        (l->bias == PS_NONE || ps_tensor_table_trains(table, l->bias));
    if (!run->options->training || !together || !trains) return PS_OK;
    return ps_cpu_linear_rows_choose(&s->linear, run->options->row_bytes);
}

static ps_cpu_embedding embedding_of(const ps_cpu_run *run, const ps_layer *l)
{
    const ps_model_spec *spec = run->options->spec;
    return (ps_cpu_embedding){.n = run->n,
                              .in = l->in.d[0],
                              .width =
                                  ps_tensor_table_at(&spec->table, l->weight)->dims.d[1],
                              .n_columns = spec->n_categories,
                              .rows = spec->categories};
}

/* Sets up the layer and its primitives. out has the layer's usual layout; some layers
 * change it. */
static ps_err init_layer(ps_cpu_run *run, ps_cpu_step *s, const ps_cpu_shape *in,
                         ps_cpu_shape *out)
{
    const ps_layer *l = s->node->layer;
    switch (l->kind) {
    case PS_LAYER_CONV2D:
        return init_conv(run, s, in, out);
    case PS_LAYER_BATCH_NORM2D:
        return cpu_plan_init_norm(run, s, in);
    case PS_LAYER_GROUP_NORM:
    case PS_LAYER_LAYER_NORM:
        s->groupnorm = ps_cpu_groupnorm_of(l, in);
        return PS_OK;
    case PS_LAYER_MAX_POOL2D:
    case PS_LAYER_AVG_POOL2D:
        init_pool(run, s, in, out);
        return PS_OK;
    case PS_LAYER_ADAPTIVE_AVG_POOL2D:
    case PS_LAYER_ADAPTIVE_MAX_POOL2D:
    case PS_LAYER_UPSAMPLE:
        s->interpolate = (ps_cpu_interpolate){*in, *out, l->mode};
        return PS_OK;
    case PS_LAYER_CONCAT:
        *out = ps_cpu_shape_make(
            run->n, &l->out,
            ps_cpu_concat_lanes(in, l->out.d[0], run->values[s->node->out].narrow));
        return PS_OK;
    case PS_LAYER_DROPOUT:
        init_dropout(run, s, in);
        return PS_OK;
    case PS_LAYER_LINEAR:
        return init_linear(run, s, in, out);
    case PS_LAYER_EMBEDDING:
        s->embedding = embedding_of(run, l);
        return PS_OK;
    case PS_LAYER_FLATTEN:
        s->view = ps_cpu_shape_is_plain(in);
        return PS_OK;
    default:
        return PS_OK;
    }
}

static bool same_type(const ps_cpu_run *run, const ps_cpu_step *s)
{
    return run->values[s->node->in[0]].narrow == run->values[s->node->out].narrow;
}

/* Whether the primitives were made for the types that the step will see. */
static bool has_its_types(const ps_cpu_run *run, const ps_cpu_step *s)
{
    const ps_layer_kind kind = s->node->layer->kind;
    const bool made = kind == PS_LAYER_CONV2D || kind == PS_LAYER_BATCH_NORM2D;
    return !made || !(s->lends[0] || s->lends_out);
}

/* Decides the output's layout, and whether it takes memory of its own. */
static ps_err init_step(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cpu_shape *in = &run->values[s->node->in[0]].shape;
    ps_cpu_shape *out = &run->values[s->node->out].shape;
    const bool rows = l->kind == PS_LAYER_FLATTEN || l->kind == PS_LAYER_LINEAR ||
                      l->kind == PS_LAYER_EMBEDDING_BAG ||
                      l->kind == PS_LAYER_INTERACTION;
    *out = ps_cpu_shape_make(run->n, &l->out, rows ? 1 : in->lanes);
    s->factors = ps_cpu_narrow_factors(run, s->node);
    PS_TRY(init_layer(run, s, in, out));
    ps_cpu_narrow_lend(run, s);
    if (!has_its_types(run, s)) { // made again, for what it will be lent
        ps_cpu_step_fini(s);
        s->factors = ps_cpu_narrow_factors(run, s->node);
        PS_TRY(init_layer(run, s, in, out));
    }
    s->view = s->view && same_type(run, s);
    s->in_place = ps_model_graph_in_place(run->graph, s->node) &&
                  ps_cpu_shape_same_lanes(in, out) && same_type(run, s);
    return PS_OK;
}

static ps_err take_output(ps_cpu_run *run, ps_cpu_step *s)
{
    ps_cpu_value *in = &run->values[s->node->in[0]], *out = &run->values[s->node->out];
    out->root = s->node->out;
    if (!s->view && !s->in_place)
        return ps_memory_plan_take(&run->memory, cpu_plan_value_bytes(out), &out->slot);
    out->root = in->root;
    ps_cpu_value *root = &run->values[in->root];
    if (out->last_reader > root->last_reader) root->last_reader = out->last_reader;
    return PS_OK;
}

/* Whether oneDNN's primitives compute the step's products. */
static bool has_primitives(const ps_cpu_step *s)
{
    const ps_layer_kind kind = s->node->layer->kind;
    return kind == PS_LAYER_CONV2D ||
           (kind == PS_LAYER_LINEAR && ps_cpu_factors_are_narrow(s->factors));
}

static ps_err take_turned(ps_cpu_run *run, ps_cpu_step *s)
{
    PS_TRY(ps_memory_plan_take(&run->memory, ps_cpu_linear_turned_bytes(&s->linear),
                               &s->slot_turned));
    ps_memory_plan_give(&run->memory, s->slot_turned);
    return PS_OK;
}

static ps_err take_rounded_weights(ps_cpu_run *run, ps_cpu_step *s)
{
    const size_t bytes = sizeof(float) * (size_t)(s->linear.in * s->linear.out);
    PS_TRY(ps_memory_plan_take(&run->memory, bytes, &s->slot_weights));
    PS_TRY(take_turned(run, s));
    if (!goes_back(run, s)) ps_memory_plan_give(&run->memory, s->slot_weights);
    return PS_OK;
}

/* A CONV2D, or a LINEAR of narrow factors. */
static ps_err take_products(ps_cpu_run *run, ps_cpu_step *s)
{
    const bool own = has_primitives(s), training = goes_back(run, s);
    const ps_cpu_shape *in = &run->values[s->node->in[0]].shape;
    PS_TRY(ps_cpu_narrow_plan_input(run, s, own ? &s->conv.in : in));
    PS_TRY(own ? ps_cpu_conv_plan_forward(&s->conv, &run->memory, training)
               : take_rounded_weights(run, s));
    if (!training) ps_memory_plan_give(&run->memory, s->slot_x);
    return PS_OK;
}

static void give_groupnorm(ps_memory_plan *m, ps_cpu_step *s)
{
    if (!ps_model_is_group_norm(s->node->layer->kind)) return;
    ps_memory_plan_give(m, s->groupnorm.slot_channels);
    ps_memory_plan_give(m, s->groupnorm.slot_sums);
}

static ps_err take_groupnorm(ps_memory_plan *m, ps_cpu_step *s, bool back)
{
    ps_cpu_groupnorm *g = &s->groupnorm;
    PS_TRY(ps_memory_plan_take(m, ps_cpu_groupnorm_channel_bytes(g), &g->slot_channels));
    PS_TRY(ps_memory_plan_take(m, ps_cpu_groupnorm_sum_bytes(g), &g->slot_sums));
    if (!back) give_groupnorm(m, s);
    return PS_OK;
}

/* 0: the layer takes no maxima. */
static size_t argmax_bytes(const ps_cpu_step *s)
{
    const ps_layer_kind kind = s->node->layer->kind;
    if (kind == PS_LAYER_MAX_POOL2D) return ps_cpu_pool_argmax_bytes(&s->pool);
    if (kind != PS_LAYER_ADAPTIVE_MAX_POOL2D) return 0;
    return sizeof *s->argmax * (size_t)ps_cpu_shape_count(&s->interpolate.out);
}

static ps_err take_forward(ps_cpu_run *run, ps_cpu_step *s)
{
    ps_memory_plan *m = &run->memory;
    bool training = run->options->training;
    ps_layer_kind kind = s->node->layer->kind;
    if (kind == PS_LAYER_CONV2D || s->factors != PS_CPU_FLOAT32) {
        PS_TRY(take_products(run, s));
    } else if (kind == PS_LAYER_BATCH_NORM2D) {
        PS_TRY(ps_cpu_batchnorm_plan_forward(&s->batchnorm, m, training));
    } else if (ps_model_is_group_norm(s->node->layer->kind)) {
        PS_TRY(take_groupnorm(m, s, goes_back(run, s)));
    } else if (kind == PS_LAYER_LINEAR) {
        PS_TRY(take_turned(run, s));
    } else if (argmax_bytes(s) > 0) {
        PS_TRY(ps_memory_plan_take(m, argmax_bytes(s), &s->slot_argmax));
        if (!training) ps_memory_plan_give(m, s->slot_argmax);
    }
    if (!s->drops || !training) return PS_OK;
    return ps_memory_plan_take(m, ps_cpu_dropout_mask_bytes(&s->dropout), &s->slot_mask);
}

/* Without a backward pass, a value's slot is free after its last reader. */
static void give_read_values(ps_cpu_run *run, int node)
{
    if (run->options->training) return;
    for (int v = 1; v < run->graph->n_edges; v++) {
        const ps_cpu_value *value = &run->values[v];
        if (value->root == v && value->slot != PS_NO_SLOT && value->last_reader == node)
            ps_memory_plan_give(&run->memory, value->slot);
    }
}

/* Whether the step's input gradient may be written over its output gradient. */
static bool gradient_in_place(const ps_cpu_run *run, const ps_cpu_step *s, int k)
{
    const ps_cpu_shape *in = &run->values[s->node->in[k]].shape;
    const ps_cpu_shape *out = &run->values[s->node->out].shape;
    const ps_layer_kind kind = s->node->layer->kind;
    if (run->values[s->node->in[k]].narrow != run->values[s->node->out].narrow)
        return false;
    if (s->view) return true;
    if (ps_model_is_activation(kind)) return ps_cpu_shape_same_lanes(in, out);
    switch (kind) {
    case PS_LAYER_DROPOUT:
    case PS_LAYER_LOG_SOFTMAX:
    case PS_LAYER_BATCH_NORM2D:
    case PS_LAYER_GROUP_NORM:
    case PS_LAYER_LAYER_NORM:
    case PS_LAYER_ADD:
        return ps_cpu_shape_same_lanes(in, out);
    default:
        return false;
    }
}

/* Takes memory for dx when the primitive can't add to it, or writes another layout or
 * type. The library's batch norm always writes dx, even when it is not needed. */
static ps_err take_library_gradient(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const bool narrow = ps_cpu_narrow_in(run, s, 0);
    ps_cpu_value wanted = {.shape = in->shape, .narrow = narrow};
    ps_layer_kind kind = s->node->layer->kind;
    if (has_primitives(s)) wanted.shape = s->conv.in, wanted.narrow = s->conv.narrow_dx;
    if (!has_primitives(s) && kind != PS_LAYER_BATCH_NORM2D) return PS_OK;
    if (kind == PS_LAYER_BATCH_NORM2D && s->batchnorm.own) return PS_OK;
    bool needed = run->graph->edges[s->node->in[0]].needs_grad;
    if (!needed && has_primitives(s)) return PS_OK;
    if (needed && !s->add[0] && ps_cpu_shape_same_lanes(&in->shape, &wanted.shape) &&
        narrow == wanted.narrow)
        return PS_OK;
    return ps_memory_plan_take(&run->memory, cpu_plan_value_bytes(&wanted), &s->slot_dx);
}

static ps_err take_gradients(ps_cpu_run *run, ps_cpu_step *s)
{
    ps_cpu_value *out = &run->values[s->node->out];
    bool taken_over = false;
    PS_TRY(ps_cpu_lend_plan_backward(run, s));
    for (int k = 0; k < s->node->n_in; k++) {
        int v = s->node->in[k];
        ps_cpu_value *in = &run->values[v];
        if (!run->graph->edges[v].needs_grad) continue;
        s->add[k] = in->grad_slot != PS_NO_SLOT;
        if (s->add[k]) continue;
        if (!taken_over && gradient_in_place(run, s, k)) {
            in->grad_slot = out->grad_slot;
            taken_over = true;
            continue;
        }
        PS_TRY(
            ps_memory_plan_take(&run->memory, cpu_plan_value_bytes(in), &in->grad_slot));
    }
    PS_TRY(take_library_gradient(run, s));
    const bool factors = ps_cpu_narrow_out(run, s) ||
                         (s->lends_out && ps_cpu_factors_are_rounded(s->factors));
    if (s->factors != PS_CPU_FLOAT32 && !factors)
        PS_TRY(ps_memory_plan_take(&run->memory,
                                   (size_t)ps_cpu_shape_count(&out->shape) *
                                       ps_cpu_factor_bytes(s->factors),
                                   &s->slot_dy));
    if (has_primitives(s)) PS_TRY(ps_cpu_conv_plan_backward(&s->conv, &run->memory));
    if (s->node->layer->kind == PS_LAYER_BATCH_NORM2D)
        PS_TRY(ps_cpu_batchnorm_plan_backward(&s->batchnorm, &run->memory));
    if (!taken_over) ps_memory_plan_give(&run->memory, out->grad_slot);
    return PS_OK;
}

static void give_step(ps_cpu_run *run, ps_cpu_step *s)
{
    ps_memory_plan *m = &run->memory;
    const ps_cpu_value *out = &run->values[s->node->out];
    const ps_cpu_value *last = &run->values[run->graph->output];
    ps_memory_plan_give(m, s->slot_dx);
    ps_memory_plan_give(m, s->slot_x);
    ps_memory_plan_give(m, s->slot_dy);
    ps_memory_plan_give(m, s->slot_weights);
    ps_memory_plan_give(m, s->slot_mask);
    ps_memory_plan_give(m, s->slot_argmax);
    if (goes_back(run, s)) give_groupnorm(m, s);
    if (out->root == s->node->out && out->root != last->root)
        ps_memory_plan_give(m, out->slot);
}

static ps_err cpu_plan_backward(ps_cpu_run *run)
{
    const ps_model_graph *g = run->graph;
    int first = g->output;
    int producer = g->edges[first].producer;
    if (producer != PS_NONE && g->nodes[producer].with_loss)
        first = g->nodes[producer].in[0];
    ps_cpu_value *v = &run->values[first];
    if (g->edges[first].needs_grad)
        PS_TRY(ps_memory_plan_take(&run->memory, cpu_plan_value_bytes(v), &v->grad_slot));
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        ps_cpu_step *s = &run->steps[i];
        if (g->edges[s->node->out].needs_grad && !s->node->with_loss)
            PS_TRY(take_gradients(run, s));
        if (goes_back(run, s)) ps_cpu_lend_give_backward(run, s);
        give_step(run, s);
    }
    return PS_OK;
}

static ps_err plan_passes(ps_cpu_run *run)
{
    const ps_model_graph *g = run->graph;
    run->values[0].shape = ps_cpu_shape_make(run->n, &g->edges[0].dims, 1);
    for (int v = 0; v < g->n_edges; v++) {
        run->values[v].slot = run->values[v].grad_slot = PS_NO_SLOT;
        run->values[v].last_reader = g->edges[v].last_reader;
        run->values[v].root = v;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        ps_cpu_step *s = &run->steps[i];
        s->node = &g->nodes[i];
        s->slot_x = s->slot_dx = s->slot_dy = PS_NO_SLOT;
        s->slot_turned_x = s->slot_weights = PS_NO_SLOT;
        s->slot_mask = s->slot_argmax = s->slot_turned = PS_NO_SLOT;
        PS_TRY(init_step(run, s));
        PS_TRY(take_output(run, s));
        PS_TRY(ps_cpu_lend_plan_forward(run, s));
        PS_TRY(take_forward(run, s));
        ps_cpu_lend_give_forward(run, s, goes_back(run, s));
        give_read_values(run, i);
    }
    mark_library_relus(run);
    return run->options->training ? cpu_plan_backward(run) : PS_OK;
}

float *ps_cpu_parameter(const ps_cpu_run *run, int tensor)
{
    const ps_tensor_table *table = &run->options->spec->table;
    if (tensor == PS_NONE) return NULL;
    const uint64_t offset = ps_tensor_table_at(table, tensor)->offset;
    if (ps_tensor_table_trains(table, tensor)) return run->options->params + offset;
    return (float *)(void *)((char *)run->options->buffers + offset);
}

static float *cpu_plan_buffer(const ps_cpu_run *run, int tensor)
{
    if (tensor == PS_NONE) return NULL;
    return (float *)((char *)run->options->buffers +
                     run->options->spec->table.buffers[tensor].offset);
}

static ps_err bind_step(ps_cpu_run *run, ps_cpu_step *s)
{
    const ps_memory_plan *m = &run->memory;
    const ps_cpu_value *in = &run->values[s->node->in[0]];
    const ps_cpu_value *out = &run->values[s->node->out];
    const ps_layer *l = s->node->layer;
    s->x = ps_memory_plan_at(m, s->slot_x);
    s->dx = ps_memory_plan_at(m, s->slot_dx);
    s->mask = ps_memory_plan_at(m, s->slot_mask);
    s->argmax = ps_memory_plan_at(m, s->slot_argmax);
    s->linear.turned = ps_memory_plan_at(m, s->slot_turned);
    s->dy = ps_memory_plan_at(m, s->slot_dy);
    s->weights = ps_memory_plan_at(m, s->slot_weights);
    if (ps_model_is_group_norm(s->node->layer->kind)) {
        s->groupnorm.channels = ps_memory_plan_at(m, s->groupnorm.slot_channels);
        s->groupnorm.sums = ps_memory_plan_at(m, s->groupnorm.slot_sums);
    }
    void *dx = s->dx ? s->dx : in->grad;
    if (has_primitives(s)) {
        const bool conv = l->kind == PS_LAYER_CONV2D;
        const ps_cpu_conv_arrays arrays = {s->x ? s->x : in->at,
                                           out->at,
                                           s->dy ? s->dy : out->grad,
                                           dx,
                                           ps_cpu_parameter(run, l->weight),
                                           conv ? ps_cpu_parameter(run, l->bias) : NULL};
        return ps_cpu_conv_bind(&s->conv, m, &arrays);
    }
    if (l->kind != PS_LAYER_BATCH_NORM2D) return PS_OK;
    s->batchnorm_arrays = (ps_cpu_batchnorm_arrays){in->at,
                                                    out->at,
                                                    out->grad,
                                                    dx,
                                                    ps_cpu_parameter(run, l->weight),
                                                    ps_cpu_parameter(run, l->bias),
                                                    cpu_plan_buffer(run, l->running_mean),
                                                    cpu_plan_buffer(run, l->running_var)};
    return ps_cpu_batchnorm_bind(&s->batchnorm, m, &s->batchnorm_arrays);
}

static void warn_of_slow_layers(const ps_cpu_run *run)
{
    for (int i = 0; i < run->graph->n_nodes; i++) {
        if (!run->steps[i].conv.slow) continue;
        PS_WARN(
            "slow layer",
            "layer=%s reason=\"oneDNN has only its reference code for this shape on "
            "this processor, often 100 times slower\" hint=\"other numbers of channels "
            "or a smaller kernel may help\"",
            run->steps[i].node->layer->name);
    }
}

void ps_cpu_step_fini(ps_cpu_step *s)
{
    ps_cpu_conv_fini(&s->conv);
    ps_cpu_batchnorm_fini(&s->batchnorm);
}

ps_err ps_cpu_plan(ps_cpu_run *run, const ps_cpu_run *other)
{
    ps_cpu_narrow_choose(run);
    PS_TRY(plan_passes(run));
    if (!other) warn_of_slow_layers(run); // warn once, not for every batch size
    PS_TRY(ps_memory_plan_layout(&run->memory, other ? &other->memory : NULL,
                                 run->library->spare));
    for (int v = 1; v < run->graph->n_edges; v++) {
        ps_cpu_value *value = &run->values[v];
        value->at = ps_memory_plan_at(&run->memory, run->values[value->root].slot);
        value->grad = ps_memory_plan_at(&run->memory, value->grad_slot);
    }
    for (int i = 0; i < run->graph->n_nodes; i++) {
        ps_cpu_step *s = &run->steps[i];
        ps_cpu_lend_bind(run, s);
        ps_err err = bind_step(run, s);
        ps_cpu_lend_take_back(run, s);
        PS_TRY(err);
    }
    return PS_OK;
}
