/* Checkpoints of the whole job while it trains.
 *
 * When one is due is a function of the step, or of what the ranks agree on after a step:
 * so all take part at the same border between two steps. The state is copied to rank 0,
 * and a thread there writes it (checkpoint_file.h) while the next steps are made. If the
 * disk is not done with the checkpoint before, the job skips one. A disk that fails is an
 * error in the log, and the job goes on.
 *
 * Where processes join again after a failure (recovery.rejoins), a second worker gets the
 * same copy (survivors.h), and both keep the one before until the next is whole. With a
 * quorum a copy that stays in memory has nothing that is a worker's own: each one keeps
 * that itself. So the copy is small, and whoever dies begins anew, as within a stretch.
 *
 * Rows of embedding tables stay on the servers: these set a point in memory to which they
 * can go back, and write their rows into the folder before any rank copies its state
 * (rows_points.h). With checkpoint.rows_full_every most write only what has changed since
 * a checkpoint with all rows; its files are then linked into the folder, too.
 */
#ifndef PS_CHECKPOINTER_H
#define PS_CHECKPOINTER_H

#include "checkpoint_folder.h"
#include "rows_points.h"
#include "session.h"
#include "snapshot_pair.h"

typedef struct ps_checkpointer ps_checkpointer;

typedef struct ps_checkpointer_options {
    const ps_config *config;        // borrowed for its life
    const ps_snapshot_shape *shape; // copied, except the table, which is borrowed
    const char *run_dir;            // rank 0's; borrowed
} ps_checkpointer_options;

/* checkpoint.path, or the run's checkpoints/. */
void ps_checkpointer_folder(const ps_config *cfg, const char *run_dir,
                            ps_checkpoint_folder *out);

/* Without a session. *out is owned by the caller. */
ps_err ps_checkpointer_create(const ps_checkpointer_options *options,
                              ps_checkpointer **out);
void ps_checkpointer_destroy(ps_checkpointer **c); // NULL inside: nothing

/* The session, which has joined, whose checkpoints it takes from now on, and the points
 * of its embedding tables, NULL: it has none; both borrowed. Takes memory for what the
 * rank holds and, on rank 0, starts the thread. */
ps_err ps_checkpointer_attach(ps_checkpointer *c, ps_session *session,
                              ps_rows_points *points);
/* Takes no checkpoints until the process has joined again; the thread goes on writing. c
 * NULL: nothing. */
void ps_checkpointer_detach(ps_checkpointer *c);

/* The newest snapshot that this process holds in memory; NULL: it holds none, or c is
 * NULL. It stays unchanged until the next one is taken. */
const ps_snapshot *ps_checkpointer_newest(const ps_checkpointer *c);
/* The snapshot of that step, which may hold what this rank has of its own alone; NULL: it
 * has none, or c is NULL. */
const ps_snapshot *ps_checkpointer_of_step(const ps_checkpointer *c, uint64_t step);
/* Without a session: writes the newest snapshot in memory to the disk unless it is there
 * already, or its embedding tables are on the servers alone, and waits
 * (train.file_timeout_ms). Returns whether the job has written any;
 * false where c is NULL, and on other ranks than 0. */
bool ps_checkpointer_secure(ps_checkpointer *c);
/* Forgets the snapshots in memory of later steps: the job goes on without them. c NULL:
 * nothing. */
void ps_checkpointer_forget_after(ps_checkpointer *c, uint64_t step);
/* Rank 0: whether it has written a checkpoint. Waits for the disk
 * (train.file_timeout_ms). */
bool ps_checkpointer_has_written(ps_checkpointer *c);

/* Where a checkpoint goes. One in memory serves processes that join again. */
typedef enum ps_checkpoint_target {
    PS_CHECKPOINT_NOWHERE,
    PS_CHECKPOINT_MEMORY,
    PS_CHECKPOINT_DISK
} ps_checkpoint_target;

/* Whether a checkpoint is due by the step's number: a multiple of checkpoint.every is
 * above `before`, and not above the step. c NULL: never. */
bool ps_checkpointer_due(const ps_checkpointer *c, uint64_t before, uint64_t step);
/* Rank 0: which checkpoint is due by time, if any: checkpoint.minutes have passed and the
 * disk is done with the one before, or the last one took less than recovery.share of the
 * time since then. The others learn it from rank 0. */
ps_checkpoint_target ps_checkpointer_late(ps_checkpointer *c);
/* Rank 0, when it has asked ps_checkpointer_late: the seconds until one in memory is due,
 * or the next one, where one is due now. INFINITY: none is. c NULL: none is. */
double ps_checkpointer_seconds_left(const ps_checkpointer *c);

/* All ranks, at the same border between two steps, with the exchange drained and the
 * buffers fetched, which began at begin_ns (ps_clock_ns). state: its lists have this
 * rank's own; it gets a rows_point. must: if the disk is not done with the checkpoint
 * before, waits for it instead of skipping this one. *taken: it was not skipped, on all
 * ranks alike. */
ps_err ps_checkpointer_take(ps_checkpointer *c, ps_trainer_snapshot *state,
                            ps_checkpoint_target target, bool must, uint64_t begin_ns,
                            bool *taken);

/* Whether an evaluation may make the step's checkpoint the best: it is taken before. */
bool ps_checkpointer_keeps_best(const ps_checkpointer *c);
/* Makes the last checkpoint taken, of that step, the best; one of another step does not
 * become it. Does nothing on other ranks. */
void ps_checkpointer_mark_best(ps_checkpointer *c, uint64_t step);
/* Rank 0: whether one that was marked so is still being written. */
bool ps_checkpointer_best_is_due(ps_checkpointer *c);

/* All ranks: waits until the disk is done (train.file_timeout_ms). *saved: the last
 * checkpoint that was taken is whole. */
ps_err ps_checkpointer_finish(ps_checkpointer *c, bool *saved);

#endif
