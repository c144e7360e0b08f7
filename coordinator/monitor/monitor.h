/* Lets others watch this process: GET /metrics, and in the coordinator's process the page
 * of the whole job, /status.json and /targets.json (for Prometheus' http_sd_configs).
 *
 *   the process's threads  --ps_metric_set-->  values  --/metrics-->  Prometheus
 *                                                 |
 *                    every PS_MONITOR_MS, by the monitor's thread and the member's
 *                                                 v
 *   coordinator's process:                    job view  --/, /status.json-->  people
 *
 * It lives as long as the process, through all jobs that the process joins. Nothing here
 * can end a training: what cannot be done is a warning.
 */
#ifndef PS_MONITOR_H
#define PS_MONITOR_H

#include "job_view.h"
#include "member.h"
#include "row_figures.h"

enum { PS_MONITOR_MS = 250 };

typedef struct ps_monitor ps_monitor;

typedef struct ps_monitor_options {
    const ps_config *config; // borrowed during the call
    ps_role role;
    bool hosts; // the coordinator is in this process, or there is no other process
} ps_monitor_options;

/* NULL where metrics.port is 0, or nothing can be watched (a warning says why). Of all
 * functions below, m may be NULL: nothing. */
ps_monitor *ps_monitor_start(const ps_monitor_options *options);
void ps_monitor_stop(ps_monitor **m);

/* For the process's threads to set; NULL: nobody watches. Borrowed. */
ps_metric_values *ps_monitor_values(ps_monitor *m);
/* For ps_member_options; NULL: not in this process. Borrowed. */
ps_job_view *ps_monitor_view(ps_monitor *m);

/* Sets what only changes while somebody looks. Called by the monitor's thread. */
typedef void ps_monitor_sample(void *ctx, ps_metric_values *values);

/* Copies what there is of embedding tables. */
typedef ps_err ps_monitor_tables(void *ctx, ps_row_figure_list *tables);

/* The process is a member from now on. member NULL: it is alone in its job. sample and
 * tables may be NULL. All are used until detach. */
void ps_monitor_attach(ps_monitor *m, ps_member *member, ps_monitor_sample *sample,
                       ps_monitor_tables *tables, void *ctx);
/* Before the member is destroyed. Tells the newest values once more. */
void ps_monitor_detach(ps_monitor *m);

#endif
