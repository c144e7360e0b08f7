#include "new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

ps_err ps_new_file_open(const char *path, int *fd)
{
    if (unlink(path) != 0 && errno != ENOENT) return ps_err_errno(PS_ERR_IO, "%s", path);
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    return *fd >= 0 ? PS_OK : ps_err_errno(PS_ERR_IO, "%s", path);
}
