#include "layer_shapes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* SHAPE, with "file:line: kind name: <message>". */
__attribute__((format(printf, 3, 4))) static ps_err
layer_error(const ps_layer *layer, const ps_yaml *at, const char *fmt, ...)
{
    char text[512];
    PS_PRINT(text, fmt);
    const char *kind = ps_layer_kind_name(layer->written);
    return ps_err_set(PS_ERR_SHAPE, "%s:%d: %s%s%s: %s", at->file, at->line, kind,
                      layer->name[0] ? " " : "", layer->name, text);
}

/* The name "<layer>.<suffix>"; owned by the caller. */
static ps_err tensor_name(const ps_layer *layer, const char *suffix, char **out)
{
    size_t bytes = strlen(layer->name) + strlen(suffix) + 2;
    PS_TRY(ps_mem_zalloc(out, bytes, 1, "tensor name"));
    snprintf(*out, bytes, "%s.%s", layer->name, suffix);
    return PS_OK;
}

static ps_err layer_add_tensor(ps_model_spec *spec, const ps_layer *layer,
                               const ps_yaml *at, const char *suffix, ps_tensor_role role,
                               ps_dims dims, int64_t fan_in, int *index)
{
    char text[PS_DIMS_TEXT], *name = NULL;
    if (ps_dims_count_max(&dims, PS_LAYER_COUNT_MAX) < 1)
        return layer_error(layer, at, "%s %s has more than %" PRId64 " elements", suffix,
                           ps_dims_text(&dims, text), PS_LAYER_COUNT_MAX);
    PS_TRY(tensor_name(layer, suffix, &name));
    ps_err err = ps_tensor_table_add(&spec->table, name, dims, role, fan_in, index);
    free(name);
    return err;
}

static ps_err layer_add_buffer(ps_model_spec *spec, const ps_layer *layer,
                               const char *suffix, ps_tensor_role role, ps_dims dims,
                               int *index)
{
    char *name = NULL;
    PS_TRY(tensor_name(layer, suffix, &name));
    ps_err err = ps_tensor_table_add_buffer(&spec->table, name, dims, role, index);
    free(name);
    return err;
}

static ps_err want_image(const ps_layer *layer, const ps_yaml *at)
{
    char text[PS_DIMS_TEXT];
    if (layer->in.n == 3) return PS_OK;
    return layer_error(layer, at, "input is %s; it has to be (channels, height, width)",
                       ps_dims_text(&layer->in, text));
}

static ps_err want_features(const ps_layer *layer, const ps_yaml *at)
{
    char text[PS_DIMS_TEXT];
    if (layer->in.n == 1) return PS_OK;
    return layer_error(layer, at, "input is %s, put a flatten before it",
                       ps_dims_text(&layer->in, text));
}

/* How many positions a window covers along an axis. */
static int64_t window_of(const ps_layer *layer, int axis)
{
    return (int64_t)(layer->kernel[axis] - 1) * layer->dilation[axis] + 1;
}

/* out[1..2] = floor((in + 2 padding - window) / stride) + 1, as PyTorch. */
static ps_err layer_slide(ps_layer *layer, const ps_yaml *at, int64_t channels)
{
    char text[PS_DIMS_TEXT];
    PS_TRY(want_image(layer, at));
    layer->out = (ps_dims){3, {channels, 0, 0}};
    for (int i = 0; i < 2; i++) {
        int64_t padded = layer->in.d[1 + i] + 2 * (int64_t)layer->padding[i];
        if (window_of(layer, i) > padded)
            return layer_error(
                layer, at,
                "kernel (%d, %d)%s is larger than the input %s with "
                "padding (%d, %d)",
                layer->kernel[0], layer->kernel[1],
                window_of(layer, i) > layer->kernel[i] ? " with dilation" : "",
                ps_dims_text(&layer->in, text), layer->padding[0], layer->padding[1]);
        layer->out.d[1 + i] = (padded - window_of(layer, i)) / layer->stride[i] + 1;
    }
    return PS_OK;
}

