#undef _FORTIFY_SOURCE // longjmp goes from stack to stack
#include "world.h"

#include <errno.h>
#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 512 << 10, OWN_BYTES = 2048 };

typedef struct task {
    world_process *process;
    struct task *next; // of the process
    int place;         // among all
    char name[WORLD_NAME];
    void *(*run)(void *);
    void *arg, *result;
    ucontext_t begin;
    bool has_begun;
    jmp_buf context; // while another one runs; so are the next two
    int code;        // errno
    uint8_t own[OWN_BYTES];
    world_work work;
    bool done;
    bool waits; // for ready(what), until then
    bool (*ready)(void *);
    void *what;
    uint64_t until_ns;
} task;

typedef struct event {
    uint64_t at_ns, number_of; // of the event: those of one time are in order
    void (*act)(void *, uint64_t);
    void *arg;
    uint64_t number;
} event;

enum { TASKS = 8192, TASKS_FIRST = 512, CALL_NS = 50, SWITCH_NS = 2000 };

static struct {
    world_options o;
    uint64_t now_ns, random;
    world_process processes[WORLD_PROCESSES];
    int n_processes;
    task *tasks[TASKS];
    int n_tasks, look_again;   // for those that have ended, when there are that many
    uint64_t able[TASKS / 64]; // bit i: task i can go on
    int n_able;
    // A tree, its leaves from TASKS on: how long before the end of time a task is looked
    // at again, 0: not for the time; of a node the most of both below.
    uint64_t soon[2 * TASKS];
    event *events; // a heap
    size_t n_events, room;
    uint64_t n_events_ever;
    int code;
    task *running;
    uint64_t metered_ns;
    ucontext_t outside; // of the world: where its run began
    // The programs' thread-local variables: each task has its own values of them.
    void *own;
    size_t own_bytes;
} W;

/* ---- chance (splitmix64) ---- */

uint64_t world_draw(uint64_t below)
{
    uint64_t z = W.random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

uint64_t world_choice_of(uint64_t kind, uint64_t what, uint64_t below)
{
    const uint64_t now = W.random;
    W.random = kind * 1000 + what;
    const uint64_t chosen = world_draw(below);
    W.random = now;
    return chosen;
}

bool world_since(world_edition e)
{
    return W.o.edition >= (int)e;
}

uint64_t world_choice(uint64_t what, uint64_t below)
{
    return world_choice_of(W.o.kind ? W.o.kind : W.o.seed, what, below);
}

/* ---- events ---- */

static bool event_before(const event *a, const event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->number_of < b->number_of;
}

void world_at(uint64_t at_ns, void (*act)(void *, uint64_t), void *arg, uint64_t number)
{
    if (W.n_events == W.room) {
        W.room = W.room ? 2 * W.room : 256;
        W.events = realloc(W.events, W.room * sizeof *W.events);
        if (!W.events) world_wrong("the world has no memory");
    }
    const event e = {at_ns, W.n_events_ever++, act, arg, number};
    size_t i = W.n_events++;
    for (; i > 0 && event_before(&e, &W.events[(i - 1) / 2]); i = (i - 1) / 2)
        W.events[i] = W.events[(i - 1) / 2];
    W.events[i] = e;
}

static event take_event(void)
{
    const event first = W.events[0], last = W.events[--W.n_events];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= W.n_events) break;
        if (child + 1 < W.n_events &&
            event_before(&W.events[child + 1], &W.events[child]))
            child++;
        if (!event_before(&W.events[child], &last)) break;
        W.events[i] = W.events[child];
        i = child;
    }
    W.events[i] = last;
    return first;
}

/* ---- the baton ---- */

static void task_look_at(const task *t, uint64_t at_ns)
{
    size_t i = TASKS + (size_t)t->place;
    W.soon[i] = UINT64_MAX - at_ns;
    for (i /= 2; i > 0; i /= 2)
        W.soon[i] = W.soon[2 * i] > W.soon[2 * i + 1] ? W.soon[2 * i] : W.soon[2 * i + 1];
}

