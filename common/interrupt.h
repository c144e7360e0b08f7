/* SIGINT and SIGTERM as something that can be polled, so that a job ends in order.
 *
 * The first of each kind is noted; a second one of the same kind has its default action
 * and kills the process, for whoever does not want to wait. SIGPIPE is ignored: a write
 * to a closed connection is an error like any other. Process-wide, because signals are:
 * this is the one place with mutable globals.
 *
 * A thread of its own waits for the signals, and all others block them. A handler would
 * run on the stack of the thread that computes, and oneDNN's sgemm for AVX-512 points the
 * stack pointer into its workspace on the heap: the kernel wrote the handler's frame over
 * whatever lies before it.
 */
#ifndef PS_INTERRUPT_H
#define PS_INTERRUPT_H

#include <stdbool.h>

#include "err.h"

/* Blocks the signals and starts the thread. Called once by a main function before any
 * other thread is started, for all have to inherit the mask. */
ps_err ps_interrupt_init(void);

/* Whether a signal has come. Any thread. */
bool ps_interrupted(void);
/* PS_OK, or INTERRUPTED with the signal's name in the message. */
ps_err ps_interrupt_check(void);
/* Readable, and stays so, once a signal has come: for poll sets. Never read from it. -1
 * before init. */
int ps_interrupt_fd(void);

#endif
