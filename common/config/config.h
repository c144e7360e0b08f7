/* The configuration of a job: a YAML file, overridden by --set key=value.
 *
 * One table (config_schema.c) lists every key with its type, range, default and help; the
 * reader, --help, docs/configuration.md, the configuration hash and --resume all use it.
 * Errors name file, line and key: "configs/a.yaml:12: optimizer.lr: -1 is below 0".
 */
#ifndef PS_CONFIG_H
#define PS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "clock.h"
#include "config_words.h"
#include "err.h"
#include "yaml_tree.h"

enum { PS_RANK_NOT_0 = -2 }; // any other one; -1: any
enum { PS_MAX_RANKS = 1024, PS_MAX_FRAGMENTS = 64, PS_CONFIG_LIST_MAX = 128 };

/* The value of "auto" where 0 means 0. */
enum { PS_CONFIG_AUTO = -1 };

typedef struct ps_float_list {
    int n;
    double v[PS_CONFIG_LIST_MAX];
} ps_float_list;

typedef struct ps_int_list {
    int n;
    int64_t v[PS_CONFIG_LIST_MAX];
} ps_int_list;

/* Patterns of parameter names (fnmatch), each on a line of its own. Owned. */
typedef char *ps_patterns;

/* Names, each ended by '\n'. */
typedef char *ps_names;

/* Parameters with numbers of their own; NAN: the optimizer's. */
typedef struct ps_group_setting {
    ps_patterns match;
    double lr, weight_decay;
} ps_group_setting;

enum { PS_CONFIG_GROUPS_MAX = 16 };

typedef struct ps_group_list {
    int n;
    ps_group_setting v[PS_CONFIG_GROUPS_MAX];
} ps_group_list;

typedef struct ps_int_range {
    int64_t min, max;
} ps_int_range;

/* Strings are owned by the configuration and never NULL ("" when not given). */
typedef struct ps_config_job {
    char *name;      // default: the configuration file's name without .yaml
    int64_t servers; // server processes; PS_SERVERS, psrun -s
    /* Worker processes; WORLD_SIZE, psrun -w. A job whose range has more than one number
     * is elastic: workers may join and leave while it runs. */
    ps_int_range workers_range;
    int64_t workers, most_workers; // of the range: the least and the most
    int64_t start_workers;         // elastic: how many it begins with; 0: not said
} ps_config_job;

typedef struct ps_config_train {
    int64_t epochs;     // 0: evaluate only
    int64_t steps;      // stop after that many optimizer steps; 0: no such limit
    int64_t stop_after; // end in order after this one, as if told to; 0: no
    uint64_t seed;      // weights and dropout
    ps_device_choice device;
    ps_precision precision;
    bool tf32;
    ps_switch cudnn;
    ps_switch channels_last;
    ps_winograd winograd;
    bool graphs, numa;
    int64_t threads;             // of arithmetic in a worker; 0: all cores
    int64_t accumulate;          // micro-batches per optimizer step
    double label_smoothing;      // of nll and cross_entropy, like the next two
    ps_float_list class_weights; // one for each class; none: all 1
    int64_t ignore_index;        // samples with this label do not count
    char *init;                  // a safetensors file, or ""
    bool init_strict;            // the file has to have exactly the model's tensors
    ps_patterns freeze;          // parameters that are not trained
    int64_t save_every;          // optimizer steps; 0: only at the end
    int64_t file_timeout_ms; // rank 0 may take that long for a file; longer is an error
    int64_t log_every;       // optimizer steps
    int64_t eval_every;      // epochs; 0: only at the end
    double ema;              // decay of the weights' moving average; 0: none
    int64_t patience;        // evaluations without a better one; 0: no early stopping
    int64_t warmup_steps;    // left out of samples_per_second
    bool trace;              // record what each process did when (ps_config_trace)
    bool tensorboard;        // write events for TensorBoard
} ps_config_train;

typedef struct ps_config_checkpoint {
    int64_t every;           // optimizer steps; 0: not by their number
    double minutes;          // 0: not by time
    int64_t keep;            // how many of the newest are kept
    int64_t rows_full_every; // each such one has all rows, the others what has changed
    char *path;              // a folder; "": the run's checkpoints/
    ps_best best;            // which of the test split's results decides
} ps_config_checkpoint;

typedef struct ps_config_rows {
    bool buddy;            // the next server keeps a server's rows, too
    ps_policy_kind policy; // bsp or asp
} ps_config_rows;

