/* The configuration: defaults, types, ranges, unknown keys, overrides, the hash. */
#include "config.h"

#include <unistd.h>

#include "check.h"
#include "config_needs.h"
#include "config_schema.h"
#include "log.h"
#include "value_json.h"

static char path[64];

/* Loads text as a file with up to 4 overrides. */
static ps_err load(ps_config *cfg, const char *text, const char *const *sets)
{
    int n = 0;
    strcpy(path, "/tmp/test_configXXXXXX.yaml");
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    while (sets && sets[n])
        n++;
    ps_err err = ps_config_load(cfg, path, sets, n);
    unlink(path);
    return err;
}

static void assert_refused(const char *text, const char *set, const char *want)
{
    ps_config cfg;
    const char *const sets[] = {set, NULL};
    assert_error(load(&cfg, text, sets), PS_ERR_CONFIG, want);
    ps_config_fini(&cfg); // safe after a failure
}

/* The defaults are those of torch.optim where it has them. */
TEST(defaults)
{
    ps_config c;
    assert_ok(ps_config_load(&c, NULL, NULL, 0));
    assert_int_equal(c.optimizer.name, PS_OPTIMIZER_SGD);
    assert_true(c.optimizer.lr == 1e-3);
    assert_true(c.optimizer.weight_decay == 0);
    assert_true(c.optimizer.betas.v[0] == 0.9 && c.optimizer.betas.v[1] == 0.999);
    assert_true(c.optimizer.eps == 1e-8);
    assert_true(c.data.scale == 1.0 / 255);
    assert_int_equal(c.data.batch.n, 1);
    assert_int_equal(ps_config_batch(&c, 5), 64);
    assert_int_equal(c.exchange.chunk, 0);
    assert_int_equal(c.exchange.bucket, 25 << 20);
    assert_int_equal(c.net.dead_after_ms, 10000);
    assert_true(c.data.shuffle);
    assert_true(c.model.dropout);
    assert_string_equal(c.job.name, "job");
    assert_string_equal(c.train.init, "");
    ps_config_fini(&c);
}

TEST(file_and_overrides)
{
    ps_config c;
    const char *const sets[] = {"optimizer.lr=0.5", "data.batch=[32, 16]",
                                "job.workers=2", "exchange.chunk=64K", NULL};
    assert_ok(load(&c,
                   "optimizer: {name: adamw, lr: 1e-2}\n"
                   "data:\n  batch: 8\n  path: '/a: b'\n  shuffle: No\n"
                   "train:\n"
                   "exchange: {chunk: 1MiB, shm: on}\n"
                   "model:\n  input: [1, 8, 8]\n  layers: [relu]\n",
                   sets));
    assert_true(c.optimizer.lr == 0.5);
    assert_true(c.optimizer.weight_decay == 0.01); // torch.optim.AdamW's
    assert_int_equal(ps_config_batch(&c, 0), 32);
    assert_int_equal(ps_config_batch(&c, 1), 16);
    assert_int_equal(c.exchange.chunk, 65536);
    assert_int_equal(c.exchange.shm, PS_SWITCH_ON);
    assert_string_equal(c.data.path, "/a: b");
    assert_false(c.data.shuffle);
    assert_int_equal(c.model.input.n, 3);
    assert_non_null(ps_yaml_path(c.tree, "model.layers"));
    assert_int_equal(strncmp(c.job.name, "test_config", 11), 0);
    assert_null(strchr(c.job.name, '.'));
    ps_config_fini(&c);
}

/* ---- every key, in every form ---- */

/* What some keys need beside them. */
static const struct {
    const char *key, *sets[3];
} beside[] = {
    {"job.start_workers", {"job.workers=1..8"}},
    {"train.init_strict", {"train.init=x"}},
    {"data.stream", {"data.kind=npy"}},
    {"data.test_by", {"data.test=20%"}},
    {"data.target", {"data.kind=csv"}},
    {"data.columns", {"data.kind=csv", "data.target=y"}},
    {"data.drop", {"data.kind=csv", "data.target=y"}},
    {"data.categories", {"data.kind=csv", "data.target=y"}},
    {"data.crop", {"data.kind=image_folder"}},
    {"data.color_jitter", {"data.kind=image_folder"}},
    {"data.rand_augment", {"data.kind=image_folder"}},
    {"optimizer.nesterov", {"optimizer.momentum=0.5"}},
    {"optimizer.groups", {"model.layers=[relu]"}},
    {"train.freeze", {"model.layers=[relu]"}},
    {"train.ema", {"model.layers=[relu]"}},
    {"sync.backup", {"sync.policy=backup", "job.workers=4"}},
    {"sync.late", {"sync.policy=backup", "job.workers=4"}},
    {"sync.grace_ms", {"sync.policy=backup", "job.workers=4"}},
    {"sync.staleness", {"sync.policy=ssp"}},
    {"sync.correction", {"sync.policy=ssp", "job.workers=4"}},
    {"sync.replay", {"sync.policy=asp", "job.workers=4"}},
    {"sync.delay_strength", {"sync.policy=ssp", "sync.correction=delay"}},
    {"sync.mixing", {"sync.policy=local", "sync.overlap=1"}},
    {"sync.steps_by_speed", {"sync.policy=local", "sync.quorum=1"}},
    {"sync.outer_nesterov", {"sync.policy=local", "sync.outer_momentum=0.5"}},
    {"sync.quorum", {"sync.policy=local"}},
    {"sync.local", {"sync.policy=local"}},
    {"sync.fragments", {"sync.policy=local"}},
    {"sync.overlap", {"sync.policy=local"}},
    {"sync.outer", {"sync.policy=local"}},
    {"rows.buddy", {"job.servers=2"}},
};

