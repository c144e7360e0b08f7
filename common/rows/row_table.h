/* The rows of one table that live in one shard: a shard's thread owns it.
 *
 * A shard, for each table:
 *
 *     // PULL_ROWS of step s from rank r, for training
 *     ps_row_step_pull(&step, r, n, ids);
 *     ps_row_table_read(&table, n, ids, out);
 *     // PULL_ROWS of step s + 1 before step s is applied (prefetch): at once for ids
 *     // with !ps_row_table_changes(&table, &step, s, id), after step s for the others
 *
 *     // PUSH_ROWS of step s from rank r: ps_row_step_rows(&step, r) gradient rows, in
 *     // the order of its PULL; when the last one is in
 *     ps_row_table_apply(&table, &step, &update, grads);
 *     ps_row_step_clear(&step);
 *
 *     // a snapshot of the job after step s: version s + 1
 *     ps_row_table_mark(&table, s + 1, s + 1);
 *     // a worker has died, and the others go back to v, one of the last two marks
 *     ps_row_table_undo(&table, v);
 *
 * Version v is the state after v steps; step s makes version s + 1. All steps are told to
 * every table of a shard, also those without a row of it: what expires depends on it.
 *
 * The values depend on the specs, the ids, the gradients, their ranks and their steps
 * alone: not on shards, on the key, on what lies on a disk, or on when messages came. */
#ifndef PS_ROW_TABLE_H
#define PS_ROW_TABLE_H

#include "row_index.h"
#include "row_memory.h"
#include "row_set.h"
#include "row_spec.h"
#include "row_undo.h"

/* One step of one table: what the ranks have pulled, until their gradients are applied.
 */
typedef struct ps_row_step {
    ps_row_set touched; // ids of all ranks
    struct ps_row_pull {
        uint32_t *positions; // (n) in touched, in the order of the PULL
        uint32_t n, room;
    } * pulls;
    uint32_t n_ranks;
    uint32_t last;   // of the ranks that have pulled
    bool is_ordered; // they did so in their order
} ps_row_step;

ps_err ps_row_step_init(ps_row_step *step, uint32_t n_ranks, ps_row_key key);
void ps_row_step_fini(ps_row_step *step); // safe on a zeroed one
/* Begins another step; keeps the memory. */
void ps_row_step_clear(ps_row_step *step);

/* Notes the ids that a rank has pulled. Copies what it needs. A second PULL of the same
 * rank in one step adds its rows behind the first. NOMEM. */
ps_err ps_row_step_pull(ps_row_step *step, uint32_t rank, uint32_t n,
                        const uint64_t *ids);

/* Rows that the rank has pulled: as many as its PUSH must have. */
static inline uint32_t ps_row_step_rows(const ps_row_step *step, uint32_t rank)
{
    return step->pulls[rank].n;
}

/* What changes from step to step. */
typedef struct ps_row_update {
    double lr;     // of this step, from the schedule
    uint64_t t;    // steps of the table's optimizer, 1 for the first: adagrad's lr_decay,
                   // sparse_adam; the same in all shards
    uint64_t step; // of the job, from 0
} ps_row_update;

typedef struct ps_row_stats {
    uint64_t rows;             // stored
    uint64_t candidates;       // ids that were not admitted yet
    uint64_t bytes;            // that they take: rows, state, and the index
    uint64_t evicted, expired; // since the table began
} ps_row_stats;

/* A row or candidate that was evicted or has expired, in the step before the version. */
typedef struct ps_row_drop {
    uint64_t id;
    uint32_t version;
} ps_row_drop;

typedef struct ps_row_table {
    ps_row_spec spec;
    ps_row_key key;
    uint64_t salt; // of ps_row_hash
    ps_row_index index;
    ps_row_slab slab, cold; // in memory; in the file, where memory has no room
    ps_row_undo undo;
    float *sums; // (sums_room) the summed gradients of a step
    uint64_t sums_room;
    uint32_t first_partition, end_partition;
    uint32_t partition_rows; // that a partition may have; UINT32_MAX: any
    uint64_t drops_since;    // of ps_row_table_forget; UINT64_MAX: drops are not noted
    ps_row_drop *drops;      // since then
    uint64_t n_drops, drops_room;
    /* Rows in the file that have gradients again and again trade places with rows in
     * memory that have none any more. A hand goes round the partitions and looks for
     * these: rows that had none since the round before the present one began. */
    struct ps_row_ids {
        uint64_t *ids;
        uint32_t n, room;
    } warm, old;       // of the present step; that the hand has found
    uint32_t hand;     // the next partition
    uint32_t began[2]; // version at the begin of the round before; of the present one
    ps_row_stats stats;
} ps_row_table;

