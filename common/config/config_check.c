#include "config_check.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config_needs.h"
#include "parse_text.h"
#include "printable.h"

enum { ELASTIC_REJOINS = 1000 }; // recovery.rejoins of an elastic job that does not say

/* An error that names a key's place. */
__attribute__((format(printf, 3, 4))) static ps_err
key_error(const ps_config *cfg, const char *path, const char *fmt, ...)
{
    const ps_yaml *at = ps_yaml_path(cfg->tree, path);
    char text[256];
    PS_PRINT(text, fmt);
    return ps_yaml_error(at ? at : cfg->tree, "%s: %s", path, text);
}

/* What is wrong with a key's value. */
typedef struct key_case {
    bool wrong;
    const char *key, *text;
} key_case;

#define CHECK_CASES(cfg, with, cases)                                                    \
    PS_TRY(check_cases(cfg, with, cases, sizeof(cases) / sizeof *(cases)))

/* An error by the first that is wrong; `with` stands before its text. */
static ps_err check_cases(const ps_config *cfg, const char *with, const key_case *cases,
                          size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (cases[i].wrong)
            return key_error(cfg, cases[i].key, "%s%s", with, cases[i].text);
    return PS_OK;
}

/* The defaults of an optimizer that are not the keys' own; PyTorch's, and for lion the
 * paper's. */
static void take_defaults(ps_config *cfg)
{
    ps_config_optimizer *o = &cfg->optimizer;
    const struct {
        ps_optimizer_kind kind;
        const char *key;
        double *field, value;
    } defaults[] = {
        {PS_OPTIMIZER_ADAMW, "optimizer.weight_decay", &o->weight_decay, 0.01},
        {PS_OPTIMIZER_RMSPROP, "optimizer.lr", &o->lr, 0.01},
        {PS_OPTIMIZER_ADAGRAD, "optimizer.lr", &o->lr, 0.01},
        {PS_OPTIMIZER_ADAGRAD, "optimizer.eps", &o->eps, 1e-10},
        {PS_OPTIMIZER_LAMB, "optimizer.weight_decay", &o->weight_decay, 0.01},
        {PS_OPTIMIZER_LAMB, "optimizer.eps", &o->eps, 1e-6},
        {PS_OPTIMIZER_LION, "optimizer.lr", &o->lr, 1e-4},
        {PS_OPTIMIZER_LION, "optimizer.betas", &o->betas.v[1], 0.99},
    };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (o->name == defaults[i].kind && !ps_yaml_path(cfg->tree, defaults[i].key))
            *defaults[i].field = defaults[i].value;
}

static ps_err check_optimizer(ps_config *cfg)
{
    const ps_config_optimizer *o = &cfg->optimizer;
    take_defaults(cfg);
    const key_case cases[] = {
        {o->alpha >= 1, "optimizer.alpha", "has to be below 1"},
        {o->betas.n != 2 || o->betas.v[0] >= 1 || o->betas.v[1] >= 1, "optimizer.betas",
         "has to be two numbers below 1"},
        {o->nesterov && (o->momentum == 0 || o->dampening != 0), "optimizer.nesterov",
         "needs a momentum above 0 and no dampening"},
    };
    CHECK_CASES(cfg, "", cases);
    return PS_OK;
}

/* Sums go to a program that makes the step itself, with all that belongs to it. */
static ps_err check_sums(const ps_config *cfg)
{
    const ps_config_optimizer *o = &cfg->optimizer;
    const ps_codec codec = cfg->exchange.codec;
    if (o->name != PS_OPTIMIZER_SUM && o->name != PS_OPTIMIZER_MEAN) return PS_OK;
    const key_case cases[] = {
        {ps_config_has_model(cfg), "optimizer.name",
         "sum and mean make no step; they are for programs that use libpstrain"},
        {o->clip_norm > 0, "optimizer.clip_norm",
         "has to be 0 with optimizer.name sum or mean: clip the sum in your program"},
        {cfg->loss_scale.use == PS_SWITCH_ON, "loss_scale.use",
         "cannot be on with optimizer.name sum or mean: scale in your program"},
    };
    CHECK_CASES(cfg, "", cases);
    if (ps_codec_feeds_back(codec))
        return key_error(cfg, "exchange.codec",
                         "%s needs an optimizer on the servers; with optimizer.name sum "
                         "or mean use fp16, bf16 or int8",
                         ps_word_name(ps_codec_words, (int)codec));
    return PS_OK;
}

