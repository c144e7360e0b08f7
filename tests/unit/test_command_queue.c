/* The queue of commands: commands come out in the order in which they went in, and no
 * reader sleeps while there is one. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include "check.h"
#include "ps_comm_state.h"

enum { ROOM = 16, MANY = 50000, LOST_MS = 20000 };

TEST(test_keeps_the_order_around_the_ring)
{
    ps_command_queue q;
    assert_ok(ps_command_queue_init(&q, ROOM));
    uint32_t in = 0, out = 0;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 7; i++, in++)
            assert_ok(ps_command_queue_put(&q, (ps_command){.kind = 3, .chunk = in, .step = in * 2}));
        assert_int_equal(ps_command_queue_count(&q), in - out);
        for (uint32_t i = 0; i < 6; i++, out++) {
            const ps_command *o = ps_command_queue_peek(&q, i);
            assert_int_equal(o->kind, 3);
            assert_int_equal(o->chunk, out);
            assert_int_equal(o->step, out * 2);
        }
        ps_command_queue_drop(&q, 6);
    }
    ps_command_queue_fini(&q);
    ps_command_queue_fini(&q); // safe
}

TEST(test_full_is_an_error_and_loses_nothing)
{
    ps_command_queue q;
    assert_ok(ps_command_queue_init(&q, ROOM));
    uint32_t n = 0;
    while (ps_command_queue_put(&q, (ps_command){.chunk = n}) == PS_OK)
        n++;
    assert_true(n >= ROOM);
    assert_int_equal(ps_command_queue_put(&q, (ps_command){0}), PS_ERR_INTERNAL);
    assert_int_equal(ps_command_queue_count(&q), n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(ps_command_queue_peek(&q, i)->chunk, i);
    ps_command_queue_drop(&q, 1);
    assert_ok(ps_command_queue_put(&q, (ps_command){0}));
    ps_command_queue_fini(&q);
}

static bool readable(int fd)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    return poll(&item, 1, 0) == 1;
}

TEST(test_wakes_only_a_reader_that_sleeps)
{
    ps_command_queue q;
    assert_ok(ps_command_queue_init(&q, ROOM));
    assert_ok(ps_command_queue_put(&q, (ps_command){0}));
    ps_command_queue_wake(&q);
    assert_false(readable(ps_event_fd(&q.wake)));
    assert_false(ps_command_queue_sleep(&q)); // there is a command
    ps_command_queue_awake(&q, false);
    ps_command_queue_drop(&q, 1);
    assert_true(ps_command_queue_sleep(&q));
    assert_ok(ps_command_queue_put(&q, (ps_command){0}));
    ps_command_queue_wake(&q);
    assert_true(readable(ps_event_fd(&q.wake)));
    ps_command_queue_awake(&q, true);
    assert_false(readable(ps_event_fd(&q.wake)));
    ps_command_queue_fini(&q);
}

static void *write_many(void *arg)
{
    ps_command_queue *q = arg;
    for (uint32_t i = 0; i < MANY; i++) {
        while (ps_command_queue_put(q, (ps_command){.chunk = i}) != PS_OK)
            sched_yield();
        ps_command_queue_wake(q);
    }
    return NULL;
}

/* Takes all commands and sleeps. Returns whether it slept too long. */
static bool read_and_sleep(ps_command_queue *q, uint32_t *next)
{
    uint32_t n = ps_command_queue_count(q);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(ps_command_queue_peek(q, i)->chunk, (*next)++);
    ps_command_queue_drop(q, n);
    if (*next == MANY) return false;
    struct pollfd item = {.fd = ps_event_fd(&q->wake), .events = POLLIN};
    bool sleeps = ps_command_queue_sleep(q);
    int got = poll(&item, 1, sleeps ? LOST_MS : 0);
    ps_command_queue_awake(q, got > 0);
    return sleeps && got == 0;
}

TEST(test_no_command_is_slept_through)
{
    ps_command_queue q;
    pthread_t writer;
    uint32_t next = 0;
    assert_ok(ps_command_queue_init(&q, ROOM));
    assert_int_equal(pthread_create(&writer, NULL, write_many, &q), 0);
    while (next < MANY)
        assert_false(read_and_sleep(&q, &next));
    pthread_join(writer, NULL);
    ps_command_queue_fini(&q);
}
