#include "config.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "config_schema.h"
#include "hash.h"
#include "mem.h"
#include "nearest_name.h"
#include "parse_text.h"

enum { PATH_BYTES = 256, MAX_KEYS = 128, MAX_SECTIONS = 32, SECTION_BYTES = 32 };
enum { ELASTIC_REJOINS = 1000 }; // recovery.rejoins of an elastic job that does not say

static const char LAYERS[] = "model.layers", WORKERS[] = "job.workers";

static void *field(const ps_config *cfg, const ps_config_key *key)
{
    return (char *)cfg + key->offset;
}

/* ---- values ---- */

static ps_err wrong_type(const ps_config_key *key, const ps_yaml *at)
{
    const char *want = ps_key_type_text(key->type);
    if (at->kind != PS_YAML_SCALAR)
        return ps_yaml_error(at, "%s: a %s where %s is wanted", key->path,
                             at->kind == PS_YAML_LIST ? "list" : "map", want);
    if (at->text[0] == '\0')
        return ps_yaml_error(at, "%s: empty; %s is wanted", key->path, want);
    return ps_yaml_error(at, "%s: '%.60s' is not %s", key->path, at->text, want);
}

static ps_err check_range(const ps_config_key *key, const ps_yaml *at, double v)
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
    if (key->type == PS_KEY_BYTES && strcmp(at->text, "auto") == 0 && key->min == 0) {
        *out = 0;
        return PS_OK;
    }
    if (key->type == PS_KEY_BYTES) ok = ps_parse_bytes(at->text, out);
    if (!ok) ok = ps_parse_int(at->text, out);
    return ok ? check_range(key, at, (double)*out) : wrong_type(key, at);
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
    PS_TRY(check_range(key, at, (double)out->min));
    PS_TRY(check_range(key, at, (double)out->max));
    if (out->min <= out->max) return PS_OK;
    return ps_yaml_error(at, "%s: '%.60s' ends before it begins", key->path, at->text);
}

static ps_err read_double(const ps_config_key *key, const ps_yaml *at, double *out)
{
    if (at->kind != PS_YAML_SCALAR || !ps_parse_double(at->text, out))
        return wrong_type(key, at);
    return check_range(key, at, *out);
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
static ps_err read_list(const ps_config_key *key, const ps_yaml *at, void *out)
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

static ps_err read_value(ps_config *cfg, const ps_config_key *key, const ps_yaml *at)
{
    void *out = field(cfg, key);
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
        return read_list(key, at, out);
    }
    return PS_OK;
}

/* The default, through the same reader as a file's value. */
static ps_err read_default(ps_config *cfg, const ps_config_key *key)
{
    ps_yaml *tree = NULL;
    if (key->type == PS_KEY_STRING) return ps_mem_strdup(field(cfg, key), key->text);
    PS_TRY(ps_yaml_parse("default", key->text, strlen(key->text), &tree));
    ps_err err = read_value(cfg, key, tree);
    ps_yaml_destroy(&tree);
    return err;
}

/* ---- unknown keys ---- */

/* Lists each section once: the table has the keys of a section one after the other. */
static int list_sections(char (*names)[SECTION_BYTES])
{
    int n = 0;
    for (int i = 0; i < ps_config_n_keys; i++) {
        const char *path = ps_config_keys[i].path;
        char name[SECTION_BYTES];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(path, "."), path);
        if (n > 0 && strcmp(names[n - 1], name) == 0) continue;
        if (n < MAX_SECTIONS) memcpy(names[n++], name, sizeof name);
    }
    return n;
}

