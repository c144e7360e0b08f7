#include "cuda_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layer_precision.h"
#include "mem.h"
#include "model_spec.h"

/* The most memory for a convolution's columns; more samples are done in slices. */
#ifndef PS_CUDA_COLUMN_BYTES
#define PS_CUDA_COLUMN_BYTES ((int64_t)512 << 20)
#endif

const char *ps_cuda_layer_name(const ps_layer *layer)
{
    return layer->name[0] ? layer->name : ps_layer_kind_name(layer->written);
}

static const ps_tensor_table *table_of(const ps_cuda_plan *p)
{
    return &p->options->spec->table;
}

/* A layer's tensors that are trained are consecutive: [*first, *first + *n). *n 0: it has
 * none. */
static void layer_tensors(const ps_cuda_plan *p, const ps_layer *l, int *first, int *n)
{
    const bool weight = ps_tensor_table_trains(table_of(p), l->weight);
    const bool bias = ps_tensor_table_trains(table_of(p), l->bias);
    *n = weight + bias;
    *first = weight ? l->weight : l->bias;
    if (weight && bias && l->bias < l->weight) *first = l->bias;
}

float *ps_cuda_param(const ps_cuda_plan *p, int tensor)
{
    if (tensor == PS_NONE) return NULL;
    const uint64_t offset = ps_tensor_table_at(table_of(p), tensor)->offset;
    if (ps_tensor_table_trains(table_of(p), tensor)) return p->params + offset;
    return (float *)(void *)(p->buffers + offset);
}

float *ps_cuda_grad(const ps_cuda_plan *p, int tensor)
{
    if (!ps_tensor_table_trains(table_of(p), tensor)) return NULL;
    return p->grads + table_of(p)->tensors[tensor].offset;
}

/* Frozen weights follow the arena's. */
uint64_t ps_cuda_weight16_at(const ps_cuda_plan *p, int tensor)
{
    const ps_tensor_table *t = table_of(p);
    const uint64_t offset = ps_tensor_table_at(t, tensor)->offset;
    if (ps_tensor_table_trains(t, tensor)) return offset;
    return t->arena_count +
           (offset - (t->buffer_bytes - t->frozen_bytes)) / sizeof(float);
}

float *ps_cuda_buffer(const ps_cuda_plan *p, int buffer)
{
    return (float *)(void *)(p->buffers + p->options->spec->table.buffers[buffer].offset);
}

static ps_format format_of(const ps_cuda_plan *p, int edge)
{
    return ps_edge_stays_float32(p->graph, edge) ? PS_FORMAT_FP32 : ps_gpu_format(p->gpu);
}

static ps_err plan_value(ps_cuda_plan *p, int edge)
{
    ps_cuda_value *v = &p->values[edge];
    const ps_dims *d = &p->graph->edges[edge].dims;
    *v = (ps_cuda_value){.slot = PS_NO_SLOT, .grad_slot = PS_NO_SLOT};
    v->features = ps_dims_count(d);
    v->channels = d->d[0];
    v->plane = v->features / v->channels;
    v->layout = ps_layout_of(v->channels, p->channels_last && d->n > 1);
    v->at.format = v->grad.format = format_of(p, edge);
    if (v->features <= PS_INDEX_MAX / p->options->max_batch) return PS_OK;
    char text[PS_DIMS_TEXT];
    return ps_err_set(
        PS_ERR_UNSUPPORTED,
        "cuda: a value of shape %s for a batch of %d has more elements than "
        "32-bit indices can address; use a smaller data.batch",
        ps_dims_text(d, text), p->options->max_batch);
}

static size_t value_count(const ps_cuda_plan *p, int edge)
{
    return (size_t)p->options->max_batch * (size_t)p->values[edge].features;
}

static size_t cuda_plan_value_bytes(const ps_cuda_plan *p, int edge)
{
    return value_count(p, edge) * ps_format_bytes(p->values[edge].at.format);
}

static int64_t window_size(const ps_layer *l)
{
    return l->in.d[0] * l->kernel[0] * l->kernel[1];
}

