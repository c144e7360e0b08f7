#include "world_messages.h"

#include <stdlib.h>
#include <string.h>

world_frame *world_frame_of(const zmq_msg_t *msg)
{
    return (world_frame *)(uintptr_t)msg;
}

world_body *world_body_new(const void *from, size_t bytes)
{
    world_body *b = malloc(sizeof *b + bytes + 1);
    if (!b) world_wrong("no memory for a message");
    *b = (world_body){.uses = 1, .bytes = bytes, .data = b->own};
    if (from && bytes > 0) memcpy(b->own, from, bytes);
    return b;
}

void world_body_release(world_body *b)
{
    if (b && --b->uses == 0) free(b);
}

int zmq_msg_init(zmq_msg_t *msg)
{
    *world_frame_of(msg) = (world_frame){.fd = -1};
    return 0;
}

int zmq_msg_init_size(zmq_msg_t *msg, size_t bytes)
{
    *world_frame_of(msg) = (world_frame){.body = world_body_new(NULL, bytes), .fd = -1};
    return 0;
}

int zmq_msg_init_data(zmq_msg_t *msg, void *data, size_t bytes, zmq_free_fn *done,
                      void *hint)
{
    (void)done;
    (void)hint;
    zmq_msg_init_size(msg, 0);
    world_body *b = world_frame_of(msg)->body;
    b->bytes = bytes;
    b->data = data;
    b->borrowed = data;
    return 0;
}

int zmq_msg_close(zmq_msg_t *msg)
{
    world_body_release(world_frame_of(msg)->body);
    return zmq_msg_init(msg);
}

int zmq_msg_move(zmq_msg_t *to, zmq_msg_t *from)
{
    zmq_msg_close(to);
    *world_frame_of(to) = *world_frame_of(from);
    return zmq_msg_init(from);
}

int zmq_msg_copy(zmq_msg_t *to, zmq_msg_t *from)
{
    zmq_msg_close(to);
    *world_frame_of(to) = *world_frame_of(from);
    if (world_frame_of(to)->body) world_frame_of(to)->body->uses++;
    return 0;
}

void *zmq_msg_data(zmq_msg_t *msg)
{
    return world_frame_of(msg)->body ? world_frame_of(msg)->body->data
                                     : world_frame_of(msg);
}

size_t zmq_msg_size(const zmq_msg_t *msg)
{
    return world_frame_of(msg)->body ? world_frame_of(msg)->body->bytes : 0;
}

int zmq_msg_more(const zmq_msg_t *msg)
{
    return world_frame_of(msg)->more;
}

int zmq_msg_get(const zmq_msg_t *msg, int property)
{
    return property == ZMQ_SRCFD ? world_frame_of(msg)->fd : world_frame_of(msg)->more;
}

void world_queue_init(world_queue *q)
{
    q->first = NULL;
    q->last = &q->first;
}

void world_queue_put(world_queue *q, world_message *m)
{
    m->next = NULL;
    *q->last = m;
    q->last = &m->next;
}

world_message *world_queue_take(world_queue *q)
{
    world_message *m = q->first;
    if (m && !(q->first = m->next)) q->last = &q->first;
    return m;
}

void world_message_drop(world_message *m)
{
    for (int i = 0; i < m->n; i++)
        world_body_release(m->frames[i].body);
    free(m);
}

world_message *world_message_new(void)
{
    world_message *m = calloc(1, sizeof *m);
    if (!m) world_wrong("no memory for a message");
    return m;
}

void world_message_add(world_message *m, world_body *b)
{
    if (m->n == WORLD_FRAMES)
        world_wrong("a message of more than %d frames", WORLD_FRAMES);
    m->frames[m->n++] = (world_frame){.body = b, .fd = -1};
}
