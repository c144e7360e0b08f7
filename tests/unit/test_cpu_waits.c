/* OpenMP's threads sleep beside other load, and spin on free cores. */
#include "cpu_waits.h"

#include <dirent.h>
#include <omp.h>
#include <time.h>

#include "check.h"
#include "device.h"

enum { LOOK_NS = 50000000 };

/* Looks at threads that wait for cores a part of the time (in percent) if they spin;
 * returns in how many of these looks they sleep. */
static int sleeps(ps_cpu_crowd *c, int looks, uint64_t percent)
{
    int n = 0;
    for (int i = 0; i < looks; i++) {
        // Woken thousands of times a second, they wait long on free cores too.
        ps_cpu_crowd_look(c, c->sleep ? LOOK_NS : LOOK_NS / 100 * percent, LOOK_NS);
        n += c->sleep;
    }
    return n;
}

TEST(free_cores_let_them_spin)
{
    ps_cpu_crowd c = {0};
    assert_int_equal(sleeps(&c, 1000, 0), 0);
    assert_int_equal(sleeps(&c, 1000, 20), 0);
}

/* One of two cores has a second program: half of one thread's time. */
TEST(other_load_lets_them_sleep)
{
    ps_cpu_crowd c = {0};
    assert_int_equal(sleeps(&c, 1, 50), 1);
    assert_in_range(sleeps(&c, 219, 50), 210, 219); // the first 11 s: 5% at most
    assert_in_range(sleeps(&c, 10000, 50), 9960, 10000);
}

TEST(they_spin_again_when_it_ends)
{
    ps_cpu_crowd c = {0};
    sleeps(&c, 1, 200);
    assert_in_range(sleeps(&c, 1000, 0), 1, 10); // half a second
    sleeps(&c, 100000, 200);
    assert_in_range(sleeps(&c, 1000, 0), 1, 320); // 16 s
}

/* A moment of load now and then costs half a second each, not more and more. */
TEST(moments_of_load_are_forgotten)
{
    ps_cpu_crowd c = {0};
    for (int i = 0; i < 100; i++) {
        sleeps(&c, 1, 100);
        assert_in_range(sleeps(&c, 100, 0), 1, 10);
    }
}

/* Milliseconds of processor time in which this process waits for one of its threads. */
static double waiting_ms(int threads)
{
    const struct timespec late = {.tv_nsec = 10000000};
    const clock_t before = clock();
    for (int i = 0; i < 3; i++) {
#pragma omp parallel num_threads(threads)
        if (omp_get_thread_num() == 0) nanosleep(&late, NULL);
    }
    return (double)(clock() - before) * 1000 / CLOCKS_PER_SEC;
}

TEST(sleepers_let_all_threads_sleep)
{
    const int threads = omp_get_num_procs();
    if (threads < 2 || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) skip();
    ps_cpu_sleepers *s = NULL;
    waiting_ms(2); // starts threads
    for (int n = 2; n <= threads; n += threads > 2 ? threads - 2 : 1) {
        const double spun = waiting_ms(n);
        assert_ok(ps_cpu_sleepers_create(n, &s));
        const double slept = waiting_ms(n);
        ps_cpu_sleepers_destroy(&s);
        assert_true(slept < spun / 3);
        assert_true(slept < waiting_ms(n) / 3);
    }
}

static bool has_thread(const char *name)
{
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        char path[300], comm[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", d->d_name);
        FILE *f = fopen(path, "re");
        if (f && fscanf(f, "%31s", comm) == 1) found |= strcmp(comm, name) == 0;
        if (f) fclose(f);
    }
    if (tasks) closedir(tasks);
    return found;
}

TEST(only_several_threads_are_watched)
{
    static const struct {
        int threads;
        bool own_waits, watched;
    } cases[] = {{2, false, true}, {2, true, false}, {1, false, false}};
    for (int i = 0; i < 3; i++) {
        const ps_device_options o = {.threads = cases[i].threads,
                                     .own_waits = cases[i].own_waits};
        ps_device *device = NULL;
        assert_ok(ps_device_open(PS_DEVICE_CPU, &o, &device));
        assert_int_equal(has_thread("waits"), cases[i].watched);
        ps_device_close(&device);
        assert_false(has_thread("waits"));
    }
}
