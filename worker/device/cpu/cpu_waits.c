#include "cpu_waits.h"

#include <dirent.h>
#include <omp.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"
#include "log.h"
#include "mem.h"
#include "thread.h"

enum {
    LOOK_MS = 50,
    LOOK_COST = 500,  // and at least this many times what a look takes of a core
    LOOKS_FIRST = 10, // half a second
    LOOKS_MOST = 320, // 16 s: the look in which they spin costs one part of 320
    CROWD_PART = 4,   // of the time, all threads together
};

/* ---- when ---- */

void ps_cpu_crowd_look(ps_cpu_crowd *c, uint64_t waited_ns, uint64_t passed_ns)
{
    if (c->next == 0) c->next = LOOKS_FIRST;
    if (c->sleep) {
        c->sleep = --c->looks > 0;
        return;
    }
    c->sleep = waited_ns > passed_ns / CROWD_PART;
    if (c->sleep) c->looks = c->next;
    c->next = c->sleep ? c->next * 2 : c->next / 2;
    if (c->next > LOOKS_MOST) c->next = LOOKS_MOST;
    if (c->next < LOOKS_FIRST) c->next = LOOKS_FIRST;
}

/* ---- how ---- */

struct ps_cpu_sleepers {
    ps_thread thread;
    sem_t counted, let_go;
    int n;
};

/* libgomp counts the threads of this one's loop until this one ends. */
static void *sleepers_main(void *arg)
{
    ps_cpu_sleepers *s = arg;
    int n = 0;
#pragma omp parallel num_threads(s->n) reduction(+ : n)
    n++;
    sem_post(&s->counted);
    while (sem_wait(&s->let_go) != 0) {
    }
    return n > 0 ? arg : NULL;
}

ps_err ps_cpu_sleepers_create(int threads, ps_cpu_sleepers **out)
{
    PS_TRY(PS_NEW(out, 1, "sleepers"));
    const int spare = omp_get_num_procs() - threads;
    (*out)->n = spare > 0 ? 2 + spare : 2; // the first of each loop is not counted
    sem_init(&(*out)->counted, 0, 0);
    sem_init(&(*out)->let_go, 0, 0);
    const ps_err err = ps_thread_start(&(*out)->thread, "sleepers", sleepers_main, *out);
    if (err == PS_OK) {
        while (sem_wait(&(*out)->counted) != 0) {
        }
        return PS_OK;
    }
    free(*out);
    *out = NULL;
    return err;
}

void ps_cpu_sleepers_destroy(ps_cpu_sleepers **s)
{
    if (!*s) return;
    sem_post(&(*s)->let_go);
    ps_thread_join(&(*s)->thread);
    free(*s);
    *s = NULL;
}

/* ---- looking ---- */

struct ps_cpu_waits {
    ps_thread thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    int threads;
};

/* Since they started. A thread's file says how long it ran and how long it waited. */
static uint64_t threads_waited_ns(void)
{
    uint64_t sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        unsigned long long waited;
        char path[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", d->d_name);
        FILE *f = fopen(path, "re");
        if (f && fscanf(f, "%*u %llu", &waited) == 1) sum += waited;
        if (f) fclose(f);
    }
    if (tasks) closedir(tasks);
    return sum;
}

/* False when it is to stop. */
static bool waits_pause(ps_cpu_waits *w, uint64_t ms)
{
    const ps_deadline end = ps_deadline_in_ms(ms);
    pthread_mutex_lock(&w->lock);
    while (!w->stop && ps_cond_wait(&w->changed, &w->lock, end)) {
    }
    const bool stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return !stop;
}

/* What this thread has used of a core. */
static uint64_t used_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void *waits_main(void *arg)
{
    ps_cpu_waits *w = arg;
    ps_cpu_crowd crowd = {0};
    ps_cpu_sleepers *sleepers = NULL;
    uint64_t then = ps_clock_ns(), before = threads_waited_ns();
    uint64_t pause = LOOK_MS;
    for (uint64_t n = 1; waits_pause(w, pause); n++) {
        pause = used_ms() * LOOK_COST / n;
        if (pause < LOOK_MS) pause = LOOK_MS;
        const uint64_t now = ps_clock_ns(), waited = threads_waited_ns();
        const bool slept = crowd.sleep;
        // A thread that has ended counts no longer, so the sum may be less.
        ps_cpu_crowd_look(&crowd, waited > before ? waited - before : 0, now - then);
        then = now;
        before = waited;
        if (crowd.sleep == slept) continue;
        PS_DEBUG("threads", "wait=%s", crowd.sleep ? "asleep" : "spinning");
        if (!crowd.sleep)
            ps_cpu_sleepers_destroy(&sleepers);
        else if (ps_cpu_sleepers_create(w->threads, &sleepers) != PS_OK)
            break;
    }
    ps_cpu_sleepers_destroy(&sleepers);
    return arg;
}

ps_err ps_cpu_waits_start(int threads, ps_cpu_waits **out)
{
    ps_cpu_waits *w;
    PS_TRY(PS_NEW(&w, 1, "waits"));
    w->threads = threads;
    pthread_mutex_init(&w->lock, NULL);
    ps_cond_init(&w->changed);
    const ps_err err = ps_thread_start(&w->thread, "waits", waits_main, w);
    if (err == PS_OK)
        *out = w;
    else
        free(w);
    return err;
}

void ps_cpu_waits_stop(ps_cpu_waits **out)
{
    ps_cpu_waits *w = *out;
    if (!w) return;
    ps_cond_set(&w->changed, &w->lock, &w->stop);
    ps_thread_join(&w->thread);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
    *out = NULL;
}
