/* A stand-in for a Python interpreter that has already imported PyTorch: asks the server
 * that PS_WARM names (tests/support/warm_server.py) to fork and run these arguments, and
 * passes signals and the exit on. Without a server it becomes PS_WARM_PYTHON.
 *
 * request: u32 length; then strings, each with its NUL: working directory, number of
 *          arguments, arguments, environment. Three descriptors travel with the length,
 *          and a fourth where PS_EVENTS names one (common/base/tell.h).
 * answer:  i32 process id; at its end i32 wait status */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MOST_BYTES = 1 << 21 };
static const int PASSED_ON[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};
static volatile sig_atomic_t child;

static void warm_pass_on(int number)
{
    kill((pid_t)child, number);
}

static int warm_connect(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = getenv("PS_WARM");
    // what the loader must see before Python starts
    if (!path || getenv("LD_PRELOAD") || strlen(path) >= sizeof to.sun_path) return -1;
    strcpy(to.sun_path, path);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || connect(s, (struct sockaddr *)&to, sizeof to) == 0) return s;
    close(s);
    return -1;
}

static uint32_t warm_request(char *out, int argc, char **argv)
{
    char *at = out, cwd[4096];
    if (!getcwd(cwd, sizeof cwd)) return 0;
    at += sprintf(at, "%s", cwd) + 1;
    at += sprintf(at, "%d", argc) + 1;
    for (int list = 0; list < 2; list++)
        for (char **word = list ? environ : argv; *word; word++) {
            const size_t bytes = strlen(*word) + 1;
            if (bytes > (size_t)(out + MOST_BYTES - at)) return 0;
            memcpy(at, *word, bytes);
            at += bytes;
        }
    return (uint32_t)(at - out);
}

/* -1: there is none. */
static int warm_events(void)
{
    const char *text = getenv("PS_EVENTS");
    const int fd = text ? atoi(text) : -1;
    return fd > 2 && fcntl(fd, F_GETFD) >= 0 ? fd : -1;
}

static int warm_send(int s, const char *request, uint32_t bytes)
{
    const int fds[4] = {0, 1, 2, warm_events()};
    const size_t of_fds = sizeof fds - (fds[3] < 0) * sizeof *fds;
    union {
        char room[CMSG_SPACE(sizeof fds)];
        struct cmsghdr aligned;
    } control = {0};
    struct iovec head = {&bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &head,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = CMSG_SPACE(of_fds)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(of_fds);
    memcpy(CMSG_DATA(c), fds, of_fds);
    if (sendmsg(s, &message, 0) != sizeof bytes) return -1;
    for (size_t sent = 0; sent < bytes;) {
        const ssize_t n = write(s, request + sent, bytes - sent);
        if (n < 0 && errno != EINTR) return -1;
        if (n > 0) sent += (size_t)n;
    }
    return 0;
}

static int warm_answer(int s, int *value)
{
    for (;;) {
        const ssize_t n = recv(s, value, sizeof *value, MSG_WAITALL);
        if (n < 0 && errno == EINTR) continue;
        return n == sizeof *value ? 0 : -1;
    }
}

int main(int argc, char **argv)
{
    static char request[MOST_BYTES];
    int s = warm_connect(), pid = 0, status = 0;
    if (s < 0) {
        const char *python = getenv("PS_WARM_PYTHON");
        if (!python) python = "python3";
        argv[0] = (char *)python;
        execvp(python, argv);
        perror(python);
        return 127;
    }
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before); // until it is known to whom they go
    const uint32_t bytes = warm_request(request, argc, argv);
    if (!bytes || warm_send(s, request, bytes) || warm_answer(s, &pid)) {
        fprintf(stderr, "warm-python: the server of PS_WARM has ended\n");
        return 127;
    }
    child = pid;
    for (size_t i = 0; i < sizeof PASSED_ON / sizeof *PASSED_ON; i++) {
        const struct sigaction action = {.sa_handler = warm_pass_on};
        struct sigaction old;
        sigaction(PASSED_ON[i], NULL, &old);
        if (old.sa_handler != SIG_IGN) sigaction(PASSED_ON[i], &action, NULL);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    // the end of its output is the child's alone
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    if (warm_answer(s, &status)) return 127;
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    return WEXITSTATUS(status);
}
