#include "fault_point.h"

#ifdef PS_FAULT_POINTS

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

enum { FAULTS_MAX = 16, WORD_BYTES = 64, HELD_MAX_S = 120, LOOK_US = 2000 };

typedef struct fault {
    char role[WORD_BYTES], name[WORD_BYTES]; // role "": any
    long left;                               // passes until it happens
    char how[WORD_BYTES];
} fault;

static struct {
    pthread_once_t once;
    pthread_mutex_t lock; // of every left
    const char *folder;
    fault faults[FAULTS_MAX];
    int n;
} armed = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void fault_give_up(const char *text)
{
    fprintf(stderr, "PS_TEST_FAULT: %s\n", text);
    abort();
}

static void read_fault(char *text, fault *f)
{
    char *at = strchr(text, '@'), *rest = at ? at + 1 : text;
    if (at) snprintf(f->role, sizeof f->role, "%.*s", (int)(at - text), text);
    const bool whole =
        sscanf(rest, "%63[^:]:%ld:%63s", f->name, &f->left, f->how) == 3 && f->left > 0;
    if (!whole || (strcmp(f->how, "kill") != 0 && strcmp(f->how, "stop") != 0 &&
                   strcmp(f->how, "hold") != 0))
        fault_give_up(text);
}

static void read_faults(void)
{
    const char *text = getenv("PS_TEST_FAULT");
    armed.folder = getenv("PS_TEST_FAULT_AT");
    if (!text || !armed.folder) return;
    char copy[FAULTS_MAX * 3 * WORD_BYTES], *rest = copy, *one;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) fault_give_up(text);
    while ((one = strsep(&rest, ","))) {
        if (armed.n == FAULTS_MAX) fault_give_up(text);
        read_fault(one, &armed.faults[armed.n++]);
    }
}

static bool is_due(fault *f, const char *name)
{
    if (strcmp(f->name, name) != 0) return false;
    if (f->role[0] &&
        strcmp(f->role, ps_log_role((char[WORD_BYTES]){0}, WORD_BYTES)) != 0)
        return false;
    pthread_mutex_lock(&armed.lock);
    const bool due = f->left > 0 && --f->left == 0;
    pthread_mutex_unlock(&armed.lock);
    return due;
}

static void fault_happen(const fault *f)
{
    char path[PATH_MAX], go[PATH_MAX + 4];
    snprintf(path, sizeof path, "%s/%s", armed.folder, f->name);
    const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0) return;
    close(fd);
    if (strcmp(f->how, "kill") == 0) raise(SIGKILL);
    if (strcmp(f->how, "stop") == 0) raise(SIGSTOP);
    snprintf(go, sizeof go, "%s.go", path);
    for (int i = 0; strcmp(f->how, "hold") == 0 && access(go, F_OK) != 0; i++) {
        if (i == HELD_MAX_S * (1000000 / LOOK_US)) fault_give_up("held for too long");
        usleep(LOOK_US);
    }
}

void ps_fault_point(const char *name)
{
    pthread_once(&armed.once, read_faults);
    for (int i = 0; i < armed.n; i++)
        if (is_due(&armed.faults[i], name)) fault_happen(&armed.faults[i]);
}

#endif
