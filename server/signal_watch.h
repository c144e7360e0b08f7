/* What SIGINT and SIGTERM do to a server.
 *
 * A signal is meant for the job, whether it reaches all of its processes (Ctrl-C, a job
 * manager) or only this one. The server tells the workers, which agree on a last step and
 * save the weights. They need their servers for this, so the server ends with its job. A
 * second signal ends the job at once; so does a time limit, for workers that are stuck. A
 * signal after that ends the process, and so does any signal before it has joined. The
 * watch uses SIGUSR1 to wake its own thread; it has no other meaning.
 *
 * A thread waits for the signals, and all others block them. */
#ifndef PS_SIGNAL_WATCH_H
#define PS_SIGNAL_WATCH_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "interrupt.h"
#include "member.h"
#include "thread.h"

typedef struct ps_signal_watch {
    sigset_t awaited;
    ps_thread thread;
    pthread_mutex_t lock;
    atomic_bool stopping;
    // Under the lock:
    ps_member *member; // borrowed; NULL: not attached
    uint64_t limit_ms;
    ps_end_signal first; // since it joined
} ps_signal_watch;

/* Before any other thread starts: all inherit the mask. Lets writes fail (interrupt.h).
 */
ps_err ps_signal_watch_start(ps_signal_watch *watch);
/* Only after a successful start. */
void ps_signal_watch_stop(ps_signal_watch *watch);

/* The process is a member from now on. limit_ms: how long its workers may take to end. */
void ps_signal_watch_attach(ps_signal_watch *watch, ps_member *member, uint64_t limit_ms);
/* Before the member is destroyed. The first signal since attach; 0: none. */
int ps_signal_watch_detach(ps_signal_watch *watch);

#endif
