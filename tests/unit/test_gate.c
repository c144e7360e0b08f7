/* Which peers get through a gate, and what the others cost: peers with another secret or
 * none, raw sockets that send without end, and more connections than there is room for.
 * In jobs without keys, and in jobs with keys. */
#include "gate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "../support/drawn_keys.h"
#include "../support/mem_room.h"
#include "../support/sent_away.h"
#include "check.h"
#include "zsock.h"

static const ps_secret SECRET = {"sixteen bytes..."}, OTHER = {"Sixteen bytes..."},
                       SECOND = {"another member's"};

static ps_curve servers, workers, of_another_job; // keys
static const ps_curve *curve;                     // the gate's; NULL: none

static const char *mechanism(const char *without_keys)
{
    return curve ? "CURVE" : without_keys;
}

static int with_keys(void **state)
{
    ps_curve other;
    curve = &servers;
    return draw_job_keys(&servers, &workers) | draw_job_keys(&other, &of_another_job);
}

static int without_keys(void **state)
{
    curve = NULL;
    return 0;
}

/* A context with a gate, a ROUTER of members and a door, and a thread that turns the
 * gate. */
typedef struct place {
    void *context, *members, *door;
    char members_at[PS_ENDPOINT_MAX], door_at[PS_ENDPOINT_MAX];
    ps_gate *gate;
    pthread_t thread;
    atomic_bool stop;
    atomic_int n_closed;
} place;

static const ps_secret *secret_of(void *owner, int i)
{
    return i == 0 ? &SECRET : i == 1 ? &SECOND : NULL;
}

static atomic_int n_without_memory; // that many calls find none

static ps_err before_mem_room(uint32_t n, const char *what)
{
    if (atomic_load(&n_without_memory) == 0) return PS_OK;
    atomic_fetch_sub(&n_without_memory, 1);
    return ps_err_set(PS_ERR_NOMEM, "%s: as a test wants it", what);
}

static void on_closed(void *owner, int fd)
{
    place *p = owner;
    atomic_fetch_add(&p->n_closed, 1);
}

static void *turn(void *arg)
{
    place *p = arg;
    zmq_pollitem_t items[4];
    while (!atomic_load(&p->stop)) {
        ps_gate_items(p->gate, items);
        zmq_poll(items, ps_gate_n_items(p->gate), 10);
        ps_gate_turn(p->gate);
    }
    return NULL;
}

static void *open_router(place *p, ps_gate_kind kind, char at[PS_ENDPOINT_MAX])
{
    const ps_zsock_options o = {.type = ZMQ_ROUTER,
                                .max_message_bytes = 1 << 20,
                                .curve = curve,
                                .asks_for_secret = kind == PS_GATE_MEMBERS};
    void *router;
    assert_ok(ps_zsock_open(p->context, &o, &router));
    assert_ok(ps_gate_watch(p->gate, router, kind));
    assert_ok(ps_zsock_bind(router, NULL, "tcp://127.0.0.1:0", at));
    return router;
}

static void open_place(place *p, uint64_t patience_ms)
{
    *p = (place){.context = zmq_ctx_new()};
    const ps_gate_options o = {.zmq_context = p->context,
                               .patience_ms = patience_ms,
                               .curve = curve,
                               .secret_of = secret_of,
                               .closed = on_closed,
                               .owner = p};
    assert_ok(ps_gate_create(&o, &p->gate));
    p->members = open_router(p, PS_GATE_MEMBERS, p->members_at);
    p->door = open_router(p, PS_GATE_DOOR, p->door_at);
    ps_gate_open(p->gate);
    assert_int_equal(pthread_create(&p->thread, NULL, turn, p), 0);
}

static void close_place(place *p)
{
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    ps_gate_unwatch(p->members);
    ps_gate_unwatch(p->door);
    ps_zsock_close(&p->members);
    ps_zsock_close(&p->door);
    ps_gate_destroy(&p->gate);
    zmq_ctx_term(p->context);
}

