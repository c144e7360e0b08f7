#include "metrics.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "metric_table.h"
#include "regular_file.h"
#include "value_json.h"

/* A line's value, under the name that the table of metrics has for it. */
static void metrics_put(json_t *line, ps_metric metric, json_t *value)
{
    json_object_set_new(line, ps_metric_table[metric].name, value);
}

ps_err ps_metrics_open(ps_metrics *metrics, const char *path)
{
    *metrics = (ps_metrics){.start_ns = ps_clock_ns()};
    return ps_regular_file_stream(path, "w", &metrics->file);
}

/* Where the last line ends within the first `bytes`. */
static ps_err metrics_last_end(const char *path, int64_t bytes, int64_t *end)
{
    char last;
    int fd;
    PS_TRY(ps_regular_file_open(path, O_RDONLY, &fd));
    for (*end = bytes; *end > 0; (*end)--)
        if (pread(fd, &last, 1, *end - 1) != 1 || last == '\n') break;
    close(fd);
    return PS_OK;
}

ps_err ps_metrics_reopen(ps_metrics *metrics, const char *path, int64_t bytes)
{
    struct stat st;
    int64_t end = bytes;
    *metrics = (ps_metrics){.start_ns = ps_clock_ns()};
    PS_TRY(ps_regular_file_stream(path, "a", &metrics->file));
    if (fstat(fileno(metrics->file), &st) != 0)
        return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
    if (st.st_size > bytes) PS_TRY(metrics_last_end(path, bytes, &end));
    if (end < bytes) // of another folder's job, which went on from the same checkpoints
        PS_WARN("resume",
                "file=%s note=\"it is not that of the checkpoint: its lines stay\"",
                path);
    // The last line of a process that died may be a part of one.
    if (end < bytes || st.st_size <= bytes)
        PS_TRY(metrics_last_end(path, st.st_size, &end));
    if (end < st.st_size && ftruncate(fileno(metrics->file), end) != 0)
        return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
    return PS_OK;
}

int64_t ps_metrics_bytes(const ps_metrics *metrics)
{
    struct stat st;
    const bool known = metrics->file && fstat(fileno(metrics->file), &st) == 0;
    return known ? st.st_size : 0; // every line is in the file
}

ps_err ps_metrics_add_events(ps_metrics *metrics, const char *folder, uint64_t first_step)
{
    return ps_event_file_open(&metrics->events, folder, first_step);
}

static void metrics_say_left_out(const ps_metrics *metrics)
{
    if (metrics->left_out > 0)
        PS_WARN("metrics", "lines=%" PRIu64 " note=\"metrics.jsonl does not have them\"",
                metrics->left_out);
}

/* err: of a line. */
static void metrics_count_line(ps_metrics *metrics, ps_err err)
{
    if (err != PS_OK && metrics->left_out++ == 0)
        PS_ERROR("metrics",
                 "reason=\"metrics.jsonl: %s\" note=\"training goes on without its "
                 "lines\"",
                 ps_err_message());
    if (err != PS_OK) return;
    metrics_say_left_out(metrics);
    metrics->left_out = 0;
}

/* Takes the object. A line is in the file at once, so that readers see it. */
static ps_err metrics_write_line(ps_metrics *metrics, json_t *line)
{
    double seconds = ps_clock_seconds_since(metrics->start_ns);
    json_object_set_new(line, "seconds", ps_number_json(seconds));
    char *text = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    if (!text) return ps_err_set(PS_ERR_NOMEM, "no memory for a line of metrics.jsonl");
    const size_t n = strlen(text);
    text[n] = '\n'; // in place of the text's end
    metrics_count_line(metrics, ps_regular_file_append(metrics->file, text, n + 1));
    free(text);
    return PS_OK;
}