/* Plans what a step needs besides its values. */
static ps_err plan_step(ps_cuda_plan *p, int node)
{
    ps_cuda_step *s = &p->steps[node];
    const ps_layer *l = p->graph->nodes[node].layer;
    size_t channels = sizeof(float) * (size_t)l->in.d[0], groups;
    s->node = &p->graph->nodes[node];
    s->slot[0] = s->slot[1] = PS_NO_SLOT;
    switch (l->kind) {
    case PS_LAYER_CONV2D:
        s->slice =
            PS_CUDA_COLUMN_BYTES / (4 * window_size(l) * l->out.d[1] * l->out.d[2]);
        if (s->slice < 1) s->slice = 1;
        if (s->slice > p->options->max_batch) s->slice = p->options->max_batch;
        break;
    case PS_LAYER_MAX_POOL2D:
        PS_TRY(
            ps_memory_plan_take(&p->memory, value_count(p, s->node->out), &s->slot[0]));
        break;
    case PS_LAYER_ADAPTIVE_MAX_POOL2D:
        return ps_memory_plan_take(
            &p->memory, value_count(p, s->node->out) * sizeof *s->argmax, &s->slot[0]);
    case PS_LAYER_BATCH_NORM2D:
        PS_TRY(ps_memory_plan_take(&p->memory, channels, &s->slot[0]));
        return ps_memory_plan_take(&p->memory, channels, &s->slot[1]);
    case PS_LAYER_GROUP_NORM:
    case PS_LAYER_LAYER_NORM:
        groups = sizeof(float) * (size_t)(p->options->max_batch * l->groups);
        PS_TRY(ps_memory_plan_take(&p->memory, groups, &s->slot[0]));
        return ps_memory_plan_take(&p->memory, groups, &s->slot[1]);
    case PS_LAYER_AVG_POOL2D:
        break;
    case PS_LAYER_EMBEDDING_BAG:
    case PS_LAYER_INTERACTION:
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "cuda: %s (line %d) is computed on processors alone: set "
                          "train.device cpu",
                          ps_layer_kind_name(l->written), l->line);
    default:
        return PS_OK;
    }
    s->planes = ps_planes_of(&l->in.d[1], &l->out.d[1], l->kernel, l->stride, l->padding,
                             l->dilation, p->values[s->node->in[0]].layout);
    return PS_OK;
}

/* Whether the node only changes the shape of a value that no other node reads. */
static bool is_view(const ps_cuda_plan *p, const ps_model_node *node)
{
    const ps_cuda_value *in = &p->values[node->in[0]], *out = &p->values[node->out];
    return node->layer->kind == PS_LAYER_FLATTEN && node->out != p->graph->output &&
           p->graph->edges[node->in[0]].flat_reader && in->at.format == out->at.format &&
           !ps_cuda_flatten_turns(in);
}

/* ps_cuda_step.adds */
static bool norm_adds(const ps_model_graph *g, int node)
{
    const ps_model_node *norm = &g->nodes[node], *next = norm + 1;
    const ps_model_edge *out = &g->edges[norm->out];
    return norm->layer->kind == PS_LAYER_BATCH_NORM2D && !norm->relu &&
           out->n_readers == 1 && out->last_reader == node + 1 && node + 1 < g->n_nodes &&
           next->layer->kind == PS_LAYER_ADD && next->in[0] != next->in[1];
}

/* Takes the output's slot. A view uses its input's slot, which then stays taken. */
static ps_err plan_output(ps_cuda_plan *p, int node)
{
    const ps_model_node *n = &p->graph->nodes[node];
    int *slot = &p->values[n->out].slot;
    p->steps[node].view = is_view(p, n);
    p->steps[node].adds = norm_adds(p->graph, node);
    p->steps[node].added = node > 0 && p->steps[node - 1].adds;
    if (p->steps[node].view)
        *slot = p->values[n->in[0]].slot;
    else if (p->steps[node].added)
        *slot = p->values[n[-1].out].slot;
    else if (p->steps[node].adds)
        PS_TRY(ps_memory_plan_take(&p->memory, cuda_plan_value_bytes(p, n[1].out), slot));
    else
        PS_TRY(ps_memory_plan_take(&p->memory, cuda_plan_value_bytes(p, n->out), slot));
    return plan_step(p, node);
}

