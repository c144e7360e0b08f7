/* How often connections are asked for a sign of life, in small and in large jobs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "zsock.h"

static const ps_zsock_pulse usual = {.heartbeat_ms = 500, .silence_ms = 5000};

static void with_few_connections_it_is_the_heartbeat(void **state)
{
    for (int n = 0; n <= 16; n++) {
        const ps_zsock_pulse p = ps_zsock_pulse_among(usual, n);
        assert_int_equal(p.heartbeat_ms, usual.heartbeat_ms);
        assert_int_equal(p.silence_ms, usual.silence_ms);
    }
}

static void with_many_all_together_ask_no_more_than_sixteen_until_a_bound(void **state)
{
    assert_int_equal(ps_zsock_pulse_among(usual, 32).heartbeat_ms, 1000);
    assert_int_equal(ps_zsock_pulse_among(usual, 1024).heartbeat_ms, 5000 / 3);
}

static void a_peer_has_as_long_to_answer_as_with_few(void **state)
{
    for (int n = 1; n <= 1024; n *= 2) {
        const ps_zsock_pulse p = ps_zsock_pulse_among(usual, n);
        assert_int_equal(p.silence_ms - p.heartbeat_ms, 4500);
    }
}

static void slow_heartbeats_are_not_made_faster(void **state)
{
    const ps_zsock_pulse slow = {.heartbeat_ms = 4000, .silence_ms = 5000}, off = {0};
    assert_int_equal(ps_zsock_pulse_among(slow, 1000).heartbeat_ms, 4000);
    assert_int_equal(ps_zsock_pulse_among(off, 1000).heartbeat_ms, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_few_connections_it_is_the_heartbeat),
        cmocka_unit_test(with_many_all_together_ask_no_more_than_sixteen_until_a_bound),
        cmocka_unit_test(a_peer_has_as_long_to_answer_as_with_few),
        cmocka_unit_test(slow_heartbeats_are_not_made_faster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
