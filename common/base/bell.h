/* A bell: one thread sleeps until another rings it, perhaps one of another process that
 * shares its memory (a futex). The sleeper says what it waits for, so that it is rung
 * seldom. The memory may be written by others: a wrong value costs a wake-up, or a sleep
 * to its end. */
#ifndef PS_BELL_H
#define PS_BELL_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct ps_bell { // all zero: nobody waits
    _Atomic uint32_t sequence;
    _Atomic uint32_t wanted; // what the sleeper waits for; the users define it
} ps_bell;

/* The sleeper: sets `wanted`, then reads the sequence, looks whether what it waits for is
 * here, and if not, sleeps: until the bell has been rung since that sequence, for ms, or
 * until a signal. Afterwards it looks again. */
static inline uint32_t ps_bell_sequence(const ps_bell *bell)
{
    return atomic_load(&bell->sequence);
}
void ps_bell_sleep(ps_bell *bell, uint32_t sequence, int ms);

/* Any thread, after what is waited for is there to be seen. */
void ps_bell_ring(ps_bell *bell);

#endif
