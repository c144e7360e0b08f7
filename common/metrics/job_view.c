#include "job_view.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "mem.h"

enum { RATE_MS = 2500 }; // rates are of the last one or two of these

/* Waits below this share of a step are nobody's fault. The slowest worker also waits less
 * than half as long as the others: what all wait alike is the exchange. */
static const double WORTH_A_NAME = 0.15;

typedef struct view_entry {
    ps_view_member shown;
    double *figures; // (n_tables, PS_ROW_FIGURES) owned
    uint32_t n_tables, room;
} view_entry;

struct ps_job_view {
    pthread_mutex_t lock;
    char job[128], reason[256];
    ps_view_state state;
    uint64_t begin_ns;
    int n_members;
    uint32_t room; // for members
    view_entry *members;
    ps_row_figure_list tables;     // of which only the names are set
    int n_points, stride, skipped; // every stride-th of worker 0's reports is kept
    bool last_goes; // the last point is the newest report, and none of these
    ps_view_point points[PS_VIEW_POINTS];
};

const char *ps_view_state_name(ps_view_state state)
{
    static const char *const names[] = {[PS_VIEW_JOINING] = "joining",
                                        [PS_VIEW_RUNNING] = "running",
                                        [PS_VIEW_ENDED] = "ended",
                                        [PS_VIEW_ABORTED] = "aborted"};
    return names[state];
}

ps_err ps_job_view_create(const char *job, ps_job_view **out)
{
    PS_TRY(PS_NEW(out, 1, "the view of the job"));
    ps_job_view *v = *out;
    pthread_mutex_init(&v->lock, NULL);
    snprintf(v->job, sizeof v->job, "%s", job);
    v->begin_ns = ps_clock_ns();
    v->stride = 1;
    return PS_OK;
}

static void view_forget_members(ps_job_view *v)
{
    for (int i = 0; i < v->n_members; i++)
        free(v->members[i].figures);
    v->n_members = 0;
}

void ps_job_view_destroy(ps_job_view **view)
{
    ps_job_view *v = *view;
    if (!v) return;
    pthread_mutex_destroy(&v->lock);
    view_forget_members(v);
    free(v->members);
    free(v->tables.tables);
    free(v);
    *view = NULL;
}

void ps_job_view_begin(ps_job_view *v)
{
    if (!v) return;
    pthread_mutex_lock(&v->lock);
    view_forget_members(v);
    v->state = PS_VIEW_JOINING;
    v->reason[0] = '\0';
    pthread_mutex_unlock(&v->lock);
}

void ps_job_view_set_state(ps_job_view *v, ps_view_state state, const char *reason)
{
    if (!v) return;
    pthread_mutex_lock(&v->lock);
    v->state = state;
    snprintf(v->reason, sizeof v->reason, "%s", reason);
    pthread_mutex_unlock(&v->lock);
}

static view_entry *view_find_entry(ps_job_view *v, ps_role role, int rank)
{
    for (int i = 0; i < v->n_members; i++) {
        const ps_view_member *m = &v->members[i].shown;
        if (m->role == role && m->rank == rank) return &v->members[i];
    }
    return NULL;
}

/* Room for one more; NULL: out of memory, and the page lacks a member. */
static view_entry *view_new_entry(ps_job_view *v)
{
    if (ps_mem_room(&v->members, (uint32_t)v->n_members, &v->room, sizeof *v->members,
                    "the members") != PS_OK)
        return NULL;
    v->members[v->n_members] = (view_entry){0};
    return &v->members[v->n_members++];
}

static void set_unknown(double values[PS_METRICS])
{
    for (int i = 0; i < PS_METRICS; i++)
        values[i] = NAN;
}

static void view_forget_values(view_entry *e)
{
    ps_view_member *m = &e->shown;
    e->n_tables = 0;
    m->heard_ns = 0;
    set_unknown(m->now);
    set_unknown(m->then);
    set_unknown(m->next);
}

void ps_job_view_add(ps_job_view *v, ps_role role, int rank, const char *host)
{
    if (!v) return;
    pthread_mutex_lock(&v->lock);
    view_entry *e = view_find_entry(v, role, rank);
    if (!e) e = view_new_entry(v);
    if (e) {
        e->shown = (ps_view_member){.role = role, .rank = rank};
        snprintf(e->shown.host, sizeof e->shown.host, "%s", host);
        view_forget_values(e);
    }
    pthread_mutex_unlock(&v->lock);
}

void ps_job_view_lose(ps_job_view *v, ps_role role, int rank)
{
    if (!v) return;
    pthread_mutex_lock(&v->lock);
    view_entry *e = view_find_entry(v, role, rank);
    if (e) {
        e->shown.away = true;
        view_forget_values(e);
    }
    pthread_mutex_unlock(&v->lock);
}

/* Makes room for the report of another step than the last point's. Drops every second
 * point when there is none. */
