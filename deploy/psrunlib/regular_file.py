"""Files in a run's folder, as common/base/regular_file.h opens them: what stands there instead may be a
FIFO or a device, for which open would wait, or a link to another file, which would be overwritten."""
import contextlib
import errno
import os
import stat


def _open(path, flags):
    """For open(opener=). Raises an OSError that names the path."""
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    fd = os.open(path, flags & ~os.O_TRUNC | os.O_NONBLOCK | (os.O_NOFOLLOW if writes else 0), 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    if flags & os.O_TRUNC:
        os.ftruncate(fd, 0)
    return fd


def open_text(path, mode="r"):
    return open(path, mode, encoding="utf-8", opener=_open)


@contextlib.contextmanager
def new_text(path):
    """A file to write, which takes its name once it is whole and on the disk. Where that fails, what had the name
    before has it still, and nothing else is left."""
    unfinished = f"{path}.tmp"
    f = open_text(unfinished, "w")
    try:
        with f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(unfinished)
        raise
