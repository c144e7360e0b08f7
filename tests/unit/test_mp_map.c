/* Structs as maps: what is written is read, byte by byte as the MessagePack specification
 * has it, and whatever else comes names what is wrong. */

#include "check.h"
#include "mp_map.h"

typedef struct point {
    uint32_t x;
    float weight;
} point;

typedef struct shape {
    uint64_t id;
    bool filled;
    double scale;
    ps_map_bytes label;
    ps_map_list corners, numbers;
} shape;

static const ps_map_field point_fields[] = {PS_MAP_FIELD(point, x, U32, 9),
                                            PS_MAP_FIELD(point, weight, FLOAT, 0)};
static const ps_map point_map = PS_MAP_OF(point_fields, point);
static const ps_map_field shape_fields[] = {
    PS_MAP_FIELD(shape, id, U64, 1000),
    PS_MAP_FIELD(shape, filled, BOOL, 0),
    PS_MAP_FIELD(shape, scale, DOUBLE, 0),
    PS_MAP_FIELD(shape, label, BYTES, 4),
    {"corners", offsetof(shape, corners), PS_MAP_LIST, 0, &point_map},
    PS_MAP_FIELD(shape, numbers, NUMBERS, 0)};
static const ps_map shape_map = PS_MAP_OF(shape_fields, shape);

typedef struct room {
    point corners[2];
    uint64_t numbers[3];
    shape shape;
} room;

static ps_err read_shape(const void *value, size_t bytes, room *out)
{
    *out = (room){0};
    out->shape.corners = (ps_map_list){out->corners, 2};
    out->shape.numbers = (ps_map_list){out->numbers, 3};
    return ps_map_read(value, bytes, &shape_map, "a shape", &out->shape);
}

TEST(a_struct_returns)
{
    point corners[] = {{1, 0.5f}, {9, -2}};
    uint64_t numbers[] = {7, UINT64_MAX, 0};
    const shape s = {.id = 1000,
                     .filled = true,
                     .scale = 0.1,
                     .label = {"abc", 3},
                     .corners = {corners, 2},
                     .numbers = {numbers, 3}};
    ps_mp_writer w;
    room got;
    ps_mp_writer_init(&w);
    ps_map_write(&w, &shape_map, &s);
    assert_ok(ps_mp_writer_end(&w));
    assert_ok(read_shape(w.base, w.used, &got));
    assert_true(got.shape.id == 1000 && got.shape.filled && got.shape.scale == 0.1);
    assert_int_equal(got.shape.label.n, 3);
    assert_memory_equal(got.shape.label.at, "abc", 3);
    assert_int_equal(got.shape.corners.n, 2);
    assert_memory_equal(got.corners, corners, sizeof corners);
    assert_int_equal(got.shape.numbers.n, 3);
    assert_memory_equal(got.numbers, numbers, sizeof numbers);
    for (size_t n = 0; n < w.used; n++)
        assert_int_equal(read_shape(w.base, n, &got), PS_ERR_PROTOCOL);
    ps_mp_writer_fini(&w);
}

/* By hand, from the specification: other writers may order the names as they like. */
TEST(names_decide)
{
    static const uint8_t bytes[] = {0x82, 0xa6, 'w',  'e',  'i', 'g', 'h',
                                    't',  0xcb, 0x3f, 0xe0, 0,   0,   0,
                                    0,    0,    0,    0xa1, 'x', 0x05};
    point p = {0};
    assert_ok(ps_map_read(bytes, sizeof bytes, &point_map, "a point", &p));
    assert_true(p.x == 5 && p.weight == 0.5f);
}

TEST(what_is_wrong_has_its_name)
{
    static const struct {
        const char *bytes, *error;
    } cases[] = {
        {"\x81\xa1x\x05", "a point: weight is missing"},
        {"\x82\xa1x\x05\xa1x\x05", "a point: x comes twice"},
        {"\x82\xa1x\x05\xa1y\x05", "a point: y is unknown"},
        {"\x82\xa1x\x0a\xa1y\x05", "a point: x is out of range, or of another kind"},
        {"\x82\xa1x\xa1y\xa1y\x05", "a point: x is out of range, or of another kind"},
        {"\x82\xa6weight\xcb\x7f\xf0\x01\x01\x01\x01\x01\x01",
         "a point: weight is out of range, or of another kind"},
        {"\x82\xa6weight\xca\x3f\xf0\x01\x01",
         "a point: weight is out of range, or of another kind"},
        {"\x82\xa1x\x05\xa6weight\xcb\x3f\xf0\x01\x01\x01\x01\x01\x01\x01",
         "a point: more than a map"},
        {"\x82\x05\x05\x05\x05", "a point: a name is cut, too long or no text"},
        {"\x92\xa1x\x05", "a point: no map"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        point p;
        assert_int_equal(ps_map_read(cases[i].bytes, strlen(cases[i].bytes), &point_map,
                                     "a point", &p),
                         PS_ERR_PROTOCOL);
        assert_string_equal(ps_err_message(), cases[i].error);
    }
}

/* Lists of more items than there is room for, and an item that is wrong in itself. */
TEST(lists_fit)
{
    point corners[] = {{1, 1}, {2, 1}, {3, 1}};
    uint64_t numbers[4] = {0};
    for (size_t i = 0; i < 3; i++) {
        corners[1].x = i == 2 ? 10 : 2;
        const shape s = {.label = {"", 0},
                         .corners = {corners, i == 0 ? 3 : 2},
                         .numbers = {numbers, i == 1 ? 4 : 3}};
        static const char *const at[] = {"corners", "numbers", "x"};
        char want[80];
        ps_mp_writer w;
        room got;
        ps_mp_writer_init(&w);
        ps_map_write(&w, &shape_map, &s);
        assert_int_equal(read_shape(w.base, w.used, &got), PS_ERR_PROTOCOL);
        snprintf(want, sizeof want, "a shape: %s is out of range, or of another kind",
                 at[i]);
        assert_string_equal(ps_err_message(), want);
        ps_mp_writer_fini(&w);
    }
}
