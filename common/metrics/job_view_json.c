#include "job_view_json.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "value_json.h"

static void view_put(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, ps_number_json(v));
}

static void view_put_text(json_t *o, const char *key, const char *text)
{
    json_t *s = json_string(text);
    json_object_set_new(o, key, s ? s : json_string("?")); // it was not UTF-8
}

static const ps_view_member *first_worker(const ps_job_picture *p)
{
    for (int i = 0; i < p->n_members; i++)
        if (p->members[i].role == PS_ROLE_WORKER && p->members[i].heard_ns)
            return &p->members[i];
    return NULL;
}

/* By the rate of the last few seconds. */
static double seconds_left(const ps_view_member *w)
{
    const double left = w->now[PS_METRIC_STEPS] - w->now[PS_METRIC_STEP];
    const double steps = ps_view_growth(w, PS_METRIC_STEP);
    return left * (double)(w->heard_ns - w->then_ns) * 1e-9 / steps;
}

static double count_restarts(const ps_job_picture *p)
{
    double n = 0;
    for (int i = 0; i < p->n_members; i++) {
        const double restarts = p->members[i].now[PS_METRIC_RESTARTS];
        if (restarts > 0) n += restarts;
    }
    return n;
}

static json_t *view_quality_of(const ps_view_member *w)
{
    const double told = w ? w->now[PS_METRIC_TEST_QUALITY] : NAN;
    const bool known = told >= 0 && told < PS_QUALITIES;
    const ps_quality quality = known ? (ps_quality)told : PS_QUALITY_ACCURACY;
    const ps_quality_entry *q = &ps_quality_table[quality];
    json_t *o = json_object();
    view_put_text(o, "name", q->name);
    view_put_text(o, "key", ps_quality_key(quality));
    view_put(o, "value", w ? w->now[q->metric] : NAN);
    return o;
}

static json_t *job_of(const ps_job_picture *p)
{
    static const ps_metric shown[] = {PS_METRIC_STEP,  PS_METRIC_STEPS,
                                      PS_METRIC_EPOCH, PS_METRIC_EPOCHS,
                                      PS_METRIC_LOSS,  PS_METRIC_SAMPLES_PER_SECOND};
    const ps_view_member *w = first_worker(p);
    json_t *o = json_object();
    view_put_text(o, "name", p->job);
    view_put_text(o, "version", PS_VERSION);
    view_put_text(o, "state", ps_view_state_name(p->state));
    view_put_text(o, "reason", p->reason);
    view_put(o, "seconds", p->seconds);
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        view_put(o, ps_metric_table[shown[i]].name, w ? w->now[shown[i]] : NAN);
    view_put(o, "seconds_left", w ? seconds_left(w) : NAN);
    view_put(o, "restarts", count_restarts(p));
    json_object_set_new(o, "quality", view_quality_of(w));
    return o;
}

static void write_wait_text(const ps_view_wait *w, char *out, size_t cap)
{
    switch (w->who) {
    case PS_VIEW_WORKER:
        snprintf(out, cap,
                 "worker %d: the others wait %.1f ms in a step of %.1f ms, it waits "
                 "%.1f ms",
                 w->rank, w->others_ms, w->step_ms, w->least_ms);
        break;
    case PS_VIEW_EXCHANGE:
        snprintf(out, cap,
                 "the exchange: all workers wait for it alike, %.1f ms in a step of "
                 "%.1f ms",
                 w->others_ms, w->step_ms);
        break;
    case PS_VIEW_SILENT:
        snprintf(out, cap, "%s %d: it has told nothing for %.1f s", ps_role_name(w->role),
                 w->rank, w->silent_seconds);
        break;
    case PS_VIEW_NOBODY:
        snprintf(out, cap, "nobody");
        break;
    default:
        snprintf(out, cap, "not known yet");
    }
}

static json_t *view_waits_for(const ps_job_picture *p)
{
    static const char *const who[] = {[PS_VIEW_NOBODY] = "nobody",
                                      [PS_VIEW_WORKER] = "worker",
                                      [PS_VIEW_EXCHANGE] = "exchange",
                                      [PS_VIEW_SILENT] = "silent",
                                      [PS_VIEW_UNKNOWN] = "unknown"};
    const ps_view_wait w = ps_job_picture_wait(p);
    char text[160];
    json_t *o = json_object();
    write_wait_text(&w, text, sizeof text);
    view_put_text(o, "who", who[w.who]);
    view_put(o, "rank", w.rank >= 0 ? w.rank : NAN);
    view_put_text(o, "text", text);
    return o;
}

