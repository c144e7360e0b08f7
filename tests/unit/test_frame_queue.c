/* Frames come out in their order, and a queue that is never empty does not grow. */
#include "frame_queue.h"

#include "check.h"
#include "zsock.h"

enum { LONG = 100 }; // bytes: more than libzmq keeps in the message itself

static void put(ps_frame_queue *q, uint64_t number)
{
    uint64_t bytes[LONG / sizeof number] = {number};
    zmq_msg_t frame;
    assert_ok(
        ps_zsock_msg_copy(&frame, bytes, number % 2 ? sizeof bytes : sizeof number));
    assert_ok(ps_frame_queue_put(q, &frame));
    assert_int_equal(zmq_msg_size(&frame), 0);
    zmq_msg_close(&frame);
}

static void take(ps_frame_queue *q, uint64_t number)
{
    zmq_msg_t frame;
    assert_true(ps_frame_queue_take(q, &frame));
    uint64_t got;
    memcpy(&got, zmq_msg_data(&frame), sizeof got);
    assert_int_equal(got, number);
    zmq_msg_close(&frame);
}

TEST(one_that_is_never_empty_does_not_grow)
{
    ps_frame_queue q = {0};
    uint64_t given = 0, taken = 0;
    while (given < 5)
        put(&q, given++);
    const uint32_t room = q.room;
    while (taken < 100000) {
        put(&q, given++);
        take(&q, taken++);
    }
    assert_int_equal(q.room, room);
    assert_int_equal(q.n, 5);
    ps_frame_queue_fini(&q); // with frames in it
    assert_int_equal(q.n, 0);
}

/* Also where the ring begins in its middle. */
TEST(it_grows_in_order)
{
    zmq_msg_t none;
    for (uint64_t begin = 0; begin < 20; begin++) {
        ps_frame_queue q = {0};
        uint64_t given = 0, taken = 0;
        for (; taken < begin; taken++) {
            put(&q, given++);
            take(&q, taken);
        }
        while (given < begin + 50)
            put(&q, given++);
        while (taken < given)
            take(&q, taken++);
        assert_false(ps_frame_queue_take(&q, &none));
        ps_frame_queue_fini(&q);
    }
}
