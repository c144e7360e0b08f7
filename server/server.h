/* A server process without its command line: the shards of one rank, from binding to the
 * end of the job. */
#ifndef PS_SERVER_H
#define PS_SERVER_H

#include "member.h"
#include "metric_table.h"
#include "shard.h"

typedef struct ps_server ps_server;

typedef struct ps_server_options {
    const ps_config *config; // borrowed for the server's life
    /* Likewise; the same in every member. NULL: the job's workers bring the tensors, and
     * their optimizer, exchange and schedule instead of the configuration's (open_job.h).
     */
    const ps_tensor_table *table;
    const ps_row_spec *rows; // (n_rows) embedding tables beside it; likewise
    int n_rows;
    const char *address;      // to bind the shards on; borrowed during the call
    const char *init_method;  // as the member's; NULL: none is known yet
    int n_servers, n_workers; // n_workers: the most
    bool hosts_coordinator;   // in this process
    ps_rows_keeper *keeper;   // borrowed for the server's life; NULL: none
} ps_server_options;

/* Makes the plan and the step rule, and binds the shards. *out is owned by the caller. */
ps_err ps_server_create(const ps_server_options *options, ps_server **out);

/* What the server joins with: options.config, or, without a table, what is alike in all
 * such jobs. Borrowed. */
const ps_config *ps_server_join_config(const ps_server *server);
uint64_t ps_server_plan_hash(const ps_server *server);
const char *const *ps_server_endpoints(const ps_server *server, int *n); // borrowed

/* After joining: without a table, waits for the workers' tensors as long as the job
 * lives, and does nothing more if it ends before. Then waits until rank 0 has said where
 * the job begins (job_start.h), opens the door to shared memory
 * ("server/<rank>/shm": its name, "" when there is none) and starts the shards. member is
 * borrowed until stop.
 */
ps_err ps_server_start(ps_server *server, ps_member *member);

/* Waits until every worker has said goodbye to every shard, publishes
 * "server/<rank>/stats" (a JSON object) and waits for the end of the job. PS_OK: it ended
 * well; else its reason. */
ps_err ps_server_wait(ps_server *server);

/* The sums over all shards. */
void ps_server_get_stats(const ps_server *server, ps_shard_stats *out);

/* For ps_monitor_attach; server is a ps_server. */
void ps_server_sample(void *server, ps_metric_values *values);
ps_err ps_server_tables(void *server, ps_row_figure_list *tables);

/* Ends the shards, which use the member. */
void ps_server_stop(ps_server *server);
/* Gives the shards' last messages two seconds to leave. */
void ps_server_destroy(ps_server **server);

#endif
