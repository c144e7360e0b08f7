#include "layer_settings.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "nearest_name.h"

enum {
    MAX_OUT = 1 << 24,
    MAX_KERNEL = 4096,
    MAX_NAME = 128,
    MAX_ALPHA = 1000,
};

#define KIND(name) ((uint64_t)1 << PS_LAYER_##name)
#define CONVS      (KIND(CONV2D) | KIND(CONV1D))
#define BATCHNORMS (KIND(BATCH_NORM2D) | KIND(BATCH_NORM1D))
#define POOLS      (KIND(MAX_POOL2D) | KIND(AVG_POOL2D) | KIND(MAX_POOL1D) | KIND(AVG_POOL1D))
#define ADAPTIVE                                                                         \
    (KIND(ADAPTIVE_AVG_POOL2D) | KIND(ADAPTIVE_MAX_POOL2D) | KIND(ADAPTIVE_AVG_POOL1D))
#define BRANCHED (KIND(CONCAT) | KIND(INTERACTION))
#define ANY_KIND (((uint64_t)1 << PS_LAYER_WRITTEN_COUNT) - 1)

/* For sequences, and for images. */
#define ONE_AXIS                                                                         \
    (KIND(CONV1D) | KIND(BATCH_NORM1D) | KIND(MAX_POOL1D) | KIND(AVG_POOL1D) |           \
     KIND(ADAPTIVE_AVG_POOL1D))
#define TWO_AXES                                                                         \
    (KIND(CONV2D) | KIND(BATCH_NORM2D) | KIND(MAX_POOL2D) | KIND(AVG_POOL2D) |           \
     KIND(ADAPTIVE_AVG_POOL2D) | KIND(ADAPTIVE_MAX_POOL2D) | KIND(UPSAMPLE))

static bool is_one_of(ps_layer_kind kind, uint64_t kinds)
{
    return (kinds >> kind & 1) != 0;
}

const char *ps_layer_kind_name(ps_layer_kind kind)
{
    static const char *const names[] = {
#define PS_LAYER_NAME(name, text) [PS_LAYER_##name] = text,
        PS_LAYER_MAP(PS_LAYER_NAME) PS_LAYER_ALIAS_MAP(PS_LAYER_NAME)
#undef PS_LAYER_NAME
    };
    return (unsigned)kind < PS_LAYER_WRITTEN_COUNT ? names[kind] : "unknown";
}

bool ps_layer_kind_has_tensors(ps_layer_kind kind)
{
    return is_one_of(kind, CONVS | BATCHNORMS | KIND(LINEAR) | KIND(EMBEDDING) |
                               KIND(GROUP_NORM) | KIND(LAYER_NORM));
}

int ps_layer_kind_axes(ps_layer_kind kind)
{
    return is_one_of(kind, ONE_AXIS) ? 1 : is_one_of(kind, TWO_AXES) ? 2 : 0;
}

/* What settings have, a layer's settings have as this member. least, most: of a number;
 * words: of a word. */
typedef struct setting {
    const char *key;
    /* The kinds that take a setting, those that require it, and those for which a value
     * alone means this setting ("dropout: 0.25"). */
    uint64_t kinds, required, alone;
    ps_err (*read)(const ps_yaml *at, const struct setting *by, ps_layer_settings *s);
    size_t member;
    int64_t least, most;
    const ps_word *words;
} setting;

static void *settings_member(ps_layer_settings *s, const setting *by)
{
    return (char *)s + by->member;
}

static ps_err settings_read_name(const ps_yaml *at, const setting *by,
                                 ps_layer_settings *s)
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

static ps_err settings_read_count(const ps_yaml *at, const setting *by,
                                  ps_layer_settings *s)
{
    long long n = 0;
    PS_TRY(ps_yaml_int(at, by->least, by->most, &n));
    *(int64_t *)settings_member(s, by) = n;
    return PS_OK;
}

/* One number for both, or [height, width]. For sequences one number: of the width; the
 * height gets the least, which changes nothing. */