typedef struct ps_config_data {
    ps_data_kind kind;
    char *path;    // a folder; files of train and test are relative to it
    char *train;   // files (comma-separated) and/or a range: "", "0-7999", "a.gz,b.gz",
                   // "a,b@0-99"
    char *test;    // the same; or a share of the training samples: "20%"
    char *test_by; // how that is chosen: "random", "order", or a column of a table
    /* Of a table: answers; inputs ("": all others); not used; inputs that are categories
     * even if all cells are numbers. */
    ps_names target, columns, drop, categories;
    bool standardize;         // tables with a target
    ps_missing missing;       // likewise
    ps_encoding encoding;     // likewise, of categories
    ps_unreadable unreadable; // pictures
    bool stream;          // npy, csv, criteo: samples stay in a file, however large it is
    ps_int_list batch;    // per rank: one value for all, or one per rank; 0: auto
    int64_t global_batch; // samples of a step, for any number of workers; 0: not fixed
    int64_t eval_batch;
    bool shuffle;
    bool drop_last, drop_last_batch;
    uint64_t seed;           // the sampler's
    double scale;            // uint8 pixels are multiplied by it (1/255)
    ps_float_list normalize; // means of the channels, then their standard deviations
    ps_int_list resize; // [H, W], bilinear, before crop; pictures: also [shorter side]
    ps_int_list crop;   // pictures: [H, W] or [side] of a sample; empty: model.input's
    ps_float_list crop_scale; // pictures: parts of the area of a random crop; empty: none
    ps_float_list crop_ratio; // and its width / height
    int64_t crop_padding;     // random crop of the input's size after padding; 0: none
    bool flip;                // random horizontal flip
    ps_float_list color_jitter; // pictures: of brightness, contrast, saturation, hue
    ps_int_list rand_augment;   // pictures: [operations, magnitude]; empty: none
    double mixup;               // alpha of the mixed batches' Beta distribution; 0: none
    int64_t prefetch;           // batches prepared ahead
    int64_t threads;      // that prepare them; 0: one, or for pictures train.threads
    int64_t samples;      // synthetic: training samples
    int64_t test_samples; // synthetic: test samples
    double label_noise;   // synthetic: share of the samples with a label drawn anew
} ps_config_data;

typedef struct ps_config_optimizer {
    ps_optimizer_kind name;
    double lr;
    double momentum, dampening;
    bool nesterov;
    ps_float_list betas;                  // default 0.9, 0.999; lion 0.9, 0.99
    double alpha;                         // rmsprop
    bool centered;                        // rmsprop
    double eps;                           // default 1e-8, adagrad 1e-10
    double lr_decay, initial_accumulator; // adagrad
    double weight_decay;                  // default 0, adamw 0.01
    ps_group_list groups;                 // the first that matches counts
    bool decay_bias_norm; // false: no weight decay on biases and norm layers
    double clip_norm;     // 0: no clipping
    int64_t pytorch; // adam, adamw: version (1 or 2) whose rounding of the first moment
                     // is used
} ps_config_optimizer;

typedef struct ps_config_schedule {
    ps_schedule_kind name;
    int64_t warmup;      // optimizer steps of linear warm-up
    double warmup_start; // factor of lr at step 0 of the warm-up
    int64_t step_size;   // of "step", in optimizer steps
    double gamma;
    int64_t total; // of cosine, linear, polynomial, onecycle; 0: the whole job
    double min_lr;
    int64_t t_0, t_mult;                            // cosine_restarts
    double power;                                   // polynomial
    double pct_start, div_factor, final_div_factor; // onecycle
    ps_anneal anneal;                               // onecycle
    bool three_phase;                               // onecycle
    ps_plateau_metric metric;                       // plateau, with the rest
    double factor, threshold;
    int64_t patience, cooldown; // in evaluations
} ps_config_schedule;

typedef struct ps_config_loss_scale {
    ps_switch use; // auto: with train.precision fp16
    double init, growth, backoff;
    int64_t interval; // finite steps in a row after which the scale grows
} ps_config_loss_scale;

typedef struct ps_config_exchange {
    ps_exchange_kind name;
    int64_t chunk; // bytes; 0: auto
    ps_codec codec;
    int64_t codec_min; // tensors of fewer bytes travel uncoded
    double topk;       // share of elements that topk sends
    /* First and last steps that travel by int8 instead of int4, onebit or topk, or
     * PS_CONFIG_AUTO. */
    int64_t codec_warmup, codec_cooldown;
    ps_switch shm;
    int64_t credit; // bytes in flight to a shard; 0: auto
    int64_t bucket; // bytes of an all-reduce bucket
    ps_nan_rule nan;
    int64_t levels; // of summation: 2: within a host first
} ps_config_exchange;

