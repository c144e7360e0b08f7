#include "new_file.h"

#include <errno.h>
#include <fcntl.h>
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

ps_err ps_new_file_unnamed(const char *path, int *fd)
{
    PS_TRY(new_file_create(path, O_RDWR, fd));
    unlink(path);
    return PS_OK;
}
