#include "config_read.h"

#include <math.h>
#include <string.h>

#include "mem.h"
#include "nearest_name.h"
#include "parse_text.h"

enum { PATH_BYTES = 256, MAX_KEYS = 256 };

/* ---- values ---- */

static ps_err wrong_type(const ps_config_key *key, const ps_yaml *at)
{
    const char *want = ps_key_type_text(key->type);
    if (at->kind != PS_YAML_SCALAR)
        return ps_yaml_error(at, "%s: has to be %s, not a %s", key->path, want,
                             at->kind == PS_YAML_LIST ? "list" : "map");
    if (at->text[0] == '\0')
        return ps_yaml_error(at, "%s: is empty; it has to be %s", key->path, want);
    return ps_yaml_error(at, "%s: '%.60s' is not %s", key->path, at->text, want);
}

static ps_err config_read_check_range(const ps_config_key *key, const ps_yaml *at,
                                      double v)
{
    if (key->min == key->max) return PS_OK;
    if (v < key->min)
        return ps_yaml_error(at, "%s: %.10g is below %.10g", key->path, v, key->min);
    if (v > key->max)
        return ps_yaml_error(at, "%s: %.10g is above %.10g", key->path, v, key->max);
    return PS_OK;
}

static ps_err read_int(const ps_config_key *key, const ps_yaml *at, int64_t *out)
{
    bool ok = false;
    if (at->kind != PS_YAML_SCALAR) return wrong_type(key, at);
    // auto is the key's least value: 0, or PS_CONFIG_AUTO. Of the lists, one alone may be
    // 0.
    const bool automatic =
        key->min <= 0 && (key->type == PS_KEY_INT_LIST || strcmp(key->text, "auto") == 0);
    if (automatic && strcmp(at->text, "auto") == 0) {
        *out = (int64_t)key->min;
        return PS_OK;
    }
    if (key->type == PS_KEY_BYTES) ok = ps_parse_bytes(at->text, out);
    if (!ok) ok = ps_parse_int(at->text, out);
    return ok ? config_read_check_range(key, at, (double)*out) : wrong_type(key, at);
}

/* "2..8", or a number. */
static ps_err read_range(const ps_config_key *key, const ps_yaml *at, ps_int_range *out)
{
    char low[32];
    const char *dots = at->kind == PS_YAML_SCALAR ? strstr(at->text, "..") : NULL;
    if (!dots) {
        PS_TRY(read_int(key, at, &out->min));
        out->max = out->min;
        return PS_OK;
    }
    snprintf(low, sizeof low, "%.*s", (int)(dots - at->text), at->text);
    if (!ps_parse_int(low, &out->min) || !ps_parse_int(dots + 2, &out->max))
        return wrong_type(key, at);
    PS_TRY(config_read_check_range(key, at, (double)out->min));
    PS_TRY(config_read_check_range(key, at, (double)out->max));
    if (out->min <= out->max) return PS_OK;
    return ps_yaml_error(at, "%s: '%.60s' ends before it begins", key->path, at->text);
}

static ps_err read_double(const ps_config_key *key, const ps_yaml *at, double *out)
{
    if (at->kind != PS_YAML_SCALAR || !ps_parse_double(at->text, out))
        return wrong_type(key, at);
    return config_read_check_range(key, at, *out);
}

/* A word of the key's table, or a device. */
static ps_err read_word(const ps_config_key *key, const ps_yaml *at, void *out)
{
    char range[160];
    if (at->kind != PS_YAML_SCALAR) return wrong_type(key, at);
    if (key->type == PS_KEY_DEVICE ? ps_device_choice_parse(at->text, out)
                                   : ps_word_find(key->words, at->text, out))
        return PS_OK;
    ps_config_key_range(key, range, sizeof range);
    return ps_yaml_error(at, "%s: '%.60s' is not one of %s", key->path, at->text, range);
}

/* A list, or one value that stands for a list of one. */
static ps_err config_read_list(const ps_config_key *key, const ps_yaml *at, void *out)
{
    ps_int_list *ints = out;
    ps_float_list *floats = out;
    int n = at->kind == PS_YAML_LIST ? at->n_items : 1;
    if (at->kind == PS_YAML_MAP) return wrong_type(key, at);
    if (n > PS_CONFIG_LIST_MAX)
        return ps_yaml_error(at, "%s: more than %d values", key->path,
                             PS_CONFIG_LIST_MAX);
    for (int i = 0; i < n; i++) {
        const ps_yaml *item = at->kind == PS_YAML_LIST ? at->items[i] : at;
        if (key->type == PS_KEY_INT_LIST)
            PS_TRY(read_int(key, item, &ints->v[i]));
        else
            PS_TRY(read_double(key, item, &floats->v[i]));
    }
    if (key->type == PS_KEY_INT_LIST)
        ints->n = n;
    else
        floats->n = n;
    return PS_OK;
}

