/* ps-world: whole jobs in one process, with virtual time (world.h).
 *
 *   ps-world --seed S [--trace] [--without FAULTS] [--here] [--edition N]
 *   ps-world --seeds FIRST..LAST [--twice] [--size N]
 *   ps-world --seconds N            new seeds, from the time of day on
 *   ps-world --failed               seeds that have failed once, as they were then
 *   ps-world --members N            how the coordinator fares with N members
 * (world_scale.c)
 *   ps-world --deaths N             what members hold who live through N deaths
 * (world_deaths.c)
 *
 * A seed stands for a job and its faults: an even one for a program on libpstrain, an odd
 * one for ps-worker with a model. Exit code 1, and the seed on the last line,
 * where a judge objects, after the fewest faults with which it still does. --without: a
 * number whose bit i leaves out fault i. --trace: each message, event, fault and line of
 * a log.
 * --twice: each run is made again, and its trace has to be the same. --size N: the
 * programs on libpstrain alone, each job of N servers and N workers: for timings. --here:
 * the run with the faults alone, in this process, for gdb; nobody compares its weights.
 * --edition: of what seeds mean (world.h). */
#include <dnnl.h>
#include <ftw.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "world_job.h"

int __real_clock_gettime(clockid_t clock, struct timespec *out);

enum { MOST_S = 60 };   // of real time for a seed: the programs go round without an end
enum { SHRINK_S = 60 }; // then the faults that are left are those

enum { KINDS = 128 }; // of jobs with a model

typedef struct wanted {
    uint64_t first, last, seed; // the present one
    int edition;
    uint64_t without;                // faults that do not happen
    double seconds;                  // 0: all of them
    bool trace, twice, quiet, whole; // whole: the undisturbed run is traced, too
    bool here;
    int size; // of jobs without a model, the only ones then; 0: all, of any size
} wanted;

static char folder[64]; // of this process: the files of one job at a time
static char record[80]; // of the last run

static int remove_it(const char *path, const struct stat *s, int kind, struct FTW *at)
{
    (void)s;
    (void)kind;
    (void)at;
    return remove(path);
}

static void empty_folder(void)
{
    nftw(folder, remove_it, 16, FTW_PHYS | FTW_DEPTH);
    if (mkdir(folder, 0700) != 0) fprintf(stderr, "world: cannot empty %s\n", folder);
}

typedef struct outcome {     // shared with the process of a run
    uint64_t weights, trace; // hashes
    world_memory memory;
} outcome;

/* In a process of its own: what a job leaves behind disturbs no other. */
static uint64_t kind_of(uint64_t seed)
{
    return seed % 2 == 1 ? 1 + seed / 2 % KINDS : 0;
}

static int run_here(const world_job_options *job, const wanted *w, outcome *out)
{
    world_options o = {.seed = w->seed,
                       .edition = w->edition,
                       .schedule = job->disturbed ? 1 : 0,
                       .kind = kind_of(w->seed),
                       .trace = w->trace && (job->disturbed || w->whole),
                       .hash = w->twice ? &out->trace : NULL,
                       .errors = fdopen(dup(STDERR_FILENO), "w")};
    if (!w->here) alarm(MOST_S);
    setvbuf(stdout, NULL, _IOLBF, 0);
    // The programs' own words belong to the trace.
    if (o.trace)
        dup2(STDOUT_FILENO, STDERR_FILENO);
    else if (!freopen("/dev/null", "w", stderr))
        return 1;
    world_job_options its = *job;
    its.size = w->size;
    its.memory = &out->memory;
    return (o.kind ? world_train_run : world_job_run)(&o, &its, &out->weights);
}

/* What each run would otherwise do again: oneDNN makes its code when it is first asked.
 */
static void warm_up(void)
{
    enum { N = 8 };
    static float a[N * N], product[N * N];
    static bool is_warm;
    for (const char *how = "NNTN"; how[1] && !is_warm; how++)
        (void)dnnl_sgemm(how[0], how[1], N, N, N, 1.0f, a, N, a, N, 0.0f, product, N);
    is_warm = true;
}

static int run_once(const world_job_options *job, const wanted *w, outcome *out)
{
    outcome *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *shared = (outcome){.weights = out->weights, .memory = out->memory};
    if (job->record.stretch == 0) empty_folder();
    if (kind_of(w->seed)) warm_up();
    fflush(NULL);
    if (w->here) return run_here(job, w, out);
    const pid_t pid = fork();
    if (pid == 0) {
        if (w->quiet && !freopen("/dev/null", "w", stderr)) _exit(1);
        _exit(run_here(job, w, shared));
    }
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0) {
    }
    *out = *shared;
    munmap(shared, sizeof *shared);
    if (pid > 0 && WIFSIGNALED(status) && !w->quiet)
        fprintf(stderr, "world: seed %" PRIu64 ": ended by signal %d (%s)\n", w->seed,
                WTERMSIG(status), strsignal(WTERMSIG(status)));
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