/* Error feedback would carry an infinite gradient into every later step. */
static ps_err check_loss_scale(const ps_config *cfg)
{
    const ps_config_loss_scale *l = &cfg->loss_scale;
    const ps_codec codec = cfg->exchange.codec;
    const key_case cases[] = {
        {l->growth <= 1, "loss_scale.growth", "has to be above 1"},
        {l->backoff <= 0 || l->backoff >= 1, "loss_scale.backoff",
         "has to be above 0 and below 1"},
        {(float)l->init < FLT_MIN, "loss_scale.init", "is too small for a float32"},
    };
    if (!ps_config_scales_loss(cfg)) return PS_OK;
    CHECK_CASES(cfg, "", cases);
    if (ps_codec_feeds_back(codec))
        return key_error(cfg, "exchange.codec",
                         "%s keeps what it has not sent, which a gradient that overflows "
                         "would spoil for good: with loss scaling use none, bf16, fp16 "
                         "or int8",
                         ps_word_name(ps_codec_words, (int)codec));
    return PS_OK;
}

/* What a model's gradients travel by. */
static ps_err check_exchange(const ps_config *cfg)
{
    const ps_config_exchange *x = &cfg->exchange;
    if (ps_config_has_model(cfg) && x->name == PS_EXCHANGE_PS && x->shm == PS_SWITCH_ON &&
        x->codec != PS_CODEC_NONE)
        return key_error(cfg, "exchange.shm",
                         "cannot be on with exchange.codec %s: encoded payloads travel "
                         "by tcp",
                         ps_word_name(ps_codec_words, (int)x->codec));
    return PS_OK;
}

static ps_err check_correction(const ps_config *cfg)
{
    static const char KEY[] = "sync.correction";
    const ps_config_sync *s = &cfg->sync;
    if (s->correction == PS_CORRECTION_NONE) return PS_OK;
    if (!ps_config_own_pace(cfg) || s->policy == PS_POLICY_LOCAL ||
        (s->policy == PS_POLICY_BACKUP && s->late == PS_LATE_DROP))
        return key_error(cfg, KEY,
                         "needs a policy that applies stale gradients: ssp, asp, or "
                         "backup with sync.late add");
    if (s->correction == PS_CORRECTION_LR && cfg->optimizer.name != PS_OPTIMIZER_SGD)
        return key_error(cfg, KEY,
                         "lr needs optimizer.name sgd: Adam's steps do not shrink with "
                         "the gradient");
    return PS_OK;
}

/* What the policies in which workers go on at their own pace do not define yet. */
static ps_err check_own_pace(const ps_config *cfg)
{
    char with[80];
    const key_case cases[] = {
        {cfg->exchange.name != PS_EXCHANGE_PS, "exchange.name",
         "has to be ps: only servers can apply some workers' gradients"},
        {cfg->optimizer.name == PS_OPTIMIZER_SUM ||
             cfg->optimizer.name == PS_OPTIMIZER_MEAN,
         "optimizer.name",
         "has to be one that makes the step on the servers, not sum or mean"},
        {ps_config_scales_loss(cfg), "loss_scale.use",
         "has to be off: all workers would need the scale of the same step"},
        {ps_config_elastic(cfg), "job.workers",
         "has to be one number: workers cannot come and go with this policy yet"},
        {cfg->train.save_every > 0, "train.save_every",
         "has to be 0: workers have the same weights only between epochs"},
        {cfg->sync.policy == PS_POLICY_BACKUP && cfg->sync.backup >= cfg->job.workers,
         "sync.backup", "has to be below the number of workers"},
    };
    snprintf(with, sizeof with, "with sync.policy %s%s it ",
             ps_word_name(ps_policy_words, (int)cfg->sync.policy),
             ps_config_quorum(cfg) ? " and sync.quorum" : "");
    CHECK_CASES(cfg, with, cases);
    return PS_OK;
}