/* Values of all types: one of them is right for each key, and not its default. */
static const char *const values[] = {
    // numbers and words
    "2", "1", "0.5", "300000", "30000", "true", "false", "text", "cpu", "bf16", "on",
    "all", "accuracy", "npy", "adam", "cosine", "linear", "allreduce", "fp16", "allow",
    "local", "add", "lr", "l1", "order", "mean", "skip", "onehot", "asp",
    // lists
    "[2, 3]", "[0.5, 0.6]", "[0.5, 0.9]", "[conv]", "[{match: ['x'], lr: 2}]"};
enum { N_VALUES = sizeof values / sizeof *values };

/* All keys' values, as one object. */
static json_t *all_values(const ps_config *c)
{
    json_t *out = json_object();
    for (int i = 0; i < ps_config_n_keys; i++)
        json_object_set_new(out, ps_config_keys[i].path,
                            ps_config_value_json(c, &ps_config_keys[i]));
    return out;
}

/* Fills sets (6) with what the key needs beside it; returns how many. */
static int sets_beside(const char *key, const char **sets)
{
    int n = 0;
    if (strcmp(key, "job.name") != 0) sets[n++] = "job.name=x";
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        if (strncmp(key, beside[i].key, strlen(beside[i].key)) != 0) continue;
        for (int k = 0; beside[i].sets[k]; k++)
            sets[n++] = beside[i].sets[k];
        break;
    }
    return n;
}

/* Loads text and, as an override, set (or NULL), with what the key needs beside it. NULL:
 * refused. */
static json_t *load_values(const char *key, const char *text, const char *set)
{
    const char *sets[6];
    int n = sets_beside(key, sets);
    ps_config c;
    json_t *out = NULL;
    if (set) sets[n++] = set;
    sets[n] = NULL;
    if (load(&c, text, sets) == PS_OK) out = all_values(&c);
    ps_config_fini(&c);
    return out;
}

/* What the key is with set (or NULL), and with what it needs beside it. NULL: refused. */
static json_t *value_with(const ps_config_key *key, const char *set)
{
    const char *sets[6];
    int n = sets_beside(key->path, sets);
    ps_config c;
    json_t *out = NULL;
    if (set) sets[n++] = set;
    if (ps_config_load(&c, NULL, sets, n) == PS_OK) out = ps_config_value_json(&c, key);
    ps_config_fini(&c);
    return out;
}

/* The first value that the override takes, and that is not what is there without it. */
static const char *value_for(const ps_config_key *key)
{
    json_t *without = value_with(key, NULL);
    const char *found = NULL;
    assert_non_null(without);
    for (int i = 0; i < N_VALUES && !found; i++) {
        char set[128];
        snprintf(set, sizeof set, "%s=%s", key->path, values[i]);
        json_t *with = value_with(key, set);
        if (with && !json_equal(with, without)) found = values[i];
        json_decref(with);
    }
    json_decref(without);
    if (!found) fail_msg("no value for %s: %s", key->path, ps_err_message());
    return found;
}

static void assert_same_values(const char *key, const char *text, const json_t *want)
{
    json_t *got = load_values(key, text, NULL);
    if (!got) fail_msg("%s: %s", text, ps_err_message());
    if (!json_equal(got, want)) fail_msg("%s: has another meaning", text);
    json_decref(got);
}

/* Dotted, nested and on the command line, each key means the same. Both at once are an
 * error. */
TEST(every_form_of_every_key_means_the_same)
{
    for (int i = 0; i < ps_config_n_keys; i++) {
        const char *key = ps_config_keys[i].path;
        const int section = (int)strcspn(key, ".");
        char text[400];
        const char *value = value_for(&ps_config_keys[i]);
        snprintf(text, sizeof text, "%s=%s", key, value);
        json_t *want = load_values(key, "", text);
        assert_non_null(want);
        snprintf(text, sizeof text, "%s: %s\n", key, value);
        assert_same_values(key, text, want);
        snprintf(text, sizeof text, "%.*s:\n  %s: %s\n", section, key, key + section + 1,
                 value);
        assert_same_values(key, text, want);
        json_decref(want);
        snprintf(text, sizeof text, "%.*s:\n  %s: %s\n%s: %s\n", section, key,
                 key + section + 1, value, key, value);
        assert_refused(text, "job.servers=1", ".yaml:3: ");
        assert_non_null(strstr(ps_err_message(), "given twice, in line 2, too"));
    }
}

