/* Monotonic time and deadlines. Every wait of the project takes a ps_deadline. */
#ifndef PS_CLOCK_H
#define PS_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t ps_clock_ns(void);

typedef struct ps_deadline {
    uint64_t at_ns; // CLOCK_MONOTONIC; UINT64_MAX: never
} ps_deadline;

ps_deadline ps_deadline_in_ms(uint64_t ms);
bool ps_deadline_passed(ps_deadline d);
/* Milliseconds left, rounded up, 0 when passed; fit for poll() (at most INT32_MAX). */
int ps_deadline_left_ms(ps_deadline d);
/* Milliseconds left, at most cap_ms. */
int ps_deadline_left_ms_max(ps_deadline d, int cap_ms);

#endif