static json_t *curve_of(const ps_job_picture *p)
{
    static const struct {
        const char *name;
        size_t at;
    } curves[] = {
        {"seconds", offsetof(ps_view_point, seconds)},
        {"step", offsetof(ps_view_point, step)},
        {"loss", offsetof(ps_view_point, loss)},
        {"samples_per_second", offsetof(ps_view_point, samples_per_second)},
        {"train_accuracy", offsetof(ps_view_point, train_accuracy)},
        {"test_loss", offsetof(ps_view_point, test_loss)},
        {"test_accuracy", offsetof(ps_view_point, test_accuracy)},
        {"test_auc", offsetof(ps_view_point, test_auc)},
        {"test_r2", offsetof(ps_view_point, test_r2)}};
    json_t *o = json_object();
    for (size_t k = 0; k < sizeof curves / sizeof *curves; k++) {
        json_t *list = json_array();
        for (int i = 0; i < p->n_points; i++) {
            const char *point = (const char *)&p->points[i];
            const double v = *(const double *)(point + curves[k].at);
            json_array_append_new(list, ps_number_json(v));
        }
        json_object_set_new(o, curves[k].name, list);
    }
    return o;
}

static json_t *split_of(const ps_view_member *m)
{
    const double ms = 1e3 / ps_view_growth(m, PS_METRIC_STEP);
    const double step = ps_view_growth(m, PS_METRIC_STEP_SECONDS);
    const double load = ps_view_growth(m, PS_METRIC_LOAD_SECONDS);
    const double wait = ps_view_growth(m, PS_METRIC_WAIT_SECONDS);
    const double compute = step - load - wait;
    json_t *o = json_object();
    view_put(o, "compute", compute < 0 ? 0 : compute * ms);
    view_put(o, "load", load * ms);
    view_put(o, "wait", wait * ms);
    view_put(o, "encode", ps_view_growth(m, PS_METRIC_ENCODE_SECONDS) * ms);
    view_put(o, "send", ps_view_growth(m, PS_METRIC_SEND_SECONDS) * ms);
    view_put(o, "sum", ps_view_growth(m, PS_METRIC_SUM_SECONDS) * ms);
    view_put(o, "apply", ps_view_growth(m, PS_METRIC_APPLY_SECONDS) * ms);
    return o;
}

static json_t *view_values_of(const ps_view_member *m)
{
    json_t *o = json_object();
    for (int i = 0; i < PS_METRICS; i++)
        if (!isnan(m->now[i])) view_put(o, ps_metric_table[i].name, m->now[i]);
    return o;
}

/* Sockets and shared memory together. */
static double bytes_grown(const ps_view_member *m, ps_metric sockets, ps_metric shm)
{
    const double more = ps_view_growth(m, shm);
    return ps_view_growth(m, sockets) + (isnan(more) ? 0 : more);
}

static json_t *member_of(const ps_job_picture *p, const ps_view_member *m)
{
    const double seconds = (double)(m->heard_ns - m->then_ns) * 1e-9;
    json_t *o = json_object();
    view_put_text(o, "role", ps_role_name(m->role));
    json_object_set_new(o, "rank", json_integer(m->rank));
    view_put_text(o, "host", m->host);
    view_put_text(o, "address", m->address);
    json_object_set_new(o, "away", json_boolean(m->away));
    view_put(o, "silent_seconds",
             m->heard_ns ? (double)(p->now_ns - m->heard_ns) * 1e-9 : NAN);
    json_object_set_new(o, "step_ms", split_of(m));
    view_put(o, "sent_per_second",
             bytes_grown(m, PS_METRIC_BYTES_SENT, PS_METRIC_SHM_BYTES_SENT) / seconds);
    view_put(o, "received_per_second",
             bytes_grown(m, PS_METRIC_BYTES_RECEIVED, PS_METRIC_SHM_BYTES_RECEIVED) /
                 seconds);
    view_put(o, "cpu", ps_view_growth(m, PS_METRIC_CPU_SECONDS) / seconds);
    json_object_set_new(o, "values", view_values_of(m));
    return o;
}

static json_t *view_table(const ps_metric_entry *table, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *o = json_object();
        view_put_text(o, "name", table[i].name);
        view_put_text(o, "export", table[i].export_name);
        view_put_text(o, "unit", table[i].unit);
        view_put_text(o, "help", table[i].help);
        json_array_append_new(list, o);
    }
    return list;
}

ps_err ps_job_picture_json(const ps_job_picture *p, char **out)
{
    json_t *o = json_object(), *members = json_array();
    for (int i = 0; i < p->n_members; i++)
        json_array_append_new(members, member_of(p, &p->members[i]));
    json_object_set_new(o, "job", job_of(p));
    json_object_set_new(o, "waits_for", view_waits_for(p));
    json_object_set_new(o, "curve", curve_of(p));
    json_object_set_new(o, "members", members);
    json_object_set_new(o, "tables", ps_row_figure_list_json(&p->tables));
    json_object_set_new(o, "metrics", view_table(ps_metric_table, PS_METRICS));
    json_object_set_new(o, "table_metrics",
                        view_table(ps_row_figure_table, PS_ROW_FIGURES));
    *out = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
    return *out ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for the status");
}