static ps_err settings_read_pair(const ps_yaml *at, const setting *by,
                                 ps_layer_settings *s)
{
    int *out = settings_member(s, by);
    const bool one = is_one_of(s->kind, ONE_AXIS);
    if (one && at->kind == PS_YAML_LIST)
        return ps_yaml_error(at, "%s: has to be one number",
                             at->key ? at->key : "kernel");
    if (at->kind == PS_YAML_LIST && at->n_items != 2)
        return ps_yaml_error(at, "%s: has to be one number or [height, width]",
                             at->key ? at->key : "kernel");
    for (int i = 0; i < 2; i++) {
        long long v = 0;
        const ps_yaml *from = at->kind == PS_YAML_LIST ? at->items[i] : at;
        PS_TRY(ps_yaml_int(from, by->least, by->most, &v));
        out[i] = (int)(one && i == 0 ? by->least : v);
    }
    return PS_OK;
}

static ps_err read_kernel(const ps_yaml *at, const setting *by, ps_layer_settings *s)
{
    s->global = is_one_of(s->kind, KIND(AVG_POOL2D) | KIND(AVG_POOL1D)) &&
                at->kind == PS_YAML_SCALAR && at->text && strcmp(at->text, "global") == 0;
    return s->global ? PS_OK : settings_read_pair(at, by, s);
}

static ps_err read_mode(const ps_yaml *at, const setting *by, ps_layer_settings *s)
{
    static const char *const modes[] = {
        [PS_INTERPOLATE_NEAREST] = "nearest", [PS_INTERPOLATE_BILINEAR] = "bilinear"};
    for (int i = 0; i < 2 && at->kind == PS_YAML_SCALAR && at->text; i++) {
        s->mode = (ps_interpolation)i;
        if (strcmp(at->text, modes[i]) == 0) return PS_OK;
    }
    return ps_yaml_error(at, "mode: has to be nearest or bilinear");
}

/* Below 0 the sign of the output would not tell the sign of the input. */
static ps_err read_alpha(const ps_yaml *at, const setting *by, ps_layer_settings *s)
{
    PS_TRY(ps_yaml_double(at, &s->alpha));
    if (s->alpha >= 0.0 && s->alpha <= MAX_ALPHA) return PS_OK;
    return ps_yaml_error(at, "%s: %g is not in [0, %d]", at->key ? at->key : "value",
                         s->alpha, MAX_ALPHA);
}

static ps_err settings_read_flag(const ps_yaml *at, const setting *by,
                                 ps_layer_settings *s)
{
    int value = 0;
    PS_TRY(ps_yaml_bool(at, &value));
    *(bool *)settings_member(s, by) = value != 0;
    return PS_OK;
}

static ps_err read_p(const ps_yaml *at, const setting *by, ps_layer_settings *s)
{
    PS_TRY(ps_yaml_double(at, &s->p));
    if (s->p >= 0.0 && s->p < 1.0) return PS_OK;
    return ps_yaml_error(at, "dropout: %g is not in [0, 1)", s->p);
}

static ps_err read_eps(const ps_yaml *at, const setting *by, ps_layer_settings *s)
{
    PS_TRY(ps_yaml_double(at, &s->eps));
    if (s->eps > 0.0 && s->eps <= 1.0) return PS_OK;
    return ps_yaml_error(at, "eps: %g is not in (0, 1]", s->eps);
}

static ps_err read_momentum(const ps_yaml *at, const setting *by, ps_layer_settings *s)
{
    PS_TRY(ps_yaml_double(at, &s->momentum));
    if (s->momentum >= 0.0 && s->momentum <= 1.0) return PS_OK;
    return ps_yaml_error(at, "momentum: %g is not in [0, 1]", s->momentum);
}

static ps_err read_tables(const ps_yaml *at, const setting *by, ps_layer_settings *s)
{
    long long n = 0;
    if (at->kind == PS_YAML_LIST && at->n_items > 0 && at->n_items <= PS_ROW_TABLES_MAX) {
        s->tables = at;
        s->n_tables = at->n_items;
        return PS_OK;
    }
    if (at->kind != PS_YAML_SCALAR)
        return ps_yaml_error(at, "tables: has to be a number, or a list of columns as "
                                 "[C1, C2]");
    PS_TRY(ps_yaml_int(at, 1, PS_ROW_TABLES_MAX, &n));
    s->n_tables = n;
    return PS_OK;
}

/* The member is an enum. */
static ps_err settings_read_word(const ps_yaml *at, const setting *by,
                                 ps_layer_settings *s)
{
    char list[160];
    int value;
    if (at->kind != PS_YAML_SCALAR || !at->text ||
        !ps_word_find(by->words, at->text, &value))
        return ps_yaml_error(at, "%s: has to be one of %s", at->key,
                             ps_word_list(by->words, list, sizeof list));
    memcpy(settings_member(s, by), &value, sizeof value);
    return PS_OK;
}

