/* A lookup in an embedding table, and what a worker keeps of it for its gradients. */
#ifndef PS_ROW_LOOKUP_H
#define PS_ROW_LOOKUP_H

#include "row_pool.h"
#include "row_set.h"
#include "row_spec.h"
#include "rows_body.h"

typedef struct ps_row_lookup {
    int table;
    bool bags;          // else out has a row for each id
    ps_row_mode mode;   // of bags
    const int64_t *ids; // (n_ids), from 0; borrowed during the call
    uint64_t n_ids;
    uint64_t n_rows;        // ids are below it; 0: any
    const int64_t *offsets; // (n_bags) as ps_row_bags
    uint64_t n_bags;
    const float *weights; // (n_ids) with PS_ROW_SUM; NULL: 1
    bool has_padding;     // lookups of this id count in no bag, and have no gradient
    int64_t padding;
    float *out; // (n_bags or n_ids, dim)
} ps_row_lookup;

/* ARG names the table, of n, and what is wrong. ahead: of the ids alone. */
ps_err ps_row_lookup_check(const ps_row_lookup *l, const ps_row_spec *specs, int n,
                           bool ahead);

/* What was looked up in one table. Its memory grows, and stays for the next step. */
typedef struct ps_row_part {
    int table;
    ps_row_batch batch;
    ps_row_bags bags; // offsets and weights are these copies
    int64_t *offsets;
    float *weights;
    float *rows, *grads;         // (batch.n_rows, dim); grads: what there is of them
    ps_rows_offsets at;          // of the first row, where the ticket is in the arena
    float *own_rows, *own_grads; // elsewhere
    uint64_t offsets_room, weights_room, rows_room, grads_room; // elements
    bool has;                                                   // a gradient
    uint64_t *asked; // (batch.n_lookups) what was asked for ahead
    uint64_t asked_room;
    bool has_padding;
    int64_t padding;
} ps_row_part;

void ps_row_part_free(ps_row_part *p);
/* The ids of a lookup, by shard. NOMEM. */
ps_err ps_row_part_split(ps_row_part *p, const ps_row_lookup *l, const ps_row_spec *specs,
                         uint32_t n_shards);
/* Then its bags. ARG, NOMEM. */
ps_err ps_row_part_set_bags(ps_row_part *p, const ps_row_lookup *l,
                            const ps_row_spec *specs);
/* Of its rows. */
uint64_t ps_row_part_bytes(const ps_row_part *p);
/* The rows that the shard has of it. */
uint64_t ps_row_part_at_shard(const ps_row_part *p, uint32_t shard);
/* Whether it can get the gradient. Of a batch without samples, arrays may be NULL. */
bool ps_row_part_takes(const ps_row_part *p, const float *grad);

#endif
