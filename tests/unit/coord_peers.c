#include "coord_peers.h"

#include <unistd.h>

#include "../support/drawn_keys.h"
#include "check.h"

ps_coordinator *peer_coordinator;
void *peer_context;
peer_admission peer_admissions[3];
void *peer_sockets[3];
uint64_t peer_nonce;
bool peer_passed;

ps_curve peer_keys[PS_ROLE_COUNT];

static const ps_curve *job_keys; // the coordinator's; NULL: none
static bool recovers;
static uint64_t heartbeat_ms, dead_after_ms;

ps_coordinator *peer_start_coordinator(int n_servers, int n_workers)
{
    const ps_coordinator_options o = {
        .where = "tcp://127.0.0.1:0",
        .job = "job",
        .n_servers = n_servers,
        .n_workers = n_workers,
        .config_hash = PEER_CONFIG_HASH,
        .plan_hash = PEER_PLAN_HASH,
        .sections = {.n = 2, .names = {"model", "train"}, .hashes = {1, 2}},
        .heartbeat_ms = heartbeat_ms,
        .dead_after_ms = dead_after_ms,
        .recovers = recovers,
        .curve = job_keys};
    ps_coordinator *c;
    assert_ok(ps_coordinator_create(&o, &c));
    return c;
}

static int open_with(uint64_t beat_ms, uint64_t dead_ms)
{
    heartbeat_ms = beat_ms, dead_after_ms = dead_ms;
    peer_passed = false;
    peer_context = zmq_ctx_new();
    peer_coordinator = peer_start_coordinator(1, 2);
    return 0;
}

int peer_open(void **state)
{
    return open_with(1000, 20000);
}

int peer_open_recovering(void **state)
{
    recovers = true;
    const int failed = peer_open(state);
    recovers = false;
    return failed;
}

int peer_open_with_keys(void **state)
{
    int failed = draw_job_keys(&peer_keys[PS_ROLE_SERVER], &peer_keys[PS_ROLE_WORKER]);
    job_keys = &peer_keys[PS_ROLE_SERVER];
    failed |= peer_open_recovering(state);
    job_keys = NULL;
    return failed;
}

int peer_close(void **state)
{
    if (!peer_passed) return 0;
    for (int i = 0; i < 3; i++)
        ps_zsock_close(&peer_sockets[i]);
    zmq_ctx_term(peer_context);
    ps_coordinator_destroy(&peer_coordinator, NULL);
    return 0;
}

void *peer_connect(const char *endpoint, ps_zsock_options o, void **monitor)
{
    void *socket;
    o.type = ZMQ_DEALER;
    assert_ok(ps_zsock_open(peer_context, &o, &socket));
    if (monitor) assert_ok(ps_zsock_monitor(peer_context, socket, "peer", monitor));
    assert_ok(ps_zsock_connect(socket, NULL, endpoint));
    return socket;
}

void *peer_dial(uint8_t number)
{
    uint8_t id[PS_CONTROL_ID_BYTES] = {0xee, number};
    return peer_connect(
        ps_coordinator_endpoint(peer_coordinator),
        (ps_zsock_options){.routing_id = id, .routing_id_bytes = sizeof id}, NULL);
}

void peer_endpoint_of_members(int port, char out[PS_ENDPOINT_MAX])
{
    snprintf(out, PS_ENDPOINT_MAX, "tcp://127.0.0.1:%d", port);
}

void *peer_dial_members(int port, const ps_secret *secret, unsigned link, int room,
                        void **monitor)
{
    char endpoint[PS_ENDPOINT_MAX];
    ps_control_id id;
    ps_control_id_make(&id, secret, link);
    peer_endpoint_of_members(port, endpoint);
    return peer_connect(endpoint,
                        (ps_zsock_options){.routing_id = id.bytes,
                                           .routing_id_bytes = sizeof id.bytes,
                                           .waiting_messages = room,
                                           .secret = secret},
                        monitor);
}

void peer_send_bytes(void *socket, const void *bytes, size_t n)
{
    zmq_msg_t part;
    assert_ok(ps_zsock_msg_copy(&part, bytes, n));
    assert_ok(ps_zsock_send(socket, ps_deadline_in_ms(20000), &part, 1));
}

void peer_send(void *socket, const ps_control *c)
{
    zmq_msg_t part;
    assert_ok(ps_control_frame(&part, c));
    assert_ok(ps_zsock_send(socket, ps_deadline_in_ms(20000), &part, 1));
}

/* Its value is in *part, which the caller closes. */
static ps_control peer_recv(void *socket, zmq_msg_t *part)
{
    int n;
    ps_control c;
    assert_ok(ps_zsock_recv(socket, ps_deadline_in_ms(20000), part, 1, &n));
    assert_int_equal(n, 1);
    assert_ok(ps_control_read(zmq_msg_data(part), zmq_msg_size(part), &c, NULL));
    return c;
}