static ps_err settings_read_number(const ps_yaml *at, const setting *by,
                                   ps_layer_settings *s)
{
    double *out = settings_member(s, by);
    PS_TRY(ps_yaml_double(at, out));
    return isfinite(*out) ? PS_OK : ps_yaml_error(at, "%s: is not finite", at->key);
}

static ps_err read_layers(const ps_yaml *at, const setting *by, ps_layer_settings *s)
{
    if (at->kind != PS_YAML_LIST)
        return ps_yaml_error(at, "%s: has to be a list of layers", at->key);
    *(strcmp(at->key, "body") == 0 ? &s->body : &s->shortcut) = at;
    return PS_OK;
}

static ps_err read_branches(const ps_yaml *at, const setting *by, ps_layer_settings *s)
{
    if (at->kind != PS_YAML_LIST || at->n_items < 2)
        return ps_yaml_error(at, "branches: has to be a list of two or more branches");
    for (int i = 0; i < at->n_items; i++)
        if (at->items[i]->kind != PS_YAML_LIST)
            return ps_yaml_error(at->items[i],
                                 "branches: each branch is a list of layers; [] passes "
                                 "the input on");
    s->branches = at;
    return PS_OK;
}

#define OWN(read) read, 0, 0, 0, NULL
#define COUNT(member, least, most)                                                       \
    settings_read_count, offsetof(ps_layer_settings, member), least, most, NULL
#define PAIR(member, least, read)                                                        \
    read, offsetof(ps_layer_settings, member), least, MAX_KERNEL, NULL
#define FLAG(member) settings_read_flag, offsetof(ps_layer_settings, member), 0, 0, NULL
#define NUMBER(member)                                                                   \
    settings_read_number, offsetof(ps_layer_settings, member), 0, 0, NULL
#define WORD(member, words)                                                              \
    settings_read_word, offsetof(ps_layer_settings, member), 0, 0, words
