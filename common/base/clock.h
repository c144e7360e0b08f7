/* Monotonic time and deadlines. Every wait of the project takes a ps_deadline. */
#ifndef PS_CLOCK_H
#define PS_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC. Use it for measurements. */
uint64_t ps_clock_ns(void);
/* Seconds since then, by ps_clock_ns. */
double ps_clock_seconds_since(uint64_t begin_ns);

/* The same, less the time in which this whole process was stopped (Ctrl-Z, SIGSTOP). Use
 * it for deadlines: a process that was stopped cannot tell whether its peers were silent.
 * Without ps_clock_watch (clock_watch.h) stops are not noticed. */
uint64_t ps_clock_awake_ns(void);

/* Tells the clock that from now on some thread calls ps_clock_awake_ns at least every
 * PS_CLOCK_LOOK_MS. Half a second without a call then means that the process was stopped.
 */
enum { PS_CLOCK_LOOK_MS = 100 };
void ps_clock_set_watched(void);

typedef struct ps_deadline {
    uint64_t at_ns; // by ps_clock_awake_ns; UINT64_MAX: never
} ps_deadline;

ps_deadline ps_deadline_in_ms(uint64_t ms);
bool ps_deadline_passed(ps_deadline d);
/* Milliseconds left, rounded up, 0 when passed; fit for poll() (at most INT32_MAX). */
int ps_deadline_left_ms(ps_deadline d);
/* Milliseconds left, at most cap_ms. */
int ps_deadline_left_ms_max(ps_deadline d, int cap_ms);

#endif