static ps_err unknown_section(const ps_yaml *at, const char *path)
{
    char names[MAX_SECTIONS][SECTION_BYTES];
    const char *known[MAX_SECTIONS];
    int n = list_sections(names);
    for (int i = 0; i < n; i++)
        known[i] = names[i];
    const char *near = ps_nearest_name(path, known, n);
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
    known[n++] = LAYERS;
    const char *near = ps_nearest_name(path, known, n);
    for (int i = 0; !near && i < n; i++) { // "lr" for "optimizer.lr"
        const char *last = strrchr(path, '.'), *word = strrchr(known[i], '.') + 1;
        if (strcmp(word, last ? last + 1 : path) == 0) near = known[i];
    }
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

/* Every key below map must be in the table. path: that of map ("" at the root). */
static ps_err check_keys(const ps_yaml *map, const char *path)
{
    for (int i = 0; i < map->n_items; i++) {
        const ps_yaml *item = map->items[i];
        char full[PATH_BYTES];
        snprintf(full, sizeof full, "%s%s%.100s", path, *path ? "." : "", item->key);
        if (strcmp(full, LAYERS) == 0 || ps_config_key_find(full)) continue;
        if (!is_section(full)) return unknown_key(item, full);
        if (item->kind == PS_YAML_MAP)
            PS_TRY(check_keys(item, full));
        else if (item->kind == PS_YAML_LIST || item->text[0])
            return ps_yaml_error(
                item, "%s: is a section: write its keys below it, indented", full);
    }
    return PS_OK;
}

/* ---- what the table cannot say ---- */

bool ps_config_has_model(const ps_config *cfg)
{
    return ps_yaml_path(cfg->tree, LAYERS) != NULL;
}

/* An error that names a key's place. */
__attribute__((format(printf, 3, 4))) static ps_err
key_error(const ps_config *cfg, const char *path, const char *fmt, ...)
{
    const ps_yaml *at = ps_yaml_path(cfg->tree, path);
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return ps_yaml_error(at ? at : cfg->tree, "%s: %s", path, text);
}

static ps_err check_optimizer(ps_config *cfg)
{
    ps_config_optimizer *o = &cfg->optimizer;
    if (o->name == PS_OPTIMIZER_ADAMW &&
        !ps_yaml_path(cfg->tree, "optimizer.weight_decay"))
        o->weight_decay = 0.01;
    if (o->betas.n != 2 || o->betas.v[0] >= 1 || o->betas.v[1] >= 1)
        return key_error(cfg, "optimizer.betas", "two numbers below 1 are wanted");
    if (o->nesterov && (o->momentum == 0 || o->dampening != 0))
        return key_error(cfg, "optimizer.nesterov",
                         "wants a momentum above 0 and no dampening");
    return PS_OK;
}

/* Sums go to a program that makes the step itself, with all that belongs to it. */
static ps_err check_sums(const ps_config *cfg)
{
    const ps_config_optimizer *o = &cfg->optimizer;
    const ps_codec codec = cfg->exchange.codec;
    if (o->name != PS_OPTIMIZER_SUM && o->name != PS_OPTIMIZER_MEAN) return PS_OK;
    if (ps_config_has_model(cfg))
        return key_error(cfg, "optimizer.name",
                         "sum and mean make no step; they are for programs that use "
                         "libpstrain");
    if (o->clip_norm > 0)
        return key_error(cfg, "optimizer.clip_norm",
                         "has to be 0 with optimizer.name sum or mean: clip the sum in "
                         "your program");
    if (cfg->loss_scale.use == PS_SWITCH_ON)
        return key_error(cfg, "loss_scale.use",
                         "cannot be on with optimizer.name sum or mean: scale in your "
                         "program");
    if (codec == PS_CODEC_ONEBIT || codec == PS_CODEC_TOPK)
        return key_error(cfg, "exchange.codec",
                         "%s needs an optimizer on the servers; with optimizer.name sum "
                         "or mean use fp16, bf16 or int8",
                         ps_word_name(ps_codec_words, (int)codec));
    return PS_OK;
}

/* For every number of workers that the job may have. */
static ps_err check_global_batch(const ps_config *cfg)
{
    static const char KEY[] = "data.global_batch";
    int64_t sizes[PS_MAX_RANKS];
    if (cfg->data.global_batch == 0) return PS_OK;
    if (cfg->train.accumulate != 1)
        return key_error(cfg, KEY,
                         "it decides how much is accumulated: leave "
                         "train.accumulate away");
    if (cfg->data.batch.n != 1)
        return key_error(cfg, KEY, "data.batch has to be one value");
    for (int64_t w = cfg->job.workers; w <= cfg->job.most_workers; w++)
        if (ps_config_split(cfg, (int)w, sizes) == 0)
            return key_error(
                cfg, KEY,
                "%lld samples cannot be cut into equal micro-batches of %lld "
                "to %lld samples for %lld workers: take a number with more "
                "divisors, or another data.batch",
                (long long)cfg->data.global_batch, (long long)w,
                (long long)(w * cfg->data.batch.v[0]), (long long)w);
    return PS_OK;
}

static ps_err check_data(const ps_config *cfg)
{
    const ps_config_data *d = &cfg->data;
    if (d->batch.n == 0) return key_error(cfg, "data.batch", "empty");
    if (d->batch.n != 1 && ps_config_elastic(cfg))
        return key_error(cfg, "data.batch",
                         "one value is wanted where job.workers is a range");
    if (d->batch.n != 1 && d->batch.n != cfg->job.workers)
        return key_error(cfg, "data.batch", "%d values for %lld workers", d->batch.n,
                         (long long)cfg->job.workers);
    if (d->resize.n != 0 && d->resize.n != 2)
        return key_error(cfg, "data.resize", "[H, W] is wanted");
    int half = d->normalize.n / 2;
    if (d->normalize.n % 2)
        return key_error(cfg, "data.normalize",
                         "as many standard deviations as means are wanted");
    for (int i = half; i < d->normalize.n; i++)
        if (d->normalize.v[i] <= 0)
            return key_error(cfg, "data.normalize",
                             "a standard deviation has to be above 0");
    return PS_OK;
}

static ps_err check_workers(ps_config *cfg)
{
    ps_config_job *j = &cfg->job;
    j->workers = j->workers_range.min;
    j->most_workers = j->workers_range.max;
    if (j->start_workers != 0 && ps_config_elastic(cfg) &&
        (j->start_workers < j->workers || j->start_workers > j->most_workers))
        return key_error(cfg, "job.start_workers", "%lld is not within %lld..%lld",
                         (long long)j->start_workers, (long long)j->workers,
                         (long long)j->most_workers);
    if (ps_config_elastic(cfg) && cfg->exchange.name == PS_EXCHANGE_NONE)
        return key_error(cfg, "job.workers", "exchange.name none is one worker alone");
    if (ps_config_elastic(cfg) && !ps_yaml_path(cfg->tree, "recovery.rejoins"))
        cfg->recovery.rejoins = ELASTIC_REJOINS;
    return PS_OK;
}

static ps_err check_rest(const ps_config *cfg)
{
    if (cfg->model.input.n != 0 && cfg->model.input.n != 1 && cfg->model.input.n != 3)
        return key_error(cfg, "model.input", "[C, H, W] or [features] is wanted");
    if (cfg->net.dead_after_ms <= cfg->net.heartbeat_ms)
        return key_error(cfg, "net.dead_after_ms",
                         "has to be above net.heartbeat_ms (%lld)",
                         (long long)cfg->net.heartbeat_ms);
    if (cfg->exchange.name == PS_EXCHANGE_PS && cfg->job.servers < 1)
        return key_error(cfg, "job.servers", "exchange.name ps needs a server");
    return PS_OK;
}

/* "configs/a.yaml" -> "a". */
static ps_err name_job(ps_config *cfg)
{
    if (cfg->job.name[0]) return PS_OK;
    const char *slash = strrchr(cfg->file, '/');
    const char *base = slash ? slash + 1 : cfg->file;
    size_t n = strlen(base);
    if (n > 5 && strcmp(base + n - 5, ".yaml") == 0)
        n -= 5;
    else if (n > 4 && strcmp(base + n - 4, ".yml") == 0)
        n -= 4;
    free(cfg->job.name);
    cfg->job.name = n ? strndup(base, n) : strdup("job");
    return cfg->job.name ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for a name");
}

/* ---- loading ---- */

static ps_err apply_override(ps_config *cfg, const char *text)
{
    const char *equals = strchr(text, '=');
    char path[PATH_BYTES];
    if (!equals || equals == text)
        return ps_err_set(PS_ERR_CONFIG, "--set: '%.80s' is not key=value", text);
    size_t n = (size_t)(equals - text);
    if (n >= sizeof path)
        return ps_err_set(PS_ERR_CONFIG, "--set: '%.80s...': unknown key", text);
    memcpy(path, text, n);
    path[n] = '\0';
    return ps_yaml_set(&cfg->tree, path, equals + 1);
}

static bool is_range(const char *text)
{
    return text && strstr(text, "..");
}

/* The value that an override gives to job.workers, or NULL. */
static const char *workers_of(const char *override)
{
    const size_t n = sizeof WORKERS - 1;
    return strncmp(override, WORKERS, n) == 0 && override[n] == '=' ? override + n + 1
                                                                    : NULL;
}

/* A number of workers does not replace a range: the job begins with that many. */
static ps_err apply_overrides(ps_config *cfg, const char *const *overrides, int n)
{
    const ps_yaml *in_file = ps_yaml_path(cfg->tree, WORKERS);
    const char *number = NULL;
    char range[64] = "";
    if (in_file && in_file->kind == PS_YAML_SCALAR && is_range(in_file->text))
        snprintf(range, sizeof range, "%s", in_file->text);
    for (int i = 0; i < n; i++) {
        const char *workers = workers_of(overrides[i]);
        PS_TRY(apply_override(cfg, overrides[i]));
        if (is_range(workers))
            snprintf(range, sizeof range, "%s", workers);
        else if (workers)
            number = workers;
    }
    if (!range[0] || !number) return PS_OK;
    PS_TRY(ps_yaml_set(&cfg->tree, WORKERS, range));
    return ps_yaml_set(&cfg->tree, "job.start_workers", number);
}

static ps_err load(ps_config *cfg, const char *const *overrides, int n_overrides)
{
    if (cfg->file[0])
        PS_TRY(ps_yaml_load(cfg->file, &cfg->tree));
    else
        PS_TRY(ps_yaml_parse("defaults", "", 0, &cfg->tree));
    if (cfg->tree->kind != PS_YAML_MAP)
        return ps_yaml_error(cfg->tree, "a configuration is a map of sections");
    PS_TRY(apply_overrides(cfg, overrides, n_overrides));
    PS_TRY(check_keys(cfg->tree, ""));
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        const ps_yaml *at = ps_yaml_path(cfg->tree, key->path);
        if (at)
            PS_TRY(read_value(cfg, key, at));
        else
            PS_TRY(read_default(cfg, key));
    }
    PS_TRY(check_workers(cfg));
    PS_TRY(check_optimizer(cfg));
    PS_TRY(check_sums(cfg));
    PS_TRY(check_data(cfg));
    PS_TRY(check_global_batch(cfg));
    PS_TRY(check_rest(cfg));
    return name_job(cfg);
}

