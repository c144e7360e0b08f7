#include "summary.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "log.h"
#include "procstat.h"
#include "row_figures.h"
#include "value_json.h"

enum { STATS_MS = 2000 }; // to fetch what is there

/* --- what the other processes tell ------------------------------------------------- */

static uint64_t summary_largest(const double *values, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        if (values[i] > most) most = values[i];
    return (uint64_t)most;
}

/* Each rank fills in its own elements only, so the sum over the ranks has all figures. */
ps_err ps_summary_gather_workers(ps_summary *s, const ps_session *session,
                                 ps_device *device)
{
    uint64_t total;
    ps_member *member = ps_session_member(session);
    const int n = s->workers, rank = ps_session_rank(session);
    s->peak_rss_bytes = ps_procstat_peak_rss();
    (void)ps_device_memory(device, &s->device_bytes, &total);
    s->most_bytes_in_flight = s->result->traffic.most_in_flight;
    if (!member) return PS_OK;
    double *peaks;
    PS_TRY(PS_NEW(&peaks, 3 * (size_t)n, "the peaks"));
    peaks[rank] = (double)s->peak_rss_bytes;
    peaks[n + rank] = (double)s->most_bytes_in_flight;
    peaks[2 * n + rank] = (double)s->device_bytes;
    ps_err err = ps_member_reduce(member, "peaks", peaks, 3 * (size_t)n,
                                  ps_config_step_deadline(s->config));
    if (err == PS_OK) {
        s->peak_rss_bytes = summary_largest(peaks, n);
        s->most_bytes_in_flight = summary_largest(peaks + n, n);
        s->device_bytes = summary_largest(peaks + 2 * n, n);
    }
    free(peaks);
    return err;
}

static ps_err get_server_stats(ps_member *member, int server, ps_deadline deadline,
                               char **out)
{
    const ps_job_key key = ps_job_key_stats(server);
    void *value;
    size_t bytes;
    PS_TRY(ps_member_get(member, key.text, &value, &bytes, deadline));
    ps_err err = ps_mem_zalloc(out, bytes + 1, 1, "a server's figures");
    if (err == PS_OK) memcpy(*out, value, bytes);
    free(value);
    return err;
}

/* Every server publishes its figures once all workers have said goodbye to it: the
 * exchange has waited for that. The job does not fail without them. */
ps_err ps_summary_gather_servers(ps_summary *s, const ps_session *session)
{
    if (s->servers == 0) return PS_OK;
    PS_TRY(PS_NEW(&s->server_stats, (size_t)s->servers, "the servers' figures"));
    const ps_deadline deadline = ps_deadline_in_ms(STATS_MS);
    for (int i = 0; i < s->servers; i++) {
        ps_err err = get_server_stats(ps_session_member(session), i, deadline,
                                      &s->server_stats[i]);
        if (err != PS_OK && err != PS_ERR_TIMEOUT) return err;
        if (err != PS_OK)
            PS_WARN("stats", "server=%d reason=\"%s\"", i, ps_err_message());
    }
    return PS_OK;
}

void ps_summary_fini(ps_summary *s)
{
    for (int i = 0; s->server_stats && i < s->servers; i++)
        free(s->server_stats[i]);
    free(s->server_stats);
    s->server_stats = NULL;
}

/* --- the file ---------------------------------------------------------------------- */

static void summary_put_text(json_t *o, const char *key, const char *text)
{
    json_object_set_new(o, key, json_string(text));
}

static void put_count(json_t *o, const char *key, uint64_t v)
{
    json_object_set_new(o, key, ps_count_json(v));
}

static void put_number(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, ps_number_json(v));
}

