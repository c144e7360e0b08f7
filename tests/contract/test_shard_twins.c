/* What a shard keeps for its twin, a shard of another server, and a twin that breaks the
 * rules, one by one and at random. */
#include "check.h"
#include "rng.h"
#include "row_walk.h"
#include "rows_body.h"
#include "shard_rows_rig.h"

enum { ROWS_THERE = 6 };

/* Its tables: rows of ids that the job's second shard has, each `value`. */
static ps_row_store *rows_there(float value)
{
    ps_row_store *store;
    assert_ok(ps_row_store_create(&rig_table, 1, ps_row_first_partition(1, 2),
                                  PS_ROW_PARTITIONS, NULL, &store));
    const float row[DIM] = {value, value};
    for (uint64_t id = 0, n = 0; n < ROWS_THERE; id++) {
        const ps_row_view v = {.id = id, .version = 1, .row = row};
        if (!ps_row_table_owns(&store->tables[0], id)) continue;
        assert_ok(ps_row_table_put(&store->tables[0], &v));
        n++;
    }
    return store;
}

static rig_message twin_message(int kind, uint64_t number, size_t bytes)
{
    return rig_message_of(kind, 0, number, 0, bytes);
}

static rig_message twin_point(uint64_t number, uint64_t base, uint64_t point, bool whole)
{
    const ps_row_clock clock = {9, 7};
    rig_message m = twin_message(PS_MSG_TWIN_POINT, number, ps_rows_twin_point_bytes(1));
    const ps_rows_twin_point p = {
        .base = base, .point = point, .step = point, .whole = whole, .clocks = &clock};
    ps_rows_twin_point_write(m.body, &p, 1);
    return m;
}

/* A piece with all rows of the store. */
static rig_message twin_rows(uint64_t number, const ps_row_store *store)
{
    uint64_t bytes;
    ps_row_walk walk = {0};
    rig_message m = twin_message(PS_MSG_TWIN_ROWS, number, 0);
    ps_row_walk_begin(&walk, store, false);
    assert_ok(ps_row_walk_next(&walk, m.body, sizeof m.body, &bytes));
    ps_row_walk_end(&walk);
    m.h.count = m.bytes = bytes;
    return m;
}

static rig_message twin_ask(uint64_t number, uint64_t point, uint64_t first)
{
    rig_message m = twin_message(PS_MSG_TWIN_ASK, number, 16);
    memcpy(m.body, &point, 8);
    memcpy(m.body + 8, &first, 8);
    return m;
}

static ps_err twin_in(const rig_message *m)
{
    return rig_hand_in_from(m, rig.other_id, sizeof rig.other_id);
}

/* The next answer's body, which f holds. number 0: there is none. */
static const void *other_hears(ps_wire_frames *f, uint64_t number, uint64_t *bytes)
{
    bool got;
    ps_wire_header h;
    ps_wire_frames_open(f);
    assert_ok(ps_wire_recv(rig.other, false, f, &got));
    assert_int_equal(got, number > 0);
    if (!got) return NULL;
    assert_ok(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), &h));
    assert_int_equal(h.kind, PS_MSG_TWIN);
    assert_int_equal(h.rows.number, number);
    *bytes = zmq_msg_size(&f->payload);
    return zmq_msg_data(&f->payload);
}

static void expect_twin(rig_message m, uint64_t number, uint64_t value)
{
    ps_wire_frames f;
    uint64_t bytes, is = 0;
    assert_ok(twin_in(&m));
    const void *body = other_hears(&f, number, &bytes);
    if (number > 0) assert_ok(ps_rows_twin_number_read(body, bytes, PS_TWIN_WANTS, &is));
    if (number > 0) assert_int_equal(is, value);
    ps_wire_frames_close(&f);
}

