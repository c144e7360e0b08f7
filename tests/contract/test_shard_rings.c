/* A shard and workers whose gradients come through rings in shared memory. The workers
 * are bare: the test writes into the rings what it likes. */
#include <sched.h>
#include <unistd.h>

#include "bare_job.h"
#include "check.h"
#include "job_keys.h"
#include "shm_pass.h"
#include "wire_rings.h"

enum { WAIT_MS = 20000, ALL = INT32_MAX };

typedef struct ring_worker {
    bare_job *b;
    int rank;
    ps_shared_mem params, grads, memory;
    ps_wire_rings rings;
    ps_event wake;
} ring_worker;

static ps_deadline soon(void)
{
    return ps_deadline_in_ms(WAIT_MS);
}

static int connect_door(const ring_worker *w)
{
    const ps_job_key key = ps_job_key_shm(PS_ROLE_SERVER, 0);
    void *value;
    size_t bytes;
    char name[PS_SHM_NAME_MAX] = "";
    int fd;
    assert_ok(ps_member_get(w->b->member[w->rank], key.text, &value, &bytes, soon()));
    memcpy(name, value, bytes);
    free(value);
    assert_ok(ps_shm_connect(name, soon(), &fd));
    return fd;
}

/* Hands in arenas and, if rings is set, rings. */
static void hand_in(ring_worker *w, bare_job *b, int rank, bool rings)
{
    *w = (ring_worker){.b = b, .rank = rank};
    const size_t bytes = b->job.table->arena_count * sizeof(float);
    const uint64_t ring_bytes = ps_wire_rings_bytes(&b->plan, 0);
    int wake;
    assert_ok(ps_shared_mem_init(&w->params, bytes, "params"));
    assert_ok(ps_shared_mem_init(&w->grads, bytes, "grads"));
    assert_ok(ps_shared_mem_init(&w->memory, ring_bytes, "rings"));
    w->rings = ps_wire_rings_at(w->memory.base, &b->plan, 0, 0);
    const ps_shm_offer offer = {.rank = (uint32_t)rank,
                                .nonce = b->roster->nonce,
                                .bytes = bytes,
                                .ring_bytes = rings ? ring_bytes : 0};
    int fd = connect_door(w);
    assert_ok(ps_shm_offer_send(
        fd, &offer, (const int[PS_SHM_FDS]){w->params.fd, w->grads.fd, w->memory.fd}));
    assert_ok(ps_shm_answer_recv(fd, -1, soon(), &wake, rings));
    if (rings) w->wake = ps_event_of(wake);
    close(fd);
}

static void leave(ring_worker *w)
{
    ps_event_fini(&w->wake);
    ps_shared_mem_fini(&w->params);
    ps_shared_mem_fini(&w->grads);
    ps_shared_mem_fini(&w->memory);
}

static void say_hello(const ring_worker *w, bool rings)
{
    ps_wire_header h = bare_header(w->b, PS_MSG_HELLO, w->rank, 0);
    h.codec = PS_CODEC_SHM;
    h.hello.rings = rings;
    bare_send(w->b->socket[w->rank], &h, NULL, 0);
}

static void hello(const ring_worker *w)
{
    char none;
    say_hello(w, true);
    assert_int_equal(bare_answer(w->b->socket[w->rank], &none, 0).kind, PS_MSG_READY);
}

static ps_wire_header about(const ring_worker *w, int kind, uint32_t chunk, uint64_t step)
{
    ps_wire_header h = bare_header(w->b, kind, w->rank, chunk);
    h.codec = PS_CODEC_SHM;
    h.step = step;
    return h;
}

/* First weights of 1, through the socket. */
static void init_all(const ring_worker *w)
{
    float *params = w->params.base;
    for (size_t i = 0; i < w->params.bytes / sizeof *params; i++)
        params[i] = 1.0f;
    for (uint32_t c = 0; c < w->b->plan.n_chunks; c++) {
        ps_wire_header h = about(w, PS_MSG_INIT, c, 0);
        bare_send(w->b->socket[w->rank], &h, NULL, 0);
    }
}

/* Takes the first weights through the socket, as a worker without rings does. Before the
 * shard has sent them, it refuses that worker's gradients. */
static void pull_first(const bare_job *b, int rank)
{
    for (uint32_t c = 0; c < b->plan.n_chunks; c++) {
        const ps_wire_header h = bare_header(b, PS_MSG_PULL, rank, c);
        bare_send(b->socket[rank], &h, NULL, 0);
        float value = 0;
        assert_int_equal(bare_answer(b->socket[rank], &value, sizeof value).kind,
                         PS_MSG_WEIGHTS);
        assert_true(value == 1.0f);
    }
}

static void put(ring_worker *w, const ps_wire_header *h)
{
    uint64_t sent = 0;
    assert_ok(ps_wire_ring_put(&w->rings.to_shard, h, NULL, 0, &sent));
}

static void wake(const ring_worker *w)
{
    if (ps_shm_ring_must_wake(&w->rings.to_shard)) ps_event_set(&w->wake);
}

