/* What the step loop holds. Only for trainer.c, its parts and its paces:
 *
 *     trainer_step   one optimizer step: batches, passes, losses
 *     trainer_pace   an epoch's steps: trainer_bsp, trainer_stretch
 *     trainer        all else: records, agreeing, checkpoints, evaluations, the epochs
 */
#ifndef PS_TRAINER_STATE_H
#define PS_TRAINER_STATE_H

#include "loss_terms.h"
#include "plateau.h"
#include "trainer_pace.h"

/* Early stopping (train.patience): training ends after that many evaluations in a row
 * without a better result. Prechelt, "Early Stopping - But When?", 1998. */
typedef struct ps_patience {
    double best;    // result so far: -loss or accuracy; NAN: there was none
    int64_t in_row; // evaluations since then
} ps_patience;

/* Sums since the last record, this rank's. */
typedef struct ps_trainer_window {
    double loss_sum;
    int64_t samples, global_samples;
    int64_t correct, counted; // samples with a class, and those that were right
    uint64_t steps;
    double seconds, wait_seconds;
} ps_trainer_window;

/* A record before its losses are summed over all ranks: this rank's. */
typedef struct ps_trainer_note {
    ps_step_record record;
    bool measured; // the record has figures
    double loss_sum, samples, correct, counted;
} ps_trainer_note;

enum { PS_TRAINER_NOTES = 16 };

/* A micro-batch whose loss the device has not given yet. */
typedef struct ps_trainer_owed_loss {
    int64_t samples;
    ps_batch_weight weight;
    bool last; // of its step
} ps_trainer_owed_loss;

struct ps_trainer {
    ps_trainer_options o;
    ps_member *member; // the session's; NULL: alone
    const ps_trainer_pace_ops *pace;
    union { // the pace's own state
        struct ps_trainer_bsp *bsp;
        struct ps_trainer_own *own;
    };
    int rank;
    uint64_t total_steps;
    ps_program *program;
    ps_batch_rows rows;
    ps_loader *loader;
    ps_loaded *next; // taken before its turn, for what is prefetched; NULL: none
    int64_t n_batches;
    int64_t epochs;            // that total_steps begin
    int64_t *global_n;         // (n_batches) samples of each micro-batch over all ranks
    int64_t *own_n;            // (n_batches) of this rank
    int64_t sized_for;         // the epoch of these sizes; -1: any whole one
    int64_t max_batch;         // of this rank, in any epoch
    int64_t position;          // samples of the epoch's permutation that have been seen
    bool goes_on;              // in the first epoch of a job that goes on from a snapshot
    double best;               // of the evaluations (trainer_quality)
    double best_before;        // the best before that one
    int64_t best_epoch;        // from 1; 0: there was none
    ps_patience patience;      // as of the evaluations that training went on after
    ps_plateau plateau;        // likewise
    uint64_t kept;             // the step of the last checkpoint that this job has taken
    int64_t metrics_bytes;     // of metrics.jsonl for the next one; 0: all that it has
    ps_checkpoint_target late; // which one is due by time, as the ranks have agreed
    uint64_t step;             // optimizer steps done
    int64_t epoch;
    uint64_t next_check;   // the step after which the ranks agree on whether to go on
    uint64_t next_records; // the first step whose record does not wait for others
    ps_trainer_note notes[PS_TRAINER_NOTES]; // in order; the same steps on every rank
    int n_notes;
    ps_trainer_window since_record;
    ps_trainer_owed_loss owed[PS_RESULTS_KEPT]; // in order
    int n_owed;
    ps_trainer_window group; // losses known of the step that is not known whole
    double step_loss;        // mean of the last known step's samples, this rank's
    int64_t sums_epoch;      // whose sums the next two are; -1: there are none
    double epoch_loss_sum;   // over all ranks, as far as reduced
    double epoch_samples;    // likewise
    double epoch_correct;    // likewise
    double epoch_counted;    // likewise
    double warm_seconds;     // after train.warmup_steps
    uint64_t warm_samples;   // likewise
    double samples_a_step;   // of all ranks, smoothed, for the progress
    double seconds_a_step;   // smoothed, for progress and time left
    double waited;           // of the exchange, at the last step's end
    double loaded;           // seconds that it has waited for batches
    double agreed;           // seconds that it has waited for all ranks to agree
    double owed_seconds;     // of agreeing after a step: booked with the next
    float loss_scale;        // of the step; 1 without; 0: not known yet
    uint64_t clock;          // steps of this rank: the number of the next one
    uint64_t pass;           // whose order the samples have
    uint64_t shown;          // steps that are not in `step` yet, for the progress
    ps_trainer_result *result;
};

