/* Strangers at the ports where workers wait for each other. Gloo calls this program's
 * listen(), which lets a stranger connect first. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "exchange_run.h"

enum { GLOO_BACKLOG = 1, STRANGERS_MAX = 256 };

static atomic_int ports_to_visit, n_strangers;
static int strangers[STRANGERS_MAX];

/* What a stranger does. Returns its descriptor, or -1 when it is gone. */
static int behave(int fd, int how)
{
    enum { STAY, LEAVE, RESET, TALK };
    // a message of Gloo's: its bytes, to a buffer of a number that nobody has
    static const size_t talk[6] = {sizeof talk, 1, 0xa5a5};
    const struct linger reset = {.l_onoff = 1};
    if (how == RESET) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (how == TALK) (void)!send(fd, talk, sizeof talk, MSG_NOSIGNAL);
    if (how == STAY || how == TALK) return fd;
    close(fd);
    return -1;
}

static void visit(int port_fd)
{
    struct sockaddr_storage at;
    socklen_t bytes = sizeof at;
    int i = atomic_fetch_add(&n_strangers, 1);
    if (i >= STRANGERS_MAX || getsockname(port_fd, (struct sockaddr *)&at, &bytes) != 0)
        return;
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, bytes) != 0) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0) fd = behave(fd, i % 4);
    strangers[i] = fd + 1;
}

int listen(int fd, int backlog)
{
    static int (*real)(int, int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "listen");
    int result = real(fd, backlog);
    if (result == 0 && backlog == GLOO_BACKLOG &&
        atomic_fetch_sub(&ports_to_visit, 1) > 0)
        visit(fd);
    return result;
}

static void let_in(int n)
{
    memset(strangers, 0, sizeof strangers);
    atomic_store(&n_strangers, 0);
    atomic_store(&ports_to_visit, n);
}

static void send_away(void)
{
    for (int i = 0; i < STRANGERS_MAX; i++)
        if (strangers[i] > 0) close(strangers[i] - 1);
}

static const test_run_options job = {.exchange = PS_EXCHANGE_GLOO,
                                     .workers = 3,
                                     SETS("exchange.shm=off", "optimizer.name=adamw")};

TEST(without_strangers)
{
    let_in(0);
    test_run_check_bits(&job);
    assert_int_equal(atomic_load(&n_strangers), 0);
}

/* Three workers have six ports. Connections are made to three of them. */
TEST(they_cost_an_attempt)
{
    for (int n = 1; n <= 12; n += n < 6 ? 1 : 3) {
        let_in(n);
        test_run_check_bits(&job);
        assert_int_equal(atomic_load(&n_strangers), n);
        send_away();
    }
}

TEST(they_are_named_where_they_come_every_time)
{
    test_run_result result;
    let_in(STRANGERS_MAX);
    test_run(&job, &result);
    send_away();
    for (int r = 0; r < job.workers; r++) {
        // a rank that gives up later has the first rank's reason
        assert_true(result.rank[r].err == PS_ERR_NET ||
                    result.rank[r].err == PS_ERR_PEER);
        if (!strstr(result.rank[r].text, "strangers come to the workers' ports"))
            fail_msg("%s", result.rank[r].text);
    }
    assert_true(atomic_load(&n_strangers) <= 6 * 5);
    test_run_fini(&result, job.workers);
}