static void take_window(ps_layer *layer, const ps_layer_settings *s)
{
    bool pool = layer->kind != PS_LAYER_CONV2D;
    for (int i = 0; i < 2; i++) {
        layer->kernel[i] = s->global ? (int)layer->in.d[1 + i] : s->kernel[i];
        layer->stride[i] = s->stride[i];
        if (!s->stride[i]) layer->stride[i] = pool ? layer->kernel[i] : 1;
        layer->padding[i] = s->padding[i];
        layer->dilation[i] = s->dilation[i];
    }
}

/* Sets the groups, 1 where they are not given. out: channels of the output. */
static ps_err layer_take_groups(ps_layer *layer, const ps_layer_settings *s, int64_t out)
{
    const int64_t channels[] = {layer->in.d[0], out};
    static const char *const whose[] = {"input", "output"};
    layer->groups = s->groups ? s->groups : 1;
    for (int i = 0; i < 2; i++)
        if (channels[i] % layer->groups != 0)
            return layer_error(layer, s->at,
                               "groups %" PRId64 " does not divide the %" PRId64
                               " channels of the %s",
                               layer->groups, channels[i], whose[i]);
    return PS_OK;
}

static ps_err infer_conv2d(ps_model_spec *spec, const ps_layer_settings *s,
                           ps_layer *layer)
{
    take_window(layer, s);
    PS_TRY(layer_slide(layer, s->at, s->out));
    PS_TRY(layer_take_groups(layer, s, s->out));
    int64_t in = layer->in.d[0] / layer->groups;
    int64_t kh = layer->kernel[0], kw = layer->kernel[1];
    ps_dims weight = {4, {s->out, in, kh, kw}}, bias = {1, {s->out}};
    if (s->kind == PS_LAYER_CONV1D) weight = (ps_dims){3, {s->out, in, kw}};
    int64_t fan_in = ps_dims_count_max(&(ps_dims){3, {in, kh, kw}}, PS_LAYER_COUNT_MAX);
    PS_TRY(layer_add_tensor(spec, layer, s->at, "weight", PS_TENSOR_WEIGHT, weight,
                            fan_in, &layer->weight));
    if (!s->bias) return PS_OK;
    return layer_add_tensor(spec, layer, s->at, "bias", PS_TENSOR_BIAS, bias, fan_in,
                            &layer->bias);
}

static ps_err infer_linear(ps_model_spec *spec, const ps_layer_settings *s,
                           ps_layer *layer)
{
    PS_TRY(want_features(layer, s->at));
    int64_t in = layer->in.d[0];
    layer->out = (ps_dims){1, {s->out}};
    ps_dims weight = {2, {s->out, in}}, bias = {1, {s->out}};
    PS_TRY(layer_add_tensor(spec, layer, s->at, "weight", PS_TENSOR_WEIGHT, weight, in,
                            &layer->weight));
    if (!s->bias) return PS_OK;
    return layer_add_tensor(spec, layer, s->at, "bias", PS_TENSOR_BIAS, bias, in,
                            &layer->bias);
}

/* The numbers of a row, where they are not given: 4 times the fourth root of the rows,
 * in full fours. */
static int64_t embedding_width(const ps_model_spec *spec)
{
    int64_t most = 1;
    for (int i = 0; i < spec->n_categories; i++)
        most = spec->categories[i] > most ? spec->categories[i] : most;
    return 4 * (int64_t)ceil(sqrt(sqrt((double)most)));
}

/* All columns' rows are in one tensor, one below the other. */
static ps_err infer_embedding(ps_model_spec *spec, const ps_layer_settings *s,
                              ps_layer *layer)
{
    const int n = spec->n_categories;
    int64_t rows = 0;
    if (layer->input[0] != PS_INPUT || n == 0)
        return layer_error(layer, s->at,
                           "stands before all others, and is for tables with columns "
                           "of many texts (data.encoding)");
    for (int i = 0; i < n; i++)
        rows += spec->categories[i];
    const int64_t width = s->out > 0 ? s->out : embedding_width(spec);
    layer->out = (ps_dims){1, {layer->in.d[0] + n * (width - 1)}};
    return layer_add_tensor(spec, layer, s->at, "weight", PS_TENSOR_WEIGHT,
                            (ps_dims){2, {rows, width}}, rows, &layer->weight);
}