TEST(dotted_keys_are_checked)
{
    ps_config c;
    assert_refused("optimizer.lr: nonsense\n", "job.name=x",
                   ".yaml:1: optimizer.lr: 'nonsense' is not a number");
    assert_refused("\noptimizer.lrr: 1\n", "job.name=x",
                   ".yaml:2: optimizer.lrr: unknown key");
    assert_refused("sync: {policy.x: 1}\n", "job.name=x", "sync.policy.x: unknown key");
    assert_refused("optimizer..lr: 1\n", "job.name=x", ":1: a key with an empty part");
    assert_refused("optimizer.lr.x: 1\n", "job.name=x",
                   "optimizer.lr: has to be a number");
    assert_refused("optimizer: 3\noptimizer.lr: 1\n", "job.name=x",
                   ":2: lr: its parent is not a map");
    assert_refused("model.layers: [relu]\nmodel: {layers: [relu]}\n", "job.name=x",
                   "model.layers: given twice");
    // Beside other keys of its section, and below the command line.
    const char *const sets[] = {"optimizer.lr=0.25", NULL};
    assert_ok(load(&c,
                   "optimizer.lr: 0.5\noptimizer.name: adam\n"
                   "optimizer: {eps: 1e-3}\ntrain:\ntrain.epochs: 3\n"
                   "job.workers: 2..8\nmodel.layers: [relu]\n",
                   sets));
    assert_true(c.optimizer.lr == 0.25 && c.optimizer.eps == 1e-3);
    assert_int_equal(c.optimizer.name, PS_OPTIMIZER_ADAM);
    assert_int_equal(c.train.epochs, 3);
    assert_true(ps_config_elastic(&c) && ps_config_has_model(&c));
    ps_config_fini(&c);
}

/* ---- keys in vain ---- */

static char said[2048];

static void take_line(void *ctx, ps_log_level level, const char *text)
{
    assert_int_equal(level, PS_LOG_WARN);
    strcat(strcat(said, text), "\n");
}

/* The warnings, each on a line. */
static void warnings_of(const char *text, const char *set)
{
    ps_config c;
    const char *const sets[] = {set, NULL};
    assert_ok(load(&c, text, sets));
    said[0] = '\0';
    ps_log_set_sink(take_line, NULL, PS_LOG_WARN);
    ps_config_warn_of_needs(&c);
    ps_log_set_sink(NULL, NULL, PS_LOG_WARN);
    ps_config_fini(&c);
}

TEST(keys_in_vain_are_named)
{
    static const struct {
        const char *text, *set, *want;
    } cases[] = {
        {"optimizer:\n  momentum: 0.9", "optimizer.name=adamw",
         ".yaml:2: optimizer.momentum: needs optimizer.name sgd or rmsprop; with adamw "
         "it "
         "has no effect\n"},
        {"optimizer: {dampening: 0.1}", "optimizer.name=sgd",
         "optimizer.dampening: needs optimizer.momentum above 0\n"},
        {"", "schedule.gamma=0.5",
         "--set: schedule.gamma: needs schedule.name step; with constant it has no"},
        {"exchange: {codec: int8}", "exchange.name=allreduce",
         "exchange.codec: needs exchange.name ps; with allreduce it has no effect\n"},
        {"exchange: {topk: 0.5}", "exchange.codec=int8",
         "exchange.topk: needs exchange.codec topk"},
        {"train: {device: cpu}", "train.tf32=true",
         "train.tf32: needs train.device auto or cuda; with cpu"},
        {"", "data.path=mine", "data.path: needs data.kind idx or "},
        {"data: {kind: csv}", "data.scale=2",
         "data.scale: needs data.kind idx or cifar10 or cifar100 or stl10 or npy or "
         "image_folder or synthetic; with csv it has no effect\n"},
        {"", "loss_scale.init=4", "needs loss_scale.use on, or train.precision fp16\n"},
        {"", "checkpoint.path=/mine",
         "checkpoint.path: needs checkpoint.every, .minutes or .best, or there are "
         "none\n"},
        {"", "trace.steps=3", "trace.steps: needs train.trace true\n"},
        {"job: {workers: 4}", "job.start_workers=2",
         "job.start_workers: needs job.workers that is a range\n"},
        {"data: {kind: idx, samples: 9}", "train.steps=3",
         "data.samples: needs data.kind synthetic or synthetic_clicks; with idx it has"},
        {"data: {kind: idx}", "data.samples=9", "--set: data.samples: needs data.kind"},
        {"data: {kind: synthetic, samples: 9, test_samples: 9, label_noise: 0.1}",
         "data.kind=idx", ""}, // the file is another job's, too
        {"data: {kind: idx, path: mine}", "data.kind=synthetic", ""},
        {"optimizer: {momentum: 0.9}", "optimizer.name=sgd", ""},
        {"optimizer: {momentum: 0}", "optimizer.name=adamw", ""}, // asks for nothing
        {"exchange: {codec: none}", "exchange.name=allreduce", ""},
        {"checkpoint: {keep: 5, path: mine}", "checkpoint.minutes=3", ""},
        {"checkpoint: {keep: 5}", "train.stop_after=3", ""}, // with a checkpoint
        {"checkpoint: {keep: 5}", "job.workers=1..2", ""},
        {"loss_scale: {init: 4}", "train.precision=fp16", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        warnings_of(cases[i].text, cases[i].set);
        if (*cases[i].want ? !strstr(said, cases[i].want) : *said != '\0')
            fail_msg("%s %s: '%s'", cases[i].text, cases[i].set, said);
    }
    assert_refused("data: {crop: 8}\n", "data.kind=idx",
                   "data.crop: needs data.kind image_folder");
}

/* ---- what a job keeps that goes on ---- */

/* Every key's property, by a value that is not its default. */
TEST(each_key_is_free_warned_or_refused)
{
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        char set[128], changed[1024], want[160];
        const char *sets[6];
        ps_config before, after;
        int n = sets_beside(key->path, sets);
        assert_ok(ps_config_load(&before, NULL, sets, n));
        snprintf(set, sizeof set, "%s=%s", key->path, value_for(key));
        sets[n++] = set;
        assert_ok(ps_config_load(&after, NULL, sets, n));
        json_t *kept = ps_config_kept_json(&before);
        ps_err err = ps_config_compare_kept(&after, kept, changed, sizeof changed);
        assert_int_equal(err, key->resume == PS_RESUME_REFUSED ? PS_ERR_CONFIG : PS_OK);
        snprintf(want, sizeof want, "%s: ", key->path);
        if (err == PS_OK) // nothing else has changed
            assert_int_equal(key->resume == PS_RESUME_WARNED,
                             strncmp(changed, want, strlen(want)) == 0);
        else
            assert_non_null(strstr(ps_err_message(), want));
        json_decref(kept);
        ps_config_fini(&before);
        ps_config_fini(&after);
    }
}

