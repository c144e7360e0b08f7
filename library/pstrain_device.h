/* The GPU's arenas of a session, and the thread that copies between them and the host's.
 * Only for the library's own parts. pstrain.h has the calls of programs.
 *
 *   program's stream ── pushed (an event of each parameter) ──▶ out: gradients, chunk by
 *     chunk, to the host ── told ──▶ the thread pushes them into the session
 *   servers ──▶ host's arena ──▶ in: weights, chunk by chunk, to the GPU
 *     ── arrived (an event of each chunk) ──▶ the program's stream
 *
 * Why nothing is stale or torn:
 *   - a gradient is copied after its events, so after all that the program had asked for;
 *   - a chunk's weights are written, on the host and on the GPU, only after its gradient
 *     has arrived on the host: by then all that had been asked for before its push is
 *     done, so nobody reads the weights before;
 *   - the copy of a gradient also waits for the last copy of its chunk's weights, so the
 *     servers write no memory that is still read;
 *   - a wait returns when the copies have been asked for, and the stream waits for them.
 *
 * While a step's copies are under way the thread alone calls ps_session. Other calls of
 * the session settle first: they wait until it has nothing to do. */
#ifndef PSTRAIN_DEVICE_H
#define PSTRAIN_DEVICE_H

#include <stdint.h>

#include "err.h"

struct pstrain_device;
struct pstrain_session;

/* Blocks until the thread has nothing to do; its failure. Without a device: nothing. */
ps_err pstrain_device_settle(struct pstrain_session *s);
/* A step of that optimizer begins (plan.h). ARG: the GPU lacks weights. */
ps_err pstrain_device_begin(struct pstrain_session *s, uint32_t step_of);
/* All gradients are given: else ARG names one that is not. Does not block. */
ps_err pstrain_device_finish(struct pstrain_session *s);
/* The host's weights will be written otherwise than by a step: they go to the GPU with
 * the next wait. Blocks until the copies before are made. */
ps_err pstrain_device_renew(struct pstrain_session *s);
/* Ends the thread and the copies. NULL: nothing. */
void pstrain_device_destroy(struct pstrain_device **d);

#endif