/* A table that owns partitions first .. end - 1. memory: of all tables of the shard; it
 * must outlive the table. The spec was checked. NOMEM. */
ps_err ps_row_table_init(ps_row_table *table, const ps_row_spec *spec, ps_row_key key,
                         uint32_t first, uint32_t end, ps_row_memory *memory);
void ps_row_table_fini(ps_row_table *table); // safe on a zeroed one

/* Whether the id belongs to a partition of this table: every id of a PULL must. */
bool ps_row_table_owns(const ps_row_table *table, uint64_t id);
/* PROTOCOL names the first of n ids that does not. */
ps_err ps_row_table_check_ids(const ps_row_table *table, uint64_t n, const uint64_t *ids);

/* out (n, dim) becomes the weights of the ids, any ids. Stores nothing. */
void ps_row_table_read(const ps_row_table *table, uint64_t n, const uint64_t *ids,
                       float *out);

/* Whether applying the step, whose PULLs of all ranks are in, may change the row of an
 * id: it has a gradient, or the row may be dropped at the end of step s. */
bool ps_row_table_changes(const ps_row_table *table, const ps_row_step *step, uint64_t s,
                          uint64_t id);

/* Sums the gradients, grads[r] (ps_row_step_rows(step, r), dim) in the order of the ranks
 * r (NULL: none of this rank; no alignment needed beyond float's), makes the optimizer's
 * step on the rows that have one, then drops rows that have expired, or are too many.
 * Each rank has multiplied its gradients by its share.
 * NUMERIC names table and id where a sum is not finite, UNSUPPORTED where step is beyond
 * 2^32 - 2: nothing was changed then. NOMEM: the machine's memory, or max_bytes with
 * PS_ROW_FULL_END; the job cannot go on. */
ps_err ps_row_table_apply(ps_row_table *table, const ps_row_step *step,
                          const ps_row_update *update, const float *const *grads);

/* Gives ids rows with these weights (n, dim), fresh state, and version: for first values
 * from elsewhere. NOMEM. */
ps_err ps_row_table_set(ps_row_table *table, uint64_t n, const uint64_t *ids,
                        const float *weights, uint64_t version);

/* From now on the table can go back to the present state, whose version that is, by name.
 * It keeps two marks; the third forgets the first. */
void ps_row_table_mark(ps_row_table *table, uint64_t name, uint64_t version);

/* Goes back to a mark; later ones are forgotten. PROTOCOL: there is no such mark. NOMEM.
 */
ps_err ps_row_table_undo(ps_row_table *table, uint64_t name);

/* A row as files and exports see it. */
typedef struct ps_row_view {
    uint64_t id;
    uint32_t version; // after its last gradient
    uint32_t count; // steps that had a gradient for it, while it is no row yet; 0: a row
    const float *row; // (width) weights, then state; NULL where count > 0
} ps_row_view;

/* The rows and candidates of partitions first .. end - 1 whose version is above `since`
 * (0: all), sorted by partition, then by id. *views (*n) is owned by the caller (free());
 * the rows stay the table's, until the next call that changes it. NOMEM. */
ps_err ps_row_table_list(const ps_row_table *table, uint32_t first, uint32_t end,
                         uint64_t since, ps_row_view **views, uint64_t *n);

/* The row or candidate of an id, as it is now; false: there is none. The row stays the
 * table's, as above. */
bool ps_row_table_view(const ps_row_table *table, uint64_t id, ps_row_view *out);

/* Adds a row or candidate that ps_row_table_list gave, or replaces the one with its id;
 * its row may lie anywhere. NOMEM. */
ps_err ps_row_table_put(ps_row_table *table, const ps_row_view *view);

/* Removes the id's row or candidate, if there is one; all of them. NOMEM. */
ps_err ps_row_table_remove(ps_row_table *table, uint64_t id);
ps_err ps_row_table_clear(ps_row_table *table);

/* From now on incremental files (row_file.h) can be written since this version or later
 * ones: forgets which rows were dropped before it, and notes those that are dropped from
 * now on. To be called when a full file is written or read. UINT64_MAX: there will be no
 * incremental files, and nothing is noted, as before the first call. */
void ps_row_table_forget(ps_row_table *table, uint64_t version);

const ps_row_stats *ps_row_table_stats(ps_row_table *table);

#endif
