/* What the programs call of the system, in the world: time, waiting, threads, events,
 * random numbers, addresses. All of it is linked with --wrap. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "bell.h"
#include "clock.h"
#include "interrupt.h"
#include "net.h"
#include "procstat.h"
#include "signal_watch.h"
#include "world.h"
#include "zsock.h"

/* ---- time ---- */

enum { EPOCH_S = 1800000000 };
#define SECOND_NS UINT64_C(1000000000)

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    uint64_t now = world_now();
    out->tv_sec = (time_t)(now / SECOND_NS);
    if (clock == CLOCK_REALTIME) out->tv_sec += EPOCH_S + world_self()->clock_s;
    out->tv_nsec = (long)(now % SECOND_NS);
    return 0;
}

/* For the lines of the log, whether they are shown or not: no time passes. */
double __wrap_ps_clock_seconds_since(uint64_t ns)
{
    return (double)(world_time() - ns) * 1e-9;
}

time_t __wrap_time(time_t *out)
{
    struct timespec now;
    __wrap_clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

static bool never(void *arg)
{
    return arg != NULL;
}

int __wrap_nanosleep(const struct timespec *for_time, struct timespec *left)
{
    (void)left;
    world_wait(never, NULL,
               world_now() + (uint64_t)for_time->tv_sec * SECOND_NS +
                   (uint64_t)for_time->tv_nsec);
    return 0;
}

int __wrap_usleep(useconds_t us)
{
    world_wait(never, NULL, world_now() + (uint64_t)us * 1000u);
    return 0;
}

/* ---- threads ---- */

enum { THREADS = 1 << 18 };
static struct {
    void *task;
} threads[THREADS]; // a pthread_t is a place here, plus 1
static int n_threads;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *arg)
{
    (void)attributes;
    if (n_threads == THREADS) world_wrong("too many threads were ever started");
    threads[n_threads].task = world_start_task("thread", run, arg);
    *thread = (pthread_t)++n_threads;
    return 0;
}

int __wrap_pthread_setname_np(pthread_t thread, const char *name)
{
    world_name_task(threads[(size_t)thread - 1].task, name);
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    world_join_task(threads[(size_t)thread - 1].task, result);
    return 0;
}

int __wrap_pthread_detach(pthread_t thread)
{
    (void)thread;
    return 0;
}

static bool could_lock(void *mutex)
{
    return pthread_mutex_trylock(mutex) == 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    while (!could_lock(mutex))
        world_wait(never, NULL, world_now() + 1000);
    return 0;
}

/* A condition variable of the world: how often it was signalled. */
typedef struct condition {
    uint64_t signals;
} condition;

typedef struct awaited {
    const condition *c;
    uint64_t before;
} awaited;

static bool was_signalled(void *arg)
{
    const awaited *a = arg;
    return a->c->signals != a->before;
}

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes)
{
    (void)attributes;
    *(condition *)cond = (condition){0};
    return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *cond)
{
    (void)cond;
    return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    ((condition *)cond)->signals++; // wakes all: it is allowed to
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    ((condition *)cond)->signals++;
    return 0;
}

static int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex,
                           uint64_t until_ns)
{
    awaited a = {.c = (const condition *)cond};
    a.before = a.c->signals;
    pthread_mutex_unlock(mutex);
    const bool signalled = world_wait(was_signalled, &a, until_ns);
    __wrap_pthread_mutex_lock(mutex);
    return signalled ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    return cond_wait_until(cond, mutex, UINT64_MAX);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *at)
{
    return cond_wait_until(cond, mutex,
                           (uint64_t)at->tv_sec * SECOND_NS + (uint64_t)at->tv_nsec);
}

/* A bell rings when its sequence goes on. */
typedef struct rung {
    const ps_bell *bell;
    uint32_t before;
} rung;

static bool was_rung(void *arg)
{
    const rung *r = arg;
    return ps_bell_sequence(r->bell) != r->before;
}

