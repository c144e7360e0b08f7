/* A shard: one thread, one ROUTER socket, and the chunks that the plan gives it. Shards
 * share nothing. */
#ifndef PS_SHARD_H
#define PS_SHARD_H

#include "event.h"
#include "gate.h"
#include "member.h"
#include "plan.h"
#include "row_figures.h"
#include "rows_keeper.h"
#include "shm_door.h"
#include "step_rule.h"

typedef struct ps_shard ps_shard;

typedef struct ps_shard_options { // all borrowed for the shard's life
    const ps_config *config;
    const ps_tensor_table *table;
    const ps_plan *plan;      // without chunks: filled, like the others, before start
    const ps_step_rule *rule; // copied when the shard starts
    void *zmq_context;
    const ps_curve *curve;
    ps_gate *gate;          // of the context
    const char *address;    // to bind on: "10.0.0.7"; borrowed during the call
    int n_workers;          // the most
    ps_rows_keeper *keeper; // of embedding tables; NULL: none
    bool rows;              // the job has embedding tables
} ps_shard_options;

/* Binds a free port: endpoints are known before the server joins. *out is owned by the
 * caller. NET, NOMEM, ARG. */
ps_err ps_shard_create(const ps_shard_options *options, ps_shard **out);
/* "tcp://10.0.0.7:40123"; borrowed. */
const char *ps_shard_endpoint(const ps_shard *shard);
/* An eventfd with which workers of this host wake the shard; it stays until destroy. */
int ps_shard_wake_fd(const ps_shard *shard);

typedef struct ps_shard_job { // borrowed until stop
    uint32_t index;           // of the shard in the plan
    ps_member *member;
    int n_workers; // no more than the shard was made for
    uint64_t total_steps, first_step;
    uint32_t ahead; // fragments that have made first_step already
    bool mean;      // a worker's gradient counts 1 / n_workers
    int n_groups;   // of parameters with numbers of their own; 0: none
    /* (n_groups) what they begin with, borrowed during the call; NULL: the rule's. */
    const struct ps_group_numbers *numbers;
    const ps_row_spec *rows; // (n_rows) embedding tables, borrowed during the call
    int n_rows;
    const ps_shm_door *door; // NULL: no shared memory
    const ps_event *changed; // set when the shard's state changes; may be NULL
} ps_shard_job;

/* Allocates everything that a step needs and starts the thread. */
ps_err ps_shard_start(ps_shard *shard, const ps_shard_job *job);

typedef enum ps_shard_state {
    PS_SHARD_RUNNING,
    PS_SHARD_DONE,   // every worker has said goodbye
    PS_SHARD_PAUSED, // the same, until they come back with another table
    PS_SHARD_FAILED  // the job was aborted (by this shard or another member)
} ps_shard_state;

ps_shard_state ps_shard_get_state(const ps_shard *shard); // from any thread

typedef struct ps_shard_stats {
    uint64_t bytes_received, bytes_sent; // payload and headers
    uint64_t pushes, repeated;           // that counted; repetitions, which did not
    uint64_t strangers;                  // messages from outside the job
    uint64_t steps;                      // of chunk 0 of the shard
    /* Time for sums that are a pass of their own; for the optimizer, with the sum where
     * both are one pass. */
    uint64_t sum_ns, apply_ns;
    uint64_t rows, rows_bytes, rows_stepped, rows_dropped; // of embedding tables
} ps_shard_stats;

/* From any thread. */
void ps_shard_get_stats(const ps_shard *shard, ps_shard_stats *out);

/* Adds what it has of each embedding table. From any thread. NOMEM. */
ps_err ps_shard_add_tables(ps_shard *shard, ps_row_figure_list *tables);

/* Of a paused one: gives up the table, until the next start. */
void ps_shard_clear(ps_shard *shard);

/* Ends the thread, waits for it, and closes the sockets. Safe when it never started. */
void ps_shard_stop(ps_shard *shard);
/* Call it after the ZeroMQ context has ended: until then ZeroMQ may be sending the
 * shard's weights. */
void ps_shard_destroy(ps_shard **shard);

#endif