static void view_make_room(ps_job_view *v)
{
    if (v->last_goes) v->n_points--;
    v->last_goes = ++v->skipped < v->stride;
    if (!v->last_goes) v->skipped = 0;
    if (v->n_points < PS_VIEW_POINTS) return;
    v->n_points /= 2;
    v->stride *= 2;
    for (int i = 0; i < v->n_points; i++)
        v->points[i] = v->points[2 * i + 1];
}

/* The newest report is always there, and takes the place of one of the same step: an
 * evaluation comes after its step, and the last one after all steps. */
static void add_point(ps_job_view *v, const double *values)
{
    const double step = values[PS_METRIC_STEP];
    if (isnan(step) || isnan(values[PS_METRIC_LOSS])) return;
    const double last = v->n_points ? v->points[v->n_points - 1].step : -1;
    if (step != last) view_make_room(v);
    // A job that goes on from a checkpoint makes some steps again.
    while (v->n_points && v->points[v->n_points - 1].step >= step)
        v->n_points--;
    v->points[v->n_points++] =
        (ps_view_point){.seconds = ps_clock_seconds_since(v->begin_ns),
                        .step = step,
                        .loss = values[PS_METRIC_LOSS],
                        .samples_per_second = values[PS_METRIC_SAMPLES_PER_SECOND],
                        .train_accuracy = values[PS_METRIC_TRAIN_ACCURACY],
                        .test_loss = values[PS_METRIC_TEST_LOSS],
                        .test_accuracy = values[PS_METRIC_TEST_ACCURACY],
                        .test_auc = values[PS_METRIC_TEST_AUC],
                        .test_r2 = values[PS_METRIC_TEST_R2]};
}

static void take_values(ps_view_member *m, const double *values)
{
    const uint64_t now = ps_clock_ns();
    // Before the first step there are no rates of steps.
    const bool first = m->heard_ns == 0 ||
                       (isnan(m->then[PS_METRIC_STEP]) && !isnan(values[PS_METRIC_STEP]));
    if (first || now - m->next_ns > RATE_MS * UINT64_C(1000000)) {
        m->then_ns = first ? now : m->next_ns;
        memcpy(m->then, first ? values : m->next, sizeof m->then);
        m->next_ns = now;
        memcpy(m->next, values, sizeof m->next);
    }
    m->heard_ns = now;
    m->away = false;
    memcpy(m->now, values, sizeof m->now);
}

void ps_job_view_name_tables(ps_job_view *v, const ps_row_figure_list *tables)
{
    if (!v) return;
    pthread_mutex_lock(&v->lock);
    if (ps_row_figure_list_grow(&v->tables, tables->n) == PS_OK)
        for (uint32_t t = 0; t < tables->n; t++)
            memcpy(v->tables.tables[t].name, tables->tables[t].name,
                   sizeof v->tables.tables[t].name);
    pthread_mutex_unlock(&v->lock);
}

/* Without memory the page lacks them. */
static void view_take_figures(view_entry *e, const double *values, int n)
{
    const uint32_t tables =
        n > PS_METRICS ? (uint32_t)(n - PS_METRICS) / PS_ROW_FIGURES : 0;
    e->n_tables = 0;
    if (tables > PS_ROW_TABLES_MAX) return;
    while (e->room < tables)
        if (ps_mem_room(&e->figures, e->room, &e->room,
                        PS_ROW_FIGURES * sizeof *e->figures, "tables") != PS_OK)
            return;
    e->n_tables = tables;
    if (tables > 0)
        memcpy(e->figures, values + PS_METRICS,
               tables * PS_ROW_FIGURES * sizeof *e->figures);
}

void ps_job_view_take(ps_job_view *v, ps_role role, int rank, const char *address,
                      const double *values, int n)
{
    double all[PS_METRICS];
    if (!v) return;
    for (int i = 0; i < PS_METRICS; i++)
        all[i] = i < n ? values[i] : NAN;
    pthread_mutex_lock(&v->lock);
    view_entry *e = view_find_entry(v, role, rank);
    if (e) {
        snprintf(e->shown.address, sizeof e->shown.address, "%s", address);
        take_values(&e->shown, all);
        view_take_figures(e, values, n);
        if (role == PS_ROLE_WORKER && rank == 0) add_point(v, all);
    }
    pthread_mutex_unlock(&v->lock);
}

/* --- readers ------------------------------------------------------------------------ */

static int by_role_and_rank(const void *a, const void *b)
{
    const ps_view_member *x = a, *y = b;
    return x->role != y->role ? (int)x->role - (int)y->role : x->rank - y->rank;
}

