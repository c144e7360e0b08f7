#include "cuda_wait.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "cuda_gpu.h"
#include "log.h"
#include "mem.h"

enum { A_MINUTE_MS = 60000, LOOK_NS = 50000, PAUSE_NS = 20000 };

struct ps_gpu_patience {
    uint64_t most_ms;
    atomic_uint_fast64_t moves;
    atomic_bool over;
};

ps_err ps_gpu_patience_create(uint64_t most_ms, ps_gpu_patience **out)
{
    PS_TRY(PS_NEW(out, 1, "device"));
    (*out)->most_ms = most_ms > 0 ? most_ms : A_MINUTE_MS;
    return PS_OK;
}

void ps_gpu_patience_destroy(ps_gpu_patience **patience)
{
    free(*patience);
    *patience = NULL;
}

void ps_gpu_patience_moved(ps_gpu_patience *patience)
{
    atomic_fetch_add(&patience->moves, 1);
}

bool ps_gpu_patience_is_over(const ps_gpu_patience *patience)
{
    return atomic_load(&patience->over);
}

typedef struct gpu_wait {
    ps_gpu_patience *patience;
    uint64_t look_until_ns, moves;
    ps_deadline deadline;
} gpu_wait;

static gpu_wait gpu_wait_begin(ps_gpu *gpu)
{
    ps_gpu_patience *patience = ps_gpu_patience_of(gpu);
    return (gpu_wait){.patience = patience,
                      .look_until_ns = ps_clock_ns() + LOOK_NS,
                      .moves = atomic_load(&patience->moves),
                      .deadline = ps_deadline_in_ms(patience->most_ms)};
}

/* Before the next look. False: it would be in vain. */
static bool gpu_wait_goes_on(gpu_wait *w)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    if (ps_gpu_patience_is_over(w->patience)) return false;
    if (ps_clock_ns() < w->look_until_ns) return true;
    nanosleep(&pause, NULL);
    const uint64_t moves = atomic_load(&w->patience->moves);
    if (moves != w->moves) w->deadline = ps_deadline_in_ms(w->patience->most_ms);
    w->moves = moves;
    if (!ps_deadline_passed(w->deadline)) return true;
    atomic_store(&w->patience->over, true);
    return false;
}

ps_err ps_gpu_sync(ps_gpu *gpu, ps_gpu_event *event, const char *who)
{
    gpu_wait w = gpu_wait_begin(gpu);
    char text[160];
    for (bool passed = false;;) {
        PS_TRY(ps_gpu_passed(gpu, event, who, &passed));
        if (passed) return PS_OK;
        if (!gpu_wait_goes_on(&w)) break;
    }
    ps_gpu_describe(gpu, text, sizeof text);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "cuda: %s: not done for %.1f s (by net.step_timeout_ms): a kernel "
                      "hangs on %s",
                      who, (double)w.patience->most_ms * 1e-3, text);
}

bool ps_gpu_drain(ps_gpu *gpu)
{
    gpu_wait w = gpu_wait_begin(gpu);
    const bool known = ps_gpu_patience_is_over(w.patience);
    while (!ps_gpu_rests(gpu)) {
        if (gpu_wait_goes_on(&w)) continue;
        if (!known)
            PS_WARN("gpu-hangs", "waited_s=%.1f note=\"its memory stays taken\"",
                    (double)w.patience->most_ms * 1e-3);
        return false;
    }
    return true;
}