/* One pattern or name, or a list of them; like: what it has to be. */
static ps_err read_names(const char *path, const ps_yaml *at, const char *like,
                         char **out)
{
    const int n = at->kind == PS_YAML_LIST ? at->n_items : 1;
    size_t bytes = 1;
    for (int i = 0; i < n; i++) {
        const ps_yaml *item = at->kind == PS_YAML_LIST ? at->items[i] : at;
        if (item->kind != PS_YAML_SCALAR || !item->text[0] || strchr(item->text, '\n'))
            return ps_yaml_error(item, "%s: has to be %s", path, like);
        bytes += strlen(item->text) + 1;
    }
    PS_TRY(ps_mem_zalloc(out, bytes, 1, path));
    for (int i = 0; i < n; i++) {
        const ps_yaml *item = at->kind == PS_YAML_LIST ? at->items[i] : at;
        strcat(strcat(*out, item->text), "\n");
    }
    return PS_OK;
}

static ps_err read_patterns(const char *path, const ps_yaml *at, ps_patterns *out)
{
    return read_names(path, at,
                      "patterns of parameter names, such as [conv1.*, '*.bias']", out);
}

/* A number of a group, from 0 on. */
static ps_err read_group_number(const char *path, const ps_yaml *at, double *out)
{
    char name[PATH_BYTES];
    snprintf(name, sizeof name, "%s: %s", path, at->key);
    const ps_config_key key = {.path = name, .type = PS_KEY_DOUBLE, .max = 1e9};
    return read_double(&key, at, out);
}

static ps_err read_group(const char *path, const ps_yaml *at, ps_group_setting *out)
{
    static const char form[] = "{match: ['*.bias'], weight_decay: 0}";
    if (at->kind != PS_YAML_MAP)
        return ps_yaml_error(at, "%s: a group looks like %s", path, form);
    out->lr = out->weight_decay = NAN;
    for (int i = 0; i < at->n_items; i++) {
        const ps_yaml *item = at->items[i];
        if (strcmp(item->key, "match") == 0)
            PS_TRY(read_patterns(path, item, &out->match));
        else if (strcmp(item->key, "lr") == 0)
            PS_TRY(read_group_number(path, item, &out->lr));
        else if (strcmp(item->key, "weight_decay") == 0)
            PS_TRY(read_group_number(path, item, &out->weight_decay));
        else
            return ps_yaml_error(item,
                                 "%s: a group has no '%.60s'; it has match, lr and "
                                 "weight_decay",
                                 path, item->key);
    }
    if (!out->match || !out->match[0])
        return ps_yaml_error(at, "%s: a group needs match, as in %s", path, form);
    if (isnan(out->lr) && isnan(out->weight_decay))
        return ps_yaml_error(at, "%s: a group needs lr or weight_decay, as in %s", path,
                             form);
    return PS_OK;
}

static ps_err config_read_groups(const ps_config_key *key, const ps_yaml *at,
                                 ps_group_list *out)
{
    if (at->kind != PS_YAML_LIST) return wrong_type(key, at);
    if (at->n_items > PS_CONFIG_GROUPS_MAX)
        return ps_yaml_error(at, "%s: more than %d groups", key->path,
                             PS_CONFIG_GROUPS_MAX);
    while (out->n < at->n_items) {
        const int i = out->n++; // counted first: what it has is freed in any case
        PS_TRY(read_group(key->path, at->items[i], &out->v[i]));
    }
    return PS_OK;
}

ps_err ps_config_read_value(ps_config *cfg, const ps_config_key *key, const ps_yaml *at)
{
    void *out = ps_config_field(cfg, key);
    bool scalar = at->kind == PS_YAML_SCALAR;
    switch (key->type) {
    case PS_KEY_BOOL:
        return scalar && ps_parse_bool(at->text, out) ? PS_OK : wrong_type(key, at);
    case PS_KEY_UINT64:
        return scalar && ps_parse_uint(at->text, out) ? PS_OK : wrong_type(key, at);
    case PS_KEY_INT:
    case PS_KEY_BYTES:
        return read_int(key, at, out);
    case PS_KEY_RANGE:
        return read_range(key, at, out);
    case PS_KEY_DOUBLE:
        return read_double(key, at, out);
    case PS_KEY_STRING:
        return scalar ? ps_mem_strdup(out, at->text) : wrong_type(key, at);
    case PS_KEY_WORD:
    case PS_KEY_DEVICE:
        return read_word(key, at, out);
    case PS_KEY_INT_LIST:
    case PS_KEY_DOUBLE_LIST:
        return config_read_list(key, at, out);
    case PS_KEY_NAMES:
        return read_names(key->path, at, "a name or a list of names, such as [id, date]",
                          out);
    case PS_KEY_PATTERNS:
        return read_patterns(key->path, at, out);
    case PS_KEY_GROUPS:
        return config_read_groups(key, at, out);
    }
    return PS_OK;
}

