/* All rows of embedding tables from the servers into a safetensors file, by way of files
 * beside it (row_spool.h): the memory that it takes does not depend on the tables. Of
 * each table:
 *
 *   NAME.ids      I64 (n), in rising order: those that a gradient has reached
 *   NAME.weight   F32 (n, dim)
 *
 * All ids stand before all weights, so that both are aligned. */
#ifndef PS_ROW_EXPORT_H
#define PS_ROW_EXPORT_H

#include "row_client.h"

typedef struct ps_row_export_options {
    const char *path;
    const ps_row_spec *specs; // of the job
    const int *tables;        // (n) of these; NULL: the first n
    int n;
    const char *const *metadata; // (n_meta) pairs key, value
    int n_meta;
} ps_row_export_options;

/* Between two steps of the rows; one worker is enough. The same bytes for any number of
 * servers. A file that is there stays until the new one is whole. IO, NOMEM, FORMAT; what
 * ps_row_client_save returns. */
ps_err ps_row_export(ps_row_client *client, const ps_row_export_options *options);

#endif
