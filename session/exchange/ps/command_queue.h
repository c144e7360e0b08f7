/* Commands from one thread to another that sleeps in poll: a lock-free ring with one
 * writer and one reader. */
#ifndef PS_COMMAND_QUEUE_H
#define PS_COMMAND_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "event.h"

typedef struct ps_command {
    uint8_t kind; // the users define it and the other fields
    uint32_t chunk;
    uint64_t step;
    uint32_t step_of;
} ps_command;

typedef struct ps_command_queue {
    ps_command *ring; // owned
    uint32_t mask;
    _Atomic uint32_t head, tail; // the reader's, the writer's
    atomic_bool asleep;          // the reader is in poll: a command has to wake it
    ps_event wake;               // for the reader's poll
} ps_command_queue;

/* Room for n commands at least. NOMEM, IO; q is safe for fini in every case. */
ps_err ps_command_queue_init(ps_command_queue *q, uint32_t n);
void ps_command_queue_fini(ps_command_queue *q);

/* The writer: any number of commands, then one call of wake. INTERNAL when it is full. */
ps_err ps_command_queue_put(ps_command_queue *q, ps_command command);
void ps_command_queue_wake(ps_command_queue *q);

/* The reader. count: how many commands there are. peek: command i, of which 0 is the
 * oldest; valid until it is dropped. */
uint32_t ps_command_queue_count(const ps_command_queue *q);
static inline const ps_command *ps_command_queue_peek(const ps_command_queue *q,
                                                      uint32_t i)
{
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    return &q->ring[(head + i) & q->mask];
}
void ps_command_queue_drop(ps_command_queue *q, uint32_t n);

/* Before the reader polls: whether it may sleep, because there is no command. No command
 * is missed: `asleep` is set before this last look at the queue, and read after a command
 * is in it. */
bool ps_command_queue_sleep(ps_command_queue *q);
/* After it has polled; woken: `wake` was readable. */
void ps_command_queue_awake(ps_command_queue *q, bool woken);

#endif
