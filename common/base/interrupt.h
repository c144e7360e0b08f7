/* SIGINT and SIGTERM as something that can be polled, so that a job ends in order.
 *
 * The first signal is noted. A second one has its default action and kills the process,
 * for people who do not want to wait. All this is process-wide, because signals are.
 *
 * A thread of its own waits for the signals, and all others block them. A handler would
 * run on the stack of the thread that computes, and oneDNN's sgemm for AVX-512 points the
 * stack pointer into its workspace on the heap: the kernel would write the handler's
 * frame over whatever lies before it.
 */
#ifndef PS_INTERRUPT_H
#define PS_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

#include "clock.h"
#include "err.h"

/* The exit code of a program that a signal has ended is this and its number, as shells
 * report it. */
enum { PS_EXIT_SIGNAL = 128 };

/* The signal that told a process to end; {0}: none yet. */
typedef struct ps_end_signal {
    int number;
    uint64_t at_ns; // ps_clock_ns
} ps_end_signal;

/* Notes a signal. True when it repeats an earlier one. A signal of the other kind within
 * a second of the first is no repetition: a job manager sends SIGTERM to every process,
 * and psrun, which gets one too, sends SIGINT to its processes. */
bool ps_end_signal_again(ps_end_signal *first, int number, uint64_t now_ns);

/* Ignores SIGPIPE and SIGXFSZ: a write to a closed connection, or beyond the size of a
 * file that ulimit -f allows, is an error like any other. */
void ps_interrupt_let_writes_fail(void);

/* Does that, blocks the signals and starts the thread. Must be called once by a main
 * function, before any other thread starts: all threads must inherit the mask. */
ps_err ps_interrupt_init(void);

/* For libraries, which must not touch signals: fn (NULL: none) is asked by long waits of
 * this thread, every PS_HOOK_MS or so, and returns true to end them. */
enum { PS_HOOK_MS = 100 };
typedef bool (*ps_interrupt_hook)(void *ctx);
void ps_interrupt_set_hook(ps_interrupt_hook fn, void *ctx);
/* PS_OK, or INTERRUPTED where the hook says so. */
ps_err ps_interrupt_ask_hook(void);
/* When a wait until then has to ask again: earlier, where this thread has a hook. */
ps_deadline ps_interrupt_slice(ps_deadline deadline);

/* The number of the first signal; 0: none has come. Any thread. */
int ps_interrupt_signal(void);
/* Whether a signal has come. Any thread. */
bool ps_interrupted(void);
/* PS_OK, or INTERRUPTED with the signal's name in the message; asks the hook, too. */
ps_err ps_interrupt_check(void);
/* Readable, and stays so, once a signal has come: for poll sets. Never read from it. -1
 * before init. */
int ps_interrupt_fd(void);

#endif
