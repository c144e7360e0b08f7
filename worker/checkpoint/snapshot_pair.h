/* Two snapshots in memory, of which at most one is being overwritten. So a process that
 * holds a whole one still holds it while the next is taken. */
#ifndef PS_SNAPSHOT_PAIR_H
#define PS_SNAPSHOT_PAIR_H

#include "snapshot.h"

typedef struct ps_snapshot_pair {
    ps_snapshot of[2];
    struct {
        bool made;  // has memory
        bool whole; // is that of one border between two steps
        int rank;
        bool all; // as made
    } is[2];
    int filling;
} ps_snapshot_pair; // zeroed: there is none

void ps_snapshot_pair_fini(ps_snapshot_pair *p);

/* Of the whole ones that hold all, the one of the highest step; NULL: there is none. */
const ps_snapshot *ps_snapshot_pair_newest(const ps_snapshot_pair *p);
/* The whole one of that step, which may hold the rank's own alone; NULL: there is none.
 */
const ps_snapshot *ps_snapshot_pair_of_step(const ps_snapshot_pair *p, uint64_t step);

/* Makes memory for n (1 or 2) that hold all, so that begin finds it. */
ps_err ps_snapshot_pair_reserve(ps_snapshot_pair *p, const ps_snapshot_shape *shape,
                                int rank, int n);
/* *out is the one to fill next, with memory as ps_snapshot_init has it. keep: the newest
 * of both kinds stays as it is; otherwise it is the one to be filled. *out is not whole
 * until commit.
 */
ps_err ps_snapshot_pair_begin(ps_snapshot_pair *p, const ps_snapshot_shape *shape,
                              int rank, bool all, bool keep, ps_snapshot **out);
void ps_snapshot_pair_commit(ps_snapshot_pair *p);

/* Those of higher steps count as not whole any more. */
void ps_snapshot_pair_forget_after(ps_snapshot_pair *p, uint64_t step);

#endif