TEST(one_value_is_a_list_of_one)
{
    ps_config c;
    const char *const sets[] = {"data.batch=12", "model.input=784",
                                "train.seed=18446744073709551615", NULL};
    assert_ok(load(&c, "train:\n", sets));
    assert_int_equal(c.data.batch.n, 1);
    assert_int_equal(c.data.batch.v[0], 12);
    assert_int_equal(c.model.input.v[0], 784);
    assert_true(c.train.seed == UINT64_MAX);
    json_t *seed = ps_config_value_json(&c, ps_config_key_find("train.seed"));
    assert_string_equal(json_string_value(seed), "18446744073709551615");
    json_decref(seed);
    ps_config_fini(&c);
}

TEST(errors_name_file_line_and_key)
{
    assert_refused("", "job.name=caf\xe9", "job.name: is not UTF-8");
    assert_refused("", "data.path=caf\xe9/x", "data.path: is not UTF-8");
    assert_refused("", "model.loss\xe9=x", "a key: is not UTF-8");
    assert_refused("\n\noptimizer:\n  lr: -1\n", "job.name=x",
                   ".yaml:4: optimizer.lr: -1 is below 0");
    assert_refused("optimizer:\n  learning: 1\n", "job.name=x",
                   ".yaml:2: optimizer.learning: unknown key");
    assert_refused("optimiser:\n  lr: 1\n", "job.name=x",
                   ".yaml:1: optimiser: unknown section; did you mean optimizer?");
    assert_refused("", "modell.loss=nll",
                   "--set: modell: unknown section; did you mean model?");
    assert_refused("weather: {rain: 1}", "job.name=x",
                   "weather: unknown section (--help lists all keys)");
    assert_refused("train: {epoch: 1}", "job.name=x", "did you mean train.epochs?");
    assert_refused("lr: 1", "job.name=x", "did you mean optimizer.lr?");
    assert_refused("train: {lr: 1}", "job.name=x", "did you mean optimizer.lr?");
    assert_refused("train: {name: x}", "job.name=x",
                   "did you mean job.name or optimizer.name or schedule.name or "
                   "exchange.name?");
    assert_refused("train: 3\n", "job.name=x", "train: is a section");
    assert_refused("[1, 2]\n", "job.name=x", "a map of sections");
}

