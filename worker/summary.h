/* summary.json: what a run was, and what came of it. */
#ifndef PS_SUMMARY_H
#define PS_SUMMARY_H

#include "trainer.h"

typedef struct ps_summary {
    const ps_config *config;         // borrowed, as all pointers to const
    const ps_trainer_result *result; // this rank's
    const char *mode;                // ps | allreduce | single
    const char *device, *exchange;
    int servers, shards, workers;
    int threads;     // of arithmetic per worker
    uint64_t params; // elements of the model
    int64_t rejoins; // of this process, after failures
    int64_t batch;   // samples of all ranks and micro-batches in an optimizer step
    /* What the other processes tell: */
    uint64_t peak_rss_bytes; // the largest worker's
    uint64_t device_bytes;   // of its GPU, in use at the end, likewise; 0: not known
    uint64_t most_bytes_in_flight; // to any one shard, likewise
    char **server_stats;           // (servers) JSON objects; NULL: nothing. Owned
} ps_summary;

/* All ranks, before the exchange stops: fills in the largest worker's figures. device:
 * this one's. */
ps_err ps_summary_gather_workers(ps_summary *summary, const ps_session *session,
                                 ps_device *device);
/* Rank 0, after that: fills in server_stats. A server without figures gives a warning. */
ps_err ps_summary_gather_servers(ps_summary *summary, const ps_session *session);

/* Rank 0: summary.json. A number that is not finite becomes null. */
ps_err ps_summary_write(const ps_summary *summary, const ps_run_dir *dir);

void ps_summary_fini(ps_summary *summary); // safe for a zeroed one

#endif
