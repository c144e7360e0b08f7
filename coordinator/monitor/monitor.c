#include "monitor.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "http_server.h"
#include "job_view_json.h"
#include "log.h"
#include "mem.h"
#include "metric_text.h"
#include "net.h"
#include "page.h"
#include "procstat.h"
#include "thread.h"

struct ps_monitor {
    ps_role role;
    char job[128];
    char bind[PS_ADDRESS_MAX];
    ps_metric_values values;
    ps_job_view *view; // NULL: the coordinator is in another process
    ps_http_server *http;
    ps_thread thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Under the lock:
    bool stop, attached;
    int rank; // -1: it has not joined yet
    ps_member *member;
    ps_monitor_sample *sample;
    ps_monitor_tables *tables;
    void *ctx;
};

/* --- what it answers ---------------------------------------------------------------- */

static ps_err get_metrics(ps_monitor *m, ps_http_answer *out)
{
    double values[PS_METRICS];
    ps_row_figure_list tables = {0};
    pthread_mutex_lock(&m->lock);
    const ps_metric_labels labels = {
        .job = m->job, .role = ps_role_name(m->role), .rank = m->rank};
    ps_err err = m->tables ? m->tables(m->ctx, &tables) : PS_OK;
    pthread_mutex_unlock(&m->lock);
    ps_metric_copy(&m->values, values);
    out->type = "text/plain; version=0.0.4; charset=utf-8";
    if (err == PS_OK) err = ps_metric_text(values, &tables, &labels, &out->body);
    free(tables.tables);
    return err;
}

/* A list of one group of targets for each member that can be asked
 * (https://prometheus.io/docs/prometheus/latest/http_sd). */
static ps_err targets_of(const ps_job_picture *p, char **out)
{
    json_t *list = json_array();
    for (int i = 0; i < p->n_members; i++) {
        const ps_view_member *m = &p->members[i];
        if (m->address[0] == '\0') continue;
        json_t *group = json_pack("{s:[s], s:{s:s}}", "targets", m->address, "labels",
                                  "pstrain_host", m->host);
        if (group) json_array_append_new(list, group); // else a text that is not UTF-8
    }
    *out = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return *out ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for the list of targets");
}

static ps_err get_json(ps_monitor *m, ps_err (*write)(const ps_job_picture *, char **),
                       ps_http_answer *out)
{
    ps_job_picture picture;
    out->type = "application/json";
    ps_err err = ps_job_view_copy(m->view, &picture);
    if (err == PS_OK) err = write(&picture, &out->body);
    ps_job_picture_fini(&picture);
    return err;
}

static ps_err on_get(void *ctx, const char *path, ps_http_answer *out)
{
    ps_monitor *m = ctx;
    if (strcmp(path, "/metrics") == 0) return get_metrics(m, out);
    if (!m->view) return PS_OK;
    if (strcmp(path, "/status.json") == 0) return get_json(m, ps_job_picture_json, out);
    if (strcmp(path, "/targets.json") == 0) return get_json(m, targets_of, out);
    if (strcmp(path, "/") != 0) return PS_OK;
    out->type = "text/html; charset=utf-8";
    out->text = ps_page_html;
    return PS_OK;
}

/* --- the thread --------------------------------------------------------------------- */

static void sample_process(ps_metric_values *values)
{
    struct timespec cpu;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0)
        ps_metric_set(values, PS_METRIC_CPU_SECONDS,
                      (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9);
    ps_metric_set(values, PS_METRIC_RSS_BYTES, (double)ps_procstat_rss());
    ps_metric_set(values, PS_METRIC_PEAK_RSS_BYTES, (double)ps_procstat_peak_rss());
}

/* "127.0.0.1:40123": where other processes can ask this one. */
static void monitor_own_address(const ps_monitor *m, char *out, size_t cap)
{
    char endpoint[PS_VIEW_ADDRESS_MAX + 8];
    const bool any = strcmp(m->bind, "0.0.0.0") == 0 || strcmp(m->bind, "::") == 0;
    const char *host = any && m->member ? ps_member_address(m->member) : m->bind;
    ps_net_endpoint(host, ps_http_server_port(m->http), endpoint, sizeof endpoint);
    snprintf(out, cap, "%.*s", (int)cap - 1, endpoint + strlen("tcp://"));
}

/* The metrics, and behind them the figures of each table. */
static ps_err monitor_values(const ps_monitor *m, const ps_row_figure_list *tables,
                             double **out, int *n)
{
    *n = PS_METRICS + (int)tables->n * PS_ROW_FIGURES;
    PS_TRY(PS_NEW(out, (size_t)*n, "the metrics"));
    ps_metric_copy(&m->values, *out);
    double *at = *out + PS_METRICS;
    for (uint32_t t = 0; t < tables->n; t++)
        for (int k = 0; k < PS_ROW_FIGURES; k++)
            *at++ = (double)tables->tables[t].of[k];
    return PS_OK;
}

