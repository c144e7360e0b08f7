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

static uint64_t heartbeat_ms = 50, dead_after_ms = 2000;

static ps_coordinator *start(int n_servers, int n_workers)
{
    const ps_coordinator_options o = {
        .where = "tcp://127.0.0.1:0",
        .job = "job",
        .n_servers = n_servers,
        .n_workers = n_workers,
        .config_hash = CONFIG_HASH,
        .plan_hash = PLAN_HASH,
        .sections = {.n = 2, .names = {"model", "train"}, .hashes = {1, 2}},
        .heartbeat_ms = heartbeat_ms,
        .dead_after_ms = dead_after_ms};
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

/* For members that have no thread that says they are alive. */
static int open_patient(void **state)
{
    heartbeat_ms = 30000, dead_after_ms = 60000;
    int rc = open_all(state);
    heartbeat_ms = 50, dead_after_ms = 2000;
    return rc;
}

static int close_all(void **state)
{
    zmq_ctx_term(context);
    ps_coordinator_destroy(&coordinator, NULL);
    return 0;
}

static void *open_dealer(const char *endpoint, ps_zsock_options o)
{
    void *socket;
    o.type = ZMQ_DEALER;
    assert_int_equal(ps_zsock_open(context, &o, &socket), PS_OK);
    assert_int_equal(ps_zsock_connect(socket, endpoint), PS_OK);
    return socket;
}

/* A peer at the door; number tells their ids apart. */
static void *dial(uint8_t number)
{
    uint8_t id[PS_CONTROL_ID_BYTES] = {0xee, number};
    return open_dealer(
        ps_coordinator_endpoint(coordinator),
        (ps_zsock_options){.routing_id = id, .routing_id_bytes = sizeof id});
}

/* Where the members are. */
static void members_endpoint(int port, char out[PS_ENDPOINT_MAX])
{
    snprintf(out, PS_ENDPOINT_MAX, "tcp://127.0.0.1:%d", port);
}

/* A connection to the members' ROUTER with a secret, which may be wrong; room: messages
 * that it takes without being asked for them, 0: all. */
static void *dial_members(int port, const ps_secret *secret, unsigned link, int room)
{
    char endpoint[PS_ENDPOINT_MAX];
    ps_control_id id;
    ps_control_id_make(&id, secret, link);
    members_endpoint(port, endpoint);
    return open_dealer(endpoint, (ps_zsock_options){.routing_id = id.bytes,
                                                    .routing_id_bytes = sizeof id.bytes,
                                                    .waiting_messages = room,
                                                    .secret = secret});
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
    ps_mp_write_array(&w, 2); // of "model" and "train"
    ps_mp_write_uint(&w, 1);
    ps_mp_write_uint(&w, c.number[0] == CONFIG_HASH ? 2 : 3);
    c.value = w.base;
    c.bytes = w.used;
    send_control(socket, &c);
    ps_mp_writer_fini(&w);
}

static void assert_silent(void *socket)
{
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    assert_int_equal(zmq_poll(&item, 1, 150), 0);
}

/* The answer tells what has to be mended, and nothing of the job. */
static void refused_with(ps_control join, ps_role role, int rank, const char *words)
{
    static const char *const secrets[] = {"\"job\"", "12ab", "34cd", PS_VERSION, "host"};
    static uint8_t number = 100;
    void *socket = dial(number++);
    send_join(socket, join, role, rank);
    ps_control c = await(socket, PS_CONTROL_REFUSE);
    assert_says(c.text, words);
    assert_int_equal(c.nonce, 0);
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++)
        if (strstr(c.text, secrets[i]) && strcmp(secrets[i], "host") != 0)
            fail_msg("\"%s\" tells %s", c.text, secrets[i]);
    ps_zsock_close(&socket);
}

