/* metrics.jsonl: a line per logged step and evaluation; and the same for TensorBoard, if
 * it is asked for. */
#ifndef PS_METRICS_H
#define PS_METRICS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "err.h"
#include "event_file.h"
#include "metric_table.h"

typedef struct ps_metrics {
    FILE *file; // NULL: nothing is written
    uint64_t start_ns;
    uint64_t left_out;    // lines in a row
    ps_event_file events; // not open: none
} ps_metrics;

/* A number that is not finite becomes null in the file: JSON has no word for it. */

typedef struct ps_step_record {
    uint64_t step;    // optimizer steps done
    int64_t epoch;    // from 0
    double loss;      // of this step's samples of this rank, before the step
    double loss_mean; // over all ranks' samples since the last record
    double accuracy;  // likewise, each sample before its step; NAN: there is none
    double lr;
    double loss_scale;                // of this step; 1 without
    double samples_per_second;        // of all workers, since the last record
    double step_ms, exchange_wait_ms; // means since the last record
} ps_step_record;

typedef struct ps_eval_record {
    uint64_t step;
    int64_t epoch; // epochs done
    double loss;
    double accuracy, top5, f1, auc, r2, mae, rmse; // NAN: there is none
    double train_loss, train_accuracy; // of the epoch's training samples; NAN likewise
    bool best;                         // so far
    ps_quality quality;                // which figure says how good the model is
    int64_t samples;
} ps_eval_record;

ps_err ps_metrics_open(ps_metrics *metrics, const char *path);
/* Continues after the first `bytes` of the file. Cuts off later lines, of steps that will
 * be made again. A file that is shorter, or has no end of a line there, keeps its whole
 * lines. */
ps_err ps_metrics_reopen(ps_metrics *metrics, const char *path, int64_t bytes);
/* From now on the records also go to a new file for TensorBoard in the folder. */
ps_err ps_metrics_add_events(ps_metrics *metrics, const char *folder,
                             uint64_t first_step);
/* Bytes of the lines so far; 0 when it is not open. */
int64_t ps_metrics_bytes(const ps_metrics *metrics);
/* A line for which the disk has no room is left out, as is its event: the log says so,
 * and training goes on, as it does without a checkpoint. NOMEM. */
ps_err ps_metrics_step(ps_metrics *metrics, const ps_step_record *record);
ps_err ps_metrics_eval(ps_metrics *metrics, const ps_eval_record *record);
/* IO when anything could not be written. Safe on one that is not open. */
ps_err ps_metrics_close(ps_metrics *metrics);

#endif
