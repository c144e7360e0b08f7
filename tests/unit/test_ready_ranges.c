/* Ranges of gradients that become ready, against a map of every element. */
#include "check.h"
#include "ready_ranges.h"

enum { ARENA = 160, PARTS = 5 };

/* Tensors of 40, 3, 70 and 10 elements; gaps of 8, 13, 10 and 6. */
static ps_tensor tensors[] = {{.name = "a", .offset = 0, .count = 40},
                              {.name = "b", .offset = 48, .count = 3},
                              {.name = "c", .offset = 64, .count = 70},
                              {.name = "d", .offset = 144, .count = 10}};
static const ps_tensor_table table = {
    .n_tensors = 4, .tensors = tensors, .arena_count = ARENA};
/* The first part holds d and the end of c. c is cut twice. Another part holds b and the
 * end of a. */
static const uint64_t begins[PARTS] = {120, 100, 64, 20, 0};

static void assert_added(ps_ready_ranges *r, uint64_t begin, uint64_t end, int n, ...)
{
    uint32_t complete[PARTS], got;
    va_list parts;
    assert_ok(ps_ready_ranges_add(r, begin, end, complete, &got));
    assert_int_equal(got, n);
    va_start(parts, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(complete[i], va_arg(parts, int));
    va_end(parts);
}

static void assert_refused(ps_ready_ranges *r, uint64_t begin, uint64_t end,
                           const char *text)
{
    uint32_t complete[PARTS], got;
    assert_int_equal(ps_ready_ranges_add(r, begin, end, complete, &got), PS_ERR_ARG);
    assert_int_equal(got, 0);
    if (!strstr(ps_err_message(), text)) fail_msg("%s", ps_err_message());
}

TEST(ranges_complete_the_parts_that_they_fill)
{
    ps_ready_ranges r;
    assert_ok(ps_ready_ranges_init(&r, &table, begins, PARTS));
    for (int step = 0; step < 3; step++) {
        ps_ready_ranges_restart(&r);
        assert_added(&r, 144, 154, 0);      // d, and the gap after it
        assert_added(&r, 90, 134, 2, 0, 1); // the end of c, and the gap
        assert_added(&r, 64, 90, 1, 2);     // the rest of c
        assert_added(&r, 0, 10, 0);         // a's first row
        assert_added(&r, 48, 51, 0);        // b
        assert_false(ps_ready_ranges_all(&r));
        assert_added(&r, 10, 40, 2, 3, 4);
        assert_true(ps_ready_ranges_all(&r));
    }
    ps_ready_ranges_restart(&r);
    assert_added(&r, 0, ARENA, 5, 0, 1, 2, 3, 4);
    ps_ready_ranges_fini(&r);
}

TEST(what_is_ready_twice_is_refused)
{
    ps_ready_ranges r;
    assert_ok(ps_ready_ranges_init(&r, &table, begins, PARTS));
    assert_added(&r, 70, 90, 0);
    assert_refused(&r, 70, 90,
                   "gradient of c was pushed before (elements 6 to 26 of it)");
    assert_refused(&r, 89, 91, "(elements 25 to 26 of it)");
    assert_refused(&r, 0, ARENA, "(elements 6 to 26 of it)");
    assert_refused(&r, 60, 71, "(elements 6 to 7 of it)");
    assert_refused(&r, 75, 80, "gradient of c was pushed before");
    assert_refused(&r, 10, 10, "10 to 10 are ready");
    assert_refused(&r, 20, 10, "20 to 10 are ready");
    assert_refused(&r, 150, ARENA + 1, "but there are 160");
    // None of these ranges counted.
    assert_added(&r, 64, 70, 0);
    assert_added(&r, 90, 134, 2, 1, 2);
    ps_ready_ranges_fini(&r);
}

TEST(a_range_touches_its_parts)
{
    ps_ready_ranges r;
    assert_ok(ps_ready_ranges_init(&r, &table, begins, PARTS));
    for (uint64_t begin = 0; begin < ARENA; begin++)
        for (uint64_t end = begin + 1; end <= ARENA; end++) {
            uint32_t first, last, want_first = PARTS, want_last = 0;
            for (uint32_t i = 0; i < PARTS; i++)
                if (begins[i] < end && begin < (i ? begins[i - 1] : ARENA)) {
                    if (want_first == PARTS) want_first = i;
                    want_last = i;
                }
            ps_ready_ranges_touched(&r, begin, end, &first, &last);
            assert_int_equal(first, want_first);
            assert_int_equal(last, want_last);
        }
    ps_ready_ranges_fini(&r);
}

/* Adds [begin, end), and the gap after it, to the map. Returns false when a part of it is
 * there already. */
static bool mark(bool *map, uint64_t begin, uint64_t end)
{
    for (int t = 0; t < 4; t++)
        if (end == tensors[t].offset + tensors[t].count)
            end = t < 3 ? tensors[t + 1].offset : ARENA;
    for (uint64_t i = begin; i < end; i++)
        if (map[i]) return false;
    memset(map + begin, true, end - begin);
    return true;
}

static uint32_t full_parts(const bool *map)
{
    uint32_t full = 0;
    for (uint32_t i = 0; i < PARTS; i++) {
        const uint64_t end = i ? begins[i - 1] : ARENA;
        full += memchr(map + begins[i], false, end - begins[i]) == NULL;
    }
    return full;
}

TEST(random_ranges_agree_with_a_map)
{
    unsigned seed = 1;
    ps_ready_ranges r;
    assert_ok(ps_ready_ranges_init(&r, &table, begins, PARTS));
    for (int round = 0; round < 200; round++) {
        bool map[ARENA] = {false};
        ps_ready_ranges_restart(&r);
        for (int i = 0; i < 400; i++) {
            const uint64_t begin = (uint64_t)rand_r(&seed) % ARENA;
            uint64_t end = begin + 1 + (uint64_t)rand_r(&seed) % 6;
            if (end > ARENA) end = ARENA;
            uint32_t complete[PARTS], n;
            const ps_err err = ps_ready_ranges_add(&r, begin, end, complete, &n);
            assert_int_equal(err == PS_OK, mark(map, begin, end));
            assert_int_equal(r.n_complete, full_parts(map));
        }
    }
    ps_ready_ranges_fini(&r);
}