void __wrap_ps_bell_sleep(ps_bell *bell, uint32_t sequence, int ms)
{
    rung r = {bell, sequence};
    world_wait(was_rung, &r, world_now() + (uint64_t)ms * 1000000u);
}

int __wrap_sched_yield(void)
{
    world_yield();
    return 0;
}

/* ---- events ---- */

enum { EVENTS = 1 << 18 };
static uint64_t counts[EVENTS];
static const world_process *waiters[EVENTS]; // whose events they are
static int n_events;

static bool is_event(int fd)
{
    return fd >= WORLD_FD && fd < WORLD_FD + n_events;
}

int __wrap_eventfd(unsigned count, int flags)
{
    (void)flags;
    if (n_events == EVENTS) world_wrong("too many events were ever made");
    counts[n_events] = count;
    waiters[n_events] = world_self();
    return WORLD_FD + n_events++;
}

ssize_t __real_write(int, const void *, size_t);
ssize_t __real_read(int, void *, size_t);
int __real_close(int);
int __real_open(const char *, int, ...);

ssize_t __wrap_write(int fd, const void *bytes, size_t n)
{
    if (!is_event(fd)) {
        if (world_disk_takes(fd)) return __real_write(fd, bytes, n);
        errno = ENOSPC;
        return -1;
    }
    uint64_t more;
    memcpy(&more, bytes, sizeof more);
    counts[fd - WORLD_FD] += more;
    if (waiters[fd - WORLD_FD] != world_self()) world_touch(waiters[fd - WORLD_FD]);
    return (ssize_t)n;
}

ssize_t __real_pwrite(int, const void *, size_t, off_t);

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    if (world_disk_takes(fd)) return __real_pwrite(fd, bytes, n, at);
    errno = ENOSPC;
    return -1;
}

ssize_t __wrap_read(int fd, void *bytes, size_t n)
{
    if (!is_event(fd)) return __real_read(fd, bytes, n);
    if (counts[fd - WORLD_FD] == 0) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(bytes, &counts[fd - WORLD_FD], sizeof(uint64_t));
    counts[fd - WORLD_FD] = 0;
    return (ssize_t)n;
}

/* Real files, of whom: a lock of a process that has died is free. */
enum { FILES = 1024 };
static const world_process *owner_of[FILES];

int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const bool creates = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
    const mode_t mode = creates ? va_arg(args, mode_t) : 0;
    va_end(args);
    const int fd = __real_open(path, flags, mode);
    if (fd >= 0 && fd < FILES) owner_of[fd] = world_self();
    return fd;
}

int __wrap_close(int fd)
{
    if (fd >= WORLD_FD) return 0;
    if (fd >= 0 && fd < FILES) owner_of[fd] = NULL;
    return __real_close(fd);
}

void world_files_forget(const world_process *p)
{
    for (int fd = 0; fd < FILES; fd++)
        if (owner_of[fd] == p) __wrap_close(fd);
}

typedef struct polled {
    struct pollfd *items;
    nfds_t n;
} polled;

bool world_fd_readable(int fd)
{
    return is_event(fd) ? counts[fd - WORLD_FD] > 0
                        : world_monitor_readable(fd) || world_shm_readable(fd);
}

static int ready_items(const polled *p)
{
    int n = 0;
    for (nfds_t i = 0; i < p->n; i++) {
        struct pollfd *item = &p->items[i];
        const bool readable = world_fd_readable(item->fd);
        item->revents = readable ? item->events & POLLIN : 0;
        n += item->revents != 0;
    }
    return n;
}

static bool any_ready(void *arg)
{
    return ready_items(arg) > 0;
}

int __wrap_poll(struct pollfd *items, nfds_t n, int ms)
{
    polled p = {items, n};
    if (ms != 0)
        world_wait(any_ready, &p,
                   ms < 0 ? UINT64_MAX : world_now() + (uint64_t)ms * 1000000u);
    return ready_items(&p);
}

