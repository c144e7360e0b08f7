/* What a coordinator has to stand: peers of other versions, jobs and plans, frames that
 * are no messages, ports in use, members that never come or that die. */
#include "coordinator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "control.h"
#include "log.h"
#include "member.h"

enum { CONFIG_HASH = 0x12ab, PLAN_HASH = 0x34cd };

static ps_coordinator *coordinator;
static void *context;

static ps_coordinator *start(int n_servers, int n_workers)
{
    const ps_coordinator_options o = {.where = "tcp://127.0.0.1:0",
                                      .job = "job",
                                      .n_servers = n_servers,
                                      .n_workers = n_workers,
                                      .config_hash = CONFIG_HASH,
                                      .plan_hash = PLAN_HASH,
                                      .heartbeat_ms = 50,
                                      .dead_after_ms = 2000};
    ps_coordinator *c;
    assert_int_equal(ps_coordinator_create(&o, &c), PS_OK);
    return c;
}

static int open_all(void **state)
{
    context = zmq_ctx_new();
    coordinator = start(1, 2);
    return 0;
}

static int close_all(void **state)
{
    zmq_ctx_term(context);
    ps_coordinator_destroy(&coordinator, NULL);
    return 0;
}

/* A bare member; number tells their ids apart. */
static void *dial(uint8_t number)
{
    uint8_t id[PS_CONTROL_ID_BYTES] = {0xee, number};
    const ps_zsock_options o = {
        .type = ZMQ_DEALER, .routing_id = id, .routing_id_bytes = sizeof id};
    void *socket;
    assert_int_equal(ps_zsock_open(context, &o, &socket), PS_OK);
    assert_int_equal(ps_zsock_connect(socket, ps_coordinator_endpoint(coordinator)),
                     PS_OK);
    return socket;
}

static void send_bytes(void *socket, const void *bytes, size_t n)
{
    zmq_msg_t part;
    assert_int_equal(ps_zsock_msg_copy(&part, bytes, n), PS_OK);
    assert_int_equal(ps_zsock_send(socket, ps_deadline_in_ms(2000), &part, 1), PS_OK);
}

static void send_control(void *socket, const ps_control *c)
{
    zmq_msg_t part;
    assert_int_equal(ps_control_frame(&part, c), PS_OK);
    assert_int_equal(ps_zsock_send(socket, ps_deadline_in_ms(2000), &part, 1), PS_OK);
}

/* The next message of the kind; others are skipped. Its value is not kept. */
static ps_control await(void *socket, ps_control_kind kind)
{
    ps_deadline deadline = ps_deadline_in_ms(5000);
    for (;;) {
        zmq_msg_t part;
        int n;
        ps_control c;
        assert_int_equal(ps_zsock_recv(socket, deadline, &part, 1, &n), PS_OK);
        if (n == 0) fail_msg("no %s came", ps_control_kind_name((int)kind));
        assert_int_equal(
            ps_control_read(zmq_msg_data(&part), zmq_msg_size(&part), &c, NULL), PS_OK);
        zmq_msg_close(&part);
        if (c.kind == kind) return c;
    }
}

static void assert_says(const char *text, const char *words)
{
    if (!strstr(text, words)) fail_msg("\"%s\" was expected in \"%s\"", words, text);
}

static ps_control join_message(void)
{
    ps_control c = {.kind = PS_CONTROL_JOIN, .name = "job", .text = PS_VERSION};
    c.number[0] = CONFIG_HASH;
    c.number[1] = PLAN_HASH;
    c.number[2] = 2;
    c.number[3] = 1;
    return c;
}

static void send_join(void *socket, ps_control c, ps_role role, int rank)
{
    const ps_roster_entry e = {.role = role, .rank = rank, .host = "b"};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_roster_entry_write(&w, &e);
    c.value = w.base;
    c.bytes = w.used;
    send_control(socket, &c);
    ps_mp_writer_fini(&w);
}

static void refused_with(ps_control join, ps_role role, int rank, const char *words)
{
    static uint8_t number = 100;
    void *socket = dial(number++);
    send_join(socket, join, role, rank);
    ps_control c = await(socket, PS_CONTROL_REFUSE);
    assert_says(c.text, words);
    assert_says(c.text, "on host b cannot join");
    ps_zsock_close(&socket);
}