/* Without training a value's slot is free after its last reader. */
static ps_err plan_forward(ps_cuda_plan *p)
{
    const ps_model_graph *g = p->graph;
    PS_TRY(
        ps_memory_plan_take(&p->memory, cuda_plan_value_bytes(p, 0), &p->values[0].slot));
    for (int i = 0; i < g->n_nodes; i++) {
        const ps_model_node *node = &g->nodes[i];
        PS_TRY(plan_output(p, i));
        bool keep = p->options->training || p->steps[i].view;
        for (int k = 0; k < node->n_in && !keep; k++) {
            bool twice = k == 1 && node->in[1] == node->in[0];
            if (p->steps[i].added && node->in[k] == node[-1].out)
                continue; // the output's
            if (g->edges[node->in[k]].last_reader == i && !twice)
                ps_memory_plan_give(&p->memory, p->values[node->in[k]].slot);
        }
    }
    return PS_OK;
}

/* Takes a slot for the gradient of an edge, unless it has one; *has_part: it had one. */
static ps_err plan_gradient(ps_cuda_plan *p, int edge, bool *has_part)
{
    ps_cuda_value *v = &p->values[edge];
    *has_part = v->grad_slot != PS_NO_SLOT;
    if (*has_part || !p->graph->edges[edge].needs_grad) return PS_OK;
    return ps_memory_plan_take(&p->memory, cuda_plan_value_bytes(p, edge), &v->grad_slot);
}

/* The gradients of a sum's inputs are equal, and the norm that comes next needs its own
 * no longer than until then. So it takes that of the other input, unless something is in
 * there already, or the norm's own input is that one. */
static ps_err plan_sum_gradients(ps_cuda_plan *p, int node)
{
    const ps_model_node *sum = &p->graph->nodes[node], *norm = sum - 1;
    const int k = sum->in[0] == norm->out, other = sum->in[k];
    ps_cuda_value *mine = &p->values[norm->out], *theirs = &p->values[other];
    bool part;
    PS_TRY(plan_gradient(p, other, &p->steps[node].add[k]));
    p->steps[node].same_grads = theirs->grad_slot != PS_NO_SLOT &&
                                !p->steps[node].add[k] && other != norm->in[0] &&
                                mine->grad.format == theirs->grad.format &&
                                p->graph->edges[norm->out].needs_grad;
    if (!p->steps[node].same_grads) return plan_gradient(p, norm->out, &part);
    mine->grad_slot = theirs->grad_slot;
    return PS_OK;
}

/* Walks in the order of the backward pass: slots that a step no longer needs are free for
 * the steps before it. */
static ps_err cuda_plan_backward(ps_cuda_plan *p)
{
    const ps_model_graph *g = p->graph;
    bool part;
    PS_TRY(plan_gradient(p, g->output, &part));
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const ps_model_node *node = &g->nodes[i];
        ps_cuda_value *out = &p->values[node->out];
        if (!g->edges[node->out].needs_grad) continue;
        // a view shares its input's gradient, whose slot the step before gives back
        if (p->steps[i].view) {
            p->values[node->in[0]].grad_slot = out->grad_slot;
            continue;
        }
        if (p->steps[i].added) PS_TRY(plan_sum_gradients(p, i));
        for (int k = 0; k < node->n_in && !p->steps[i].added; k++)
            PS_TRY(plan_gradient(p, node->in[k], &p->steps[i].add[k]));
        const bool shares = p->steps[i].adds; // with the sum, which has given it back
        if (!shares || !p->steps[i + 1].same_grads)
            ps_memory_plan_give(&p->memory, out->grad_slot);
        // the caller may read the outputs after the pass
        if (node->out != g->output && !shares) ps_memory_plan_give(&p->memory, out->slot);
    }
    return PS_OK;
}

static void *cuda_plan_place(const ps_cuda_plan *p, int slot)
{
    return slot == PS_NO_SLOT ? NULL : p->base + p->memory.slots[slot].offset;
}

/* Adds to the message how many samples would fit: what was asked for grows with them. */
static ps_err plan_say_what_fits(const ps_cuda_plan *p, size_t bytes)
{
    const ps_err_saved why = ps_err_save(PS_ERR_NOMEM);
    uint64_t used, total;
    if (!ps_gpu_memory(p->gpu, &used, &total)) return ps_err_restore(&why);
    const double share = (double)(total - used) / (double)bytes;
    const int64_t most = (int64_t)(share * (double)p->options->max_batch);
    if (most < 1)
        return ps_err_set(PS_ERR_NOMEM,
                          "%s: not even one sample fits beside what is there",
                          why.message);
    return ps_err_set(PS_ERR_NOMEM, "%s: at most %" PRId64 " of %d samples fit here",
                      why.message, most, p->options->max_batch);
}

