#include "param_patterns.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "nearest_name.h"

enum { MAX_PATTERN = 256, MAX_KNOWN = 4096 };

/* The first pattern of lines; false at their end. A longer one is cut, and matches
 * nothing. */
static bool next_pattern(const char **lines, char out[MAX_PATTERN])
{
    if (!**lines) return false;
    const size_t n = strcspn(*lines, "\n");
    snprintf(out, MAX_PATTERN, "%.*s", (int)n, *lines);
    *lines += n + 1;
    return true;
}

/* Whether one of the patterns matches. */
static bool patterns_match(const char *patterns, const char *name)
{
    char pattern[MAX_PATTERN];
    while (next_pattern(&patterns, pattern))
        if (fnmatch(pattern, name, 0) == 0) return true;
    return false;
}

/* --- a pattern that matches nothing ------------------------------------------------- */

static int n_params(const ps_tensor_table *table)
{
    return table->n_tensors + table->n_frozen;
}

/* Parameter i: the trained ones, then the frozen. */
static const char *name_of(const ps_tensor_table *table, int i)
{
    if (i < table->n_tensors) return table->tensors[i].name;
    const int other = table->n_buffers - table->n_frozen;
    return table->buffers[other + i - table->n_tensors].name;
}

static bool names_layer(const char *pattern, const char *name)
{
    const size_t n = strlen(pattern);
    return strncmp(pattern, name, n) == 0 && name[n] == '.';
}

/* "conv1.*" for a layer's name, the nearest name, or all that fit into the text. */
static void patterns_hint(const char *pattern, const ps_tensor_table *table, char *out,
                          size_t bytes)
{
    const char *known[MAX_KNOWN] = {NULL}, *near;
    int n = 0;
    size_t used;
    for (int i = 0; i < n_params(table) && n < MAX_KNOWN; i++) {
        known[n++] = name_of(table, i);
        if (!names_layer(pattern, known[n - 1])) continue;
        snprintf(out, bytes, "for the layer write '%s.*'", pattern);
        return;
    }
    near = ps_nearest_name(pattern, known, n);
    if (near) {
        snprintf(out, bytes, "did you mean %s?", near);
        return;
    }
    used = (size_t)snprintf(out, bytes, "it has");
    for (int i = 0; i < n; i++) {
        if (used + strlen(known[i]) + 8 > bytes) {
            snprintf(out + used, bytes - used, ", ...");
            return;
        }
        used +=
            (size_t)snprintf(out + used, bytes - used, "%s %s", i ? "," : "", known[i]);
    }
}

/* Every pattern has to match a parameter of the table (trained or frozen). CONFIG names
 * key, place, pattern, and parameters that may have been meant. */
static ps_err patterns_check(const ps_config *cfg, const char *key, const char *patterns,
                             const ps_tensor_table *table)
{
    char pattern[MAX_PATTERN], text[160];
    while (next_pattern(&patterns, pattern)) {
        bool found = false;
        for (int i = 0; i < n_params(table) && !found; i++)
            found = fnmatch(pattern, name_of(table, i), 0) == 0;
        if (found) continue;
        const ps_yaml *at = ps_yaml_path(cfg->tree, key);
        patterns_hint(pattern, table, text, sizeof text);
        return ps_yaml_error(at ? at : cfg->tree,
                             "%s: '%.80s' matches no parameter of the model; %s", key,
                             pattern, text);
    }
    return PS_OK;
}

/* --- freezing ----------------------------------------------------------------------- */

static ps_err patterns_move(const ps_tensor *t, bool freeze, ps_tensor_table *out,
                            int *index)
{
    if (!freeze)
        return ps_tensor_table_add(out, t->name, t->dims, t->role, t->fan_in, index);
    const uint64_t before = out->buffer_bytes;
    PS_TRY(ps_tensor_table_add_buffer(out, t->name, t->dims, t->role, index));
    out->buffers[*index].fan_in = t->fan_in;
    out->frozen_bytes += out->buffer_bytes - before;
    out->n_frozen++;
    return PS_OK;
}

/* The same buffers, then the parameters. */
static ps_err sort_out(const char *patterns, const ps_tensor_table *table,
                       ps_tensor_table *out, int *map)
{
    int index;
    for (int i = 0; i < table->n_buffers; i++) {
        const ps_tensor *t = &table->buffers[i];
        PS_TRY(ps_tensor_table_add_buffer(out, t->name, t->dims, t->role, &index));
    }
    for (int i = 0; i < table->n_tensors; i++) {
        const ps_tensor *t = &table->tensors[i];
        PS_TRY(patterns_move(t, patterns_match(patterns, t->name), out, &map[i]));
    }
    for (int i = 0; i < table->n_tensors; i++) // buffers come after the parameters
        if (patterns_match(patterns, table->tensors[i].name)) map[i] += out->n_tensors;
    return PS_OK;
}

ps_err ps_patterns_freeze(const ps_config *cfg, ps_tensor_table *table, int *map)
{
    static const char KEY[] = "train.freeze";
    ps_tensor_table out = {0};
    PS_TRY(patterns_check(cfg, KEY, cfg->train.freeze, table));
    ps_err err = sort_out(cfg->train.freeze, table, &out, map);
    if (err == PS_OK && out.n_tensors == 0)
        err = ps_yaml_error(
            ps_yaml_path(cfg->tree, KEY),
            "%s: all parameters of the model are frozen: leave some to train", KEY);
    if (err != PS_OK) {
        ps_tensor_table_fini(&out);
        return err;
    }
    ps_tensor_table_fini(table);
    *table = out;
    return PS_OK;
}

/* --- groups ------------------------------------------------------------------------- */

static int patterns_group_of(const ps_group_list *groups, const char *name)
{
    for (int i = 0; i < groups->n; i++)
        if (patterns_match(groups->v[i].match, name)) return i + 1;
    return 0;
}

ps_err ps_patterns_group(const ps_config *cfg, ps_tensor_table *table)
{
    const ps_group_list *groups = &cfg->optimizer.groups;
    for (int i = 0; i < groups->n; i++)
        PS_TRY(patterns_check(cfg, "optimizer.groups", groups->v[i].match, table));
    for (int i = 0; i < table->n_tensors; i++)
        table->tensors[i].group = patterns_group_of(groups, table->tensors[i].name);
    return PS_OK;
}
