/* libzmq's messages in the world, and queues of them (world_zmq.c). */
#ifndef WORLD_MESSAGES_H
#define WORLD_MESSAGES_H

#include <zmq.h>

#include "world.h"

typedef struct world_body {
    int uses;
    size_t bytes;
    void *data;
    const void *borrowed; // read when it arrives
    uint8_t own[];
} world_body;

typedef struct world_frame { // a zmq_msg_t
    world_body *body;        // NULL: empty
    int fd;
    bool more;
} world_frame;
_Static_assert(sizeof(world_frame) <= sizeof(zmq_msg_t), "a frame is a zmq_msg_t");
world_frame *world_frame_of(const zmq_msg_t *msg);

/* The bytes are copied; from NULL: there are none yet. */
world_body *world_body_new(const void *from, size_t bytes);
void world_body_release(world_body *b); // its last use ends it; of NULL: nothing

typedef struct world_message {
    struct world_message *next;
    int n;
    world_frame frames[WORLD_FRAMES];
} world_message;

world_message *world_message_new(void);
void world_message_add(world_message *m, world_body *b); // takes b
void world_message_drop(world_message *m);

typedef struct world_queue {
    world_message *first, **last;
} world_queue;

void world_queue_init(world_queue *q);
void world_queue_put(world_queue *q, world_message *m);
world_message *world_queue_take(world_queue *q); // NULL: there is none

#endif