/* Adds a member's figures; those that no honest member tells count nothing. */
static ps_err view_add_figures(const ps_job_view *v, const view_entry *e,
                               ps_row_figure_list *sum)
{
    const uint32_t had = sum->n;
    PS_TRY(ps_row_figure_list_grow(sum, e->n_tables));
    for (uint32_t t = had; t < sum->n; t++)
        if (t < v->tables.n)
            memcpy(sum->tables[t].name, v->tables.tables[t].name,
                   sizeof sum->tables[t].name);
    for (uint32_t i = 0; i < e->n_tables * PS_ROW_FIGURES; i++) {
        const double told = e->figures[i];
        if (told >= 0 && told < 0x1p53)
            sum->tables[i / PS_ROW_FIGURES].of[i % PS_ROW_FIGURES] += (uint64_t)told;
    }
    return PS_OK;
}

static ps_err copy_lists(const ps_job_view *v, ps_job_picture *out)
{
    const size_t members = (size_t)v->n_members, points = (size_t)v->n_points;
    if (members > 0) {
        PS_TRY(PS_NEW(&out->members, members, "the members"));
        for (size_t i = 0; i < members; i++)
            out->members[i] = v->members[i].shown;
    }
    for (size_t i = 0; i < members; i++)
        PS_TRY(view_add_figures(v, &v->members[i], &out->tables));
    if (points > 0) {
        PS_TRY(PS_NEW(&out->points, points, "the curves"));
        memcpy(out->points, v->points, points * sizeof *v->points);
    }
    out->n_members = v->n_members;
    out->n_points = v->n_points;
    return PS_OK;
}

ps_err ps_job_view_copy(ps_job_view *v, ps_job_picture *out)
{
    *out = (ps_job_picture){.now_ns = ps_clock_ns()};
    pthread_mutex_lock(&v->lock);
    memcpy(out->job, v->job, sizeof out->job);
    memcpy(out->reason, v->reason, sizeof out->reason);
    out->state = v->state;
    out->seconds = (double)(out->now_ns - v->begin_ns) * 1e-9;
    ps_err err = copy_lists(v, out);
    pthread_mutex_unlock(&v->lock);
    if (err == PS_OK && out->n_members > 0)
        qsort(out->members, (size_t)out->n_members, sizeof *out->members,
              by_role_and_rank);
    return err;
}

void ps_job_picture_fini(ps_job_picture *picture)
{
    free(picture->members);
    free(picture->points);
    free(picture->tables.tables);
    *picture = (ps_job_picture){0};
}

double ps_view_growth(const ps_view_member *m, ps_metric counter)
{
    return m->now[counter] - m->then[counter];
}

/* Milliseconds that a worker waits in a step; NAN: not known. */
static double wait_ms(const ps_view_member *m)
{
    const double steps = ps_view_growth(m, PS_METRIC_STEP);
    if (m->role != PS_ROLE_WORKER || !(steps > 0)) return NAN;
    return ps_view_growth(m, PS_METRIC_WAIT_SECONDS) * 1e3 / steps;
}

/* The member that has told nothing for the longest time, if any is silent. */
static bool find_silent(const ps_job_picture *p, ps_view_wait *out)
{
    *out = (ps_view_wait){.who = PS_VIEW_SILENT};
    for (int i = 0; i < p->n_members && p->state == PS_VIEW_RUNNING; i++) {
        const ps_view_member *m = &p->members[i];
        const double seconds = (double)(p->now_ns - m->heard_ns) * 1e-9;
        if (m->heard_ns == 0 || seconds * 1e3 < PS_VIEW_SILENT_MS ||
            seconds <= out->silent_seconds)
            continue;
        out->silent_seconds = seconds;
        out->role = m->role;
        out->rank = m->rank;
    }
    return out->silent_seconds > 0;
}

ps_view_wait ps_job_picture_wait(const ps_job_picture *p)
{
    ps_view_wait silent;
    if (find_silent(p, &silent)) return silent;
    ps_view_wait w = {.who = PS_VIEW_UNKNOWN, .rank = -1, .least_ms = INFINITY};
    double sum = 0, seconds = 0, steps = 0;
    int n = 0;
    for (int i = 0; i < p->n_members; i++) {
        const ps_view_member *m = &p->members[i];
        const double ms = wait_ms(m);
        if (isnan(ms)) continue;
        n++;
        sum += ms;
        steps += ps_view_growth(m, PS_METRIC_STEP);
        seconds += ps_view_growth(m, PS_METRIC_STEP_SECONDS);
        if (ms >= w.least_ms) continue;
        w.least_ms = ms;
        w.rank = m->rank;
    }
    if (n == 0 || !(seconds > 0)) return w;
    w.step_ms = seconds * 1e3 / steps;
    w.others_ms = n > 1 ? (sum - w.least_ms) / (n - 1) : sum;
    w.who = PS_VIEW_NOBODY;
    if (n > 1 && w.others_ms - w.least_ms > WORTH_A_NAME * w.step_ms &&
        w.least_ms < w.others_ms / 2)
        w.who = PS_VIEW_WORKER;
    else if (sum / n > WORTH_A_NAME * w.step_ms)
        w.who = PS_VIEW_EXCHANGE;
    if (w.who != PS_VIEW_WORKER) w.rank = -1;
    return w;
}
