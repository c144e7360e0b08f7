#include "model_spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer_shapes.h"
#include "mem.h"
#include "param_patterns.h"

enum {
    MAX_LAYERS = 4096,
    MAX_DEPTH = 16, // of nested blocks
    MAX_PATH = 512,
    MAX_ROWS = 1 << 24, // float32 has all whole numbers up to it
};

typedef struct builder {
    ps_model_spec *spec;
    const ps_config *cfg;
    uint32_t room; // for layers
} builder;

/* Where the next layer takes its input from. */
typedef struct flow {
    int from; // a layer's index, or PS_INPUT
    ps_dims dims;
} flow;

/* Whether the layer's name is the prefix of the names inside. */
static bool is_block(ps_layer_kind kind)
{
    return kind == PS_LAYER_ADD || kind == PS_LAYER_CONCAT ||
           kind == PS_LAYER_INTERACTION;
}

/* Whether name is "outer.something". */
static bool is_within(const char *name, const char *outer)
{
    const size_t n = strlen(outer);
    return n > 0 && strncmp(name, outer, n) == 0 && name[n] == '.';
}

/* The layer that keeps another one from having this name; NULL: none. Two layers with the
 * same name would have tensors with the same name. And a layer is no folder: "l1.weight"
 * beside "l1" would be a tensor and a module at once in PyTorch. */
static const ps_layer *layer_in_the_way(const builder *b, const char *name)
{
    for (int i = 0; i < b->spec->n_layers; i++) {
        const ps_layer *other = &b->spec->layers[i];
        if (!is_block(other->kind) &&
            (strcmp(other->name, name) == 0 || is_within(name, other->name) ||
             is_within(other->name, name)))
            return other;
    }
    return NULL;
}

static ps_err check_unique(const builder *b, const ps_layer *layer, const ps_yaml *at)
{
    const ps_layer *other = layer_in_the_way(b, layer->name);
    if (!other) return PS_OK;
    if (strcmp(other->name, layer->name) == 0)
        return ps_err_set(PS_ERR_CONFIG,
                          "%s:%d: %s: the name \"%s\" is that of the layer of line "
                          "%d already",
                          at->file, at->line, ps_layer_kind_name(layer->written),
                          layer->name, other->line);
    return ps_err_set(PS_ERR_CONFIG,
                      "%s:%d: %s: of the names \"%s\" and \"%s\" (line %d) one lies "
                      "within the other: a layer has no layers in it",
                      at->file, at->line, ps_layer_kind_name(layer->written), layer->name,
                      other->name, other->line);
}

/* The layer's path: the block's prefix, then its own name, or its index in its list when
 * it needs a name and has none. Empty when it needs no name. */
static ps_err spec_path_of(const ps_layer_settings *s, const char *prefix, int index,
                           char out[MAX_PATH])
{
    char number[16];
    const char *name = s->name;
    const bool needed = ps_layer_kind_has_tensors(s->kind) || is_block(s->kind) ||
                        s->kind == PS_LAYER_EMBEDDING_BAG;
    snprintf(number, sizeof number, "%d", index);
    if (!name && needed) name = number;
    out[0] = '\0';
    if (!name) return PS_OK;
    int n = snprintf(out, MAX_PATH, "%s%s%s", prefix, prefix[0] ? "." : "", name);
    if (n < MAX_PATH) return PS_OK;
    return ps_yaml_error(s->at, "the name is longer than %d bytes", MAX_PATH - 1);
}

/* Whether a layer that stands in the list, or in a block of it, would have a name of
 * another one, by its place. by_place: the prefix is already. */
static bool has_names_of_others(const builder *b, const ps_yaml *list, const char *prefix,
                                bool by_place, int depth)
{
    for (int i = 0; i < list->n_items && depth <= MAX_DEPTH; i++) {
        ps_layer_settings s;
        char path[MAX_PATH];
        if (ps_layer_settings_read(list->items[i], &s) != PS_OK ||
            spec_path_of(&s, prefix, i, path) != PS_OK)
            return false; // the layer is refused as it is added
        const bool own = by_place || !s.name;
        const ps_yaml *parts[] = {s.body, s.shortcut};
        for (int k = 0; k < 2; k++)
            if (parts[k] && has_names_of_others(b, parts[k], path, own, depth + 1))
                return true;
        for (int k = 0; s.branches && k < s.branches->n_items; k++)
            if (has_names_of_others(b, s.branches->items[k], path, own, depth + 1))
                return true;
        if (own && path[0] && !is_block(s.kind) && layer_in_the_way(b, path)) return true;
    }
    return false;
}

