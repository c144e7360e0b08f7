#include "thread.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { NAME_BYTES = 16 }; // the kernel's limit, with the NUL

ps_err ps_thread_start(ps_thread *thread, const char *name, void *(*main)(void *),
                       void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&thread->id, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    thread->runs = code == 0;
    if (code != 0)
        return ps_err_set(PS_ERR_NOMEM, "cannot start the thread \"%s\": %s", name,
                          strerror(code));
    char short_name[NAME_BYTES];
    snprintf(short_name, sizeof short_name, "%s", name);
    (void)pthread_setname_np(thread->id, short_name); // works without a name too
    return PS_OK;
}

void ps_thread_join(ps_thread *thread)
{
    if (thread->runs) pthread_join(thread->id, NULL);
    thread->runs = false;
}

void ps_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool ps_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, ps_deadline deadline)
{
    if (deadline.at_ns == UINT64_MAX) {
        pthread_cond_wait(cond, lock);
        return true;
    }
    // The system's clock runs on while the process is stopped, so this may return before
    // the deadline.
    const uint64_t ms = (uint64_t)ps_deadline_left_ms(deadline);
    const uint64_t ns = ps_clock_ns() + ms * 1000000u;
    const struct timespec at = {.tv_sec = (time_t)(ns / 1000000000u),
                                .tv_nsec = (long)(ns % 1000000000u)};
    pthread_cond_timedwait(cond, lock, &at);
    return !ps_deadline_passed(deadline);
}

void ps_cond_set(pthread_cond_t *cond, pthread_mutex_t *lock, bool *what)
{
    pthread_mutex_lock(lock);
    *what = true;
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(lock);
}
