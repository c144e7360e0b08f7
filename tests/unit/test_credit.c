/* Credits never bring a worker and a shard to a standstill. Every window is simulated
 * with a shard that returns credit as late as its rule allows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "credit.h"

static void auto_window(void **state)
{
    const uint64_t kib = 1 << 10, mib = 1 << 20;
    assert_int_equal(ps_credit_of_shard(0, 100 * mib, 48 * kib).window, 128 * kib);
    assert_int_equal(ps_credit_of_shard(0, 100 * mib, mib).window, 2 * mib);
    assert_int_equal(ps_credit_of_shard(0, 100 * kib, 50 * kib).window, 100 * kib);
    assert_int_equal(ps_credit_of_shard(0, 100 * kib, 50 * kib).explicit_above,
                     UINT64_MAX);
    assert_int_equal(ps_credit_of_shard(0, 100 * mib, mib).explicit_above, mib);
    assert_int_equal(ps_credit_of_shard(0, 600 * kib, 40 * kib).window, 100 * kib);
    assert_int_equal(ps_credit_of_shard(0, 200 * kib, 20 * kib).window, 64 * kib);
    assert_int_equal(ps_credit_of_shard(1000, 100 * mib, mib).window, 1000);
}

/* Pushes of n chunks that get no reply before all are in (as with clipping). */
static void play(uint64_t configured, const uint64_t *bytes, int n)
{
    uint64_t total = 0, largest = 0;
    for (int i = 0; i < n; i++) {
        total += bytes[i];
        largest = bytes[i] > largest ? bytes[i] : largest;
    }
    ps_credit credit = ps_credit_of_shard(configured, total, largest);
    uint64_t on_the_way = 0, owed = 0, most = 0;
    for (int i = 0; i < n; i++) {
        if (!ps_credit_allows(&credit, on_the_way, bytes[i])) {
            // All that was sent has been taken over; what was not returned stays owed.
            assert_int_equal(on_the_way, owed);
            fail_msg("standstill at chunk %d, window %lu", i,
                     (unsigned long)credit.window);
        }
        on_the_way += bytes[i];
        most = on_the_way > most ? on_the_way : most;
        owed += bytes[i];
        if (owed > credit.explicit_above) {
            on_the_way -= owed;
            owed = 0;
        }
    }
    assert_true(most <= credit.window || most <= largest);
}

static void never_stands_still(void **state)
{
    const uint64_t equal[] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
    const uint64_t mixed[] = {1, 9, 2, 9, 9, 1, 1, 1, 9, 5, 4, 4};
    for (uint64_t window = 1; window < 120; window++) {
        play(window, equal, 10);
        play(window, mixed, 12);
    }
    const uint64_t large[] = {3 << 20, 3 << 20, 1 << 20, 3 << 20, 3 << 20, 3 << 20};
    play(0, large, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_window),
        cmocka_unit_test(never_stands_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
