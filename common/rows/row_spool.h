/* Rows on their way from the servers into a file that has them by rising id: they come
 * partition after partition, in each by rising id, and are more than the memory holds. So
 * they lie in two files without names, ids in one, rows in the other, and are merged from
 * the partitions' runs.
 *
 *     ps_row_spool_open(&spool, path, n_tables);
 *     ps_row_spool_add(&spool, 0, ...);    // any number of times, table after table
 *     spool.tables[0].n                    // the table's rows, counted
 *     ps_row_spool_merge(&spool, 0, ...);
 *     ps_row_spool_close(&spool);
 *
 * Memory: for each run of a table, of which there are PS_ROW_PARTITIONS, two pieces of a
 * few KiB. */
#ifndef PS_ROW_SPOOL_H
#define PS_ROW_SPOOL_H

#include <stdint.h>

#include "err.h"

typedef struct ps_row_run {
    uint64_t begin, end; // rows of the table, in the order in which they came
} ps_row_run;

typedef struct ps_row_spool_table {
    uint32_t dim;
    uint64_t n;               // rows
    uint64_t ids_at, rows_at; // in the files
    ps_row_run *runs;         // (n_runs) of rising ids
    uint32_t n_runs, room;
    int64_t last_id;
} ps_row_spool_table;

typedef struct ps_row_spool {
    const char *path; // borrowed; for messages
    int ids_fd, rows_fd;
    uint64_t ids_bytes, rows_bytes; // of the files
    ps_row_spool_table *tables;     // (n_tables)
    int n_tables, last;             // that has got rows
    float *packed;                  // rows without what follows them
} ps_row_spool;

/* path: of the file that is to be; the spool lies beside it. IO, NOMEM. spool is safe for
 * close in every case. */
ps_err ps_row_spool_open(ps_row_spool *spool, const char *path, int n_tables);
void ps_row_spool_close(ps_row_spool *spool);

/* n rows of a table: the first dim numbers of each of values (n, width). Tables come one
 * after another, their dim stays. IO, NOMEM. */
ps_err ps_row_spool_add(ps_row_spool *spool, int table, uint32_t dim, uint64_t n,
                        const int64_t *ids, const float *values, uint32_t width);

/* Takes the rows first .. first + n - 1 in the order of their ids. */
typedef ps_err ps_row_spool_take(void *ctx, uint64_t first, uint64_t n,
                                 const int64_t *ids, const float *rows);
/* Gives all rows of a table, in pieces. FORMAT: an id came twice. IO, NOMEM; errors of
 * take. */
ps_err ps_row_spool_merge(const ps_row_spool *spool, int table, ps_row_spool_take *take,
                          void *ctx);

#endif
