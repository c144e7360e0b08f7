#include "new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ps_err new_file_create(const char *path, int mode, int *fd)
{
    if (unlink(path) != 0 && errno != ENOENT) return ps_err_errno(PS_ERR_IO, "%s", path);
    *fd = open(path, mode | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    return *fd >= 0 ? PS_OK : ps_err_errno(PS_ERR_IO, "%s", path);
}

ps_err ps_new_file_open(const char *path, int *fd)
{
    return new_file_create(path, O_WRONLY, fd);
}

ps_err ps_new_file_nameless(const char *path, int *fd)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    // The name will be given by way of /proc.
    *fd = access("/proc/self/fd", X_OK) == 0
              ? open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644)
              : -1;
    return *fd >= 0 ? PS_OK : ps_new_file_open(path, fd);
}

ps_err ps_new_file_name(int fd, const char *path)
{
    char own[32];
    struct stat st;
    if (fstat(fd, &st) != 0) return ps_err_errno(PS_ERR_IO, "%s", path);
    if (st.st_nlink > 0) return PS_OK; // since the start
    if (unlink(path) != 0 && errno != ENOENT) return ps_err_errno(PS_ERR_IO, "%s", path);
    snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, own, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) return PS_OK;
    return ps_err_errno(PS_ERR_IO, "%s", path);
}

ps_err ps_new_file_unnamed(const char *path, int *fd)
{
    PS_TRY(new_file_create(path, O_RDWR, fd));
    unlink(path);
    return PS_OK;
}

ps_err ps_new_file_folders(const char *path, bool *made)
{
    char part[PATH_MAX];
    for (size_t i = 1, n = strlen(path); i <= n; i++) {
        if (path[i] != '/' && i < n) continue;
        memcpy(part, path, i);
        part[i] = '\0';
        const bool failed = mkdir(part, 0777) != 0;
        if (failed && errno != EEXIST)
            return ps_err_errno(PS_ERR_IO, "cannot make the folder %s", part);
        if (made) *made = !failed;
    }
    return PS_OK;
}
