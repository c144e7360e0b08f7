#include "clock_watch.h"

#include <time.h>

#include "clock.h"
#include "thread.h"

static void *clock_watch_look(void *arg)
{
    const struct timespec pause = {.tv_nsec = PS_CLOCK_LOOK_MS * 1000000L};
    for (;;) {
        (void)ps_clock_awake_ns();
        nanosleep(&pause, NULL);
    }
    return arg;
}

ps_err ps_clock_watch(void)
{
    ps_thread thread;
    PS_TRY(ps_thread_start(&thread, "clock", clock_watch_look, NULL));
    (void)pthread_detach(thread.id);
    ps_clock_set_watched();
    return PS_OK;
}