/* ---- chance ---- */

ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)out)[i] = (uint8_t)world_draw(256);
    return (ssize_t)n;
}

/* ---- the host, and others ---- */

void (*world_fault_point)(const char *name);

void __wrap_ps_fault_point(const char *name)
{
    if (world_fault_point) world_fault_point(name);
}

void __wrap_ps_host_find(ps_host *out)
{
    const world_process *p = world_self();
    *out = (ps_host){.cores = 2};
    snprintf(out->name, sizeof out->name, "host%d", p->host);
    snprintf(out->boot_id, sizeof out->boot_id, "boot-%d", p->host);
    snprintf(out->net_ns, sizeof out->net_ns, "net:[%d]", p->host);
    snprintf(out->cpu, sizeof out->cpu, "made-up");
}

int __wrap_ps_process_cores(void)
{
    return 1;
}

int __wrap_ps_machine_cores(void)
{
    return 1;
}

ps_err __wrap_ps_net_route_address(const char *host, ps_deadline deadline,
                                   char out[PS_ADDRESS_MAX])
{
    (void)host;
    (void)deadline;
    snprintf(out, PS_ADDRESS_MAX, "%s", world_self()->address);
    return PS_OK;
}

void __wrap_ps_net_default_address(char out[PS_ADDRESS_MAX])
{
    snprintf(out, PS_ADDRESS_MAX, "%s", world_self()->address);
}

typedef struct dialling {
    const world_process *process;
    char endpoint[PS_ENDPOINT_MAX];
} dialling;

static bool dialling_ends(void *arg)
{
    const dialling *d = arg;
    return d->process->signal || world_listens(d->endpoint);
}

ps_err __wrap_ps_net_dial(const char *host, int port, ps_deadline deadline,
                          char remote[PS_ADDRESS_MAX], char local[PS_ADDRESS_MAX])
{
    dialling d = {.process = world_self()};
    ps_net_endpoint(host, port, d.endpoint, sizeof d.endpoint);
    snprintf(remote, PS_ADDRESS_MAX, "%s", host);
    snprintf(local, PS_ADDRESS_MAX, "%s", world_self()->address);
    if (!world_wait(dialling_ends, &d, deadline.at_ns))
        return ps_err_set(PS_ERR_TIMEOUT, "nobody listens at %s", d.endpoint);
    return ps_interrupt_check();
}

bool __wrap_ps_net_refuses(const char *number, int port)
{
    char endpoint[PS_ENDPOINT_MAX];
    ps_net_endpoint(number, port, endpoint, sizeof endpoint);
    return !world_listens(endpoint);
}

/* ---- what a process of the world does not have: signals, limits, a stop ---- */

ps_err __wrap_ps_signal_watch_start(ps_signal_watch *watch)
{
    (void)watch;
    return PS_OK;
}

void __wrap_ps_signal_watch_stop(ps_signal_watch *watch)
{
    (void)watch;
}

void __wrap_ps_signal_watch_attach(ps_signal_watch *watch, ps_member *member,
                                   uint64_t limit_ms)
{
    (void)watch;
    (void)member;
    (void)limit_ms;
}

int __wrap_ps_signal_watch_detach(ps_signal_watch *watch)
{
    (void)watch;
    return 0;
}

ps_err __wrap_ps_interrupt_init(void)
{
    return PS_OK;
}

int __wrap_ps_interrupt_signal(void)
{
    return world_self()->signal;
}

bool __wrap_ps_interrupted(void)
{
    return world_self()->signal != 0;
}

ps_err __wrap_ps_interrupt_check(void)
{
    PS_TRY(ps_interrupt_ask_hook());
    if (world_self()->signal == 0) return PS_OK;
    return ps_err_set(PS_ERR_INTERRUPTED, "interrupted by a signal");
}

ps_err __wrap_ps_clock_watch(void)
{
    return PS_OK;
}

void __wrap_ps_fd_limit_raise(void)
{
}
