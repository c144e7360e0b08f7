#include "config_needs.h"

#include <stdio.h>
#include <string.h>

#include "config_schema.h"
#include "log.h"

/* What a key needs to have an effect: `of` has one of `values` (bits of its enum), or is
 * above 0, true, given, a range (values 0); or met says so, and words say it to people.
 */
typedef struct need {
    const char *key, *of;
    uint32_t values;
    bool error; // else a warning: a file with the key may serve several kinds of jobs
    bool (*met)(const ps_config *cfg);
    const char *words;
    bool of_file; // no warning where the file has the key, and the command line the other
} need;

// clang-format off
#define MAY(key, of, values) {key, of, values, false, NULL, NULL, false}
#define IDLE(key, of, values) {key, of, values, false, NULL, NULL, true}
#define MUST(key, of, values) {key, of, values, true, NULL, NULL, false}
#define CASE(key, error, met, words) {key, NULL, 0, error, met, words, false}
// clang-format on

#define BIT(value)        (1u << (value))
#define OPTIMIZERS2(a, b) (BIT(PS_OPTIMIZER_##a) | BIT(PS_OPTIMIZER_##b))
#define SERVERS           BIT(PS_EXCHANGE_PS)
#define ALL_REDUCE                                                                       \
    (BIT(PS_EXCHANGE_ALLREDUCE) | BIT(PS_EXCHANGE_GLOO) | BIT(PS_EXCHANGE_NCCL))
#define CODECS_THAT_KEEP (BIT(PS_CODEC_INT4) | BIT(PS_CODEC_ONEBIT) | BIT(PS_CODEC_TOPK))
#define CODECS                                                                           \
    (BIT(PS_CODEC_FP16) | BIT(PS_CODEC_BF16) | BIT(PS_CODEC_INT8) | CODECS_THAT_KEEP)
#define SCHEDULES_THAT_END                                                               \
    (BIT(PS_SCHEDULE_COSINE) | BIT(PS_SCHEDULE_LINEAR) | BIT(PS_SCHEDULE_POLYNOMIAL))
#define MADE    (BIT(PS_DATA_SYNTHETIC) | BIT(PS_DATA_SYNTHETIC_CLICKS))
#define NUMBERS (BIT(PS_DATA_CSV) | BIT(PS_DATA_CRITEO) | BIT(PS_DATA_SYNTHETIC_CLICKS))
#define FILES   ((BIT(PS_DATA_KINDS) - 1) & ~MADE)

static bool has_grace(const ps_config *cfg)
{
    return cfg->sync.policy == PS_POLICY_BACKUP || ps_config_quorum(cfg);
}

/* Rows of numbers have no height and width. Not asked for, a change is possible. */
static bool has_sizes(const ps_config *cfg)
{
    return !(NUMBERS & BIT(cfg->data.kind));
}

static bool can_pad(const ps_config *cfg)
{
    return has_sizes(cfg) || cfg->data.crop_padding == 0;
}

static bool can_flip(const ps_config *cfg)
{
    return has_sizes(cfg) || !cfg->data.flip;
}

static const char SIZES[] =
    "pictures: rows of data.kind csv, criteo or synthetic_clicks have none";
static const char SCALES[] = "loss_scale.use on, or train.precision fp16";

