#include "clock.h"

#include <time.h>

uint64_t ps_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

ps_deadline ps_deadline_in_ms(uint64_t ms)
{
    uint64_t now = ps_clock_ns();
    if (ms > (UINT64_MAX - now) / 1000000u) return (ps_deadline){UINT64_MAX};
    return (ps_deadline){now + ms * 1000000u};
}

bool ps_deadline_passed(ps_deadline d)
{
    return ps_clock_ns() >= d.at_ns;
}

int ps_deadline_left_ms(ps_deadline d)
{
    return ps_deadline_left_ms_max(d, INT32_MAX);
}

int ps_deadline_left_ms_max(ps_deadline d, int cap_ms)
{
    uint64_t now = ps_clock_ns();
    if (now >= d.at_ns) return 0;
    uint64_t ms = (d.at_ns - now - 1) / 1000000u + 1;
    return ms < (uint64_t)cap_ms ? (int)ms : cap_ms;
}