/* weight and bias, one of each for a channel or a feature. */
static ps_err add_scales(ps_model_spec *spec, const ps_layer_settings *s, ps_layer *layer)
{
    const ps_dims channels = {1, {layer->in.d[0]}};
    layer->eps = s->eps;
    PS_TRY(layer_add_tensor(spec, layer, s->at, "weight", PS_TENSOR_BATCHNORM, channels,
                            0, &layer->weight));
    return layer_add_tensor(spec, layer, s->at, "bias", PS_TENSOR_BATCHNORM, channels, 0,
                            &layer->bias);
}

static ps_err infer_group_norm(ps_model_spec *spec, const ps_layer_settings *s,
                               ps_layer *layer)
{
    PS_TRY(want_image(layer, s->at));
    PS_TRY(layer_take_groups(layer, s, layer->in.d[0]));
    return add_scales(spec, s, layer);
}

static ps_err infer_layer_norm(ps_model_spec *spec, const ps_layer_settings *s,
                               ps_layer *layer)
{
    PS_TRY(want_features(layer, s->at));
    layer->groups = 1;
    return add_scales(spec, s, layer);
}

static ps_err infer_batch_norm2d(ps_model_spec *spec, const ps_layer_settings *s,
                                 ps_layer *layer)
{
    if (s->kind == PS_LAYER_BATCH_NORM2D || layer->in.n != 1)
        PS_TRY(want_image(layer, s->at));
    layer->momentum = s->momentum;
    ps_dims channels = {1, {layer->in.d[0]}}, scalar = {0, {0}};
    PS_TRY(add_scales(spec, s, layer));
    PS_TRY(layer_add_buffer(spec, layer, "running_mean", PS_TENSOR_BUFFER, channels,
                            &layer->running_mean));
    PS_TRY(layer_add_buffer(spec, layer, "running_var", PS_TENSOR_BUFFER, channels,
                            &layer->running_var));
    return layer_add_buffer(spec, layer, "num_batches_tracked", PS_TENSOR_COUNTER, scalar,
                            &layer->num_batches);
}

static ps_err infer_pool(ps_model_spec *spec, const ps_layer_settings *s, ps_layer *layer)
{
    PS_TRY(want_image(layer, s->at));
    if (s->global && (layer->in.d[1] > INT_MAX || layer->in.d[2] > INT_MAX))
        return layer_error(layer, s->at, "the input is too large");
    take_window(layer, s);
    for (int i = 0; i < 2; i++)
        if (layer->padding[i] > layer->kernel[i] / 2)
            return layer_error(layer, s->at,
                               "padding %d is more than half of the kernel %d",
                               layer->padding[i], layer->kernel[i]);
    return layer_slide(layer, s->at, layer->in.d[0]);
}

/* The output's size, which divides the input's: windows that do not overlap. */
static ps_err cover_evenly(ps_layer *layer, const ps_layer_settings *s)
{
    for (int i = 0; i < 2; i++) {
        layer->kernel[i] = layer->stride[i] = (int)(layer->in.d[1 + i] / s->size[i]);
        layer->padding[i] = 0;
        layer->dilation[i] = 1;
    }
    return layer_slide(layer, s->at, layer->in.d[0]);
}

static bool layer_divides(const ps_layer *layer, const ps_layer_settings *s)
{
    return layer->in.d[1] % s->size[0] == 0 && layer->in.d[2] % s->size[1] == 0;
}

/* Windows that may overlap, or be of several sizes. */
static ps_err cover_unevenly(ps_layer *layer, const ps_layer_settings *s,
                             ps_interpolation mode)
{
    layer->mode = mode;
    layer->out = (ps_dims){3, {layer->in.d[0], s->size[0], s->size[1]}};
    return PS_OK;
}

static ps_err infer_adaptive_max(ps_model_spec *spec, const ps_layer_settings *s,
                                 ps_layer *layer)
{
    PS_TRY(want_image(layer, s->at));
    const int64_t window = (layer->in.d[1] / s->size[0]) * (layer->in.d[2] / s->size[1]);
    if (!layer_divides(layer, s) || window > PS_MAX_POOL_WINDOW)
        return cover_unevenly(layer, s, PS_INTERPOLATE_MAX);
    layer->kind = PS_LAYER_MAX_POOL2D;
    return cover_evenly(layer, s);
}