/* A DEALER that says hello. keys: NULL: none. monitor: of its connections, or NULL. */
static void *dial_watched(place *p, const ps_curve *keys, const char *at,
                          const ps_secret *secret, const char *id, void **monitor)
{
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .curve = keys,
                                .routing_id = id,
                                .routing_id_bytes = strlen(id),
                                .secret = secret};
    void *socket;
    assert_ok(ps_zsock_open(p->context, &o, &socket));
    if (monitor) assert_ok(ps_zsock_monitor(p->context, socket, "peer", monitor));
    assert_ok(ps_zsock_connect(socket, NULL, at));
    zmq_msg_t part;
    assert_ok(ps_zsock_msg_copy(&part, "hello", 5));
    assert_ok(ps_zsock_send(socket, ps_deadline_in_ms(20000), &part, 1));
    return socket;
}

static void *dial_with(place *p, const ps_curve *keys, const char *at,
                       const ps_secret *secret, const char *id)
{
    return dial_watched(p, keys, at, secret, id, NULL);
}

static void *dial(place *p, const char *at, const ps_secret *secret, const char *id)
{
    return dial_with(p, curve ? &workers : NULL, at, secret, id);
}

static bool hears_from(void *router, const char *id, int ms)
{
    zmq_msg_t parts[2];
    int n;
    assert_ok(ps_zsock_recv(router, ps_deadline_in_ms((uint64_t)ms), parts, 2, &n));
    bool same = n == 2 && zmq_msg_size(&parts[0]) == strlen(id) &&
                memcmp(zmq_msg_data(&parts[0]), id, strlen(id)) == 0;
    ps_zsock_close_parts(parts, n);
    return same;
}

/* A peer that has no business here. */
typedef struct stranger {
    void *socket, *monitor;
} stranger;

static stranger stranger_with(place *p, const ps_curve *keys, const char *at,
                              const ps_secret *secret)
{
    stranger s;
    s.socket = dial_watched(p, keys, at, secret, "id", &s.monitor);
    return s;
}

/* Its connection has ended once more, and nobody has heard it. */
static void is_sent_away(place *p, stranger *s)
{
    assert_true(test_ends(s->monitor, 20000));
    assert_false(hears_from(p->members, "id", 0));
    assert_false(hears_from(p->door, "id", 0));
}

static void stranger_ends(stranger *s)
{
    zmq_socket_monitor(s->socket, NULL, 0);
    ps_zsock_close(&s->socket);
    ps_zsock_close(&s->monitor);
}

/* Waits until the gate has seen that many connections of members close. */
static void await_closed(place *p, int n)
{
    const ps_deadline deadline = ps_deadline_in_ms(20000);
    while (atomic_load(&p->n_closed) < n && !ps_deadline_passed(deadline))
        poll(NULL, 0, 10);
    assert_true(atomic_load(&p->n_closed) >= n);
}

static void only_members_get_through(void **state)
{
    place p;
    open_place(&p, 500); // who got no answer is sent away then
    stranger wrong = stranger_with(&p, curve ? &workers : NULL, p.members_at, &OTHER);
    stranger bare = stranger_with(&p, curve ? &workers : NULL, p.members_at, NULL);
    is_sent_away(&p, &wrong);
    is_sent_away(&p, &bare);
    void *member = dial(&p, p.members_at, &SECRET, "id");
    assert_true(hears_from(p.members, "id", 5000));
    while (ps_zsock_monitor_read(wrong.monitor, NULL) != PS_ZSOCK_NOTHING)
        ;
    is_sent_away(&p, &wrong); // nor does it take the member's place
    void *joiner = dial(&p, p.door_at, NULL, "any");
    assert_true(hears_from(p.door, "any", 5000));
    stranger_ends(&wrong);
    stranger_ends(&bare);
    ps_zsock_close(&member);
    ps_zsock_close(&joiner);
    await_closed(&p, 1);
    close_place(&p);
}