typedef struct ps_config_server {
    int64_t shards;      // shard threads per server process; 0: automatic
    ps_float_list share; // each server's part of the parameters; empty: equal parts
    int64_t readers;     // of rows, at a time
    char *rows_disk;     // a folder for rows beyond rows_memory; "": none
    int64_t rows_memory; // bytes
    char *rows_log;      // a folder for the order of rows.policy asp; "": none
    char *rows_replay;   // a folder of such a record, which is repeated; "": none
} ps_config_server;

typedef struct ps_config_sync {
    ps_policy_kind policy;
    /* Of the policy local: */
    int64_t local_steps;     // from one synchronisation to the next
    int64_t local_after;     // the first steps, each of which is synchronised
    int64_t fragments;       // of the model, which are synchronised in turn
    int64_t overlap;         // steps from sending a fragment's change to using the result
    double mixing;           // what a worker then keeps of its own weights
    int64_t quorum;          // changes that a round waits for; 0: all
    bool steps_by_speed;     // local_steps are the fastest worker's
    ps_optimizer_kind outer; // the servers' optimizer
    double outer_lr, outer_momentum;
    bool outer_nesterov;
    /* Of the policies in which workers go on at their own pace (sync_policy.h): */
    int64_t backup;    // backup: pushes that a step does not wait for
    ps_late_rule late; // backup
    int64_t grace_ms;  // backup, quorum: how long what is enough waits for the others
    int64_t staleness; // ssp
    ps_correction correction;
    double delay_strength; // of the correction delay
    char *replay;          // a policy.log to repeat; "": none
} ps_config_sync;

typedef struct ps_config_net {
    char *host;      // a part of this machine that is a host of its own; "": all of it
    char *interface; // name, prefix (eth*) or "": the route to the coordinator
    int64_t join_timeout_ms;
    int64_t heartbeat_ms;
    int64_t dead_after_ms;   // a member without a heartbeat for that long is dead
    int64_t step_timeout_ms; // an exchange without progress for that long is an error
    int64_t io_threads;      // ZeroMQ I/O threads
    char *curve;             // folder of the keys, or a key itself; "": none (curve.h)
    bool insecure;           // without keys, leave this host all the same
} ps_config_net;

typedef struct ps_config_metrics {
    int64_t port; // of the coordinator's process, for the page and /metrics; 0: none
    char *bind;   // the address of these ports
} ps_config_metrics;
typedef struct ps_config_trace {
    int64_t first, steps; // that are recorded; steps 0: all from the first
    bool straggler;       // name the member that all wait for
    int64_t limit;        // bytes of each process's file
} ps_config_trace;

typedef struct ps_config_recovery {
    int64_t rejoins; // how often this process joins again after another one's failure
    double share;    // of the time, for snapshots in memory
    int64_t wait_ms; // elastic: how long a worker that is missed is waited for
} ps_config_recovery;

typedef struct ps_config {
    char *file; // as given; "" when all comes from --set
    ps_config_job job;
    ps_config_train train;
    ps_config_checkpoint checkpoint;
    ps_config_rows rows;
    ps_config_data data;
    ps_config_optimizer optimizer;
    ps_config_schedule schedule;
    ps_config_loss_scale loss_scale;
    ps_config_exchange exchange;
    ps_config_server server;
    ps_config_sync sync;
    ps_config_net net;
    ps_config_recovery recovery;
    ps_config_metrics metrics;
    ps_config_trace trace;
    struct {
        ps_int_list input;      // model.input: C, H, W (or one number: features)
        ps_int_list categories; // rows of the embedding of each of the last inputs
        bool dropout;           // false: every dropout layer passes its input through
        ps_loss_kind loss;
    } model;
    /* The parsed file with overrides applied; model.layers is read from it by model_spec.
     * Owned by the configuration. */
    ps_yaml *tree;
} ps_config;

/* Reads file ("" or NULL: defaults alone), applies n overrides "key=value" in order
 * (their place in errors is "--set"), checks types, ranges and unknown keys (with the
 * nearest known key as a hint). CONFIG, IO or NOMEM on failure; cfg is then safe for
 * fini. */
