/* A coordinator's door: processes that do not fit the job, twins of members, strangers,
 * and programs that speak another protocol. They learn nothing of the job, and the job
 * goes on. */
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "../support/moved_clock.h"
#include "../support/sent_away.h"
#include "check.h"
#include "coord_peers.h"

/* The answer says what the user has to change, and nothing about the job. */
static void refused_with(ps_control join, ps_role role, int rank, const char *words)
{
    static const char *const secrets[] = {"\"job\"", "12ab", "34cd", PS_VERSION, "host"};
    static uint8_t number = 100;
    void *socket = peer_dial(number++);
    peer_send_join(socket, join, role, rank);
    ps_control c = peer_await(socket, PS_CONTROL_REFUSE);
    peer_assert_says(c.text, words);
    assert_int_equal(c.nonce, 0);
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++)
        if (strstr(c.text, secrets[i]) && strcmp(secrets[i], "host") != 0)
            fail_msg("\"%s\" tells %s", c.text, secrets[i]);
    ps_zsock_close(&socket);
}

PEER_TEST(who_does_not_fit_is_refused)
{
    ps_control c = peer_join_message();
    snprintf(c.text, sizeof c.text, "0.0.7");
    refused_with(c, PS_ROLE_WORKER, 0, "another version than the job");
    c = peer_join_message();
    snprintf(c.name, sizeof c.name, "other");
    refused_with(c, PS_ROLE_WORKER, 0, "job.name");
    c = peer_join_message();
    c.nonce = 1; // of a dead job
    refused_with(c, PS_ROLE_WORKER, 0, "another job");
    c = peer_join_message();
    c.join.config_hash = 0xbad;
    refused_with(
        c, PS_ROLE_WORKER, 1,
        "its configuration differs from the job's in the section \"train\": start "
        "all processes with the same file and --set");
    c = peer_join_message();
    c.join.plan_hash = 0xbad;
    refused_with(c, PS_ROLE_SERVER, 0, "other chunks than the job");
    c = peer_join_message();
    c.join.world_size = 3;
    refused_with(c, PS_ROLE_WORKER, 0, "other numbers of workers and servers");
    refused_with(peer_join_message(), PS_ROLE_WORKER, 2, "no such rank");
    refused_with(peer_join_message(), PS_ROLE_SERVER, -1,
                 "the last place is for server 0");
}

static void *dial_with_key(uint8_t number, ps_role key)
{
    const uint8_t id[PS_CONTROL_ID_BYTES] = {0xee, number};
    return peer_connect(ps_coordinator_endpoint(peer_coordinator),
                        (ps_zsock_options){.routing_id = id,
                                           .routing_id_bytes = sizeof id,
                                           .curve = &peer_keys[key]},
                        NULL);
}

/* A member's own key, and the role that it says it has. */
PEER_TEST_WITH(a_key_joins_as_its_role_alone, peer_open_with_keys)
{
    for (int key = 0; key < PS_ROLE_COUNT; key++)
        for (int role = 0; role < PS_ROLE_COUNT; role++) {
            void *socket = dial_with_key((uint8_t)(10 * key + role), (ps_role)key);
            peer_send_join(socket, peer_join_message(), (ps_role)role, 0);
            if (key == role) {
                peer_await(socket, PS_CONTROL_ADMIT);
            } else {
                ps_control c = peer_await(socket, PS_CONTROL_REFUSE);
                peer_assert_says(c.text, "its key is not that of its role");
            }
            ps_zsock_close(&socket);
        }
}

/* Only the owner of a role's key may say that a member of this role was started again. */
PEER_TEST_WITH(a_key_of_another_role_takes_no_place, peer_open_with_keys)
{
    void *server = dial_with_key(1, PS_ROLE_SERVER);
    const peer_admission first = peer_ask_to_join(server, PS_ROLE_SERVER, 0);
    void *worker = dial_with_key(2, PS_ROLE_WORKER);
    ps_control later = peer_join_message();
    later.join.incarnation = 7;
    peer_send_join(worker, later, PS_ROLE_SERVER, 0);
    peer_assert_says(peer_await(worker, PS_CONTROL_REFUSE).text,
                     "its key is not that of its role");
    const peer_admission again = peer_ask_to_join(server, PS_ROLE_SERVER, 0);
    assert_memory_equal(&again.secret, &first.secret, sizeof first.secret);
    void *successor = dial_with_key(3, PS_ROLE_SERVER);
    peer_send_join(successor, later, PS_ROLE_SERVER, 0);
    peer_await(successor, PS_CONTROL_ADMIT);
    ps_zsock_close(&server);
    ps_zsock_close(&worker);
    ps_zsock_close(&successor);
}

