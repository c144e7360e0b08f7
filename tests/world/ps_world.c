/* ps-world: whole jobs in one process, with virtual time (world.h).
 *
 *   ps-world --seed S [--trace]
 *   ps-world --seeds FIRST..LAST [--twice]
 *   ps-world --seconds N            new seeds, from the time of day on
 *
 * A seed stands for a job and its faults: an even one for a program on libpstrain, an odd
 * one for ps-worker with a model. Exit code 1, and the seed on the last line,
 * where a judge objects. --trace: each message, event, fault and line of a log.
 * --twice: each run is made again, and its trace has to be the same. */
#include <dnnl.h>
#include <ftw.h>
#include <inttypes.h>
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

enum { MOST_S = 60 }; // of real time for a seed: the programs go round without an end

enum { KINDS = 64 }; // of jobs with a model

typedef struct wanted {
    uint64_t first, last;
    double seconds; // 0: all of them
    bool trace, twice;
} wanted;

static char folder[64]; // of this process: the files of one job at a time
static char policy_log[80];

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
} outcome;

/* In a process of its own: what a job leaves behind disturbs no other. */
static uint64_t kind_of(uint64_t seed)
{
    return seed % 2 == 1 ? 1 + seed / 2 % KINDS : 0;
}

/* replay: the weights are to be those of the run that policy_log is of. */
static int run_here(uint64_t seed, bool disturbed, bool replay, const wanted *w,
                    outcome *out)
{
    world_options o = {.seed = seed,
                       .schedule = disturbed ? 1 : 0,
                       .kind = kind_of(seed),
                       .trace = w->trace && disturbed,
                       .hash = w->twice ? &out->trace : NULL,
                       .errors = fdopen(dup(STDERR_FILENO), "w")};
    alarm(MOST_S);
    setvbuf(stdout, NULL, _IOLBF, 0);
    // The programs' own words belong to the trace.
    if (o.trace)
        dup2(STDOUT_FILENO, STDERR_FILENO);
    else if (!freopen("/dev/null", "w", stderr))
        return 1;
    return o.kind ? world_train_run(&o, folder, disturbed, replay ? policy_log : NULL,
                                    &out->weights)
                  : world_job_run(&o, disturbed, &out->weights);
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

static int run_once(uint64_t seed, bool disturbed, bool replay, const wanted *w,
                    outcome *out)
{
    outcome *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *shared = (outcome){.weights = out->weights};
    empty_folder();
    if (kind_of(seed)) warm_up();
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) _exit(run_here(seed, disturbed, replay, w, shared));
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0) {
    }
    *out = *shared;
    munmap(shared, sizeof *shared);
    if (pid > 0 && WIFSIGNALED(status))
        fprintf(stderr, "world: seed %" PRIu64 ": ended by signal %d (%s)\n", seed,
                WTERMSIG(status), strsignal(WTERMSIG(status)));
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

static int run_again(uint64_t seed, const wanted *w, const outcome *first)
{
    outcome again = {.weights = first->weights};
    const int code = run_once(seed, true, false, w, &again);
    if (code != 0 || again.trace == first->trace) return code;
    fprintf(stderr, "world: seed %" PRIu64 ": another trace in its second run\n", seed);
    return 1;
}

/* A run at the workers' own pace, and its replay. */
static int run_and_replay(uint64_t seed, const wanted *w)
{
    char path[160];
    outcome out = {0};
    if (run_once(seed, true, false, w, &out) != 0) return 1;
    snprintf(path, sizeof path, "%s/out/policy.log", folder);
    if (rename(path, policy_log) != 0) {
        fprintf(stderr, "world: seed %" PRIu64 ": no %s\n", seed, path);
        return 1;
    }
    const int code = run_once(seed, false, true, w, &out);
    unlink(policy_log);
    return code;
}

static int run_against_undisturbed(uint64_t seed, const wanted *w)
{
    static uint64_t undisturbed[KINDS + 1]; // the weights of each kind
    const uint64_t kind = kind_of(seed);
    outcome out = {.weights = undisturbed[kind]};
    const bool asks = kind ? out.weights == 0 : world_job_has_no_closed_form(seed);
    int code = asks ? run_once(seed, false, false, w, &out) : 0;
    if (kind) undisturbed[kind] = out.weights;
    if (code == 0) code = run_once(seed, true, false, w, &out);
    return code == 0 && w->twice ? run_again(seed, w, &out) : code;
}

static int run_seed(uint64_t seed, const wanted *w)
{
    const uint64_t kind = kind_of(seed);
    const int code = kind && world_train_is_own_pace(kind)
                         ? run_and_replay(seed, w)
                         : run_against_undisturbed(seed, w);
    if (code != 0) printf("%" PRIu64 "\n", seed);
    return code;
}

static double now_s(clockid_t clock)
{
    struct timespec t;
    __real_clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int run_seeds(const wanted *w)
{
    const double began = now_s(CLOCK_MONOTONIC);
    uint64_t seed = w->first, n = 0;
    for (; seed <= w->last; seed++, n++) {
        if (w->seconds > 0 && now_s(CLOCK_MONOTONIC) - began > w->seconds) break;
        if (run_seed(seed, w) != 0) return 1;
    }
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    const double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("world: seeds %" PRIu64 "..%" PRIu64 ": all well; %.0f a minute of a core\n",
           w->first, seed - 1, cpu_s > 0 ? (double)n * 60 / cpu_s : 0.0);
    return 0;
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
    fprintf(
        stderr,
        "ps-world --seed S [--trace] | --seeds FIRST..LAST [--twice] | --seconds N\n");
    return 2;
}

int main(int argc, char **argv)
{
    wanted w = {.last = UINT64_MAX};
    if (argc < 3) return usage();
    if (strcmp(argv[1], "--seconds") == 0) {
        w.seconds = strtod(argv[2], NULL);
        w.first = (uint64_t)now_s(CLOCK_REALTIME) * 1000;
        if (!(w.seconds > 0)) return usage();
    } else if (strncmp(argv[1], "--seed", 6) != 0 || !read_range(argv[2], &w)) {
        return usage();
    }
    w.trace = argc == 4 && strcmp(argv[3], "--trace") == 0;
    w.twice = argc == 4 && strcmp(argv[3], "--twice") == 0;
    if (argc > 3 && !w.trace && !w.twice) return usage();
    clearenv();
    setenv("OMP_NUM_THREADS", "1", 1);
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0,
                0); // a small job would clear 2 MiB each time
    signal(SIGPIPE, SIG_IGN);
    snprintf(folder, sizeof folder, "/dev/shm/world-%010d", (int)getpid());
    snprintf(policy_log, sizeof policy_log, "%s.log", folder);
    const int code = run_seeds(&w);
    if (code == 0 || !w.trace) empty_folder();
    rmdir(folder);
    return code;
}
