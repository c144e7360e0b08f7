/* ps_zsock_poll over random messages of several sockets and an event. */
#include "zsock.h"

#include "check.h"
#include "event.h"
#include "rng.h"

enum { N = 3, ITEMS = N + 1, ROUNDS = 2000 };

typedef struct rig {
    void *context, *sends[N], *receives[N];
    ps_event event;
    ps_zsock_item items[ITEMS];
    struct pollfd fds[ITEMS];
    int waiting[N]; // messages that were sent and not received
    bool told;      // the event
} rig;

static void rig_open(rig *r)
{
    memset(r, 0, sizeof *r);
    r->context = zmq_ctx_new();
    const int no_limit = 0;
    for (int i = 0; i < N; i++) {
        char where[PS_ENDPOINT_MAX];
        const ps_zsock_options router = {.type = ZMQ_ROUTER},
                               dealer = {.type = ZMQ_DEALER};
        assert_ok(ps_zsock_open(r->context, &router, &r->receives[i]));
        assert_ok(ps_zsock_open(r->context, &dealer, &r->sends[i]));
        zmq_setsockopt(r->receives[i], ZMQ_RCVHWM, &no_limit, sizeof no_limit);
        assert_ok(ps_zsock_bind(r->receives[i], NULL, "tcp://127.0.0.1:0", where));
        assert_ok(ps_zsock_connect(r->sends[i], NULL, where));
        r->items[i].socket = r->receives[i];
    }
    assert_ok(ps_event_init(&r->event));
    r->items[N].fd = ps_event_fd(&r->event);
}

static void rig_close(rig *r)
{
    for (int i = 0; i < N; i++) {
        ps_zsock_close(&r->receives[i]);
        ps_zsock_close(&r->sends[i]);
    }
    ps_event_fini(&r->event);
    zmq_ctx_term(r->context);
}

/* Some messages of one socket, as its owner does. */
static void take(rig *r, int i, int most)
{
    for (int n = 0; n < most; n++) {
        zmq_msg_t part;
        bool got = false;
        for (int more = 1; more;) {
            zmq_msg_init(&part);
            if (zmq_msg_recv(&part, r->receives[i], ZMQ_DONTWAIT) < 0) break;
            got = true;
            more = zmq_msg_more(&part);
            zmq_msg_close(&part);
        }
        r->items[i].idle = !got;
        if (!got) return;
        r->waiting[i]--;
    }
}

/* Whatever was sent arrives, so somebody is ready until all of it is received. */
TEST(nothing_that_was_sent_is_slept_over)
{
    rig r;
    rig_open(&r);
    ps_mt19937 chance;
    ps_mt19937_seed(&chance, 7);
    for (int round = 0; round < ROUNDS; round++) {
        const uint32_t x = ps_mt19937_u32(&chance);
        const int i = (int)(x % N);
        for (uint32_t n = x >> 8 & 3; n > 0; n--, r.waiting[i]++)
            assert_int_equal(zmq_send(r.sends[i], &x, sizeof x, 0), sizeof x);
        if (x >> 16 & 1 && !r.told) {
            ps_event_set(&r.event);
            r.told = true;
        }
        int waiting = 0;
        for (int k = 0; k < N; k++)
            waiting += r.waiting[k];
        // The last seconds are only for an error: what waits wakes it at once.
        const int ready =
            ps_zsock_poll(r.items, r.fds, ITEMS, waiting || r.told ? 20000 : 0);
        assert_int_equal(ready > 0, waiting || r.told);
        assert_int_equal(r.items[N].ready, r.told);
        for (int k = 0; k < N; k++) {
            assert_true(!r.items[k].ready || r.waiting[k] > 0);
            if (r.items[k].ready) take(&r, k, 1 + (int)(x >> 20 & 7));
        }
        if (r.told && x >> 17 & 1) {
            ps_event_clear(&r.event);
            r.told = false;
        }
    }
    rig_close(&r);
}

TEST(a_limit_ends_the_wait)
{
    rig r;
    rig_open(&r);
    const ps_deadline soon = ps_deadline_in_ms(30);
    assert_int_equal(ps_zsock_poll(r.items, r.fds, ITEMS, 30), 0);
    assert_true(ps_deadline_passed(soon));
    assert_int_equal(ps_zsock_poll(r.items, r.fds, ITEMS, 0), 0);
    rig_close(&r);
}