static int run_again(const wanted *w, const outcome *first)
{
    const world_job_options job = {folder, true, w->without, {0}, NULL};
    outcome again = {.weights = first->weights, .memory = first->memory};
    const int code = run_once(&job, w, &again);
    if (code != 0 || again.trace == first->trace) return code;
    fprintf(stderr, "world: seed %" PRIu64 ": another trace in its second run\n",
            w->seed);
    return 1;
}

/* Whether the run has left it. */
static bool has_left(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* A run, and its replay by what it has recorded: the file or folder of this name, or else
 * of the other one. */
static int run_and_replay(const wanted *w, const char *name, const char *or_name)
{
    char path[160];
    world_job_options job = {folder, true, w->without, {0}, NULL};
    outcome out = {0};
    if (run_once(&job, w, &out) != 0) return 1;
    snprintf(path, sizeof path, "%s/%s", folder, has_left(name) ? name : or_name);
    if (rename(path, record) != 0) {
        fprintf(stderr, "world: seed %" PRIu64 ": no %s\n", w->seed, path);
        return 1;
    }
    job = (world_job_options){folder, false, 0, {record, 0}, NULL};
    const int n = strstr(path, "membership") ? world_train_stretches(record) : 1;
    int code = 0;
    for (; job.record.stretch < n && code == 0; job.record.stretch++)
        code = run_once(&job, w, &out);
    nftw(record, remove_it, 16, FTW_PHYS | FTW_DEPTH);
    return code;
}

static int run_against_undisturbed(const wanted *w)
{
    static outcome undisturbed[WORLD_NOW + 1][KINDS + 1]; // of each kind
    const uint64_t kind = kind_of(w->seed);
    outcome *of_kind = &undisturbed[w->edition][kind];
    outcome out = {0};
    if (kind) out = *of_kind;
    world_job_options job = {.folder = folder};
    const bool asks = kind ? out.weights == 0 : world_job_has_no_closed_form(w->seed);
    int code = asks ? run_once(&job, w, &out) : 0;
    if (code != 0 && w->trace) { // then it is the one to show
        wanted whole = *w;
        whole.whole = true;
        return run_once(&job, &whole, &out);
    }
    if (kind) *of_kind = out;
    job = (world_job_options){folder, true, w->without, {0}, NULL};
    if (code == 0) code = run_once(&job, w, &out);
    return code == 0 && w->twice ? run_again(w, &out) : code;
}

static int run_seed(const wanted *w)
{
    const world_job_options job = {folder, true, w->without, {0}, NULL};
    outcome out = {0};
    if (w->here) return run_once(&job, w, &out);
    switch (kind_of(w->seed) ? world_train_subject(kind_of(w->seed)) : WORLD_FIXED) {
    case WORLD_OWN_PACE:
        return run_and_replay(w, "order", "out/policy.log");
    case WORLD_ELASTIC:
        return run_and_replay(w, "out/membership.jsonl", "");
    case WORLD_DEATHS_AT_OWN_PACE:
        return run_once(&job, w, &out);
    default:
        return run_against_undisturbed(w);
    }
}

static double now_s(clockid_t clock)
{
    struct timespec t;
    __real_clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Leaves out each fault without which the seed fails, too. */
static void shrink(wanted w)
{
    const double began = now_s(CLOCK_MONOTONIC);
    w.quiet = true;
    w.trace = false;
    for (int i = 0; i < 64 && now_s(CLOCK_MONOTONIC) - began < SHRINK_S; i++) {
        wanted fewer = w;
        fewer.without |= UINT64_C(1) << i;
        if (run_seed(&fewer) != 0) w.without = fewer.without;
    }
    printf("world: the fewest faults: --seed %" PRIu64 " --without %" PRIu64
           " --edition %d",
           w.seed, w.without, w.edition);
    if (w.size) printf(" --size %d", w.size);
    putchar('\n');
}

static int run_seeds(wanted *w)
{
    const double began = now_s(CLOCK_MONOTONIC);
    uint64_t n = 0;
    for (w->seed = w->first; w->seed <= w->last; w->seed += w->size ? 2 : 1, n++) {
        if (w->seconds > 0 && now_s(CLOCK_MONOTONIC) - began > w->seconds) break;
        if (run_seed(w) == 0) continue;
        printf("world: seed %" PRIu64 " fails\n", w->seed);
        fflush(stdout);
        if (!w->trace && !w->without && !w->here) shrink(*w);
        printf("%" PRIu64 "\n", w->seed);
        return 1;
    }
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    const double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("world: seeds %" PRIu64 "..%" PRIu64 ": all well; %.0f a minute of a core\n",
           w->first, w->seed - 1, cpu_s > 0 ? (double)n * 60 / cpu_s : 0.0);
    return 0;
}

/* Each has found a fault, which is mended. */
static int run_failed(wanted *w)
{
    static const struct {
        uint64_t seed;
        int edition; // of then
    } failed[] = {{251, WORLD_FIRST},
                  {1000701, WORLD_FIRST},
                  {2000023, WORLD_FIRST},
                  {3000517, WORLD_FIRST},
                  {6000299, WORLD_FIRST},
                  {UINT64_C(1795903170035), WORLD_FIRST},
                  {UINT64_C(1795921791479), WORLD_FIRST},
                  {UINT64_C(1795929321875), WORLD_FIRST},
                  {UINT64_C(1795940810527), WORLD_FIRST},
                  {UINT64_C(1795941442207), WORLD_FIRST},
                  {UINT64_C(1400000094), WORLD_FIRST},
                  {UINT64_C(1600000790), WORLD_FIRST},
                  {UINT64_C(1600001274), WORLD_FIRST},
                  {12205408, WORLD_FIRST},
                  {20011869, WORLD_FIRST},
                  {23001503, WORLD_FIRST},
                  {20087124, WORLD_FIRST},
                  {21058810, WORLD_FIRST},
                  {21064310, WORLD_FIRST},
                  {22132907, WORLD_FIRST},
                  {20231602, WORLD_FIRST},
                  {UINT64_C(1796040625031), WORLD_ROWS},
                  {50012264, WORLD_ROWS}};
    int code = 0;
    for (size_t i = 0; i < sizeof failed / sizeof *failed && code == 0; i++) {
        w->first = w->last = failed[i].seed;
        w->edition = failed[i].edition;
        code = run_seeds(w);
    }
    return code;
}

static int run_members(int n)
{
    const world_options o = {
        .seed = 1, .edition = WORLD_NOW, .errors = fdopen(dup(STDERR_FILENO), "w")};
    if (n >= WORLD_MEMBERS_LEAST && n <= WORLD_MEMBERS_MOST)
        return freopen("/dev/null", "w", stderr) ? world_scale_run(&o, n) : 1;
    fprintf(stderr, "ps-world: --members is from %d to %d\n", WORLD_MEMBERS_LEAST,
            WORLD_MEMBERS_MOST);
    return 2;
}

static int run_deaths(int n)
{
    const world_options o = {
        .seed = 1, .edition = WORLD_NOW, .errors = fdopen(dup(STDERR_FILENO), "w")};
    if (n < 1 || n > WORLD_DEATHS_MOST) {
        fprintf(stderr, "ps-world: --deaths is from 1 to %d\n", WORLD_DEATHS_MOST);
        return 2;
    }
    empty_folder();
    warm_up();
    return freopen("/dev/null", "w", stderr) ? world_deaths_run(&o, folder, n) : 1;
}

static bool read_range(const char *text, wanted *w)
{
    char *end;
    w->first = w->last = strtoull(text, &end, 10);
    if (end == text) return false;
    if (strncmp(end, "..", 2) == 0) w->last = strtoull(end + 2, &end, 10);
    return *end == '\0' && w->last >= w->first;
}

static int usage(void)
{
    fprintf(stderr,
            "ps-world --seed S [--trace] [--without FAULTS] [--here] "
            "[--edition N] | --seeds FIRST..LAST [--twice] [--size N] | --seconds N | "
            "--failed | --members N | --deaths N\n");
    return 2;
}

int main(int argc, char **argv)
{
    wanted w = {.last = UINT64_MAX, .edition = WORLD_NOW};
    const bool failed = argc == 2 && strcmp(argv[1], "--failed") == 0;
    int deaths = 0;
    if (argc < 3 && !failed) return usage();
    if (failed) {
        // no more arguments
    } else if (strcmp(argv[1], "--seconds") == 0) {
        w.seconds = strtod(argv[2], NULL);
        w.first = (uint64_t)now_s(CLOCK_REALTIME) * 1000;
        if (!(w.seconds > 0)) return usage();
    } else if (strcmp(argv[1], "--members") == 0) {
        return run_members(atoi(argv[2]));
    } else if (strcmp(argv[1], "--deaths") == 0) {
        deaths = atoi(argv[2]);
    } else if (strncmp(argv[1], "--seed", 6) != 0 || !read_range(argv[2], &w)) {
        return usage();
    }
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--trace") == 0)
            w.trace = true;
        else if (strcmp(argv[i], "--twice") == 0)
            w.twice = true;
        else if (strcmp(argv[i], "--here") == 0)
            w.here = true;
        else if (strcmp(argv[i], "--without") == 0 && i + 1 < argc)
            w.without = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--size") == 0 && i + 1 < argc)
            w.size = atoi(argv[++i]);
        else if (strcmp(argv[i], "--edition") == 0 && i + 1 < argc)
            w.edition = atoi(argv[++i]) % (WORLD_NOW + 1);
        else
            return usage();
    }
    if (w.size < 0 || w.size > WORLD_SIZE_MOST) return usage();
    if (w.size) w.first += w.first % 2;
    clearenv();
    setenv("OMP_NUM_THREADS", "1", 1);
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0,
                0);                     // a small job would clear 2 MiB each time
    mallopt(M_MMAP_THRESHOLD, 1 << 30); // nor give memory back
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    signal(SIGPIPE, SIG_IGN);
    snprintf(folder, sizeof folder, "/dev/shm/world-%010d", (int)getpid());
    snprintf(record, sizeof record, "%s.log", folder);
    const int code = failed   ? run_failed(&w)
                     : deaths ? run_deaths(deaths)
                              : run_seeds(&w);
    if (code == 0 || !w.trace) empty_folder();
    rmdir(folder);
    return code;
}