static void who_does_not_fit_is_refused(void **state)
{
    ps_control c = join_message();
    snprintf(c.text, sizeof c.text, "0.0.7");
    refused_with(c, PS_ROLE_WORKER, 0, "version 0.0.7, the job's is " PS_VERSION);
    c = join_message();
    snprintf(c.name, sizeof c.name, "other");
    refused_with(c, PS_ROLE_WORKER, 0, "job \"other\", this is job \"job\"");
    c = join_message();
    c.nonce = 1; // of a dead job
    refused_with(c, PS_ROLE_WORKER, 0, "another job");
    c = join_message();
    c.number[0] = 0xbad;
    refused_with(c, PS_ROLE_WORKER, 1,
                 "worker 1 on host b cannot join: it has configuration hash "
                 "0000000000000bad, the job's is 00000000000012ab: start all processes "
                 "with the same file and --set");
    c = join_message();
    c.number[1] = 0xbad;
    refused_with(c, PS_ROLE_SERVER, 0, "plan hash 0000000000000bad");
    c = join_message();
    c.number[2] = 3;
    refused_with(c, PS_ROLE_WORKER, 0, "expects 3 workers and 1 servers");
    refused_with(join_message(), PS_ROLE_WORKER, 2, "its rank is not within 0 .. 1");
}

static void a_rank_is_given_once(void **state)
{
    void *first = dial(1), *twin = dial(2), *third = dial(3);
    send_join(first, join_message(), PS_ROLE_WORKER, 1);
    assert_says(await(first, PS_CONTROL_WAIT).text, "server 0 of 1, worker 0 of 2");
    send_join(twin, join_message(), PS_ROLE_WORKER, 1);
    assert_says(await(twin, PS_CONTROL_REFUSE).text, "taken by a worker on host b");
    send_join(first, join_message(), PS_ROLE_WORKER, 1); // again: no twin of itself
    await(first, PS_CONTROL_WAIT);
    send_join(twin, join_message(), PS_ROLE_WORKER, -1);
    await(twin, PS_CONTROL_WAIT);
    send_join(third, join_message(), PS_ROLE_WORKER, -1);
    assert_says(await(third, PS_CONTROL_REFUSE).text, "2 workers have joined already");
    ps_zsock_close(&first);
    ps_zsock_close(&twin);
    ps_zsock_close(&third);
}

/* ---- a job that runs ---- */

static void join_three(void *sockets[3], uint64_t *nonce)
{
    for (int i = 0; i < 3; i++) {
        sockets[i] = dial((uint8_t)(i + 1));
        send_join(sockets[i], join_message(), i == 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER,
                  i == 0 ? 0 : i - 1);
    }
    for (int i = 0; i < 3; i++)
        *nonce = await(sockets[i], PS_CONTROL_WELCOME).nonce;
    assert_true(*nonce == ps_coordinator_nonce(coordinator));
}

static void close_three(void *sockets[3])
{
    for (int i = 0; i < 3; i++)
        ps_zsock_close(&sockets[i]);
}

/* The job lives: a value can be stored. */
static void assert_alive(void *socket, uint64_t nonce)
{
    ps_control c = {.kind = PS_CONTROL_PUT, .nonce = nonce, .request = 4711, .name = "k"};
    send_control(socket, &c);
    assert_int_equal(await(socket, PS_CONTROL_DONE).request, 4711);
}

