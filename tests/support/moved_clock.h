/* Moves the clock by which a coordinator waits: for one file of a program that is linked
 * with --wrap=ps_clock_awake_ns. */
#ifndef PS_TEST_MOVED_CLOCK_H
#define PS_TEST_MOVED_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

static atomic_uint_least64_t clock_ahead_ns;

uint64_t __real_ps_clock_awake_ns(void);
uint64_t __wrap_ps_clock_awake_ns(void);
uint64_t __wrap_ps_clock_awake_ns(void)
{
    return __real_ps_clock_awake_ns() + atomic_load(&clock_ahead_ns);
}

static void test_move_clock(uint64_t ms)
{
    atomic_fetch_add(&clock_ahead_ns, ms * 1000000);
}

#endif
