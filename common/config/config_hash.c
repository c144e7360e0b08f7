/* What the members of a job compare: the hashes of a configuration's keys. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config_schema.h"
#include "hash.h"
#include "parse_text.h"

static void hash_groups(ps_hash *h, const ps_group_list *groups)
{
    ps_hash_u64(h, (uint64_t)groups->n);
    for (int i = 0; i < groups->n; i++) {
        const ps_group_setting *g = &groups->v[i];
        ps_hash_string(h, g->match);
        ps_hash_double(h, isnan(g->lr) ? -1 : g->lr); // neither is below 0
        ps_hash_double(h, isnan(g->weight_decay) ? -1 : g->weight_decay);
    }
}

static void hash_value(ps_hash *h, const ps_config *cfg, const ps_config_key *key)
{
    const void *value = ps_config_field(cfg, key);
    const ps_int_list *ints = value;
    const ps_float_list *floats = value;
    const ps_int_range *range = value;
    switch (key->type) {
    case PS_KEY_RANGE:
        ps_hash_u64(h, (uint64_t)range->min);
        ps_hash_u64(h, (uint64_t)range->max);
        break;
    case PS_KEY_BOOL:
        ps_hash_u64(h, *(const bool *)value);
        break;
    case PS_KEY_INT:
    case PS_KEY_BYTES:
    case PS_KEY_UINT64:
        ps_hash_u64(h, *(const uint64_t *)value);
        break;
    case PS_KEY_DOUBLE:
        ps_hash_double(h, *(const double *)value);
        break;
    case PS_KEY_STRING:
    case PS_KEY_NAMES:
    case PS_KEY_PATTERNS:
        ps_hash_string(h, *(char *const *)value);
        break;
    case PS_KEY_WORD:
        ps_hash_string(h, ps_word_name(key->words, *(const int *)value));
        break;
    case PS_KEY_DEVICE: // of this machine only
        break;
    case PS_KEY_INT_LIST:
        ps_hash_u64(h, (uint64_t)ints->n);
        for (int i = 0; i < ints->n; i++)
            ps_hash_u64(h, (uint64_t)ints->v[i]);
        break;
    case PS_KEY_DOUBLE_LIST:
        ps_hash_u64(h, (uint64_t)floats->n);
        for (int i = 0; i < floats->n; i++)
            ps_hash_double(h, floats->v[i]);
        break;
    case PS_KEY_GROUPS:
        hash_groups(h, value);
        break;
    }
}

static uint64_t hash_node(const ps_yaml *node);

/* Numbers by value ("0.5" is "0.50"), words by their letters. */
static void hash_scalar(ps_hash *h, const char *text)
{
    double number;
    if (ps_parse_double(text, &number))
        ps_hash_double(h, number);
    else
        ps_hash_string(h, text);
}

static uint64_t hash_node(const ps_yaml *node)
{
    ps_hash h;
    uint64_t members = 0;
    ps_hash_init(&h);
    ps_hash_u64(&h, node->kind);
    if (node->kind == PS_YAML_SCALAR)
        hash_scalar(&h, node->text);
    else
        ps_hash_u64(&h, (uint64_t)node->n_items);
    for (int i = 0; i < node->n_items; i++) {
        uint64_t inner = hash_node(node->items[i]);
        if (node->kind == PS_YAML_LIST) {
            ps_hash_u64(&h, inner);
            continue;
        }
        ps_hash member; // added up, so that the order of keys does not matter
        ps_hash_init(&member);
        ps_hash_string(&member, node->items[i]->key);
        ps_hash_u64(&member, inner);
        members += ps_hash_value(&member);
    }
    ps_hash_u64(&h, members);
    return ps_hash_value(&h);
}

static size_t hash_value_bytes(const ps_config_key *key)
{
    static const size_t bytes[] = {[PS_KEY_BOOL] = sizeof(bool),
                                   [PS_KEY_INT] = sizeof(int64_t),
                                   [PS_KEY_UINT64] = sizeof(uint64_t),
                                   [PS_KEY_DOUBLE] = sizeof(double),
                                   [PS_KEY_BYTES] = sizeof(int64_t),
                                   [PS_KEY_STRING] = sizeof(char *),
                                   [PS_KEY_WORD] = sizeof(int),
                                   [PS_KEY_DEVICE] = sizeof(ps_device_choice),
                                   [PS_KEY_INT_LIST] = sizeof(ps_int_list),
                                   [PS_KEY_GROUPS] = sizeof(ps_group_list),
                                   [PS_KEY_DOUBLE_LIST] = sizeof(ps_float_list),
                                   [PS_KEY_NAMES] = sizeof(ps_names),
                                   [PS_KEY_PATTERNS] = sizeof(ps_patterns)};
    return bytes[key->type];
}

void ps_config_view(ps_config *out, const ps_config *local, const ps_config *job)
{
    *out = *local;
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        if (key->scope == PS_SCOPE_JOB)
            memcpy(ps_config_field(out, key), ps_config_field(job, key),
                   hash_value_bytes(key));
    }
    out->tree = job->tree;
}

const char *ps_config_difference(const ps_config *a, const ps_config *b)
{
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        ps_hash of_a, of_b;
        ps_hash_init(&of_a);
        ps_hash_init(&of_b);
        hash_value(&of_a, a, key);
        hash_value(&of_b, b, key);
        if (key->scope == PS_SCOPE_JOB && ps_hash_value(&of_a) != ps_hash_value(&of_b))
            return key->path;
    }
    return NULL;
}

uint64_t ps_config_hash_layers(const ps_config *cfg)
{
    const ps_yaml *layers = ps_yaml_path(cfg->tree, PS_CONFIG_LAYERS);
    return layers ? hash_node(layers) : 0;
}

uint64_t ps_config_hash(const ps_config *cfg)
{
    ps_hash h;
    ps_hash_init(&h);
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        if (key->scope != PS_SCOPE_JOB) continue;
        ps_hash_string(&h, key->path);
        hash_value(&h, cfg, key);
    }
    ps_hash_u64(&h, ps_config_hash_layers(cfg));
    return ps_hash_value(&h);
}

int ps_config_section_of(ps_config_sections *s, const char *path)
{
    size_t n = strcspn(path, ".");
    int i = 0;
    while (i < s->n && (strncmp(s->names[i], path, n) != 0 || s->names[i][n]))
        i++;
    if (i == s->n && i < PS_CONFIG_SECTIONS_MAX - 1) {
        snprintf(s->names[i], sizeof s->names[i], "%.*s", (int)n, path);
        s->n++;
    }
    return i;
}

void ps_config_hash_sections(const ps_config *cfg, ps_config_sections *out)
{
    ps_hash hashes[PS_CONFIG_SECTIONS_MAX];
    *out = (ps_config_sections){0};
    for (int i = 0; i < PS_CONFIG_SECTIONS_MAX; i++)
        ps_hash_init(&hashes[i]);
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        if (key->scope != PS_SCOPE_JOB) continue;
        hash_value(&hashes[ps_config_section_of(out, key->path)], cfg, key);
    }
    ps_hash_u64(&hashes[ps_config_section_of(out, PS_CONFIG_LAYERS)],
                ps_config_hash_layers(cfg));
    for (int i = 0; i < out->n; i++)
        out->hashes[i] = ps_hash_value(&hashes[i]);
}