ps_err ps_config_load(ps_config *cfg, const char *file, const char *const *overrides,
                      int n_overrides)
{
    *cfg = (ps_config){0};
    ps_err err = ps_mem_strdup(&cfg->file, file ? file : "");
    if (err == PS_OK) err = load(cfg, overrides, n_overrides);
    if (err != PS_OK) ps_config_fini(cfg);
    return err;
}

void ps_config_fini(ps_config *cfg)
{
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        if (key->type == PS_KEY_STRING) free(*(char **)field(cfg, key));
    }
    ps_yaml_destroy(&cfg->tree);
    free(cfg->file);
    *cfg = (ps_config){0};
}

bool ps_config_elastic(const ps_config *cfg)
{
    return cfg->job.most_workers > cfg->job.workers;
}

int64_t ps_config_batch(const ps_config *cfg, int rank)
{
    const ps_int_list *batch = &cfg->data.batch;
    return batch->v[rank < batch->n ? rank : batch->n - 1];
}

int64_t ps_config_split(const ps_config *cfg, int workers, int64_t *sizes)
{
    const int64_t all = cfg->data.global_batch, n = workers;
    for (int r = 0; r < workers; r++)
        sizes[r] = ps_config_batch(cfg, r);
    if (all == 0) return cfg->train.accumulate;
    const int64_t most = n * sizes[0];
    for (int64_t parts = (all + most - 1) / most; all / parts >= n; parts++) {
        const int64_t micro = all / parts;
        if (all % parts != 0) continue;
        for (int r = 0; r < workers; r++)
            sizes[r] = micro / n + (r < micro % n);
        return parts;
    }
    return 0;
}