static void who_does_not_fit_is_refused(void **state)
{
    ps_control c = join_message();
    snprintf(c.text, sizeof c.text, "0.0.7");
    refused_with(c, PS_ROLE_WORKER, 0, "another version than the job");
    c = join_message();
    snprintf(c.name, sizeof c.name, "other");
    refused_with(c, PS_ROLE_WORKER, 0, "job.name");
    c = join_message();
    c.nonce = 1; // of a dead job
    refused_with(c, PS_ROLE_WORKER, 0, "another job");
    c = join_message();
    c.number[0] = 0xbad;
    refused_with(
        c, PS_ROLE_WORKER, 1,
        "its configuration differs from the job's in the section \"train\": start "
        "all processes with the same file and --set");
    c = join_message();
    c.number[1] = 0xbad;
    refused_with(c, PS_ROLE_SERVER, 0, "other chunks than the job");
    c = join_message();
    c.number[2] = 3;
    refused_with(c, PS_ROLE_WORKER, 0, "other numbers of workers and servers");
    refused_with(join_message(), PS_ROLE_WORKER, 2, "no such rank");
}

typedef struct admission {
    ps_secret secret;
    int port;
    uint64_t nonce;
} admission;

/* Asks at the door and is admitted. */
static admission admitted(void *door, ps_role role, int rank)
{
    send_join(door, join_message(), role, rank);
    zmq_msg_t part;
    int n;
    ps_control c;
    admission a;
    assert_int_equal(ps_zsock_recv(door, ps_deadline_in_ms(5000), &part, 1, &n), PS_OK);
    assert_int_equal(n, 1);
    assert_int_equal(ps_control_read(zmq_msg_data(&part), zmq_msg_size(&part), &c, NULL),
                     PS_OK);
    assert_int_equal(c.kind, PS_CONTROL_ADMIT);
    assert_int_equal(c.bytes, sizeof a.secret);
    memcpy(&a.secret, c.value, sizeof a.secret);
    a.port = (int)c.number[0];
    a.nonce = c.nonce;
    zmq_msg_close(&part);
    return a;
}

static void *come(const admission *a)
{
    void *socket = dial_members(a->port, &a->secret, 0, 0);
    const ps_control here = {.kind = PS_CONTROL_HERE, .nonce = a->nonce};
    send_control(socket, &here);
    return socket;
}

static void a_rank_is_given_once(void **state)
{
    void *first = dial(1), *twin = dial(2), *third = dial(3);
    admission a = admitted(first, PS_ROLE_WORKER, 1);
    void *member = come(&a);
    assert_says(await(member, PS_CONTROL_WAIT).text, "server 0 of 1, worker 0 of 2");
    send_join(twin, join_message(), PS_ROLE_WORKER, 1);
    assert_says(await(twin, PS_CONTROL_REFUSE).text, "its rank is taken");
    admission again = admitted(first, PS_ROLE_WORKER, 1); // no twin of itself
    assert_memory_equal(&again.secret, &a.secret, sizeof a.secret);
    admission b = admitted(twin, PS_ROLE_WORKER, -1);
    assert_memory_not_equal(&b.secret, &a.secret, sizeof a.secret);
    send_join(third, join_message(), PS_ROLE_WORKER, -1);
    assert_says(await(third, PS_CONTROL_REFUSE).text,
                "all workers of the job have joined");
    ps_zsock_close(&first);
    ps_zsock_close(&twin);
    ps_zsock_close(&third);
    ps_zsock_close(&member);
}

/* One that was admitted and does not come loses its place. */
static void a_half_open_joiner_makes_room(void **state)
{
    void *first = dial(1), *second = dial(2);
    (void)admitted(first, PS_ROLE_WORKER, 1);
    ps_deadline deadline = ps_deadline_in_ms(15000);
    send_join(second, join_message(), PS_ROLE_WORKER, 1);
    assert_says(await(second, PS_CONTROL_REFUSE).text, "its rank is taken");
    ps_control c = {.kind = PS_CONTROL_REFUSE};
    while (c.kind == PS_CONTROL_REFUSE && !ps_deadline_passed(deadline)) {
        zmq_msg_t part;
        int n;
        usleep(100000);
        send_join(second, join_message(), PS_ROLE_WORKER, 1);
        assert_int_equal(ps_zsock_recv(second, ps_deadline_in_ms(2000), &part, 1, &n),
                         PS_OK);
        assert_int_equal(
            ps_control_read(zmq_msg_data(&part), zmq_msg_size(&part), &c, NULL), PS_OK);
        zmq_msg_close(&part);
    }
    assert_int_equal(c.kind, PS_CONTROL_ADMIT);
    ps_zsock_close(&first);
    ps_zsock_close(&second);
}

