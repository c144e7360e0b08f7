/* All-reduce over NCCL, with the stand-in library (fake_nccl.c), on the stream of a GPU
 * that is the host (host_gpu.c). */
#include <dlfcn.h>

#include "allreduce_run.h"
#include "check.h"
#include "clock.h"
#include "host_gpu.h"

static void (*fake_break)(int rank, int after, int how);
static int (*fake_open)(void);
static void (*fake_hold)(bool hold);
enum { FAKE_FAIL = 1, FAKE_HANG = 2 };

TEST(nccl_sums_and_steps)
{
    allreduce_check_steps("exchange.name=nccl", allreduce_ways[0]);
    assert_int_equal(fake_open(), 0);
}

TEST(nccl_skips_what_overflows)
{
    allreduce_check_scaled("exchange.name=nccl", "exchange.bucket=1", allreduce_ways[0]);
    assert_int_equal(fake_open(), 0);
}

TEST(nccl_names_the_rank_that_is_gone)
{
    allreduce_check_gone("exchange.name=nccl", 3, allreduce_ways[0]);
    assert_int_equal(fake_open(), 0);
}

/* An error has to be seen before its step takes too long; a step that takes too long is
 * seen at once. */
static void check_broken(int how, const char *step_timeout, ps_err expected)
{
    allreduce_job j;
    fake_break(1, 5, how);
    allreduce_run(&j, 2, allreduce_train, "exchange.name=nccl", step_timeout,
                  ALLREDUCE_VERDICT);
    fake_break(-1, 0, 0);
    /* One of the two sees it first; the other may learn it from the coordinator. */
    assert_true(j.ranks[0].err != PS_OK && j.ranks[1].err != PS_OK);
    assert_true(j.ranks[0].err == expected || j.ranks[1].err == expected);
    assert_int_equal(fake_open(), 0);
}

TEST(nccl_reports_asynchronous_errors)
{
    check_broken(FAKE_FAIL, "net.step_timeout_ms=20000", PS_ERR_NET);
}

TEST(nccl_aborts_at_the_deadline)
{
    check_broken(FAKE_HANG, "net.step_timeout_ms=1000", PS_ERR_TIMEOUT);
}

/* The host waits neither for a sum nor for the step after it. While all sums are held
 * back, the next step begins and its parameters can be read; the final weights are
 * right. */
static ps_err run_held(allreduce_rank *r)
{
    fake_hold(true);
    PS_TRY(ps_session_begin(r->session, 0));
    PS_TRY(allreduce_give(r, (float)(r->rank + 1) / 64));
    PS_TRY(ps_session_begin(r->session, 1));
    PS_TRY(ps_session_wait(r->session, 0, r->spec.table.n_tensors));
    PS_TRY(ps_member_barrier(ps_session_member(r->session), "all are here",
                             ps_deadline_in_ms(20000)));
    fake_hold(false);
    // the gradients lie there until the first step is made
    PS_TRY(r->stream->ops->to_host(r->stream, PS_STREAM_PARAMS));
    PS_TRY(allreduce_give(r, 0));
    return ps_session_drain(r->session);
}

TEST(nccl_waits_for_no_sum)
{
    allreduce_job j;
    allreduce_run(&j, 3, run_held, "exchange.name=nccl");
    allreduce_assert_ok(&j);
    for (int r = 0; r < 3; r++)
        assert_float_equal(j.ranks[r].first, 1 - 0.5f * 12 / 128, 0);
    assert_int_equal(fake_open(), 0);
}

TEST(nccl_refuses_nan)
{
    allreduce_job j;
    allreduce_run(&j, 2, allreduce_run_nan, "exchange.name=nccl");
    allreduce_assert_nan(&j, "step 0");
    assert_int_equal(fake_open(), 0);
}

TEST(nccl_clips)
{
    allreduce_job j;
    allreduce_run(&j, 2, allreduce_run_clipped, "exchange.name=nccl",
                  "optimizer.clip_norm=1");
    allreduce_assert_clipped(&j);
}

/* In memory of the host, whether there is a library or not. */
static ps_err run_nothing(allreduce_rank *r)
{
    return PS_OK;
}

TEST(nccl_on_the_cpu_is_unsupported)
{
    allreduce_job j;
    allreduce_on_gpu = false;
    allreduce_run(&j, 1, run_nothing, "exchange.name=nccl");
    allreduce_on_gpu = true;
    assert_int_equal(j.ranks[0].err, PS_ERR_UNSUPPORTED);
    assert_non_null(strstr(j.ranks[0].message, "nccl sums in the memory of GPUs"));
}

int main(void)
{
    void *lib = dlopen(PS_FAKE_NCCL, RTLD_NOW);
    void (*queue)(void (*push)(void *, bool (*)(void *), const void *, size_t));
    if (!lib) {
        print_error("%s\n", dlerror());
        return 1;
    }
    *(void **)&fake_break = dlsym(lib, "fake_nccl_break");
    *(void **)&fake_open = dlsym(lib, "fake_nccl_open_communicators");
    *(void **)&fake_hold = dlsym(lib, "fake_nccl_hold");
    *(void **)&queue = dlsym(lib, "fake_nccl_queue");
    queue(host_gpu_poll);
    allreduce_on_gpu = true;
    return check_run(NULL, NULL);
}
