#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_check.h"
#include "config_read.h"
#include "mem.h"
#include "parse_text.h"
#include "printable.h"

enum { PATH_BYTES = 256, AUTO_BATCH = 64 };

static const char WORKERS[] = "job.workers";

/* ---- loading ---- */

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
    // As in a file of YAML; results and checkpoints are JSON, and have it.
    if (!ps_utf8_is_valid(text))
        return ps_err_set(PS_ERR_CONFIG,
                          "--set: %s: is not UTF-8: rename what it names, or make a link "
                          "to it",
                          ps_utf8_is_valid(path) ? path : "a key");
    return ps_yaml_set(&cfg->tree, path, equals + 1);
}

static bool config_is_range(const char *text)
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
    if (in_file && in_file->kind == PS_YAML_SCALAR && config_is_range(in_file->text))
        snprintf(range, sizeof range, "%s", in_file->text);
    for (int i = 0; i < n; i++) {
        const char *workers = workers_of(overrides[i]);
        PS_TRY(apply_override(cfg, overrides[i]));
        if (config_is_range(workers))
            snprintf(range, sizeof range, "%s", workers);
        else if (workers)
            number = workers;
    }
    if (!range[0] || !number) return PS_OK;
    PS_TRY(ps_yaml_set(&cfg->tree, WORKERS, range));
    return ps_yaml_set(&cfg->tree, "job.start_workers", number);
}

static ps_err config_load(ps_config *cfg, const char *const *overrides, int n_overrides)
{
    if (cfg->file[0])
        PS_TRY(ps_yaml_load(cfg->file, &cfg->tree));
    else
        PS_TRY(ps_yaml_parse("defaults", "", 0, &cfg->tree));
    if (cfg->tree->kind != PS_YAML_MAP)
        return ps_yaml_error(cfg->tree, "a configuration is a map of sections");
    PS_TRY(ps_yaml_split_keys(cfg->tree));
    PS_TRY(apply_overrides(cfg, overrides, n_overrides));
    PS_TRY(ps_config_check_keys(cfg->tree));
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        const ps_yaml *at = ps_yaml_path(cfg->tree, key->path);
        if (at)
            PS_TRY(ps_config_read_value(cfg, key, at));
        else
            PS_TRY(ps_config_read_default(cfg, key));
    }
    PS_TRY(ps_config_check(cfg));
    return name_job(cfg);
}

ps_err ps_config_load(ps_config *cfg, const char *file, const char *const *overrides,
                      int n_overrides)
{
    *cfg = (ps_config){0};
    ps_err err = ps_mem_strdup(&cfg->file, file ? file : "");
    if (err == PS_OK) err = config_load(cfg, overrides, n_overrides);
    if (err != PS_OK) ps_config_fini(cfg);
    return err;
}

void ps_config_fini(ps_config *cfg)
{
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        if (key->type == PS_KEY_STRING || key->type == PS_KEY_NAMES ||
            key->type == PS_KEY_PATTERNS)
            free(*(char **)ps_config_field(cfg, key));
    }
    for (int i = 0; i < cfg->optimizer.groups.n; i++)
        free(cfg->optimizer.groups.v[i].match);
    ps_yaml_destroy(&cfg->tree);
    free(cfg->file);
    *cfg = (ps_config){0};
}

/* ---- questions ---- */

bool ps_config_has_model(const ps_config *cfg)
{
    return ps_yaml_path(cfg->tree, PS_CONFIG_LAYERS) != NULL;
}

bool ps_config_elastic(const ps_config *cfg)
{
    return cfg->job.most_workers > cfg->job.workers;
}

int ps_config_fewest_workers(const ps_config *cfg)
{
    return ps_config_elastic(cfg) ? (int)cfg->job.workers : 0;
}

bool ps_config_makes_checkpoints(const ps_config *cfg)
{
    const ps_config_checkpoint *c = &cfg->checkpoint;
    return c->every > 0 || c->minutes > 0 || c->best != PS_BEST_NONE ||
           cfg->train.stop_after > 0 || ps_config_elastic(cfg);
}

bool ps_config_may_lack_gradients(const ps_config *cfg)
{
    return cfg->optimizer.name != PS_OPTIMIZER_SUM &&
           cfg->optimizer.name != PS_OPTIMIZER_MEAN;
}

bool ps_config_own_pace(const ps_config *cfg)
{
    const ps_policy_kind policy = cfg->sync.policy;
    return policy == PS_POLICY_BACKUP || policy == PS_POLICY_SSP ||
           policy == PS_POLICY_ASP || ps_config_quorum(cfg);
}

bool ps_config_scales_loss(const ps_config *cfg)
{
    const ps_switch use = cfg->loss_scale.use;
    return use == PS_SWITCH_AUTO ? cfg->train.precision == PS_PRECISION_FP16
                                 : use == PS_SWITCH_ON;
}

