/* Which files of rows (row_file.h) make up all tables of a job at one point. JSON:
 *
 *   {"rows": 1, "point": 77, "step": 40, "tables": [{"name": "user", "steps": 40}, ...],
 *    "files": [{"name": "commit-12.rows-0-1", "table": 0, "changes": false,
 *               "bytes": 4096, "crc32": 305419896}, ...]}
 *
 * point: the job's name for it. step: how many steps of the rows were made, steps: of the
 * table's optimizer. A reader takes the full files first, then those with changes. No
 * files: the servers alone have the rows. */
#ifndef PS_ROW_MANIFEST_H
#define PS_ROW_MANIFEST_H

#include "row_spec.h"

enum { PS_ROW_FILE_NAME_BYTES = 128 };

typedef struct ps_row_manifest_file {
    char name[PS_ROW_FILE_NAME_BYTES]; // without a folder
    uint32_t table;
    bool changes; // an incremental one
    uint64_t bytes;
    uint32_t crc;
} ps_row_manifest_file;

typedef struct ps_row_manifest {
    uint64_t point, step;
    uint32_t n_tables;
    struct ps_row_manifest_table {
        char name[PS_ROW_NAME_BYTES];
        uint64_t steps;
    } * tables; // owned
    ps_row_manifest_file *files;
    uint32_t n_files, room;
} ps_row_manifest;

/* Of these tables; without files. NOMEM. */
ps_err ps_row_manifest_init(ps_row_manifest *m, const ps_row_spec *specs, uint32_t n);
void ps_row_manifest_fini(ps_row_manifest *m); // safe after a failure
ps_err ps_row_manifest_add(ps_row_manifest *m, const ps_row_manifest_file *file);

/* *text is owned by the caller (free()). NOMEM. */
ps_err ps_row_manifest_write(const ps_row_manifest *m, char **text);
/* Checks all of it. FORMAT. */
ps_err ps_row_manifest_read(const char *text, uint64_t bytes, ps_row_manifest *out);
/* SHAPE says where its tables are not these. */
ps_err ps_row_manifest_check(const ps_row_manifest *m, const ps_row_spec *specs,
                             uint32_t n);

#endif
