/* The ring of messages: they come out in order and unchanged; no reader sleeps while
 * there is one; an end that shows impossible positions or lengths gets an error. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include "check.h"
#include "event.h"
#include "mem.h"
#include "shm_ring.h"

enum { CAPACITY = 4096, MANY = 20000, LONGEST = 200, LOST_MS = 20000 };

typedef struct rig {
    void *memory;
    ps_shm_ring writer, reader;
    ps_event wake;
} rig;

static void rig_init(rig *r)
{
    assert_ok(ps_mem_zalloc_aligned(&r->memory, ps_shm_ring_bytes(CAPACITY), "a"));
    r->writer = r->reader = ps_shm_ring_at(r->memory, CAPACITY);
    assert_ok(ps_event_init(&r->wake));
}

static void rig_fini(rig *r)
{
    free(r->memory);
    ps_event_fini(&r->wake);
}

/* Makes message i. Its length and its bytes depend on i. */
static uint32_t make(uint32_t i, uint8_t out[LONGEST])
{
    const uint32_t n = 1 + i % LONGEST;
    memset(out, (int)(i * 7 + 1), n);
    return n;
}

static ps_err put(ps_shm_ring *ring, uint32_t i)
{
    uint8_t bytes[LONGEST];
    const uint32_t n = make(i, bytes), cut = n / 3;
    return ps_shm_ring_put(ring, bytes, cut, bytes + cut, n - cut);
}

static bool take(ps_shm_ring *ring, uint32_t i)
{
    uint8_t wanted[LONGEST], got[LONGEST];
    uint32_t n;
    assert_ok(ps_shm_ring_next(ring, &n));
    if (n == 0) return false;
    assert_int_equal(n, make(i, wanted));
    ps_shm_ring_copy(ring, 0, got, 1);
    ps_shm_ring_copy(ring, 1, got + 1, n - 1);
    ps_shm_ring_drop(ring, n);
    assert_memory_equal(got, wanted, n);
    return true;
}

TEST(keeps_the_order_around_the_ring)
{
    rig r;
    rig_init(&r);
    uint32_t in = 0, out = 0;
    for (int round = 0; round < 200; round++) {
        while (in < out + 11)
            assert_ok(put(&r.writer, in++));
        while (out + 3 < in)
            assert_true(take(&r.reader, out++));
    }
    while (out < in)
        assert_true(take(&r.reader, out++));
    assert_false(take(&r.reader, out));
    rig_fini(&r);
}

/* Positions count modulo 2^32. */
TEST(goes_on_where_positions_begin_anew)
{
    rig r;
    rig_init(&r);
    r.writer.at = r.reader.at = UINT32_MAX - 7;
    atomic_store(&r.writer.memory->head, r.reader.at);
    atomic_store(&r.writer.memory->tail, r.writer.at);
    for (uint32_t i = 0; i < 10; i++)
        assert_ok(put(&r.writer, i));
    for (uint32_t i = 0; i < 10; i++)
        assert_true(take(&r.reader, i));
    rig_fini(&r);
}

TEST(full_is_an_error_and_loses_nothing)
{
    rig r;
    rig_init(&r);
    uint32_t n = 0;
    while (put(&r.writer, n) == PS_OK)
        n++;
    assert_true(n > 10);
    assert_int_equal(put(&r.writer, n), PS_ERR_PROTOCOL);
    for (uint32_t i = 0; i < n; i++)
        assert_true(take(&r.reader, i));
    assert_ok(put(&r.writer, n));
    assert_true(take(&r.reader, n));
    rig_fini(&r);
}

TEST(a_capacity_has_room_for_what_it_says)
{
    static uint8_t bytes[85];
    const uint32_t capacity = ps_shm_ring_capacity(1000, sizeof bytes);
    void *memory;
    assert_ok(ps_mem_zalloc_aligned(&memory, ps_shm_ring_bytes(capacity), "a ring"));
    ps_shm_ring ring = ps_shm_ring_at(memory, capacity);
    for (int i = 0; i < 1000; i++)
        assert_ok(ps_shm_ring_put(&ring, bytes, sizeof bytes, NULL, 0));
    free(memory);
}

/* Whatever the other end shows, no end reads outside the ring. */
TEST(impossible_positions_are_refused)
{
    static const uint32_t tails[] = {3, CAPACITY + 8, UINT32_MAX, 1u << 31, 4};
    static const uint32_t lengths[] = {0, UINT32_MAX, UINT32_MAX - 3, CAPACITY, 100};
    rig r;
    rig_init(&r);
    uint32_t n;
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        atomic_store(&r.reader.memory->tail, tails[i]);
        assert_int_equal(ps_shm_ring_next(&r.reader, &n), PS_ERR_PROTOCOL);
        assert_int_equal(n, 0);
    }
    atomic_store(&r.reader.memory->tail, 64);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(r.reader.memory->bytes, &lengths[i], sizeof lengths[i]);
        assert_int_equal(ps_shm_ring_next(&r.reader, &n), PS_ERR_PROTOCOL);
    }
    atomic_store(&r.writer.memory->head, 8); // more was taken than put
    assert_int_equal(put(&r.writer, 0), PS_ERR_PROTOCOL);
    atomic_store(&r.writer.memory->head, UINT32_MAX - 2);
    assert_int_equal(put(&r.writer, 0), PS_ERR_PROTOCOL);
    rig_fini(&r);
}

TEST(only_a_reader_that_sleeps_is_woken_and_once)
{
    rig r;
    rig_init(&r);
    assert_ok(put(&r.writer, 0));
    assert_false(ps_shm_ring_must_wake(&r.writer));
    assert_false(ps_shm_ring_sleep(&r.reader)); // there is a message
    ps_shm_ring_awake(&r.reader);
    assert_true(take(&r.reader, 0));
    assert_true(ps_shm_ring_sleep(&r.reader));
    assert_ok(put(&r.writer, 1));
    assert_true(ps_shm_ring_must_wake(&r.writer));
    assert_ok(put(&r.writer, 2));
    assert_false(ps_shm_ring_must_wake(&r.writer));
    rig_fini(&r);
}

static void *write_many(void *arg)
{
    rig *r = arg;
    for (uint32_t i = 0; i < MANY; i++) {
        while (put(&r->writer, i) != PS_OK)
            sched_yield();
        if (ps_shm_ring_must_wake(&r->writer)) ps_event_set(&r->wake);
    }
    return NULL;
}

/* Returns whether it slept too long. */
static bool read_and_sleep(rig *r, uint32_t *next)
{
    while (take(&r->reader, *next))
        (*next)++;
    if (*next == MANY) return false;
    struct pollfd item = {.fd = ps_event_fd(&r->wake), .events = POLLIN};
    const bool sleeps = ps_shm_ring_sleep(&r->reader);
    const int got = poll(&item, 1, sleeps ? LOST_MS : 0);
    ps_shm_ring_awake(&r->reader);
    if (got > 0) ps_event_clear(&r->wake);
    return sleeps && got == 0;
}

TEST(no_message_is_slept_through)
{
    rig r;
    pthread_t writer;
    uint32_t next = 0;
    rig_init(&r);
    assert_int_equal(pthread_create(&writer, NULL, write_many, &r), 0);
    while (next < MANY)
        assert_false(read_and_sleep(&r, &next));
    pthread_join(writer, NULL);
    rig_fini(&r);
}
