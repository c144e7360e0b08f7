/* The step loop of a worker.
 *
 * An optimizer step is a group of `accumulate` micro-batches (the epoch's last group may
 * be short). Every micro-batch's mean gradient is multiplied by n / N, where n is its
 * number of samples and N that of the group over all ranks. So the sum of all ranks'
 * gradients is the mean over the group's samples. With equal batches the factor is DDP's
 * 1/W.
 */
#ifndef PS_TRAINER_H
#define PS_TRAINER_H

#include "checkpointer.h"
#include "duration_stats.h"
#include "evaluate.h"
#include "metric_table.h"
#include "metrics.h"
#include "model_spec.h"
#include "progress.h"
#include "run_dir.h"
#include "session.h"
#include "straggler_log.h"
#include "trainer_reentry.h"

typedef struct ps_trainer_options { // all borrowed for the trainer's life
    const ps_config *config;
    const ps_model_spec *spec;
    const ps_dataset *train;        // without samples when train.epochs is 0
    uint64_t train_mark, test_mark; // ps_dataset_mark
    const ps_sampler_options *sampler;
    int64_t accumulate; // micro-batches per step (ps_config_split)
    ps_device *device;
    ps_session *session; // started, with ps_trainer_total_steps
    ps_evaluator *evaluator;
    ps_row_client *rows;              // of embedding tables; NULL: none
    const ps_trainer_snapshot *start; // where the job goes on; NULL: a new one
    uint64_t generation;              // survivors.h
    /* Of a worker that takes a dead one's place, beside `start`; NULL: it is none. */
    const ps_trainer_reentry *reentry;
    ps_checkpointer *checkpointer; // NULL: no checkpoints
    ps_run_dir *run_dir;           // rank 0's; NULL: writes nothing
    ps_metrics *metrics;           // not open: writes nothing
    ps_progress *progress;         // without a file: shows nothing
    ps_metric_values *values;      // what others watch; NULL: nobody does
} ps_trainer_options;

/* How the run ended, and those figures of the summary that the loop knows. */
typedef struct ps_trainer_result {
    uint64_t steps, samples; // samples of all ranks; of the whole job
    uint64_t first_step;     // where this process began
    int64_t epochs;          // begun
    bool interrupted;
    bool stopped_early;     // train.patience
    int next_workers;       // the job goes on with that many; 0: it has not regrouped
    bool leaves;            // then: this worker is not among them
    bool resumable;         // interrupted, and the last checkpoint is of the last step
    uint64_t skipped_steps; // of steps: gradients that overflowed
    float loss_scale;       // after the last; 1 without loss scaling
    double seconds, samples_per_second;
    double train_loss;        // mean over the last epoch's samples so far; NAN: no step
    double train_accuracy;    // likewise; NAN: no classes
    ps_evaluation evaluation; // the last; samples 0: there was none
    ps_quality quality;       // of that: which figure says how good the model is
    int64_t best_epoch;       // whose evaluation was the best; 0: there was none
    ps_duration_stats step_time, wait_time; // after train.warmup_steps, this rank's
    ps_exchange_stats traffic;              // of the steps, this rank's
    ps_straggler_log stragglers;            // worker 0's
    /* The trainer's: */
    const int64_t *batches; // of each worker in the last epoch; NULL: they never change
    const int64_t *round_steps; // of each worker's last rounds; NULL: they never change
    const char *policy;         // JSON, of workers at their own pace; worker 0's
} ps_trainer_result;

typedef struct ps_trainer ps_trainer;

/* The program of a training step: what a session and the configuration say of it, without
 * arenas and batch size. The session has a plan, joined or not; spec is borrowed for the
 * program's life. */
ps_program_options ps_trainer_program(const ps_session *session, const ps_config *config,
                                      const ps_model_spec *spec);

/* Optimizer steps of the whole job: epochs, or train.steps if that is less. done: steps
 * before the sampler's start. Pure. */
uint64_t ps_trainer_total_steps(const ps_config *config,
                                const ps_sampler_options *sampler, int64_t accumulate,
                                uint64_t done);

/* Whether each worker keeps its own place in the epoch, so that a job goes on only with
 * as many as before, and its sampler begins whole epochs. */
bool ps_trainer_reentrys_are_own(const ps_config *config);

ps_err ps_trainer_create(const ps_trainer_options *options, ps_trainer **out);
void ps_trainer_destroy(ps_trainer **trainer);

/* Trains and evaluates as configured, with the session started before. When any rank is
 * interrupted, all end after the same step (result->interrupted). In an elastic job they
 * also end when workers come or go, after a checkpoint of that step in which all have
 * taken part (result->next_workers). In the end weights and buffers are the newest, and
 * rank 0 has written model.safetensors; and best.safetensors where an epoch before the
 * last was evaluated best. *result is filled as far as it got, also on
 * failure. */
ps_err ps_trainer_run(ps_trainer *trainer, ps_trainer_result *result);

#endif
