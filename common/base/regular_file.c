#include "regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "mem.h"

/* why: errno of open; EINVAL: there is something else. */
static ps_err regular_file_refuse(const char *path, bool writes, int why)
{
    errno = why;
    if (why == EINVAL || (writes && why == ENXIO)) // ENXIO: a FIFO that nobody reads
        return ps_err_set(PS_ERR_IO, "%s: is not a regular file", path);
    if (writes && why == ELOOP)
        return ps_err_set(PS_ERR_IO,
                          "%s: is a link to another file, which would be overwritten: "
                          "remove the link",
                          path);
    const ps_err err = ps_err_errno(PS_ERR_IO, "%s", path);
    errno = why;
    return err;
}

/* Returns 0, or errno. O_TRUNC waits until it is known what is there. */
static int regular_file_check(int fd, int flags)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return errno;
    if (!S_ISREG(st.st_mode)) return EINVAL;
    return flags & O_TRUNC && ftruncate(fd, 0) != 0 ? errno : 0;
}

/* O_NONBLOCK: opening a FIFO does not wait; regular files don't mind. */
ps_err ps_regular_file_open(const char *path, int flags, int *fd)
{
    const bool writes = (flags & O_ACCMODE) != O_RDONLY;
    const int more = O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (writes ? O_NOFOLLOW : 0);
    *fd = open(path, (flags & ~O_TRUNC) | more, 0666);
    const int why = *fd < 0 ? errno : regular_file_check(*fd, flags);
    if (why == 0) return PS_OK;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return regular_file_refuse(path, writes, why);
}

ps_err ps_regular_file_stream(const char *path, const char *mode, FILE **out)
{
    const int flags = mode[0] == 'r'   ? O_RDONLY
                      : mode[0] == 'w' ? O_WRONLY | O_CREAT | O_TRUNC
                                       : O_WRONLY | O_CREAT | O_APPEND;
    int fd;
    *out = NULL;
    PS_TRY(ps_regular_file_open(path, flags, &fd));
    *out = fdopen(fd, mode);
    if (*out) return PS_OK;
    const ps_err err = ps_err_errno(PS_ERR_IO, "%s", path);
    close(fd);
    return err;
}

ps_err ps_regular_file_append(FILE *file, const void *bytes, size_t n)
{
    const int fd = fileno(file);
    struct stat st;
    size_t done = 0;
    if (fstat(fd, &st) != 0) return ps_err_errno(PS_ERR_IO, "cannot append");
    while (done < n) {
        const ssize_t put =
            pwrite(fd, (const char *)bytes + done, n - done, st.st_size + (off_t)done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) break;
        done += (size_t)put;
    }
    if (done == n) return PS_OK;
    const ps_err err = ps_err_errno(PS_ERR_IO, "cannot append %zu bytes", n);
    const int why = errno;
    if (done > 0 && ftruncate(fd, st.st_size) != 0)
        ps_err_prefix(err, "a part of a record stays");
    errno = why;
    return err;
}

void ps_regular_file_keep_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

bool ps_regular_file_is_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

ps_err ps_regular_file_sum(const char *path, uint64_t *bytes, uint32_t *crc)
{
    enum { BUFFER = 1 << 20 };
    unsigned char *buffer;
    FILE *file;
    *bytes = 0;
    *crc = (uint32_t)crc32(0, NULL, 0);
    PS_TRY(ps_mem_map_zeroed(&buffer, BUFFER, path)); // most files are small
    ps_err err = ps_regular_file_stream(path, "r", &file);
    for (size_t n; file && (n = fread(buffer, 1, BUFFER, file)) > 0; *bytes += n)
        *crc = (uint32_t)crc32(*crc, buffer, (uInt)n);
    if (file && ferror(file)) err = ps_err_errno(PS_ERR_IO, "%s: reading", path);
    if (file) fclose(file);
    ps_mem_unmap(buffer, BUFFER);
    return err;
}
