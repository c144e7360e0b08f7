/* An event is readable from set to clear, wakes a thread in poll, and is harmless when
 * there is none. */
#include "event.h"

#include <poll.h>
#include <pthread.h>

#include "check.h"

enum { LOST_MS = 20000 };

static int readable(const ps_event *event, int timeout_ms)
{
    struct pollfd item = {.fd = ps_event_fd(event), .events = POLLIN};
    return poll(&item, 1, timeout_ms);
}

TEST(is_readable_from_set_to_clear)
{
    ps_event event;
    assert_ok(ps_event_init(&event));
    assert_int_equal(readable(&event, 0), 0);
    ps_event_clear(&event); // does not block
    ps_event_set(&event);
    ps_event_set(&event);
    assert_int_equal(readable(&event, 0), 1);
    assert_int_equal(readable(&event, 0), 1);
    ps_event_clear(&event);
    assert_int_equal(readable(&event, 0), 0);
    ps_event_fini(&event);
    assert_int_equal(ps_event_fd(&event), -1);
    ps_event_fini(&event); // safe
}

TEST(no_event_is_harmless)
{
    ps_event none = {0};
    assert_int_equal(ps_event_fd(&none), -1);
    ps_event_set(&none);
    ps_event_clear(&none);
    ps_event_fini(&none);
}

static void *set(void *event)
{
    ps_event_set(event);
    return NULL;
}

TEST(wakes_another_thread)
{
    ps_event event;
    pthread_t thread;
    assert_ok(ps_event_init(&event));
    assert_int_equal(pthread_create(&thread, NULL, set, &event), 0);
    assert_int_equal(readable(&event, LOST_MS), 1);
    pthread_join(thread, NULL);
    ps_event_fini(&event);
}