/* Pushes the first n chunks with gradients of that value. */
static void push(ring_worker *w, uint32_t n, uint64_t step, float value)
{
    float *grads = w->grads.base;
    for (size_t i = 0; i < w->grads.bytes / sizeof *grads; i++)
        grads[i] = value;
    for (uint32_t c = 0; c < w->b->plan.n_chunks && c < n; c++) {
        ps_wire_header h = about(w, PS_MSG_PUSH, c, step);
        put(w, &h);
    }
    wake(w);
}

/* Sleeps on the bell as a worker does. Returns whether weights are in the ring. */
static bool await_weights(ring_worker *w)
{
    const ps_deadline deadline = soon();
    uint32_t bytes = 0;
    while (bytes == 0 && !ps_deadline_passed(deadline)) {
        const uint32_t sequence = ps_bell_sequence(&w->rings.bell->bell);
        assert_ok(ps_shm_ring_next(&w->rings.to_worker, &bytes));
        if (bytes == 0)
            ps_bell_sleep(&w->rings.bell->bell, sequence, ps_deadline_left_ms(deadline));
    }
    return bytes > 0;
}

/* Takes the weights of all chunks, which have the version and the value. */
static void expect_weights(ring_worker *w, uint64_t version, float value)
{
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    const uint32_t n_chunks = w->b->plan.n_chunks;
    atomic_store(&w->rings.bell->n_asked, n_chunks * (uint32_t)version);
    atomic_store(&w->rings.bell->bell.wanted, PS_WIRE_WANTED_ALL);
    for (uint32_t left = n_chunks; left > 0; left--) {
        if (!await_weights(w)) fail_msg("no weights of version %d", (int)version);
        bool got;
        ps_wire_header h;
        assert_ok(ps_wire_ring_take(&w->rings.to_worker, NULL, 0, &f, &got));
        assert_ok(ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h));
        assert_int_equal(h.kind, PS_MSG_WEIGHTS);
        assert_int_equal(h.step, version);
        const float *at =
            (const float *)w->params.base + w->b->plan.chunks[h.chunk].offset;
        if (at[0] != value) fail_msg("%g instead of %g", (double)at[0], (double)value);
    }
    ps_wire_frames_close(&f);
}