/* Whether it can go on, and when that may change by itself. */
static void task_look(const task *t)
{
    const bool gone = t->done || t->process->dead;
    const bool frozen = t->process->frozen_ns > W.now_ns;
    const bool able =
        !gone && !frozen && (!t->waits || W.now_ns >= t->until_ns || t->ready(t->what));
    uint64_t *word = &W.able[t->place / 64];
    const uint64_t bit = UINT64_C(1) << t->place % 64;
    W.n_able += able - ((*word & bit) != 0);
    *word = able ? *word | bit : *word & ~bit;
    task_look_at(t, gone || able ? UINT64_MAX
                    : frozen     ? t->process->frozen_ns
                                 : t->until_ns);
}

void world_touch(const world_process *p)
{
    for (const task *t = p->tasks; t; t = t->next)
        task_look(t);
}

void world_touch_all(void)
{
    for (int i = 0; i < W.n_tasks; i++)
        task_look(W.tasks[i]);
}

/* When something happens next, where nobody can go on now. */
static uint64_t next_time(void)
{
    const uint64_t next = UINT64_MAX - W.soon[1];
    return W.n_events > 0 && W.events[0].at_ns < next ? W.events[0].at_ns : next;
}

/* Whose time has come. */
static void look_at_late(void)
{
    while (UINT64_MAX - W.soon[1] <= W.now_ns) {
        size_t i = 1;
        while (i < TASKS)
            i = 2 * i + (W.soon[2 * i] < W.soon[2 * i + 1]);
        task_look(W.tasks[i - TASKS]);
    }
}

/* The n-th of those that can go on, in the order of their start. */
static task *nth_able(int n)
{
    int word = 0;
    for (int in; n >= (in = __builtin_popcountll(W.able[word])); word++)
        n -= in;
    uint64_t bits = W.able[word];
    while (n-- > 0)
        bits &= bits - 1;
    return W.tasks[64 * word + __builtin_ctzll(bits)];
}

static void run_events(void)
{
    while (W.n_events > 0 && W.events[0].at_ns <= W.now_ns) {
        const event e = take_event();
        e.act(e.arg, e.number);
    }
}

static _Noreturn void world_stuck(const char *why)
{
    fprintf(W.o.errors, "world: %s at %.6f s:\n", why, (double)W.now_ns * 1e-9);
    for (int i = 0; i < W.n_tasks; i++) {
        const task *t = W.tasks[i];
        if (!t->done && !t->process->dead)
            fprintf(W.o.errors, "world:   %s, thread %s\n", t->process->name, t->name);
    }
    world_wrong("%s", why);
}

/* Who goes on. */
static task *choose_task(void)
{
    for (;;) {
        run_events();
        look_at_late();
        world_touch(&W.processes[0]); // it watches what others do
        if (W.n_able > 0) {
            const int n = W.n_able == 1 ? 0 : (int)world_draw((uint64_t)W.n_able);
            task *next = nth_able(n);
            next->waits = false;
            return next;
        }
        const uint64_t next = next_time();
        if (next == UINT64_MAX) world_stuck("nobody can go on");
        if (next > W.o.most_ns) world_stuck("the job does not end");
        if (next > W.now_ns) W.now_ns = next;
    }
}

/* From `from` to `to`: the baton is the processor. */
static void switch_to(task *from, task *to)
{
    from->code = errno;
    memcpy(from->own, W.own, W.own_bytes);
    memcpy(W.own, to->own, W.own_bytes);
    W.running = to;
    if (_setjmp(from->context) == 0) { // swapcontext asks the kernel about signals
        if (to->has_begun) _longjmp(to->context, 1);
        to->has_begun = true;
        setcontext(&to->begin);
    }
    errno = from->code;
}

int __real_clock_gettime(clockid_t clock, struct timespec *out);

/* The time since the last call was that task's. */
static void meter(task *t)
{
    if (!W.o.measures) return;
    struct timespec now;
    __real_clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    const uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    if (t) t->work.ns += ns - W.metered_ns;
    W.metered_ns = ns;
}

world_work world_work_of(const char *name)
{
    world_work sum = {0};
    for (int i = 0; i < W.n_tasks; i++) {
        const task *t = W.tasks[i];
        if (strcmp(t->name, name) != 0) continue;
        sum.ns += t->work.ns;
        sum.messages += t->work.messages;
        sum.bytes += t->work.bytes;
    }
    return sum;
}

void world_note_message(uint64_t bytes)
{
    W.running->work.messages++;
    W.running->work.bytes += bytes;
}

void world_name_task(void *arg, const char *name)
{
    task *t = arg;
    snprintf(t->name, sizeof t->name, "%s", name);
}

