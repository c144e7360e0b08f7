/* Where a worker begins that takes a dead one's place while the others go on
 * (sync_policy.h): between two rests. Worker 0 tells it at the beginning of each stretch,
 * by the coordinator's store, which keeps the newest one. */
#ifndef PS_TRAINER_REENTRY_H
#define PS_TRAINER_REENTRY_H

#include "config.h"
#include "member.h"
#include "tensor_table.h"
#include "trainer_snapshot.h"

typedef struct ps_trainer_reentry {
    uint64_t stretch;       // how often the workers have rested
    uint64_t made;          // rounds of this rank since the last time
    uint64_t generation;    // survivors.h
    uint64_t first;         // the step at which the job began, or went on
    uint64_t kept;          // that of the last checkpoint on the disk
    int64_t *round_steps;   // (workers) sync.steps_by_speed; owned; NULL: all the same
    uint64_t buffer_pieces; // exchange.h
    void *buffers; // batch norm's, worker 0's at the last rest (table's bytes); owned by
                   // the one that hears
} ps_trainer_reentry;

/* Whether workers may come back so: with a quorum, where processes join again and there
 * are no frozen parameters, and no more than 16 MiB of buffers. */
bool ps_trainer_reentry_on(const ps_config *config, const ps_tensor_table *table);

/* Worker 0. now: as a checkpoint has it; reentry: all but `made`. The one before is
 * forgotten. */
ps_err ps_trainer_reentry_tell(ps_member *member, const ps_tensor_table *table,
                               const ps_trainer_snapshot *now,
                               const ps_trainer_reentry *reentry, ps_deadline deadline);

/* The worker that comes back. from: ps_member_reentry's. now: gets the state (init
 * before); out: must be given to fini in every case. PROTOCOL, TIMEOUT. */
ps_err ps_trainer_reentry_hear(ps_member *member, const ps_coord_orders_reentry *from,
                               const ps_tensor_table *table, ps_trainer_snapshot *now,
                               ps_trainer_reentry *out, ps_deadline deadline);
void ps_trainer_reentry_fini(ps_trainer_reentry *reentry);

#endif