static void nonsense_is_answered_and_changes_nothing(void **state)
{
    void *sockets[3], *stranger = dial(9);
    uint64_t nonce;
    join_three(sockets, &nonce);

    send_bytes(stranger, "GET / HTTP/1.0\r\n\r\n", 18);
    assert_says(await(stranger, PS_CONTROL_FAIL).text, "no control message");
    send_bytes(stranger, "", 0);
    assert_says(await(stranger, PS_CONTROL_FAIL).text, "0 bytes");
    static const uint8_t claims[] = {0xdd, 0xff, 0xff, 0xff, 0xff, 1, 4};
    send_bytes(stranger, claims, sizeof claims);
    assert_says(await(stranger, PS_CONTROL_FAIL).text, "no control message");
    static const uint8_t future[] = {0x94, 9, 1, 0, 0};
    send_bytes(stranger, future, sizeof future);
    assert_says(await(stranger, PS_CONTROL_FAIL).text, "version 9");
    static const uint8_t unknown[] = {0x94, PS_CONTROL_VERSION, 99, 0, 0};
    send_bytes(stranger, unknown, sizeof unknown);
    assert_says(await(stranger, PS_CONTROL_FAIL).text, "unknown kind 99");
    // A GATHER whose value claims 4 GiB.
    static const uint8_t huge[] = {
        0x97, PS_CONTROL_VERSION, 4, 0, 0, 0, 0xa1, 'x', 0xc6, 0xff, 0xff, 0xff, 0xff};
    send_bytes(stranger, huge, sizeof huge);
    assert_says(await(stranger, PS_CONTROL_FAIL).text, "malformed GATHER");

    ps_control c = {.kind = PS_CONTROL_GATHER, .nonce = nonce, .request = 1, .name = "x"};
    send_control(stranger, &c);
    assert_says(await(stranger, PS_CONTROL_FAIL).text, "no member");
    c.nonce = nonce + 1;
    send_control(sockets[1], &c);
    assert_says(await(sockets[1], PS_CONTROL_FAIL).text, "another job");
    c = (ps_control){.kind = PS_CONTROL_INTERRUPT, .nonce = nonce};
    send_control(stranger, &c);
    assert_says(await(stranger, PS_CONTROL_FAIL).text, "no member");
    c = (ps_control){.kind = PS_CONTROL_WELCOME, .nonce = nonce};
    send_control(stranger, &c);
    assert_says(await(stranger, PS_CONTROL_FAIL).text, "coordinator's to send");
    send_join(stranger, join_message(), PS_ROLE_WORKER, 0);
    assert_says(await(stranger, PS_CONTROL_REFUSE).text, "has all its members");

    for (int i = 0; i < 3; i++)
        assert_alive(sockets[i], nonce);
    ps_zsock_close(&stranger);
    close_three(sockets);
}

static void every_truncation_of_a_message_is_stood(void **state)
{
    void *sockets[3], *stranger = dial(9);
    uint64_t nonce;
    join_three(sockets, &nonce);
    ps_control c = {.kind = PS_CONTROL_PUT,
                    .nonce = nonce,
                    .request = 5,
                    .name = "a key",
                    .value = "a value",
                    .bytes = 7};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_control_write(&w, &c);
    for (size_t n = 1; n < w.used; n++) {
        send_bytes(stranger, w.base, n);
        await(stranger, PS_CONTROL_FAIL);
    }
    ps_mp_writer_fini(&w);
    assert_alive(sockets[2], nonce);
    ps_zsock_close(&stranger);
    close_three(sockets);
}

