#include "gradnorm_sum.h"

#include <math.h>

#include "check.h"

static ps_err add(ps_gradnorm_sum *s, uint64_t sender, uint64_t shards, uint64_t blocks,
                  uint64_t first, uint64_t count, const double *sums)
{
    uint64_t part[64];
    ps_gradnorm_part_write(part, 1, &first, &count, sums);
    return ps_gradnorm_sum_add(s, sender, shards, blocks, part,
                               ps_gradnorm_part_bytes(1, &count));
}

/* 1e16 + 1 = 1e16 in doubles: the order decides, and it has to be the arena's. */
TEST(adds_in_the_order_of_the_blocks)
{
    static const double sums[] = {1e16, 1, 1, 1};
    ps_gradnorm_sum s = {0};
    double norm;
    assert_ok(add(&s, 1, 2, 4, 2, 2, sums + 2));
    assert_false(ps_gradnorm_sum_complete(&s));
    assert_ok(add(&s, 2, 2, 4, 0, 2, sums));
    assert_true(ps_gradnorm_sum_complete(&s));
    assert_ok(ps_gradnorm_sum_total(&s, &norm, NULL));
    assert_true(norm == 1e8);
    ps_gradnorm_sum_fini(&s);
}

TEST(a_repeated_part_counts_once)
{
    static const double nine = 9, sixteen = 16, old = 1000;
    ps_gradnorm_sum s = {0};
    double norm;
    assert_ok(add(&s, 1, 2, 2, 0, 1, &old));
    assert_ok(add(&s, 1, 2, 2, 0, 1, &nine));
    assert_false(ps_gradnorm_sum_complete(&s));
    assert_ok(add(&s, 2, 2, 2, 1, 1, &sixteen));
    assert_ok(ps_gradnorm_sum_total(&s, &norm, NULL));
    assert_true(norm == 5);
    ps_gradnorm_sum_fini(&s);
}

TEST(overlaps_and_holes_are_refused)
{
    static const double sums[] = {1, 2, 3, 4};
    ps_gradnorm_sum s = {0};
    double norm;
    assert_ok(add(&s, 1, 2, 4, 0, 2, sums));
    assert_ok(add(&s, 2, 2, 4, 1, 2, sums)); // block 1 twice, 3 never
    assert_int_equal(ps_gradnorm_sum_total(&s, &norm, NULL), PS_ERR_PROTOCOL);
    ps_gradnorm_sum_fini(&s);
    assert_ok(add(&s, 1, 2, 4, 0, 2, sums));
    assert_ok(add(&s, 2, 2, 4, 2, 1, sums)); // block 3 is missing
    assert_int_equal(ps_gradnorm_sum_total(&s, &norm, NULL), PS_ERR_PROTOCOL);
    ps_gradnorm_sum_fini(&s);
}

TEST(claims_beyond_the_bytes_are_refused)
{
    static const double sums[] = {1, 2, 3, 4, 5};
    ps_gradnorm_sum s = {0};
    assert_int_equal(add(&s, 1, 2, 4, 0, 5, sums), PS_ERR_PROTOCOL); // beyond the end
    assert_int_equal(add(&s, 1, 2, 4, UINT64_MAX, 1, sums), PS_ERR_PROTOCOL);
    assert_int_equal(add(&s, 1, 0, 4, 0, 1, sums), PS_ERR_PROTOCOL); // no shards
    assert_int_equal(add(&s, 1, 2, UINT64_MAX, 0, 1, sums), PS_ERR_PROTOCOL);
    const uint64_t lies[][3] = {
        {UINT64_MAX, 0, 0}, {1, 0, 2}, {1ull << 62, 0, 0}, {2, 0, 0}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(ps_gradnorm_sum_add(&s, 1, 2, 4, lies[i], 24), PS_ERR_PROTOCOL);
    assert_int_equal(ps_gradnorm_sum_add(&s, 1, 2, 4, lies[0], 7), PS_ERR_PROTOCOL);
    assert_int_equal(ps_gradnorm_sum_add(&s, 1, 2, 4, lies[0], 0), PS_ERR_PROTOCOL);
    assert_int_equal(s.n_parts, 0);
    assert_ok(add(&s, 1, 2, 4, 0, 3, sums));
    assert_int_equal(add(&s, 2, 2, 4, 2, 2, sums), PS_ERR_PROTOCOL); // five of four
    assert_int_equal(add(&s, 2, 3, 4, 3, 1, sums),
                     PS_ERR_PROTOCOL); // others say 2 shards
    assert_ok(add(&s, 2, 2, 4, 3, 1, sums + 3));
    assert_int_equal(add(&s, 3, 2, 4, 3, 0, sums), PS_ERR_PROTOCOL); // a third of two
    double norm;
    assert_ok(ps_gradnorm_sum_total(&s, &norm, NULL));
    assert_true(norm == sqrt(10));
    ps_gradnorm_sum_fini(&s);
}

TEST(no_blocks_have_no_norm)
{
    ps_gradnorm_sum s = {0};
    double norm = 1;
    const uint64_t none = 0;
    assert_ok(ps_gradnorm_sum_add(&s, 1, 1, 0, &none, sizeof none));
    assert_ok(ps_gradnorm_sum_total(&s, &norm, NULL));
    assert_true(norm == 0);
    ps_gradnorm_sum_fini(&s);
}