/* It has stood still meanwhile: it need not ask until its time is over. */
PEER_TEST_WITH(a_process_that_was_replaced_is_refused_for_good, peer_open_recovering)
{
    void *doors[] = {peer_dial(1), peer_dial(2), peer_dial(3), peer_dial(4)}, *members[3];
    peer_admission a[] = {peer_ask_to_join(doors[0], PS_ROLE_SERVER, 0),
                          peer_ask_to_join(doors[1], PS_ROLE_WORKER, 0)};
    ps_control c = peer_join_message();
    c.join.incarnation = 3;
    peer_send_join(doors[2], c, PS_ROLE_WORKER, 1);
    peer_await(doors[2], PS_CONTROL_ADMIT);
    const peer_admission successor = peer_ask_to_join(doors[2], PS_ROLE_WORKER, 1);
    c.join.incarnation = 2;
    for (int running = 0; running < 2; running++) {
        peer_send_join(doors[3], c, PS_ROLE_WORKER, 1);
        const ps_control no = peer_await(doors[3], PS_CONTROL_REFUSE);
        peer_assert_says(no.text, "its rank belongs to a later start");
        assert_int_equal(no.for_now, 0);
        for (int i = 0; i < 3 && !running; i++)
            members[i] = peer_come(i < 2 ? &a[i] : &successor);
        for (int i = 0; i < 3 && !running; i++)
            peer_await(members[i], PS_CONTROL_WELCOME);
    }
    for (int i = 0; i < 4; i++)
        ps_zsock_close(&doors[i]);
    for (int i = 0; i < 3; i++)
        ps_zsock_close(&members[i]);
}

static void ask_to_read(void *door, const char *job)
{
    ps_control c = {.kind = PS_CONTROL_READER};
    assert_ok(ps_control_set_name(&c, job));
    peer_send(door, &c);
}

PEER_TEST(a_reader_waits_until_the_job_runs)
{
    void *door = peer_dial(1);
    ask_to_read(door, "");
    const ps_control no = peer_await(door, PS_CONTROL_REFUSE);
    peer_assert_says(no.text, "the job has not all its members yet");
    assert_int_equal(no.for_now, 1);
    ask_to_read(door, "other");
    const ps_control never = peer_await(door, PS_CONTROL_REFUSE);
    peer_assert_says(never.text, "another job runs here");
    assert_int_equal(never.for_now, 0);
    assert_int_equal(never.nonce, 0);
    ps_zsock_close(&door);
}

/* The gate ends a stranger's connection after a while. The clock is moved until it has.
 * For the coordinator this is a pause of its own, which proves no member's death. */
static void is_sent_away(void *stranger, void *monitor)
{
    const ps_deadline deadline = ps_deadline_in_ms(20000);
    for (; !test_ends(monitor, 50); assert_false(ps_deadline_passed(deadline)))
        test_move_clock(31000);
    test_assert_silent(stranger, monitor);
}

/* Its secret is for the shards: the members' ROUTER takes nothing from it. */
PEER_JOB_TEST(a_reader_learns_where_the_shards_are)
{
    zmq_msg_t part;
    ps_control c;
    ps_secret secret;
    size_t bytes;
    int n;
    void *door = peer_dial(99);
    ask_to_read(door, "job");
    assert_ok(ps_zsock_recv(door, ps_deadline_in_ms(20000), &part, 1, &n));
    assert_int_equal(n, 1);
    assert_ok(ps_control_read(zmq_msg_data(&part), zmq_msg_size(&part), &c, NULL));
    assert_int_equal(c.kind, PS_CONTROL_SERVERS);
    assert_int_equal(c.nonce, peer_nonce);
    ps_mp_reader r;
    ps_mp_reader_init(&r, c.value, c.bytes);
    assert_true(ps_mp_read_array(&r, 100) >= 1);
    const void *told = ps_mp_read_bin(&r, &bytes, sizeof secret);
    assert_int_equal(bytes, sizeof secret);
    memcpy(&secret, told, sizeof secret);
    zmq_msg_close(&part);
    for (int i = 0; i < 3; i++)
        assert_memory_not_equal(&secret, &peer_admissions[i].secret, sizeof secret);
    void *monitor;
    void *reader = peer_dial_members(peer_admissions[0].port, &secret, 0, 0, &monitor);
    ps_control put = {.kind = PS_CONTROL_PUT, .nonce = peer_nonce, .request = 1};
    assert_ok(ps_control_set_name(&put, "job/total_steps"));
    peer_send(reader, &put);
    is_sent_away(reader, monitor);
    peer_assert_alive(peer_sockets);
    ps_zsock_close(&reader);
    ps_zsock_close(&door);
}

