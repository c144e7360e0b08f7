#include "file_at.h"

#include <errno.h>
#include <unistd.h>

ps_err ps_file_write_at(int fd, const char *name, uint64_t at, const void *bytes,
                        uint64_t n)
{
    for (uint64_t done = 0; done < n;) {
        const ssize_t put =
            pwrite(fd, (const char *)bytes + done, n - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return ps_err_errno(PS_ERR_IO, "%s: writing", name);
        done += (uint64_t)put;
    }
    return PS_OK;
}

ps_err ps_file_read_at(int fd, const char *name, uint64_t at, void *bytes, uint64_t n)
{
    for (uint64_t done = 0; done < n;) {
        const ssize_t got = pread(fd, (char *)bytes + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ps_err_errno(PS_ERR_IO, "%s: reading", name);
        if (got == 0) return ps_err_set(PS_ERR_IO, "%s: ends too soon", name);
        done += (uint64_t)got;
    }
    return PS_OK;
}
