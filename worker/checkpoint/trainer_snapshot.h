/* Where the step loop stands between two steps: what a job needs to go on, besides the
 * weights and the exchange's state. */
#ifndef PS_TRAINER_SNAPSHOT_H
#define PS_TRAINER_SNAPSHOT_H

#include <jansson.h>
#include <stdint.h>

#include "err.h"

typedef struct ps_trainer_snapshot {
    uint64_t step;    // optimizer steps done
    int64_t epoch;    // the one that it is in, from 0
    int64_t position; // samples of the epoch's permutation that have been seen
    uint64_t samples; // of all ranks, since the start
    uint64_t skipped_steps;
    double seconds;                       // of training
    double epoch_loss_sum, epoch_samples; // of the epoch, over all ranks, as far as
                                          // records have summed them
    double epoch_correct,
        epoch_counted; // likewise: right answers, of samples with classes
    double step_loss;  // rank 0's, of the last step
    /* Since the last record. */
    uint64_t window_steps;
    int64_t window_samples; // of all ranks
    double window_seconds, window_wait_seconds;
    int n_ranks;
    double *loss_sums, *loss_samples; // (n_ranks); owned
    double *correct, *counted;        // likewise
    /* Where workers go on at their own pace: updates made, 0: not known; and the steps
     * that each has made of its own in the epoch. */
    uint64_t version;
    double *own_steps;     // (n_ranks); owned
    double *batches;       // (n_ranks) with data.batch auto, of the epoch; owned
    int64_t metrics_bytes; // of metrics.jsonl
    double best;           // of the evaluations; NAN: there was none
    int64_t best_epoch;    // from 1
    double patience_best;  // ps_patience
    int64_t patience_in_row;
    double plateau_best; // ps_plateau
    int64_t plateau_bad, plateau_cooldown, plateau_cuts;
    /* Of the training part and of the test part: its samples, and ps_dataset_mark; 0: not
     * known. */
    uint64_t train_samples, train_mark, test_samples, test_mark;
    uint64_t rows_point; // of the embedding tables (rows_points.h), below 2^53; 0: none
} ps_trainer_snapshot;

/* Lists of n_ranks zeros. NOMEM; safe for fini in every case. */
ps_err ps_trainer_snapshot_init(ps_trainer_snapshot *s, int n_ranks);
void ps_trainer_snapshot_fini(ps_trainer_snapshot *s);
/* out: as after init in every case. NOMEM. */
ps_err ps_trainer_snapshot_copy(ps_trainer_snapshot *out, const ps_trainer_snapshot *s);

/* As JSON and back, every bit of every number. *out is owned by the caller. step, epoch
 * and position have to be there; what else is missing is as at the start of a job. FORMAT
 * names what is missing or of another kind; s is then safe for fini. */
ps_err ps_trainer_snapshot_to_json(const ps_trainer_snapshot *s, json_t **out);
ps_err ps_trainer_snapshot_from_json(const json_t *json, ps_trainer_snapshot *s);

/* As n numbers and back: all of it, in doubles. n depends on n_ranks alone, and the sum
 * of a snapshot's numbers and of zeros is the snapshot. s: as after init. */
size_t ps_trainer_snapshot_n_values(int n_ranks);
void ps_trainer_snapshot_to_values(const ps_trainer_snapshot *s, double *values);
void ps_trainer_snapshot_from_values(const double *values, ps_trainer_snapshot *s);

/* This rank's share of one of the sums since the last record (loss_sums, ...), in a job
 * that has world_size ranks now: its own where it had as many, else rank 0 has all. */
double ps_trainer_snapshot_share(const ps_trainer_snapshot *s, const double *sums,
                                 int rank, int world_size);

#endif
