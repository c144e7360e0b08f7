#include "shm_pass.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { OFFER_MAGIC = 0x70736f66, ANSWER_MAGIC = 0x7073616e };

static socklen_t abstract_address(const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t n = strlen(name);
    if (n > sizeof address->sun_path - 1) n = sizeof address->sun_path - 1;
    memcpy(address->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

ps_err ps_shm_listen(char name[PS_SHM_NAME_MAX], int *fd)
{
    *fd = -1;
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return ps_err_errno(PS_ERR_IO, "random numbers");
    snprintf(name, PS_SHM_NAME_MAX, "pstrain-%016" PRIx64 "%016" PRIx64, random[0],
             random[1]);
    struct sockaddr_un address;
    socklen_t bytes = abstract_address(name, &address);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&address, bytes) != 0 || listen(s, 64) != 0) {
        ps_err err = ps_err_errno(PS_ERR_NET, "listening on a Unix socket");
        if (s >= 0) close(s);
        return err;
    }
    *fd = s;
    return PS_OK;
}

static bool same_user(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
    errno = EPERM; // when access is refused
    return peer.uid == geteuid() || peer.uid == 0;
}

ps_err ps_shm_accept(int listen_fd, int *fd)
{
    *fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*fd < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return PS_OK;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            return ps_err_errno(PS_ERR_NOMEM, "accepting on a Unix socket");
        return ps_err_errno(PS_ERR_NET, "accepting on a Unix socket");
    }
    if (same_user(*fd)) return PS_OK;
    close(*fd);
    *fd = -1;
    return PS_OK;
}

/* A process that connects waits while the listener's queue is full. */
static int set_send_timeout(int fd, ps_deadline deadline)
{
    int ms = ps_deadline_left_ms(deadline);
    if (ms == 0) ms = 1; // 0 would mean for ever
    const struct timeval limit = {.tv_sec = ms / 1000,
                                  .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

ps_err ps_shm_connect(const char *name, ps_deadline deadline, int *fd)
{
    struct sockaddr_un address;
    socklen_t bytes = abstract_address(name, &address);
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd >= 0 && set_send_timeout(*fd, deadline) == 0 &&
        connect(*fd, (struct sockaddr *)&address, bytes) == 0 && same_user(*fd))
        return PS_OK;
    ps_err err = ps_err_errno(PS_ERR_PEER, "connecting to a Unix socket");
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return err;
}

static ps_err wait_readable(int fd, int end_fd, ps_deadline deadline)
{
    struct pollfd items[] = {{.fd = fd, .events = POLLIN},
                             {.fd = end_fd, .events = POLLIN}}; // -1 is ignored
    for (;;) {
        int n = poll(items, 2, ps_deadline_left_ms(deadline));
        if (n > 0 && items[0].revents) return PS_OK;
        if (n > 0) return ps_err_set(PS_ERR_PEER, "the wait was ended");
        if (n < 0 && errno != EINTR) return ps_err_errno(PS_ERR_NET, "poll");
        if (ps_deadline_passed(deadline))
            return ps_err_set(PS_ERR_TIMEOUT, "no message on the Unix socket in time");
    }
}

/* Room for descriptors that travel with a message. */
typedef union fd_room {
    char bytes[CMSG_SPACE((PS_SHM_WAKES_MAX + 1) * sizeof(int))];
    struct cmsghdr align;
} fd_room;

/* Sends one message with n descriptors. */
static bool send_with_fds(int fd, const void *message, size_t bytes, const int *fds,
                          int n)
{
    const size_t fd_bytes = (size_t)n * sizeof *fds;
    fd_room room = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (n > 0) {
        m.msg_control = room.bytes;
        m.msg_controllen = CMSG_SPACE(fd_bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(c), fds, fd_bytes);
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Takes the descriptors out of a message: the first `most` of them. Returns how many
 * there were, or -1 when some are missing. */
static int take_fds(struct msghdr *m, int *fds, int most)
{
    int n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        int in = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < in; i++, n++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + (size_t)i * sizeof fd, sizeof fd);
            if (n < most)
                fds[n] = fd;
            else
                close(fd);
        }
    }
    return m->msg_flags & (MSG_CTRUNC | MSG_TRUNC) ? -1 : n;
}