static ps_err infer_adaptive_avg(ps_model_spec *spec, const ps_layer_settings *s,
                                 ps_layer *layer)
{
    PS_TRY(want_image(layer, s->at));
    if (layer_divides(layer, s)) {
        layer->kind = PS_LAYER_AVG_POOL2D;
        return cover_evenly(layer, s);
    }
    return cover_unevenly(layer, s, PS_INTERPOLATE_MEAN);
}

static ps_err infer_upsample(ps_model_spec *spec, const ps_layer_settings *s,
                             ps_layer *layer)
{
    PS_TRY(want_image(layer, s->at));
    layer->mode = s->mode;
    for (int i = 1; i < 3; i++)
        layer->out.d[i] =
            s->size[i - 1] ? s->size[i - 1] : layer->in.d[i] * s->scale[i - 1];
    return PS_OK;
}

static ps_err infer_concat(ps_model_spec *spec, const ps_layer_settings *s,
                           ps_layer *layer)
{
    const int second = layer->input[1];
    const ps_dims *other = second == PS_INPUT ? &spec->input : &spec->layers[second].out;
    ps_dims rest = layer->in;
    rest.d[0] = other->d[0];
    if (!ps_dims_equal(&rest, other)) {
        char a[PS_DIMS_TEXT], b[PS_DIMS_TEXT];
        return layer_error(layer, s->at,
                           "branches give %s and %s: they may differ in the first "
                           "dimension only",
                           ps_dims_text(&layer->in, a), ps_dims_text(other, b));
    }
    layer->out.d[0] = layer->in.d[0] + other->d[0];
    return PS_OK;
}

/* The column of ids that a name as C1 means; -1: none. */
static int column_of(const char *name)
{
    char *end = NULL;
    const long n = name && name[0] == 'C' && name[1] >= '1' && name[1] <= '9'
                       ? strtol(name + 1, &end, 10)
                       : 0;
    return end && !*end && n <= PS_ROW_TABLES_MAX ? (int)n - 1 : -1;
}

static ps_err layer_add_table(ps_model_spec *spec, const ps_layer_settings *s,
                              const ps_layer *layer, int column)
{
    ps_row_spec *r = &spec->rows[spec->n_rows];
    *r = ps_row_spec_default(s->row_optimizer);
    r->number = (uint32_t)spec->n_rows;
    r->dim = (uint32_t)s->dim;
    if (!isnan(s->row_lr)) r->lr = s->row_lr;
    r->init = s->init;
    r->codec = s->codec;
    r->admit = (uint32_t)s->admit;
    r->expire = (uint32_t)s->expire;
    r->max_bytes = (uint64_t)s->max_bytes;
    r->full = s->evict ? PS_ROW_FULL_EVICT : PS_ROW_FULL_END;
    if (!isnan(s->init_scale)) r->init_scale = s->init_scale;
    if (snprintf(r->name, sizeof r->name, "%s.C%d", layer->name, column + 1) >=
        (int)sizeof r->name)
        return ps_yaml_error(
            s->at, "embedding_bag: the name %s is too long for a table's", layer->name);
    const ps_err err = ps_row_spec_check(r);
    if (err != PS_OK)
        return ps_err_set(PS_ERR_CONFIG, "%s:%d: %s", s->at->file, s->at->line,
                          ps_err_message());
    spec->columns[spec->n_rows++] = column;
    if (column >= spec->n_columns) spec->n_columns = column + 1;
    return PS_OK;
}

