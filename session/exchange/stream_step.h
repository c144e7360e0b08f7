/* An optimizer step of the whole arena on a device's stream (device_stream.h), for
 * exchanges that do not wait for it. The device finds out whether its gradients are
 * finite; the host asks when it matters. */
#ifndef PS_STREAM_STEP_H
#define PS_STREAM_STEP_H

#include "device_stream.h"
#include "step_rule.h"

typedef struct ps_stream_step {
    ps_step_rule *rule;
    ps_device_stream *stream; // one that has step and scaled_step
    bool unknown;             // with loss scaling: whether the last step was made
} ps_stream_step;

/* Borrows both. */
ps_stream_step ps_stream_step_of(ps_step_rule *rule, ps_device_stream *stream);

/* Whether the stream can make LAMB's steps. UNSUPPORTED. */
ps_err ps_stream_step_lamb(const ps_device_stream *stream);

/* Queues step number `step` behind every gradient announced and all that is queued; the
 * next pass waits for it on the device. With loss scaling it first waits for the outcome
 * of the step before. */
ps_err ps_stream_step_queue(ps_stream_step *s, uint64_t step);

/* With loss scaling: the last step's outcome, which the scale follows. Waits for it. */
ps_err ps_stream_step_learn(ps_stream_step *s);

/* As the stream's refused, but *t: the number of the step, from 1. With loss scaling no
 * step is refused. */
ps_err ps_stream_step_refused(ps_stream_step *s, bool wait, uint64_t *t, int *tensor);

#endif
