/* A ring of messages in memory that two processes share: one writes, the other reads.
 *
 *   tail   u32  bytes ever put, modulo 2^32: the writer's
 *   head   u32  bytes ever taken: the reader's
 *   asleep u32  the reader has to be woken
 *   bytes       as many as the capacity, a power of two; a message is its length (u32)
 *               and its bytes, padded to a multiple of 8
 *
 * Neither end trusts the other. Each keeps its own position to itself and only shows it.
 * The other's position, and every length, is read once and checked against the bounds; a
 * message is copied out before it is looked at. So an end that writes nonsense harms only
 * what it sends.
 */
#ifndef PS_SHM_RING_H
#define PS_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "err.h"

typedef struct ps_shm_ring_memory {
    _Alignas(64) _Atomic uint32_t tail;
    _Alignas(64) _Atomic uint32_t head;
    _Atomic uint32_t asleep;
    _Alignas(64) uint8_t bytes[];
} ps_shm_ring_memory;

/* One end. */
typedef struct ps_shm_ring {
    ps_shm_ring_memory *memory; // borrowed; NULL: no ring
    uint32_t mask;              // the capacity - 1
    uint32_t at;                // this end's position
} ps_shm_ring;

/* The least capacity that has room for n messages of that many bytes each. */
uint32_t ps_shm_ring_capacity(uint64_t n, uint64_t bytes);
/* What a ring of a capacity takes; a multiple of 64. */
uint64_t ps_shm_ring_bytes(uint32_t capacity);
/* An end of a ring in zeroed memory, aligned to 64 bytes. */
ps_shm_ring ps_shm_ring_at(void *memory, uint32_t capacity);

/* The writer. Puts one message of two parts. PROTOCOL when the reader has not taken
 * enough to leave room, or shows a position that is not possible. Never blocks. */
ps_err ps_shm_ring_put(ps_shm_ring *ring, const void *first, uint32_t n_first,
                       const void *second, uint32_t n_second);
/* After one or more puts: whether the reader sleeps and nobody wakes it yet. */
bool ps_shm_ring_must_wake(const ps_shm_ring *ring);

/* The reader. Finds the oldest message: *bytes is its length, 0: there is none. PROTOCOL
 * when position or length are not possible. */
ps_err ps_shm_ring_next(const ps_shm_ring *ring, uint32_t *bytes);
/* Copies a part of the message that was found; from + n is at most its length. */
void ps_shm_ring_copy(const ps_shm_ring *ring, uint32_t from, void *out, uint32_t n);
/* Takes the message that was found, of that length. */
void ps_shm_ring_drop(ps_shm_ring *ring, uint32_t bytes);

bool ps_shm_ring_is_empty(const ps_shm_ring *ring);
/* Before the reader sleeps: asks to be woken; false when there is a message already. */
bool ps_shm_ring_sleep(const ps_shm_ring *ring);
void ps_shm_ring_awake(const ps_shm_ring *ring);

#endif