/* Hands the baton on, and waits for it. */
static void hand_on(void)
{
    task *me = W.running;
    meter(me);
    world_touch(me->process);
    task *next = choose_task();
    meter(NULL);
    W.now_ns += 1 + world_draw(SWITCH_NS);
    if (next != me) switch_to(me, next);
}

bool world_wait(bool (*ready)(void *), void *arg, uint64_t until_ns)
{
    task *me = W.running;
    me->waits = true;
    me->ready = ready;
    me->what = arg;
    me->until_ns = until_ns;
    hand_on();
    return ready(arg);
}

static bool is_ready(void *arg)
{
    return arg == NULL;
}

void world_yield(void)
{
    if (!W.running) return; // ps-world's own process
    world_wait(is_ready, NULL, UINT64_MAX);
}

/* ---- tasks ---- */

static void *free_stacks; // each begins with the next one

static void *take_stack(void)
{
    void *stack = free_stacks;
    if (stack) {
        free_stacks = *(void **)stack;
        return stack;
    }
    stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) world_wrong("no memory for a stack");
    return stack;
}

static void end_task(task *t)
{
    task **at = &t->process->tasks;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    t->done = true;
    task_look(t);
}

static void task_main(void)
{
    task *t = W.running;
    t->result = t->run(t->arg);
    end_task(t);
    world_touch(t->process);
    task *next = choose_task();
    *(void **)t->begin.uc_stack.ss_sp = free_stacks; // who comes next may have it
    free_stacks = t->begin.uc_stack.ss_sp;
    switch_to(t, next);
}

static void make_context(ucontext_t *c)
{
    getcontext(c);
    c->uc_stack.ss_sp = take_stack();
    c->uc_stack.ss_size = STACK_BYTES;
    makecontext(c, task_main, 0);
}

/* The places of tasks that have ended, and those of dead processes and their stacks. */
static void free_places(void)
{
    int n = 0;
    for (int i = 0; i < W.n_tasks; i++) {
        task *t = W.tasks[i];
        if (!t->done && !t->process->dead) {
            (W.tasks[n] = t)->place = n, n++;
        } else if (!t->done && t != W.running) {
            *(void **)t->begin.uc_stack.ss_sp = free_stacks;
            free_stacks = t->begin.uc_stack.ss_sp;
        }
        if (t->process->dead) t->process->tasks = NULL;
    }
    W.n_tasks = n;
    W.look_again = 2 * n + TASKS_FIRST < TASKS ? 2 * n + TASKS_FIRST : TASKS;
    W.n_able = 0;
    memset(W.able, 0, sizeof W.able);
    memset(W.soon, 0, sizeof W.soon);
    world_touch_all();
}

static task *new_task(world_process *p, const char *name, void *(*run)(void *), void *arg)
{
    if (W.n_tasks >= W.look_again) free_places();
    task *t = calloc(1, sizeof *t);
    if (!t || W.n_tasks == TASKS) world_wrong("too many threads");
    t->process = p;
    t->run = run;
    t->arg = arg;
    t->until_ns = UINT64_MAX;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->place = W.n_tasks;
    W.tasks[W.n_tasks++] = t;
    t->next = p->tasks;
    p->tasks = t;
    task_look(t);
    make_context(&t->begin);
    return t;
}

void *world_start_task(const char *name, void *(*run)(void *), void *arg)
{
    return new_task(W.running->process, name, run, arg);
}

static bool task_done(void *arg)
{
    return ((const task *)arg)->done;
}

void world_join_task(void *arg, void **result)
{
    task *t = arg;
    while (!world_wait(task_done, t, UINT64_MAX)) {
    }
    if (result) *result = t->result;
}

world_process *world_self(void)
{
    return W.running->process;
}

const world_process *world_process_at(int index)
{
    return index < W.n_processes ? &W.processes[index] : NULL;
}

const world_process *world_running(void)
{
    return W.running ? W.running->process : NULL;
}

/* ---- processes ---- */

static void end_process(world_process *p)
{
    p->dead = true;
    world_touch(p);
    world_net_forget(p);
    world_files_forget(p);
}

static void *process_main(void *arg)
{
    world_process *p = arg;
    p->code = p->main(p->arg);
    p->ended = true;
    world_say("ends code=%d", p->code);
    world_memory_check_freed(p);
    end_process(p); // with what it has left running
    return NULL;
}