enum { PS_TRAINER_NOT_SIZED = -2 }; // sized_for: the sizes have changed

/* Sums the values over all ranks, in place. kind and number name the sum. */
ps_err ps_trainer_reduce(const ps_trainer *t, const char *kind, uint64_t number,
                         double *values, size_t n);

/* Finds global_n and own_n of t->epoch. */
ps_err ps_trainer_find_sizes(ps_trainer *t);
/* Whether an evaluation follows the epoch. */
bool ps_trainer_evaluation_due(const ps_trainer *t);
/* All ranks. Afterwards the arenas hold the newest weights and rank 0's buffers. */
ps_err ps_trainer_drain(ps_trainer *t);
/* All ranks: rank 0 writes weights and buffers; the file is complete on return. */
ps_err ps_trainer_save(ps_trainer *t, const char *name);

/* All ranks call it after the same steps. Sums the losses of the notes and, with record,
 * of the steps since the last one, and writes their records. Sets *stop when any rank was
 * interrupted, or the job regroups. */
ps_err ps_trainer_agree(ps_trainer *t, bool record, bool *stop);
/* All ranks call it after the same steps: at records, after the step that they agreed on
 * last, and where a file is written. Agreeing costs a round trip to the coordinator, so
 * records of short steps wait for each other, about a twentieth of a second. now: what
 * follows in this step needs all records before it. */
ps_err ps_trainer_record(ps_trainer *t, bool record, bool now, bool *stop);

/* Of the micro-batches [first, first + count): n is t->global_n or t->own_n. */
int64_t ps_trainer_samples(const int64_t *n, int64_t first, int64_t count);
/* The passes of one optimizer step: micro-batches [first, first + count) of the epoch,
 * which have group_n samples over all ranks. */
ps_err ps_trainer_run_group(ps_trainer *t, int64_t first, int64_t count, int64_t group_n);
/* Books the losses that the device owes, except the newest `keep`. Where it computes
 * behind the caller, asking for the newest would leave it without work until the next
 * step is queued: so that loss is taken after the next micro-batch. */
ps_err ps_trainer_take_losses(ps_trainer *t, int keep);
/* Learns the loss scale after the last step. It falls if that step was skipped, and only
 * then. */
ps_err ps_trainer_renew_loss_scale(ps_trainer *t);

/* Books a step that took `seconds`, after t->step has counted it. Returns how many of
 * them the exchange waited. */
double ps_trainer_book_step(ps_trainer *t, double seconds, int64_t group_n);
/* For the monitor. seconds: of all steps. */
void ps_trainer_show_values(const ps_trainer *t, const ps_exchange_stats *e,
                            double seconds);
/* now: even if the last line was shown a moment ago. */
void ps_trainer_show_progress(ps_trainer *t, double loss, bool now);

/* This rank's part of the state between two steps. s: of ps_trainer_snapshot_init. */
void ps_trainer_fill_state(const ps_trainer *t, ps_trainer_snapshot *s);
/* All ranks, between two steps, after everything of the step except an evaluation. */
ps_err ps_trainer_checkpoint_if_due(ps_trainer *t, bool stop);

#endif