/* With the lock. Without memory nobody is told. */
static void monitor_tell(ps_monitor *m)
{
    double *values = NULL;
    int n;
    ps_row_figure_list tables = {0};
    char address[PS_VIEW_ADDRESS_MAX];
    if (!m->attached) return;
    if (m->sample) m->sample(m->ctx, &m->values);
    monitor_own_address(m, address, sizeof address);
    ps_err err = m->tables ? m->tables(m->ctx, &tables) : PS_OK;
    if (err == PS_OK) err = monitor_values(m, &tables, &values, &n);
    if (err == PS_OK && m->view) ps_job_view_name_tables(m->view, &tables);
    if (err == PS_OK && m->member)
        ps_member_tell(m->member, address, values, n);
    else if (err == PS_OK)
        ps_job_view_take(m->view, m->role, m->rank, address, values, n);
    free(tables.tables);
    free(values);
}

static void *monitor_run(void *arg)
{
    ps_monitor *m = arg;
    pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        pthread_mutex_unlock(&m->lock);
        sample_process(&m->values);
        pthread_mutex_lock(&m->lock);
        monitor_tell(m);
        const ps_deadline next = ps_deadline_in_ms(PS_MONITOR_MS);
        while (!m->stop && !ps_deadline_passed(next))
            ps_cond_wait(&m->changed, &m->lock, next);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* --- life --------------------------------------------------------------------------- */

static ps_err monitor_set_up(ps_monitor *m, const ps_monitor_options *o)
{
    const ps_config *c = o->config;
    const ps_http_options http = {.address = m->bind,
                                  .port = o->hosts ? (int)c->metrics.port : 0,
                                  .get = on_get,
                                  .bind_key = "metrics.bind",
                                  .paths = "there are /, /metrics, /status.json and "
                                           "/targets.json\n",
                                  .ctx = m};
    ps_metric_values_init(&m->values);
    if (o->hosts) PS_TRY(ps_job_view_create(c->job.name, &m->view));
    PS_TRY(ps_http_server_start(&http, &m->http));
    return ps_thread_start(&m->thread, "monitor", monitor_run, m);
}

static void monitor_announce(const ps_monitor *m)
{
    char address[PS_VIEW_ADDRESS_MAX];
    monitor_own_address(m, address, sizeof address);
    if (m->view)
        PS_INFO("page", "at=http://%s/", address);
    else
        PS_DEBUG("metrics", "at=http://%s/metrics", address);
}

ps_monitor *ps_monitor_start(const ps_monitor_options *o)
{
    ps_monitor *m;
    if (o->config->metrics.port == 0) return NULL;
    ps_err err = PS_NEW(&m, 1, "the monitor");
    if (err == PS_OK) {
        m->role = o->role;
        m->rank = -1;
        snprintf(m->job, sizeof m->job, "%s", o->config->job.name);
        snprintf(m->bind, sizeof m->bind, "%s", o->config->metrics.bind);
        pthread_mutex_init(&m->lock, NULL);
        ps_cond_init(&m->changed);
        err = monitor_set_up(m, o);
    }
    if (err == PS_OK) {
        monitor_announce(m);
        return m;
    }
    PS_WARN("metrics", "port=%d reason=\"%s\" note=\"nobody can watch this process\"",
            (int)o->config->metrics.port, ps_err_message());
    ps_monitor_stop(&m);
    return NULL;
}

static void monitor_stop_thread(ps_monitor *m)
{
    ps_cond_set(&m->changed, &m->lock, &m->stop);
    ps_thread_join(&m->thread);
}

void ps_monitor_stop(ps_monitor **monitor)
{
    ps_monitor *m = *monitor;
    if (!m) return;
    if (m->thread.runs) monitor_stop_thread(m);
    ps_http_server_stop(&m->http); // its thread uses the rest
    ps_job_view_destroy(&m->view);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
    *monitor = NULL;
}

ps_metric_values *ps_monitor_values(ps_monitor *m)
{
    return m ? &m->values : NULL;
}

ps_job_view *ps_monitor_view(ps_monitor *m)
{
    return m ? m->view : NULL;
}

/* The only member of its job. */
static void view_alone(ps_monitor *m)
{
    ps_host host;
    ps_host_find(&host);
    ps_job_view_begin(m->view);
    ps_job_view_add(m->view, m->role, 0, host.name);
    ps_job_view_set_state(m->view, PS_VIEW_RUNNING, "");
}

void ps_monitor_attach(ps_monitor *m, ps_member *member, ps_monitor_sample *sample,
                       ps_monitor_tables *tables, void *ctx)
{
    if (!m) return;
    if (!member) view_alone(m);
    pthread_mutex_lock(&m->lock);
    m->attached = true;
    m->member = member;
    m->rank = member ? ps_member_rank(member) : 0;
    m->sample = sample;
    m->tables = tables;
    m->ctx = ctx;
    pthread_mutex_unlock(&m->lock);
}

void ps_monitor_detach(ps_monitor *m)
{
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    monitor_tell(m);
    m->attached = false;
    m->member = NULL;
    m->sample = NULL;
    m->tables = NULL;
    pthread_mutex_unlock(&m->lock);
}