/* The prefix of a block's further list: the block's path; or, where names would be there
 * twice, "<path>.<name>", as of a module of its own. */
static void further_prefix(const builder *b, const ps_yaml *list, const char *path,
                           const char *name, int depth, char out[MAX_PATH])
{
    const bool twice = has_names_of_others(b, list, path, false, depth);
    snprintf(out, MAX_PATH, twice ? "%s.%s" : "%s", path, name);
}

/* Appends the layer, whose inputs are a and, for an addition, b. */
static ps_err add_layer(builder *b, const ps_layer_settings *s, const char *path,
                        const flow *first, const flow *second, flow *out)
{
    ps_model_spec *spec = b->spec;
    if (spec->n_layers == MAX_LAYERS)
        return ps_yaml_error(s->at, "more than %d layers", MAX_LAYERS);
    PS_TRY(ps_mem_room(&spec->layers, (uint32_t)spec->n_layers, &b->room,
                       sizeof *spec->layers, "model"));
    ps_layer *layer = &spec->layers[spec->n_layers];
    *layer = (ps_layer){.written = s->kind,
                        .line = s->at->line,
                        .input = {first->from, second ? second->from : PS_NONE},
                        .n_inputs = second ? 2 : 1,
                        .in = first->dims,
                        .out = first->dims,
                        .weight = PS_NONE,
                        .bias = PS_NONE,
                        .running_mean = PS_NONE,
                        .running_var = PS_NONE,
                        .num_batches = PS_NONE};
    PS_TRY(ps_mem_strdup(&layer->name, path));
    spec->n_layers++; // its name is freed from here on
    PS_TRY(ps_layer_infer(spec, s, layer));
    if (!b->cfg->model.dropout) layer->p = 0.0;
    *out = (flow){spec->n_layers - 1, layer->out};
    return PS_OK;
}

static ps_err add_list(builder *b, const ps_yaml *list, const char *prefix, int depth,
                       flow *at);

static ps_err add_residual(builder *b, const ps_layer_settings *s, const char *path,
                           int depth, flow *at)
{
    flow body = *at, shortcut = *at;
    if (s->body->n_items == 0) return ps_yaml_error(s->at, "residual: body is empty");
    PS_TRY(add_list(b, s->body, path, depth + 1, &body));
    if (s->shortcut) {
        char prefix[MAX_PATH];
        further_prefix(b, s->shortcut, path, "shortcut", depth + 1, prefix);
        PS_TRY(add_list(b, s->shortcut, prefix, depth + 1, &shortcut));
    }
    if (!ps_dims_equal(&body.dims, &shortcut.dims)) {
        char from_body[PS_DIMS_TEXT], from_shortcut[PS_DIMS_TEXT];
        return ps_err_set(PS_ERR_SHAPE,
                          "%s:%d: residual %s: body gives %s, %s gives %s: they cannot "
                          "be added",
                          s->at->file, s->at->line, path,
                          ps_dims_text(&body.dims, from_body),
                          s->shortcut ? "shortcut" : "the identity",
                          ps_dims_text(&shortcut.dims, from_shortcut));
    }
    return add_layer(b, s, path, &body, &shortcut, at);
}

/* Any but the first. */
static ps_err add_branch(builder *b, const ps_layer_settings *s, int i, const char *path,
                         int depth, flow *at)
{
    char name[32], prefix[MAX_PATH];
    const ps_yaml *list = s->branches->items[i];
    snprintf(name, sizeof name, "branches.%d", i);
    further_prefix(b, list, path, name, depth + 1, prefix);
    return add_list(b, list, prefix, depth + 1, at);
}

/* Appends a layer for the second branch, and for each that follows: it puts the branch's
 * channels behind those of the branches before. */
static ps_err add_concat(builder *b, const ps_layer_settings *s, const char *path,
                         int depth, flow *at)
{
    flow sum = *at;
    PS_TRY(add_list(b, s->branches->items[0], path, depth + 1, &sum));
    for (int i = 1; i < s->branches->n_items; i++) {
        flow branch = *at;
        PS_TRY(add_branch(b, s, i, path, depth, &branch));
        PS_TRY(add_layer(b, s, path, &sum, &branch, &sum));
    }
    *at = sum;
    return PS_OK;
}