static ps_err allocate_values(ps_cuda_plan *p)
{
    size_t bytes = 0;
    for (int i = 0; i < p->memory.n_slots; i++) {
        p->memory.slots[i].offset = bytes;
        bytes += (p->memory.slots[i].bytes + 255) / 256 * 256;
    }
    const ps_err err =
        ps_gpu_take(p->gpu, bytes, "activations and their gradients", &p->base);
    if (err == PS_ERR_NOMEM) return plan_say_what_fits(p, bytes);
    PS_TRY(err);
    for (int e = 0; e < p->graph->n_edges; e++) {
        p->values[e].at.at = cuda_plan_place(p, p->values[e].slot);
        p->values[e].grad.at = cuda_plan_place(p, p->values[e].grad_slot);
    }
    for (int i = 0; i < p->graph->n_nodes; i++) {
        ps_cuda_step *s = &p->steps[i];
        s->place = cuda_plan_place(p, s->slot[0]);
        s->argmax = cuda_plan_place(p, s->slot[0]);
        s->mean = cuda_plan_place(p, s->slot[0]);
        s->inv = cuda_plan_place(p, s->slot[1]);
    }
    return PS_OK;
}

/* Whether passes compute this direction of the node, which is a convolution. */
static bool plan_needs(const ps_cuda_plan *p, const ps_model_node *node,
                       ps_conv_kind kind)
{
    if (kind == PS_CONV_FORWARD) return true;
    if (!p->options->training) return false;
    if (kind == PS_CONV_BACKWARD_WEIGHT)
        return ps_tensor_table_trains(table_of(p), node->layer->weight);
    return p->graph->edges[node->in[0]].needs_grad;
}

/* Makes the library's plans for the largest batch; they determine the size of the
 * scratch. *n: how many convolutions and directions there are; *missing: how many of
 * them have no plan. */
static ps_err plan_library(ps_cuda_plan *p, int *n, int *missing)
{
    *n = *missing = 0;
    for (int i = 0; i < p->graph->n_nodes; i++) {
        const ps_model_node *node = &p->graph->nodes[i];
        if (node->layer->kind != PS_LAYER_CONV2D) continue;
        for (int kind = 0; kind < PS_CONV_KINDS; kind++) {
            const bool add = kind == PS_CONV_BACKWARD_DATA && p->steps[i].add[0];
            ps_conv_plan *plan;
            if (!plan_needs(p, node, (ps_conv_kind)kind)) continue;
            PS_TRY(ps_cuda_conv_plans_find(p->convs, node->layer, (ps_conv_kind)kind,
                                           p->options->max_batch, add, &plan));
            ++*n;
            *missing += !plan;
        }
    }
    return PS_OK;
}

static ps_err plan_values(ps_cuda_plan *p)
{
    for (int e = 0; e < p->graph->n_edges; e++)
        PS_TRY(plan_value(p, e));
    PS_TRY(plan_forward(p));
    return p->options->training ? cuda_plan_backward(p) : PS_OK;
}

/* Plans the values in a layout, and the library's convolutions of them. */
static ps_err plan_layout(ps_cuda_plan *p, ps_conv_library *library, bool channels_last,
                          int *n, int *missing)
{
    ps_cuda_conv_plans_destroy(&p->convs);
    ps_memory_plan_fini(&p->memory, NULL);
    memset(p->steps, 0, (size_t)p->graph->n_nodes * sizeof *p->steps);
    p->channels_last = channels_last;
    PS_TRY(plan_values(p));
    PS_TRY(ps_cuda_conv_plans_create(library, ps_gpu_format(p->gpu), channels_last,
                                     (size_t)PS_CUDA_COLUMN_BYTES, &p->convs));
    return plan_library(p, n, missing);
}

/* auto: channels last if the library has kernels then, for as many convolutions as with
 * channels first. Own products gain nothing. */
