#include "model_graph.h"

#include <stdlib.h>

#include "mem.h"
#include "model_spec.h"

static ps_err graph_refuse(const ps_layer *l, const char *why)
{
    return ps_err_set(PS_ERR_UNSUPPORTED, "%s '%s' (line %d): %s",
                      ps_layer_kind_name(l->written), l->name, l->line, why);
}

/* A weighted sum, or the maximum, of positions of the same plane (interpolate.h). */
static bool layer_interpolates(ps_layer_kind kind)
{
    return kind == PS_LAYER_ADAPTIVE_AVG_POOL2D || kind == PS_LAYER_ADAPTIVE_MAX_POOL2D ||
           kind == PS_LAYER_UPSAMPLE;
}

static ps_err check_layer(const ps_layer *l)
{
    bool pool = l->kind == PS_LAYER_MAX_POOL2D || l->kind == PS_LAYER_AVG_POOL2D;
    bool plane = pool || l->kind == PS_LAYER_CONV2D || l->kind == PS_LAYER_GROUP_NORM ||
                 layer_interpolates(l->kind);
    bool row = l->kind == PS_LAYER_LINEAR || l->kind == PS_LAYER_LOG_SOFTMAX ||
               l->kind == PS_LAYER_LAYER_NORM;
    if (plane && l->in.n != 3) return graph_refuse(l, "its input has to be (C, H, W)");
    if (row && l->in.n != 1)
        return graph_refuse(l, "its input has to be flat; use flatten");
    if (l->kind == PS_LAYER_MAX_POOL2D &&
        l->kernel[0] * l->kernel[1] > PS_MAX_POOL_WINDOW)
        return graph_refuse(l, "windows of more than 256 positions are not supported");
    if (l->kind == PS_LAYER_DROPOUT && (l->p < 0.0 || l->p > 1.0))
        return graph_refuse(l, "its probability has to be between 0 and 1");
    return PS_OK;
}

/* A layer's output while the graph is being built. */
typedef struct built {
    int edge;
    int n_readers; // layers and the loss
    bool shared;   // it, or an alias of it, has more than one reader
} built;

static bool folds_relu(const ps_model_graph *g, const built *in)
{
    int p = g->edges[in->edge].producer;
    if (p == PS_NONE || in->shared || g->nodes[p].relu) return false;
    ps_layer_kind k = g->nodes[p].layer->kind;
    return k == PS_LAYER_CONV2D || k == PS_LAYER_LINEAR || k == PS_LAYER_BATCH_NORM2D ||
           k == PS_LAYER_ADD;
}

/* table: of the model. */
static int add_node(ps_model_graph *g, const ps_tensor_table *table, const ps_layer *l,
                    const built *in)
{
    int out = g->n_edges++, id = g->n_nodes++;
    ps_model_node *node = &g->nodes[id];
    ps_model_edge *edge = &g->edges[out];
    *node = (ps_model_node){.layer = l, .n_in = l->n_inputs, .out = out};
    *edge = (ps_model_edge){.dims = l->out, .producer = id, .last_reader = PS_NONE};
    edge->needs_grad = ps_tensor_table_trains(table, l->weight) ||
                       ps_tensor_table_trains(table, l->bias) ||
                       l->kind == PS_LAYER_EMBEDDING_BAG;
    for (int i = 0; i < l->n_inputs; i++) {
        node->in[i] = in[i].edge;
        edge->needs_grad |= g->edges[in[i].edge].needs_grad;
    }
    return out;
}

static void count_readers(ps_model_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++) {
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            ps_model_edge *e = &g->edges[g->nodes[i].in[k]];
            e->n_readers++;
            e->last_reader = i;
            e->flat_reader = g->nodes[i].layer->kind == PS_LAYER_FLATTEN;
        }
    }
    g->edges[g->output].n_readers++;
    g->edges[g->output].last_reader = g->n_nodes;
    for (int i = 0; i < g->n_edges; i++)
        g->edges[i].flat_reader &= g->edges[i].n_readers == 1;
}

static void fold_gradients(ps_model_graph *g, ps_loss_kind loss)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const ps_model_node *n = &g->nodes[i];
        const ps_model_edge *in = &g->edges[n->in[0]];
        if (n->layer->kind != PS_LAYER_MAX_POOL2D || in->producer == PS_NONE) continue;
        ps_model_node *before = &g->nodes[in->producer];
        // batch norm's relu keeps its own mask; the place of a maximum has 255 values and
        // one for "nothing passes"
        before->relu_by_pool =
            before->relu && in->n_readers == 1 &&
            n->layer->kernel[0] * n->layer->kernel[1] < PS_MAX_POOL_WINDOW &&
            before->layer->kind != PS_LAYER_BATCH_NORM2D;
    }
    int last = g->edges[g->output].producer;
    if (last == PS_NONE) return;
    ps_model_node *n = &g->nodes[last];
    n->with_loss = n->layer->kind == PS_LAYER_LOG_SOFTMAX && loss == PS_LOSS_NLL &&
                   g->edges[g->output].n_readers == 1;
}

