/* Points to which a job's embedding tables can go back (row_store.h), as a worker sets
 * and names them. */
#ifndef PS_ROWS_POINTS_H
#define PS_ROWS_POINTS_H

#include "row_store.h"
#include "session.h"

typedef struct ps_rows_points ps_rows_points;

/* specs (n): borrowed for its life. *out is owned by the caller; NULL after a failure. */
ps_err ps_rows_points_create(const ps_row_spec *specs, uint32_t n, uint32_t n_shards,
                             ps_rows_points **out);
void ps_rows_points_destroy(ps_rows_points **points);

typedef struct ps_rows_point {
    uint64_t point, step; // its name, 1 to 2^63 - 1; steps of the rows
    ps_row_writes writes;
    const char *folder, *name; // of files: "<folder>/<name>-<table>-<shard>"
} ps_rows_point;

/* One worker, between two steps of the rows. *manifest (row_manifest.h) is owned by the
 * caller. *fault: why a server could not write its files, "" where it could: the manifest
 * then has none. It stays until the next call. */
ps_err ps_rows_points_set(ps_rows_points *p, ps_session *session,
                          const ps_rows_point *what, char **manifest, const char **fault);

/* One worker, while no other uses the rows: all servers go back to the manifest's point,
 * or read its files, which lie in the folder. step: the present one. ARG: no server has
 * the point, and there are no files; nothing has changed. FORMAT, SHAPE, PEER. */
ps_err ps_rows_points_return(ps_rows_points *p, ps_session *session, uint64_t step,
                             const char *folder, const char *manifest);
/* The same by every worker, whatever of the present step it has made: worker 0's folder
 * and manifest count. Returns when all have called it. */
ps_err ps_rows_points_return_all(ps_rows_points *p, ps_session *session,
                                 const char *folder, const char *manifest);
/* The same of a point of that step, where all servers have it in memory; by one. */
ps_err ps_rows_points_return_in_memory(ps_rows_points *p, ps_session *session,
                                       uint64_t point, uint64_t step_then);
/* Whether the rows of all servers were in memory at the point when the servers joined:
 * their own, or with rows.buddy the next server's. Before anybody uses the rows. TIMEOUT,
 * PROTOCOL. */
ps_err ps_rows_point_is_kept(ps_member *member, int n_servers, uint64_t point,
                             ps_deadline deadline, bool *kept);

#endif