/* Where there is no memory for the first member's key, it tries again. */
static void without_memory_members_try_again(void **state)
{
    place p;
    open_place(&p, 300); // who got no answer is sent away then
    atomic_store(&n_without_memory, 1);
    void *first = dial(&p, p.members_at, &SECRET, "id");
    assert_true(hears_from(p.members, "id", 20000));
    assert_int_equal(atomic_load(&n_without_memory), 0);
    void *second = dial(&p, p.members_at, &SECOND, "other");
    assert_true(hears_from(p.members, "other", 20000));
    ps_zsock_close(&first);
    ps_zsock_close(&second);
    close_place(&p);
}

static void a_gate_that_is_not_open_lets_members_wait(void **state)
{
    place p = {.context = zmq_ctx_new()};
    const ps_gate_options o = {.zmq_context = p.context,
                               .patience_ms = PS_GATE_PATIENCE_MS,
                               .curve = curve,
                               .secret_of = secret_of};
    assert_ok(ps_gate_create(&o, &p.gate));
    p.members = open_router(&p, PS_GATE_MEMBERS, p.members_at);
    void *member = dial(&p, p.members_at, &SECRET, "id");
    zmq_pollitem_t items[2];
    ps_gate_items(p.gate, items);
    items[1].events = ZMQ_POLLIN; // libzmq's question whether it may come in
    assert_int_equal(zmq_poll(&items[1], 1, 20000), 1);
    ps_gate_turn(p.gate);
    assert_int_equal(zmq_poll(&items[1], 1, 0), 1); // it has no answer yet
    assert_false(hears_from(p.members, "id", 0));
    ps_gate_open(p.gate);
    assert_int_equal(pthread_create(&p.thread, NULL, turn, &p), 0);
    assert_true(hears_from(p.members, "id", 5000));
    ps_zsock_close(&member);
    close_place(&p);
}

/* In a job with keys, at both sockets: a peer without keys; one that has no keys and
 * shows a member's secret by PLAIN; one with another job's keys; one that knows this
 * job's servers but has another job's key. Only at the members' socket: a role's key
 * without a secret, and with a wrong one. */
static void only_keys_of_the_job_get_through(void **state)
{
    place p;
    ps_curve half = of_another_job;
    memcpy(half.public_of, servers.public_of, sizeof half.public_of);
    half.public_of[PS_ROLE_WORKER] = of_another_job.public_of[PS_ROLE_WORKER];
    open_place(&p, PS_GATE_PATIENCE_MS);
    stranger strangers[] = {
        stranger_with(&p, NULL, p.members_at, NULL),
        stranger_with(&p, NULL, p.members_at, &SECRET),
        stranger_with(&p, &of_another_job, p.members_at, &SECRET),
        stranger_with(&p, &half, p.members_at, NULL),
        stranger_with(&p, &workers, p.members_at, NULL),
        stranger_with(&p, &workers, p.members_at, &OTHER),
        stranger_with(&p, NULL, p.door_at, NULL),
        stranger_with(&p, NULL, p.door_at, &SECRET),
        stranger_with(&p, &of_another_job, p.door_at, NULL),
        stranger_with(&p, &half, p.door_at, NULL),
        stranger_with(&p, &workers, p.door_at, &SECRET), // a member's, not a role's
    };
    enum { N = sizeof strangers / sizeof *strangers };
    for (int i = 0; i < N; i++)
        is_sent_away(&p, &strangers[i]);
    void *member = dial(&p, p.members_at, &SECRET, "member");
    assert_true(hears_from(p.members, "member", 5000));
    for (int i = 0; i < N; i++)
        stranger_ends(&strangers[i]);
    ps_zsock_close(&member);
    close_place(&p);
}

/* A peer that connects gives neither its key nor a message to a process that is not of
 * its job. */
static void keys_talk_to_the_job_alone(void **state)
{
    const ps_curve impostor = workers;                  // it serves with a worker's keys
    const ps_curve *const served[] = {NULL, &impostor}; // NULL: a job without keys
    for (int i = 0; i < 2; i++) {
        place p;
        curve = served[i];
        open_place(&p, PS_GATE_PATIENCE_MS);
        stranger member = stranger_with(&p, &workers, p.members_at, &SECRET);
        stranger joiner = stranger_with(&p, &workers, p.door_at, NULL);
        is_sent_away(&p, &member);
        is_sent_away(&p, &joiner);
        stranger_ends(&member);
        stranger_ends(&joiner);
        close_place(&p);
    }
}

