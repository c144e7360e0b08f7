/* One worker's part in a job, from the configuration to the summary. */
#ifndef PS_WORKER_JOB_H
#define PS_WORKER_JOB_H

#include "cli.h"
#include "config.h"

/* Runs it all: data, joining, training, results, leaving. *interrupted: it ended early,
 * in order and with the weights kept; *resumable: and there is a checkpoint of its last
 * step. A failure has been told to the other members. */
ps_err ps_worker_job_run(const ps_cli *cli, const ps_config *config, bool *interrupted,
                         bool *resumable);

#endif
