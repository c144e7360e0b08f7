"""Cuts TCP connections of running processes, from outside. To the processes this looks like a
router that was switched off, a NAT that sends resets, or a NAT that has forgotten the
connection."""
import ctypes
import os
import socket
import struct

PIDFD_OPEN, PIDFD_GETFD = 434, 438  # the same number on every architecture
SO_ATTACH_FILTER = 26  # Linux has it; Python has no name for it
ESTABLISHED = "01"
_libc = ctypes.CDLL(None, use_errno=True)


def _syscall(*args):
    result = _libc.syscall(*(ctypes.c_long(a) for a in args))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def duplicate(pid, fd):
    """Returns a copy, in this process, of another process's descriptor."""
    pidfd = _syscall(PIDFD_OPEN, pid, 0)
    try:
        return _syscall(PIDFD_GETFD, pidfd, fd, 0)
    finally:
        os.close(pidfd)


def _established(pid):
    found = {}
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as f:
            for row in (line.split() for line in f.readlines()[1:]):
                if row[3] == ESTABLISHED:
                    found[row[9]] = tuple(int(a.rsplit(":", 1)[1], 16) for a in row[1:3])
    return found


def connections(pid):
    """Returns [(descriptor, own port, the peer's port)] of a process's TCP connections; [] if it
    has just ended."""
    found = []
    try:
        tcp, names = _established(pid), os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return found
    for name in names:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        ports = tcp.get(link[len("socket:["):-1]) if link.startswith("socket:[") else None
        if ports:
            found.append((int(name), *ports))
    return sorted(found)


def cut(pid, fd, hard):
    """Cuts a connection. hard: by a reset, which also drops what has not been sent or read yet;
    else by an end of file after what has been sent."""
    ours = socket.socket(fileno=duplicate(pid, fd))
    try:
        if hard:  # connect() to AF_UNSPEC: Python does not know this family
            address = (ctypes.c_char * 16)()
            if _libc.connect(ours.fileno(), address, 16) != 0:
                raise OSError(ctypes.get_errno(), "connect to AF_UNSPEC")
        else:
            ours.shutdown(socket.SHUT_RDWR)
    finally:
        ours.close()


def deafen(pid, fd):
    """From now on all that the peer sends, also its end, is lost on its way to this side: a filter
    takes no byte of any packet (socket(7))."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # return 0
    with socket.socket(fileno=duplicate(pid, fd)) as ours:
        ours.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                        struct.pack("HL", 1, ctypes.addressof(program)))


def why_not():
    """Returns why cutting is impossible here, or None."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(duplicate(os.getpid(), ours.fileno()))
        except OSError as e:
            return f"pidfd_getfd: {e.strerror}"
    return None
