/* Where all workers of a host have GPUs that can read each other's memory, gradients are
 * added there (device_sums.h), and only sums come to host memory; new weights go to the
 * GPU of the worker that adds the chunk up, and from there to the others. */
#ifndef PS_LEVELS_GPUS_H
#define PS_LEVELS_GPUS_H

#include "two_levels.h"

/* Finds out whether that is so, and sets l->sums then; else destroys what the options
 * have. l NULL: the worker is alone on its host. All workers of the job call it at the
 * same time. The log of a worker that could not says why. */
ps_err ps_levels_meet_gpus(const ps_exchange_options *o, ps_levels *l);

#endif
