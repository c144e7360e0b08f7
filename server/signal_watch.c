#include "signal_watch.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "tell.h"
#include "thread.h"

/* The watch wakes its own thread by it; from others it means nothing. */
enum { WAKE = SIGUSR1 };

/* The next signal; 0 when the deadline has passed before. */
static int next_signal(const sigset_t *awaited, ps_deadline deadline)
{
    for (;;) {
        int ms = ps_deadline_left_ms(deadline);
        const struct timespec most = {.tv_sec = ms / 1000,
                                      .tv_nsec = ms % 1000 * 1000000L};
        int number = sigtimedwait(awaited, NULL, &most);
        if (number > 0) return number;
        if (ps_deadline_passed(deadline)) return 0;
    }
}

static void end_job(const ps_signal_watch *w, int number)
{
    char reason[160];
    int rank = ps_member_rank(w->member);
    if (number == 0)
        snprintf(reason, sizeof reason,
                 "server %d was told to stop (SIG%s), and the workers had not ended "
                 "%.1f s later (net.step_timeout_ms and train.file_timeout_ms)",
                 rank, sigabbrev_np(w->first.number), (double)w->limit_ms * 1e-3);
    else
        snprintf(reason, sizeof reason, "server %d was told to stop at once (SIG%s)",
                 rank, sigabbrev_np(number));
    ps_member_abort(w->member, PS_ERR_INTERRUPTED, reason);
}

/* number 0: the limit has passed. Returns the new limit. */
static ps_deadline on_signal(ps_signal_watch *w, int number)
{
    const ps_deadline never = {UINT64_MAX};
    pthread_mutex_lock(&w->lock);
    bool over = !w->member || ps_member_check(w->member) != PS_OK;
    bool again =
        number == 0 || (!over && ps_end_signal_again(&w->first, number, ps_clock_ns()));
    bool stays = !over && !again;
    uint64_t limit_ms = w->limit_ms;
    if (stays) ps_member_interrupt(w->member);
    if (!over && !stays) end_job(w, number);
    pthread_mutex_unlock(&w->lock);
    if (number != 0 && (over || stays))
        ps_tell("interrupted", "{s:s+}", "signal", "SIG", sigabbrev_np(number));
    if (over && number != 0) {
        PS_INFO("interrupted", "signal=SIG%s ends=\"at once\"", sigabbrev_np(number));
        _exit(PS_EXIT_SIGNAL + number);
    }
    if (!stays) return never;
    PS_INFO("interrupted",
            "signal=SIG%s ends=\"with the workers\" limit_s=%.1f again=\"at once\"",
            sigabbrev_np(number), (double)limit_ms * 1e-3);
    return ps_deadline_in_ms(limit_ms);
}

static void *watch_signals(void *arg)
{
    ps_signal_watch *w = arg;
    ps_deadline limit = {UINT64_MAX};
    while (!atomic_load(&w->stopping)) {
        int number = next_signal(&w->awaited, limit);
        if (number != WAKE) limit = on_signal(w, number);
    }
    return NULL;
}

ps_err ps_signal_watch_start(ps_signal_watch *w)
{
    *w = (ps_signal_watch){.lock = PTHREAD_MUTEX_INITIALIZER};
    sigemptyset(&w->awaited);
    sigaddset(&w->awaited, SIGINT);
    sigaddset(&w->awaited, SIGTERM);
    sigaddset(&w->awaited, WAKE);
    ps_interrupt_let_writes_fail();
    (void)pthread_sigmask(SIG_BLOCK, &w->awaited, NULL);
    return ps_thread_start(&w->thread, "signals", watch_signals, w);
}

void ps_signal_watch_stop(ps_signal_watch *w)
{
    atomic_store(&w->stopping, true);
    pthread_kill(w->thread.id, WAKE);
    ps_thread_join(&w->thread);
}

void ps_signal_watch_attach(ps_signal_watch *w, ps_member *member, uint64_t limit_ms)
{
    pthread_mutex_lock(&w->lock);
    w->member = member;
    w->limit_ms = limit_ms;
    pthread_mutex_unlock(&w->lock);
}

int ps_signal_watch_detach(ps_signal_watch *w)
{
    pthread_mutex_lock(&w->lock);
    w->member = NULL;
    int number = w->first.number;
    pthread_mutex_unlock(&w->lock);
    return number;
}