ps_err ps_metrics_step(ps_metrics *metrics, const ps_step_record *r)
{
    if (!metrics->file) return PS_OK;
    json_t *line = json_object();
    metrics_put(line, PS_METRIC_STEP, json_integer((json_int_t)r->step));
    metrics_put(line, PS_METRIC_EPOCH, json_integer(r->epoch));
    metrics_put(line, PS_METRIC_LOSS, ps_number_json(r->loss));
    metrics_put(line, PS_METRIC_LOSS_MEAN, ps_number_json(r->loss_mean));
    if (isfinite(r->accuracy))
        metrics_put(line, PS_METRIC_TRAIN_ACCURACY, ps_number_json(r->accuracy));
    metrics_put(line, PS_METRIC_LR, ps_number_json(r->lr));
    metrics_put(line, PS_METRIC_LOSS_SCALE, ps_number_json(r->loss_scale));
    metrics_put(line, PS_METRIC_SAMPLES_PER_SECOND,
                ps_number_json(r->samples_per_second));
    metrics_put(line, PS_METRIC_STEP_MS, ps_number_json(r->step_ms));
    metrics_put(line, PS_METRIC_EXCHANGE_WAIT_MS, ps_number_json(r->exchange_wait_ms));
    PS_TRY(metrics_write_line(metrics, line));
    const ps_event_scalar scalars[] = {
        {"train/loss", r->loss_mean},
        {"train/lr", r->lr},
        {"train/loss_scale", r->loss_scale},
        {"speed/samples_per_second", r->samples_per_second},
        {"speed/step_ms", r->step_ms},
        {"speed/exchange_wait_ms", r->exchange_wait_ms},
        {"train/accuracy", r->accuracy}};
    const size_t n = sizeof scalars / sizeof *scalars - !isfinite(r->accuracy);
    ps_event_file_add(&metrics->events, r->step, scalars, n);
    return PS_OK;
}

/* Beside an evaluation's loss, where there are any. */
static const struct {
    ps_metric metric;
    const char *event;
    size_t at;
} figures[] = {
    {PS_METRIC_EPOCH_LOSS, "train/epoch_loss", offsetof(ps_eval_record, train_loss)},
    {PS_METRIC_EPOCH_ACCURACY, "train/epoch_accuracy",
     offsetof(ps_eval_record, train_accuracy)},
    {PS_METRIC_TEST_ACCURACY, "test/accuracy", offsetof(ps_eval_record, accuracy)},
    {PS_METRIC_TEST_TOP5_ACCURACY, "test/top5_accuracy", offsetof(ps_eval_record, top5)},
    {PS_METRIC_TEST_F1, "test/f1", offsetof(ps_eval_record, f1)},
    {PS_METRIC_TEST_AUC, "test/auc", offsetof(ps_eval_record, auc)},
    {PS_METRIC_TEST_R2, "test/r2", offsetof(ps_eval_record, r2)},
    {PS_METRIC_TEST_MAE, "test/mae", offsetof(ps_eval_record, mae)},
    {PS_METRIC_TEST_RMSE, "test/rmse", offsetof(ps_eval_record, rmse)}};

ps_err ps_metrics_eval(ps_metrics *metrics, const ps_eval_record *r)
{
    if (!metrics->file) return PS_OK;
    json_t *line = json_object();
    metrics_put(line, PS_METRIC_STEP, json_integer((json_int_t)r->step));
    metrics_put(line, PS_METRIC_EPOCH, json_integer(r->epoch));
    metrics_put(line, PS_METRIC_TEST_LOSS, ps_number_json(r->loss));
    ps_event_scalar scalars[1 + sizeof figures / sizeof *figures] = {
        {"test/loss", r->loss}};
    size_t n = 1;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        const double value = *(const double *)((const char *)r + figures[i].at);
        if (isnan(value)) continue;
        metrics_put(line, figures[i].metric, ps_number_json(value));
        scalars[n++] = (ps_event_scalar){figures[i].event, value};
    }
    metrics_put(line, PS_METRIC_TEST_QUALITY, json_string(ps_quality_key(r->quality)));
    metrics_put(line, PS_METRIC_TEST_SAMPLES, json_integer(r->samples));
    json_object_set_new(line, "best", json_boolean(r->best));
    PS_TRY(metrics_write_line(metrics, line));
    ps_event_file_add(&metrics->events, r->step, scalars, n);
    return PS_OK;
}

ps_err ps_metrics_close(ps_metrics *metrics)
{
    ps_err err = ps_event_file_close(&metrics->events);
    FILE *file = metrics->file;
    metrics->file = NULL;
    metrics_say_left_out(metrics);
    bool failed = file && fsync(fileno(file)) != 0;
    failed |= file && fclose(file) != 0;
    if (failed) return ps_err_errno(PS_ERR_IO, "cannot write metrics.jsonl");
    return err;
}
