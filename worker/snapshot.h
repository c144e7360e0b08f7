/* Everything that a checkpoint holds, in memory, at the border between two steps. Arrays
 * are arenas. */
#ifndef PS_SNAPSHOT_H
#define PS_SNAPSHOT_H

#include "exchange.h"
#include "trainer_snapshot.h"

/* What a job's snapshots have. */
typedef struct ps_snapshot_shape {
    const ps_tensor_table *table;
    const ps_optimizer *optimizer;
    int n_ranks;
    bool told;     // the workers' weights are not the servers': a codec lies between
    bool feedback; // the workers' codec keeps what it has not sent
} ps_snapshot_shape;

ps_snapshot_shape ps_snapshot_shape_of(const ps_config *cfg, const ps_tensor_table *table,
                                       const ps_optimizer *optimizer, int n_ranks);

typedef struct ps_snapshot {
    ps_trainer_snapshot trainer;
    ps_exchange_state exchange; // feedback: rank's own
    float *params;              // the workers'
    void *buffers;
    int n_ranks;
    float **feedback; // by rank: rank 0's of all, another one's its own alone; or NULL
} ps_snapshot;

/* Memory for what the rank holds: all of it on rank 0, its feedback on another one. The
 * trainer's state stays empty. NOMEM; safe for fini in every case. */
ps_err ps_snapshot_init(ps_snapshot *s, const ps_snapshot_shape *shape, int rank);
void ps_snapshot_fini(ps_snapshot *s);
/* Frees the arrays; the trainer's state stays. */
void ps_snapshot_drop_arrays(ps_snapshot *s);

/* Rank 0: s's feedback for a job of shape->n_ranks: each goes to its rank modulo that
 * number. Without feedback: nothing. out is safe for fini in every case. */
ps_err ps_snapshot_fold_feedback(const ps_snapshot *s, const ps_snapshot_shape *shape,
                                 ps_snapshot *out);

/* All ranks: every rank's feedback to rank 0's snapshot, or from there to each. */
ps_err ps_snapshot_gather_feedback(ps_snapshot *s, const ps_snapshot_shape *shape,
                                   ps_member *member, int rank, uint64_t timeout_ms);
ps_err ps_snapshot_scatter_feedback(const ps_snapshot *s, const ps_snapshot_shape *shape,
                                    ps_member *member, int rank, uint64_t timeout_ms);

#endif