TEST(overrides_are_checked)
{
    assert_refused("", "optimizer.lr", "not key=value");
    assert_refused("", "=1", "not key=value");
    assert_refused("", "optimizer.lrr=1", "--set: optimizer.lrr: unknown key");
    assert_refused("", "optimizer.lr=", "optimizer.lr: is empty");
    assert_refused("", "optimizer.lr=nan", "'nan' is not a number");
    assert_refused("", "optimizer.lr.x=1", "optimizer.lr: has to be a number, not a map");
    assert_refused("", "train.epochs=1.5", "'1.5' is not a whole number");
    assert_refused("", "train.seed=-1", "train.seed: '-1'");
    assert_refused("", "train.tf32=maybe", "'maybe' is not true or false");
    assert_refused("", "exchange.chunk=64X", "a number of bytes");
    assert_refused("", "exchange.bucket=auto", "a number of bytes");
    assert_refused("", "exchange.name=mpi", "'mpi' is not one of ps | allreduce");
    assert_refused("", "model.loss=hinge", "'hinge' is not one of nll");
    assert_refused("", "optimizer.name=ada", "not one of sgd | adam | adamw");
    assert_refused("", "optimizer.name=", "not one of sgd | adam | adamw");
    assert_refused("optimizer: {name: sum}\n", "exchange.codec=topk",
                   "exchange.codec: topk needs an optimizer on the servers");
    assert_refused("optimizer: {name: mean}\n", "optimizer.clip_norm=1",
                   "optimizer.clip_norm: has to be 0");
    assert_refused("optimizer: {name: sum}\n", "loss_scale.use=on",
                   "loss_scale.use: cannot be on");
    assert_refused("model:\n  layers: [relu]\n", "optimizer.name=sum",
                   "optimizer.name: sum and mean make no step");
    assert_refused("", "data.batch=[1, x]", "data.batch: 'x'");
    assert_refused("", "data.batch=[1, -1]", "data.batch: -1 is below 0");
}

TEST(rows_of_numbers_are_no_pictures)
{
    static const char *const none[] = {"data={resize: [], crop_padding: 0, flip: false}",
                                       NULL};
    ps_config cfg;
    for (int i = 0; i < 3; i++) {
        static const char *const rows[] = {"data: {kind: csv}\n",
                                           "data: {kind: criteo}\n",
                                           "data: {kind: synthetic_clicks}\n"};
        assert_refused(rows[i], "data.resize=[4, 4]", "data.resize: needs pictures");
        assert_refused(rows[i], "data.crop_padding=1", "data.crop_padding: needs pic");
        assert_refused(rows[i], "data.flip=true", "data.flip: needs pictures");
        assert_ok(load(&cfg, rows[i], none));
        ps_config_fini(&cfg);
    }
    static const char *const all[] = {
        "data={resize: [4, 4], crop_padding: 1, flip: true}", NULL};
    assert_ok(load(&cfg, "data: {kind: npy}\n", all));
    ps_config_fini(&cfg);
}

/* What no process of the job can begin with: it is said before there is one. */
TEST(what_no_job_can_begin_with_is_refused)
{
    static const char SCALED[] = "loss_scale: {use: on}\n";
    static const char MODEL[] = "model:\n  layers: [relu]\n";
    assert_refused(SCALED, "loss_scale.growth=1", "loss_scale.growth: has to be above 1");
    assert_refused(SCALED, "loss_scale.backoff=1", "loss_scale.backoff: has to be above");
    assert_refused(SCALED, "loss_scale.backoff=0", "loss_scale.backoff: has to be above");
    assert_refused(SCALED, "loss_scale.init=0", "loss_scale.init: is too small");
    assert_refused(SCALED, "loss_scale.init=1e-39", "loss_scale.init: is too small");
    assert_refused(SCALED, "exchange.codec=topk", "exchange.codec: topk keeps");
    assert_refused(SCALED, "exchange.codec=onebit", "exchange.codec: onebit keeps");
    assert_refused("train: {precision: fp16}\n", "exchange.codec=int4", "int4 keeps");
    assert_refused("schedule: {name: cosine, total: 100}\n", "schedule.warmup=100",
                   "schedule.total: 100 steps are over before the warm-up of 100 is");
    assert_refused(MODEL, "exchange={shm: on, codec: int8}",
                   "exchange.shm: cannot be on with exchange.codec int8");
}

TEST(local_steps_are_checked)
{
    static const char POLICY[] = "sync: {policy: local}\n";
    assert_refused("", "sync.policy=sps", "'sps' is not one of bsp | backup | ssp");
    assert_refused("", "sync.local_steps=4", "sync.local_steps: needs sync.policy local");
    assert_refused("", "sync.outer_lr=1", "sync.outer_lr: needs sync.policy local");
    assert_refused(POLICY, "sync.backup=1", "sync.backup: needs sync.policy backup");
    assert_refused(POLICY, "sync.local_steps=0", "sync.local_steps: 0 is below 1");
    assert_refused(POLICY, "sync.local_after=-1", "sync.local_after: -1 is below 0");
    assert_refused(POLICY, "exchange.name=none",
                   "sync.policy: local needs other workers");
    assert_refused(POLICY, "exchange.name=nccl", "sync.policy: local does not work with");
    assert_refused(POLICY, "optimizer.name=mean",
                   "sync.policy: local needs an optimizer");
    assert_refused(POLICY, "sync.outer=sum", "sync.outer: sum and mean make no step");
    assert_refused(POLICY, "sync.outer_nesterov=true", "sync.outer_nesterov: needs");
    assert_refused(POLICY, "sync={outer: adam, outer_momentum: 0.9, policy: local}",
                   "sync.outer: only sgd has a momentum");
}

