#include "metrics.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"

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

/* Takes the object. A line is flushed at once, so that readers see it and a full disk is
 * noticed when it happens. */
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
