#include "value_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

json_t *ps_number_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *groups_json(const ps_group_list *groups)
{
    json_t *out = json_array();
    for (int i = 0; i < groups->n; i++) {
        const ps_group_setting *g = &groups->v[i];
        json_array_append_new(out, json_pack("{s:o, s:o, s:o}", "match",
                                             patterns_json(g->match), "lr",
                                             ps_number_json(g->lr), "weight_decay",
                                             ps_number_json(g->weight_decay)));
    }
    return out;
}

json_t *ps_count_json(uint64_t n)
{
    char text[24];
    if (n <= INT64_MAX) return json_integer((json_int_t)n);
    snprintf(text, sizeof text, "%" PRIu64, n);
    return json_string(text);
}

json_t *ps_yaml_json(const ps_yaml *node)
{
    if (!node) return json_null();
    if (node->kind == PS_YAML_SCALAR)
        return node->text ? json_string(node->text) : json_null();
    bool is_map = node->kind == PS_YAML_MAP;
    json_t *out = is_map ? json_object() : json_array();
    for (int i = 0; i < node->n_items; i++) {
        json_t *item = ps_yaml_json(node->items[i]);
        if (is_map)
            json_object_set_new(out, node->items[i]->key, item);
        else
            json_array_append_new(out, item);
    }
    return out;
}

json_t *ps_config_value_json(const ps_config *cfg, const ps_config_key *key)
{
    const void *at = ps_config_field(cfg, key);
    switch (key->type) {
    case PS_KEY_BOOL:
        return json_boolean(*(const bool *)at);
    case PS_KEY_INT:
    case PS_KEY_BYTES:
        return json_integer(*(const int64_t *)at);
    case PS_KEY_RANGE:
        return range_json(at);
    case PS_KEY_UINT64:
        return ps_count_json(*(const uint64_t *)at);
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
    case PS_KEY_NAMES:
    case PS_KEY_PATTERNS:
        return patterns_json(*(const ps_patterns *)at);
    case PS_KEY_GROUPS:
        return groups_json(at);
    }
    return json_null();
}

/* ---- of a job that goes on ---- */

static const char *hash_text(const ps_config *cfg, char out[24])
{
    snprintf(out, 24, "%016" PRIx64, ps_config_hash_layers(cfg));
    return out;
}

json_t *ps_config_kept_json(const ps_config *cfg)
{
    char layers[24];
    json_t *out = json_pack("{s:s}", PS_CONFIG_LAYERS, hash_text(cfg, layers));
    for (int i = 0; out && i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        if (key->resume == PS_RESUME_FREE) continue;
        if (json_object_set_new(out, key->path, ps_config_value_json(cfg, key)) == 0)
            continue;
        json_decref(out);
        out = NULL;
    }
    return out;
}

/* A list that is cut where it does not fit. */
typedef struct list {
    char *text;
    size_t used, bytes;
} list;

__attribute__((format(printf, 2, 3))) static void list_add(list *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(l->text + l->used, l->bytes - l->used, fmt, args);
    va_end(args);
    l->used += (size_t)n < l->bytes - l->used ? (size_t)n : l->bytes - l->used - 1;
}

/* For people: six digits, and texts without quotes. Owned by the caller. */
static char *value_text(const json_t *value)
{
    if (json_is_string(value)) return strdup(json_string_value(value));
    return json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
}

static ps_err value_refuse(const ps_config *cfg, const char *path, const char *was,
                           const char *is)
{
    const ps_yaml *at = ps_yaml_path(cfg->tree, path);
    return ps_yaml_error(
        at ? at : cfg->tree,
        "%s: the checkpoint is of a job with %s, not %s: go on with that, "
        "or begin a new job from its weights (train.init)",
        path, was, is);
}

static ps_err value_compare(const ps_config *cfg, const ps_config_key *key,
                            const json_t *then, const json_t *now, list *changed)
{
    char *was = value_text(then), *is = value_text(now);
    ps_err err = PS_OK;
    if (!was || !is)
        err = ps_err_set(PS_ERR_NOMEM, "no memory for the checkpoint's settings");
    else if (key->resume == PS_RESUME_REFUSED)
        err = value_refuse(cfg, key->path, was, is);
    else
        list_add(changed, "%s%s: %s, was %s", changed->used ? "; " : "", key->path, is,
                 was);
    free(was);
    free(is);
    return err;
}

ps_err ps_config_compare_kept(const ps_config *cfg, const json_t *kept, char *changed,
                              size_t bytes)
{
    char hash[24];
    list l = {changed, 0, bytes};
    changed[0] = '\0';
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        const json_t *then = json_object_get(kept, key->path);
        if (key->resume == PS_RESUME_FREE || !then) continue;
        json_t *now = ps_config_value_json(cfg, key);
        ps_err err =
            json_equal(then, now) ? PS_OK : value_compare(cfg, key, then, now, &l);
        json_decref(now);
        PS_TRY(err);
    }
    const char *layers = json_string_value(json_object_get(kept, PS_CONFIG_LAYERS));
    if (layers && strcmp(layers, hash_text(cfg, hash)) != 0)
        list_add(&l, "%s%s: another list", l.used ? "; " : "", PS_CONFIG_LAYERS);
    return PS_OK;
}