TEST(fragments_are_checked)
{
    static const char POLICY[] = "sync: {policy: local, local_steps: 12}\n"
                                 "exchange: {name: ps}\n";
    assert_refused("", "sync.fragments=2", "sync.fragments: needs sync.policy local");
    assert_refused("", "sync.overlap=1", "sync.overlap: needs sync.policy local");
    assert_refused("", "sync.mixing=0", "sync.mixing: needs sync.policy local");
    assert_refused(POLICY, "sync.fragments=0", "sync.fragments: 0 is below 1");
    assert_refused(POLICY, "sync.fragments=65", "sync.fragments: 65 is above 64");
    assert_refused(POLICY, "sync.fragments=13",
                   "sync.fragments: 13 are more than the 12");
    assert_refused(POLICY, "sync.overlap=12", "sync.overlap: has to be below 12");
    assert_refused(POLICY,
                   "sync={policy: local, local_steps: 7, fragments: 2, overlap: 3}",
                   "sync.overlap: has to be below 3");
    assert_refused(POLICY, "sync.mixing=0.5", "sync.mixing: needs sync.overlap");
    assert_refused(POLICY, "sync={policy: local, overlap: 1, mixing: 1.5}",
                   "sync.mixing: 1.5 is above 1");
    assert_refused("sync: {policy: local, fragments: 2}\n", "exchange.name=gloo",
                   "sync.fragments: needs exchange.name ps");
}

TEST(rows_are_kept_by_another_server)
{
    assert_refused("job: {servers: 1}\n", "rows.buddy=true",
                   "rows.buddy: needs a second server");
    assert_refused("job: {servers: 2}\nexchange: {name: gloo}\n", "rows.buddy=true",
                   "rows.buddy: needs exchange.name ps");
}

TEST(a_quorum_is_checked)
{
    static const char POLICY[] = "sync: {policy: local, local_steps: 8, quorum: 3}\n"
                                 "exchange: {name: ps}\njob: {workers: 4, servers: 1}\n";
    ps_config cfg;
    assert_ok(load(&cfg, POLICY, NULL));
    assert_true(ps_config_quorum(&cfg) && ps_config_own_pace(&cfg));
    ps_config_fini(&cfg);
    assert_refused("", "sync.quorum=1", "sync.quorum: needs sync.policy local");
    assert_refused("sync: {policy: local}\n", "sync.replay=x",
                   "sync.replay: needs sync.policy backup, ssp");
    assert_refused("sync: {policy: local}\n", "sync.grace_ms=1",
                   "sync.grace_ms: needs sync.policy backup, or local with sync.quorum");
    assert_refused(POLICY, "sync.quorum=5",
                   "sync.quorum: 5 is more than the job's 4 workers");
    assert_refused("", "sync.steps_by_speed=true",
                   "sync.steps_by_speed: needs sync.policy local");
    assert_refused("sync: {policy: local, steps_by_speed: true}\n", "job.workers=4",
                   "sync.steps_by_speed: needs sync.quorum");
    assert_refused(POLICY, "sync.local_after=1", "sync.local_after: with sync.quorum");
    assert_refused(POLICY, "exchange.name=gloo", "exchange.name: with sync.policy local");
    assert_refused(POLICY, "sync.correction=delay", "sync.correction: needs a policy");
}

TEST(policies_are_checked)
{
    static const char ASP[] = "sync: {policy: asp}\noptimizer: {name: adamw}\n"
                              "exchange: {name: ps}\njob: {workers: 3, servers: 1}\n";
    assert_refused(ASP, "loss_scale.use=on",
                   "loss_scale.use: with sync.policy asp it has to be off");
    assert_refused(ASP, "job.workers=2..3",
                   "job.workers: with sync.policy asp it has to be one number");
    assert_refused(ASP, "train.save_every=3",
                   "train.save_every: with sync.policy asp it has to be 0");
    assert_refused(ASP, "sync.staleness=3", "sync.staleness: needs sync.policy ssp");
    assert_refused(ASP, "sync.late=add", "sync.late: needs sync.policy backup");
    assert_refused(ASP, "sync.delay_strength=1",
                   "sync.delay_strength: needs sync.correction delay");
    assert_refused(ASP, "sync.correction=lr",
                   "sync.correction: lr needs optimizer.name sgd");
}

