/* Threads that can be told apart: top -H, gdb and perf show their names. */
#ifndef PS_THREAD_H
#define PS_THREAD_H

#include <pthread.h>

#include "clock.h"
#include "err.h"

/* Starts main(arg) as a thread called `name` (its first 15 characters; copied). Signals
 * are blocked in it; the program handles them in a thread of its own. The caller joins or
 * detaches *thread. NOMEM when the system has no more threads. */
ps_err ps_thread_start(pthread_t *thread, const char *name, void *(*main)(void *),
                       void *arg);

/* From now on the thread does not take a core away from another one when it wakes up: it
 * waits for a free core, or for its turn, of which it has as much as others. For long
 * work that others wait for less than for what it would interrupt. Does nothing where the
 * thread has another policy than the ordinary one, or the system refuses. */
void ps_thread_let_others_end(pthread_t thread);

/* A condition variable for ps_cond_wait. */
void ps_cond_init(pthread_cond_t *cond);
/* Waits until cond is signalled; the caller holds the lock. It may return earlier, so
 * call it in a loop. False when the deadline has passed. */
bool ps_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, ps_deadline deadline);

#endif
