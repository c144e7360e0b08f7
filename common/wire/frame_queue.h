/* Frames that wait, in their order. Memory is that of the most that have waited at once,
 * however many come and go: a queue may live for a year without ever being empty. */
#ifndef PS_FRAME_QUEUE_H
#define PS_FRAME_QUEUE_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "err.h"

typedef struct ps_frame_queue { // all zero: empty
    zmq_msg_t *frames;          // (room) owned: a ring
    uint32_t first, n, room;
} ps_frame_queue;

void ps_frame_queue_fini(ps_frame_queue *q);

/* Takes the frame, which is empty then. NOMEM: nothing has changed. */
ps_err ps_frame_queue_put(ps_frame_queue *q, zmq_msg_t *frame);
/* *out becomes the oldest frame, which the caller closes; false: there is none. */
bool ps_frame_queue_take(ps_frame_queue *q, zmq_msg_t *out);

#endif
