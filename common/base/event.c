#include "event.h"

#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

ps_err ps_event_init(ps_event *event)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *event = (ps_event){.fd_plus_1 = fd + 1};
    return fd < 0 ? ps_err_errno(PS_ERR_IO, "cannot make an eventfd") : PS_OK;
}

ps_event ps_event_of(int fd)
{
    return (ps_event){.fd_plus_1 = fd + 1};
}

void ps_event_fini(ps_event *event)
{
    if (event->fd_plus_1) close(ps_event_fd(event));
    *event = (ps_event){0};
}

void ps_event_set(const ps_event *event)
{
    const uint64_t one = 1;
    if (!event->fd_plus_1) return;
    ssize_t n = write(ps_event_fd(event), &one, sizeof one);
    (void)n; // fails only when it is set already
}

void ps_event_clear(const ps_event *event)
{
    uint64_t count;
    if (!event->fd_plus_1) return;
    ssize_t n = read(ps_event_fd(event), &count, sizeof count);
    (void)n; // fails only when it is not set
}

int ps_event_fd(const ps_event *event)
{
    return event->fd_plus_1 - 1;
}