// clang-format off
static const need needs[] = {
    MAY("job.start_workers", "job.workers", 0),

    MAY("train.tf32", "train.device", ~BIT(PS_DEVICE_CPU)),
    MAY("train.cudnn", "train.device", ~BIT(PS_DEVICE_CPU)),
    MAY("train.channels_last", "train.device", ~BIT(PS_DEVICE_CPU)),
    MAY("train.channels_last", "train.precision", ~BIT(PS_PRECISION_FLOAT32)),
    MAY("train.graphs", "train.device", ~BIT(PS_DEVICE_CPU)),
    MAY("train.numa", "train.device", ~BIT(PS_DEVICE_CPU)),
    MAY("train.winograd", "train.device", ~BIT(PS_DEVICE_CUDA)),
    MAY("train.ignore_index", "model.loss", BIT(PS_LOSS_CROSS_ENTROPY) | BIT(PS_LOSS_NLL)),
    MAY("train.init_strict", "train.init", 0),
    CASE("checkpoint.path", false, ps_config_makes_checkpoints, "checkpoint.every, .minutes or .best, or there are none"),
    CASE("checkpoint.keep", false, ps_config_makes_checkpoints, "checkpoint.every, .minutes or .best"),
    CASE("checkpoint.rows_full_every", false, ps_config_makes_checkpoints, "checkpoint.every, .minutes or .best"),

    // A file of made-up data is run with true ones, and the other way round.
    IDLE("data.path", "data.kind", FILES),
    IDLE("data.samples", "data.kind", MADE),
    IDLE("data.test_samples", "data.kind", MADE),
    IDLE("data.label_noise", "data.kind", BIT(PS_DATA_SYNTHETIC)),
    MUST("data.target", "data.kind", BIT(PS_DATA_CSV)),
    MUST("data.columns", "data.target", 0),
    MUST("data.drop", "data.target", 0),
    MUST("data.categories", "data.target", 0),
    MAY("data.standardize", "data.target", 0),
    MAY("data.missing", "data.target", 0),
    MAY("data.encoding", "data.target", 0),
    CASE("data.test_by", true, ps_config_test_is_share, "data.test that is a share, such as 20%"),
    MAY("data.scale", "data.kind", ~NUMBERS),
    MAY("data.unreadable", "data.kind", BIT(PS_DATA_IMAGE_FOLDER)),
    CASE("data.resize", true, has_sizes, SIZES),
    CASE("data.crop_padding", true, can_pad, SIZES),
    CASE("data.flip", true, can_flip, SIZES),
    MUST("data.crop", "data.kind", BIT(PS_DATA_IMAGE_FOLDER)),
    MUST("data.crop_scale", "data.kind", BIT(PS_DATA_IMAGE_FOLDER)),
    MAY("data.crop_ratio", "data.crop_scale", 0),
    MUST("data.color_jitter", "data.kind", BIT(PS_DATA_IMAGE_FOLDER)),
    MUST("data.rand_augment", "data.kind", BIT(PS_DATA_IMAGE_FOLDER)),

    MAY("optimizer.momentum", "optimizer.name", OPTIMIZERS2(SGD, RMSPROP)),
    MAY("optimizer.dampening", "optimizer.name", BIT(PS_OPTIMIZER_SGD)),
    MAY("optimizer.dampening", "optimizer.momentum", 0),
    MAY("optimizer.nesterov", "optimizer.name", BIT(PS_OPTIMIZER_SGD)),
    MAY("optimizer.betas", "optimizer.name", OPTIMIZERS2(ADAM, ADAMW) | OPTIMIZERS2(LAMB, LION)),
    MAY("optimizer.alpha", "optimizer.name", BIT(PS_OPTIMIZER_RMSPROP)),
    MAY("optimizer.centered", "optimizer.name", BIT(PS_OPTIMIZER_RMSPROP)),
    MAY("optimizer.eps", "optimizer.name", OPTIMIZERS2(ADAM, ADAMW) | OPTIMIZERS2(RMSPROP, ADAGRAD) | BIT(PS_OPTIMIZER_LAMB)),
    MAY("optimizer.lr_decay", "optimizer.name", BIT(PS_OPTIMIZER_ADAGRAD)),
    MAY("optimizer.initial_accumulator_value", "optimizer.name", BIT(PS_OPTIMIZER_ADAGRAD)),
    MAY("optimizer.pytorch", "optimizer.name", OPTIMIZERS2(ADAM, ADAMW) | BIT(PS_OPTIMIZER_RMSPROP)),

    MAY("schedule.warmup_start", "schedule.warmup", 0),
    MAY("schedule.step_size", "schedule.name", BIT(PS_SCHEDULE_STEP)),
    MAY("schedule.gamma", "schedule.name", BIT(PS_SCHEDULE_STEP)),
    MAY("schedule.total", "schedule.name", SCHEDULES_THAT_END | BIT(PS_SCHEDULE_ONECYCLE)),
    MAY("schedule.min_lr", "schedule.name", SCHEDULES_THAT_END | BIT(PS_SCHEDULE_COSINE_RESTARTS) | BIT(PS_SCHEDULE_PLATEAU)),
    MAY("schedule.t_0", "schedule.name", BIT(PS_SCHEDULE_COSINE_RESTARTS)),
    MAY("schedule.t_mult", "schedule.name", BIT(PS_SCHEDULE_COSINE_RESTARTS)),
    MAY("schedule.power", "schedule.name", BIT(PS_SCHEDULE_POLYNOMIAL)),
    MAY("schedule.pct_start", "schedule.name", BIT(PS_SCHEDULE_ONECYCLE)),
    MAY("schedule.div_factor", "schedule.name", BIT(PS_SCHEDULE_ONECYCLE)),
    MAY("schedule.final_div_factor", "schedule.name", BIT(PS_SCHEDULE_ONECYCLE)),
    MAY("schedule.anneal", "schedule.name", BIT(PS_SCHEDULE_ONECYCLE)),
    MAY("schedule.three_phase", "schedule.name", BIT(PS_SCHEDULE_ONECYCLE)),
    MAY("schedule.metric", "schedule.name", BIT(PS_SCHEDULE_PLATEAU)),
    MAY("schedule.factor", "schedule.name", BIT(PS_SCHEDULE_PLATEAU)),
    MAY("schedule.patience", "schedule.name", BIT(PS_SCHEDULE_PLATEAU)),
    MAY("schedule.threshold", "schedule.name", BIT(PS_SCHEDULE_PLATEAU)),
    MAY("schedule.cooldown", "schedule.name", BIT(PS_SCHEDULE_PLATEAU)),

    CASE("loss_scale.init", false, ps_config_scales_loss, SCALES),
    CASE("loss_scale.growth", false, ps_config_scales_loss, SCALES),
    CASE("loss_scale.backoff", false, ps_config_scales_loss, SCALES),
    CASE("loss_scale.interval", false, ps_config_scales_loss, SCALES),

    MAY("exchange.chunk", "exchange.name", SERVERS),
    MAY("exchange.codec", "exchange.name", SERVERS),
    MAY("exchange.codec_min", "exchange.codec", CODECS),
    MAY("exchange.topk", "exchange.codec", BIT(PS_CODEC_TOPK)),
    MAY("exchange.codec_warmup", "exchange.codec", CODECS_THAT_KEEP),
    MAY("exchange.codec_cooldown", "exchange.codec", CODECS_THAT_KEEP),
    MAY("exchange.credit", "exchange.name", SERVERS),
    MAY("exchange.bucket", "exchange.name", ALL_REDUCE),
    MAY("server.shards", "exchange.name", SERVERS),
    MAY("server.share", "exchange.name", SERVERS),
    MAY("server.readers", "exchange.name", SERVERS),
    MAY("server.rows_disk", "exchange.name", SERVERS),
    MAY("server.rows_memory", "server.rows_disk", 0),
    MAY("server.rows_log", "exchange.name", SERVERS),
    MAY("server.rows_replay", "exchange.name", SERVERS),

    MUST("sync.local_steps", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.local_after", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.fragments", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.overlap", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.mixing", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.mixing", "sync.overlap", 0),
    MUST("sync.quorum", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.steps_by_speed", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.outer", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.outer_lr", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.outer_momentum", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.outer_nesterov", "sync.policy", BIT(PS_POLICY_LOCAL)),
    MUST("sync.backup", "sync.policy", BIT(PS_POLICY_BACKUP)),
    MUST("sync.late", "sync.policy", BIT(PS_POLICY_BACKUP)),
    MUST("sync.staleness", "sync.policy", BIT(PS_POLICY_SSP)),
    CASE("sync.grace_ms", true, has_grace, "sync.policy backup, or local with sync.quorum"),
    CASE("sync.replay", true, ps_config_own_pace, "sync.policy backup, ssp or asp, or local with sync.quorum"),
    MUST("sync.delay_strength", "sync.correction", BIT(PS_CORRECTION_DELAY)),

    MAY("recovery.share", "recovery.rejoins", 0),
    MAY("recovery.wait_ms", "job.workers", 0),
    MAY("rows.buddy", "recovery.rejoins", 0),
    MAY("metrics.bind", "metrics.port", 0),
    MAY("trace.first", "train.trace", 0),
    MAY("trace.steps", "train.trace", 0),
    MAY("trace.limit", "train.trace", 0),
};
// clang-format on
enum { N_NEEDS = sizeof needs / sizeof *needs };

static const ps_word *words_of(const ps_config_key *key)
{
    return key->type == PS_KEY_DEVICE ? ps_device_words : key->words;
}

/* The value of a key with words. A device's kind is its first member. */
static int needs_word_of(const ps_config *cfg, const ps_config_key *key)
{
    return *(const int *)ps_config_field(cfg, key);
}

/* Not 0, false, none, empty; of a range: more than one number. */
static bool is_set(const ps_config *cfg, const ps_config_key *key)
{
    const void *value = ps_config_field(cfg, key);
    switch (key->type) {
    case PS_KEY_BOOL:
        return *(const bool *)value;
    case PS_KEY_RANGE:
        return ((const ps_int_range *)value)->min < ((const ps_int_range *)value)->max;
    case PS_KEY_DOUBLE:
        return *(const double *)value != 0;
    case PS_KEY_STRING:
    case PS_KEY_NAMES:
        return (*(char *const *)value)[0] != '\0';
    case PS_KEY_INT_LIST:
        return ((const ps_int_list *)value)->n > 0;
    case PS_KEY_DOUBLE_LIST:
        return ((const ps_float_list *)value)->n > 0;
    case PS_KEY_WORD:
        return *(const int *)value != 0; // the first: none, or the default
    default:
        return *(const int64_t *)value != 0;
    }
}

static bool is_met(const ps_config *cfg, const need *n)
{
    if (n->met) return n->met(cfg);
    const ps_config_key *of = ps_config_key_find(n->of);
    return n->values ? (n->values & BIT(needs_word_of(cfg, of))) != 0 : is_set(cfg, of);
}

/* "optimizer.name sgd or rmsprop; with adamw it has no effect" */
static void need_words(const ps_config *cfg, const need *n, char *out, size_t bytes)
{
    const ps_config_key *of = n->met ? NULL : ps_config_key_find(n->of);
    if (!of || !n->values) {
        const char *what = !of                        ? n->words
                           : of->type == PS_KEY_BOOL  ? " true"
                           : of->type == PS_KEY_RANGE ? " that is a range"
                           : of->type == PS_KEY_INT || of->type == PS_KEY_DOUBLE
                               ? " above 0"
                               : "";
        snprintf(out, bytes, "%s%s", of ? n->of : "", what);
        return;
    }
    const ps_word *words = words_of(of);
    size_t used = (size_t)snprintf(out, bytes, "%s", n->of);
    for (const ps_word *w = words; w->name && used < bytes; w++)
        if ((n->values & BIT(w->value)) && ps_word_name(words, w->value) == w->name)
            used += (size_t)snprintf(out + used, bytes - used, "%s %s",
                                     used > strlen(n->of) ? " or" : "", w->name);
    if (used < bytes)
        snprintf(out + used, bytes - used, "; with %s it has no effect",
                 ps_word_name(words, needs_word_of(cfg, of)));
}

/* PS_OK where the key is not given, or has an effect. Given as 0, false, none or [] it
 * asks for nothing; but a key of sync.* says which policy is meant. */
static ps_err check_need(const ps_config *cfg, const need *n)
{
    char text[256];
    const ps_yaml *at = ps_yaml_path(cfg->tree, n->key);
    if (!at || (at->kind == PS_YAML_LIST && at->n_items == 0)) return PS_OK;
    if (!n->error && !is_set(cfg, ps_config_key_find(n->key))) return PS_OK;
    if (is_met(cfg, n)) return PS_OK;
    need_words(cfg, n, text, sizeof text);
    return ps_yaml_error(at, "%s: needs %s", n->key, text);
}

ps_err ps_config_check_needs(const ps_config *cfg)
{
    for (int i = 0; i < N_NEEDS; i++)
        if (needs[i].error) PS_TRY(check_need(cfg, &needs[i]));
    return PS_OK;
}

/* Whether the command line has made idle what the file has. */
static bool is_made_idle(const ps_config *cfg, const need *n)
{
    if (!n->of_file) return false;
    const ps_yaml *at = ps_yaml_path(cfg->tree, n->key);
    const ps_yaml *of = ps_yaml_path(cfg->tree, n->of);
    return at && at->line > 0 && of && of->line == 0;
}

void ps_config_warn_of_needs(const ps_config *cfg)
{
    for (int i = 0; i < N_NEEDS; i++)
        if (!needs[i].error && !is_made_idle(cfg, &needs[i]) &&
            check_need(cfg, &needs[i]) != PS_OK)
            PS_WARN("unused", "%s", ps_err_message());
}
