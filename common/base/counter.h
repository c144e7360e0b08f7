/* Statistics that one thread counts and any thread may read. A read never sees half of an
 * update. Two counters that are read together may be of different moments. */
#ifndef PS_COUNTER_H
#define PS_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

#include "clock.h"

typedef _Atomic uint64_t ps_counter;

static inline void ps_counter_add(ps_counter *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* Nanoseconds since begin_ns (ps_clock_ns). */
static inline void ps_counter_add_since(ps_counter *counter, uint64_t begin_ns)
{
    ps_counter_add(counter, ps_clock_ns() - begin_ns);
}

static inline void ps_counter_set(ps_counter *counter, uint64_t value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

static inline uint64_t ps_counter_get(const ps_counter *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