static void put_job(json_t *o, const ps_summary *s)
{
    const ps_config *c = s->config;
    char dataset[512];
    const char *path = ps_data_is_made(c->data.kind) ? "" : c->data.path;
    snprintf(dataset, sizeof dataset, "%s%s%s",
             ps_word_name(ps_data_words, (int)c->data.kind), path[0] ? " " : "", path);
    summary_put_text(o, "mode", s->mode);
    summary_put_text(o, "model", c->job.name);
    summary_put_text(o, "dataset", dataset);
    summary_put_text(o, "device", s->device);
    summary_put_text(o, "precision",
                     ps_word_name(ps_precision_words, (int)c->train.precision));
    summary_put_text(o, "exchange", s->exchange);
    summary_put_text(o, "codec", ps_word_name(ps_codec_words, (int)c->exchange.codec));
    put_count(o, "servers", (uint64_t)s->servers);
    put_count(o, "shards", (uint64_t)s->shards);
    put_count(o, "workers", (uint64_t)s->workers);
    put_count(o, "threads", (uint64_t)s->threads);
    put_count(o, "params", s->params);
    put_count(o, "batch", (uint64_t)s->batch);
    put_count(o, "rejoins", (uint64_t)s->rejoins);
    put_count(o, "seed", c->train.seed);
}

static void put_speed(json_t *o, const ps_trainer_result *r)
{
    put_count(o, "epochs", (uint64_t)r->epochs);
    put_count(o, "steps", r->steps);
    put_count(o, "samples", r->samples);
    put_count(o, "skipped_steps", r->skipped_steps);
    put_number(o, "loss_scale", r->loss_scale);
    put_number(o, "seconds", r->seconds);
    put_number(o, "samples_per_second", r->samples_per_second);
    put_number(o, "step_ms_p50", ps_duration_percentile(&r->step_time, 0.5) * 1e3);
    put_number(o, "step_ms_p99", ps_duration_percentile(&r->step_time, 0.99) * 1e3);
    put_number(o, "exchange_wait_ms_p50",
               ps_duration_percentile(&r->wait_time, 0.5) * 1e3);
}

static void put_traffic(json_t *o, const ps_summary *s)
{
    const ps_exchange_stats *t = &s->result->traffic;
    // Of this process: a job that goes on has made others before.
    const uint64_t made = s->result->steps - s->result->first_step;
    const double steps = made > 0 ? (double)made : 1;
    put_number(o, "bytes_sent_per_step", (double)t->bytes_sent / steps);
    put_number(o, "bytes_received_per_step", (double)t->bytes_received / steps);
    put_number(o, "shm_bytes_sent_per_step", (double)t->shm_sent / steps);
    put_number(o, "shm_bytes_received_per_step", (double)t->shm_received / steps);
    put_count(o, "most_bytes_in_flight", s->most_bytes_in_flight);
    put_number(o, "raw_bytes_per_step", (double)t->raw_bytes / steps);
    put_number(o, "compression_ratio", (double)t->raw_bytes / (double)t->bytes_sent);
    json_object_set_new(o, "bytes_computed", json_boolean(t->computed));
}

static void put_losses(json_t *o, const ps_trainer_result *r)
{
    const bool tested = r->evaluation.samples > 0;
    put_number(o, "train_loss", r->train_loss);
    put_number(o, "test_loss", tested ? r->evaluation.loss : NAN);
    const ps_measures *m = tested ? &r->evaluation.measures : &ps_measures_none;
    put_number(o, "train_accuracy", r->train_accuracy);
    put_number(o, "test_accuracy", m->accuracy);
    put_number(o, "test_top5_accuracy", m->top5);
    put_number(o, "test_f1", m->f1);
    put_number(o, "test_auc", m->auc);
    put_number(o, "test_r2", m->r2);
    put_number(o, "test_mae", m->mae);
    put_number(o, "test_rmse", m->rmse);
    if (tested) summary_put_text(o, "test_quality", ps_quality_key(r->quality));
    put_count(o, "test_samples", (uint64_t)r->evaluation.samples);
    put_count(o, "best_epoch", (uint64_t)r->best_epoch);
    json_object_set_new(o, "interrupted", json_boolean(r->interrupted));
    json_object_set_new(o, "stopped_early", json_boolean(r->stopped_early));
}

/* Adds a server's figures of the embedding tables to those of all. */
static void summary_add_tables(json_t *sum, const json_t *tables)
{
    for (size_t t = 0; t < json_array_size(tables); t++) {
        const json_t *one = json_array_get(tables, t);
        if (t == json_array_size(sum))
            json_array_append_new(sum, json_deep_copy(one));
        else
            for (int k = 0; k < PS_ROW_FIGURES; k++) {
                const char *name = ps_row_figure_table[k].name;
                json_t *all = json_object_get(json_array_get(sum, t), name);
                json_integer_set(all, json_integer_value(all) +
                                          json_integer_value(json_object_get(one, name)));
            }
    }
}

