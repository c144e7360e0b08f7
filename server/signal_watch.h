/* What SIGINT and SIGTERM do to a server.
 *
 * A Ctrl-C, and what a manager of jobs sends, reaches all that was started together, or
 * this process alone: it means the job either way. The workers are told, agree on a last
 * step and keep the weights, for which they need their servers: so the server ends with
 * its job. Where the workers are stuck, a limit ends the job, as does a signal that asks
 * again; the one after that ends the process, as does any before it has joined. SIGUSR1
 * means nothing: the watch wakes itself by it.
 *
 * A thread waits for the signals, and all others block them. */
#ifndef PS_SIGNAL_WATCH_H
#define PS_SIGNAL_WATCH_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "interrupt.h"
#include "member.h"

typedef struct ps_signal_watch {
    sigset_t awaited;
    pthread_t thread;
    pthread_mutex_t lock;
    atomic_bool stopping;
    // Under the lock:
    ps_member *member; // borrowed; NULL: has not joined, or not any more
    uint64_t limit_ms;
    ps_end_signal first; // since it joined
} ps_signal_watch;

/* Before any other thread starts: all inherit the mask. SIGPIPE is ignored. */
ps_err ps_signal_watch_start(ps_signal_watch *watch);
/* Only after a start that went well. */
void ps_signal_watch_stop(ps_signal_watch *watch);

/* The process is a member from now on. limit_ms: how long its workers may take to end. */
void ps_signal_watch_attach(ps_signal_watch *watch, ps_member *member, uint64_t limit_ms);
/* Before the member is destroyed. The first signal since attach; 0: none. */
int ps_signal_watch_detach(ps_signal_watch *watch);

#endif