/* What a quorum does not define yet. */
static ps_err check_quorum(const ps_config *cfg)
{
    const ps_config_sync *s = &cfg->sync;
    if (s->steps_by_speed && s->quorum == 0)
        return key_error(
            cfg, "sync.steps_by_speed",
            "needs sync.quorum (job.workers: of all): only then workers have "
            "rounds of their own");
    const int64_t least = s->fragments * (s->overlap + 2);
    if (s->steps_by_speed && s->local_steps < least && least > 2)
        return key_error(
            cfg, "sync.steps_by_speed",
            "needs sync.local_steps of at least %" PRId64
            ", sync.fragments * (sync.overlap + 2): the workers agree before "
            "the first fragment is sent",
            least);
    if (ps_config_quorum(cfg) && s->quorum > cfg->job.workers)
        return key_error(cfg, "sync.quorum",
                         "%" PRId64 " is more than the job's %" PRId64 " workers",
                         s->quorum, cfg->job.workers);
    if (ps_config_quorum(cfg) && s->local_after > 0)
        return key_error(cfg, "sync.local_after",
                         "with sync.quorum it has to be 0: each round has the same "
                         "steps");
    return PS_OK;
}

/* Of the policy local. Two fragments are never on their way at the same time. */
static ps_err check_fragments(const ps_config *cfg)
{
    const ps_config_sync *s = &cfg->sync;
    if (s->fragments > 1 && cfg->exchange.name != PS_EXCHANGE_PS)
        return key_error(cfg, "sync.fragments",
                         "needs exchange.name ps: an all-reduce is of the whole model");
    if (s->fragments > s->local_steps)
        return key_error(cfg, "sync.fragments",
                         "%" PRId64 " are more than the %" PRId64
                         " steps of sync.local_steps: a step ends with one fragment",
                         s->fragments, s->local_steps);
    if (s->overlap >= s->local_steps / s->fragments)
        return key_error(cfg, "sync.overlap",
                         "has to be below %" PRId64
                         ", the steps from one fragment to the next "
                         "(sync.local_steps / sync.fragments)",
                         s->local_steps / s->fragments);
    return PS_OK;
}

static ps_err check_sync(const ps_config *cfg)
{
    const ps_config_sync *s = &cfg->sync;
    const ps_optimizer_kind inner = cfg->optimizer.name;
    const ps_exchange_kind exchange = cfg->exchange.name;
    if (inner == PS_OPTIMIZER_LAMB && s->policy != PS_POLICY_BSP)
        return key_error(cfg, "optimizer.name",
                         "lamb needs sync.policy bsp: with %s use adamw",
                         ps_word_name(ps_policy_words, (int)s->policy));
    PS_TRY(check_correction(cfg));
    if (ps_config_own_pace(cfg)) PS_TRY(check_own_pace(cfg));
    PS_TRY(check_quorum(cfg));
    if (s->policy != PS_POLICY_LOCAL) return PS_OK;
    const key_case cases[] = {
        {exchange == PS_EXCHANGE_NONE, "sync.policy",
         "local needs other workers to synchronise with: exchange.name ps or allreduce, "
         "not none"},
        {exchange == PS_EXCHANGE_NCCL, "sync.policy",
         "local does not work with exchange.name nccl yet: use ps, or gloo"},
        {inner == PS_OPTIMIZER_SUM || inner == PS_OPTIMIZER_MEAN, "sync.policy",
         "local needs an optimizer in the workers: optimizer.name sum and mean make no "
         "step"},
        {s->outer == PS_OPTIMIZER_SUM || s->outer == PS_OPTIMIZER_MEAN, "sync.outer",
         "sum and mean make no step: use sgd"},
        {s->outer > PS_OPTIMIZER_ADAMW, "sync.outer", "has to be sgd, adam or adamw"},
        {s->outer != PS_OPTIMIZER_SGD && (s->outer_momentum != 0 || s->outer_nesterov),
         "sync.outer", "only sgd has a momentum"},
        {s->outer_nesterov && s->outer_momentum == 0, "sync.outer_nesterov",
         "needs sync.outer_momentum above 0"},
    };
    CHECK_CASES(cfg, "", cases);
    return check_fragments(cfg);
}

