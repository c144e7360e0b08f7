/* The process's own figures against what this test does to them, and signals. */
#include "procstat.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "cpu_quota.h"
#include "interrupt.h"

#ifdef __SANITIZE_THREAD__
enum { MOST = 3 }; // it notes which thread touched each byte
#else
enum { MOST = 2 };
#endif

TEST(peak_rss_grows_with_use)
{
    const size_t bytes = 64 << 20;
    uint64_t before = ps_procstat_peak_rss();
    char *block = malloc(bytes);
    assert_non_null(block);
    for (size_t i = 0; i < bytes; i += 4096)
        ((volatile char *)block)[i] = 1;
    uint64_t after = ps_procstat_peak_rss();
    free(block);
    assert_in_range(after - before, bytes / 2, MOST * bytes);
    assert_in_range(ps_procstat_peak_rss(), after - (4 << 20), 2 * after); // stays
}

TEST(host_is_known)
{
    ps_host host;
    char name[64] = "";
    ps_host_find(&host);
    gethostname(name, sizeof name - 1);
    assert_string_equal(host.name, name);
    assert_true(host.cores >= 1);
    assert_int_equal(strlen(host.boot_id), 36); // a UUID
    assert_int_equal(strncmp(host.net_ns, "net:[", 5), 0);
}

enum { SOON_MS = 10000 };

static bool is_blocked(int number)
{
    sigset_t mask;
    assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &mask), 0);
    return sigismember(&mask, number);
}

static bool has_handler(int number)
{
    struct sigaction action;
    assert_int_equal(sigaction(number, NULL, &action), 0);
    return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

TEST(first_signal_is_noted)
{
    assert_ok(ps_interrupt_init());
    assert_false(ps_interrupted());
    assert_ok(ps_interrupt_check());
    struct pollfd p = {.fd = ps_interrupt_fd(), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    raise(SIGPIPE);
    assert_false(ps_interrupted());
    kill(getpid(), SIGTERM);
    assert_int_equal(poll(&p, 1, SOON_MS), 1);
    assert_true(ps_interrupted());
    assert_error(ps_interrupt_check(), PS_ERR_INTERRUPTED, "SIGTERM");
}

/* A signal handler must not write over the data of a thread whose stack pointer is
 * elsewhere. */
TEST(no_signal_runs_on_a_stack_that_computes)
{
    const int numbers[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        assert_true(is_blocked(numbers[i]));
        assert_false(has_handler(numbers[i]));
    }
}

TEST(second_signal_kills)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (ps_interrupt_init() != PS_OK) _exit(3);
        struct pollfd p = {.fd = ps_interrupt_fd(), .events = POLLIN};
        kill(getpid(), SIGINT);
        if (poll(&p, 1, SOON_MS) != 1 || !ps_interrupted()) _exit(4);
        kill(getpid(), SIGINT);
        poll(NULL, 0, SOON_MS);
        _exit(5);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGINT);
}

TEST(what_asks_again)
{
    const uint64_t s = 1000000000;
    const struct {
        int number;
        uint64_t at_ns;
        bool again;
    } cases[] = {{SIGTERM, 5 * s, false}, {SIGINT, 5 * s + 1, false},
                 {SIGINT, 6 * s, false},  {SIGINT, 6 * s + 1, true},
                 {SIGTERM, 5 * s, true},  {SIGTERM, 9 * s, true}};
    ps_end_signal first = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(ps_end_signal_again(&first, cases[i].number, cases[i].at_ns),
                         cases[i].again);
    assert_int_equal(first.number, SIGTERM);
}

static bool counts(void *ctx)
{
    return ++*(int *)ctx >= 2;
}

static void *asks_hook(void *arg)
{
    return (void *)(intptr_t)ps_interrupt_ask_hook();
}

/* A hook interrupts only its own thread, and cuts short only the waits of that thread. */
TEST(a_hook_is_its_threads)
{
    const ps_deadline late = ps_deadline_in_ms(60000);
    int asked = 0;
    pthread_t other;
    void *result;
    assert_true(ps_interrupt_slice(late).at_ns == late.at_ns);
    ps_interrupt_set_hook(counts, &asked);
    assert_true(ps_interrupt_slice(late).at_ns < late.at_ns);
    assert_ok(ps_interrupt_ask_hook());
    assert_int_equal(pthread_create(&other, NULL, asks_hook, NULL), 0);
    pthread_join(other, &result);
    assert_ok((intptr_t)result);
    assert_int_equal(ps_interrupt_ask_hook(), PS_ERR_INTERRUPTED);
    ps_interrupt_set_hook(NULL, NULL);
    assert_ok(ps_interrupt_ask_hook());
}

/* A process that is bound to one core knows of all. */
TEST(machine_cores_are_all)
{
    cpu_set_t before, one;
    const int all = ps_machine_cores();
    assert_true(all >= 1);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_in_range(CPU_COUNT(&before), 1, all);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    ps_host host;
    ps_host_find(&host);
    assert_int_equal(host.cores, 1);
    assert_int_equal(ps_machine_cores(), all);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void put(const char *root, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = '\0';
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* cgroups: the text of /proc/self/cgroup. */
static int quota(const char *root, const char *cgroups)
{
    char path[256];
    snprintf(path, sizeof path, "%s/cgroups", root);
    put(root, "cgroups", cgroups);
    return ps_cpu_quota_cores(path, root);
}

/* As kernel.org's cgroup-v2.rst (cpu.max) and sched-bwc.rst (cfs_quota_us) have the
 * files. */
TEST(a_quota_counts_as_cores)
{
    char root[] = "/tmp/pstrain-quota-XXXXXX", remove[64];
    assert_non_null(mkdtemp(root));
    put(root, "batch/cpu.max", "350000 100000\n");
    put(root, "batch/job/cpu.max", "max 100000\n");
    put(root, "batch/job/small/cpu.max", "50000 100000\n");
    put(root, "cpu/cpu.cfs_quota_us", "-1\n");
    put(root, "cpu/cpu.cfs_period_us", "100000\n");
    put(root, "cpu/docker/cpu.cfs_quota_us", "100000\n");
    put(root, "cpu/docker/cpu.cfs_period_us", "50000\n");
    assert_int_equal(quota(root, "0::/\n"), INT_MAX);
    assert_int_equal(quota(root, "0::/other\n"), INT_MAX);
    assert_int_equal(quota(root, "0::/batch/job\n"), 3); // of the one above it
    assert_int_equal(quota(root, "0::/batch/job/small\n"), 1);
    assert_int_equal(quota(root, "9:cpuset:/docker\n0::/\n"), INT_MAX);
    assert_int_equal(quota(root, "3:cpuacct,cpu:/docker/x\n0::/\n"), 2);
    // in a container: its own cgroup is what is mounted
    put(root, "cpu/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(quota(root, "3:cpu,cpuacct:/kubepods/pod1\n"), 4);
    assert_int_equal(ps_cpu_quota_cores("/nowhere", root), INT_MAX);
    snprintf(remove, sizeof remove, "rm -r %s", root);
    assert_int_equal(system(remove), 0);
}