PEER_TEST(a_rank_is_given_once)
{
    void *first = peer_dial(1), *twin = peer_dial(2), *third = peer_dial(3);
    peer_admission a = peer_ask_to_join(first, PS_ROLE_WORKER, 1);
    void *member = peer_come(&a);
    peer_assert_says(peer_await(member, PS_CONTROL_WAIT).text,
                     "server 0 of 1, worker 0 of 2");
    peer_send_join(twin, peer_join_message(), PS_ROLE_WORKER, 1);
    peer_assert_says(peer_await(twin, PS_CONTROL_REFUSE).text, "its rank is taken");
    peer_admission again =
        peer_ask_to_join(first, PS_ROLE_WORKER, 1); // it is no twin of itself
    assert_memory_equal(&again.secret, &a.secret, sizeof a.secret);
    peer_admission b = peer_ask_to_join(twin, PS_ROLE_WORKER, -1);
    assert_memory_not_equal(&b.secret, &a.secret, sizeof a.secret);
    peer_send_join(third, peer_join_message(), PS_ROLE_WORKER, -1);
    peer_assert_says(peer_await(third, PS_CONTROL_REFUSE).text,
                     "all workers of the job have joined");
    ps_zsock_close(&first);
    ps_zsock_close(&twin);
    ps_zsock_close(&third);
    ps_zsock_close(&member);
}

/* A process that was admitted but does not come loses its place. */
PEER_TEST(a_half_open_joiner_makes_room)
{
    void *first = peer_dial(1), *second = peer_dial(2);
    const uint64_t begun = ps_clock_awake_ns();
    (void)peer_ask_to_join(first, PS_ROLE_WORKER, 1);
    ps_control c = {.kind = PS_CONTROL_REFUSE, .text = "its rank is taken"};
    uint64_t ms = 0;
    for (; c.kind == PS_CONTROL_REFUSE && ms < 60000; test_move_clock(1000)) {
        peer_assert_says(c.text, "its rank is taken");
        peer_send_join(second, peer_join_message(), PS_ROLE_WORKER, 1);
        c = peer_answer(second);
        ms = (ps_clock_awake_ns() - begun) / 1000000;
    }
    assert_int_equal(c.kind, PS_CONTROL_ADMIT);
    assert_true(ms >= 5000);
    ps_zsock_close(&first);
    ps_zsock_close(&second);
}

/* Sends junk and well-formed messages. A stranger gets no answer and changes nothing, at
 * the door and at the members' ROUTER. */
static void say_everything(void *stranger, uint64_t nonce)
{
    static const uint8_t claims[] = {0xdd, 0xff, 0xff, 0xff, 0xff, 1, 4};
    static const uint8_t unknown[] = {0x94, PS_CONTROL_VERSION, 99, 0, 0};
    // A GATHER whose value claims 4 GiB.
    static const uint8_t huge[] = {
        0x97, PS_CONTROL_VERSION, 4, 0, 0, 0, 0xa1, 'x', 0xc6, 0xff, 0xff, 0xff, 0xff};
    static const ps_control_kind kinds[] = {
        PS_CONTROL_HERE,  PS_CONTROL_HEARTBEAT, PS_CONTROL_ABORT,   PS_CONTROL_GATHER,
        PS_CONTROL_PUT,   PS_CONTROL_GET,       PS_CONTROL_NORM,    PS_CONTROL_LEAVE,
        PS_CONTROL_BYE,   PS_CONTROL_INTERRUPT, PS_CONTROL_WELCOME, PS_CONTROL_DONE,
        PS_CONTROL_ADMIT, PS_CONTROL_END,       PS_CONTROL_DROP,
    };
    peer_send_bytes(stranger, "GET / HTTP/1.0\r\n\r\n", 18);
    peer_send_bytes(stranger, "", 0);
    peer_send_bytes(stranger, "x", 1);
    peer_send_bytes(stranger, claims, sizeof claims);
    peer_send_bytes(stranger, unknown, sizeof unknown);
    peer_send_bytes(stranger, huge, sizeof huge);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (uint64_t guess = 0; guess < 2; guess++) {
            const ps_control c = {.kind = kinds[i],
                                  .nonce = guess * nonce,
                                  .request = 1,
                                  .name = "job/total_steps",
                                  .text = "stop",
                                  .value = "12345678",
                                  .bytes = 8};
            peer_send(stranger, &c);
        }
}