static const setting settings[] = {
    {"name", ANY_KIND, 0, 0, OWN(settings_read_name)},
    {"out", CONVS | KIND(LINEAR) | KIND(EMBEDDING), CONVS | KIND(LINEAR),
     KIND(LINEAR) | KIND(EMBEDDING), COUNT(out, 1, MAX_OUT)},
    {"kernel", CONVS | POOLS, CONVS | POOLS, POOLS, PAIR(kernel, 1, read_kernel)},
    {"stride", CONVS | POOLS, 0, 0, PAIR(stride, 1, settings_read_pair)},
    {"padding", CONVS | POOLS, 0, 0, PAIR(padding, 0, settings_read_pair)},
    {"dilation", CONVS, 0, 0, PAIR(dilation, 1, settings_read_pair)},
    {"size", ADAPTIVE | KIND(UPSAMPLE), ADAPTIVE, ADAPTIVE,
     PAIR(size, 1, settings_read_pair)},
    {"scale", KIND(UPSAMPLE), 0, KIND(UPSAMPLE), PAIR(scale, 1, settings_read_pair)},
    {"mode", KIND(UPSAMPLE), 0, 0, OWN(read_mode)},
    {"groups", CONVS | KIND(GROUP_NORM), KIND(GROUP_NORM), KIND(GROUP_NORM),
     COUNT(groups, 1, MAX_OUT)},
    {"bias", CONVS | KIND(LINEAR), 0, 0, FLAG(bias)},
    {"negative_slope", KIND(LEAKY_RELU), 0, KIND(LEAKY_RELU), OWN(read_alpha)},
    {"alpha", KIND(ELU), 0, KIND(ELU), OWN(read_alpha)},
    {"p", KIND(DROPOUT), 0, KIND(DROPOUT), OWN(read_p)},
    {"eps", BATCHNORMS | KIND(GROUP_NORM) | KIND(LAYER_NORM), 0, 0, OWN(read_eps)},
    {"momentum", BATCHNORMS, 0, 0, OWN(read_momentum)},
    {"body", KIND(ADD), KIND(ADD), 0, OWN(read_layers)},
    {"shortcut", KIND(ADD), 0, 0, OWN(read_layers)},
    {"branches", BRANCHED, BRANCHED, BRANCHED, OWN(read_branches)},
    {"tables", KIND(EMBEDDING_BAG), KIND(EMBEDDING_BAG), 0, OWN(read_tables)},
    {"dim", KIND(EMBEDDING_BAG), KIND(EMBEDDING_BAG), 0, COUNT(dim, 1, PS_ROW_DIM_MAX)},
    {"optimizer", KIND(EMBEDDING_BAG), 0, 0, WORD(row_optimizer, ps_row_optimizer_words)},
    {"lr", KIND(EMBEDDING_BAG), 0, 0, NUMBER(row_lr)},
    {"init", KIND(EMBEDDING_BAG), 0, 0, WORD(init, ps_row_init_words)},
    {"scale", KIND(EMBEDDING_BAG), 0, 0, NUMBER(init_scale)},
    {"codec", KIND(EMBEDDING_BAG), 0, 0, WORD(codec, ps_row_codec_words)},
    {"admit", KIND(EMBEDDING_BAG), 0, 0, COUNT(admit, 0, PS_ROW_ADMIT_MAX)},
    {"expire", KIND(EMBEDDING_BAG), 0, 0, COUNT(expire, 0, UINT32_MAX)},
    {"max_bytes", KIND(EMBEDDING_BAG), 0, 0, COUNT(max_bytes, 0, INT64_MAX)},
    {"evict", KIND(EMBEDDING_BAG), 0, 0, FLAG(evict)},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static ps_err settings_unknown(const ps_yaml *at, const char *what, const char *name,
                               const char *const *known, int n)
{
    const char *near = ps_nearest_name(name, known, n);
    char all[640] = "";
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
    const char *known[PS_LAYER_WRITTEN_COUNT];
    for (int k = 0; k < PS_LAYER_WRITTEN_COUNT; k++) {
        known[k] = ps_layer_kind_name((ps_layer_kind)k);
        *out = (ps_layer_kind)k;
        if (strcmp(known[k], name) == 0) return PS_OK;
    }
    return settings_unknown(at, "layer", name, known, PS_LAYER_WRITTEN_COUNT);
}

static ps_err read_member(const ps_yaml *at, ps_layer_settings *s)
{
    const char *known[N_SETTINGS];
    int n = 0;
    for (int i = 0; i < N_SETTINGS; i++) {
        if (!is_one_of(s->kind, settings[i].kinds)) continue;
        if (strcmp(settings[i].key, at->key) == 0)
            return settings[i].read(at, &settings[i], s);
        known[n++] = settings[i].key;
    }
    char what[64] = "setting of ";
    strcat(what, ps_layer_kind_name(s->kind)); // the names are ours and short
    return settings_unknown(at, what, at->key, known, n);
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
        if (is_one_of(s->kind, settings[i].alone))
            return settings[i].read(at, &settings[i], s);
    return ps_yaml_error(at, "%s: has to have settings {key: value, ...}, not a value",
                         ps_layer_kind_name(s->kind));
}

static ps_err check_required(const ps_layer_settings *s)
{
    const bool given[] = {
        s->out > 0,     s->kernel[0] > 0 || s->global, s->body != NULL, s->groups > 0,
        s->size[0] > 0, s->branches != NULL,           s->n_tables > 0, s->dim > 0};
    static const char *const keys[] = {"out",  "kernel",   "body",   "groups",
                                       "size", "branches", "tables", "dim"};
    for (int i = 0; i < N_SETTINGS; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (is_one_of(s->kind, settings[i].required) && !given[k] &&
                strcmp(settings[i].key, keys[k]) == 0)
                return ps_yaml_error(s->at, "%s: \"%s\" is missing",
                                     ps_layer_kind_name(s->kind), keys[k]);
    if (s->global && (s->stride[0] || s->padding[0] || s->padding[1]))
        return ps_yaml_error(s->at, "%s: global takes no stride or padding",
                             ps_layer_kind_name(s->kind));
    if (s->kind == PS_LAYER_UPSAMPLE && !s->size[0] == !s->scale[0])
        return ps_yaml_error(s->at, "upsample: takes either a size or a scale");
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
                               .alpha = NAN,
                               .row_optimizer = PS_ROW_ADAGRAD,
                               .row_lr = NAN,
                               .init_scale = NAN};
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
