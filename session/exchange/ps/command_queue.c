#include "command_queue.h"

#include <stdlib.h>

#include "mem.h"

ps_err ps_command_queue_init(ps_command_queue *q, uint32_t n)
{
    uint32_t capacity = 16;
    while (capacity < n)
        capacity *= 2;
    *q = (ps_command_queue){.mask = capacity - 1};
    PS_TRY(ps_mem_zalloc(&q->ring, capacity, sizeof *q->ring, "commands"));
    return ps_event_init(&q->wake);
}

void ps_command_queue_fini(ps_command_queue *q)
{
    ps_event_fini(&q->wake);
    free(q->ring);
    q->ring = NULL;
}

ps_err ps_command_queue_put(ps_command_queue *q, ps_command command)
{
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&q->head, memory_order_acquire) > q->mask)
        return ps_err_set(PS_ERR_INTERNAL, "the queue of commands is full");
    q->ring[tail & q->mask] = command;
    atomic_store(&q->tail, tail + 1);
    return PS_OK;
}

void ps_command_queue_wake(ps_command_queue *q)
{
    if (atomic_load(&q->asleep)) ps_event_set(&q->wake);
}

uint32_t ps_command_queue_count(const ps_command_queue *q)
{
    return atomic_load(&q->tail) - atomic_load_explicit(&q->head, memory_order_relaxed);
}

void ps_command_queue_drop(ps_command_queue *q, uint32_t n)
{
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    atomic_store_explicit(&q->head, head + n, memory_order_release);
}

bool ps_command_queue_sleep(ps_command_queue *q)
{
    atomic_store(&q->asleep, true);
    return ps_command_queue_count(q) == 0;
}

void ps_command_queue_awake(ps_command_queue *q, bool woken)
{
    atomic_store(&q->asleep, false);
    if (woken) ps_event_clear(&q->wake);
}