static void a_door_tells_the_role(void **state)
{
    place p;
    open_place(&p, PS_GATE_PATIENCE_MS);
    const ps_curve *const keys[] = {
        [PS_ROLE_SERVER] = &servers, [PS_ROLE_WORKER] = &workers};
    for (int r = 0; r < PS_ROLE_COUNT; r++) {
        void *joiner = dial_with(&p, keys[r], p.door_at, NULL, "any");
        zmq_msg_t parts[2];
        int n;
        ps_role role = PS_ROLE_COUNT;
        assert_ok(ps_zsock_recv(p.door, ps_deadline_in_ms(20000), parts, 2, &n));
        assert_int_equal(n, 2);
        assert_true(ps_gate_role(&parts[1], &role));
        assert_int_equal(role, r);
        ps_zsock_close_parts(parts, n);
        ps_zsock_close(&joiner);
    }
    close_place(&p);
}

/* Without a gate libzmq would let every peer in. */
static void keys_without_a_gate_open_nothing(void **state)
{
    void *context = zmq_ctx_new(), *router;
    const ps_zsock_options o = {.type = ZMQ_ROUTER, .curve = &servers};
    assert_int_equal(ps_zsock_open(context, &o, &router), PS_ERR_INTERNAL);
    assert_null(router);
    zmq_ctx_term(context);
}

/* ---- raw sockets ---- */

static int connect_raw(const char *at)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port =
                                       htons((uint16_t)atoi(strrchr(at, ':') + 1)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct timeval most = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* The first byte of a greeting, and no more. */
static int connect_and_stop(const char *at)
{
    int fd = connect_raw(at);
    assert_int_equal(send(fd, "\xff", 1, MSG_NOSIGNAL), 1);
    return fd;
}

/* ZMTP 3.0's greeting (rfc.zeromq.org/spec/23). */
static void greet(int fd, const char *mechanism)
{
    uint8_t greeting[64] = {0xff, [9] = 0x7f, 3, 0};
    memcpy(greeting + 12, mechanism, strlen(mechanism));
    assert_int_equal(send(fd, greeting, sizeof greeting, MSG_NOSIGNAL), sizeof greeting);
}

static void ready(int fd)
{
    static const char command[] = "\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06"
                                  "DEALER";
    uint8_t frame[64];
    size_t n = sizeof command - 1;
    memcpy(frame, command, n);
    frame[1] = (uint8_t)(n - 2);
    assert_int_equal(send(fd, frame, n, MSG_NOSIGNAL), n);
}

/* Sends the same bytes again and again until the other end closes. Returns how many
 * bytes were sent. */
static uint64_t flood(int fd, const void *bytes, size_t n, uint64_t most)
{
    uint64_t sent = 0;
    while (sent < most) {
        size_t at = sent % n;
        ssize_t went = send(fd, (const char *)bytes + at, n - at, MSG_NOSIGNAL);
        if (went <= 0) break;
        sent += (uint64_t)went;
    }
    return sent;
}

static bool is_closed(int fd, int ms)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    char bytes[256];
    while (poll(&item, 1, ms) > 0)
        if (recv(fd, bytes, sizeof bytes, 0) <= 0) return true;
    return false;
}

/* Passes bytes on between two connections until both are quiet for a moment. Keeps what
 * the first one says, after n bytes. Returns how many there are now. */
static size_t relay(int from, int to, uint8_t *kept, size_t n, size_t cap)
{
    struct pollfd items[] = {{.fd = from, .events = POLLIN},
                             {.fd = to, .events = POLLIN}};
    uint8_t bytes[4096];
    while (poll(items, 2, 50) > 0)
        for (int i = 0; i < 2; i++) {
            if (!items[i].revents) continue;
            ssize_t got = recv(items[i].fd, bytes, sizeof bytes, 0);
            if (got <= 0) return n;
            if (i == 0 && n + (size_t)got <= cap) memcpy(kept + n, bytes, (size_t)got);
            if (i == 0) n += (size_t)got;
            assert_int_equal(send(items[1 - i].fd, bytes, (size_t)got, MSG_NOSIGNAL),
                             got);
        }
    return n;
}