/* ---- a job that runs ---- */

static admission admissions[3]; // of server 0 and two workers

static void join_three(void *sockets[3], uint64_t *nonce)
{
    for (int i = 0; i < 3; i++) {
        void *door = dial((uint8_t)(i + 1));
        admissions[i] =
            admitted(door, i == 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER, i == 0 ? 0 : i - 1);
        sockets[i] = come(&admissions[i]);
        ps_zsock_close(&door);
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

/* The job lives: a value can be stored, of worker 1 (sockets[2]), and read. */
static void assert_alive(void *sockets[3], uint64_t nonce)
{
    ps_control c = {.kind = PS_CONTROL_PUT, .nonce = nonce, .request = 4711, .name = "k"};
    send_control(sockets[2], &c);
    assert_int_equal(await(sockets[2], PS_CONTROL_DONE).request, 4711);
    for (int i = 0; i < 3; i++) {
        c.kind = PS_CONTROL_GET;
        c.request++;
        send_control(sockets[i], &c);
        assert_int_equal(await(sockets[i], PS_CONTROL_DONE).request, c.request);
    }
}

/* What a stranger says, at the door or among the members, is not answered, and changes
 * nothing: not with junk, and not with well-formed messages. */
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
        PS_CONTROL_ADMIT, PS_CONTROL_END,
    };
    send_bytes(stranger, "GET / HTTP/1.0\r\n\r\n", 18);
    send_bytes(stranger, "", 0);
    send_bytes(stranger, "x", 1);
    send_bytes(stranger, claims, sizeof claims);
    send_bytes(stranger, unknown, sizeof unknown);
    send_bytes(stranger, huge, sizeof huge);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (uint64_t guess = 0; guess < 2; guess++) {
            const ps_control c = {.kind = kinds[i],
                                  .nonce = guess * nonce,
                                  .request = 1,
                                  .name = "job/total_steps",
                                  .text = "stop",
                                  .value = "12345678",
                                  .bytes = 8};
            send_control(stranger, &c);
        }
    assert_silent(stranger);
}

static void strangers_are_not_answered_and_change_nothing(void **state)
{
    void *sockets[3], *at_door = dial(9);
    uint64_t nonce;
    join_three(sockets, &nonce);
    say_everything(at_door, nonce);
    char endpoint[PS_ENDPOINT_MAX];
    members_endpoint(admissions[0].port, endpoint);
    // The members' ROUTER: without a secret, even with a member's routing id; with
    // another.
    ps_control_id stolen;
    ps_control_id_make(&stolen, &admissions[1].secret, 0);
    void *bare = open_dealer(endpoint,
                             (ps_zsock_options){.routing_id = stolen.bytes,
                                                .routing_id_bytes = sizeof stolen.bytes});
    ps_secret wrong = admissions[1].secret;
    wrong.bytes[15] ^= 1;
    void *guessed = dial_members(admissions[0].port, &wrong, 0, 0);
    say_everything(bare, nonce);
    say_everything(guessed, nonce);
    send_join(at_door, join_message(), PS_ROLE_WORKER, 0);
    assert_says(await(at_door, PS_CONTROL_REFUSE).text, "has all its members");
    assert_alive(sockets, nonce);
    ps_control c = {.kind = PS_CONTROL_GET, .nonce = nonce, .name = "job/total_steps"};
    c.request = 12;
    c.number[0] = 100;
    send_control(sockets[0], &c);
    assert_says(await(sockets[0], PS_CONTROL_FAIL).text, "nobody has set");
    ps_zsock_close(&at_door);
    ps_zsock_close(&bare);
    ps_zsock_close(&guessed);
    close_three(sockets);
}