static ps_err choose_layout(ps_cuda_plan *p, ps_conv_library *library, ps_switch wanted)
{
    const bool narrow = ps_gpu_format(p->gpu) != PS_FORMAT_FP32;
    const bool may = wanted == PS_SWITCH_ON || (wanted == PS_SWITCH_AUTO && library);
    int n, last, first;
    if (!narrow || !may) return plan_layout(p, library, false, &n, &first);
    PS_TRY(plan_layout(p, library, true, &n, &last));
    if (wanted == PS_SWITCH_ON || (n > 0 && last == 0)) return PS_OK;
    PS_TRY(plan_layout(p, library, false, &n, &first));
    return last < n && last <= first ? plan_layout(p, library, true, &n, &last) : PS_OK;
}

static ps_err take_factors(ps_cuda_plan *p, size_t n, const char *what, ps_values *out)
{
    out->format = ps_gpu_format(p->gpu);
    return ps_gpu_take(p->gpu, n * ps_format_bytes(out->format), what, &out->at);
}

/* Parts of a row of sums. */
static int64_t cuda_plan_parts_of(int64_t row)
{
    const int64_t parts = (row + PS_ROW_PART - 1) / PS_ROW_PART;
    return parts > PS_ROW_PARTS_MAX ? PS_ROW_PARTS_MAX : parts;
}

/* Of a value's channels, each over up to n samples, or over one. */
static int64_t cuda_plan_channel_parts(const ps_cuda_value *v, int64_t n)
{
    if (!v->layout.channels_last) return cuda_plan_parts_of(n * v->plane);
    return ps_columns_most_parts(n * v->plane, v->channels);
}

/* What a step needs for its sums: partial ones, and means. Of a group_norm or layer_norm
 * each sample has its own. */
static void count_sums(const ps_cuda_plan *p, int node, int64_t *parts, int64_t *means)
{
    const ps_layer *l = p->graph->nodes[node].layer;
    const ps_cuda_value *out = &p->values[p->graph->nodes[node].out];
    const int64_t n = p->options->max_batch;
    *parts = *means = 0;
    if (ps_model_is_group_norm(l->kind)) {
        const int64_t by_group =
            n * l->groups * cuda_plan_parts_of(out->features / l->groups);
        const int64_t by_channel = n * out->channels * cuda_plan_channel_parts(out, 1);
        *parts = by_group > by_channel ? by_group : by_channel;
        *means = n * l->groups;
    } else if (l->kind == PS_LAYER_CONV2D || l->kind == PS_LAYER_BATCH_NORM2D) {
        *parts = out->channels * cuda_plan_channel_parts(out, n);
        *means = out->channels;
    } else if (l->kind == PS_LAYER_LINEAR && n > PS_COLUMN_ROWS) {
        *parts = out->channels * ps_columns_most_parts(n, out->channels);
    }
}

/* Allocates the scratch for columns and sums: the largest that any step needs. */
static ps_err allocate_scratch(ps_cuda_plan *p)
{
    int64_t columns = 0, parts = 0, means = 0, outputs = 0;
    size_t mirrored = 0;
    for (int i = 0; i < p->graph->n_nodes; i++) {
        const ps_layer *l = p->graph->nodes[i].layer;
        const ps_cuda_value *out = &p->values[p->graph->nodes[i].out];
        const ps_cuda_step *s = &p->steps[i];
        int64_t own_parts, own_means;
        count_sums(p, i, &own_parts, &own_means);
        if (own_parts > parts) parts = own_parts;
        if (own_means > means) means = own_means;
        if (l->kind != PS_LAYER_CONV2D) continue;
        int64_t count = window_size(l) * s->slice * out->plane;
        if (count > PS_INDEX_MAX)
            return ps_err_set(PS_ERR_UNSUPPORTED,
                              "cuda: %s: the windows of one sample have %lld values",
                              ps_cuda_layer_name(l), (long long)count);
        if (count > columns) columns = count;
        if (s->slice * out->features > outputs) outputs = s->slice * out->features;
        const size_t weights = ps_tensor_table_at(table_of(p), l->weight)->count;
        if (ps_cuda_conv_plans_mirror(p->convs, l) && weights > mirrored)
            mirrored = weights;
    }
    size_t scratch = (size_t)columns * sizeof(float);
    size_t library = ps_cuda_conv_plans_bytes(p->convs);
    if (library > scratch) scratch = library;
    ps_cuda_conv_plans_limit(p->convs, scratch);
    PS_TRY(ps_gpu_take(p->gpu, scratch, "the columns of a convolution", &p->scratch));
    PS_TRY(take_factors(p, (size_t)outputs, "the outputs of a convolution", &p->swapped));
    if (p->options->training)
        PS_TRY(ps_gpu_take(p->gpu, mirrored * sizeof(float), "mirrored weights",
                           &p->mirrored));
    PS_TRY(ps_gpu_take(p->gpu, (size_t)parts * sizeof(ps_sums), "sums", &p->parts));
    PS_TRY(ps_gpu_take(p->gpu, (size_t)means * sizeof(float), "sums", &p->mean_dy));
    return ps_gpu_take(p->gpu, (size_t)means * sizeof(float), "sums", &p->mean_dot);
}