/* A layer of the first branch and, as one value, all others. */
static ps_err add_interaction(builder *b, const ps_layer_settings *s, const char *path,
                              int depth, flow *at)
{
    ps_layer_settings join = *s;
    flow first = *at, rest = *at;
    join.kind = PS_LAYER_CONCAT;
    PS_TRY(add_list(b, s->branches->items[0], path, depth + 1, &first));
    PS_TRY(add_branch(b, s, 1, path, depth, &rest));
    for (int i = 2; i < s->branches->n_items; i++) {
        flow branch = *at;
        PS_TRY(add_branch(b, s, i, path, depth, &branch));
        PS_TRY(add_layer(b, &join, path, &rest, &branch, &rest));
    }
    return add_layer(b, s, path, &first, &rest, at);
}

static ps_err add_item(builder *b, const ps_yaml *item, const char *prefix, int index,
                       int depth, flow *at)
{
    ps_layer_settings s;
    char path[MAX_PATH];
    PS_TRY(ps_layer_settings_read(item, &s));
    PS_TRY(spec_path_of(&s, prefix, index, path));
    if (is_block(s.kind) && depth == MAX_DEPTH)
        return ps_yaml_error(item, "%s: more than %d nested blocks",
                             ps_layer_kind_name(s.kind), MAX_DEPTH);
    if (s.kind == PS_LAYER_ADD) return add_residual(b, &s, path, depth, at);
    if (s.kind == PS_LAYER_CONCAT) return add_concat(b, &s, path, depth, at);
    if (s.kind == PS_LAYER_INTERACTION) return add_interaction(b, &s, path, depth, at);
    if (path[0]) {
        ps_layer named = {.written = s.kind, .name = path};
        PS_TRY(check_unique(b, &named, item));
    }
    return add_layer(b, &s, path, at, NULL, at);
}

static ps_err add_list(builder *b, const ps_yaml *list, const char *prefix, int depth,
                       flow *at)
{
    for (int i = 0; i < list->n_items; i++)
        PS_TRY(add_item(b, list->items[i], prefix, i, depth, at));
    return PS_OK;
}

/* Names the key's place, or the file where the key is not given. */
__attribute__((format(printf, 4, 5))) static ps_err
spec_error(const ps_config *cfg, ps_err code, const char *key, const char *fmt, ...)
{
    char text[PS_ERR_MESSAGE_BYTES];
    const ps_yaml *at = cfg->tree ? ps_yaml_path(cfg->tree, key) : NULL;
    const char *file = cfg->file && cfg->file[0] ? cfg->file : "configuration";
    PS_PRINT(text, fmt);
    if (at && at->line > 0)
        return ps_err_set(code, "%s:%d: %s: %s", at->file, at->line, key, text);
    return ps_err_set(code, "%s: %s: %s", at ? at->file : file, key, text);
}

static ps_err spec_set_input(builder *b)
{
    const ps_int_list *input = &b->cfg->model.input;
    ps_dims *dims = &b->spec->input;
    if (input->n == 0)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.input",
                          "is not given: psrun and ps-worker take it from the training "
                          "samples, which a server does not read: give it what "
                          "ps-worker --input prints");
    if (input->n < 1 || input->n > 3)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.input",
                          "has to be [channels, height, width], [channels, length] "
                          "or [features], not %d numbers",
                          input->n);
    dims->n = input->n;
    memcpy(dims->d, input->v, (size_t)input->n * sizeof dims->d[0]);
    for (int i = 0; i < dims->n; i++)
        if (dims->d[i] < 1)
            return spec_error(b->cfg, PS_ERR_CONFIG, "model.input",
                              "%" PRId64 " is below 1", dims->d[i]);
    b->spec->sequences = input->n == 2;
    if (input->n == 2) *dims = (ps_dims){3, {dims->d[0], 1, dims->d[1]}};
    if (ps_dims_count_max(dims, PS_LAYER_COUNT_MAX) < 1)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.input",
                          "more than %" PRId64 " values a sample", PS_LAYER_COUNT_MAX);
    return PS_OK;
}

static ps_err spec_set_categories(builder *b)
{
    const ps_int_list *list = &b->cfg->model.categories;
    ps_model_spec *spec = b->spec;
    int64_t rows = 0;
    if (list->n == 0) return PS_OK;
    for (int i = 0; i < list->n; i++)
        rows += list->v[i];
    if (spec->input.n != 1 || list->n > spec->input.d[0])
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.categories",
                          "%d inputs of categories: model.input has to be one number, "
                          "not below that",
                          list->n);
    if (rows >= MAX_ROWS)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.categories", "more than %d rows",
                          MAX_ROWS - 1);
    if (b->cfg->data.mixup > 0 || b->cfg->data.normalize.n > 0)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.categories",
                          "%s changes the numbers of categories: remove it, or set "
                          "data.encoding=onehot",
                          b->cfg->data.mixup > 0 ? "data.mixup" : "data.normalize");
    PS_TRY(PS_NEW(&spec->categories, (size_t)list->n, "model.categories"));
    memcpy(spec->categories, list->v, (size_t)list->n * sizeof *spec->categories);
    spec->n_categories = list->n;
    return PS_OK;
}