static void count_layer_readers(const ps_model_spec *spec, built *layers)
{
    for (int i = 0; i < spec->n_layers; i++) {
        for (int k = 0; k < spec->layers[i].n_inputs; k++)
            layers[spec->layers[i].input[k] + 1].n_readers++;
    }
    layers[spec->n_layers].n_readers++;
}

/* layers[0] stands for the model's input, layers[i + 1] for layer i. */
static ps_err graph_build(ps_model_graph *g, const ps_model_spec *spec, built *layers)
{
    count_layer_readers(spec, layers);
    g->edges[g->n_edges++] = (ps_model_edge){.dims = spec->input, .producer = PS_NONE};
    layers[0].shared = layers[0].n_readers > 1;
    for (int i = 0; i < spec->n_layers; i++) {
        const ps_layer *l = &spec->layers[i];
        built in[2] = {layers[l->input[0] + 1], layers[0]}, *out = &layers[i + 1];
        if (l->n_inputs > 1) in[1] = layers[l->input[1] + 1];
        PS_TRY(check_layer(l));
        out->shared = out->n_readers > 1;
        out->edge = in[0].edge;
        if (l->kind == PS_LAYER_RELU && folds_relu(g, &in[0]))
            g->nodes[g->edges[out->edge].producer].relu = true;
        else if (l->kind == PS_LAYER_DROPOUT && l->p == 0.0)
            out->shared |= in[0].shared;
        else
            out->edge = add_node(g, &spec->table, l, in);
    }
    g->output = layers[spec->n_layers].edge;
    return PS_OK;
}

ps_err ps_model_graph_init(ps_model_graph *g, const ps_model_spec *spec)
{
    *g = (ps_model_graph){0};
    built *layers = NULL;
    size_t n = (size_t)spec->n_layers + 1;
    ps_err err;
    if (spec->n_layers < 1) return ps_err_set(PS_ERR_ARG, "the model has no layers");
    PS_TRY_GOTO(PS_NEW(&g->nodes, n, "model"), err, out);
    PS_TRY_GOTO(PS_NEW(&g->edges, n, "model"), err, out);
    PS_TRY_GOTO(PS_NEW(&layers, n, "model"), err, out);
    PS_TRY_GOTO(graph_build(g, spec, layers), err, out);
    count_readers(g);
    fold_gradients(g, spec->loss);
    const ps_dims *d = &g->edges[g->output].dims;
    if (d->n != 1 || d->d[0] != spec->n_outputs)
        err = ps_err_set(PS_ERR_SHAPE,
                         "the model's output is not (%lld): end it with "
                         "flatten and linear",
                         (long long)spec->n_outputs);
out:
    free(layers);
    if (err != PS_OK) ps_model_graph_fini(g);
    return err;
}

void ps_model_graph_fini(ps_model_graph *g)
{
    free(g->nodes);
    free(g->edges);
    *g = (ps_model_graph){0};
}

/* The node that writes the value's memory; a flatten is only a view. */
static const ps_model_node *writer_of(const ps_model_graph *g, int edge, bool *alone)
{
    *alone = g->edges[edge].n_readers == 1;
    while (g->edges[edge].producer != PS_NONE) {
        const ps_model_node *n = &g->nodes[g->edges[edge].producer];
        if (n->layer->kind != PS_LAYER_FLATTEN) return n;
        edge = n->in[0];
        *alone &= g->edges[edge].n_readers == 1;
    }
    return NULL;
}

bool ps_model_grad_reads_input(ps_layer_kind kind)
{
    return kind == PS_LAYER_SILU || kind == PS_LAYER_GELU || kind == PS_LAYER_GELU_TANH;
}

bool ps_model_is_group_norm(ps_layer_kind kind)
{
    return kind == PS_LAYER_GROUP_NORM || kind == PS_LAYER_LAYER_NORM;
}

bool ps_model_is_activation(ps_layer_kind kind)
{
    return kind == PS_LAYER_RELU || kind == PS_LAYER_TANH || kind == PS_LAYER_SIGMOID ||
           kind == PS_LAYER_RELU6 || kind == PS_LAYER_LEAKY_RELU ||
           kind == PS_LAYER_ELU || ps_model_grad_reads_input(kind);
}

static bool grad_reads_output(ps_layer_kind kind)
{
    return kind == PS_LAYER_LOG_SOFTMAX ||
           (ps_model_is_activation(kind) && !ps_model_grad_reads_input(kind));
}

bool ps_model_graph_in_place(const ps_model_graph *g, const ps_model_node *node)
{
    const ps_layer_kind k = node->layer->kind;
    if (k != PS_LAYER_DROPOUT && !ps_model_is_activation(k)) return false;
    if (ps_model_grad_reads_input(k)) return false;
    bool alone;
    const ps_model_node *writer = writer_of(g, node->in[0], &alone);
    if (!writer || !alone) return false;
    const ps_layer_kind w = writer->layer->kind;
    if (grad_reads_output(w)) return false;
    // relu's gradient asks whether its output is positive, which sigmoid alone changes
    return k != PS_LAYER_SIGMOID || !(writer->relu || w == PS_LAYER_MAX_POOL2D);
}
