/* A connection fails while its messages wait, because nobody takes them. With ZeroMQ's
 * own heartbeats libzmq would end the process by an assertion. */
#include <unistd.h>

#include "../support/own_connections.h"
#include "check.h"
#include "zsock.h"

enum { SENT = 100, WAITING = 2, SILENCE_MS = 200 };

static int take(void *router, int milliseconds)
{
    zmq_msg_t parts[2];
    int n = 0;
    assert_ok(
        ps_zsock_recv(router, ps_deadline_in_ms((uint64_t)milliseconds), parts, 2, &n));
    ps_zsock_close_parts(parts, n);
    return n;
}

TEST(what_had_come_is_still_there)
{
    static const test_connections none;
    void *context, *router, *dealer;
    char endpoint[PS_ENDPOINT_MAX];
    assert_ok(ps_zsock_context(1, 8, false, &context));
    const ps_zsock_options of_router = {
        .type = ZMQ_ROUTER, .waiting_messages = WAITING, .silence_ms = SILENCE_MS};
    assert_ok(ps_zsock_open(context, &of_router, &router));
    assert_ok(ps_zsock_bind(router, NULL, "tcp://127.0.0.1:0", endpoint));
    const ps_zsock_options of_dealer = {.type = ZMQ_DEALER, .silence_ms = SILENCE_MS};
    assert_ok(ps_zsock_open(context, &of_dealer, &dealer));
    assert_ok(ps_zsock_connect(dealer, NULL, endpoint));
    for (int i = 0; i < SENT; i++)
        assert_int_equal(zmq_send(dealer, "message", 7, 0), 7);
    assert_int_equal(take(router, 5000), 2); // its sender and its body
    usleep(100000);
    const int port = atoi(strrchr(endpoint, ':') + 1);
    assert_true(test_cut_connections(port, &none) > 0);
    usleep(2 * SILENCE_MS * 1000);
    int taken = 1;
    while (take(router, 200))
        taken++;
    assert_in_range(taken, 1 + WAITING, SENT);
    ps_zsock_close(&dealer);
    ps_zsock_close(&router);
    zmq_ctx_term(context);
}
