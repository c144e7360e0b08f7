/* Peers that have no business at a socket. */
#ifndef PS_TEST_SENT_AWAY_H
#define PS_TEST_SENT_AWAY_H

#include "check.h"
#include "zsock.h"

/* Whether the connection that a monitor (ps_zsock_monitor) watches ends within the time,
 * or has ended since the last call. */
static inline bool test_ends(void *monitor, int ms)
{
    zmq_pollitem_t event = {.socket = monitor, .events = ZMQ_POLLIN};
    while (zmq_poll(&event, 1, ms) == 1)
        if (ps_zsock_monitor_read(monitor, NULL) == PS_ZSOCK_CLOSED) return true;
    return false;
}

/* Closes the monitor, too. */
static inline void test_assert_silent(void *socket, void *monitor)
{
    zmq_pollitem_t answer = {.socket = socket, .events = ZMQ_POLLIN};
    assert_int_equal(zmq_poll(&answer, 1, 0), 0);
    zmq_socket_monitor(socket, NULL, 0);
    ps_zsock_close(&monitor);
}

#endif
