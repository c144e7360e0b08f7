/* Processes that join a job again hold snapshots of it in memory. Here they agree on
 * which one the job goes on from. A second worker, the holder, takes the snapshots that
 * worker 0 takes, and keeps the one before while it takes the next: so the newest one
 * survives the end of any one process. */
#ifndef PS_SURVIVORS_H
#define PS_SURVIVORS_H

#include <stdbool.h>

#include "member.h"

/* The worker that holds snapshots beside worker 0: on another host than that if there is
 * one. 0: worker 0 is alone. */
int ps_survivors_holder(const ps_roster *roster);

/* What a worker brings. */
typedef struct ps_survivor {
    uint64_t step; // of its newest snapshot; 0: it has none
    int n_ranks;   // of that snapshot
    uint64_t made; // the steps that it has seen made
    /* Grows whenever the job begins or goes on; this process's when it was last in it. 0:
     * it was not. A process that missed one holds snapshots that are no longer of the
     * job. */
    uint64_t generation;
    uint64_t starts; // of the process before this one (PS_INCARNATION); rank 0's counts
} ps_survivor;

typedef struct ps_survivors_choice {
    int source; // the rank whose snapshot is used; -1: what is on the disk, or nothing
    ps_survivor of_source;
    uint64_t made;       // the steps that any of them has seen made
    uint64_t generation; // now
    bool own_counts; // this process's snapshots are of the job, up to where it goes on
} ps_survivors_choice;

/* A pure function of what all bring, by rank. trusted: they are of this job. disk_step:
 * of the newest checkpoint on disk; 0: there is none. */
ps_survivors_choice ps_survivors_choose(const ps_survivor *all, int n, int rank,
                                        bool trusted, uint64_t disk_step);

/* All workers: each says what it brings, and all make the same choice. trusted and
 * disk_step: rank 0's count. */
ps_err ps_survivors_meet(ps_member *member, const ps_survivor *own, bool trusted,
                         uint64_t disk_step, ps_deadline deadline,
                         ps_survivors_choice *out);

#endif
