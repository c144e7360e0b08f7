/* /metrics: Prometheus' text format, version 0.0.4
 * (https://prometheus.io/docs/instrumenting/exposition_formats/). */
#ifndef PS_METRIC_TEXT_H
#define PS_METRIC_TEXT_H

#include "err.h"
#include "metric_table.h"
#include "row_figures.h"

typedef struct ps_metric_labels {
    const char *job, *role;
    int rank; // -1: not known yet
} ps_metric_labels;

/* *out: the values that are known, that the process is there, and what it has of each
 * embedding table, with a label "table". Owned by the caller (free()). NOMEM. */
ps_err ps_metric_text(const double values[PS_METRICS], const ps_row_figure_list *tables,
                      const ps_metric_labels *labels, char **out);

#endif