/* ---- the hash ---- */

static void hash_value(ps_hash *h, const ps_config *cfg, const ps_config_key *key)
{
    const void *value = field(cfg, key);
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

static size_t value_bytes(const ps_config_key *key)
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
                                   [PS_KEY_DOUBLE_LIST] = sizeof(ps_float_list)};
    return bytes[key->type];
}

void ps_config_view(ps_config *out, const ps_config *local, const ps_config *job)
{
    *out = *local;
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        if (key->scope == PS_SCOPE_JOB)
            memcpy(field(out, key), field(job, key), value_bytes(key));
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
    const ps_yaml *layers = ps_yaml_path(cfg->tree, LAYERS);
    ps_hash_u64(&h, layers ? hash_node(layers) : 0);
    return ps_hash_value(&h);
}

/* The index of the key's section, which is added when it is new. */
static int section_of(ps_config_sections *s, const char *path)
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
        hash_value(&hashes[section_of(out, key->path)], cfg, key);
    }
    const ps_yaml *layers = ps_yaml_path(cfg->tree, LAYERS);
    ps_hash_u64(&hashes[section_of(out, LAYERS)], layers ? hash_node(layers) : 0);
    for (int i = 0; i < out->n; i++)
        out->hashes[i] = ps_hash_value(&hashes[i]);
}

/* ---- for people ---- */

void ps_config_print_help(FILE *out)
{
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        char range[160];
        ps_config_key_range(key, range, sizeof range);
        if (key->type == PS_KEY_BOOL) snprintf(range, sizeof range, "true | false");
        fprintf(out, "  %s=%s\n      %s", key->path, key->text, key->help);
        fprintf(out, *range ? " (%s)\n" : "%s\n", range);
    }
    fprintf(out, "  %s\n      the layers, a list: see configs/\n", LAYERS);
}

/* Inside a table's cell '|' would end it. */
static void print_cell(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|') fputc('\\', out);
        fputc(*text, out);
    }
}

void ps_config_print_markdown(FILE *out)
{
    fputs("| key | default | values | meaning |\n| --- | --- | --- | --- |\n", out);
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        char range[160];
        ps_config_key_range(key, range, sizeof range);
        fprintf(out, "| `%s` | %s%s%s | ", key->path, *key->text ? "`" : "", key->text,
                *key->text ? "`" : "");
        print_cell(out, *range ? range : ps_key_type_text(key->type));
        fputs(" | ", out);
        print_cell(out, key->help);
        fputs(" |\n", out);
    }
    fprintf(out, "| `%s` | | a list | the layers: see `configs/` |\n", LAYERS);
}
