/* Everything that a checkpoint holds, in memory, at the border between two steps. Arrays
 * are arenas. */
#ifndef PS_SNAPSHOT_H
#define PS_SNAPSHOT_H

#include "exchange.h"
#include "exchange_local.h"
#include "trainer_snapshot.h"

/* What a job's snapshots have. */
typedef struct ps_snapshot_shape {
    const ps_tensor_table *table;
    const ps_optimizer *optimizer; // the exchange's
    int n_ranks;
    bool told;          // the workers' weights are not the servers': a codec lies between
    bool feedback;      // the workers' codec keeps what it has not sent
    bool local;         // the policy local: workers have weights and state of their own
    ps_optimizer inner; // then: their optimizer
    uint32_t fragments; // then: of the model (local_steps.h)
    /* With a quorum: in memory every rank keeps what is its own. On the disk rank 0 has
     * all of it. */
    bool own_stays;
} ps_snapshot_shape;

ps_snapshot_shape ps_snapshot_shape_of(const ps_config *cfg, const ps_tensor_table *table,
                                       const ps_optimizer *optimizer, int n_ranks);

typedef struct ps_snapshot {
    ps_trainer_snapshot trainer;
    ps_exchange_state exchange; // feedback and local: rank's own
    float *params;              // the workers'
    void *buffers;
    int n_ranks;
    /* By rank: of all where all is held, else its own alone; or NULL. */
    void **feedback; // arenas
    void **local;    // ps_local_memory_bytes each
    bool own_alone;  // of these, the other ranks' are not set
    /* Rank 0's, of one on the disk: the manifest of the files of embedding tables
     * (row_manifest.h), and where they are; owned; NULL: servers have them in memory. */
    char *rows, *rows_folder;
} ps_snapshot;

/* Memory for what the rank holds: all of it, or its own alone. The trainer's state stays
 * empty. NOMEM; safe for fini in every case. */
ps_err ps_snapshot_init(ps_snapshot *s, const ps_snapshot_shape *shape, int rank,
                        bool all);
void ps_snapshot_fini(ps_snapshot *s);
/* Frees the arrays; the trainer's state stays. */
void ps_snapshot_drop_arrays(ps_snapshot *s);

/* What s's ranks have of their own, for a job of shape->n_ranks. Feedback of rank r goes
 * to r modulo that number; rank r's own weights and state are those of r modulo s's
 * number. Nothing else. out is safe for fini in every case. */
ps_err ps_snapshot_fold(const ps_snapshot *s, const ps_snapshot_shape *shape,
                        ps_snapshot *out);

/* After the ranks' own were set one by one, for another number of ranks maybe: their
 * shares of the round add up to 1. */
void ps_snapshot_even_shares(ps_snapshot *s, const ps_snapshot_shape *shape);

/* Sets the other ranks' own where they are not: they begin anew, from s->params. */
void ps_snapshot_renew_others(ps_snapshot *s, const ps_snapshot_shape *shape, int rank);

/* The ranks between which parts of snapshots move. */
typedef struct ps_snapshot_ranks {
    ps_member *member; // NULL: alone
    int rank, world_size;
    int holder;          // gets what rank 0 gets; 0: nobody does
    uint64_t timeout_ms; // for a piece
} ps_snapshot_ranks;

/* All ranks: what every rank has of its own to rank 0's snapshot and the holder's, or,
 * without a holder, from rank 0's to each. */
ps_err ps_snapshot_gather(ps_snapshot *s, const ps_snapshot_shape *shape,
                          const ps_snapshot_ranks *ranks);
ps_err ps_snapshot_scatter(const ps_snapshot *s, const ps_snapshot_shape *shape,
                           const ps_snapshot_ranks *ranks);
/* All ranks: rank 0's buffers, without frozen parameters, to the holder's snapshot.
 * Without a holder: nothing. */
ps_err ps_snapshot_share_buffers(ps_snapshot *s, const ps_snapshot_shape *shape,
                                 const ps_snapshot_ranks *ranks);
/* All ranks, without a holder: copies all of rank `from`'s snapshot to rank 0's, which
 * was made for shape, as was that one; except what stays (own_stays). s: NULL on other
 * ranks. */
ps_err ps_snapshot_move(ps_snapshot *s, const ps_snapshot_shape *shape,
                        const ps_snapshot_ranks *ranks, int from);

#endif
