/* The one table of metrics: what a process can tell about its work. metrics.jsonl, the
 * page's JSON and /metrics take their names, units and explanations from it.
 *
 *   name    in metrics.jsonl and in /status.json, with its unit where it has one
 *   export  in /metrics, after "pstrain_": by Prometheus' rules, in seconds and bytes
 *   factor  from the first to the second
 */
#ifndef PS_METRIC_TABLE_H
#define PS_METRIC_TABLE_H

#include <stdatomic.h>
#include <stdint.h>

typedef enum ps_metric_kind {
    PS_METRIC_GAUGE,  // goes up and down
    PS_METRIC_COUNTER // only grows while the process lives
} ps_metric_kind;

/* A step's figures are worker 0's, or this worker's own where the text says "this". */
// clang-format off
#define PS_METRIC_MAP(X)                                                                  \
    X(STEP, "step", "steps_total", 1, COUNTER, "steps", "optimizer steps done")           \
    X(STEPS, "steps", "planned_steps", 1, GAUGE, "steps", "optimizer steps of the whole job") \
    X(EPOCH, "epoch", "epoch", 1, GAUGE, "epochs", "the epoch that is being trained, from 0") \
    X(EPOCHS, "epochs", "planned_epochs", 1, GAUGE, "epochs", "epochs of the whole job")  \
    X(LOSS, "loss", "loss", 1, GAUGE, "", "loss of the last step, of this worker's samples") \
    X(LOSS_MEAN, "loss_mean", "loss_mean", 1, GAUGE, "", "mean loss of all workers' samples since the record before") \
    X(TRAIN_ACCURACY, "train_accuracy", "train_accuracy_ratio", 1, GAUGE, "", "accuracy of all workers' training samples since the record before, 0 to 1; each sample before its step") \
    X(EPOCH_LOSS, "epoch_loss", "epoch_loss", 1, GAUGE, "", "at the last evaluation: the mean loss of all workers' samples of its epoch so far, each before its step") \
    X(EPOCH_ACCURACY, "epoch_accuracy", "epoch_accuracy_ratio", 1, GAUGE, "", "likewise: their accuracy, 0 to 1") \
    X(LR, "lr", "learning_rate", 1, GAUGE, "", "learning rate of the last step")          \
    X(LOSS_SCALE, "loss_scale", "loss_scale", 1, GAUGE, "", "loss scale of the last step; 1 without") \
    X(SAMPLES_PER_SECOND, "samples_per_second", "samples_per_second", 1, GAUGE, "samples/s", "samples of all workers per second") \
    X(STEP_MS, "step_ms", "step_duration_seconds", 1e-3, GAUGE, "ms", "mean time of a step since the record before") \
    X(EXCHANGE_WAIT_MS, "exchange_wait_ms", "step_wait_seconds", 1e-3, GAUGE, "ms", "part of it in which this worker waited for the exchange") \
    X(TEST_LOSS, "test_loss", "test_loss", 1, GAUGE, "", "loss of the last evaluation")   \
    X(TEST_ACCURACY, "test_accuracy", "test_accuracy_ratio", 1, GAUGE, "", "accuracy of the last evaluation, 0 to 1") \
    X(TEST_TOP5_ACCURACY, "test_top5_accuracy", "test_top5_accuracy_ratio", 1, GAUGE, "", "of the last evaluation, with more than five classes: samples whose label is among the five largest outputs, 0 to 1") \
    X(TEST_F1, "test_f1", "test_f1_ratio", 1, GAUGE, "", "of the last evaluation: the mean over the classes of F1, 0 to 1") \
    X(TEST_AUC, "test_auc", "test_auc_ratio", 1, GAUGE, "", "of the last evaluation, with two classes: the area under the ROC curve, 0 to 1") \
    X(TEST_R2, "test_r2", "test_r2", 1, GAUGE, "", "of the last evaluation, with numbers: the part of their variance that is explained, at most 1") \
    X(TEST_MAE, "test_mae", "test_mae", 1, GAUGE, "", "of the last evaluation, with numbers: the mean absolute error") \
    X(TEST_RMSE, "test_rmse", "test_rmse", 1, GAUGE, "", "of the last evaluation, with numbers: the root of the mean squared error") \
    X(TEST_QUALITY, "test_quality", "test_quality", 1, GAUGE, "", "of the last evaluation: which figure says how good the model is: 0 accuracy; 1 AUC, where one output says yes or no; 2 R2, of numbers") \
    X(TEST_SAMPLES, "test_samples", "test_samples", 1, GAUGE, "samples", "samples of the last evaluation") \
    X(SAMPLES, "samples", "samples_total", 1, COUNTER, "samples", "samples of all workers that have been trained on") \
    X(SKIPPED_STEPS, "skipped_steps", "skipped_steps_total", 1, COUNTER, "steps", "steps whose gradient overflowed") \
    X(STEP_SECONDS, "step_seconds", "step_seconds_total", 1, COUNTER, "s", "time of all steps") \
    X(LOAD_SECONDS, "load_seconds", "load_seconds_total", 1, COUNTER, "s", "part of it in which this worker waited for its data") \
    X(WAIT_SECONDS, "wait_seconds", "wait_seconds_total", 1, COUNTER, "s", "part of it in which this worker waited for the exchange, or for the others after a step") \
    X(ENCODE_SECONDS, "encode_seconds", "encode_seconds_total", 1, COUNTER, "s", "time for compressing gradients, beside the arithmetic") \
    X(SEND_SECONDS, "send_seconds", "send_seconds_total", 1, COUNTER, "s", "time for handing messages to the sockets") \
    X(SUM_SECONDS, "sum_seconds", "sum_seconds_total", 1, COUNTER, "s", "a server's time for adding gradients, where that is a pass of its own") \
    X(APPLY_SECONDS, "apply_seconds", "apply_seconds_total", 1, COUNTER, "s", "a server's time for the optimizer, with the sum where both are one pass") \
    X(BYTES_SENT, "bytes_sent", "sent_bytes_total", 1, COUNTER, "bytes", "bytes sent through sockets") \
    X(BYTES_RECEIVED, "bytes_received", "received_bytes_total", 1, COUNTER, "bytes", "bytes received through sockets") \
    X(SHM_BYTES_SENT, "shm_bytes_sent", "shm_sent_bytes_total", 1, COUNTER, "bytes", "bytes handed over in shared memory") \
    X(SHM_BYTES_RECEIVED, "shm_bytes_received", "shm_received_bytes_total", 1, COUNTER, "bytes", "bytes taken over in shared memory") \
    X(PUSHES, "pushes", "pushes_total", 1, COUNTER, "pushes", "a server's pushes that counted") \
    X(REPEATED, "repeated", "repeated_pushes_total", 1, COUNTER, "pushes", "a server's pushes that were repetitions") \
    X(STRANGERS, "strangers", "strangers_total", 1, COUNTER, "messages", "messages from outside the job") \
    X(ROWS, "rows", "rows", 1, GAUGE, "rows", "rows of embedding tables that a server stores") \
    X(ROWS_BYTES, "rows_bytes", "rows_bytes", 1, GAUGE, "bytes", "memory that they take, with their optimizer's state and index") \
    X(ROWS_STEPPED, "rows_stepped", "rows_stepped_total", 1, COUNTER, "rows", "rows of embedding tables that had a gradient: the distinct ids of each step") \
    X(ROWS_DROPPED, "rows_dropped", "rows_dropped_total", 1, COUNTER, "rows", "rows of embedding tables that expired or were evicted") \
    X(RSS_BYTES, "rss_bytes", "resident_memory_bytes", 1, GAUGE, "bytes", "resident memory") \
    X(PEAK_RSS_BYTES, "peak_rss_bytes", "resident_memory_peak_bytes", 1, GAUGE, "bytes", "the most resident memory so far") \
    X(DEVICE_BYTES, "device_bytes", "device_memory_bytes", 1, GAUGE, "bytes", "memory of this worker's GPU that is in use, by all processes") \
    X(DEVICE_TOTAL_BYTES, "device_total_bytes", "device_memory_total_bytes", 1, GAUGE, "bytes", "memory of this worker's GPU") \
    X(CPU_SECONDS, "cpu_seconds", "cpu_seconds_total", 1, COUNTER, "s", "processor time of the process") \
    X(RESTARTS, "restarts", "restarts_total", 1, COUNTER, "restarts", "how often this process was started before") \
    X(REJOINS, "rejoins", "rejoins_total", 1, COUNTER, "rejoins", "how often it joined the job again after a failure")
