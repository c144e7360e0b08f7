/* Threads that can be told apart: top -H, gdb and perf show their names. */
#ifndef PS_THREAD_H
#define PS_THREAD_H

#include <pthread.h>

#include "clock.h"
#include "err.h"

/* Zeroed: none. */
typedef struct ps_thread {
    pthread_t id;
    bool runs; // from its start until it is joined
} ps_thread;

/* Starts main(arg) as a thread called `name` (its first 15 characters; copied). Signals
 * are blocked in it; the program handles them in a thread of its own. The caller joins or
 * detaches it. NOMEM when the system has no more threads. */
ps_err ps_thread_start(ps_thread *thread, const char *name, void *(*main)(void *),
                       void *arg);
/* Waits for its end, where there is one. */
void ps_thread_join(ps_thread *thread);

/* A condition variable for ps_cond_wait. */
void ps_cond_init(pthread_cond_t *cond);
/* Waits until cond is signalled; the caller holds the lock. It may return earlier, so
 * call it in a loop. False when the deadline has passed. */
bool ps_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, ps_deadline deadline);
/* Sets what they wait for, under the lock, and wakes all. */
void ps_cond_set(pthread_cond_t *cond, pthread_mutex_t *lock, bool *what);

#endif
