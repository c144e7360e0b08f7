#include "interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int event_fd = -1;        // constant after init
static atomic_int signal_number; // 0: none yet; lock-free, so fit for a handler

static void on_signal(int number)
{
    int saved = errno;
    const uint64_t one = 1;
    atomic_store(&signal_number, number);
    ssize_t written = write(event_fd, &one, sizeof one); // cannot block: one per signal
    (void)written;
    errno = saved;
}

ps_err ps_interrupt_init(void)
{
    struct sigaction act = {.sa_handler = on_signal,
                            .sa_flags = SA_RESETHAND | SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (event_fd < 0) event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_fd < 0) return ps_err_errno(PS_ERR_IO, "eventfd for signals");
    sigemptyset(&act.sa_mask);
    sigemptyset(&ignore.sa_mask);
    if (sigaction(SIGINT, &act, NULL) != 0 || sigaction(SIGTERM, &act, NULL) != 0 ||
        sigaction(SIGPIPE, &ignore, NULL) != 0)
        return ps_err_errno(PS_ERR_INTERNAL, "sigaction");
    return PS_OK;
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
