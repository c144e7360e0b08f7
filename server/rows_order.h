/* With rows.policy asp, the order in which a shard takes lookups and gradients: the only
 * thing in such a job that chance decides. It is written to rows-SHARD.log in the folder
 * server.rows_log, and repeated from that in server.rows_replay.
 *
 * A line of the file for each step, or part of one, "12: 0 1 0! 0+ 1* 1!": worker 0 and
 * worker 1 look rows up, worker 0's gradients are applied, it looks up for step 13, as
 * worker 1 does ahead, whose gradients are applied then. "point 8 77": the tables can go
 * back to step 8. "back 8": lines from that of step 8 on do not count, nor does what was
 * looked up for it before. */
#ifndef PS_ROWS_ORDER_H
#define PS_ROWS_ORDER_H

#include "config.h"

typedef enum ps_rows_turn {
    PS_ROWS_TURN_PULL,  // it looks rows up
    PS_ROWS_TURN_NEXT,  // for the step after this line's, in that
    PS_ROWS_TURN_AHEAD, // before that: they were asked for ahead
    PS_ROWS_TURN_APPLY  // its gradients are applied
} ps_rows_turn;

typedef struct ps_rows_order_of {
    uint32_t shard, n_shards, n_workers;
} ps_rows_order_of;

typedef struct ps_rows_order ps_rows_order;

/* Reads the record of the shard if the job repeats one. *out is owned by the caller. IO,
 * FORMAT name the file; NOMEM. */
ps_err ps_rows_order_open(const ps_config *config, const ps_rows_order_of *of,
                          ps_rows_order **out);
void ps_rows_order_close(ps_rows_order **order);

/* Whether the worker has its turn; PULL is for NEXT and AHEAD, too. ARG: the record has
 * something else of this worker before, or has ended. */
ps_err ps_rows_order_may(const ps_rows_order *order, uint32_t rank, ps_rows_turn turn,
                         bool *may);
/* It has had it, in that step. A disk that is full ends the record, not the job. */
void ps_rows_order_add(ps_rows_order *order, uint64_t step, uint32_t rank,
                       ps_rows_turn turn);
/* All workers' gradients of the step are applied. */
void ps_rows_order_end_step(ps_rows_order *order, uint64_t step);
/* The tables can go back to this point (row_store.h), which was set before the step's
 * lookups. What came before is in the file. */
void ps_rows_order_keep(ps_rows_order *order, uint64_t step, uint64_t point);
/* They have gone back to it. A record that has the point goes on, another one begins anew
 * with the step. ARG: the job repeats a record, in which this has no place. */
ps_err ps_rows_order_go_back(ps_rows_order *order, uint64_t step, uint64_t point);

#endif