static void expect_error(const ring_worker *w, const char *part)
{
    char text[600];
    ps_wire_header h = {0};
    while (h.kind != PS_MSG_ERROR)
        h = bare_answer(w->b->socket[w->rank], text, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* One worker with rings, ready for its first step. */
static void open_one(bare_job *b, ring_worker *w)
{
    bare_open(b, 1);
    hand_in(w, b, 0, true);
    hello(w);
    init_all(w);
}

static void close_one(bare_job *b, ring_worker *w)
{
    bare_close(b);
    leave(w);
}

TEST(gradients_wait_for_the_first_weights)
{
    bare_job b;
    ring_worker w;
    bare_open(&b, 1);
    hand_in(&w, &b, 0, true);
    hello(&w);
    push(&w, ALL, 0, 1.0f);
    init_all(&w);
    expect_weights(&w, 1, 0.5f);
    push(&w, ALL, 1, -2.0f);
    expect_weights(&w, 2, 1.5f);
    hello(&w); // nothing came through the socket
    close_one(&b, &w);
}

/* The workers push in both orders. The second one's gradients come through its socket,
 * too. */
TEST(workers_with_and_without_rings_share_a_shard)
{
    bare_job b;
    ring_worker w;
    bare_open(&b, 2);
    hand_in(&w, &b, 0, true);
    hello(&w);
    bare_hello(&b, 1);
    init_all(&w);
    pull_first(&b, 1);
    for (uint64_t step = 0; step < 4; step++) {
        if (step % 2) push(&w, ALL, step, 1.0f);
        for (uint32_t c = 0; c < b.plan.n_chunks; c++)
            bare_send_chunk(&b, PS_MSG_PUSH, 1, c, step, 1.0f);
        if (step % 2 == 0) push(&w, ALL, step, 1.0f);
        expect_weights(&w, step + 1, 1.0f - (float)(step + 1));
        for (uint32_t c = 0; c < b.plan.n_chunks; c++) {
            float value = 0;
            ps_wire_header h;
            do // credit comes in between
                h = bare_answer(b.socket[1], &value, sizeof value);
            while (h.kind == PS_MSG_CREDIT);
            assert_int_equal(h.kind, PS_MSG_WEIGHTS);
            assert_true(value == 1.0f - (float)(step + 1));
        }
    }
    close_one(&b, &w);
}

static void open_two(bare_job *b, ring_worker w[2])
{
    bare_open(b, 2);
    for (int r = 0; r < 2; r++) {
        hand_in(&w[r], b, r, true);
        hello(&w[r]);
    }
    init_all(&w[0]);
}

/* The shard takes the workers' pushes in any order. */
TEST(any_order_of_workers_makes_steps)
{
    bare_job b;
    ring_worker w[2];
    open_two(&b, w);
    for (uint64_t step = 0; step < 8; step++) {
        ring_worker *first = &w[step % 2], *second = &w[(step + 1) % 2];
        push(first, 1 + (uint32_t)step / 2, step, 1.0f);
        push(second, ALL, step, 1.0f);
        for (uint32_t c = 1 + (uint32_t)step / 2; c < b.plan.n_chunks; c++) {
            ps_wire_header h = about(first, PS_MSG_PUSH, c, step);
            put(first, &h);
        }
        wake(first);
        for (int r = 0; r < 2; r++)
            expect_weights(&w[r], step + 1, 1.0f - (float)(step + 1));
    }
    bare_close(&b);
    leave(&w[0]), leave(&w[1]);
}

/* The shard does not wait at the ring of a worker that has ended. */
TEST(a_push_after_anothers_goodbye_is_seen)
{
    for (int short_one = 0; short_one < 2; short_one++) {
        bare_job b;
        ring_worker w[2];
        open_two(&b, w);
        for (int r = 0; r < 2; r++)
            push(&w[r], ALL, 0, 1.0f);
        for (int r = 0; r < 2; r++)
            expect_weights(&w[r], 1, 0.0f);
        const ps_wire_header h = bare_header(&b, PS_MSG_BYE, short_one, 0);
        bare_send(b.socket[short_one], &h, NULL, 0);
        char none;
        assert_int_equal(bare_answer(b.socket[short_one], &none, 0).kind, PS_MSG_LEFT);
        for (const ps_deadline end = soon();
             !atomic_load(&w[1 - short_one].rings.to_shard.memory->asleep); sched_yield())
            assert_false(ps_deadline_passed(end)); // until the shard sleeps
        push(&w[1 - short_one], 1, 1, 1.0f);
        expect_error(&w[1 - short_one], "has ended before step 2");
        bare_close(&b);
        leave(&w[0]), leave(&w[1]);
    }
}

TEST(a_repetition_is_not_counted)
{
    bare_job b;
    ring_worker w;
    open_one(&b, &w);
    push(&w, ALL, 0, 1.0f);
    expect_weights(&w, 1, 0.5f);
    ps_wire_header h = about(&w, PS_MSG_PUSH, 0, 0); // answered through the socket
    put(&w, &h);
    wake(&w);
    char none;
    assert_int_equal(bare_answer(b.socket[0], &none, 0).step, 1);
    push(&w, ALL, 1, 1.0f);
    expect_weights(&w, 2, 0.0f);
    close_one(&b, &w);
    assert_int_equal(b.job.server[0].stats.repeated, 1);
}

/* HELLO over a new connection changes nothing, and nothing in the rings is lost. */
TEST(a_new_connection_keeps_the_rings)
{
    bare_job b;
    ring_worker w;
    open_one(&b, &w);
    push(&w, 1, 0, 1.0f);
    hello(&w);
    for (uint32_t c = 1; c < b.plan.n_chunks; c++) {
        ps_wire_header h = about(&w, PS_MSG_PUSH, c, 0);
        put(&w, &h);
    }
    wake(&w);
    expect_weights(&w, 1, 0.5f);
    close_one(&b, &w);
}

/* ---- workers that break the rules ---- */

TEST(impossible_positions_end_the_job)
{
    bare_job b;
    ring_worker w;
    open_one(&b, &w);
    atomic_fetch_add(&w.rings.to_shard.memory->tail, 1u << 30);
    ps_event_set(&w.wake);
    expect_error(&w, "worker 0 sent: a ring with");
    close_one(&b, &w);
}

TEST(weights_that_nobody_takes_end_the_job)
{
    bare_job b;
    ring_worker w;
    open_one(&b, &w);
    atomic_store(&w.rings.to_worker.memory->head, 4096);
    push(&w, ALL, 0, 1.0f);
    expect_error(&w, "worker 0: a ring whose reader");
    close_one(&b, &w);
}

TEST(nonsense_in_a_ring_ends_the_job)
{
    static const char *const says[] = {"in the name of worker 1", "not a message header",
                                       "the plan does not have", "another job",
                                       "before that step's weights"};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        bare_job b;
        ring_worker w;
        open_one(&b, &w);
        ps_wire_header h = about(&w, PS_MSG_PUSH, 0, i == 4 ? 7 : 0);
        if (i == 0) h.rank = 1;
        if (i == 2) h.chunk = b.plan.n_chunks;
        if (i == 3) h.nonce++;
        if (i == 1)
            assert_ok(ps_shm_ring_put(&w.rings.to_shard, "\5hello", 6, NULL, 0));
        else
            put(&w, &h);
        wake(&w);
        expect_error(&w, says[i]);
        close_one(&b, &w);
    }
}

TEST(rings_are_agreed_on_once)
{
    for (int handed_in = 0; handed_in < 2; handed_in++) {
        bare_job b;
        ring_worker w;
        bare_open(&b, 1);
        hand_in(&w, &b, 0, handed_in);
        if (handed_in) hello(&w);
        say_hello(&w, !handed_in);
        expect_error(&w, handed_in ? "differs from its first one" : "not mapped here");
        close_one(&b, &w);
    }
}
