#include "metrics.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "new_file.h"

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *integer(uint64_t v)
{
    return json_integer((json_int_t)v);
}

ps_err ps_metrics_open(ps_metrics *metrics, const char *path)
{
    *metrics = (ps_metrics){.start_ns = ps_clock_ns()};
    metrics->file = fopen(path, "we");
    if (!metrics->file) return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
    return PS_OK;
}

ps_err ps_metrics_reopen(ps_metrics *metrics, const char *path, int64_t bytes)
{
    struct stat st;
    *metrics = (ps_metrics){.start_ns = ps_clock_ns()};
    metrics->file = fopen(path, "ae");
    if (!metrics->file) return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
    if (fstat(fileno(metrics->file), &st) != 0 ||
        (st.st_size > bytes && ftruncate(fileno(metrics->file), bytes) != 0))
        return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
    return PS_OK;
}

int64_t ps_metrics_bytes(const ps_metrics *metrics)
{
    struct stat st;
    const bool known = metrics->file && fstat(fileno(metrics->file), &st) == 0;
    return known ? st.st_size : 0; // every line is flushed
}

/* Takes the object. A line is flushed at once: whoever watches the file sees it, and a
 * full disk is noticed when it happens. */
static ps_err write_line(ps_metrics *metrics, json_t *line)
{
    if (!line) return ps_err_set(PS_ERR_NOMEM, "a metrics line");
    double seconds = (double)(ps_clock_ns() - metrics->start_ns) * 1e-9;
    json_object_set_new(line, "seconds", number(seconds));
    int failed = json_dumpf(line, metrics->file, JSON_COMPACT);
    json_decref(line);
    if (failed || fputc('\n', metrics->file) == EOF || fflush(metrics->file) != 0)
        return ps_err_errno(PS_ERR_IO, "cannot write metrics.jsonl");
    return PS_OK;
}

ps_err ps_metrics_step(ps_metrics *metrics, const ps_step_record *r)
{
    if (!metrics->file) return PS_OK;
    return write_line(metrics,
                      json_pack("{s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "step",
                                integer(r->step), "epoch", (json_int_t)r->epoch, "loss",
                                number(r->loss), "loss_mean", number(r->loss_mean), "lr",
                                number(r->lr), "loss_scale", number(r->loss_scale),
                                "samples_per_second", number(r->samples_per_second),
                                "step_ms", number(r->step_ms), "exchange_wait_ms",
                                number(r->exchange_wait_ms)));
}

ps_err ps_metrics_eval(ps_metrics *metrics, const ps_eval_record *r)
{
    if (!metrics->file) return PS_OK;
    return write_line(metrics,
                      json_pack("{s:o, s:I, s:o, s:o, s:I}", "step", integer(r->step),
                                "epoch", (json_int_t)r->epoch, "test_loss",
                                number(r->loss), "test_accuracy", number(r->accuracy),
                                "test_samples", (json_int_t)r->samples));
}

ps_err ps_metrics_close(ps_metrics *metrics)
{
    if (!metrics->file) return PS_OK;
    FILE *file = metrics->file;
    metrics->file = NULL;
    if (fclose(file) != 0) return ps_err_errno(PS_ERR_IO, "cannot write metrics.jsonl");
    return PS_OK;
}

static void add_what(json_t *o, const ps_summary *s)
{
    json_object_set_new(o, "mode", json_string(s->mode));
    json_object_set_new(o, "model", json_string(s->model));
    json_object_set_new(o, "dataset", json_string(s->dataset));
    json_object_set_new(o, "device", json_string(s->device));
    json_object_set_new(o, "precision", json_string(s->precision));
    json_object_set_new(o, "exchange", json_string(s->exchange));
    json_object_set_new(o, "codec", json_string(s->codec));
    json_object_set_new(o, "servers", json_integer(s->servers));
    json_object_set_new(o, "shards", json_integer(s->shards));
    json_object_set_new(o, "workers", json_integer(s->workers));
    json_object_set_new(o, "threads", json_integer(s->threads));
    json_object_set_new(o, "params", integer(s->params));
    json_object_set_new(o, "batch", json_integer(s->batch));
    json_object_set_new(o, "seed", integer(s->seed));
}