/* Allocates memory for products in 16 bits: the weights, and copies of float32 factors.
 */
static ps_err allocate_factors(ps_cuda_plan *p)
{
    const ps_format format = ps_gpu_format(p->gpu);
    size_t input = 0, grad = 0, weight = 0;
    if (format == PS_FORMAT_FP32) return PS_OK;
    for (int i = 0; i < p->graph->n_nodes; i++) {
        const ps_model_node *node = &p->graph->nodes[i];
        ps_layer_kind kind = node->layer->kind;
        if (ps_layer_precision_of(kind) != PS_MULTIPLIES_NARROW) continue;
        size_t window = ps_tensor_table_at(table_of(p), node->layer->weight)->count;
        if (kind == PS_LAYER_CONV2D && window > weight) weight = window;
        if (kind == PS_LAYER_CONV2D) continue; // a convolution copies its factors anyway
        size_t in = value_count(p, node->in[0]), out = value_count(p, node->out);
        if (p->values[node->in[0]].at.format != format && in > input) input = in;
        if (p->values[node->out].at.format != format && out > grad) grad = out;
    }
    // of the library 16 bits; of own products float32, in the order of the weights
    const size_t grad_bytes = p->channels_last ? sizeof(float) : ps_format_bytes(format);
    if ((p->convs || p->channels_last) && p->options->training)
        PS_TRY(ps_gpu_take(p->gpu, weight * grad_bytes, "a convolution's weight gradient",
                           &p->weight_grad));
    const size_t weights =
        table_of(p)->arena_count + table_of(p)->frozen_bytes / sizeof(float);
    PS_TRY(take_factors(p, weights, "the weights in 16 bits", &p->weights16));
    PS_TRY(take_factors(p, input, "an input in 16 bits", &p->input16));
    return take_factors(p, grad, "a gradient in 16 bits", &p->grad16);
}

static ps_err allocate_arenas(ps_cuda_plan *p)
{
    size_t bytes = p->options->spec->table.arena_count * sizeof(float);
    const ps_cuda_resident *r = p->resident;
    p->params = r ? r->params : p->kept.params;
    p->grads = r && p->options->training ? r->grads : p->kept.grads;
    if (!p->params) PS_TRY(ps_gpu_take(p->gpu, bytes, "the parameters", &p->params));
    if (!p->grads && p->options->training)
        PS_TRY(ps_gpu_take(p->gpu, bytes, "the gradients", &p->grads));
    return ps_gpu_take(p->gpu, p->options->spec->table.buffer_bytes, "the buffers",
                       &p->buffers);
}

static size_t parameter_bytes(const ps_model_spec *spec, int first, int n)
{
    size_t bytes = 0;
    for (int i = first; i < first + n; i++)
        bytes += spec->table.tensors[i].count * sizeof(float);
    return bytes;
}

/* Adds the step in front of the group's steps. */
static ps_err join_group(ps_cuda_plan *p, ps_cuda_group *g, int step)
{
    int first, n;
    const ps_layer *layer = p->graph->nodes[step].layer;
    layer_tensors(p, layer, &first, &n);
    g->begin = step;
    if (n == 0) return PS_OK;
    if (g->n > 0 && first + n != g->first)
        return ps_err_set(PS_ERR_INTERNAL,
                          "%s: its parameters are not next to the next layer's",
                          ps_cuda_layer_name(layer));
    g->first = first;
    g->n += n;
    return PS_OK;
}

static int first_with_parameters(const ps_cuda_plan *p)
{
    int first, n = 0, i = 0;
    for (; i < p->graph->n_nodes && n == 0; i++)
        layer_tensors(p, p->graph->nodes[i].layer, &first, &n);
    return i - 1;
}

