/* SIGINT and SIGTERM as something that can be polled, so that a job ends in order.
 *
 * The first is noted. One that asks again has its default action and kills the process,
 * for people who do not want to wait. SIGPIPE is ignored: a write to a closed connection
 * is an error like any other. All this is process-wide, because signals are.
 *
 * A thread of its own waits for the signals, and all others block them. A handler would
 * run on the stack of the thread that computes, and oneDNN's sgemm for AVX-512 points the
 * stack pointer into its workspace on the heap: the kernel wrote the handler's frame over
 * whatever lies before it.
 */
#ifndef PS_INTERRUPT_H
#define PS_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

/* What has told a process to end; {0}: nothing yet. */
typedef struct ps_end_signal {
    int number;
    uint64_t at_ns; // ps_clock_ns
} ps_end_signal;

/* Notes a signal, and says whether it asks again for what an earlier one has asked for.
 * One of the other kind within a second of the first does not: a manager of jobs tells
 * every process (SIGTERM), and psrun, which it has told too, passes it on (SIGINT). */
bool ps_end_signal_again(ps_end_signal *first, int number, uint64_t now_ns);

/* Blocks the signals and starts the thread. Called once by a main function before any
 * other thread is started, for all have to inherit the mask. */
ps_err ps_interrupt_init(void);

/* The first one's number; 0: none has come. Any thread. */
int ps_interrupt_signal(void);
/* Whether a signal has come. Any thread. */
bool ps_interrupted(void);
/* PS_OK, or INTERRUPTED with the signal's name in the message. */
ps_err ps_interrupt_check(void);
/* Readable, and stays so, once a signal has come: for poll sets. Never read from it. -1
 * before init. */
int ps_interrupt_fd(void);

#endif