/* A stranger that has listened repeats everything that a member said. */
static void a_repeated_handshake_is_not_let_in(void **state)
{
    place p;
    open_place(&p, PS_GATE_PATIENCE_MS);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    char middle[PS_ENDPOINT_MAX];
    snprintf(middle, sizeof middle, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    void *member = dial(&p, middle, &SECRET, "id");
    int from = accept(listener, NULL, NULL), to = connect_raw(p.members_at);
    uint8_t kept[8192];
    size_t n = 0;
    bool heard = false;
    const ps_deadline limit = ps_deadline_in_ms(20000);
    while (!heard && !ps_deadline_passed(limit)) {
        n = relay(from, to, kept, n, sizeof kept);
        heard = hears_from(p.members, "id", 50);
    }
    assert_true(heard);
    assert_in_range(n, 300, sizeof kept);
    for (int i = 0; i < 3; i++) {
        int again = connect_raw(p.members_at);
        assert_int_equal(send(again, kept, n, MSG_NOSIGNAL), n);
        assert_true(is_closed(again, 5000));
        assert_false(hears_from(p.members, "id", 0));
        close(again);
    }
    close(from), close(to), close(listener);
    ps_zsock_close(&member);
    close_place(&p);
}

static void a_message_without_an_end_is_cut_off(void **state)
{
    enum { FRAME = 60000 };
    const uint64_t gib = UINT64_C(1) << 30;
    place p;
    open_place(&p, PS_GATE_PATIENCE_MS);
    char *frame = calloc(1, FRAME + 9);
    frame[0] = 3; // long, and more follow
    frame[7] = (char)(FRAME >> 8), frame[8] = (char)(FRAME & 255);
    for (int i = 0; i < 3; i++) {
        int fd = connect_raw(p.door_at);
        greet(fd, mechanism("NULL"));
        ready(fd);
        assert_true(flood(fd, frame, FRAME + 9, 4 * gib) < gib);
        close(fd);
        // A frame of a handshake: the limit for frames would allow it.
        fd = connect_raw(p.members_at);
        greet(fd, mechanism("PLAIN"));
        memcpy(frame, "\x06\0\0\0\0\0\x0f\xff\xff", 9);
        flood(fd, frame, FRAME + 9, 900000);
        assert_true(is_closed(fd, 5000));
        close(fd);
        memcpy(frame, "\x03\0\0\0\0\0\0\xea\x60", 9);
    }
    free(frame);
    void *member = dial(&p, p.members_at, &SECRET, "id");
    assert_true(hears_from(p.members, "id", 5000));
    // What a member sends is no flood.
    for (int i = 0; i < 100; i++) {
        zmq_msg_t part;
        zmq_msg_init_size(&part, 100000);
        memset(zmq_msg_data(&part), 0, 100000);
        assert_ok(ps_zsock_send(member, ps_deadline_in_ms(20000), &part, 1));
    }
    for (int i = 0; i < 100; i++)
        assert_true(hears_from(p.members, "id", 5000));
    ps_zsock_close(&member);
    close_place(&p);
}

/* A silent connection takes only its own end and the kernel's memory. */
static void who_says_nothing_is_not_accepted(void **state)
{
    enum { MANY = 100 };
    place p;
    int fds[MANY];
    open_place(&p, 500);
    void *member = dial(&p, p.members_at, &SECRET, "id");
    assert_true(hears_from(p.members, "id", 5000)); // the gate has had a turn
    for (int i = 0; i < MANY; i++)
        fds[i] = connect_raw(i % 2 ? p.members_at : p.door_at);
    void *joiner = dial(&p, p.door_at, NULL, "joiner");
    assert_true(hears_from(p.door, "joiner", 5000)); // those before would be accepted
    int late = connect_and_stop(p.members_at);
    assert_true(is_closed(late, 8000));
    for (int i = 0; i < MANY; i++)
        assert_false(is_closed(fds[i], 0)); // nor is one that is older
    // Once one of them speaks, it is a connection like any other.
    for (int i = 0; i < MANY; i++)
        greet(fds[i], "OTHER");
    for (int i = 0; i < MANY; i++)
        assert_true(is_closed(fds[i], 8000));
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
    close(late);
    ps_zsock_close(&member);
    ps_zsock_close(&joiner);
    close_place(&p);
}

static void who_says_too_little_has_to_go(void **state)
{
    place p;
    open_place(&p, 500);
    int silent = connect_and_stop(p.members_at), half = connect_raw(p.members_at);
    int at_the_door = connect_and_stop(p.door_at);
    greet(half, mechanism("PLAIN"));
    void *member = dial(&p, p.members_at, &SECRET, "id");
    assert_true(hears_from(p.members, "id", 5000));
    assert_true(is_closed(silent, 8000));
    assert_true(is_closed(half, 8000));
    assert_true(is_closed(at_the_door, 8000));
    zmq_msg_t part;
    assert_ok(ps_zsock_msg_copy(&part, "hello", 5));
    assert_ok(ps_zsock_send(member, ps_deadline_in_ms(20000), &part, 1));
    assert_true(hears_from(p.members, "id", 5000));
    ps_zsock_close(&member);
    close(silent), close(half), close(at_the_door);
    await_closed(&p, 2);
    close_place(&p);
}

static void many_strangers_leave_room(void **state)
{
    enum { MANY = 700 };
    place p;
    open_place(&p, PS_GATE_PATIENCE_MS);
    int *fds = calloc(MANY, sizeof *fds);
    for (int i = 0; i < MANY; i++)
        fds[i] = connect_and_stop(i % 2 ? p.members_at : p.door_at);
    void *member = dial(&p, p.members_at, &SECRET, "id");
    void *joiner = dial(&p, p.door_at, NULL, "joiner");
    assert_true(hears_from(p.members, "id", 5000));
    assert_true(hears_from(p.door, "joiner", 5000));
    // The order of messages at two sockets is not defined.
    int n_closed = 0;
    ps_deadline deadline = ps_deadline_in_ms(20000);
    while (n_closed < MANY - PS_GATE_STRANGERS - 1 && !ps_deadline_passed(deadline))
        for (int i = 0; i < MANY; i++)
            if (fds[i] >= 0 && is_closed(fds[i], 0)) {
                close(fds[i]);
                fds[i] = -1;
                n_closed++;
            }
    for (int i = 0; i < MANY; i++)
        if (fds[i] >= 0) close(fds[i]);
    free(fds);
    ps_zsock_close(&member);
    ps_zsock_close(&joiner);
    close_place(&p);
    assert_true(n_closed >= MANY - PS_GATE_STRANGERS - 1);
}

int main(void)
{
#define PLAIN(test) cmocka_unit_test_setup(test, without_keys)
#define KEYS(test)  cmocka_unit_test_setup(test, with_keys)
    const struct CMUnitTest tests[] = {
        PLAIN(only_members_get_through),
        KEYS(only_members_get_through),
        KEYS(without_memory_members_try_again),
        KEYS(only_keys_of_the_job_get_through),
        KEYS(keys_talk_to_the_job_alone),
        KEYS(a_door_tells_the_role),
        KEYS(keys_without_a_gate_open_nothing),
        KEYS(a_repeated_handshake_is_not_let_in),
        PLAIN(a_gate_that_is_not_open_lets_members_wait),
        KEYS(a_gate_that_is_not_open_lets_members_wait),
        PLAIN(a_message_without_an_end_is_cut_off),
        KEYS(a_message_without_an_end_is_cut_off),
        PLAIN(who_says_nothing_is_not_accepted),
        KEYS(who_says_nothing_is_not_accepted),
        PLAIN(who_says_too_little_has_to_go),
        KEYS(who_says_too_little_has_to_go),
        PLAIN(many_strangers_leave_room),
        KEYS(many_strangers_leave_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