static void add_figures(json_t *o, const ps_summary *s)
{
    json_object_set_new(o, "epochs", json_integer(s->epochs));
    json_object_set_new(o, "steps", integer(s->steps));
    json_object_set_new(o, "samples", integer(s->samples));
    json_object_set_new(o, "skipped_steps", integer(s->skipped_steps));
    json_object_set_new(o, "loss_scale", number(s->loss_scale));
    json_object_set_new(o, "seconds", number(s->seconds));
    json_object_set_new(o, "samples_per_second", number(s->samples_per_second));
    json_object_set_new(o, "step_ms_p50", number(s->step_ms_p50));
    json_object_set_new(o, "step_ms_p99", number(s->step_ms_p99));
    json_object_set_new(o, "exchange_wait_ms_p50", number(s->exchange_wait_ms_p50));
    json_object_set_new(o, "bytes_sent_per_step", number(s->bytes_sent_per_step));
    json_object_set_new(o, "bytes_received_per_step", number(s->bytes_received_per_step));
    json_object_set_new(o, "shm_bytes_sent_per_step", number(s->shm_bytes_sent_per_step));
    json_object_set_new(o, "shm_bytes_received_per_step",
                        number(s->shm_bytes_received_per_step));
    json_object_set_new(o, "most_bytes_in_flight", integer(s->most_bytes_in_flight));
    json_object_set_new(o, "raw_bytes_per_step", number(s->raw_bytes_per_step));
    json_object_set_new(o, "compression_ratio",
                        number(s->raw_bytes_per_step / s->bytes_sent_per_step));
    json_object_set_new(o, "bytes_computed", json_boolean(s->bytes_computed));
    json_object_set_new(o, "train_loss", number(s->train_loss));
    json_object_set_new(o, "test_loss", number(s->test_loss));
    json_object_set_new(o, "test_accuracy", number(s->test_accuracy));
    json_object_set_new(o, "test_samples", json_integer(s->test_samples));
    json_object_set_new(o, "interrupted", json_boolean(s->interrupted));
    json_object_set_new(o, "peak_rss_bytes", integer(s->peak_rss_bytes));
    json_object_set_new(o, "version", json_string(PS_VERSION));
}

/* Every server's own account, and the largest of their peaks beside the workers'. */
static void add_servers(json_t *o, const ps_summary *s)
{
    json_int_t peak = 0;
    json_t *list = json_array();
    for (int i = 0; i < s->servers && s->server_stats; i++) {
        json_t *one = s->server_stats[i] ? json_loads(s->server_stats[i], 0, NULL) : NULL;
        if (!json_is_object(one)) {
            json_decref(one);
            one = json_null();
        }
        json_int_t rss = json_integer_value(json_object_get(one, "peak_rss_bytes"));
        if (rss > peak) peak = rss;
        json_array_append_new(list, one);
    }
    json_object_set_new(o, "server_peak_rss_bytes",
                        peak > 0 ? json_integer(peak) : json_null());
    json_object_set_new(o, "server_stats", list);
}

static ps_err write_object(const json_t *o, const char *path)
{
    char temporary[PATH_MAX + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    int fd;
    PS_TRY(ps_new_file_open(temporary, &fd));
    FILE *file = fdopen(fd, "w");
    if (!file) {
        close(fd);
        return ps_err_errno(PS_ERR_IO, "cannot write %s", temporary);
    }
    int failed = json_dumpf(o, file, JSON_INDENT(2)) || fputc('\n', file) == EOF;
    failed |= fclose(file) != 0;
    if (!failed && rename(temporary, path) == 0) return PS_OK;
    int saved = errno;
    unlink(temporary);
    errno = saved;
    return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
}

ps_err ps_summary_write(const ps_summary *summary, const char *path)
{
    json_t *o = json_object();
    if (!o) return ps_err_set(PS_ERR_NOMEM, "the summary");
    add_what(o, summary);
    add_figures(o, summary);
    add_servers(o, summary);
    ps_err err = write_object(o, path);
    json_decref(o);
    return err;
}