PEER_PATIENT_JOB_TEST(strangers_are_not_answered_and_change_nothing)
{
    void *at_door = peer_dial(9);
    say_everything(at_door, peer_nonce);
    char endpoint[PS_ENDPOINT_MAX];
    peer_endpoint_of_members(peer_admissions[0].port, endpoint);
    // To the members' ROUTER: without a secret, also with a member's routing id; then
    // with a wrong secret.
    ps_control_id stolen;
    ps_control_id_make(&stolen, &peer_admissions[1].secret, 0);
    void *monitors[2],
        *bare = peer_connect(endpoint,
                             (ps_zsock_options){.routing_id = stolen.bytes,
                                                .routing_id_bytes = sizeof stolen.bytes},
                             &monitors[0]);
    ps_secret wrong = peer_admissions[1].secret;
    wrong.bytes[15] ^= 1;
    void *guessed =
        peer_dial_members(peer_admissions[0].port, &wrong, 0, 0, &monitors[1]);
    say_everything(bare, peer_nonce);
    say_everything(guessed, peer_nonce);
    zmq_pollitem_t heard = {.socket = at_door, .events = ZMQ_POLLIN};
    for (int i = 0; i < 100 && !heard.revents; i++) { // the door may hang up on it
        peer_send_join(at_door, peer_join_message(), PS_ROLE_WORKER, 0);
        zmq_poll(&heard, 1, 200);
    }
    const ps_control only = peer_answer(at_door);
    assert_int_equal(only.kind, PS_CONTROL_REFUSE);
    peer_assert_says(only.text, "has all its members");
    is_sent_away(bare, monitors[0]);
    is_sent_away(guessed, monitors[1]);
    peer_assert_alive(peer_sockets);
    ps_control c = {
        .kind = PS_CONTROL_GET, .nonce = peer_nonce, .name = "job/total_steps"};
    c.request = 12;
    c.timeout_ms = 100;
    peer_send(peer_sockets[0], &c);
    peer_assert_says(peer_await(peer_sockets[0], PS_CONTROL_FAIL).text, "nobody has set");
    ps_zsock_close(&at_door);
    ps_zsock_close(&bare);
    ps_zsock_close(&guessed);
}

PEER_TEST(another_version_is_told_so)
{
    void *stranger = peer_dial(9);
    static const uint8_t future[] = {0x94, PS_CONTROL_VERSION + 1, 1, 0, 0};
    peer_send_bytes(stranger, future, sizeof future);
    ps_control c = peer_await(stranger, PS_CONTROL_REFUSE);
    peer_assert_says(c.text, "another version of the protocol");
    assert_int_equal(c.nonce, 0);
    ps_zsock_close(&stranger);
}

PEER_JOB_TEST(frames_too_many_and_foreign_ids_are_stood)
{
    void *request;
    zmq_msg_t parts[4];
    for (int i = 0; i < 4; i++)
        assert_ok(ps_zsock_msg_copy(&parts[i], "x", 1));
    assert_ok(ps_zsock_send(peer_sockets[0], ps_deadline_in_ms(20000), parts, 4));
    // A REQ socket has an id that ZeroMQ chose, and sends an empty frame first.
    const ps_zsock_options o = {.type = ZMQ_REQ};
    assert_ok(ps_zsock_open(peer_context, &o, &request));
    assert_ok(ps_zsock_connect(request, NULL, ps_coordinator_endpoint(peer_coordinator)));
    peer_send_bytes(request, "hello", 5);
    peer_assert_alive(peer_sockets);
    ps_zsock_close(&request);
}

/* The bytes are those of a protocol other than ZeroMQ's. The coordinator ends the
 * connection when it has read them. */
PEER_JOB_TEST(another_protocol_on_the_port_does_nothing)
{
    const char *endpoint = ps_coordinator_endpoint(peer_coordinator);
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port =
                                       htons((uint16_t)atoi(strrchr(endpoint, ':') + 1)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char noise[4096], answer[256];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i * 2654435761u >> 13);
    for (int kind = 0; kind < 3; kind++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
        const char *http = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        if (kind == 1) assert_true(write(fd, http, strlen(http)) > 0);
        if (kind == 2) assert_true(write(fd, noise, sizeof noise) > 0);
        shutdown(fd, SHUT_WR);
        while (read(fd, answer, sizeof answer) > 0)
            ;
        close(fd);
    }
    peer_assert_alive(peer_sockets);
}
