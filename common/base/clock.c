#include "clock.h"

#include <pthread.h>
#include <time.h>

enum { STOOD_STILL_MS = 500 };

static struct {
    pthread_mutex_t lock;
    bool watched;
    uint64_t looked_ns, stood_ns; // time of the last look; time that is left out
} awake = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t ps_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double ps_clock_seconds_since(uint64_t begin_ns)
{
    return (double)(ps_clock_ns() - begin_ns) * 1e-9;
}

/* The first thread that looks after a stop notices the stop before it gets the time. */
uint64_t ps_clock_awake_ns(void)
{
    pthread_mutex_lock(&awake.lock);
    const uint64_t now = ps_clock_ns(), gap = now - awake.looked_ns;
    if (awake.watched && gap > STOOD_STILL_MS * UINT64_C(1000000)) awake.stood_ns += gap;
    awake.looked_ns = now;
    const uint64_t result = now - awake.stood_ns;
    pthread_mutex_unlock(&awake.lock);
    return result;
}

void ps_clock_set_watched(void)
{
    pthread_mutex_lock(&awake.lock);
    awake.looked_ns = ps_clock_ns();
    awake.watched = true;
    pthread_mutex_unlock(&awake.lock);
}

ps_deadline ps_deadline_in_ms(uint64_t ms)
{
    uint64_t now = ps_clock_awake_ns();
    if (ms > (UINT64_MAX - now) / 1000000u) return (ps_deadline){UINT64_MAX};
    return (ps_deadline){now + ms * 1000000u};
}

bool ps_deadline_passed(ps_deadline d)
{
    return ps_clock_awake_ns() >= d.at_ns;
}

int ps_deadline_left_ms(ps_deadline d)
{
    return ps_deadline_left_ms_max(d, INT32_MAX);
}

int ps_deadline_left_ms_max(ps_deadline d, int cap_ms)
{
    uint64_t now = ps_clock_awake_ns();
    if (now >= d.at_ns) return 0;
    uint64_t ms = (d.at_ns - now - 1) / 1000000u + 1;
    return ms < (uint64_t)cap_ms ? (int)ms : cap_ms;
}