ps_err ps_config_load(ps_config *cfg, const char *file, const char *const *overrides,
                      int n_overrides);
void ps_config_fini(ps_config *cfg);

/* Whether it has layers (model.layers). */
bool ps_config_has_model(const ps_config *cfg);
/* Whether workers may join and leave while the job runs. */
bool ps_config_elastic(const ps_config *cfg);
/* The fewest workers of such a job; 0: their number is fixed. */
int ps_config_fewest_workers(const ps_config *cfg);
/* Whether workers go on at their own pace: sync.policy backup, ssp or asp, or a quorum.
 */
bool ps_config_own_pace(const ps_config *cfg);
/* Whether there is a loss scale: loss_scale.use on, or auto with train.precision fp16. */
bool ps_config_scales_loss(const ps_config *cfg);
/* Whether the schedule comes to its end in the last step. */
bool ps_config_schedule_ends(const ps_config *cfg);
/* The share that data.test takes of the training samples; 0: it names files, or nothing.
 */
double ps_config_test_share(const ps_config *cfg);
bool ps_config_test_is_share(const ps_config *cfg);
/* The name at place i of a list, and the place of a name; NULL, -1: there is none. */
const char *ps_names_at(ps_names names, int i, char *out, size_t bytes);
int ps_names_find(ps_names names, const char *name);

/* Whether rounds of the policy local wait for a quorum alone (sync.quorum). */
bool ps_config_quorum(const ps_config *cfg);
/* Whether workers of one host are summed there first: exchange.levels 2. */
bool ps_config_two_levels(const ps_config *cfg);

/* From now on: net.step_timeout_ms, net.join_timeout_ms, train.file_timeout_ms. */
ps_deadline ps_config_step_deadline(const ps_config *cfg);
ps_deadline ps_config_join_deadline(const ps_config *cfg);
ps_deadline ps_config_file_deadline(const ps_config *cfg);

bool ps_config_makes_checkpoints(const ps_config *cfg);
/* Of a program's job: whether a parameter without a gradient is left as it is (absent.h);
 * in sums it counts as zeros. */
bool ps_config_may_lack_gradients(const ps_config *cfg);
/* Whether the coordinator of its servers names the member that all others wait for. */
bool ps_config_names_straggler(const ps_config *cfg);

/* The batch size of a rank. With data.global_batch, the largest that it may be. */
int64_t ps_config_batch(const ps_config *cfg, int rank);

/* data.batch is auto: after each epoch the ranks' batches follow their speeds. */
bool ps_config_balances(const ps_config *cfg);

/* out is local with job's values of all keys that are the same on every member (the model
 * included). It borrows from both and must not be given to fini. */
void ps_config_view(ps_config *out, const ps_config *local, const ps_config *job);

/* The first key that has to be equal on every member and is not, or NULL. */
const char *ps_config_difference(const ps_config *a, const ps_config *b);

/* How that many workers make a step: sizes (workers) gets the samples per micro-batch of
 * each rank. Returns the micro-batches per step. With data.global_batch every step has
 * that many samples, and no micro-batch more than data.batch of a rank: as few
 * micro-batches as divide it, and ranks that differ by one sample at most. 0: no number
 * of micro-batches does. With ps_config_balances, these are the sizes of the first epoch:
 * one micro-batch (or train.accumulate) of data.global_batch, or of 64 per rank. */
int64_t ps_config_split(const ps_config *cfg, int workers, int64_t *sizes);

/* A hash of all settings that must be equal on every member of the job, the model
 * included (not paths, devices, threads, interface). */
uint64_t ps_config_hash(const ps_config *cfg);

/* Of model.layers alone; 0: there are none. */
uint64_t ps_config_hash_layers(const ps_config *cfg);

/* The same for each section ("train", "model", ...), to find the one that differs. */
enum { PS_CONFIG_SECTIONS_MAX = 24 };

typedef struct ps_config_sections {
    int n;
    char names[PS_CONFIG_SECTIONS_MAX][16];
    uint64_t hashes[PS_CONFIG_SECTIONS_MAX];
} ps_config_sections;

void ps_config_hash_sections(const ps_config *cfg, ps_config_sections *out);
/* The index of the key's section, which is added when it is new. */
int ps_config_section_of(ps_config_sections *s, const char *path);

/* All keys with type, default, range and help: for --help, or as a Markdown table. */
void ps_config_print_help(FILE *out);
void ps_config_print_markdown(FILE *out);

#endif
