/* One worker's part in a job, from the configuration to the summary. */
#ifndef PS_WORKER_JOB_H
#define PS_WORKER_JOB_H

#include "cli.h"
#include "config.h"
#include "model_spec.h"

/* Runs the whole job: data, joining, training, results, leaving. *interrupted: it ended
 * early, but in order and with the weights saved. *resumable: there is also a checkpoint
 * of its last step; or it was told to end while it joined again, and there is one of
 * where it would have gone on. After a failure the other members have been told. */
ps_err ps_worker_job_run(const ps_cli *cli, const ps_config *config, bool *interrupted,
                         bool *resumable);

/* train.threads, else OMP_NUM_THREADS (which launchers set where workers share a host),
 * else all cores; the last two are no more than the layers of a model that is trained
 * have work for. spec NULL: nothing is trained. */
int ps_worker_threads(const ps_cli *cli, const ps_config *config,
                      const ps_model_spec *spec);

#endif
