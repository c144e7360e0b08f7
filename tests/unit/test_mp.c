#include "mp.h"

#include "check.h"

TEST(items_return)
{
    static const int64_t ints[] = {0,      -1,        -32,       -33, -129,
                                   -40000, INT64_MIN, INT64_MAX, 7};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_mp_write_array(&w, 12);
    for (int i = 0; i < 9; i++)
        ps_mp_write_int(&w, ints[i]);
    ps_mp_write_uint(&w, UINT64_MAX);
    ps_mp_write_str(&w, "a string longer than thirty-one bytes, so str8");
    char large[70000];
    memset(large, 'x', sizeof large);
    ps_mp_write_bin(&w, large, sizeof large);
    assert_ok(ps_mp_writer_end(&w));

    ps_mp_reader r;
    ps_mp_reader_init(&r, w.base, w.used);
    assert_int_equal(ps_mp_read_array(&r, 100), 12);
    for (int i = 0; i < 9; i++)
        assert_true(ps_mp_read_int(&r, INT64_MIN, INT64_MAX) == ints[i]);
    assert_true(ps_mp_read_uint(&r, UINT64_MAX) == UINT64_MAX);
    char text[64];
    ps_mp_read_str(&r, text, sizeof text);
    assert_string_equal(text, "a string longer than thirty-one bytes, so str8");
    size_t n;
    const void *back = ps_mp_read_bin(&r, &n, sizeof large);
    assert_int_equal(n, sizeof large);
    assert_memory_equal(back, large, n);
    assert_true(ps_mp_reader_end(&r));
    ps_mp_writer_fini(&w);
}

TEST(fixed_writer_stops_at_its_end)
{
    uint8_t room[4] = {0, 0, 0, 0xee};
    ps_mp_writer w;
    ps_mp_writer_init_fixed(&w, room, 3);
    ps_mp_write_uint(&w, 1000); // three bytes
    assert_ok(ps_mp_writer_end(&w));
    ps_mp_write_uint(&w, 1);
    assert_int_equal(ps_mp_writer_end(&w), PS_ERR_NOMEM);
    assert_int_equal(room[3], 0xee);
}

/* Claims of 4 GiB in a few bytes (array32, str32, bin32). */
TEST(claims_beyond_the_bytes_fail)
{
    static const uint8_t claims[][6] = {{0xdd, 0xff, 0xff, 0xff, 0xff, 0},
                                        {0xdb, 0xff, 0xff, 0xff, 0xff, 'a'},
                                        {0xc6, 0xff, 0xff, 0xff, 0xff, 'a'}};
    ps_mp_reader r;
    ps_mp_reader_init(&r, claims[0], 6);
    assert_int_equal(ps_mp_read_array(&r, SIZE_MAX), 0);
    assert_true(r.failed);
    char text[8];
    ps_mp_reader_init(&r, claims[1], 6);
    ps_mp_read_str(&r, text, sizeof text);
    assert_true(r.failed);
    assert_string_equal(text, "");
    size_t n = 1;
    ps_mp_reader_init(&r, claims[2], 6);
    assert_null(ps_mp_read_bin(&r, &n, SIZE_MAX));
    assert_int_equal(n, 0);
}

TEST(limits_hold)
{
    static const uint8_t bytes[] = {0xcd, 0x01, 0x00, 0xa3, 'a', 0, 'b'};
    ps_mp_reader r;
    ps_mp_reader_init(&r, bytes, 3);
    assert_int_equal(ps_mp_read_uint(&r, 255), 0);
    assert_true(r.failed);
    ps_mp_reader_init(&r, bytes, 3);
    assert_int_equal(ps_mp_read_uint(&r, 256), 256);
    char text[8];
    ps_mp_reader_init(&r, bytes + 3, 4); // a NUL within
    ps_mp_read_str(&r, text, sizeof text);
    assert_true(r.failed);
}
