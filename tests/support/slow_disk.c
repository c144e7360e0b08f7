/* A disk that is as slow as a test wants, for LD_PRELOAD: open for reading, fsync and
 * rename of a file wait while PS_SLOW_DISK (a folder) has an entry of the file's name,
 * HELD_MAX_S at most. */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HELD_MAX_S = 60, LOOK_US = 10000 };

static void wait_while_held(const char *path)
{
    const char *folder = getenv("PS_SLOW_DISK"), *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    char held[2 * PATH_MAX];
    if (!folder || name[0] == '\0') return;
    snprintf(held, sizeof held, "%s/%s", folder, name);
    for (int i = 0; i < HELD_MAX_S * 1000000 / LOOK_US && access(held, F_OK) == 0; i++)
        usleep(LOOK_US);
}

int open(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...) =
        (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    if (!(flags & O_CREAT)) {
        wait_while_held(path);
        return real(path, flags);
    }
    va_list args;
    va_start(args, flags);
    mode_t mode = va_arg(args, mode_t);
    va_end(args);
    return real(path, flags, mode);
}

int fsync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n > 0) {
        path[n] = '\0';
        wait_while_held(path);
    }
    return real(fd);
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    wait_while_held(to);
    return real(from, to);
}
