/* Deadlines do not count time in which the process was stopped. */
#include "clock.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "clock_watch.h"
#include "thread.h"

enum { THREADS = 4, LIMIT_MS = 5000, STOP_MS = 2000, SLACK_MS = 700, MOST_MS = 60000 };

static void sleep_ms(long ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

typedef struct waiter {
    ps_thread thread;
    ps_deadline deadline;
    uint64_t begun_ns, waited_ns;
    bool went_back;
    bool sleeps; // until the deadline; else it looks at the clock
} waiter;

static void *wait_until_it_has_passed(void *arg)
{
    waiter *w = arg;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    ps_cond_init(&cond);
    uint64_t before = 0;
    pthread_mutex_lock(&lock);
    while (w->sleeps ? ps_cond_wait(&cond, &lock, w->deadline)
                     : !ps_deadline_passed(w->deadline)) {
        const uint64_t now = ps_clock_awake_ns();
        w->went_back |= now < before;
        before = now;
    }
    pthread_mutex_unlock(&lock);
    w->waited_ns = ps_clock_ns() - w->begun_ns;
    pthread_cond_destroy(&cond);
    return NULL;
}

/* Runs in a process of its own. Returns 0 when all threads have waited LIMIT_MS plus the
 * time of the stop. */
static int wait_through_a_stop(int ready)
{
    waiter w[THREADS];
    if (ps_clock_watch() != PS_OK) return 2;
    const ps_deadline deadline = ps_deadline_in_ms(LIMIT_MS);
    for (int i = 0; i < THREADS; i++) {
        w[i] = (waiter){
            .deadline = deadline, .begun_ns = ps_clock_ns(), .sleeps = i % 2 != 0};
        if (ps_thread_start(&w[i].thread, "waiter", wait_until_it_has_passed, &w[i]))
            return 2;
    }
    if (write(ready, "", 1) != 1) return 2;
    int wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        ps_thread_join(&w[i].thread);
        const uint64_t ms = w[i].waited_ns / 1000000u;
        if (ms + SLACK_MS < LIMIT_MS + STOP_MS || ms > MOST_MS || w[i].went_back)
            wrong = 1;
    }
    return wrong;
}

TEST(a_stop_does_not_count)
{
    int ready[2], status = -1;
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(wait_through_a_stop(ready[1]));
    assert_int_equal(read(ready[0], &byte, 1), 1);
    sleep_ms(200);
    kill(child, SIGSTOP);
    sleep_ms(STOP_MS);
    kill(child, SIGCONT);
    assert_int_equal(waitpid(child, &status, 0), child);
    close(ready[0]);
    close(ready[1]);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The only thread sleeps and does not look at the clock. This must not be taken for a
 * stop. */
TEST(a_sleep_counts_where_nobody_watches)
{
    const ps_deadline deadline = ps_deadline_in_ms(600);
    sleep_ms(700);
    assert_true(ps_deadline_passed(deadline));
    assert_int_equal(ps_deadline_left_ms(deadline), 0);
}