TEST(two_levels_are_checked)
{
    static const struct {
        const char *set, *wants;
    } cases[] = {
        {"exchange.name=allreduce", "ps"}, {"sync.policy=asp", "bsp"},
        {"sync.policy=local", "bsp"},      {"job.workers=2..3", "one number"},
        {"recovery.rejoins=3", "0"},       {"exchange.shm=off", "auto"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[128];
        snprintf(want, sizeof want, "%.*s: with exchange.levels 2 it has to be %s",
                 (int)strcspn(cases[i].set, "="), cases[i].set, cases[i].wants);
        assert_refused("exchange: {levels: 2}\njob: {workers: 4, servers: 1}\n",
                       cases[i].set, want);
    }
    assert_refused("", "exchange.levels=3", "exchange.levels: 3 is above 2");
}

static ps_winograd winograd_of(const char *set)
{
    ps_config c;
    const char *const sets[] = {set};
    assert_ok(ps_config_load(&c, NULL, sets, set ? 1 : 0));
    ps_winograd winograd = c.train.winograd;
    ps_config_fini(&c);
    return winograd;
}

/* The key used to be true or false. Configurations with these values keep their meaning.
 */
TEST(winograd_is_a_word)
{
    assert_int_equal(winograd_of(NULL), PS_WINOGRAD_GRADIENTS);
    assert_int_equal(winograd_of("train.winograd=off"), PS_WINOGRAD_OFF);
    assert_int_equal(winograd_of("train.winograd=gradients"), PS_WINOGRAD_GRADIENTS);
    assert_int_equal(winograd_of("train.winograd=all"), PS_WINOGRAD_ALL);
    assert_int_equal(winograd_of("train.winograd=true"), PS_WINOGRAD_GRADIENTS);
    assert_int_equal(winograd_of("train.winograd=false"), PS_WINOGRAD_OFF);
    assert_refused("", "train.winograd=on", "'on' is not one of off | gradients | all");
}

TEST(combinations_are_checked)
{
    assert_refused("", "data.batch=[64, 32]", "2 values for 1 workers");
    assert_refused("", "data.batch=[]", "data.batch: is empty");
    assert_refused("", "optimizer.betas=[0.9]", "two numbers below 1");
    assert_refused("", "optimizer.betas=[0.9, 1]", "two numbers below 1");
    assert_refused("", "optimizer.nesterov=true", "needs a momentum");
    assert_refused("", "data.normalize=[0.5]", "as many standard deviations");
    assert_refused("", "data.normalize=[0.5, 0]", "above 0");
    assert_refused("", "data.resize=[8]", "has to be [H, W]");
    assert_refused("", "model.input=[1, 2, 3, 4]", "[C, H, W]");
    assert_refused("", "train.device=gpu", "train.device: 'gpu'");
    assert_refused("", "net.heartbeat_ms=20000", "above net.heartbeat_ms");
    assert_refused("", "job.servers=0", "needs a server");
    assert_refused("job:\n  name: ../../x\n", "job.servers=1",
                   ".yaml:2: job.name: has a slash");
}

TEST(missing_file_is_io)
{
    ps_config c;
    assert_error(ps_config_load(&c, "/nonexistent/x.yaml", NULL, 0), PS_ERR_IO,
                 "/nonexistent/x.yaml");
}

static uint64_t hash_of(const char *text, const char *set)
{
    ps_config c;
    const char *const sets[] = {set, NULL};
    assert_ok(load(&c, text, sets));
    uint64_t h = ps_config_hash(&c);
    ps_config_fini(&c);
    return h;
}

static void sections_of(const char *setting, ps_config_sections *out)
{
    ps_config c;
    assert_ok(ps_config_load(&c, NULL, &setting, 1));
    ps_config_hash_sections(&c, out);
    ps_config_fini(&c);
}

TEST(a_section_that_differs_is_found)
{
    static const struct {
        const char *setting, *section;
    } rows[] = {
        {"train.seed=2", "train"},        {"optimizer.lr=0.1", "optimizer"},
        {"data.batch=65", "data"},        {"exchange.chunk=1M", "exchange"},
        {"model.layers=[relu]", "model"}, {"schedule.name=cosine", "schedule"},
        {"train.device=cpu", ""},         {"net.interface=eth0", ""},
    };
    ps_config_sections a, b;
    sections_of("train.seed=0", &a);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sections_of(rows[i].setting, &b);
        char differ[128] = "";
        assert_int_equal(a.n, b.n);
        for (int k = 0; k < a.n; k++)
            if (a.hashes[k] != b.hashes[k]) strcat(differ, b.names[k]);
        assert_string_equal(differ, rows[i].section);
    }
}