bool ps_config_schedule_ends(const ps_config *cfg)
{
    const ps_schedule_kind kind = cfg->schedule.name;
    return kind == PS_SCHEDULE_COSINE || kind == PS_SCHEDULE_LINEAR ||
           kind == PS_SCHEDULE_POLYNOMIAL || kind == PS_SCHEDULE_ONECYCLE;
}

/* NAN: a share that is none, such as 120%. */
double ps_config_test_share(const ps_config *cfg)
{
    const size_t n = strlen(cfg->data.test);
    char number[32];
    double percent;
    if (n < 2 || cfg->data.test[n - 1] != '%') return 0;
    snprintf(number, sizeof number, "%.*s", (int)n - 1, cfg->data.test);
    if (n >= sizeof number || !ps_parse_double(number, &percent)) return NAN;
    return percent > 0 && percent < 100 ? percent / 100 : NAN;
}

bool ps_config_test_is_share(const ps_config *cfg)
{
    return ps_config_test_share(cfg) != 0;
}

const char *ps_names_at(ps_names names, int i, char *out, size_t bytes)
{
    for (; i > 0 && *names; i--)
        names += strcspn(names, "\n") + 1;
    if (!*names) return NULL;
    snprintf(out, bytes, "%.*s", (int)strcspn(names, "\n"), names);
    return out;
}

int ps_names_find(ps_names names, const char *name)
{
    for (int i = 0; *names; i++) {
        const size_t n = strcspn(names, "\n");
        if (strlen(name) == n && memcmp(names, name, n) == 0) return i;
        names += n + 1;
    }
    return -1;
}

bool ps_config_quorum(const ps_config *cfg)
{
    return cfg->sync.policy == PS_POLICY_LOCAL && cfg->sync.quorum > 0;
}

bool ps_config_two_levels(const ps_config *cfg)
{
    return cfg->exchange.levels == 2;
}

ps_deadline ps_config_step_deadline(const ps_config *cfg)
{
    return ps_deadline_in_ms((uint64_t)cfg->net.step_timeout_ms);
}

ps_deadline ps_config_join_deadline(const ps_config *cfg)
{
    return ps_deadline_in_ms((uint64_t)cfg->net.join_timeout_ms);
}

ps_deadline ps_config_file_deadline(const ps_config *cfg)
{
    return ps_deadline_in_ms((uint64_t)cfg->train.file_timeout_ms);
}

bool ps_config_names_straggler(const ps_config *cfg)
{
    // With exchange.levels 2 servers see hosts, not workers.
    return cfg->trace.straggler && !ps_config_two_levels(cfg) && !ps_config_own_pace(cfg);
}

int64_t ps_config_batch(const ps_config *cfg, int rank)
{
    const ps_int_list *batch = &cfg->data.batch;
    if (ps_config_balances(cfg)) return AUTO_BATCH;
    return batch->v[rank < batch->n ? rank : batch->n - 1];
}

bool ps_config_balances(const ps_config *cfg)
{
    return cfg->data.batch.n == 1 && cfg->data.batch.v[0] == 0;
}

/* As equal as they can be. */
static void config_divide(int64_t all, int n, int64_t *sizes)
{
    for (int r = 0; r < n; r++)
        sizes[r] = all / n + (r < all % n);
}

int64_t ps_config_split(const ps_config *cfg, int workers, int64_t *sizes)
{
    const int64_t all = cfg->data.global_batch, n = workers;
    for (int r = 0; r < workers; r++)
        sizes[r] = ps_config_batch(cfg, r);
    if (all > 0 && ps_config_balances(cfg)) config_divide(all, workers, sizes);
    if (all == 0 || ps_config_balances(cfg)) return cfg->train.accumulate;
    const int64_t most = n * sizes[0];
    for (int64_t parts = (all + most - 1) / most; all / parts >= n; parts++) {
        const int64_t micro = all / parts;
        if (all % parts != 0) continue;
        config_divide(micro, workers, sizes);
        return parts;
    }
    return 0;
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
    fprintf(out, "  %s\n      the layers, a list: see configs/\n", PS_CONFIG_LAYERS);
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
    fputs("| key | default | values | --resume | meaning |\n"
          "| --- | --- | --- | --- | --- |\n",
          out);
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        char range[160];
        ps_config_key_range(key, range, sizeof range);
        fprintf(out, "| `%s` | %s%s%s | ", key->path, *key->text ? "`" : "", key->text,
                *key->text ? "`" : "");
        print_cell(out, *range ? range : ps_key_type_text(key->type));
        fprintf(out, " | %s | ", ps_key_resume_text(key->resume));
        print_cell(out, key->help);
        fputs(" |\n", out);
    }
    fprintf(out, "| `%s` | | a list | warned | the layers: see `configs/` |\n",
            PS_CONFIG_LAYERS);
}