static void another_version_is_told_so(void **state)
{
    void *stranger = dial(9);
    static const uint8_t future[] = {0x94, 9, 1, 0, 0};
    send_bytes(stranger, future, sizeof future);
    ps_control c = await(stranger, PS_CONTROL_REFUSE);
    assert_says(c.text, "another version of the protocol");
    assert_int_equal(c.nonce, 0);
    ps_zsock_close(&stranger);
}

/* ---- members that do what is not theirs, or too much of it ---- */

static void fails_with(void *socket, const ps_control *c, const char *words)
{
    send_control(socket, c);
    assert_says(await(socket, PS_CONTROL_FAIL).text, words);
}

static void a_key_is_set_by_whose_it_is(void **state)
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
    void *sockets[3];
    uint64_t nonce;
    join_three(sockets, &nonce);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ps_control c = {.kind = PS_CONTROL_PUT, .nonce = nonce, .request = i + 1};
        assert_int_equal(ps_control_set_name(&c, rows[i].key), PS_OK);
        if (!rows[i].may) {
            fails_with(sockets[rows[i].socket], &c, "may not set");
            continue;
        }
        send_control(sockets[rows[i].socket], &c);
        assert_int_equal(await(sockets[rows[i].socket], PS_CONTROL_DONE).request, i + 1);
    }
    close_three(sockets);
}

static void norms_are_of_servers_links(void **state)
{
    void *sockets[3];
    uint64_t nonce;
    join_three(sockets, &nonce);
    ps_control c = {.kind = PS_CONTROL_NORM, .nonce = nonce, .request = 1};
    c.number[1] = c.number[2] = 1;
    fails_with(sockets[0], &c, "NORM by link 0"); // has no shards, so no links
    fails_with(sockets[1], &c, "NORM by link 0");
    void *link = dial_members(admissions[1].port, &admissions[1].secret, 1, 0);
    fails_with(link, &c, "NORM by link 1");
    c.kind = PS_CONTROL_GET;
    fails_with(link, &c, "GET by link 1");
    assert_alive(sockets, nonce);
    ps_zsock_close(&link);
    close_three(sockets);
}

static void a_member_waits_for_so_much_at_most(void **state)
{
    void *sockets[3];
    uint64_t nonce;
    join_three(sockets, &nonce);
    ps_control c = {.kind = PS_CONTROL_GET, .nonce = nonce};
    c.number[0] = 20000;
    for (int i = 0; i < 1000; i++) {
        c.request = (uint64_t)i + 1;
        snprintf(c.name, sizeof c.name, "never/%d", i);
        send_control(sockets[1], &c);
    }
    ps_control no = await(sockets[1], PS_CONTROL_FAIL);
    assert_int_equal(no.request, 65);
    assert_says(no.text, "more than 64 waiting requests of one member");
    for (int i = 65; i < 1000; i++)
        await(sockets[1], PS_CONTROL_FAIL);
    assert_alive((void *[]){sockets[0], sockets[0], sockets[2]}, nonce); // others may
    close_three(sockets);
}