world_process *world_start(const char *name, const world_process *host,
                           int (*run)(void *), void *arg)
{
    if (W.n_processes == WORLD_PROCESSES) world_wrong("too many processes");
    world_process *p = &W.processes[W.n_processes];
    *p = (world_process){.index = W.n_processes++, .main = run, .arg = arg};
    snprintf(p->name, sizeof p->name, "%s", name);
    p->host = host ? host->host : p->index;
    snprintf(p->address, sizeof p->address, "10.0.%d.%d", (p->host + 1) / 256,
             (p->host + 1) % 256);
    new_task(p, "main", process_main, p);
    return p;
}

void world_kill(world_process *p)
{
    if (p->dead) return;
    world_say("kill %s", p->name);
    end_process(p);
}

void world_die(void)
{
    for (;;)
        world_yield(); // its process is dead: it does not come back
}

void world_freeze(world_process *p, uint64_t for_ns)
{
    world_say("freeze %s for %.3f s", p->name, (double)for_ns * 1e-9);
    if (p->frozen_ns < W.now_ns + for_ns) p->frozen_ns = W.now_ns + for_ns;
    world_touch(p);
}

void world_clock_jumps(world_process *p, int64_t by_s)
{
    world_say("clock of %s jumps by %lld s", p->name, (long long)by_s);
    p->clock_s += by_s;
}

void world_signal(world_process *p, int number)
{
    world_say("signal %d to %s", number, p->name);
    if (!p->signal) p->signal = number;
    world_touch(p);
}

/* ---- the run ---- */

uint64_t world_now(void)
{
    return W.now_ns += CALL_NS;
}

uint64_t world_time(void)
{
    return W.now_ns;
}

bool world_traces(void)
{
    return W.o.trace || W.o.hash;
}

bool world_measures(void)
{
    return W.o.measures;
}

bool world_logs(void)
{
    return W.o.trace;
}

void world_say(const char *format, ...)
{
    if (!world_traces()) return;
    char line[400];
    int n = snprintf(line, sizeof line, "%12.6f %-11s ", (double)W.now_ns * 1e-9,
                     W.running ? W.running->process->name : "world");
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    for (const char *c = line; W.o.hash && *c; c++)
        *W.o.hash = (*W.o.hash ^ (uint8_t)*c) * UINT64_C(1099511628211);
    if (W.o.trace) puts(line);
}

void world_wrong(const char *format, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(W.o.errors, "world: seed %llu, %.6f s: ", (unsigned long long)W.o.seed,
            (double)W.now_ns * 1e-9);
    va_start(args, format);
    vfprintf(W.o.errors, format, args);
    va_end(args);
    fputc('\n', W.o.errors);
    fflush(W.o.errors);
    _exit(1);
}

static void *run_first(void *arg)
{
    world_process *p = arg;
    W.code = p->main(p->arg);
    setcontext(&W.outside);
    return NULL;
}

/* Where the variables of this thread are that belong to the program itself. */
static int find_own(struct dl_phdr_info *program, size_t bytes, void *arg)
{
    (void)bytes;
    (void)arg;
    for (int i = 0; i < program->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &program->dlpi_phdr[i];
        if (part->p_type != PT_TLS) continue;
        if (part->p_filesz > 0 || part->p_memsz > OWN_BYTES)
            world_wrong("thread-local variables that are not 0, or too many");
        W.own = program->dlpi_tls_data;
        W.own_bytes = part->p_memsz;
    }
    return 1; // the first one is the program
}

int world_run(const world_options *options, int (*first)(void *), void *arg)
{
    W.o = *options;
    W.random = options->seed * 7919 + options->schedule;
    W.now_ns = UINT64_C(1000000000000); // a host that is up for a while
    W.o.most_ns += W.now_ns;
    dl_iterate_phdr(find_own, NULL);
    world_process *p = &W.processes[W.n_processes++];
    *p = (world_process){.name = "nemesis", .main = first, .arg = arg};
    snprintf(p->address, sizeof p->address, "10.0.0.1");
    W.running = new_task(p, "main", run_first, p);
    W.running->has_begun = true;
    swapcontext(&W.outside, &W.running->begin);
    fflush(stdout);
    return W.code;
}
