/* Members that ask for what is not theirs, for too much, or with broken messages; members
 * that disagree, die or fall silent. */
#include "../support/moved_clock.h"
#include "check.h"
#include "coord_peers.h"

static void fails_with(void *socket, const ps_control *c, const char *words)
{
    peer_send(socket, c);
    peer_assert_says(peer_await(socket, PS_CONTROL_FAIL).text, words);
}

PEER_PATIENT_JOB_TEST(a_key_is_set_by_whose_it_is)
{
    static const struct {
        const char *key;
        int socket; // server 0, worker 0, worker 1
        bool may;
    } rows[] = {
        {"job/total_steps", 1, true},  {"job/total_steps", 2, false},
        {"job/total_steps", 0, false}, {"server/0/stats", 0, true},
        {"server/0/stats", 1, false},  {"server/1/stats", 0, false},
        {"server/0", 0, false},        {"buffers/0", 2, false},
        {"worker/1/shm", 2, true},     {"worker/1/shm", 1, false},
        {"gloo/x", 2, true},           {"gloo/x", 0, false},
        {"file/folder", 1, true},      {"nccl/id", 2, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ps_control c = {.kind = PS_CONTROL_PUT, .nonce = peer_nonce, .request = i + 1};
        assert_ok(ps_control_set_name(&c, rows[i].key));
        if (!rows[i].may) {
            fails_with(peer_sockets[rows[i].socket], &c, "may not set");
            continue;
        }
        peer_send(peer_sockets[rows[i].socket], &c);
        assert_int_equal(
            peer_await(peer_sockets[rows[i].socket], PS_CONTROL_DONE).request, i + 1);
    }
}

PEER_JOB_TEST(norms_are_of_servers_links)
{
    ps_control c = {.kind = PS_CONTROL_NORM, .nonce = peer_nonce, .request = 1};
    c.norm.shards = c.norm.blocks = 1;
    fails_with(peer_sockets[0], &c, "NORM by link 0"); // it has no shards, so no links
    fails_with(peer_sockets[1], &c, "NORM by link 0");
    void *link = peer_dial_members(peer_admissions[1].port, &peer_admissions[1].secret, 1,
                                   0, NULL);
    fails_with(link, &c, "NORM by link 1");
    c.kind = PS_CONTROL_GET;
    fails_with(link, &c, "GET by link 1");
    peer_assert_alive(peer_sockets);
    ps_zsock_close(&link);
}

PEER_PATIENT_JOB_TEST(a_member_waits_for_so_much_at_most)
{
    ps_control c = {.kind = PS_CONTROL_GET, .nonce = peer_nonce};
    c.timeout_ms = 20000;
    for (int i = 0; i < 1000; i++) {
        c.request = (uint64_t)i + 1;
        snprintf(c.name, sizeof c.name, "never/%d", i);
        peer_send(peer_sockets[1], &c);
    }
    ps_control no = peer_await(peer_sockets[1], PS_CONTROL_FAIL);
    assert_int_equal(no.request, 65);
    peer_assert_says(no.text, "more than 64 waiting requests of one member");
    for (int i = 65; i < 1000; i++)
        peer_await(peer_sockets[1], PS_CONTROL_FAIL);
    peer_assert_alive(
        (void *[]){peer_sockets[0], peer_sockets[0], peer_sockets[2]}); // others may
}

/* 64 answers of 16 MiB that their receiver does not take. */
PEER_PATIENT_JOB_TEST(values_wait_for_who_takes_them)
{
    enum { N = 64, BYTES = 16 << 20 };
    ps_zsock_close(&peer_sockets[1]);
    peer_sockets[1] = peer_dial_members(peer_admissions[1].port,
                                        &peer_admissions[1].secret, 0, 1, NULL);
    ps_control c = {.kind = PS_CONTROL_PUT,
                    .nonce = peer_nonce,
                    .request = 1,
                    .name = "large",
                    .value = calloc(1, BYTES),
                    .bytes = BYTES};
    peer_send(peer_sockets[2], &c);
    peer_await(peer_sockets[2], PS_CONTROL_DONE);
    free((void *)(uintptr_t)c.value);
    c.value = NULL;
    c.bytes = 0;
    c.kind = PS_CONTROL_GET;
    for (int i = 0; i < N; i++) {
        c.request = (uint64_t)i + 1;
        peer_send(peer_sockets[1], &c);
    }
    // Members are heard in turn. So all of these messages have been taken once another
    // member has got twice as many answers.
    ps_control probe = {.kind = PS_CONTROL_PUT, .nonce = peer_nonce, .name = "small"};
    for (probe.request = 1000; probe.request < 1000 + 2 * N; probe.request++) {
        peer_send(peer_sockets[2], &probe);
        peer_await(peer_sockets[2], PS_CONTROL_DONE);
    }
    int n_values = 0, n_failed = 0;
    while (n_values + n_failed < N) {
        const ps_control beat = {.kind = PS_CONTROL_HEARTBEAT, .nonce = peer_nonce};
        for (int i = 0; i < 3; i++)
            peer_send(peer_sockets[i], &beat);
        c = peer_answer(peer_sockets[1]);
        n_values += c.kind == PS_CONTROL_DONE && c.bytes == BYTES;
        n_failed += c.kind == PS_CONTROL_FAIL;
        assert_int_not_equal(c.kind, PS_CONTROL_ABORT);
        if (c.kind == PS_CONTROL_FAIL)
            peer_assert_says(c.text, "too many values at once");
    }
    assert_in_range(n_values, 1, 20);
    c = (ps_control){
        .kind = PS_CONTROL_GET, .nonce = peer_nonce, .request = 99, .name = "large"};
    peer_send(peer_sockets[1], &c);
    assert_int_equal(peer_await(peer_sockets[1], PS_CONTROL_DONE).request, 99);
}

PEER_PATIENT_JOB_TEST(every_truncation_of_a_message_is_stood)
{
    ps_control c = {.kind = PS_CONTROL_PUT,
                    .nonce = peer_nonce,
                    .request = 5,
                    .name = "a key",
                    .value = "a value",
                    .bytes = 7};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_control_write(&w, &c);
    for (size_t n = 1; n < w.used; n++) {
        peer_send_bytes(peer_sockets[1], w.base, n);
        peer_await(peer_sockets[1], PS_CONTROL_FAIL);
    }
    ps_mp_writer_fini(&w);
    peer_assert_alive(peer_sockets);
}

PEER_JOB_TEST(disagreeing_sums_fail_for_all)
{
    const double values[3] = {1, 2, 3};
    ps_control c = {
        .kind = PS_CONTROL_GATHER, .nonce = peer_nonce, .request = 1, .name = "x"};
    c.timeout_ms = 20000;
    c.value = values;
    c.bytes = 16;
    peer_send(peer_sockets[1], &c);
    // The answer to a later message says that this one has been read.
    ps_control put = {
        .kind = PS_CONTROL_PUT, .nonce = peer_nonce, .request = 2, .name = "y"};
    peer_send(peer_sockets[1], &put);
    peer_await(peer_sockets[1], PS_CONTROL_DONE);
    c.bytes = 24;
    peer_send(peer_sockets[2], &c);
    peer_assert_says(peer_await(peer_sockets[2], PS_CONTROL_FAIL).text,
                     "worker 0 gives 2 values, worker 1 gives 3");
    c.bytes = 23;
    peer_send(peer_sockets[2], &c);
    peer_assert_says(peer_await(peer_sockets[2], PS_CONTROL_FAIL).text, "23 bytes");
    peer_send(peer_sockets[0], &c);
    peer_assert_says(peer_await(peer_sockets[0], PS_CONTROL_FAIL).text, "only workers");
    c.bytes = 16;
    snprintf(c.name, sizeof c.name, "z"); // as one changed byte makes it
    peer_send(peer_sockets[2], &c);
    snprintf(c.name, sizeof c.name, "x");
    c.timeout_ms = 300; // in place of the first
    peer_send(peer_sockets[1], &c);
    peer_assert_says(peer_await(peer_sockets[1], PS_CONTROL_FAIL).text,
                     "within the 0.3 s of worker 0, missing: 1; worker 1 waits in \"z\"");
}

PEER_JOB_TEST(a_closed_connection_aborts_the_job)
{
    ps_zsock_close(&peer_sockets[2]);
    const ps_control beat = {.kind = PS_CONTROL_HEARTBEAT, .nonce = peer_nonce};
    peer_send(peer_sockets[0], &beat);
    ps_control end = peer_await(peer_sockets[0], PS_CONTROL_ABORT);
    peer_assert_says(end.text, "worker 1 (host b) is dead: its connection closed");
    ps_zsock_close(&peer_sockets[0]);
    ps_zsock_close(&peer_sockets[1]);
}

PEER_TEST_WITH(a_silent_member_aborts_the_job, peer_open_impatient_job)
{
    ps_control c;
    do { // 0 and 1 live, 2 stays connected and says nothing
        const ps_control beat = {.kind = PS_CONTROL_HEARTBEAT, .nonce = peer_nonce};
        test_move_clock(150);
        peer_send(peer_sockets[0], &beat);
        peer_send(peer_sockets[1], &beat);
        c = peer_answer(peer_sockets[0]);
    } while (c.kind != PS_CONTROL_ABORT);
    peer_assert_says(c.text, "worker 1 (host b) is dead: no sign of life for ");
    const char *seconds = strstr(c.text, "life for ") + strlen("life for ");
    assert_true(atof(seconds) >= 2);
    c = (ps_control){
        .kind = PS_CONTROL_PUT, .nonce = peer_nonce, .request = 1, .name = "x"};
    peer_send(peer_sockets[1], &c);
    peer_assert_says(peer_await(peer_sockets[1], PS_CONTROL_ABORT).text, "worker 1");
}

static void leave_workers(void)
{
    const ps_control c = {
        .kind = PS_CONTROL_LEAVE, .nonce = peer_nonce, .request = 1, .timeout_ms = 5000};
    for (int i = 1; i < 3; i++)
        peer_send(peer_sockets[i], &c);
    for (int i = 1; i < 3; i++)
        peer_await(peer_sockets[i], PS_CONTROL_DONE);
}

/* The coordinator may die in between; the workers need all servers then. */
PEER_JOB_TEST(servers_hear_of_the_end_when_the_workers_have_gone)
{
    ps_control c = {.kind = PS_CONTROL_HEARTBEAT, .nonce = peer_nonce};
    leave_workers();
    for (int i = 1; i < 3; i++) {
        c.kind = PS_CONTROL_HEARTBEAT; // asks for news
        peer_send(peer_sockets[0], &c);
        c.kind = PS_CONTROL_CLOCK;
        peer_send(peer_sockets[0], &c);
        peer_await_without(peer_sockets[0], PS_CONTROL_CLOCK_IS, PS_CONTROL_END);
        c.kind = PS_CONTROL_BYE;
        peer_send(peer_sockets[i], &c);
    }
    peer_await(peer_sockets[0], PS_CONTROL_END);
}

/* The host waits for goodbyes, but only for a limited time: one may be lost. */
PEER_JOB_TEST(a_lost_goodbye_ends_no_finished_job)
{
    const ps_control c = {
        .kind = PS_CONTROL_LEAVE, .nonce = peer_nonce, .request = 1, .timeout_ms = 100};
    leave_workers();
    peer_send(peer_sockets[0], &c);
    assert_true(peer_await(peer_sockets[0], PS_CONTROL_DONE).request == 1);
}