// clang-format on

typedef enum ps_metric {
#define PS_METRIC_ENUM(id, name, export, factor, kind, unit, help) PS_METRIC_##id,
    PS_METRIC_MAP(PS_METRIC_ENUM)
#undef PS_METRIC_ENUM
        PS_METRICS
} ps_metric;

typedef struct ps_metric_entry {
    const char *name, *export_name;
    double factor;
    ps_metric_kind kind;
    const char *unit, *help;
} ps_metric_entry;

extern const ps_metric_entry ps_metric_table[PS_METRICS];

/* The figure by which users judge a model: what PS_METRIC_TEST_QUALITY names. */
typedef enum ps_quality {
    PS_QUALITY_ACCURACY,
    PS_QUALITY_AUC, // mostly the one answer or the other: accuracy says little
    PS_QUALITY_R2,
    PS_QUALITIES
} ps_quality;

typedef struct ps_quality_entry {
    const char *name; // for people
    ps_metric metric;
} ps_quality_entry;

extern const ps_quality_entry ps_quality_table[PS_QUALITIES];

/* The key of that figure in summary.json, metrics.jsonl and status.json, by which these
 * name it, too. */
static inline const char *ps_quality_key(ps_quality quality)
{
    return ps_metric_table[ps_quality_table[quality].metric].name;
}

/* A process's values. Its threads set them whenever they change; any thread may read.
 * NAN: not known, or not of this process. A reader never sees half of a value; two values
 * may be of different moments. */
typedef struct ps_metric_values {
    _Atomic uint64_t bits[PS_METRICS];
} ps_metric_values;

/* All NAN. Before other threads use them. */
void ps_metric_values_init(ps_metric_values *values);
/* values NULL: nothing. */
void ps_metric_set(ps_metric_values *values, ps_metric metric, double value);
void ps_metric_copy(const ps_metric_values *values, double out[PS_METRICS]);

#endif