/* What the rows at a point are that come back: all `value`. */
static void expect_back(uint64_t number, uint64_t point, float value)
{
    ps_wire_frames f;
    uint64_t bytes;
    ps_rows_twin_page page;
    ps_row_store *back, *there = rows_there(value);
    assert_ok(ps_row_store_create_like(there, there->tables[0].first_partition,
                                       PS_ROW_PARTITIONS, &back));
    for (int k = 0; k < 2; k++) {
        const rig_message m = twin_ask(number + (uint64_t)k, point, k == 0);
        assert_ok(twin_in(&m));
        const void *body = other_hears(&f, number + (uint64_t)k, &bytes);
        assert_ok(ps_rows_twin_page_read(body, bytes, 1, &page));
        assert_int_equal(page.has, k ? PS_TWIN_HAS_ALL : PS_TWIN_HAS_MORE);
        assert_int_equal(page.step, point);
        assert_int_equal(page.clocks[0].made, 9);
        assert_int_equal(page.clocks[0].ahead, 7);
        if (page.bytes) assert_ok(ps_row_store_put(back, page.piece, page.bytes));
        ps_wire_frames_close(&f);
    }
    const rig_message a = twin_rows(1, back), b = twin_rows(1, there);
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.body, b.body, a.bytes);
    ps_row_store_destroy(&back);
    ps_row_store_destroy(&there);
}

/* Messages that come twice, too early, or not at all over one connection. */
TEST(keeps_the_rows_of_its_twin)
{
    ps_row_store *there = rows_there(0.5f), *later = rows_there(0.25f);
    rig_open_of(NULL, true);
    expect_twin(twin_point(1, 0, 7, false), 1, PS_TWIN_WANTS_ALL);
    expect_twin(twin_rows(3, there), 0, 0); // the one before it is missing
    expect_twin(twin_rows(2, there), 2, 0);
    expect_twin(twin_rows(2, there), 2, 0);
    expect_twin(twin_point(1, 0, 7, false), 2, 0); // it was answered, as all before
    expect_twin(twin_point(3, 0, 7, true), 3, PS_TWIN_WANTS_NOTHING);
    expect_twin(twin_point(3, 0, 7, true), 3, PS_TWIN_WANTS_NOTHING);
    expect_back(4, 7, 0.5f);
    // what is added to it is undone where it does not come to its end
    expect_twin(twin_point(6, 7, 8, false), 6, PS_TWIN_WANTS_CHANGES);
    expect_twin(twin_rows(7, later), 7, 0);
    expect_back(8, 7, 0.5f);
    expect_twin(twin_point(10, 7, 9, false), 10, PS_TWIN_WANTS_CHANGES);
    expect_twin(twin_rows(11, later), 11, 0);
    expect_twin(twin_point(12, 7, 9, true), 12, PS_TWIN_WANTS_NOTHING);
    expect_back(13, 9, 0.25f);
    expect_twin(twin_point(15, 0, 9, false), 15, PS_TWIN_WANTS_NOTHING);
    expect_back(16, 7, 0.5f);
    // it has gone back; what came in part is no part of the next one
    expect_twin(twin_point(18, 7, 10, false), 18, PS_TWIN_WANTS_CHANGES);
    expect_twin(twin_rows(19, later), 19, 0);
    expect_twin(twin_point(20, 7, 11, false), 20, PS_TWIN_WANTS_CHANGES);
    expect_twin(twin_point(21, 7, 11, true), 21, PS_TWIN_WANTS_NOTHING);
    expect_back(22, 11, 0.5f);
    expect_twin(twin_point(24, 9, 12, false), 24, PS_TWIN_WANTS_ALL);
    rig_close();
    ps_row_store_destroy(&there);
    ps_row_store_destroy(&later);
}

TEST(keeps_them_until_the_process_has_joined_again)
{
    ps_rows_keeper *keeper;
    uint64_t points[PS_ROW_MARKS];
    ps_row_store *there = rows_there(0.5f);
    assert_ok(ps_rows_keeper_create(&keeper));
    rig_open_of(keeper, true);
    expect_twin(twin_point(1, 0, 7, false), 1, PS_TWIN_WANTS_ALL);
    expect_twin(twin_rows(2, there), 2, 0);
    expect_twin(twin_point(3, 0, 7, true), 3, PS_TWIN_WANTS_NOTHING);
    expect_twin(twin_point(4, 7, 8, false), 4, PS_TWIN_WANTS_CHANGES); // and no more
    rig_close();
    assert_int_equal(ps_rows_keeper_points(keeper, OTHER, 1, points), 1);
    assert_int_equal(points[0], 7);
    rig_open_of(keeper, true);
    expect_back(1, 7, 0.5f);
    expect_twin(twin_point(3, 0, 9, false), 3, PS_TWIN_WANTS_ALL);
    rig_close();
    assert_int_equal(ps_rows_keeper_points(keeper, OTHER, 1, points), 0);
    ps_rows_keeper_destroy(&keeper);
    ps_row_store_destroy(&there);
}

