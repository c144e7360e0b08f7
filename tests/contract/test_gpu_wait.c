/* Waits for a GPU (cuda_wait.c), by the host in its place: work that never ends, and work
 * that takes longer than the deadline while something moves. */
#include "check.h"
#include "clock.h"
#include "host_gpu.h"

enum { WAIT_MS = 20, LONG_MS = 60 };

typedef struct slow_work {
    ps_gpu *gpu;
    ps_gpu_event *other; // recorded at each look
    uint64_t end_ns;
} slow_work;

static bool slow_work_is_done(void *args)
{
    slow_work *w = args;
    assert_ok(ps_gpu_record(w->gpu, w->other, PS_GPU_UPLOAD));
    return ps_clock_ns() >= w->end_ns;
}

static bool work_never_ends(void *args)
{
    return false;
}

typedef struct rig {
    ps_gpu *gpu;
    ps_gpu_event *event, *other;
} rig;

static rig rig_open(void)
{
    const ps_gpu_options options = {
        .index = -1, .local_rank = -1, .format = PS_FORMAT_FP32, .wait_ms = WAIT_MS};
    rig r;
    assert_ok(ps_gpu_open(&options, &r.gpu));
    assert_ok(ps_gpu_event_create(r.gpu, &r.event));
    assert_ok(ps_gpu_event_create(r.gpu, &r.other));
    return r;
}

static void rig_close(rig *r)
{
    ps_gpu_event_destroy(&r->event);
    ps_gpu_event_destroy(&r->other);
    ps_gpu_close(&r->gpu);
}

TEST(test_work_that_never_ends)
{
    rig r = rig_open();
    void *memory, *more;
    const uint64_t begun = ps_clock_ns();
    assert_ok(ps_gpu_take(r.gpu, 64, "memory", &memory));
    assert_ok(ps_gpu_take_pinned(r.gpu, 64, "more", &more));
    assert_true(ps_gpu_drain(r.gpu));
    host_gpu_poll(ps_gpu_native(r.gpu, PS_GPU_COMPUTE), work_never_ends, "", 1);
    assert_ok(ps_gpu_record(r.gpu, r.event, PS_GPU_COMPUTE));
    assert_false(ps_gpu_lost(r.gpu));
    assert_error(
        ps_gpu_sync(r.gpu, r.event, "a layer"), PS_ERR_TIMEOUT,
        "a layer: not done for 0.0 s (by net.step_timeout_ms): a kernel hangs on "
        "cuda: the host in its place");
    assert_true(ps_clock_ns() - begun >= WAIT_MS * UINT64_C(1000000));
    assert_true(ps_gpu_lost(r.gpu));
    // nothing waits again, and what its work may use stays
    assert_false(ps_gpu_drain(r.gpu));
    ps_gpu_give(r.gpu, memory);
    ps_gpu_give_pinned(r.gpu, more);
    memset(memory, 1, 64);
    memset(more, 1, 64);
    rig_close(&r);
    free(memory);
    free(more);
}

TEST(test_the_end_of_a_job_waits_no_longer)
{
    rig r = rig_open();
    host_gpu_poll(ps_gpu_native(r.gpu, PS_GPU_DOWNLOAD), work_never_ends, "", 1);
    assert_false(ps_gpu_drain(r.gpu));
    assert_true(ps_gpu_lost(r.gpu));
    rig_close(&r);
}

/* A sum of the exchange in parts. */
TEST(test_work_that_moves_may_take_longer)
{
    rig r = rig_open();
    const slow_work w = {r.gpu, r.other, ps_clock_ns() + LONG_MS * UINT64_C(1000000)};
    host_gpu_poll(ps_gpu_native(r.gpu, PS_GPU_COMPUTE), slow_work_is_done, &w, sizeof w);
    assert_ok(ps_gpu_record(r.gpu, r.event, PS_GPU_COMPUTE));
    assert_ok(ps_gpu_sync(r.gpu, r.event, "a sum"));
    assert_true(ps_clock_ns() >= w.end_ns);
    assert_true(ps_gpu_drain(r.gpu));
    assert_false(ps_gpu_lost(r.gpu));
    rig_close(&r);
}