TEST(hash_is_of_what_counts)
{
    const char *a = "train: {epochs: 3, seed: 1}\n"
                    "model: {layers: [relu, dropout: {name: d, p: 0.5}]}\n";
    const char *same = "# other order, comments, spelling\n"
                       "model:\n  layers:\n  - 'relu'\n"
                       "  - dropout:\n      p: 0.50\n      name: d\n"
                       "train:\n  seed: 01\n  epochs: 3\n";
    uint64_t h = hash_of(a, "sync.policy=bsp");
    assert_true(hash_of(same, "sync.policy=bsp") == h);
    // These keys may differ between processes.
    static const char *const local[] = {"data.path=/x", "train.device=cpu",
                                        "train.threads=4", "net.interface=eth0",
                                        "exchange.shm=off"};
    for (int i = 0; i < 5; i++)
        assert_true(hash_of(a, local[i]) == h);
    static const char *const shared[] = {"train.seed=2",      "optimizer.lr=0.1",
                                         "data.batch=65",     "optimizer.name=adamw",
                                         "exchange.chunk=1M", "data.normalize=[0, 1]",
                                         "data.shuffle=off",  "model.layers=[relu]"};
    for (int i = 0; i < 8; i++)
        assert_true(hash_of(a, shared[i]) != h);
    // The order of layers counts, that of a map's keys does not.
    assert_true(hash_of("model: {layers: [relu, tanh]}", "train.seed=0") !=
                hash_of("model: {layers: [tanh, relu]}", "train.seed=0"));
}

static ps_err load_elastic(ps_config *c, const char *text, const char *set)
{
    const char *const sets[] = {set, "job.name=x", NULL};
    return load(c, text, sets);
}

TEST(workers_may_be_a_range)
{
    static const struct {
        const char *text, *set;
        int64_t least, most, start;
    } cases[] = {
        {"job: {workers: 2..8}", "train.seed=0", 2, 8, 0},
        {"job: {workers: 2..8}", "job.workers=3", 2, 8, 3}, // the job begins with 3
        {"job: {workers: 2}", "job.workers=3..5", 3, 5, 0},
        {"job: {workers: 2..8}", "job.workers=4..4", 4, 4, 0},
        {"job: {workers: 2}", "job.workers=3", 3, 3, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ps_config c;
        assert_ok(load_elastic(&c, cases[i].text, cases[i].set));
        assert_int_equal(c.job.workers, cases[i].least);
        assert_int_equal(c.job.most_workers, cases[i].most);
        assert_int_equal(c.job.start_workers, cases[i].start);
        assert_int_equal(ps_config_elastic(&c), cases[i].least < cases[i].most);
        assert_int_equal(c.recovery.rejoins > 0, ps_config_elastic(&c));
        ps_config_fini(&c);
    }
    assert_refused("job:\n  workers: 8..2\n", "job.name=x",
                   ":2: job.workers: '8..2' ends");
    assert_refused("job:\n  workers: 2..x\n", "job.name=x",
                   ":2: job.workers: '2..x' is not");
    assert_refused("job:\n  workers: 0..3\n", "job.name=x",
                   ":2: job.workers: 0 is below 1");
    assert_refused("job:\n  workers: 2..4\n", "job.workers=5",
                   "job.start_workers: 5 is not within 2..4");
    assert_refused("job:\n  workers: 2..4\n", "data.batch=[1, 2]",
                   "data.batch: has to be one value");
    assert_refused("job:\n  workers: 2..4\n", "exchange.name=none", "is for one worker");
}

TEST(a_global_batch_is_cut_evenly)
{
    ps_config c;
    assert_ok(load_elastic(&c, "job: {workers: 1..8}\ndata: {batch: 20}",
                           "data.global_batch=240"));
    for (int w = 1; w <= 8; w++) {
        int64_t sizes[8], sum = 0, least = INT64_MAX, most = 0;
        const int64_t parts = ps_config_split(&c, w, sizes);
        for (int r = 0; r < w; r++) {
            sum += sizes[r];
            least = sizes[r] < least ? sizes[r] : least;
            most = sizes[r] > most ? sizes[r] : most;
        }
        assert_int_equal(sum * parts, 240);
        assert_in_range(least, 1, most);
        assert_in_range(most, least, least + 1 < 20 ? least + 1 : 20);
    }
    ps_config_fini(&c);
    assert_refused("job:\n  workers: 2..3\ndata:\n  batch: 2\n", "data.global_batch=7",
                   "data.global_batch: 7 samples cannot be cut");
    assert_refused("train:\n  accumulate: 2\n", "data.global_batch=64",
                   "remove train.accumulate");
}

/* Every key has a unique path, a help text, and a default that its own parser accepts. */
TEST(table_is_sound)
{
    for (int i = 0; i < ps_config_n_keys; i++) {
        const ps_config_key *key = &ps_config_keys[i];
        assert_ptr_equal(ps_config_key_find(key->path), key);
        assert_true(strlen(key->help) > 2);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(ps_config_keys[j].offset, key->offset);
    }
}

TEST(help_lists_every_key)
{
    char *text = NULL;
    size_t n = 0;
    for (int markdown = 0; markdown < 2; markdown++) {
        FILE *out = open_memstream(&text, &n);
        assert_non_null(out);
        if (markdown)
            ps_config_print_markdown(out);
        else
            ps_config_print_help(out);
        fclose(out);
        for (int i = 0; i < ps_config_n_keys; i++)
            assert_non_null(strstr(text, ps_config_keys[i].path));
        free(text);
    }
}
