/* All tables of one shard, and the points to which they can go back: the last two that
 * were set. A store outlives its shard where the process joins the job again after a
 * failure, so that a worker's death costs no rows. */
#ifndef PS_ROW_STORE_H
#define PS_ROW_STORE_H

#include "row_manifest.h"
#include "row_table.h"

/* What a server writes at a point. */
typedef enum ps_row_writes {
    PS_ROW_WRITE_NONE,
    PS_ROW_WRITE_FULL,
    PS_ROW_WRITE_FIRST,   // all rows, and incremental files are to follow
    PS_ROW_WRITE_CHANGES, // since the last full ones, where they are known; else FIRST
} ps_row_writes;

typedef struct ps_row_store {
    uint32_t n, n_made; // tables; those that are to be freed
    ps_row_memory memory;
    ps_row_table *tables;
    ps_row_clock *clocks; // by table
    uint64_t loads;       // how often rows came from elsewhere, beside the steps
    uint64_t full;        // the point of the files that incremental ones add to; 0: none
    uint64_t full_step;
    uint64_t base; // the point before the newest one; 0: what has changed is not known
    bool changed;  // since then, when the newest one was set
    uint32_t n_points;
    struct ps_row_point {
        uint64_t point, step, loads;
        ps_row_clock *clocks; // (n) owned
    } points[PS_ROW_MARKS];   // the newest last
} ps_row_store;

/* Empty tables of partitions first .. end - 1. disk: NULL: none. *out is owned by the
 * caller; NULL after a failure. NOMEM, IO. */
ps_err ps_row_store_create(const ps_row_spec *specs, uint32_t n, uint32_t first,
                           uint32_t end, const ps_row_disk *disk, ps_row_store **out);
/* What its tables are; *out (store->n) is owned by the caller (free()). NOMEM. */
ps_err ps_row_store_specs(const ps_row_store *store, ps_row_spec **out);
/* Empty tables like another one's, of other partitions, with a disk like its own. */
ps_err ps_row_store_create_like(const ps_row_store *like, uint32_t first, uint32_t end,
                                ps_row_store **out);
void ps_row_store_destroy(ps_row_store **store); // of NULL: nothing

/* Whether its tables are these, and of the same partitions. */
bool ps_row_store_fits(const ps_row_store *store, const ps_row_store *other);
bool ps_row_store_has(const ps_row_store *store, uint64_t point);

/* From now on the tables can go back to the present state, after `step` steps. NOMEM. */
ps_err ps_row_store_set_point(ps_row_store *store, uint64_t point, uint64_t step);
/* Goes back to a point that it has; *step: as it was set. NOMEM. */
ps_err ps_row_store_go_back(ps_row_store *store, uint64_t point, uint64_t *step);

/* Writes each table into a file "<path>-<table>-<part>" under another name, syncs it and
 * gives it its name. files (n): what they are; *since: the point that they hold the
 * changes since, 0: all rows. The state is that of a point that was just set. IO, NOMEM.
 */
ps_err ps_row_store_write(ps_row_store *store, const char *path, uint32_t part,
                          ps_row_writes writes, uint64_t *since,
                          ps_row_manifest_file *files);

/* Reads its partitions from the manifest's files into a store that is empty. The
 * checksums of whole files are checked by one of n_parts parts each. FORMAT, IO: names a
 * file that is damaged or missing; SHAPE: they are of other tables. */
ps_err ps_row_store_read(ps_row_store *store, const char *folder,
                         const ps_row_manifest *manifest, uint32_t part,
                         uint32_t n_parts);

#endif
