/* Where a job begins: new, or where the newest whole checkpoint ends. Worker 0 reads it
 * and tells the others, which need no file system in common with it. */
#ifndef PS_RESUME_H
#define PS_RESUME_H

#include "checkpointer.h"
#include "cli.h"
#include "dataset.h"
#include "job_start.h"
#include "metrics.h"
#include "run_dir.h"
#include "sampler.h"
#include "survivors.h"
#include "trainer_reentry.h"

typedef struct ps_resume_options { // borrowed for its life
    const ps_config *config;
    const ps_cli *cli;
    const ps_tensor_table *table;
    ps_member *member; // NULL: alone
    int rank, world_size;
    const ps_dataset *train, *test;
    uint64_t train_mark, test_mark; // ps_dataset_mark
    int64_t accumulate;             // micro-batches per step
    int64_t *batches; // (world_size) the sampler's; with data.batch auto it gets those of
                      // the epoch that the job goes on with
    /* Rank 0 of a process that joins again: where its results are, and its checkpoints.
     * NULL: a process that has just begun. */
    const char *own_dir;
    ps_checkpointer *checkpointer; // NULL: none
    /* Of the job when this process was last in it (survivors.h); 0: it was not. */
    uint64_t generation;
    uint64_t made; // the steps that it has seen made
} ps_resume_options;

typedef struct ps_resume {
    ps_resume_options o;
    ps_snapshot_shape shape; // of the job's snapshots, for checkpoints too
    bool goes_on;
    bool overwrites;     // a run that was begun anew by --resume auto
    bool old;            // rank 0: the job has been started before
    const char *run_dir; // rank 0's: that goes on; borrowed from the command line
    ps_survivors_choice choice;
    ps_snapshot snapshot;       // what it goes on from; the trainer's state on every rank
    ps_snapshot moved;          // rank 0's: from another worker's memory
    const ps_snapshot *arrays;  // the arrays are of this one, except the ranks' own
    ps_exchange_state exchange; // borrows from both
    ps_job_start start;
    ps_trainer_reentry reentry; // where start.back_at is above 0
} ps_resume;

/* All ranks. Looks for the checkpoint that --resume names; where processes join again,
 * for the newest in the memory of any worker, or on the disk. Rank 0 gets it. Damaged
 * ones are named in the log and set aside. A worker that takes a dead one's place while
 * the others go on asks for their state instead, alone. IO, FORMAT where none is whole. r
 * is safe for fini in every case. */
ps_err ps_resume_init(ps_resume *r, const ps_resume_options *options,
                      const ps_optimizer *optimizer);
void ps_resume_fini(ps_resume *r);

/* All ranks, before anything depends on the number of steps: they and the servers learn
 * where the job begins (r->start). sampler: gets the start. Where start.back_at is above
 * 0, this does nothing. */
ps_err ps_resume_tell(ps_resume *r, ps_sampler_options *sampler);

/* Rank 0: claims the folder for results as the job has it. IO where it holds another run,
 * or the folder of the checkpoints those of another one. */
ps_err ps_resume_claim(const ps_resume *r, ps_run_dir *dir);

/* Rank 0's first weights and buffers; nothing where the job is new. Of a worker that
 * takes a dead one's place the buffers alone: the servers have the weights. */
void ps_resume_weights(const ps_resume *r, float *params, void *buffers);
/* All ranks: what the exchange goes on from (ps_session_start); NULL where the job is
 * new. *out is borrowed, until the arrays are dropped. */
ps_err ps_resume_exchange(ps_resume *r, const ps_exchange_state **out);
/* Rank 0, before anybody uses the rows of embedding tables: the servers go back to those
 * that the job goes on from. */
ps_err ps_resume_rows(const ps_resume *r, ps_session *session, ps_rows_points *points);
void ps_resume_drop_arrays(ps_resume *r);

/* Rank 0: opens metrics.jsonl in the folder, behind the last line before the checkpoint.
 */
ps_err ps_resume_metrics(const ps_resume *r, const ps_run_dir *dir, ps_metrics *metrics);

#endif