/* What a sum on each host does not define yet. */
static ps_err check_level_keys(const ps_config *cfg)
{
    const key_case cases[] = {
        {cfg->exchange.name != PS_EXCHANGE_PS, "exchange.name",
         "has to be ps: only servers take the sums of hosts"},
        {cfg->sync.policy != PS_POLICY_BSP, "sync.policy",
         "has to be bsp: with another policy workers go on alone"},
        {ps_config_elastic(cfg), "job.workers",
         "has to be one number: workers cannot come and go yet"},
        {cfg->recovery.rejoins > 0, "recovery.rejoins",
         "has to be 0: only --resume goes on after a failure"},
        {cfg->exchange.shm == PS_SWITCH_OFF, "exchange.shm",
         "has to be auto or on: a host is summed in shared memory"},
    };
    if (ps_config_two_levels(cfg)) CHECK_CASES(cfg, "with exchange.levels 2 it ", cases);
    return PS_OK;
}

/* For every number of workers that the job may have. */
static ps_err check_global_batch(const ps_config *cfg)
{
    static const char KEY[] = "data.global_batch";
    int64_t sizes[PS_MAX_RANKS];
    if (cfg->data.global_batch == 0 || ps_config_balances(cfg)) return PS_OK;
    if (cfg->train.accumulate != 1)
        return key_error(cfg, KEY,
                         "decides how much is accumulated: remove "
                         "train.accumulate");
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

static ps_err check_balance(const ps_config *cfg)
{
    static const char KEY[] = "data.batch";
    if (!ps_config_balances(cfg)) return PS_OK;
    if (ps_config_own_pace(cfg))
        return key_error(cfg, KEY,
                         "auto needs sync.policy bsp, or local without sync.quorum: with "
                         "%s fast workers make more steps already",
                         ps_config_quorum(cfg)
                             ? "a quorum"
                             : ps_word_name(ps_policy_words, (int)cfg->sync.policy));
    if (ps_config_elastic(cfg))
        return key_error(cfg, KEY,
                         "auto needs a fixed number of workers, and job.workers is a "
                         "range: give a number");
    if (cfg->data.global_batch > 0 && cfg->data.global_batch < cfg->job.workers)
        return key_error(cfg, KEY,
                         "auto: data.global_batch has no sample for some of %lld "
                         "workers",
                         (long long)cfg->job.workers);
    return PS_OK;
}

static bool check_is_range(const ps_float_list *list)
{
    return list->n == 2 && list->v[0] > 0 && list->v[0] <= list->v[1];
}

static ps_err check_augmentation(const ps_config *cfg)
{
    const ps_config_data *d = &cfg->data;
    const key_case cases[] = {
        {d->crop_scale.n > 0 && !check_is_range(&d->crop_scale), "data.crop_scale",
         "has to be [least, most], above 0"},
        {d->color_jitter.n > 4, "data.color_jitter",
         "has to be [brightness, contrast, saturation, hue]"},
        {d->color_jitter.n == 4 && d->color_jitter.v[3] > 0.5, "data.color_jitter",
         "hue is at most 0.5, half of the circle of colours"},
        {d->rand_augment.n != 0 && (d->rand_augment.n != 2 || d->rand_augment.v[0] > 16),
         "data.rand_augment",
         "has to be [operations, magnitude], such as [2, 9], with up to 16 operations"},
        {!check_is_range(&d->crop_ratio), "data.crop_ratio",
         "has to be [least, most], above 0"},
        // PyTorch's rules for the cross entropy of probabilities
        {d->mixup > 0 && cfg->model.loss != PS_LOSS_CROSS_ENTROPY, "data.mixup",
         "mixes classes and needs model.loss cross_entropy"},
        {d->mixup > 0 && ps_yaml_path(cfg->tree, "train.ignore_index"),
         "train.ignore_index",
         "cannot be with data.mixup, which mixes every label: remove one of them"},
    };
    CHECK_CASES(cfg, "", cases);
    return PS_OK;
}

static ps_err check_data_keys(const ps_config *cfg)
{
    const ps_config_data *d = &cfg->data;
    if (d->batch.n == 0) return key_error(cfg, "data.batch", "is empty");
    if (d->batch.n != 1 && ps_config_elastic(cfg))
        return key_error(cfg, "data.batch",
                         "has to be one value where job.workers is a range");
    if (d->batch.n != 1 && d->batch.n != cfg->job.workers)
        return key_error(cfg, "data.batch", "%d values for %lld workers", d->batch.n,
                         (long long)cfg->job.workers);
    for (int i = 0; i < d->batch.n && d->batch.n > 1; i++)
        if (d->batch.v[i] == 0)
            return key_error(cfg, "data.batch",
                             "auto (or 0) is for all ranks: give it alone");
    const bool pictures = d->kind == PS_DATA_IMAGE_FOLDER;
    if (d->resize.n > 2 || (d->resize.n == 1 && !pictures))
        return key_error(cfg, "data.resize", "has to be [H, W]%s",
                         pictures ? ", or [N] for the shorter side" : "");
    if (d->crop.n > 2) return key_error(cfg, "data.crop", "has to be [H, W] or [N]");
    if (d->stream && d->kind != PS_DATA_NPY && d->kind != PS_DATA_CSV &&
        d->kind != PS_DATA_CRITEO)
        return key_error(
            cfg, "data.stream",
            "reads samples of data.kind npy, csv or criteo: set one of them, or remove "
            "data.stream");
    if (strcmp(d->test_by, "random") != 0 && strcmp(d->test_by, "order") != 0 &&
        !d->target[0])
        return key_error(cfg, "data.test_by",
                         "'%.60s' is neither random nor order, nor a column of a table "
                         "(data.target)",
                         d->test_by);
    double number;
    if (ps_parse_double(d->test, &number))
        return key_error(cfg, "data.test", "%s: write a share as 20%%, or name a file",
                         d->test);
    if (isnan(ps_config_test_share(cfg)))
        return key_error(cfg, "data.test",
                         "a share is above 0%% and below 100%%, such as 20%%");
    PS_TRY(check_augmentation(cfg));
    int half = d->normalize.n / 2;
    if (d->normalize.n % 2)
        return key_error(cfg, "data.normalize",
                         "needs as many standard deviations as means");
    for (int i = half; i < d->normalize.n; i++)
        if (d->normalize.v[i] <= 0)
            return key_error(cfg, "data.normalize",
                             "standard deviations have to be above 0");
    return PS_OK;
}

static ps_err check_job_keys(ps_config *cfg)
{
    ps_config_job *j = &cfg->job;
    const key_case cases[] = {
        {!ps_utf8_is_valid(j->name), "job.name",
         "is not UTF-8, as results and metrics are, which have it"},
        {strchr(j->name, '/') != NULL, "job.name",
         "has a slash, but it is the name of a folder in runs/; --out chooses another "
         "place"},
    };
    CHECK_CASES(cfg, "", cases);
    j->workers = j->workers_range.min;
    j->most_workers = j->workers_range.max;
    if (j->start_workers != 0 && ps_config_elastic(cfg) &&
        (j->start_workers < j->workers || j->start_workers > j->most_workers))
        return key_error(cfg, "job.start_workers", "%lld is not within %lld..%lld",
                         (long long)j->start_workers, (long long)j->workers,
                         (long long)j->most_workers);
    if (ps_config_elastic(cfg) && cfg->exchange.name == PS_EXCHANGE_NONE)
        return key_error(cfg, "job.workers", "exchange.name none is for one worker");
    if (ps_config_elastic(cfg) && !ps_yaml_path(cfg->tree, "recovery.rejoins"))
        cfg->recovery.rejoins = ELASTIC_REJOINS;
    return PS_OK;
}

static ps_err check_model_keys(const ps_config *cfg)
{
    const bool model = ps_config_has_model(cfg), averages = cfg->train.ema > 0;
    const key_case cases[] = {
        {!model && cfg->train.freeze[0], "train.freeze",
         "is for models that ps-worker trains; in your program leave such parameters "
         "out"},
        {!model && cfg->optimizer.groups.n > 0, "optimizer.groups",
         "is for models that ps-worker trains; your program gives each tensor its group"},
        {cfg->train.ema >= 1, "train.ema", "has to be below 1"},
        {averages && !model, "train.ema",
         "is for models that ps-worker trains; in your program use "
         "torch.optim.swa_utils.AveragedModel"},
        {averages && cfg->sync.policy == PS_POLICY_LOCAL, "train.ema",
         "does not work with sync.policy local yet: remove one of them"},
    };
    CHECK_CASES(cfg, "", cases);
    return PS_OK;
}

/* plateau follows the evaluations, which all workers make after the same step. */
static ps_err check_plateau(const ps_config *cfg)
{
    static const char KEY[] = "schedule.name";
    const key_case cases[] = {
        {!ps_config_has_model(cfg), KEY,
         "plateau is for models that ps-worker trains; in your program use "
         "torch.optim.lr_scheduler.ReduceLROnPlateau"},
        {cfg->train.eval_every == 0, KEY,
         "plateau follows the evaluations, and train.eval_every is 0: set it to 1 or "
         "more"},
    };
    CHECK_CASES(cfg, "", cases);
    if (cfg->sync.policy != PS_POLICY_BSP)
        return key_error(cfg, KEY,
                         "plateau needs sync.policy bsp: with %s, name another schedule",
                         ps_word_name(ps_policy_words, (int)cfg->sync.policy));
    if (cfg->schedule.factor >= 1)
        return key_error(cfg, "schedule.factor", "has to be below 1");
    return PS_OK;
}

static ps_err check_schedule(const ps_config *cfg)
{
    const ps_config_schedule *s = &cfg->schedule;
    const bool rises = s->name == PS_SCHEDULE_ONECYCLE;
    const key_case cases[] = {
        {rises && s->warmup > 0, "schedule.warmup",
         "has to be 0 with schedule.name onecycle, which begins with a rise of its own: "
         "schedule.pct_start says how long it is"},
        {rises && s->three_phase && s->pct_start > 0.5, "schedule.pct_start",
         "has to be at most 0.5 with schedule.three_phase: the rise and the first fall "
         "take that part of the steps each"},
    };
    if (s->name == PS_SCHEDULE_PLATEAU) return check_plateau(cfg);
    CHECK_CASES(cfg, "", cases);
    if (ps_config_schedule_ends(cfg) && s->total > 0 && s->total <= s->warmup)
        return key_error(cfg, "schedule.total",
                         "%" PRId64 " steps are over before the warm-up of %" PRId64
                         " is",
                         s->total, s->warmup);
    return PS_OK;
}

static ps_err check_rest(const ps_config *cfg)
{
    const bool servers = cfg->exchange.name == PS_EXCHANGE_PS;
    const key_case cases[] = {
        {cfg->rows.buddy && !servers, "rows.buddy",
         "needs exchange.name ps: only servers have embedding tables"},
        {cfg->rows.policy == PS_POLICY_ASP && !servers, "rows.policy",
         "needs exchange.name ps: only servers have embedding tables"},
        {cfg->rows.policy == PS_POLICY_ASP && ps_config_elastic(cfg), "rows.policy",
         "has to be bsp where job.workers is a range"},
        {cfg->rows.buddy && cfg->job.servers < 2, "rows.buddy",
         "needs a second server, which keeps the first one's rows: take two (-s 2), or "
         "leave it out"},
        {cfg->model.input.n > 3, "model.input",
         "has to be [C, H, W], [C, length] or [features]"},
        {cfg->train.patience > 0 && cfg->train.eval_every == 0, "train.patience",
         "counts evaluations, and train.eval_every is 0: set it to 1 or more"},
        {servers && cfg->job.servers < 1, "job.servers",
         "exchange.name ps needs a server: give it one (-s 1), or take all-reduce "
         "(exchange.name=allreduce)"},
    };
    CHECK_CASES(cfg, "", cases);
    if (cfg->net.dead_after_ms <= cfg->net.heartbeat_ms)
        return key_error(cfg, "net.dead_after_ms",
                         "has to be above net.heartbeat_ms (%lld)",
                         (long long)cfg->net.heartbeat_ms);
    return PS_OK;
}

ps_err ps_config_check(ps_config *cfg)
{
    PS_TRY(check_job_keys(cfg));
    PS_TRY(ps_config_check_needs(cfg));
    PS_TRY(check_optimizer(cfg));
    PS_TRY(check_sums(cfg));
    PS_TRY(check_loss_scale(cfg));
    PS_TRY(check_schedule(cfg));
    PS_TRY(check_exchange(cfg));
    PS_TRY(check_sync(cfg));
    PS_TRY(check_level_keys(cfg));
    PS_TRY(check_model_keys(cfg));
    PS_TRY(check_data_keys(cfg));
    PS_TRY(check_global_batch(cfg));
    PS_TRY(check_balance(cfg));
    return check_rest(cfg);
}