/* Every server's own figures, and the largest of the servers' memory peaks. */
static void put_servers(json_t *o, const ps_summary *s)
{
    json_int_t peak = 0;
    json_t *list = json_array(), *tables = json_array();
    for (int i = 0; i < s->servers && s->server_stats; i++) {
        json_t *one = s->server_stats[i] ? json_loads(s->server_stats[i], 0, NULL) : NULL;
        if (!json_is_object(one)) {
            json_decref(one);
            one = json_null();
        }
        json_int_t rss = json_integer_value(json_object_get(one, "peak_rss_bytes"));
        if (rss > peak) peak = rss;
        summary_add_tables(tables, json_object_get(one, "tables"));
        json_array_append_new(list, one);
    }
    json_object_set_new(o, "server_peak_rss_bytes",
                        peak > 0 ? json_integer(peak) : json_null());
    json_object_set_new(o, "server_stats", list);
    if (json_array_size(tables) > 0) json_object_set(o, "tables", tables);
    json_decref(tables);
}

/* The members that all others waited for, and in which steps. */
static void put_stragglers(json_t *o, const ps_straggler_log *log)
{
    json_t *list = json_array();
    for (int i = 0; i < log->n; i++) {
        const ps_straggler_entry *e = &log->entries[i];
        char who[32];
        snprintf(who, sizeof who, "%s %d", ps_role_name(e->who.role), e->who.rank);
        json_t *one = json_object();
        summary_put_text(one, "who", who);
        summary_put_text(one, "cause", ps_straggler_cause_name(e->who.cause));
        put_count(one, "first_step", e->first_step);
        put_count(one, "last_step", e->last_step);
        json_array_append_new(list, one);
    }
    json_object_set_new(o, "stragglers", list);
}

/* A number of each worker, where it follows its speed. */
static void put_by_speed(json_t *o, const char *name, const int64_t *numbers, int workers)
{
    if (!numbers) return;
    json_t *list = json_array();
    for (int r = 0; r < workers; r++)
        json_array_append_new(list, json_integer((json_int_t)numbers[r]));
    json_object_set_new(o, name, list);
}

/* Which gradients counted, where workers go on at their own pace. */
static void put_policy(json_t *o, const ps_config *c, const ps_trainer_result *r)
{
    json_t *policy = r->policy ? json_loads(r->policy, 0, NULL) : NULL;
    if (!policy) return;
    summary_put_text(policy, "policy",
                     ps_word_name(ps_policy_words, (int)c->sync.policy));
    json_object_set_new(o, "policy", policy);
}

static ps_err write_object(const json_t *o, const ps_run_dir *dir)
{
    ps_out_file out = {0};
    PS_TRY(ps_out_file_open(&out, dir, "summary.json", true));
    if (json_dumpf(o, out.file, JSON_INDENT(2)) == 0 && fputc('\n', out.file) != EOF)
        return ps_out_file_keep(&out);
    const ps_err err = ps_err_errno(PS_ERR_IO, "cannot write %s", out.path);
    ps_out_file_drop(&out);
    return err;
}

ps_err ps_summary_write(const ps_summary *s, const ps_run_dir *dir)
{
    json_t *o = json_object();
    if (!o) return ps_err_set(PS_ERR_NOMEM, "no memory for the summary");
    put_job(o, s);
    put_speed(o, s->result);
    put_traffic(o, s);
    put_losses(o, s->result);
    put_count(o, "peak_rss_bytes", s->peak_rss_bytes);
    if (s->device_bytes > 0) put_count(o, "device_memory_bytes", s->device_bytes);
    summary_put_text(o, "version", PS_VERSION);
    put_servers(o, s);
    put_stragglers(o, &s->result->stragglers);
    put_policy(o, s->config, s->result);
    put_by_speed(o, "batches", s->result->batches, s->workers);
    put_by_speed(o, "round_steps", s->result->round_steps, s->workers);
    ps_err err = write_object(o, dir);
    json_decref(o);
    return err;
}