ps_control peer_answer(void *socket)
{
    zmq_msg_t part;
    const ps_control c = peer_recv(socket, &part);
    zmq_msg_close(&part);
    return c;
}

ps_control peer_await(void *socket, ps_control_kind kind)
{
    return peer_await_without(socket, kind, (ps_control_kind)0);
}

ps_control peer_await_without(void *socket, ps_control_kind kind,
                              ps_control_kind unwanted)
{
    ps_deadline deadline = ps_deadline_in_ms(20000);
    for (;;) {
        zmq_msg_t part;
        int n;
        ps_control c;
        assert_ok(ps_zsock_recv(socket, deadline, &part, 1, &n));
        if (n == 0) fail_msg("no %s came", ps_control_kind_name((int)kind));
        assert_ok(ps_control_read(zmq_msg_data(&part), zmq_msg_size(&part), &c, NULL));
        zmq_msg_close(&part);
        assert_int_not_equal(c.kind, unwanted);
        if (c.kind == kind) return c;
    }
}

void peer_assert_says(const char *text, const char *words)
{
    if (!strstr(text, words)) fail_msg("\"%s\" was expected in \"%s\"", words, text);
}

ps_control peer_join_message(void)
{
    ps_control c = {.kind = PS_CONTROL_JOIN, .name = "job", .text = PS_VERSION};
    c.join.config_hash = PEER_CONFIG_HASH;
    c.join.plan_hash = PEER_PLAN_HASH;
    c.join.world_size = 2;
    c.join.servers = 1;
    return c;
}

void peer_send_join(void *socket, ps_control c, ps_role role, int rank)
{
    const ps_roster_entry e = {.role = role, .rank = rank, .host = "b"};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_roster_entry_write(&w, &e);
    ps_mp_write_array(&w, 2); // of "model" and "train"
    ps_mp_write_uint(&w, 1);
    ps_mp_write_uint(&w, c.join.config_hash == PEER_CONFIG_HASH ? 2 : 3);
    c.value = w.base;
    c.bytes = w.used;
    peer_send(socket, &c);
    ps_mp_writer_fini(&w);
}

peer_admission peer_ask_to_join(void *door, ps_role role, int rank)
{
    peer_send_join(door, peer_join_message(), role, rank);
    zmq_msg_t part;
    const ps_control c = peer_recv(door, &part);
    peer_admission a;
    assert_int_equal(c.kind, PS_CONTROL_ADMIT);
    assert_int_equal(c.bytes, sizeof a.secret);
    memcpy(&a.secret, c.value, sizeof a.secret);
    a.port = (int)c.port;
    a.nonce = c.nonce;
    zmq_msg_close(&part);
    return a;
}

void *peer_come(const peer_admission *a)
{
    void *socket = peer_dial_members(a->port, &a->secret, 0, 0, NULL);
    const ps_control here = {.kind = PS_CONTROL_HERE, .nonce = a->nonce};
    peer_send(socket, &here);
    return socket;
}

static int join_three(void)
{
    for (int i = 0; i < 3; i++) {
        void *door = peer_dial((uint8_t)(i + 1));
        peer_admissions[i] = peer_ask_to_join(
            door, i == 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER, i == 0 ? 0 : i - 1);
        peer_sockets[i] = peer_come(&peer_admissions[i]);
        ps_zsock_close(&door);
    }
    for (int i = 0; i < 3; i++)
        peer_nonce = peer_await(peer_sockets[i], PS_CONTROL_WELCOME).nonce;
    assert_true(peer_nonce == ps_coordinator_nonce(peer_coordinator));
    return 0;
}

int peer_open_job(void **state)
{
    return peer_open(state) || join_three();
}

int peer_open_patient_job(void **state)
{
    return open_with(30000, 60000) || join_three();
}

int peer_open_impatient_job(void **state)
{
    return open_with(50, 2000) || join_three();
}

void peer_assert_alive(void *sockets[3])
{
    ps_control c = {
        .kind = PS_CONTROL_PUT, .nonce = peer_nonce, .request = 4711, .name = "k"};
    peer_send(sockets[2], &c);
    assert_int_equal(peer_await(sockets[2], PS_CONTROL_DONE).request, 4711);
    for (int i = 0; i < 3; i++) {
        c.kind = PS_CONTROL_GET;
        c.request++;
        peer_send(sockets[i], &c);
        assert_int_equal(peer_await(sockets[i], PS_CONTROL_DONE).request, c.request);
    }
}
