/* Rows that outlive their job, in a process that joins very often: an elastic job's
 * workers come and go for a year. */
#include "rows_keeper.h"

#include "../support/mem_room.h"
#include "check.h"

enum { SHARDS = 3, JOINS = 100000 };

static uint32_t most; // that a list held

static ps_err before_mem_room(uint32_t n, const char *what)
{
    if (n > most) most = n;
    return PS_OK;
}

static ps_row_store *store_at(uint64_t point)
{
    static const ps_row_spec spec = {.name = "user", .dim = 1};
    ps_row_store *s;
    assert_ok(ps_row_store_create(&spec, 1, 0, 1, NULL, &s));
    if (point > 0) assert_ok(ps_row_store_set_point(s, point, point));
    return s;
}

TEST(it_does_not_grow)
{
    ps_rows_keeper *keeper;
    ps_row_store *stores[SHARDS];
    uint64_t points[PS_ROW_MARKS];
    assert_ok(ps_rows_keeper_create(&keeper));
    for (uint32_t i = 0; i < SHARDS; i++)
        stores[i] = store_at(5);
    most = 0;
    for (int join = 0; join < JOINS; join++)
        for (uint32_t i = 0; i < SHARDS; i++) {
            ps_rows_keeper_give(keeper, i, &stores[i]);
            assert_null(stores[i]);
            stores[i] = ps_rows_keeper_take(keeper, i);
            assert_non_null(stores[i]);
            assert_null(ps_rows_keeper_take(keeper, i));
        }
    assert_true(most < SHARDS);
    assert_int_equal(ps_rows_keeper_points(keeper, 0, SHARDS, points), 0);
    for (uint32_t i = 0; i < SHARDS; i++)
        ps_rows_keeper_give(keeper, i, &stores[i]);
    assert_int_equal(ps_rows_keeper_points(keeper, 0, SHARDS, points), 1);
    assert_int_equal(points[0], 5);
    ps_rows_keeper_destroy(&keeper);
}

/* Of a shard that gives twice the newer one is kept; one without a point is not. */
TEST(the_newest_is_kept)
{
    ps_rows_keeper *keeper;
    uint64_t points[PS_ROW_MARKS];
    assert_ok(ps_rows_keeper_create(&keeper));
    for (uint64_t point = 1; point <= 2; point++) {
        ps_row_store *s = store_at(point);
        ps_rows_keeper_give(keeper, 7, &s);
        assert_null(s);
        assert_int_equal(ps_rows_keeper_points(keeper, 7, 1, points), 1);
        assert_int_equal(points[0], point);
    }
    assert_int_equal(ps_rows_keeper_points(keeper, 7, 2, points), 0);
    ps_row_store *without = store_at(0);
    ps_rows_keeper_give(keeper, 7, &without);
    assert_null(without);
    assert_int_equal(ps_rows_keeper_points(keeper, 7, 1, points), 0);
    ps_rows_keeper_destroy(&keeper);
    ps_row_store *alone = store_at(1); // nobody keeps it
    ps_rows_keeper_give(NULL, 0, &alone);
    assert_null(alone);
    assert_null(ps_rows_keeper_take(NULL, 0));
}