/* Categories get an embedding where the layers do not begin with one. */
static ps_err add_embedding(builder *b, const ps_yaml *layers, flow *at)
{
    ps_layer_settings s;
    if (b->spec->n_categories == 0) return PS_OK;
    if (ps_layer_settings_read(layers->items[0], &s) == PS_OK &&
        s.kind == PS_LAYER_EMBEDDING)
        return PS_OK;
    s = (ps_layer_settings){.kind = PS_LAYER_EMBEDDING, .at = layers};
    return add_layer(b, &s, "embedding", at, NULL, at);
}

static ps_err set_class_weights(builder *b)
{
    const ps_float_list *list = &b->cfg->train.class_weights;
    ps_model_spec *spec = b->spec;
    double sum = 0;
    if (list->n == 0) return PS_OK;
    if (list->n != spec->n_outputs)
        return spec_error(b->cfg, PS_ERR_CONFIG, "train.class_weights",
                          "%d weights; the model has %" PRId64 " classes", list->n,
                          spec->n_outputs);
    PS_TRY(PS_NEW(&spec->class_weights, (size_t)list->n, "train.class_weights"));
    for (int i = 0; i < list->n; i++)
        sum += spec->class_weights[i] = (float)list->v[i];
    if (sum > 0) return PS_OK;
    return spec_error(b->cfg, PS_ERR_CONFIG, "train.class_weights", "all weights are 0");
}

/* What only losses of classes have. */
static ps_err set_classes(builder *b)
{
    const ps_config_train *t = &b->cfg->train;
    ps_model_spec *spec = b->spec;
    const bool numbers = PS_LOSS_OF_NUMBERS(spec->loss);
    spec->label_smoothing = (float)t->label_smoothing;
    spec->ignore_index = (int32_t)t->ignore_index;
    if (!numbers) return set_class_weights(b);
    if (t->label_smoothing == 0 && t->class_weights.n == 0) return PS_OK;
    const char *key =
        t->class_weights.n ? "train.class_weights" : "train.label_smoothing";
    return spec_error(b->cfg, PS_ERR_CONFIG, key,
                      "is for the losses cross_entropy and nll");
}

/* Checks that the last layer's output is what the loss reads. */
static ps_err set_loss(builder *b, const flow *last)
{
    ps_model_spec *spec = b->spec;
    char text[PS_DIMS_TEXT];
    spec->loss = b->cfg->model.loss;
    if (last->dims.n != 1)
        return spec_error(b->cfg, PS_ERR_SHAPE, "model.loss",
                          "the last layer's output is %s; it has to be (classes): "
                          "end with flatten or linear",
                          ps_dims_text(&last->dims, text));
    bool logs = spec->layers[last->from].kind == PS_LAYER_LOG_SOFTMAX;
    if (spec->loss == PS_LOSS_NLL && !logs)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.loss",
                          "nll reads log-probabilities: end the layers with "
                          "log_softmax, or take cross_entropy");
    if (spec->loss == PS_LOSS_CROSS_ENTROPY && logs)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.loss",
                          "cross_entropy reads logits: leave log_softmax out, or "
                          "take nll");
    if (spec->loss == PS_LOSS_BCE_WITH_LOGITS &&
        spec->layers[last->from].kind == PS_LAYER_SIGMOID)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.loss",
                          "bce_with_logits reads logits: leave sigmoid out");
    spec->n_outputs = last->dims.d[0];
    return set_classes(b);
}

static void count_consumers(ps_model_spec *spec)
{
    for (int i = 0; i < spec->n_layers; i++)
        for (int k = 0; k < spec->layers[i].n_inputs; k++)
            if (spec->layers[i].input[k] != PS_INPUT)
                spec->layers[spec->layers[i].input[k]].n_consumers++;
    spec->layers[spec->n_layers - 1].n_consumers++; // the loss
}

static ps_err spec_freeze(builder *b)
{
    ps_model_spec *spec = b->spec;
    int *map = NULL;
    if (!b->cfg->train.freeze || !b->cfg->train.freeze[0]) return PS_OK;
    PS_TRY(PS_NEW(&map, (size_t)spec->table.n_tensors, "model"));
    ps_err err = ps_patterns_freeze(b->cfg, &spec->table, map);
    for (int i = 0; i < spec->n_layers && err == PS_OK; i++) {
        ps_layer *l = &spec->layers[i];
        if (l->weight != PS_NONE) l->weight = map[l->weight];
        if (l->bias != PS_NONE) l->bias = map[l->bias];
    }
    free(map);
    return err;
}

