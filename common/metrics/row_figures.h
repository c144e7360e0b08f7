/* What a process tells of each embedding table. A shard's thread counts; any thread takes
 * a copy. */
#ifndef PS_ROW_FIGURES_H
#define PS_ROW_FIGURES_H

#include <pthread.h>
#include <stdint.h>

#include "row_spec.h"

typedef struct ps_row_figure {
    char name[PS_ROW_NAME_BYTES]; // of the table
    uint64_t rows, bytes;         // that it has now
    uint64_t stepped, dropped;    // since it began
} ps_row_figure;

typedef struct ps_row_figures {
    pthread_mutex_t lock;
    ps_row_figure *of; // (n); under the lock
    uint32_t n;
} ps_row_figures;

ps_err ps_row_figures_init(ps_row_figures *f);
void ps_row_figures_fini(ps_row_figures *f);

/* The tables of the job, all from 0. NOMEM. */
ps_err ps_row_figures_begin(ps_row_figures *f, const ps_row_spec *specs, uint32_t n);
/* now: its rows and bytes; stepped and dropped are added. */
void ps_row_figures_count(ps_row_figures *f, uint32_t table, const ps_row_figure *now);

/* A copy, for what several shards have of the same tables. */
typedef struct ps_row_figure_list {
    ps_row_figure *of; // (n) owned; free()
    uint32_t n;
} ps_row_figure_list;

/* Adds what is in f. list: zeroed at first. NOMEM. */
ps_err ps_row_figures_add(ps_row_figures *f, ps_row_figure_list *list);

#endif