static void frames_too_many_and_foreign_ids_are_stood(void **state)
{
    void *sockets[3], *request;
    uint64_t nonce;
    join_three(sockets, &nonce);
    zmq_msg_t parts[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(ps_zsock_msg_copy(&parts[i], "x", 1), PS_OK);
    assert_int_equal(ps_zsock_send(sockets[0], ps_deadline_in_ms(2000), parts, 4), PS_OK);
    // A REQ socket: an id of ZeroMQ's own and an empty frame first.
    const ps_zsock_options o = {.type = ZMQ_REQ};
    assert_int_equal(ps_zsock_open(context, &o, &request), PS_OK);
    assert_int_equal(ps_zsock_connect(request, ps_coordinator_endpoint(coordinator)),
                     PS_OK);
    send_bytes(request, "hello", 5);
    assert_alive(sockets[0], nonce);
    ps_zsock_close(&request);
    close_three(sockets);
}

/* Bytes that are not even ZeroMQ's. */
static void another_protocol_on_the_port_does_nothing(void **state)
{
    void *sockets[3];
    uint64_t nonce;
    join_three(sockets, &nonce);
    const char *endpoint = ps_coordinator_endpoint(coordinator);
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port =
                                       htons((uint16_t)atoi(strrchr(endpoint, ':') + 1)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char noise[4096];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i * 2654435761u >> 13);
    for (int kind = 0; kind < 3; kind++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
        const char *http = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        if (kind == 1) assert_true(write(fd, http, strlen(http)) > 0);
        if (kind == 2) assert_true(write(fd, noise, sizeof noise) > 0);
        usleep(20000);
        close(fd);
    }
    assert_alive(sockets[0], nonce);
    close_three(sockets);
}

static void disagreeing_sums_fail_for_all(void **state)
{
    void *sockets[3];
    uint64_t nonce;
    const double values[3] = {1, 2, 3};
    join_three(sockets, &nonce);
    ps_control c = {.kind = PS_CONTROL_GATHER, .nonce = nonce, .request = 1, .name = "x"};
    c.number[0] = 400;
    c.value = values;
    c.bytes = 16;
    send_control(sockets[1], &c);
    usleep(50000);
    c.bytes = 24;
    send_control(sockets[2], &c);
    assert_says(await(sockets[2], PS_CONTROL_FAIL).text,
                "worker 0 gives 2 values, worker 1 gives 3");
    c.bytes = 23;
    send_control(sockets[2], &c);
    assert_says(await(sockets[2], PS_CONTROL_FAIL).text, "23 bytes");
    send_control(sockets[0], &c);
    assert_says(await(sockets[0], PS_CONTROL_FAIL).text, "only workers");
    assert_says(await(sockets[1], PS_CONTROL_FAIL).text, "missing: 1");
    close_three(sockets);
}

static void a_closed_connection_aborts_the_job(void **state)
{
    void *sockets[3];
    uint64_t nonce;
    join_three(sockets, &nonce);
    uint64_t before = ps_clock_ns();
    ps_zsock_close(&sockets[2]);
    const ps_control beat = {.kind = PS_CONTROL_HEARTBEAT, .nonce = nonce};
    send_control(sockets[0], &beat);
    ps_control end = await(sockets[0], PS_CONTROL_ABORT);
    assert_says(end.text, "worker 1 (host b) is dead: its connection closed");
    assert_true(ps_clock_ns() - before < 1900000000u); // before its heartbeat's deadline
    ps_zsock_close(&sockets[0]);
    ps_zsock_close(&sockets[1]);
}

static void a_silent_member_aborts_the_job(void **state)
{
    void *sockets[3];
    uint64_t nonce;
    join_three(sockets, &nonce);
    for (int i = 0; i < 75; i++) { // 0 and 1 live, 2 stays connected and says nothing
        const ps_control beat = {.kind = PS_CONTROL_HEARTBEAT, .nonce = nonce};
        send_control(sockets[0], &beat);
        send_control(sockets[1], &beat);
        usleep(30000);
    }
    assert_says(await(sockets[0], PS_CONTROL_ABORT).text,
                "worker 1 (host b) is dead: no sign of life for 2.");
    ps_control c = {.kind = PS_CONTROL_PUT, .nonce = nonce, .request = 1, .name = "x"};
    send_control(sockets[1], &c);
    assert_says(await(sockets[1], PS_CONTROL_ABORT).text, "worker 1");
    close_three(sockets);
}

/* The host waits for goodbyes; one that was lost is not missed for ever. */
static void a_lost_goodbye_ends_no_finished_job(void **state)
{
    void *sockets[3];
    uint64_t nonce;
    join_three(sockets, &nonce);
    ps_control c = {.kind = PS_CONTROL_LEAVE, .nonce = nonce, .request = 1};
    for (int i = 1; i < 3; i++) {
        c.number[0] = 5000;
        send_control(sockets[i], &c);
    }
    await(sockets[0], PS_CONTROL_END);
    await(sockets[1], PS_CONTROL_DONE);
    c.number[0] = 100;
    send_control(sockets[0], &c);
    assert_true(await(sockets[0], PS_CONTROL_DONE).request == 1);
    close_three(sockets);
}

/* ---- members that find no coordinator, or not enough of the others ---- */

static ps_member_options options_of(ps_config *config, const char *init, ps_role role,
                                    int rank, int join_timeout_ms)
{
    char timeout[64];
    snprintf(timeout, sizeof timeout, "net.join_timeout_ms=%d", join_timeout_ms);
    const char *const set[] = {"job.name=job", "net.heartbeat_ms=50", timeout};
    assert_int_equal(ps_config_load(config, NULL, set, 3), PS_OK);
    return (ps_member_options){.config = config,
                               .role = role,
                               .rank = rank,
                               .world_size = 3,
                               .n_servers = 2,
                               .init_method = init,
                               .local_rank = -1};
}

static void the_deadline_names_who_is_missing(void **state)
{
    ps_config config;
    char init[64];
    snprintf(init, sizeof init, "file:///tmp/pstrain-test-missing-%d", (int)getpid());
    ps_member_options o = options_of(&config, init, PS_ROLE_SERVER, 0, 300);
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_ERR_TIMEOUT);
    assert_null(m);
    assert_says(ps_err_message(), "server 1 of 2, workers 0-2 of 3: not "
                                  "joined after 0.3 s");
    ps_config_fini(&config);
}

