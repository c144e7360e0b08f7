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

ps_err ps_shm_offer_send(int fd, const ps_shm_offer *offer, int params_fd, int grads_fd)
{
    ps_shm_offer message = *offer;
    message.magic = OFFER_MAGIC;
    const int fds[2] = {params_fd, grads_fd};
    union {
        char bytes[CMSG_SPACE(sizeof fds)];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {.iov_base = &message, .iov_len = sizeof message};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    if (sendmsg(fd, &m, MSG_NOSIGNAL) != (ssize_t)sizeof message)
        return ps_err_errno(PS_ERR_PEER, "offering shared memory");
    return PS_OK;
}

/* Takes the descriptors out of a message. Keeps exactly two, or none. */
static bool take_fds(struct msghdr *m, int fds[2])
{
    int n = 0, got[2] = {-1, -1};
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        int in = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < in; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + (size_t)i * sizeof fd, sizeof fd);
            if (n < 2)
                got[n] = fd;
            else
                close(fd);
            n++;
        }
    }
    if (n == 2 && !(m->msg_flags & (MSG_CTRUNC | MSG_TRUNC))) {
        memcpy(fds, got, sizeof got);
        return true;
    }
    for (int i = 0; i < 2; i++)
        if (got[i] >= 0) close(got[i]);
    return false;
}

ps_err ps_shm_offer_recv(int fd, ps_deadline deadline, ps_shm_offer *offer, int fds[2])
{
    PS_TRY(wait_readable(fd, -1, deadline));
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {.iov_base = offer, .iov_len = sizeof *offer};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    if (n < 0) return ps_err_errno(PS_ERR_PEER, "receiving an offer of shared memory");
    bool has_fds = take_fds(&m, fds);
    if (n == (ssize_t)sizeof *offer && has_fds && offer->magic == OFFER_MAGIC)
        return PS_OK;
    if (has_fds) close(fds[0]), close(fds[1]);
    return ps_err_set(PS_ERR_PROTOCOL, "a malformed offer of shared memory");
}

ps_err ps_shm_answer_send(int fd, const char *refusal)
{
    ps_shm_answer answer = {.magic = ANSWER_MAGIC, .accepted = !refusal};
    if (refusal) snprintf(answer.text, sizeof answer.text, "%s", refusal);
    if (send(fd, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer)
        return ps_err_errno(PS_ERR_PEER, "answering an offer of shared memory");
    return PS_OK;
}

ps_err ps_shm_answer_recv(int fd, int end_fd, ps_deadline deadline)
{
    PS_TRY(wait_readable(fd, end_fd, deadline));
    ps_shm_answer answer;
    ssize_t n = recv(fd, &answer, sizeof answer, 0);
    if (n != (ssize_t)sizeof answer || answer.magic != ANSWER_MAGIC)
        return ps_err_set(PS_ERR_PEER, "the other end broke off the opening");
    answer.text[sizeof answer.text - 1] = '\0';
    if (!answer.accepted) return ps_err_set(PS_ERR_PEER, "refused: %s", answer.text);
    return PS_OK;
}
