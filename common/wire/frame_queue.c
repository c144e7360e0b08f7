#include "frame_queue.h"

#include <stdlib.h>

void ps_frame_queue_fini(ps_frame_queue *q)
{
    for (uint32_t i = 0; i < q->n; i++)
        zmq_msg_close(&q->frames[(q->first + i) % q->room]);
    free(q->frames);
    *q = (ps_frame_queue){0};
}

/* to is not a message yet; from is none afterwards. */
static void frame_move(zmq_msg_t *to, zmq_msg_t *from)
{
    zmq_msg_init(to);
    zmq_msg_move(to, from);
    zmq_msg_close(from);
}

static ps_err frame_queue_grow(ps_frame_queue *q)
{
    const uint32_t room = 2 * q->room + 8;
    zmq_msg_t *larger = room > q->room ? malloc(room * sizeof *larger) : NULL;
    if (!larger) return ps_err_set(PS_ERR_NOMEM, "no memory for %u frames", room);
    for (uint32_t i = 0; i < q->n; i++)
        frame_move(&larger[i], &q->frames[(q->first + i) % q->room]);
    free(q->frames);
    *q = (ps_frame_queue){.frames = larger, .n = q->n, .room = room};
    return PS_OK;
}

ps_err ps_frame_queue_put(ps_frame_queue *q, zmq_msg_t *frame)
{
    if (q->n == q->room) PS_TRY(frame_queue_grow(q));
    zmq_msg_t *to = &q->frames[(q->first + q->n++) % q->room];
    zmq_msg_init(to);
    zmq_msg_move(to, frame);
    return PS_OK;
}

bool ps_frame_queue_take(ps_frame_queue *q, zmq_msg_t *out)
{
    if (q->n == 0) return false;
    frame_move(out, &q->frames[q->first]);
    q->first = (q->first + 1) % q->room;
    q->n--;
    return true;
}