static ps_err infer_embedding_bag(ps_model_spec *spec, const ps_layer_settings *s,
                                  ps_layer *layer)
{
    const int n = spec->n_rows + (int)s->n_tables;
    if (layer->input[0] != PS_INPUT)
        return layer_error(layer, s->at,
                           "reads the ids of a sample: it stands first in its branch");
    if (n > PS_ROW_TABLES_MAX)
        return ps_yaml_error(s->at, "embedding_bag: a model may have %d tables",
                             PS_ROW_TABLES_MAX);
    ps_row_spec *rows = realloc(spec->rows, (size_t)n * sizeof *rows);
    if (rows) spec->rows = rows;
    int *columns = realloc(spec->columns, (size_t)n * sizeof *columns);
    if (columns) spec->columns = columns;
    if (!rows || !columns) return ps_err_set(PS_ERR_NOMEM, "embedding tables: no memory");
    layer->first_table = spec->n_rows;
    layer->n_tables = (int)s->n_tables;
    layer->out = (ps_dims){1, {s->n_tables * s->dim}};
    for (int i = 0; i < layer->n_tables; i++) {
        const ps_yaml *at = s->tables ? s->tables->items[i] : NULL;
        const int column = at ? column_of(at->text) : i;
        if (column < 0)
            return ps_yaml_error(at, "tables: a column is named C1, C2 and so on");
        for (int k = layer->first_table; k < spec->n_rows; k++)
            if (spec->columns[k] == column)
                return ps_yaml_error(at, "tables: C%d is there twice", column + 1);
        PS_TRY(layer_add_table(spec, s, layer, column));
    }
    return PS_OK;
}

/* Pairs of n vectors. */
static int64_t pairs_of(int64_t n)
{
    return n * (n - 1) / 2;
}

static ps_err infer_interaction(ps_model_spec *spec, const ps_layer_settings *s,
                                ps_layer *layer)
{
    const int second = layer->input[1];
    const ps_dims *other = second == PS_INPUT ? &spec->input : &spec->layers[second].out;
    char a[PS_DIMS_TEXT], b[PS_DIMS_TEXT];
    const int64_t dim = layer->in.d[0];
    if (layer->in.n != 1 || other->n != 1 || other->d[0] % dim != 0)
        return layer_error(layer, s->at,
                           "the first branch gives %s, the others %s: they have to be "
                           "a vector, and vectors of its size",
                           ps_dims_text(&layer->in, a), ps_dims_text(other, b));
    const int64_t n = 1 + other->d[0] / dim;
    if (n > PS_INTERACTION_MAX)
        return layer_error(layer, s->at, "%" PRId64 " vectors; at most %d are possible",
                           n, PS_INTERACTION_MAX);
    layer->out.d[0] = dim + pairs_of(n);
    return PS_OK;
}

static ps_err infer_dropout(ps_model_spec *spec, const ps_layer_settings *s,
                            ps_layer *layer)
{
    layer->p = s->p;
    for (int i = 0; i < spec->n_layers; i++) {
        const ps_layer *other = &spec->layers[i];
        layer->dropout_id += other != layer && other->kind == PS_LAYER_DROPOUT;
    }
    return PS_OK;
}

static ps_err infer_flatten(ps_model_spec *spec, const ps_layer_settings *s,
                            ps_layer *layer)
{
    layer->out = (ps_dims){1, {ps_dims_count(&layer->in)}};
    return PS_OK;
}

static ps_err infer_log_softmax(ps_model_spec *spec, const ps_layer_settings *s,
                                ps_layer *layer)
{
    return want_features(layer, s->at);
}

static ps_err infer_same(ps_model_spec *spec, const ps_layer_settings *s, ps_layer *layer)
{
    return PS_OK;
}

static ps_err infer_leaky_relu(ps_model_spec *spec, const ps_layer_settings *s,
                               ps_layer *layer)
{
    layer->alpha = isnan(s->alpha) ? 0.01 : s->alpha;
    return PS_OK;
}

static ps_err infer_elu(ps_model_spec *spec, const ps_layer_settings *s, ps_layer *layer)
{
    layer->alpha = isnan(s->alpha) ? 1.0 : s->alpha;
    return PS_OK;
}

