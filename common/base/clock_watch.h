/* Deadlines leave out what a process stands still (ps_clock_awake_ns). */
#ifndef PS_CLOCK_WATCH_H
#define PS_CLOCK_WATCH_H

#include "err.h"

/* Starts the thread that looks at the clock so often that a stop shows, as long as the
 * process lives. Once; PS_ERR_NOMEM where the system has no more threads. */
ps_err ps_clock_watch(void);

#endif
