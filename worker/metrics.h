/* metrics.jsonl, a line per logged step and evaluation, and summary.json at the end. */
#ifndef PS_METRICS_H
#define PS_METRICS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "err.h"

typedef struct ps_metrics {
    FILE *file; // NULL: nothing is written
    uint64_t start_ns;
} ps_metrics;

/* A number that is not finite becomes null in the files: JSON has no word for it. */

typedef struct ps_step_record {
    uint64_t step;    // optimizer steps done
    int64_t epoch;    // from 0
    double loss;      // of this step's samples of this rank, before the step
    double loss_mean; // over all ranks' samples since the last record
    double lr;
    double loss_scale;                // of this step; 1 without
    double samples_per_second;        // of all workers, since the last record
    double step_ms, exchange_wait_ms; // means since the last record
} ps_step_record;

typedef struct ps_eval_record {
    uint64_t step;
    int64_t epoch; // epochs done
    double loss, accuracy;
    int64_t samples;
} ps_eval_record;

/* What summary.json says: DESIGN's keys and a few more; see the README. Times in seconds,
 * but for those that say ms. */
typedef struct ps_summary {
    const char *mode, *model, *dataset, *device, *precision, *exchange, *codec;
    int servers, shards, workers;
    uint64_t params;
    int64_t epochs; // done, the last one maybe in part
    uint64_t steps, samples, seed;
    uint64_t skipped_steps; // of steps: gradients that overflowed under the loss scale
    double loss_scale;      // after the last step; 1 without
    double seconds;         // of training, evaluation and saving left out
    double samples_per_second, step_ms_p50, step_ms_p99, exchange_wait_ms_p50;
    double bytes_sent_per_step, bytes_received_per_step, raw_bytes_per_step;
    double shm_bytes_sent_per_step, shm_bytes_received_per_step;
    bool bytes_computed;
    double train_loss; // mean over the samples of the last epoch; NAN: no step was made
    double test_loss, test_accuracy; // of the last evaluation; NAN: there was none
    int64_t test_samples;
    int64_t batch; // samples of all ranks and micro-batches in an optimizer step
    int threads;   // of arithmetic per worker
    bool interrupted;
    uint64_t peak_rss_bytes;       // the largest worker's
    uint64_t most_bytes_in_flight; // to any one shard, likewise
    /* What the servers said at their end, JSON objects; NULL: nothing. Borrowed. */
    char *const *server_stats;
} ps_summary;

ps_err ps_metrics_open(ps_metrics *metrics, const char *path);
/* Goes on behind the first `bytes` of the file; what stands there beyond them, of a job
 * that went on for a while, is cut off. A shorter file keeps what it has. */
ps_err ps_metrics_reopen(ps_metrics *metrics, const char *path, int64_t bytes);
/* Of the lines so far; 0 when it is not open. */
int64_t ps_metrics_bytes(const ps_metrics *metrics);
ps_err ps_metrics_step(ps_metrics *metrics, const ps_step_record *record);
ps_err ps_metrics_eval(ps_metrics *metrics, const ps_eval_record *record);
/* IO when anything could not be written. Safe on one that is not open. */
ps_err ps_metrics_close(ps_metrics *metrics);

/* To path.tmp first, then renamed. */
ps_err ps_summary_write(const ps_summary *summary, const char *path);

#endif