/* Sets the layer's settings, tensors and output. On entry, the output holds the input. */
static ps_err (*const infer[PS_LAYER_WRITTEN_COUNT])(ps_model_spec *,
                                                     const ps_layer_settings *,
                                                     ps_layer *) = {
    [PS_LAYER_CONV2D] = infer_conv2d,
    [PS_LAYER_LINEAR] = infer_linear,
    [PS_LAYER_EMBEDDING] = infer_embedding,
    [PS_LAYER_BATCH_NORM2D] = infer_batch_norm2d,
    [PS_LAYER_GROUP_NORM] = infer_group_norm,
    [PS_LAYER_LAYER_NORM] = infer_layer_norm,
    [PS_LAYER_RELU] = infer_same,
    [PS_LAYER_TANH] = infer_same,
    [PS_LAYER_SIGMOID] = infer_same,
    [PS_LAYER_RELU6] = infer_same,
    [PS_LAYER_LEAKY_RELU] = infer_leaky_relu,
    [PS_LAYER_ELU] = infer_elu,
    [PS_LAYER_SILU] = infer_same,
    [PS_LAYER_GELU] = infer_same,
    [PS_LAYER_GELU_TANH] = infer_same,
    [PS_LAYER_MAX_POOL2D] = infer_pool,
    [PS_LAYER_AVG_POOL2D] = infer_pool,
    [PS_LAYER_ADAPTIVE_AVG_POOL2D] = infer_adaptive_avg,
    [PS_LAYER_ADAPTIVE_MAX_POOL2D] = infer_adaptive_max,
    [PS_LAYER_UPSAMPLE] = infer_upsample,
    [PS_LAYER_DROPOUT] = infer_dropout,
    [PS_LAYER_FLATTEN] = infer_flatten,
    [PS_LAYER_ADD] = infer_same,
    [PS_LAYER_CONCAT] = infer_concat,
    [PS_LAYER_EMBEDDING_BAG] = infer_embedding_bag,
    [PS_LAYER_INTERACTION] = infer_interaction,
    [PS_LAYER_LOG_SOFTMAX] = infer_log_softmax,
    [PS_LAYER_CONV1D] = infer_conv2d,
    [PS_LAYER_BATCH_NORM1D] = infer_batch_norm2d,
    [PS_LAYER_MAX_POOL1D] = infer_pool,
    [PS_LAYER_AVG_POOL1D] = infer_pool,
    [PS_LAYER_ADAPTIVE_AVG_POOL1D] = infer_adaptive_avg,
};

/* What devices compute. */
static ps_layer_kind kind_of(ps_layer_kind written)
{
    switch (written) {
    case PS_LAYER_CONV1D:
        return PS_LAYER_CONV2D;
    case PS_LAYER_BATCH_NORM1D:
        return PS_LAYER_BATCH_NORM2D;
    case PS_LAYER_MAX_POOL1D:
        return PS_LAYER_MAX_POOL2D;
    case PS_LAYER_AVG_POOL1D:
        return PS_LAYER_AVG_POOL2D;
    case PS_LAYER_ADAPTIVE_AVG_POOL1D:
        return PS_LAYER_ADAPTIVE_AVG_POOL2D;
    default:
        return written;
    }
}

/* Layers for images and layers for sequences do not mix: PyTorch's model would need
 * other shapes between them. */
static ps_err check_axes(const ps_model_spec *spec, const ps_layer_settings *s,
                         const ps_layer *layer)
{
    const int axes = ps_layer_kind_axes(s->kind);
    char text[PS_DIMS_TEXT];
    if (axes == 2 && spec->sequences)
        return layer_error(layer, s->at,
                           "is for images; the model's input is [channels, length]: "
                           "take conv1d, batch_norm1d, max_pool1d, avg_pool1d or "
                           "adaptive_avg_pool1d; of pictures (N, H, W) it is [1, H, W]");
    if (axes == 1 && !spec->sequences && layer->in.n != 1)
        return layer_error(layer, s->at,
                           "input is %s; it is for models whose model.input is "
                           "[channels, length]",
                           ps_dims_text(&layer->in, text));
    return PS_OK;
}

ps_err ps_layer_infer(ps_model_spec *spec, const ps_layer_settings *s, ps_layer *layer)
{
    char text[PS_DIMS_TEXT];
    layer->written = s->kind;
    layer->kind = kind_of(s->kind);
    PS_TRY(check_axes(spec, s, layer));
    PS_TRY(infer[s->kind](spec, s, layer));
    if (ps_dims_count_max(&layer->out, PS_LAYER_COUNT_MAX) >= 1) return PS_OK;
    return layer_error(layer, s->at, "output %s has more than %" PRId64 " elements",
                       ps_dims_text(&layer->out, text), PS_LAYER_COUNT_MAX);
}
