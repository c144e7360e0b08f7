/* Credits never bring a worker and a shard to a standstill. Every window is simulated
 * with a shard that returns credit as late as its rule allows. */
#include "check.h"
#include "credit.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static const ps_chunk_size network, one_host = {.one_host = true},
                                    crowded = {.one_host = true, .crowded = true};

static ps_credit credit_of(uint64_t configured, ps_chunk_size size, uint64_t total,
                           uint64_t largest)
{
    const ps_credit_needs needs = {.configured = configured,
                                   .size = size,
                                   .shard_bytes = total,
                                   .largest_bytes = largest};
    return ps_credit_for(&needs);
}

TEST(auto_window)
{
    assert_int_equal(credit_of(0, network, 100 * MIB, 48 * KIB).window, 128 * KIB);
    assert_int_equal(credit_of(0, network, 100 * MIB, MIB).window, 2 * MIB);
    assert_int_equal(credit_of(0, network, 100 * KIB, 50 * KIB).window, 100 * KIB);
    assert_int_equal(credit_of(0, network, 100 * KIB, 50 * KIB).explicit_above,
                     UINT64_MAX);
    assert_int_equal(credit_of(0, network, 100 * MIB, MIB).explicit_above, MIB);
    assert_int_equal(credit_of(0, network, 600 * KIB, 40 * KIB).window, 100 * KIB);
    assert_int_equal(credit_of(0, network, 200 * KIB, 20 * KIB).window, 64 * KIB);
    assert_int_equal(credit_of(1000, network, 100 * MIB, MIB).window, 1000);
}

TEST(auto_window_on_one_host)
{
    assert_int_equal(credit_of(0, one_host, 100 * MIB, 48 * KIB).window, 512 * KIB);
    assert_int_equal(credit_of(0, one_host, 100 * MIB, 512 * KIB).window, MIB);
    assert_int_equal(credit_of(0, crowded, 100 * MIB, 512 * KIB).window, 512 * KIB);
    assert_int_equal(credit_of(0, crowded, 100 * MIB, MIB).window, MIB);
    assert_int_equal(credit_of(0, crowded, 100 * MIB, MIB).explicit_above, 0);
    assert_int_equal(credit_of(0, crowded, 256 * KIB, 256 * KIB).explicit_above,
                     UINT64_MAX);
    assert_int_equal(credit_of(1000, crowded, 100 * MIB, MIB).window, 1000);
}

/* Pushes of n chunks that get no reply before all are in (as with clipping). */
static void play(uint64_t configured, ps_chunk_size size, const uint64_t *bytes, int n)
{
    uint64_t total = 0, largest = 0;
    for (int i = 0; i < n; i++) {
        total += bytes[i];
        largest = bytes[i] > largest ? bytes[i] : largest;
    }
    ps_credit credit = credit_of(configured, size, total, largest);
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

TEST(never_stands_still)
{
    const uint64_t equal[] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
    const uint64_t mixed[] = {1, 9, 2, 9, 9, 1, 1, 1, 9, 5, 4, 4};
    for (uint64_t window = 1; window < 120; window++) {
        play(window, network, equal, 10);
        play(window, network, mixed, 12);
    }
    const uint64_t large[] = {3 << 20, 3 << 20, 1 << 20, 3 << 20, 3 << 20, 3 << 20};
    const uint64_t half[] = {300 << 10, 400 << 10, 200 << 10, 1 << 10, 400 << 10};
    const ps_chunk_size sizes[] = {network, one_host, crowded};
    for (int i = 0; i < 3; i++) {
        play(0, sizes[i], large, 6);
        play(0, sizes[i], half, 5);
    }
}