static void twin_refused(rig_message m, const char *words)
{
    assert_error(twin_in(&m), PS_ERR_PROTOCOL, words);
    assert_non_null(strstr(ps_err_message(), "shard 1 sent its twin"));
}

TEST(a_twin_that_breaks_a_rule_has_a_name)
{
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_row_store *there = rows_there(0.5f);
    const rig_message rows = twin_rows(1, there);
    rig_open_of(NULL, true);
    ps_wire_id(OTHER, &rig.secrets[0], id); // a worker's secret is not a server's
    assert_ok(rig_hand_in_from(&rows, id, sizeof id));
    assert_int_equal(ps_counter_get(&rig.shard.strangers), 1);
    ps_wire_id(0, &rig.twins, id);
    assert_error(rig_hand_in_from(&rows, id, sizeof id), PS_ERR_PROTOCOL,
                 "shard 0 sent its twin: TWIN_ROWS, but its twin is another shard");
    twin_refused(rig_pull(0, 1, 0, rig_ids), "PULL_ROWS, which servers do not send");
    rig_message m = twin_point(1, 0, 7, false);
    m.h.nonce++;
    twin_refused(m, "of another job");
    m = twin_point(1, 0, 7, false);
    m.h.count--;
    twin_refused(m, "a TWIN_POINT of 2 frames, with 56 bytes");
    twin_refused(twin_point(0, 0, 7, false), "without a number");
    twin_refused(twin_rows(1, there), "rows of a point that has not begun");
    twin_refused(twin_point(2, 0, 7, true), "the end of a point that has not begun");
    expect_twin(twin_point(3, 0, 7, false), 3, PS_TWIN_WANTS_ALL);
    m = twin_rows(4, there);
    m.body[8] = 0; // another id
    for (uint64_t x = 0; ps_row_table_owns(&there->tables[0], x); x++)
        m.body[8] = (uint8_t)(x + 1);
    twin_refused(m, "which another shard has");
    twin_refused(twin_ask(5, 0, 2), "TWIN_ASK of 16 bytes that is malformed");
    rig_close();
    ps_row_store_destroy(&there);
    rig_open(); // without rows.buddy
    twin_refused(twin_point(1, 0, 7, false), "its twin is another shard");
    rig_close();
}

TEST(random_messages_of_a_twin)
{
    ps_mt19937 rng;
    ps_row_store *there = rows_there(0.5f);
    ps_mt19937_seed(&rng, 11);
    rig_open_of(NULL, true);
    for (uint64_t i = 0, number = 1; i < 5000; i++) {
        const uint32_t draw = ps_mt19937_u32(&rng), point = 1 + (draw >> 3 & 1);
        rig_message m = (draw & 3) == 0 ? twin_rows(number, there)
                        : (draw & 3) == 1
                            ? twin_ask(number, point, draw >> 2 & 1)
                            : twin_point(number, 3 - point, point, draw & 1);
        if ((draw & 48) == 48)
            m.body[(draw >> 6) % m.bytes] ^= (uint8_t)(1u << (draw >> 20) % 8);
        if ((draw >> 24) == 0) m.h.count = m.bytes = (draw >> 13) % sizeof m.body;
        const ps_err err = twin_in(&m);
        if (err != PS_OK && (err != PS_ERR_PROTOCOL ||
                             !strstr(ps_err_message(), "shard 1 sent its twin")))
            fail_msg("message %d: %s", (int)i, ps_err_message());
        number++;
    }
    rig_close();
    ps_row_store_destroy(&there);
}