static void close_fds(int *fds, int n)
{
    for (int i = 0; i < n; i++) {
        if (fds[i] >= 0) close(fds[i]);
        fds[i] = -1;
    }
}

/* Receives one message with at most `most` descriptors, which are -1 beyond *n. *n is -1
 * when there were others. Returns its bytes, or -1. */
static ssize_t recv_with_fds(int fd, void *message, size_t bytes, int *fds, int most,
                             int *n)
{
    fd_room room = {0};
    struct iovec part = {.iov_base = message, .iov_len = bytes};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = room.bytes,
                       .msg_controllen = sizeof room.bytes};
    for (int i = 0; i < most; i++)
        fds[i] = -1;
    ssize_t got = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    *n = got < 0 ? 0 : take_fds(&m, fds, most);
    if (*n > most) *n = -1;
    if (*n < 0) close_fds(fds, most);
    return got;
}

/* Which descriptors come with an offer. */
static bool offer_has(const ps_shm_offer *offer, int i)
{
    return i < 2 || (i == 2 ? offer->ring_bytes : offer->row_bytes) > 0;
}

ps_err ps_shm_offer_send(int fd, const ps_shm_offer *offer, const int fds[PS_SHM_FDS])
{
    ps_shm_offer message = *offer;
    int n = 0, given[PS_SHM_FDS];
    message.magic = OFFER_MAGIC;
    for (int i = 0; i < PS_SHM_FDS; i++)
        if (offer_has(offer, i)) given[n++] = fds[i];
    if (send_with_fds(fd, &message, sizeof message, given, n)) return PS_OK;
    return ps_err_errno(PS_ERR_PEER, "offering shared memory");
}

ps_err ps_shm_offer_recv(int fd, ps_deadline deadline, ps_shm_offer *offer,
                         int fds[PS_SHM_FDS])
{
    PS_TRY(wait_readable(fd, -1, deadline));
    int n, wanted = 0, given[PS_SHM_FDS];
    ssize_t bytes = recv_with_fds(fd, offer, sizeof *offer, given, PS_SHM_FDS, &n);
    if (bytes < 0)
        return ps_err_errno(PS_ERR_PEER, "receiving an offer of shared memory");
    for (int i = 0; i < PS_SHM_FDS; i++)
        fds[i] = offer_has(offer, i) ? given[wanted++] : -1;
    if (bytes == (ssize_t)sizeof *offer && offer->magic == OFFER_MAGIC && n == wanted)
        return PS_OK;
    close_fds(given, PS_SHM_FDS);
    return ps_err_set(PS_ERR_PROTOCOL, "a malformed offer of shared memory");
}

ps_err ps_shm_answer_send(int fd, const char *refusal, const int *wakes, int n)
{
    ps_shm_answer answer = {.magic = ANSWER_MAGIC, .accepted = !refusal};
    if (refusal) snprintf(answer.text, sizeof answer.text, "%s", refusal);
    if (send_with_fds(fd, &answer, sizeof answer, wakes, refusal ? 0 : n)) return PS_OK;
    return ps_err_errno(PS_ERR_PEER, "answering an offer of shared memory");
}

ps_err ps_shm_answer_recv(int fd, int end_fd, ps_deadline deadline, int *wakes, int n)
{
    PS_TRY(wait_readable(fd, end_fd, deadline));
    ps_shm_answer answer;
    int got;
    ssize_t bytes = recv_with_fds(fd, &answer, sizeof answer, wakes, n, &got);
    ps_err err = PS_OK;
    answer.text[sizeof answer.text - 1] = '\0';
    if (bytes != (ssize_t)sizeof answer || answer.magic != ANSWER_MAGIC)
        err = ps_err_set(PS_ERR_PEER,
                         "the other end closed the connection before memory was shared");
    else if (!answer.accepted)
        err = ps_err_set(PS_ERR_PEER, "refused: %s", answer.text);
    else if (got != n)
        err = ps_err_set(PS_ERR_PEER, "the other end does not have %d shards", n);
    if (err != PS_OK) close_fds(wakes, n);
    return err;
}
