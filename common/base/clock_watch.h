/* The thread that notices stops of the process, so that deadlines leave them out
 * (ps_clock_awake_ns). */
#ifndef PS_CLOCK_WATCH_H
#define PS_CLOCK_WATCH_H

#include "err.h"

/* Starts the thread, which runs as long as the process. Must be called once. NOMEM when
 * the system has no more threads. */
ps_err ps_clock_watch(void);

#endif
