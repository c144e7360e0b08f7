/* timed NAME PROGRAM ARGUMENTS...: runs a test, and appends a line to the file that PS_TIMES
 * names: seconds, seconds of processor time of the test and all that it started, its name.
 * What warm_server.py runs for it, as PS_TEST says, has lines of its own there. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double timed_s(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

static void timed_note(const char *name, double seconds)
{
    const char *path = getenv("PS_TIMES");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    struct rusage all;
    getrusage(RUSAGE_CHILDREN, &all);
    fprintf(f, "%.2f %.2f %s\n", seconds, timed_s(all.ru_utime) + timed_s(all.ru_stime),
            name);
    fclose(f);
}

int main(int argc, char **argv)
{
    struct timespec begin, end;
    if (argc < 3 || setenv("PS_TEST", argv[1], 1)) return 2;
    // what a test leaves behind counts as well, and ends as ctest ends this
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    const pid_t test = fork();
    if (test == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    if (test < 0) return 127;
    int status = 0, other;
    while (waitpid(test, &status, 0) < 0)
        ;
    while (waitpid(-1, &other, WNOHANG) > 0)
        ;
    clock_gettime(CLOCK_MONOTONIC, &end);
    timed_note(argv[1], (double)(end.tv_sec - begin.tv_sec) +
                            1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
    if (WIFSIGNALED(status)) raise(WTERMSIG(status));
    return WEXITSTATUS(status);
}