/* 64 answers of 16 MiB that their receiver does not take. */
static void values_wait_for_who_takes_them(void **state)
{
    enum { N = 64, BYTES = 16 << 20 };
    void *sockets[3];
    uint64_t nonce;
    join_three(sockets, &nonce);
    ps_zsock_close(&sockets[1]);
    sockets[1] = dial_members(admissions[1].port, &admissions[1].secret, 0, 1);
    ps_control c = {.kind = PS_CONTROL_PUT,
                    .nonce = nonce,
                    .request = 1,
                    .name = "large",
                    .value = calloc(1, BYTES),
                    .bytes = BYTES};
    send_control(sockets[2], &c);
    await(sockets[2], PS_CONTROL_DONE);
    free((void *)(uintptr_t)c.value);
    c.value = NULL;
    c.bytes = 0;
    c.kind = PS_CONTROL_GET;
    for (int i = 0; i < N; i++) {
        c.request = (uint64_t)i + 1;
        send_control(sockets[1], &c);
    }
    // Members are heard in turn: when another has been answered twice as often, all of
    // these have been taken.
    ps_control probe = {.kind = PS_CONTROL_PUT, .nonce = nonce, .name = "small"};
    for (probe.request = 1000; probe.request < 1000 + 2 * N; probe.request++) {
        send_control(sockets[2], &probe);
        await(sockets[2], PS_CONTROL_DONE);
    }
    int n_values = 0, n_failed = 0;
    while (n_values + n_failed < N) {
        zmq_msg_t part;
        int n;
        const ps_control beat = {.kind = PS_CONTROL_HEARTBEAT, .nonce = nonce};
        for (int i = 0; i < 3; i++)
            send_control(sockets[i], &beat);
        assert_int_equal(
            ps_zsock_recv(sockets[1], ps_deadline_in_ms(10000), &part, 1, &n), PS_OK);
        assert_int_equal(n, 1);
        assert_int_equal(
            ps_control_read(zmq_msg_data(&part), zmq_msg_size(&part), &c, NULL), PS_OK);
        n_values += c.kind == PS_CONTROL_DONE && c.bytes == BYTES;
        n_failed += c.kind == PS_CONTROL_FAIL;
        assert_int_not_equal(c.kind, PS_CONTROL_ABORT);
        if (c.kind == PS_CONTROL_FAIL) assert_says(c.text, "too many values at once");
        zmq_msg_close(&part);
    }
    assert_in_range(n_values, 1, 20);
    c = (ps_control){
        .kind = PS_CONTROL_GET, .nonce = nonce, .request = 99, .name = "large"};
    send_control(sockets[1], &c);
    assert_int_equal(await(sockets[1], PS_CONTROL_DONE).request, 99);
    close_three(sockets);
}

static void every_truncation_of_a_message_is_stood(void **state)
{
    void *sockets[3];
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
        send_bytes(sockets[1], w.base, n);
        await(sockets[1], PS_CONTROL_FAIL);
    }
    ps_mp_writer_fini(&w);
    assert_alive(sockets, nonce);
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
    assert_alive(sockets, nonce);
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
    assert_alive(sockets, nonce);
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

/* How a member that hosts the coordinator fails to join within that time. */
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

static void the_deadline_names_who_is_missing(void **state)
{
    // On a busy machine the coordinator may take longer to say which member is missing.
    int ms = 300;
    for (join_alone(ms); ms < 20000 && !strstr(ps_err_message(), "not joined");)
        join_alone(ms *= 4);
    char words[80];
    snprintf(words, sizeof words,
             "server 1 of 2, workers 0-2 of 3: not joined after %.1f s", ms * 1e-3);
    assert_says(ps_err_message(), words);
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
    assert_says(ps_err_message(), "this is worker 1 of 3 workers and 2 servers");
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

#define PATIENTLY(test)        cmocka_unit_test_setup_teardown(test, open_patient, close_all)
#define WITH_COORDINATOR(test) cmocka_unit_test_setup_teardown(test, open_all, close_all)

int main(void)
{
    ps_log_init("test", PS_LOG_ERROR + 1); // what goes wrong here is meant to
    const struct CMUnitTest tests[] = {
        WITH_COORDINATOR(who_does_not_fit_is_refused),
        WITH_COORDINATOR(a_rank_is_given_once),
        WITH_COORDINATOR(a_half_open_joiner_makes_room),
        PATIENTLY(strangers_are_not_answered_and_change_nothing),
        WITH_COORDINATOR(another_version_is_told_so),
        PATIENTLY(a_key_is_set_by_whose_it_is),
        WITH_COORDINATOR(norms_are_of_servers_links),
        PATIENTLY(a_member_waits_for_so_much_at_most),
        PATIENTLY(values_wait_for_who_takes_them),
        PATIENTLY(every_truncation_of_a_message_is_stood),
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