/* Through the same reader as a file's value. Making a parser takes much longer than
 * reading a word, so only lists get one. */
ps_err ps_config_read_default(ps_config *cfg, const ps_config_key *key)
{
    ps_yaml *tree = NULL;
    if (key->type == PS_KEY_STRING)
        return ps_mem_strdup(ps_config_field(cfg, key), key->text);
    if (!strchr("[{", *key->text)) {
        const ps_yaml word = {
            .kind = PS_YAML_SCALAR, .text = (char *)key->text, .file = "default"};
        return ps_config_read_value(cfg, key, &word);
    }
    PS_TRY(ps_yaml_parse("default", key->text, strlen(key->text), &tree));
    ps_err err = ps_config_read_value(cfg, key, tree);
    ps_yaml_destroy(&tree);
    return err;
}

/* ---- unknown keys ---- */

static ps_err unknown_section(const ps_yaml *at, const char *path)
{
    ps_config_sections all = {0};
    const char *known[PS_CONFIG_SECTIONS_MAX];
    for (int i = 0; i < ps_config_n_keys; i++)
        ps_config_section_of(&all, ps_config_keys[i].path);
    for (int i = 0; i < all.n; i++)
        known[i] = all.names[i];
    const char *near = ps_nearest_name(path, known, all.n);
    if (near)
        return ps_yaml_error(at, "%s: unknown section; did you mean %s?", path, near);
    return ps_yaml_error(at, "%s: unknown section (--help lists all keys)", path);
}

static ps_err unknown_key(const ps_yaml *at, const char *path)
{
    if (at->kind == PS_YAML_MAP && !strchr(path, '.')) return unknown_section(at, path);
    const char *known[MAX_KEYS];
    int n = 0;
    for (int i = 0; i < ps_config_n_keys && n < MAX_KEYS - 1; i++)
        known[n++] = ps_config_keys[i].path;
    known[n++] = PS_CONFIG_LAYERS;
    // "optimizer.lr" for "lr" and "train.lr"
    const char *dot = strrchr(path, '.'), *word = dot ? dot + 1 : path;
    char same[160];
    size_t used = 0;
    for (int i = 0; i < n; i++)
        if (strcmp(strrchr(known[i], '.') + 1, word) == 0 && used < sizeof same)
            used += (size_t)snprintf(same + used, sizeof same - used, "%s%s",
                                     used ? " or " : "", known[i]);
    const char *near = used ? same : ps_nearest_name(path, known, n);
    if (near) return ps_yaml_error(at, "%s: unknown key; did you mean %s?", path, near);
    return ps_yaml_error(at, "%s: unknown key (--help lists all)", path);
}

static bool is_section(const char *path)
{
    size_t n = strlen(path);
    for (int i = 0; i < ps_config_n_keys; i++) {
        const char *key = ps_config_keys[i].path;
        if (strncmp(key, path, n) == 0 && key[n] == '.') return true;
    }
    return false;
}

/* path: that of map ("" at the root). */
static ps_err check_keys(const ps_yaml *map, const char *path)
{
    for (int i = 0; i < map->n_items; i++) {
        const ps_yaml *item = map->items[i];
        char full[PATH_BYTES];
        snprintf(full, sizeof full, "%s%s%.100s", path, *path ? "." : "", item->key);
        if (strcmp(full, PS_CONFIG_LAYERS) == 0 || ps_config_key_find(full)) continue;
        if (!is_section(full)) return unknown_key(item, full);
        if (item->kind == PS_YAML_MAP)
            PS_TRY(check_keys(item, full));
        else if (item->kind == PS_YAML_LIST || item->text[0])
            return ps_yaml_error(
                item, "%s: is a section: write its keys below it, indented", full);
    }
    return PS_OK;
}

ps_err ps_config_check_keys(const ps_yaml *tree)
{
    return check_keys(tree, "");
}
