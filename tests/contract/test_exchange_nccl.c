/* All-reduce over NCCL, with the stand-in library (fake_nccl.c), on host memory and on
 * the stream of a GPU that is the host (host_gpu.c). */
#include <dlfcn.h>
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "allreduce_run.h"
#include "check.h"
#include "clock.h"
#include "host_gpu.h"

static void (*fake_break)(int rank, int after, int how);
static int (*fake_open)(void);
static void (*fake_hold)(bool hold);
enum { FAKE_FAIL = 1, FAKE_HANG = 2 };

static void test_nccl_sums_and_steps(void **state)
{
    allreduce_check_steps("exchange.name=nccl", allreduce_ways[0]);
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_skips_what_overflows(void **state)
{
    allreduce_check_scaled("exchange.name=nccl", "exchange.bucket=1", allreduce_ways[0]);
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_names_the_rank_that_is_gone(void **state)
{
    allreduce_check_gone("exchange.name=nccl", 3, allreduce_ways[0]);
    assert_int_equal(fake_open(), 0);
}

/* An error has to be seen before its step takes too long; a step that takes too long is
 * seen at once. */
static void check_broken(int how, const char *step_timeout, ps_err expected)
{
    allreduce_job j;
    allreduce_job_init(&j, "exchange.name=nccl", 2, allreduce_train);
    allreduce_set(&j, step_timeout);
    allreduce_set(&j, ALLREDUCE_VERDICT);
    fake_break(1, 5, how);
    allreduce_run_broken(&j);
    fake_break(-1, 0, 0);
    /* One of the two sees it first; the other may learn it from the coordinator. */
    assert_true(j.ranks[0].err != PS_OK && j.ranks[1].err != PS_OK);
    assert_true(j.ranks[0].err == expected || j.ranks[1].err == expected);
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_reports_asynchronous_errors(void **state)
{
    check_broken(FAKE_FAIL, "net.step_timeout_ms=20000", PS_ERR_NET);
}

static void test_nccl_aborts_at_the_deadline(void **state)
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

static void test_nccl_waits_for_no_sum_on_a_gpu(void **state)
{
    allreduce_job j;
    allreduce_job_init(&j, "exchange.name=nccl", 3, run_held);
    allreduce_run(&j);
    allreduce_assert_ok(&j);
    for (int r = 0; r < 3; r++)
        assert_float_equal(j.ranks[r].first, 1 - 0.5f * 12 / 128, 0);
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_refuses_nan_on_a_gpu(void **state)
{
    allreduce_job j;
    allreduce_job_init(&j, "exchange.name=nccl", 2, allreduce_run_nan);
    allreduce_run(&j);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(j.ranks[r].err, PS_ERR_NUMERIC);
        assert_non_null(strstr(j.ranks[r].message, "step 0"));
    }
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_clips_on_a_gpu(void **state)
{
    allreduce_job j;
    allreduce_job_init(&j, "exchange.name=nccl", 2, allreduce_run_clipped);
    allreduce_set(&j, "optimizer.clip_norm=1");
    allreduce_run(&j);
    allreduce_assert_clipped(&j);
}

static int load_stand_in(void **state)
{
    void *lib = dlopen(PS_FAKE_NCCL, RTLD_NOW);
    if (!lib) {
        print_error("%s\n", dlerror());
        return -1;
    }
    *(void **)&fake_break = dlsym(lib, "fake_nccl_break");
    *(void **)&fake_open = dlsym(lib, "fake_nccl_open_communicators");
    *(void **)&fake_hold = dlsym(lib, "fake_nccl_hold");
    return fake_break && fake_open && fake_hold ? 0 : -1;
}

static int take_the_host_for_a_gpu(void **state)
{
    void (*queue)(void (*push)(void *, bool (*)(void *), const void *, size_t));
    *(void **)&queue = dlsym(dlopen(PS_FAKE_NCCL, RTLD_NOW), "fake_nccl_queue");
    allreduce_on_gpu = true;
    if (!queue) return -1;
    queue(host_gpu_poll);
    return 0;
}

/* The stand-in is not loaded yet: the machine has no NCCL, or NCCL and no GPU. */
static ps_err run_nothing(allreduce_rank *r)
{
    return PS_OK;
}

/* Runs in a process of its own: a library that was found stays loaded, and then the
 * stand-in could not be loaded. */
static void test_nccl_on_the_cpu_is_unsupported(void **state)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        allreduce_job j;
        allreduce_job_init(&j, "exchange.name=nccl", 1, run_nothing);
        allreduce_run(&j);
        const allreduce_rank *r = &j.ranks[0];
        _exit(r->err == PS_ERR_UNSUPPORTED && strstr(r->message, "nccl") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest without_library[] = {
        cmocka_unit_test(test_nccl_on_the_cpu_is_unsupported),
    };
    const struct CMUnitTest nccl[] = {
        cmocka_unit_test(test_nccl_sums_and_steps),
        cmocka_unit_test(test_nccl_skips_what_overflows),
        cmocka_unit_test(test_nccl_names_the_rank_that_is_gone),
        cmocka_unit_test(test_nccl_reports_asynchronous_errors),
        cmocka_unit_test(test_nccl_aborts_at_the_deadline),
    };
    const struct CMUnitTest nccl_on_gpu[] = {
        cmocka_unit_test(test_nccl_sums_and_steps),
        cmocka_unit_test(test_nccl_skips_what_overflows),
        cmocka_unit_test(test_nccl_names_the_rank_that_is_gone),
        cmocka_unit_test(test_nccl_reports_asynchronous_errors),
        cmocka_unit_test(test_nccl_aborts_at_the_deadline),
        cmocka_unit_test(test_nccl_waits_for_no_sum_on_a_gpu),
        cmocka_unit_test(test_nccl_refuses_nan_on_a_gpu),
        cmocka_unit_test(test_nccl_clips_on_a_gpu),
    };
    int failed = cmocka_run_group_tests_name("nccl without a library", without_library,
                                             NULL, NULL);
    failed += cmocka_run_group_tests_name("nccl stand-in", nccl, load_stand_in, NULL);
    return failed + cmocka_run_group_tests_name("nccl stand-in on a GPU", nccl_on_gpu,
                                                take_the_host_for_a_gpu, NULL);
}
