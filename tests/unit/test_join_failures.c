/* Members that find no coordinator, another program in its place, or not enough of the
 * other members: each fails with one clear error. */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "check.h"
#include "coord_peers.h"
#include "event.h"
#include "log.h"
#include "member.h"

static ps_member_options options_of(ps_config *config, const char *init, ps_role role,
                                    int rank, int join_timeout_ms)
{
    char timeout[64];
    snprintf(timeout, sizeof timeout, "net.join_timeout_ms=%d", join_timeout_ms);
    const char *const set[] = {"job.name=job", "net.heartbeat_ms=50", timeout};
    assert_ok(ps_config_load(config, NULL, set, 3));
    return (ps_member_options){.config = config,
                               .role = role,
                               .rank = rank,
                               .world_size = 3,
                               .n_servers = 2,
                               .init_method = init,
                               .local_rank = -1};
}

/* A member that hosts the coordinator fails to join within that time. */
static void join_alone(int join_timeout_ms)
{
    ps_config config;
    char init[64];
    snprintf(init, sizeof init, "file:///tmp/pstrain-test-missing-%d", (int)getpid());
    ps_member_options o = options_of(&config, init, PS_ROLE_SERVER, 0, join_timeout_ms);
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_ERR_TIMEOUT);
    assert_null(m);
    ps_config_fini(&config);
}

TEST(the_deadline_names_who_is_missing)
{
    // On a busy machine the coordinator may take longer to say which member is missing.
    int ms = 300;
    for (join_alone(ms); ms < 20000 && !strstr(ps_err_message(), "not joined");)
        join_alone(ms *= 4);
    char words[80];
    snprintf(words, sizeof words,
             "server 1 of 2, workers 0-2 of 3: not joined after %.1f s", ms * 1e-3);
    peer_assert_says(ps_err_message(), words);
}

TEST(no_coordinator_is_a_clear_error)
{
    ps_config config;
    char endpoint[PS_ENDPOINT_MAX]; // of a port that no process has any more
    ps_coordinator *gone = peer_start_coordinator(1, 1);
    snprintf(endpoint, sizeof endpoint, "%s", ps_coordinator_endpoint(gone));
    ps_coordinator_destroy(&gone, NULL);
    ps_member_options o = options_of(&config, endpoint, PS_ROLE_WORKER, 0, 300);
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_ERR_TIMEOUT);
    peer_assert_says(ps_err_message(), endpoint);
    peer_assert_says(ps_err_message(), "refused");
    peer_assert_says(ps_err_message(), "is server 0 running");
    ps_config_fini(&config);
}

PEER_TEST(a_port_in_use_is_a_clear_error)
{
    ps_config config;
    const char *endpoint = ps_coordinator_endpoint(peer_coordinator);
    ps_member_options o = options_of(&config, endpoint, PS_ROLE_SERVER, 0, 300);
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_ERR_NET);
    peer_assert_says(ps_err_message(), endpoint);
    peer_assert_says(ps_err_message(), "the port is in use");
    peer_assert_says(ps_err_message(), "choose another port");
    ps_config_fini(&config);
}

PEER_TEST(a_refusal_reaches_the_user)
{
    ps_config config;
    const char *endpoint = ps_coordinator_endpoint(peer_coordinator);
    ps_member_options o = options_of(&config, endpoint, PS_ROLE_WORKER, 1, 5000);
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_ERR_PEER);
    peer_assert_says(ps_err_message(), "this is worker 1 of 3 workers and 2 servers");
    ps_config_fini(&config);
}

/* --- a job that is over before a member has joined --------------------------------- */

typedef struct joiner {
    ps_member_options o;
    ps_member *member;
    ps_err err;
    char said[PS_CONTROL_TEXT_MAX];
} joiner;

static void *joiner_run(void *arg)
{
    joiner *j = arg;
    j->err = ps_member_join(&j->o, &j->member);
    snprintf(j->said, sizeof j->said, "%s", ps_err_message());
    return NULL;
}

static ps_event joined;

static void note_joined(void *ctx, ps_log_level level, const char *text)
{
    if (strstr(text, "joined role=worker rank=1")) ps_event_set(&joined);
}

/* A coordinator of two workers, to which worker 1 comes; it ends with that reason. */
static void joiner_meets_an_end(joiner *j, pthread_t *thread, char init[64])
{
    ps_coordinator_options o = {.where = "tcp://127.0.0.1:0",
                                .job = "job",
                                .n_workers = 2,
                                .config_hash = ps_config_hash(j->o.config),
                                .heartbeat_ms = 50,
                                .dead_after_ms = 20000,
                                .recovers = j->o.config->recovery.rejoins > 0};
    ps_coordinator *c;
    assert_ok(ps_coordinator_create(&o, &c));
    snprintf(init, 64, "%s", ps_coordinator_endpoint(c));
    assert_int_equal(pthread_create(thread, NULL, joiner_run, j), 0);
    struct pollfd item = {.fd = ps_event_fd(&joined), .events = POLLIN};
    assert_int_equal(poll(&item, 1, 20000), 1);
    ps_event_clear(&joined);
    ps_coordinator_destroy(&c, "it ends early");
}

TEST(a_job_that_is_over_meanwhile)
{
    assert_ok(ps_event_init(&joined));
    ps_log_set_sink(note_joined, NULL, PS_LOG_INFO);
    for (int rejoins = 0; rejoins < 2; rejoins++) {
        ps_config config;
        char init[64];
        pthread_t thread;
        joiner one = {.o = options_of(&config, init, PS_ROLE_WORKER, 1, 20000)};
        one.o.world_size = 2;
        one.o.n_servers = 0;
        config.recovery.rejoins = rejoins;
        joiner_meets_an_end(&one, &thread, init);
        joiner zero = {.o = one.o}; // hosts the next coordinator
        zero.o.rank = 0;
        if (rejoins > 0) joiner_run(&zero);
        pthread_join(thread, NULL);
        if (rejoins == 0) peer_assert_says(one.said, "it ends early");
        assert_int_equal(one.err, rejoins > 0 ? PS_OK : PS_ERR_PEER);
        assert_int_equal(zero.err, PS_OK);
        ps_member_destroy(&one.member);
        ps_member_destroy(&zero.member);
        ps_config_fini(&config);
    }
    ps_log_set_sink(NULL, NULL, PS_LOG_INFO);
    ps_event_fini(&joined);
}

/* A program listens on the port and says nothing. */
PEER_TEST(a_foreign_listener_is_named)
{
    ps_config config;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    char init[64];
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, bytes), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    snprintf(init, sizeof init, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    ps_member_options o = options_of(&config, init, PS_ROLE_WORKER, 0, 300);
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_ERR_TIMEOUT);
    peer_assert_says(ps_err_message(), "takes connections but does not answer");
    close(fd);
    ps_config_fini(&config);
}