static void no_coordinator_is_a_clear_error(void **state)
{
    ps_config config;
    char endpoint[PS_ENDPOINT_MAX]; // of a port that nobody has any more
    ps_coordinator *gone = start(1, 1);
    snprintf(endpoint, sizeof endpoint, "%s", ps_coordinator_endpoint(gone));
    ps_coordinator_destroy(&gone, NULL);
    ps_member_options o = options_of(&config, endpoint, PS_ROLE_WORKER, 0, 300);
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_ERR_TIMEOUT);
    assert_says(ps_err_message(), endpoint);
    assert_says(ps_err_message(), "refused");
    assert_says(ps_err_message(), "is server 0 running");
    ps_config_fini(&config);
}

static void a_port_in_use_is_a_clear_error(void **state)
{
    ps_config config;
    const char *endpoint = ps_coordinator_endpoint(coordinator);
    ps_member_options o = options_of(&config, endpoint, PS_ROLE_SERVER, 0, 300);
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_ERR_NET);
    assert_says(ps_err_message(), endpoint);
    assert_says(ps_err_message(), "the port is in use");
    assert_says(ps_err_message(), "choose another port");
    ps_config_fini(&config);
}

static void a_refusal_reaches_the_user(void **state)
{
    ps_config config;
    const char *endpoint = ps_coordinator_endpoint(coordinator);
    ps_member_options o = options_of(&config, endpoint, PS_ROLE_WORKER, 1, 5000);
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_ERR_PEER);
    assert_says(ps_err_message(), "expects 3 workers and 2 servers, the job has 2 and 1");
    ps_config_fini(&config);
}

/* Something listens there and says nothing. */
static void a_foreign_listener_is_named(void **state)
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
    assert_says(ps_err_message(), "takes connections but does not answer");
    close(fd);
    ps_config_fini(&config);
}

#define WITH_COORDINATOR(test) cmocka_unit_test_setup_teardown(test, open_all, close_all)

int main(void)
{
    ps_log_init("test", PS_LOG_ERROR + 1); // what goes wrong here is meant to
    const struct CMUnitTest tests[] = {
        WITH_COORDINATOR(who_does_not_fit_is_refused),
        WITH_COORDINATOR(a_rank_is_given_once),
        WITH_COORDINATOR(nonsense_is_answered_and_changes_nothing),
        WITH_COORDINATOR(every_truncation_of_a_message_is_stood),
        WITH_COORDINATOR(frames_too_many_and_foreign_ids_are_stood),
        WITH_COORDINATOR(another_protocol_on_the_port_does_nothing),
        WITH_COORDINATOR(disagreeing_sums_fail_for_all),
        WITH_COORDINATOR(a_closed_connection_aborts_the_job),
        WITH_COORDINATOR(a_silent_member_aborts_the_job),
        WITH_COORDINATOR(a_lost_goodbye_ends_no_finished_job),
        cmocka_unit_test(the_deadline_names_who_is_missing),
        cmocka_unit_test(no_coordinator_is_a_clear_error),
        WITH_COORDINATOR(a_port_in_use_is_a_clear_error),
        WITH_COORDINATOR(a_refusal_reaches_the_user),
        WITH_COORDINATOR(a_foreign_listener_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
