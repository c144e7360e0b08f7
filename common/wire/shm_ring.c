#include "shm_ring.h"

#include <string.h>

enum { LENGTH = sizeof(uint32_t), PAD = 8, LEAST = 4096 };

/* Of a message of n bytes. */
static uint64_t taken_by(uint64_t n)
{
    return (LENGTH + n + PAD - 1) / PAD * PAD;
}

uint32_t ps_shm_ring_capacity(uint64_t n, uint64_t bytes)
{
    const uint64_t wanted = n * taken_by(bytes);
    uint32_t capacity = LEAST;
    while (capacity < wanted && capacity <= UINT32_MAX / 4)
        capacity *= 2;
    return capacity;
}

uint64_t ps_shm_ring_bytes(uint32_t capacity)
{
    return sizeof(ps_shm_ring_memory) + (uint64_t)capacity;
}

ps_shm_ring ps_shm_ring_at(void *memory, uint32_t capacity)
{
    return (ps_shm_ring){.memory = memory, .mask = capacity - 1};
}

static void copy_in(const ps_shm_ring *r, uint32_t at, const void *from, uint32_t n)
{
    const uint32_t start = at & r->mask, room = r->mask + 1 - start;
    const uint32_t head = n < room ? n : room;
    if (n == 0) return;
    memcpy(r->memory->bytes + start, from, head);
    memcpy(r->memory->bytes, (const uint8_t *)from + head, n - head);
}

static void ring_copy_out(const ps_shm_ring *r, uint32_t at, void *to, uint32_t n)
{
    const uint32_t start = at & r->mask, room = r->mask + 1 - start;
    const uint32_t head = n < room ? n : room;
    if (n == 0) return;
    memcpy(to, r->memory->bytes + start, head);
    memcpy((uint8_t *)to + head, r->memory->bytes, n - head);
}

ps_err ps_shm_ring_put(ps_shm_ring *r, const void *first, uint32_t n_first,
                       const void *second, uint32_t n_second)
{
    const uint64_t bytes = (uint64_t)n_first + n_second;
    const uint32_t used =
        r->at - atomic_load_explicit(&r->memory->head, memory_order_acquire);
    if (used > r->mask + 1 || used % PAD != 0)
        return ps_err_set(PS_ERR_PROTOCOL, "a ring whose reader is at no place of it");
    if (taken_by(bytes) > r->mask + 1 - used)
        return ps_err_set(PS_ERR_PROTOCOL, "more messages than a ring has room for");
    const uint32_t length = (uint32_t)bytes;
    copy_in(r, r->at, &length, LENGTH);
    copy_in(r, r->at + LENGTH, first, n_first);
    copy_in(r, r->at + LENGTH + n_first, second, n_second);
    r->at += (uint32_t)taken_by(bytes);
    atomic_store(&r->memory->tail, r->at); // before `asleep` is read
    return PS_OK;
}

bool ps_shm_ring_must_wake(const ps_shm_ring *r)
{
    return atomic_load(&r->memory->asleep) && atomic_exchange(&r->memory->asleep, 0);
}

ps_err ps_shm_ring_next(const ps_shm_ring *r, uint32_t *bytes)
{
    *bytes = 0;
    const uint32_t there = atomic_load(&r->memory->tail) - r->at;
    if (there == 0) return PS_OK;
    uint32_t length;
    ring_copy_out(r, r->at, &length, LENGTH);
    if (there > r->mask + 1 || length == 0 || taken_by(length) > there)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a ring with %u bytes of messages, the first "
                          "of %u",
                          there, length);
    *bytes = length;
    return PS_OK;
}

void ps_shm_ring_copy(const ps_shm_ring *r, uint32_t from, void *out, uint32_t n)
{
    ring_copy_out(r, r->at + LENGTH + from, out, n);
}

void ps_shm_ring_drop(ps_shm_ring *r, uint32_t bytes)
{
    r->at += (uint32_t)taken_by(bytes);
    atomic_store_explicit(&r->memory->head, r->at, memory_order_release);
}

bool ps_shm_ring_is_empty(const ps_shm_ring *r)
{
    return atomic_load(&r->memory->tail) == r->at;
}

bool ps_shm_ring_sleep(const ps_shm_ring *r)
{
    atomic_store(&r->memory->asleep, 1); // before `tail` is read
    return ps_shm_ring_is_empty(r);
}

void ps_shm_ring_awake(const ps_shm_ring *r)
{
    atomic_store_explicit(&r->memory->asleep, 0, memory_order_relaxed);
}
