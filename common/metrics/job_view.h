/* What the coordinator's process knows of all members: their newest values, and worker
 * 0's curves. The coordinator's thread fills it in; the page's thread reads copies. It
 * lives as long as the process, also where the job begins again after a failure.
 *
 * Nothing waits for it: the lock is held for a copy only.
 */
#ifndef PS_JOB_VIEW_H
#define PS_JOB_VIEW_H

#include "err.h"
#include "metric_table.h"
#include "role.h"
#include "row_figures.h"

enum {
    PS_VIEW_POINTS = 512, // of a curve; then every second one is dropped
    PS_VIEW_ADDRESS_MAX = 96,
    PS_VIEW_HOST_MAX = 64
};

typedef struct ps_view_member {
    ps_role role;
    int rank;
    char host[PS_VIEW_HOST_MAX];
    char address[PS_VIEW_ADDRESS_MAX]; // of its /metrics: "127.0.0.1:40123"; "": none
    bool away;                         // dead, and the others go on without it
    uint64_t heard_ns;                 // when its last values came; 0: none have come
    double now[PS_METRICS];
    /* Rates are taken over the last few seconds: from then to heard_ns. */
    uint64_t then_ns, next_ns;
    double then[PS_METRICS], next[PS_METRICS];
} ps_view_member;

typedef struct ps_view_point {
    double seconds; // since the view was made
    double step, loss, samples_per_second;
    double train_accuracy; // as of the last record; NAN: none
    // Of the last evaluation; NAN: none.
    double test_loss, test_accuracy, test_auc, test_r2;
} ps_view_point;

typedef enum ps_view_state {
    PS_VIEW_JOINING,
    PS_VIEW_RUNNING,
    PS_VIEW_ENDED,
    PS_VIEW_ABORTED
} ps_view_state;

const char *ps_view_state_name(ps_view_state state); // "joining", ...

typedef struct ps_job_view ps_job_view;

ps_err ps_job_view_create(const char *job, ps_job_view **out);
void ps_job_view_destroy(ps_job_view **view);

/* Of all functions below, view may be NULL: nothing. */

/* Forgets the members, but not the curves: the job begins, or begins again. */
void ps_job_view_begin(ps_job_view *view);
/* reason: why it is over; "" when there is nothing to say. */
void ps_job_view_set_state(ps_job_view *view, ps_view_state state, const char *reason);
/* The member belongs to the job, and has told nothing yet. */
void ps_job_view_add(ps_job_view *view, ps_role role, int rank, const char *host);
/* The member is away until it tells its next values. What it told is forgotten. */
void ps_job_view_lose(ps_job_view *view, ps_role role, int rank);
/* What the tables are called, whose figures members tell. */
void ps_job_view_name_tables(ps_job_view *view, const ps_row_figure_list *tables);
/* A member's newest values, PS_METRICS of them; fewer: the others are NAN. Behind them
 * PS_ROW_FIGURES of each embedding table. One that was not added is ignored. */
void ps_job_view_take(ps_job_view *view, ps_role role, int rank, const char *address,
                      const double *values, int n);

/* A copy for a reader. */
typedef struct ps_job_picture {
    char job[128], reason[256];
    ps_view_state state;
    uint64_t now_ns;
    double seconds; // since the view was made
    int n_members, n_points;
    ps_view_member *members; // servers, then workers, by rank
    ps_view_point *points;
    ps_row_figure_list tables; // of all members together
} ps_job_picture;

/* NOMEM. The picture is safe for fini in every case. */
ps_err ps_job_view_copy(ps_job_view *view, ps_job_picture *out);
void ps_job_picture_fini(ps_job_picture *picture);

/* How much a counter has grown over the last few seconds; NAN: not known. */
double ps_view_growth(const ps_view_member *m, ps_metric counter);

/* Which member keeps the others waiting, judged by how long each worker waits for the
 * exchange: in a synchronous step the slowest one waits the least. */
typedef enum ps_view_slow {
    PS_VIEW_NOBODY,   // known: no wait is worth a name
    PS_VIEW_WORKER,   // that worker: the others wait much longer than it does
    PS_VIEW_EXCHANGE, // all workers wait alike: servers or links
    PS_VIEW_SILENT,   // that member: it has told nothing for PS_VIEW_SILENT_MS or longer
    PS_VIEW_UNKNOWN
} ps_view_slow;

enum { PS_VIEW_SILENT_MS = 2000 };

typedef struct ps_view_wait {
    ps_view_slow who;
    ps_role role;          // of PS_VIEW_SILENT
    double silent_seconds; // likewise
    int rank;              // of PS_VIEW_WORKER and PS_VIEW_SILENT
    double others_ms;      // that the other workers (or all) wait in a step, on average
    double least_ms;       // that the one that waits the least waits
    double step_ms;
} ps_view_wait;

/* Pure. */
ps_view_wait ps_job_picture_wait(const ps_job_picture *picture);

#endif
