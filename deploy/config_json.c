/* ps-config-json CONFIG [key=value ...]: prints the configuration as the workers read it,
 * with defaults and overrides, as JSON on standard output. psrun and the programs of
 * bench/ use it, so that only one program reads configurations.
 *
 *   {"file": "...", "keys": {"optimizer.lr": 0.001, ...}, "layers": [the YAML's tree],
 *    "n_params": n, "tensors": [{"name": "conv1.weight", "shape": [..], "role": r}, ...],
 *    "buffers": [...]}
 *
 * Scalars in layers are strings. role: weight, bias, norm; buffers: buffer, counter.
 * CONFIG "" is a job without a file and without a model: it has only the keys.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_schema.h"
#include "model_spec.h"

static json_t *ints_json(const ps_int_list *list)
{
    json_t *out = json_array();
    for (int i = 0; i < list->n; i++)
        json_array_append_new(out, json_integer(list->v[i]));
    return out;
}

static json_t *doubles_json(const ps_float_list *list)
{
    json_t *out = json_array();
    for (int i = 0; i < list->n; i++)
        json_array_append_new(out, json_real(list->v[i]));
    return out;
}

/* A number, or [min, max]. */
static json_t *range_json(const ps_int_range *range)
{
    if (range->min == range->max) return json_integer(range->min);
    return json_pack("[I, I]", (json_int_t)range->min, (json_int_t)range->max);
}

static json_t *patterns_json(const char *lines)
{
    json_t *out = json_array();
    for (const char *at = lines; *at; at = strchr(at, '\n') + 1)
        json_array_append_new(out, json_stringn(at, strcspn(at, "\n")));
    return out;
}

static json_t *number_json(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static json_t *groups_json(const ps_group_list *groups)
{
    json_t *out = json_array();
    for (int i = 0; i < groups->n; i++) {
        const ps_group_setting *g = &groups->v[i];
        json_array_append_new(out,
                              json_pack("{s:o, s:o, s:o}", "match",
                                        patterns_json(g->match), "lr", number_json(g->lr),
                                        "weight_decay", number_json(g->weight_decay)));
    }
    return out;
}

static json_t *value_json(const ps_config *cfg, const ps_config_key *key)
{
    const void *at = (const char *)cfg + key->offset;
    switch (key->type) {
    case PS_KEY_BOOL:
        return json_boolean(*(const bool *)at);
    case PS_KEY_INT:
    case PS_KEY_BYTES:
        return json_integer(*(const int64_t *)at);
    case PS_KEY_RANGE:
        return range_json(at);
    case PS_KEY_UINT64:
        return json_integer((json_int_t) * (const uint64_t *)at);
    case PS_KEY_DOUBLE:
        return json_real(*(const double *)at);
    case PS_KEY_STRING:
        return json_string(*(char *const *)at);
    case PS_KEY_WORD:
        return json_string(ps_word_name(key->words, *(const int *)at));
    case PS_KEY_DEVICE:
        return json_string(ps_device_choice_text(*(const ps_device_choice *)at,
                                                 (char[PS_DEVICE_TEXT]){0}));
    case PS_KEY_INT_LIST:
        return ints_json(at);
    case PS_KEY_DOUBLE_LIST:
        return doubles_json(at);
    case PS_KEY_PATTERNS:
        return patterns_json(*(const ps_patterns *)at);
    case PS_KEY_GROUPS:
        return groups_json(at);
    }
    return json_null();
}

static json_t *tree_json(const ps_yaml *node)
{
    if (!node) return json_null();
    if (node->kind == PS_YAML_SCALAR)
        return node->text ? json_string(node->text) : json_null();
    bool is_map = node->kind == PS_YAML_MAP;
    json_t *out = is_map ? json_object() : json_array();
    for (int i = 0; i < node->n_items; i++) {
        json_t *item = tree_json(node->items[i]);
        if (is_map)
            json_object_set_new(out, node->items[i]->key, item);
        else
            json_array_append_new(out, item);
    }
    return out;
}

static json_t *tensors_json(const ps_tensor *tensors, int n)
{
    static const char *const roles[] = {"weight", "bias", "norm", "buffer", "counter"};
    json_t *out = json_array();
    for (int i = 0; i < n; i++) {
        json_t *shape = json_array();
        for (int d = 0; d < tensors[i].dims.n; d++)
            json_array_append_new(shape, json_integer(tensors[i].dims.d[d]));
        json_array_append_new(out,
                              json_pack("{s:s, s:o, s:s}", "name", tensors[i].name,
                                        "shape", shape, "role", roles[tensors[i].role]));
    }
    return out;
}

static ps_err print_job(const ps_config *cfg)
{
    ps_model_spec spec = {0};
    ps_err err = cfg->file[0] ? ps_model_spec_init(&spec, cfg) : PS_OK;
    if (err != PS_OK) {
        ps_model_spec_fini(&spec);
        return err;
    }
    json_t *keys = json_object();
    for (int i = 0; i < ps_config_n_keys; i++)
        json_object_set_new(keys, ps_config_keys[i].path,
                            value_json(cfg, &ps_config_keys[i]));
    json_t *job =
        json_pack("{s:s, s:o, s:o, s:I, s:o, s:o}", "file", cfg->file, "keys", keys,
                  "layers", tree_json(ps_yaml_path(cfg->tree, "model.layers")),
                  "n_params", (json_int_t)spec.table.n_params, "tensors",
                  tensors_json(spec.table.tensors, spec.table.n_tensors), "buffers",
                  tensors_json(spec.table.buffers, spec.table.n_buffers));
    if (!job || json_dumpf(job, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) != 0)
        err = ps_err_set(PS_ERR_IO, "the configuration cannot be written as JSON");
    json_decref(job);
    putchar('\n');
    ps_model_spec_fini(&spec);
    return err;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: ps-config-json CONFIG [key=value ...]\n");
        return 2;
    }
    ps_config cfg;
    const char *const *overrides = (const char *const *)argv + 2;
    ps_err err = ps_config_load(&cfg, argv[1], overrides, argc - 2);
    if (err == PS_OK) err = print_job(&cfg);
    ps_config_fini(&cfg);
    if (err == PS_OK) return 0;
    fprintf(stderr, "ps-config-json: %s\n", ps_err_message());
    return 1;
}
