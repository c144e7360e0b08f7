#include "tell.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <linux/limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Global, as the logger is. -1: nobody reads. */
static atomic_int launcher = -1;

static bool tell_is_pipe(int fd, unsigned long long inode)
{
    struct stat s;
    return fstat(fd, &s) == 0 && (S_ISFIFO(s.st_mode) || S_ISSOCK(s.st_mode)) &&
           s.st_ino == inode;
}

void ps_tell_start(const char *where)
{
    char *colon = NULL, *end = NULL;
    if (!where) return;
    const long fd = strtol(where, &colon, 10);
    if (colon == where || *colon != ':' || fd < 0 || fd > INT_MAX) return;
    const unsigned long long inode = strtoull(colon + 1, &end, 10);
    if (*end || !tell_is_pipe((int)fd, inode)) return;
    fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    fcntl((int)fd, F_SETFL, fcntl((int)fd, F_GETFL) | O_NONBLOCK);
    atomic_store(&launcher, (int)fd);
}

/* Where the launcher has ended, no SIGPIPE comes: the process may be another program's,
 * which does not ignore it. */
static void tell_write(int fd, const char *line, size_t bytes)
{
    static const struct timespec none = {0};
    sigset_t one, before;
    sigemptyset(&one);
    sigaddset(&one, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &one, &before);
    if (write(fd, line, bytes) < 0 && errno == EPIPE) sigtimedwait(&one, NULL, &none);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ps_tell(const char *event, const char *fmt, ...)
{
    const int fd = atomic_load(&launcher);
    char line[PIPE_BUF];
    if (fd < 0) return;
    va_list args;
    va_start(args, fmt);
    json_t *all = json_pack("{s:s}", "event", event);
    json_t *fields = json_vpack_ex(NULL, 0, fmt, args);
    va_end(args);
    if (fields && json_object_update(all, fields) == 0) {
        const size_t bytes = json_dumpb(all, line, sizeof line, JSON_COMPACT);
        if (bytes > 0 && bytes < sizeof line) {
            line[bytes] = '\n';
            tell_write(fd, line, bytes + 1);
        }
    }
    json_decref(fields);
    json_decref(all);
}
