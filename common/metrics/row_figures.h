/* What a process tells of each embedding table. A shard's thread counts; any thread takes
 * a copy. */
#ifndef PS_ROW_FIGURES_H
#define PS_ROW_FIGURES_H

#include <jansson.h>
#include <pthread.h>
#include <stdint.h>

#include "metric_table.h"
#include "row_spec.h"

/* As PS_METRIC_MAP, after "pstrain_table_": a gauge is what the table has now, a counter
 * begins with the job. */
// clang-format off
#define PS_ROW_FIGURE_MAP(X)                                                              \
    X(ROWS, "rows", "rows", GAUGE, "rows", "rows of an embedding table that a server stores") \
    X(BYTES, "bytes", "bytes", GAUGE, "bytes", "memory that they take, with their optimizer's state and index") \
    X(STEPPED, "stepped", "rows_stepped_total", COUNTER, "rows", "rows of an embedding table that had a gradient: the distinct ids of each step") \
    X(DROPPED, "dropped", "rows_dropped_total", COUNTER, "rows", "rows of an embedding table that expired or were evicted") \
    X(AHEAD, "ahead", "rows_ahead_total", COUNTER, "rows", "rows of an embedding table that workers asked for ahead, while the step before was made") \
    X(READY, "ready", "rows_ready_total", COUNTER, "rows", "those of them that this step did not change: they were read at once")
// clang-format on

typedef enum ps_row_figure_kind {
#define PS_ROW_FIGURE_ENUM(id, name, export, kind, unit, help) PS_ROW_FIGURE_##id,
    PS_ROW_FIGURE_MAP(PS_ROW_FIGURE_ENUM)
#undef PS_ROW_FIGURE_ENUM
        PS_ROW_FIGURES
} ps_row_figure_kind;

extern const ps_metric_entry ps_row_figure_table[PS_ROW_FIGURES];

typedef struct ps_row_figure {
    char name[PS_ROW_NAME_BYTES]; // of the table
    uint64_t of[PS_ROW_FIGURES];
} ps_row_figure;

typedef struct ps_row_figures {
    pthread_mutex_t lock;
    ps_row_figure *tables; // (n); under the lock
    uint32_t n;
} ps_row_figures;

ps_err ps_row_figures_init(ps_row_figures *f);
void ps_row_figures_fini(ps_row_figures *f);

/* The tables of the job, all from 0. NOMEM. */
ps_err ps_row_figures_begin(ps_row_figures *f, const ps_row_spec *specs, uint32_t n);
/* now: the gauges; counters are added. */
void ps_row_figures_count(ps_row_figures *f, uint32_t table,
                          const uint64_t now[PS_ROW_FIGURES]);

/* A copy, for what several shards or servers have of the same tables. */
typedef struct ps_row_figure_list {
    ps_row_figure *tables; // (n) owned; free()
    uint32_t n;
} ps_row_figure_list;

/* At least n tables; new ones are zeroed. NOMEM. */
ps_err ps_row_figure_list_grow(ps_row_figure_list *list, uint32_t n);
/* Adds what is in f. list: zeroed at first. NOMEM. */
ps_err ps_row_figures_add(ps_row_figures *f, ps_row_figure_list *list);

/* [{"name": "user", "rows": 5, ...}, ...]; NULL: no memory. */
json_t *ps_row_figure_list_json(const ps_row_figure_list *list);

#endif
