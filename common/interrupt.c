#include "interrupt.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "thread.h"

static int event_fd = -1;        // constant after init
static sigset_t awaited;         // likewise
static atomic_int signal_number; // 0: none yet

static void note(int number)
{
    const uint64_t one = 1;
    atomic_store(&signal_number, number);
    ssize_t written = write(event_fd, &one, sizeof one); // cannot block: a few in all
    (void)written;
}

/* Ends the process as if nobody had waited for the signal. */
static void die_of(int number)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
}

static void *wait_for_signals(void *arg)
{
    bool seen[NSIG] = {false};
    for (int number; sigwait(&awaited, &number) == 0;) {
        if (seen[number]) die_of(number);
        seen[number] = true;
        note(number);
    }
    return NULL;
}

static ps_err start_thread(void)
{
    pthread_t thread;
    PS_TRY(ps_thread_start(&thread, "signals", wait_for_signals, NULL));
    (void)pthread_detach(thread); // it lives as long as the process
    return PS_OK;
}

ps_err ps_interrupt_init(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_fd < 0) return ps_err_errno(PS_ERR_IO, "eventfd for signals");
    sigemptyset(&ignore.sa_mask);
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGINT);
    sigaddset(&awaited, SIGTERM);
    if (sigaction(SIGPIPE, &ignore, NULL) != 0 ||
        pthread_sigmask(SIG_BLOCK, &awaited, NULL) != 0)
        return ps_err_errno(PS_ERR_INTERNAL, "blocking signals");
    return start_thread();
}

bool ps_interrupted(void)
{
    return atomic_load(&signal_number) != 0;
}

ps_err ps_interrupt_check(void)
{
    int number = atomic_load(&signal_number);
    if (number == 0) return PS_OK;
    return ps_err_set(PS_ERR_INTERRUPTED, "interrupted by SIG%s", sigabbrev_np(number));
}

int ps_interrupt_fd(void)
{
    return event_fd;
}
