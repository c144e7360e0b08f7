#include "layer_settings.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nearest_name.h"

enum {
    MAX_OUT = 1 << 24,
    MAX_KERNEL = 4096,
    MAX_NAME = 128,
    MAX_ALPHA = 1000,
};

const char *ps_layer_kind_name(ps_layer_kind kind)
{
    static const char *const names[] = {
#define PS_LAYER_NAME(name, text) text,
        PS_LAYER_MAP(PS_LAYER_NAME)
#undef PS_LAYER_NAME
    };
    return (unsigned)kind < PS_LAYER_KIND_COUNT ? names[kind] : "unknown";
}

/* The kind as a person writes it: an addition is written as the block that it ends. */
static const char *written_name(ps_layer_kind kind)
{
    return kind == PS_LAYER_ADD ? "residual" : ps_layer_kind_name(kind);
}

static ps_err read_name(const ps_yaml *at, ps_layer_settings *s)
{
    if (at->kind != PS_YAML_SCALAR || !at->text || !at->text[0])
        return ps_yaml_error(at, "name: has to be a text");
    if (strlen(at->text) > MAX_NAME)
        return ps_yaml_error(at, "name: longer than %d bytes", MAX_NAME);
    for (const char *c = at->text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return ps_yaml_error(at, "name: a control character");
    if (at->text[0] == '.' || at->text[strlen(at->text) - 1] == '.')
        return ps_yaml_error(at, "name: \"%s\" begins or ends with a dot", at->text);
    s->name = at->text;
    return PS_OK;
}

static ps_err read_out(const ps_yaml *at, ps_layer_settings *s)
{
    long long out = 0;
    PS_TRY(ps_yaml_int(at, 1, MAX_OUT, &out));
    s->out = out;
    return PS_OK;
}

/* One number for both, or [height, width]. */
static ps_err read_pair(const ps_yaml *at, int min, int out[2])
{
    if (at->kind == PS_YAML_LIST && at->n_items != 2)
        return ps_yaml_error(at, "%s: has to be one number or [height, width]",
                             at->key ? at->key : "kernel");
    for (int i = 0; i < 2; i++) {
        long long v = 0;
        const ps_yaml *from = at->kind == PS_YAML_LIST ? at->items[i] : at;
        PS_TRY(ps_yaml_int(from, min, MAX_KERNEL, &v));
        out[i] = (int)v;
    }
    return PS_OK;
}

static ps_err read_kernel(const ps_yaml *at, ps_layer_settings *s)
{
    s->global = s->kind == PS_LAYER_AVG_POOL2D && at->kind == PS_YAML_SCALAR &&
                at->text && strcmp(at->text, "global") == 0;
    return s->global ? PS_OK : read_pair(at, 1, s->kernel);
}

static ps_err read_stride(const ps_yaml *at, ps_layer_settings *s)
{
    return read_pair(at, 1, s->stride);
}

static ps_err read_padding(const ps_yaml *at, ps_layer_settings *s)
{
    return read_pair(at, 0, s->padding);
}

static ps_err read_dilation(const ps_yaml *at, ps_layer_settings *s)
{
    return read_pair(at, 1, s->dilation);
}

static ps_err read_groups(const ps_yaml *at, ps_layer_settings *s)
{
    long long groups = 0;
    PS_TRY(ps_yaml_int(at, 1, MAX_OUT, &groups));
    s->groups = groups;
    return PS_OK;
}

/* Below 0 the sign of the output would not tell the sign of the input. */
static ps_err read_alpha(const ps_yaml *at, ps_layer_settings *s)
{
    PS_TRY(ps_yaml_double(at, &s->alpha));
    if (s->alpha >= 0.0 && s->alpha <= MAX_ALPHA) return PS_OK;
    return ps_yaml_error(at, "%s: %g is not in [0, %d]", at->key ? at->key : "value",
                         s->alpha, MAX_ALPHA);
}

static ps_err read_bias(const ps_yaml *at, ps_layer_settings *s)
{
    int bias = 0;
    PS_TRY(ps_yaml_bool(at, &bias));
    s->bias = bias != 0;
    return PS_OK;
}

static ps_err read_p(const ps_yaml *at, ps_layer_settings *s)
{
    PS_TRY(ps_yaml_double(at, &s->p));
    if (s->p >= 0.0 && s->p < 1.0) return PS_OK;
    return ps_yaml_error(at, "dropout: %g is not in [0, 1)", s->p);
}

static ps_err read_eps(const ps_yaml *at, ps_layer_settings *s)
{
    PS_TRY(ps_yaml_double(at, &s->eps));
    if (s->eps > 0.0 && s->eps <= 1.0) return PS_OK;
    return ps_yaml_error(at, "eps: %g is not in (0, 1]", s->eps);
}

static ps_err read_momentum(const ps_yaml *at, ps_layer_settings *s)
{
    PS_TRY(ps_yaml_double(at, &s->momentum));
    if (s->momentum >= 0.0 && s->momentum <= 1.0) return PS_OK;
    return ps_yaml_error(at, "momentum: %g is not in [0, 1]", s->momentum);
}

static ps_err read_layers(const ps_yaml *at, ps_layer_settings *s)
{
    if (at->kind != PS_YAML_LIST)
        return ps_yaml_error(at, "%s: has to be a list of layers", at->key);
    *(strcmp(at->key, "body") == 0 ? &s->body : &s->shortcut) = at;
    return PS_OK;
}

#define KIND(name) (1u << PS_LAYER_##name)
#define POOLS      (KIND(MAX_POOL2D) | KIND(AVG_POOL2D))
#define ANY_KIND   ((1u << PS_LAYER_KIND_COUNT) - 1)

/* The kinds that take a setting, those that require it, and those for which a value alone
 * means this setting ("dropout: 0.25"). */
static const struct setting {
    const char *key;
    unsigned kinds, required, alone;
    ps_err (*read)(const ps_yaml *at, ps_layer_settings *s);
} settings[] = {
    {"name", ANY_KIND, 0, 0, read_name},
    {"out", KIND(CONV2D) | KIND(LINEAR), KIND(CONV2D) | KIND(LINEAR), KIND(LINEAR),
     read_out},
    {"kernel", KIND(CONV2D) | POOLS, KIND(CONV2D) | POOLS, POOLS, read_kernel},
    {"stride", KIND(CONV2D) | POOLS, 0, 0, read_stride},
    {"padding", KIND(CONV2D) | POOLS, 0, 0, read_padding},
    {"dilation", KIND(CONV2D), 0, 0, read_dilation},
    {"groups", KIND(CONV2D) | KIND(GROUP_NORM), KIND(GROUP_NORM), KIND(GROUP_NORM),
     read_groups},
    {"bias", KIND(CONV2D) | KIND(LINEAR), 0, 0, read_bias},
    {"negative_slope", KIND(LEAKY_RELU), 0, KIND(LEAKY_RELU), read_alpha},
    {"alpha", KIND(ELU), 0, KIND(ELU), read_alpha},
    {"p", KIND(DROPOUT), 0, KIND(DROPOUT), read_p},
    {"eps", KIND(BATCH_NORM2D) | KIND(GROUP_NORM) | KIND(LAYER_NORM), 0, 0, read_eps},
    {"momentum", KIND(BATCH_NORM2D), 0, 0, read_momentum},
    {"body", KIND(ADD), KIND(ADD), 0, read_layers},
    {"shortcut", KIND(ADD), 0, 0, read_layers},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static ps_err unknown(const ps_yaml *at, const char *what, const char *name,
                      const char *const *known, int n)
{
    const char *near = ps_nearest_name(name, known, n);
    char all[512] = "";
    for (int i = 0; i < n; i++) {
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", known[i]);
    }
    if (near)
        return ps_yaml_error(at, "%s \"%s\" is not known; did you mean \"%s\"? (all: %s)",
                             what, name, near, all);
    return ps_yaml_error(at, "%s \"%s\" is not known; there are %s", what, name, all);
}

static ps_err find_kind(const ps_yaml *at, const char *name, ps_layer_kind *out)
{
    const char *known[PS_LAYER_KIND_COUNT];
    for (int k = 0; k < PS_LAYER_KIND_COUNT; k++) {
        known[k] = written_name((ps_layer_kind)k);
        *out = (ps_layer_kind)k;
        if (strcmp(known[k], name) == 0) return PS_OK;
    }
    return unknown(at, "layer", name, known, PS_LAYER_KIND_COUNT);
}

static ps_err read_member(const ps_yaml *at, ps_layer_settings *s)
{
    const char *known[N_SETTINGS];
    int n = 0;
    for (int i = 0; i < N_SETTINGS; i++) {
        if (!(settings[i].kinds & (1u << s->kind))) continue;
        if (strcmp(settings[i].key, at->key) == 0) return settings[i].read(at, s);
        known[n++] = settings[i].key;
    }
    char what[64] = "setting of ";
    strcat(what, written_name(s->kind)); // the names are ours and short
    return unknown(at, what, at->key, known, n);
}

static bool is_null(const ps_yaml *at)
{
    return at->kind == PS_YAML_SCALAR &&
           (!at->text || !at->text[0] || strcmp(at->text, "null") == 0 ||
            strcmp(at->text, "~") == 0);
}

/* "max_pool2d: 2". */
static ps_err read_alone(const ps_yaml *at, ps_layer_settings *s)
{
    for (int i = 0; i < N_SETTINGS; i++)
        if (settings[i].alone & (1u << s->kind)) return settings[i].read(at, s);
    return ps_yaml_error(at, "%s: has to have settings {key: value, ...}, not a value",
                         written_name(s->kind));
}

static ps_err check_required(const ps_layer_settings *s)
{
    const bool given[] = {s->out > 0, s->kernel[0] > 0 || s->global, s->body != NULL,
                          s->groups > 0};
    const char *const keys[] = {"out", "kernel", "body", "groups"};
    for (int i = 0; i < N_SETTINGS; i++)
        for (int k = 0; k < 4; k++)
            if ((settings[i].required & (1u << s->kind)) && !given[k] &&
                strcmp(settings[i].key, keys[k]) == 0)
                return ps_yaml_error(s->at, "%s: \"%s\" is missing",
                                     written_name(s->kind), keys[k]);
    if (s->global && (s->stride[0] || s->padding[0] || s->padding[1]))
        return ps_yaml_error(s->at, "avg_pool2d: global takes no stride or padding");
    return PS_OK;
}

ps_err ps_layer_settings_read(const ps_yaml *item, ps_layer_settings *out)
{
    *out = (ps_layer_settings){.at = item,
                               .dilation = {1, 1},
                               .bias = true,
                               .p = 0.5,
                               .eps = 1e-5,
                               .momentum = 0.1,
                               .alpha = NAN};
    if (item->kind == PS_YAML_SCALAR && item->text) {
        PS_TRY(find_kind(item, item->text, &out->kind));
        return check_required(out);
    }
    if (item->kind != PS_YAML_MAP || item->n_items != 1)
        return ps_yaml_error(item, "a layer is a kind, alone or with its settings: "
                                   "\"- relu\", \"- linear: {out: 10}\"");
    const ps_yaml *value = item->items[0];
    PS_TRY(find_kind(item, value->key, &out->kind));
    if (value->kind == PS_YAML_MAP) {
        for (int i = 0; i < value->n_items; i++)
            PS_TRY(read_member(value->items[i], out));
    } else if (!is_null(value)) {
        PS_TRY(read_alone(value, out));
    }
    return check_required(out);
}