/* A layer that fills a group closes it, unless no parameters come before that layer. */
static ps_err form_groups(ps_cuda_plan *p)
{
    const ps_program_options *o = p->options;
    int n_steps = p->graph->n_nodes, first = first_with_parameters(p);
    PS_TRY(PS_NEW(&p->groups, (size_t)n_steps, "model"));
    ps_cuda_group *g = NULL;
    for (int i = n_steps - 1; i >= 0; i--) {
        bool full =
            g && g->n > 0 && parameter_bytes(o->spec, g->first, g->n) >= o->group_bytes;
        if (!g || (full && i >= first)) {
            g = &p->groups[p->n_groups++];
            g->end = i + 1;
        }
        PS_TRY(join_group(p, g, i));
    }
    // reverse them to the order of the forward pass
    for (int i = 0; i < p->n_groups / 2; i++) {
        ps_cuda_group *a = &p->groups[i], *b = &p->groups[p->n_groups - 1 - i], c = *a;
        *a = *b;
        *b = c;
    }
    return PS_OK;
}

static ps_err create_events(ps_cuda_plan *p)
{
    for (int i = 0; i < p->n_groups; i++) {
        PS_TRY(ps_gpu_event_create(p->gpu, &p->groups[i].uploaded));
        PS_TRY(ps_gpu_event_create(p->gpu, &p->groups[i].made));
        PS_TRY(ps_gpu_event_create(p->gpu, &p->groups[i].home));
    }
    return PS_OK;
}

/* Passes wait for their batch, which the same queue brings later. */
static ps_err bring_class_weights(ps_cuda_plan *p)
{
    static const char what[] = "train.class_weights";
    const ps_model_spec *spec = p->options->spec;
    const size_t bytes = (size_t)spec->n_outputs * sizeof(float);
    if (!spec->class_weights) return PS_OK;
    PS_TRY(ps_gpu_take(p->gpu, bytes, what, &p->class_weights));
    return ps_gpu_copy_in(p->gpu, PS_GPU_SAMPLES, p->class_weights, spec->class_weights,
                          bytes, what);
}

ps_err ps_cuda_plan_init(ps_cuda_plan *p, ps_gpu *gpu, ps_conv_library *library,
                         ps_switch channels_last, const ps_program_options *options,
                         const ps_model_graph *graph, ps_cuda_kept kept)
{
    *p = (ps_cuda_plan){.gpu = gpu,
                        .resident = kept.resident,
                        .kept = kept,
                        .options = options,
                        .graph = graph};
    PS_TRY(PS_NEW(&p->values, (size_t)graph->n_edges, "model"));
    PS_TRY(PS_NEW(&p->steps, (size_t)graph->n_nodes, "model"));
    PS_TRY(choose_layout(p, library, channels_last));
    PS_TRY(allocate_arenas(p));
    PS_TRY(allocate_values(p));
    PS_TRY(allocate_scratch(p));
    PS_TRY(allocate_factors(p));
    PS_TRY(ps_gpu_take(gpu, (1 + (size_t)options->max_batch) * sizeof *p->total, "losses",
                       &p->total));
    PS_TRY(bring_class_weights(p));
    PS_TRY(form_groups(p));
    return create_events(p);
}

void ps_cuda_plan_fini(ps_cuda_plan *p)
{
    if (p->resident) p->params = p->grads = NULL; // the stream owns them
    if (p->kept.params) p->params = NULL;
    if (p->kept.grads) p->grads = NULL;
    void *const taken[] = {
        p->params,    p->grads,        p->buffers,     p->base,
        p->scratch,   p->swapped.at,   p->parts,       p->mean_dy,
        p->mirrored,  p->mean_dot,     p->total,       p->input16.at,
        p->grad16.at, p->weights16.at, p->weight_grad, p->class_weights};
    for (size_t i = 0; p->gpu && i < sizeof taken / sizeof *taken; i++)
        ps_gpu_give(p->gpu, taken[i]);
    for (int i = 0; i < p->n_groups; i++) {
        ps_gpu_event_destroy(&p->groups[i].uploaded);
        ps_gpu_event_destroy(&p->groups[i].made);
        ps_gpu_event_destroy(&p->groups[i].home);
    }
    ps_cuda_conv_plans_destroy(&p->convs);
    ps_memory_plan_fini(&p->memory, NULL);
    free(p->values);
    free(p->steps);
    free(p->groups);
    *p = (ps_cuda_plan){0};
}