static ps_err spec_build(builder *b)
{
    const ps_yaml *layers =
        b->cfg->tree ? ps_yaml_path(b->cfg->tree, "model.layers") : NULL;
    PS_TRY(spec_set_input(b));
    if (!layers || layers->kind != PS_YAML_LIST || layers->n_items == 0)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.layers",
                          "has to be a list of layers");
    PS_TRY(spec_set_categories(b));
    flow last = {PS_INPUT, b->spec->input};
    PS_TRY(add_embedding(b, layers, &last));
    PS_TRY(add_list(b, layers, "", 0, &last));
    PS_TRY(set_loss(b, &last));
    if (b->spec->table.n_tensors == 0)
        return spec_error(b->cfg, PS_ERR_CONFIG, "model.layers",
                          "no layer has parameters to train");
    count_consumers(b->spec);
    for (int i = 0; i < b->spec->n_rows; i++)
        b->spec->rows[i].seed = (uint64_t)b->cfg->train.seed;
    PS_TRY(spec_freeze(b));
    return ps_patterns_group(b->cfg, &b->spec->table);
}

ps_err ps_model_spec_init(ps_model_spec *spec, const ps_config *cfg)
{
    *spec = (ps_model_spec){0};
    builder b = {.spec = spec, .cfg = cfg};
    return spec_build(&b);
}

ps_err ps_model_spec_check_rows(const ps_model_spec *spec, const ps_config *cfg)
{
    const bool rows = spec->n_rows > 0;
    const struct {
        bool wrong;
        const char *key, *mend;
    } cases[] = {
        {!rows && cfg->checkpoint.rows_full_every > 1, "checkpoint.rows_full_every",
         "has to be 1: there are no rows"},
        {!rows && cfg->rows.buddy, "rows.buddy", "has to be false: there are no rows"},
        {!rows && cfg->rows.policy == PS_POLICY_ASP, "rows.policy",
         "has to be bsp: there are no rows"},
        {rows && *cfg->server.rows_log && cfg->rows.policy != PS_POLICY_ASP,
         "server.rows_log", "needs rows.policy asp"},
        {rows && *cfg->server.rows_replay && cfg->rows.policy != PS_POLICY_ASP,
         "server.rows_replay", "needs rows.policy asp"},
        {rows && cfg->exchange.name != PS_EXCHANGE_PS, "exchange.name",
         "has to be ps: the rows live on servers (psrun -s 1)"},
        {rows && ps_config_two_levels(cfg), "exchange.levels", "has to be 1"},
        {rows && cfg->sync.policy != PS_POLICY_BSP, "sync.policy",
         "has to be bsp: rows have rows.policy"},
        {rows && cfg->train.ema > 0, "train.ema", "has to be 0: rows have no average"},
        {rows && cfg->data.mixup > 0, "data.mixup", "has to be 0: ids cannot be mixed"},
        {rows && cfg->loss_scale.use == PS_SWITCH_ON, "loss_scale.use",
         "has to be off: gradients of rows are not scaled"},
        {rows && cfg->train.precision == PS_PRECISION_FP16, "train.precision",
         "has to be float32 or bf16: gradients of rows are not scaled"},
        {rows && cfg->train.device.kind == PS_DEVICE_CUDA, "train.device",
         "has to be cpu"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].wrong)
            return spec_error(cfg, PS_ERR_CONFIG, cases[i].key, "%s embedding_bag it %s",
                              rows ? "with" : "without", cases[i].mend);
    return PS_OK;
}

/* Each element of an output is a sum of products with one output's weights. */
uint64_t ps_layer_products(const ps_model_spec *spec, const ps_layer *l)
{
    if (l->kind != PS_LAYER_CONV2D && l->kind != PS_LAYER_LINEAR) return 0;
    const uint64_t outputs = (uint64_t)l->out.d[0]; // channels or features
    return (uint64_t)ps_dims_count(&l->out) *
           (ps_tensor_table_at(&spec->table, l->weight)->count / outputs);
}

void ps_model_spec_fini(ps_model_spec *spec)
{
    for (int i = 0; i < spec->n_layers; i++)
        free(spec->layers[i].name);
    free(spec->layers);
    free(spec->class_weights);
    free(spec->categories);
    free(spec->rows);
    free(spec->columns);
    ps_tensor_table_fini(&spec->table);
    *spec = (ps_model_spec){0};
}
