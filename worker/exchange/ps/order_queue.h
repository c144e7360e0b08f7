/* Orders from one thread to another that sleeps in poll: a lock-free ring with one writer
 * and one reader. */
#ifndef PS_ORDER_QUEUE_H
#define PS_ORDER_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "err.h"

typedef struct ps_order {
    uint8_t kind; // the users define it and the other fields
    uint32_t chunk;
    uint64_t step;
} ps_order;

typedef struct ps_order_queue {
    ps_order *ring; // owned
    uint32_t mask;
    _Atomic uint32_t head, tail; // the reader's, the writer's
    atomic_bool asleep;          // the reader is in poll: an order has to wake it
    int wake_fd;                 // owned; for the reader's poll
} ps_order_queue;

/* Room for n orders at least. NOMEM, IO; q is safe for fini in every case. */
ps_err ps_order_queue_init(ps_order_queue *q, uint32_t n);
void ps_order_queue_fini(ps_order_queue *q);

/* The writer: any number of orders, then one call of wake. INTERNAL when it is full. */
ps_err ps_order_queue_put(ps_order_queue *q, ps_order order);
ps_err ps_order_queue_wake(ps_order_queue *q);

/* The reader. count: how many orders there are. peek: order i, of which 0 is the oldest;
 * valid until it is dropped. */
uint32_t ps_order_queue_count(const ps_order_queue *q);
static inline const ps_order *ps_order_queue_peek(const ps_order_queue *q, uint32_t i)
{
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    return &q->ring[(head + i) & q->mask];
}
void ps_order_queue_drop(ps_order_queue *q, uint32_t n);

/* Before the reader polls: whether it may sleep, because there is no order. No order is
 * missed: `asleep` is set before this last look at the queue, and read after an order is
 * in it. */
bool ps_order_queue_sleep(ps_order_queue *q);
/* After it has polled; woken: wake_fd was readable. */
ps_err ps_order_queue_awake(ps_order_queue *q, bool woken);

#endif
