#include "bell.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Not the private kind: the memory may be another process's too. */
void ps_bell_sleep(ps_bell *bell, uint32_t sequence, int ms)
{
    const struct timespec timeout = {.tv_sec = ms / 1000,
                                     .tv_nsec = (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, &bell->sequence, FUTEX_WAIT, sequence, &timeout, NULL, 0);
}

void ps_bell_ring(ps_bell *bell)
{
    atomic_fetch_add(&bell->sequence, 1);
    syscall(SYS_futex, &bell->sequence, FUTEX_WAKE, 1, NULL, NULL, 0);
}
