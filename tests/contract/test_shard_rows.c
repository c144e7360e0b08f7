/* Rows of a shard, frames handed in without a network: what two workers are answered,
 * what is sent again, points that it goes back to, and a worker that breaks the rules,
 * one by one and at random. */
#include <math.h>

#include "check.h"
#include "rng.h"
#include "row_codec.h"
#include "rows_body.h"
#include "shard_rows_rig.h"

/* The worker's next ROWS, of a message. The caller closes *f. */
static ps_wire_header next_rows(uint32_t rank, uint64_t number, ps_wire_frames *f)
{
    ps_wire_header h = {0};
    ps_wire_frames_open(f);
    for (bool got = true; got && h.kind != PS_MSG_ROWS;) {
        assert_ok(ps_wire_recv(rig.worker[rank], false, f, &got));
        if (!got) fail_msg("no answer to message %d", (int)number);
        assert_ok(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), &h));
    }
    assert_int_equal(h.rows.number, number);
    return h;
}

/* It has n numbers, all `value`. */
static void expect_rows(uint32_t rank, uint64_t number, size_t n, float value)
{
    ps_wire_frames f;
    (void)next_rows(rank, number, &f);
    assert_int_equal(zmq_msg_size(&f.payload), n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        float at;
        memcpy(&at, (char *)zmq_msg_data(&f.payload) + i * sizeof at, sizeof at);
        assert_true(at == value);
    }
    ps_wire_frames_close(&f);
}

/* An answer to what was asked ahead: its bits, and its rows in the order in which they
 * come. */
typedef struct ahead_answer {
    uint64_t bits;
    float rows[IDS * DIM];
} ahead_answer;

/* It has the bytes of *all from `at` to `end`. */
static void expect_part(uint32_t rank, uint64_t number, const ahead_answer *all,
                        size_t at, size_t end)
{
    ps_wire_frames f;
    const ps_wire_header h = next_rows(rank, number, &f);
    assert_int_equal(h.count, sizeof *all);
    assert_int_equal(h.rows.at, at);
    assert_int_equal(zmq_msg_size(&f.payload), end - at);
    assert_memory_equal(zmq_msg_data(&f.payload), (const char *)all + at, end - at);
    ps_wire_frames_close(&f);
}

static void expect_no_rows(uint32_t rank)
{
    ps_wire_frames f;
    ps_wire_header h;
    bool got = true;
    ps_wire_frames_open(&f);
    while (got) {
        assert_ok(ps_wire_recv(rig.worker[rank], false, &f, &got));
        if (!got) break;
        assert_ok(ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h));
        assert_int_not_equal(h.kind, PS_MSG_ROWS);
    }
    ps_wire_frames_close(&f);
}

/* By message 1, in step 0. */
static void both_pull_first(void)
{
    for (uint32_t r = 0; r < WORKERS; r++) {
        rig_send(rig_pull(r, 1, 0, rig_ids));
        expect_rows(r, 1, IDS * DIM, 1);
    }
}

/* Worker 0 goes ahead: its second pull waits until worker 1 has pushed. */
TEST(a_pull_waits_for_the_step_before_it)
{
    rig_open();
    both_pull_first();
    rig_send(rig_push(0, 2, 0, 0.25f));
    rig_send(rig_pull(0, 3, 1, rig_ids));
    expect_no_rows(0);
    rig_send(rig_push(1, 2, 0, 0.75f));
    expect_rows(1, 2, 0, 0);
    expect_rows(0, 2, 0, 0);
    expect_rows(0, 3, IDS * DIM, 0.5f); // 1 - 0.5 (0.25 + 0.75)
    rig_close();
}

/* After a lost connection all that is unanswered comes again. */
TEST(what_comes_again_counts_once)
{
    rig_open();
    for (uint32_t r = 0; r < WORKERS; r++)
        for (int again = 0; again < 2; again++) {
            rig_send(rig_pull(r, 1, 0, rig_ids));
            expect_rows(r, 1, IDS * DIM, 1);
        }
    for (int again = 0; again < 2; again++) {
        rig_send(rig_push(0, 2, 0, 0.25f));
        rig_send(rig_pull(0, 3, 1, rig_ids));
    }
    expect_no_rows(0);
    rig_send(rig_push(1, 2, 0, 0.75f));
    expect_rows(0, 2, 0, 0);
    expect_rows(0, 3, IDS * DIM, 0.5f);
    rig_send(rig_push(0, 2, 0, 0.25f));
    expect_rows(0, 2, 0, 0);
    expect_no_rows(0);
    rig_close();
}

/* Nothing that is asked for ahead changes: all of it comes before the step is applied,
 * and nothing then. */
TEST(rows_of_the_next_step_that_stay)
{
    static const uint64_t next[IDS] = {6, 8, 10};
    static const ahead_answer answer = {7, {1, 1, 1, 1, 1, 1}};
    rig_open();
    both_pull_first();
    rig_send(rig_push(1, 2, 0, 0.25f));
    rig_send(rig_pull_ahead(0, 2, 1, next));
    expect_part(0, 2, &answer, 0, sizeof answer);
    rig_send(rig_push(0, 3, 0, 0.75f));
    expect_rows(0, 3, 0, 0);
    expect_no_rows(0);
    rig_close();
}

/* As `m`, with ids, rows and gradients in the arena of worker 1. */
static rig_message shared_pull(uint64_t number, uint64_t step)
{
    const uint32_t count = IDS;
    const ps_rows_offsets place = {64, 128, 256};
    const size_t head = ps_rows_pull_head(1);
    rig_message m =
        rig_message_of(PS_MSG_PULL_ROWS, 1, number, step, head + sizeof place);
    ps_rows_pull_write(m.body, PS_ROWS_TRAINS | PS_ROWS_SHARED, &count, 1);
    memcpy(m.body + head, &place, sizeof place);
    memcpy((char *)rig.arena.base + place.ids, rig_ids, sizeof rig_ids);
    return m;
}

static void expect_in_arena(size_t at, float value)
{
    for (size_t i = 0; i < IDS * DIM; i++) {
        float got;
        memcpy(&got, (char *)rig.arena.base + at + i * sizeof got, sizeof got);
        assert_true(got == value);
    }
}

/* Worker 1 shares memory, worker 0 does not. What comes again is answered without a look
 * at the arena, which holds something else by then. */
TEST(rows_in_an_arena)
{
    uint64_t number = 0;
    rig_open();
    for (uint64_t step = 0; step < 3; step++) {
        const float row = 1 - 0.5f * (float)step;
        const bool two = step == 1; // the second pull has its gradient in the message
        rig_send(rig_pull(0, 1 + 2 * step, step, rig_ids));
        expect_rows(0, 1 + 2 * step, IDS * DIM, row);
        number++;
        for (int again = 0; again < 2; again++) {
            rig_message m = shared_pull(number, step);
            if (again) memset((char *)rig.arena.base + 64, 255, sizeof rig_ids);
            rig_send(m);
            expect_rows(1, number, 0, 0);
            expect_in_arena(128, row);
        }
        for (size_t i = 0; i < IDS * DIM; i++)
            ((float *)rig.arena.base)[256 / sizeof(float) + i] = two ? 0.5f : 0.75f;
        if (two) rig_send(rig_pull(1, ++number, step, rig_ids));
        if (two) expect_rows(1, number, IDS * DIM, row);
        rig_send(rig_push_of(1, ++number, step, 1 + two, two ? IDS * DIM : 0, 0.25f));
        rig_send(rig_push(0, 2 + 2 * step, step, 0.25f));
        expect_rows(0, 2 + 2 * step, 0, 0);
        expect_rows(1, number, 0, 0);
    }
    rig_close();
}

/* The first piece was lost with a connection, over which the second one did not go. */
TEST(a_piece_after_a_lost_one_is_dropped)
{
    rig_open();
    rig_message m = rig_pull(1, 1, 0, rig_ids);
    m.h.rows.at = PS_WIRE_PIECE_BYTES;
    m.h.count += PS_WIRE_PIECE_BYTES;
    rig_send(m);
    expect_no_rows(1);
    rig_send(rig_pull(1, 1, 0, rig_ids));
    expect_rows(1, 1, IDS * DIM, 1);
    rig_close();
}

/* It was written while the connection was down, and the one before was lost with that. */
TEST(a_message_after_a_lost_one_comes_again)
{
    rig_open();
    rig_send(rig_pull(1, 2, 0, rig_ids));
    expect_no_rows(1);
    for (uint64_t number = 1; number <= 2; number++) {
        rig_send(rig_pull(1, number, 0, rig_ids));
        expect_rows(1, number, IDS * DIM, 1);
    }
    rig_close();
}

/* ---- points ---- */

static rig_message keep(uint64_t number, uint64_t step, uint64_t point)
{
    const ps_rows_keep what = {.point = point};
    rig_message m =
        rig_message_of(PS_MSG_KEEP_ROWS, 0, number, step, ps_rows_keep_bytes(&what));
    ps_rows_keep_write(m.body, &what);
    return m;
}

static rig_message go_back_of(uint32_t rank, uint64_t number, uint64_t step,
                              uint64_t point)
{
    char manifest[160];
    snprintf(
        manifest, sizeof manifest,
        "{\"rows\":1,\"point\":%d,\"step\":1,\"tables\":[{\"name\":\"user\",\"steps\":1}]"
        ",\"files\":[]}",
        (int)point);
    const ps_rows_return what = {point, "/", manifest, 1, strlen(manifest)};
    rig_message m = rig_message_of(PS_MSG_RETURN_ROWS, rank, number, step,
                                   ps_rows_return_bytes(&what));
    ps_rows_return_write(m.body, &what);
    return m;
}

static rig_message go_back(uint64_t number, uint64_t step, uint64_t point)
{
    return go_back_of(0, number, step, point);
}

/* An answer that begins with this number. Of KEEP_ROWS 0: no files; of RETURN_ROWS 1: the
 * shard has gone back. */
static void expect_number_of(uint32_t rank, uint64_t number, uint64_t wanted)
{
    ps_wire_frames f;
    ps_wire_header h = {0};
    ps_wire_frames_open(&f);
    for (bool got = true; got && h.kind != PS_MSG_ROWS;) {
        assert_ok(ps_wire_recv(rig.worker[rank], false, &f, &got));
        assert_true(got);
        assert_ok(ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h));
    }
    uint64_t found;
    assert_int_equal(h.rows.number, number);
    assert_in_range(zmq_msg_size(&f.payload), sizeof found, 64);
    memcpy(&found, zmq_msg_data(&f.payload), sizeof found);
    assert_int_equal(found, wanted);
    ps_wire_frames_close(&f);
}

static void expect_number(uint64_t number, uint64_t wanted)
{
    expect_number_of(0, number, wanted);
}

static void both_step(uint64_t number, uint64_t step, float before)
{
    for (uint32_t r = 0; r < WORKERS; r++) {
        rig_send(
            rig_pull(r, number + 1 - r, step, rig_ids)); // worker 0 has sent one more
        expect_rows(r, number + 1 - r, IDS * DIM, before);
    }
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(rig_push(r, number + 2 - r, step, 0.5f));
    for (uint32_t r = 0; r < WORKERS; r++)
        expect_rows(r, number + 2 - r, 0, 0);
}

/* In the job, which has a lookup under way, and in the next one of the process. */
TEST(goes_back_to_a_point)
{
    ps_rows_keeper *keeper;
    uint64_t points[PS_ROW_MARKS];
    assert_ok(ps_rows_keeper_create(&keeper));
    rig_open();
    rig.shard.o.keeper = keeper;
    both_pull_first();
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(rig_push(r, 2, 0, 0.5f));
    for (uint32_t r = 0; r < WORKERS; r++)
        expect_rows(r, 2, 0, 0);
    for (int again = 0; again < 2; again++) {
        rig_send(keep(3, 1, 77));
        expect_number(3, 0);
    }
    both_step(3, 1, 0.5f);
    rig_send(rig_pull(1, 5, 2, rig_ids));
    expect_rows(1, 5, IDS * DIM, 0);
    rig_send(rig_pull_ahead(1, 6, 3, rig_ids));
    rig_send(go_back(6, 2, 5));
    expect_number(6, 0);
    for (int again = 0; again < 2; again++) {
        rig_send(go_back(7, 2, 77));
        expect_number(7, 1);
    }
    expect_part(1, 6, &(ahead_answer){0, {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f}}, 0,
                sizeof(ahead_answer));
    rig_send(rig_pull(0, 8, 1, rig_ids));
    expect_rows(0, 8, IDS * DIM, 0.5f);
    rig_close();
    // twice, since a job may fail before its workers have chosen
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ps_rows_keeper_points(keeper, 0, 1, points), 1);
        assert_int_equal(points[0], 77);
        assert_int_equal(ps_rows_keeper_points(keeper, 0, 2, points), 0);
        rig_open_of(keeper, false);
        if (i == 1) {
            rig_send(go_back(1, 0, 77));
            expect_number(1, 1);
            rig_send(rig_pull(0, 2, 1, rig_ids));
            expect_rows(0, 2, IDS * DIM, 0.5f);
        }
        rig_close();
    }
    // a job that begins anew gives it up
    rig_open_of(keeper, false);
    rig_send(rig_pull(0, 1, 0, rig_ids));
    expect_rows(0, 1, IDS * DIM, 1);
    rig_send(go_back(2, 0, 77));
    expect_number(2, 0);
    rig_close();
    assert_int_equal(ps_rows_keeper_points(keeper, 0, 1, points), 0);
    ps_rows_keeper_destroy(&keeper);
}

/* Worker 0 has pushed a step that worker 1 has not; and what worker 1 has asked for ahead
 * comes after worker 0 wants to go back. */
TEST(all_go_back_together)
{
    rig_open();
    both_pull_first();
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(rig_push(r, 2, 0, 0.5f));
    for (uint32_t r = 0; r < WORKERS; r++)
        expect_rows(r, 2, 0, 0);
    rig_send(keep(3, 1, 77));
    expect_number(3, 0);
    both_step(3, 1, 0.5f);
    for (uint32_t r = 0; r < WORKERS; r++) {
        rig_send(rig_pull(r, 6 - r, 2, rig_ids));
        expect_rows(r, 6 - r, IDS * DIM, 0);
    }
    rig_send(rig_push(0, 7, 2, 0.5f));
    rig_send(go_back_of(0, 8, PS_ROWS_ALL_RETURN, 77));
    rig_send(rig_pull_ahead(1, 6, 3, rig_ids));
    for (uint32_t r = 0; r < WORKERS; r++)
        expect_no_rows(r);
    rig_send(go_back_of(1, 7, PS_ROWS_ALL_RETURN, 5)); // worker 0's counts
    expect_rows(0, 7, 0, 0);
    expect_part(1, 6, &(ahead_answer){0, {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f}}, 0,
                sizeof(ahead_answer));
    for (uint32_t r = 0; r < WORKERS; r++)
        expect_number_of(r, 8 - r, 1);
    rig_send(rig_pull(1, 8, 1, rig_ids));
    expect_rows(1, 8, IDS * DIM, 0.5f);
    rig_send(rig_push(1, 9, 1, 0.5f));
    rig_send(go_back_of(0, 8, PS_ROWS_ALL_RETURN, 77)); // comes again
    expect_number(8, 1);
    rig_send(rig_pull(0, 9, 1, rig_ids));
    expect_rows(0, 9, IDS * DIM, 0.5f);
    rig_send(rig_push(0, 10, 1, 0.5f));
    for (uint32_t r = 0; r < WORKERS; r++)
        expect_rows(r, 10 - r, 0, 0);
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(go_back_of(r, 11 - r, PS_ROWS_ALL_RETURN, 5)); // there is none
    for (uint32_t r = 0; r < WORKERS; r++)
        expect_number_of(r, 11 - r, 0);
    both_step(11, 2, 0);
    rig_close();
}

/* ---- a worker that breaks the rules ---- */

static void refused(rig_message m, const char *why)
{
    assert_int_equal(rig_hand_in(&m), PS_ERR_PROTOCOL);
    if (!strstr(ps_err_message(), why) ||
        strstr(ps_err_message(), " sent") != ps_err_message() + strlen("worker 1"))
        fail_msg("\"%s\" does not say \"%s\"", ps_err_message(), why);
}

#define REFUSED(why, make, change)                                                       \
    do {                                                                                 \
        rig_message m = make;                                                            \
        change;                                                                          \
        refused(m, why);                                                                 \
    } while (0)

static void set_u32(rig_message *m, size_t at, uint32_t value)
{
    memcpy(m->body + at, &value, sizeof value);
}

/* Worker 1's gradients end the step before the one that worker 0 lies about. */
TEST(a_message_that_waited_is_its_senders)
{
    rig_open();
    both_pull_first();
    rig_send(rig_push(0, 2, 0, 0.25f));
    rig_send(rig_push(0, 3, 1, 0.25f)); // without a pull
    const rig_message m = rig_push(1, 2, 0, 0.25f);
    assert_int_equal(rig_hand_in(&m), PS_ERR_PROTOCOL);
    assert_string_equal(ps_err_message(),
                        "worker 0 sent: gradients of 1 requests for rows; it made 0 in "
                        "step 1");
    rig_close();
}

/* Worker 1 asks ahead, in its arena, worker 0 by messages. A row that nobody has pulled
 * in the present step comes at once, the others when it is applied. */
TEST(rows_of_the_next_step)
{
    static const uint64_t next[IDS] = {6, UINT64_MAX, 8};
    static const ahead_answer answer = {5, {1, 1, 1, 1, 0.5f, 0.5f}},
                              again = {0, {1, 1, 0.5f, 0.5f, 1, 1}};
    const size_t first = offsetof(ahead_answer, rows[2 * DIM]);
    rig_open();
    both_pull_first();
    rig_message ahead = shared_pull(2, 1);
    set_u32(&ahead, 0, PS_ROWS_TRAINS | PS_ROWS_SHARED | PS_ROWS_AHEAD);
    memcpy((char *)rig.arena.base + 64, next, sizeof next);
    rig_send(ahead);
    rig_send(ahead); // again: it waits
    expect_no_rows(1);
    assert_true(((float *)rig.arena.base)[128 / sizeof(float)] == 0); // worker 0 may pull
    for (int connection = 0; connection < 2; connection++) {
        ps_shard_rows_connect(&rig.shard, 0);
        for (int twice = 0; twice < 2; twice++)
            rig_send(rig_pull_ahead(0, 2, 1, next));
        expect_part(0, 2, &answer, 0, first);
        expect_no_rows(0);
    }
    const float *rows = (const float *)rig.arena.base + 128 / sizeof(float);
    for (size_t i = 0; i < IDS * DIM; i++)
        assert_true(rows[i] == (i / DIM == 1 ? 0 : 1)); // of UINT64_MAX later
    rig_send(rig_push(0, 3, 0, 0.25f));
    rig_send(rig_push(1, 3, 0, 0.75f));
    for (size_t i = 0; i < IDS * DIM; i++)
        assert_true(rows[i] == (i / DIM == 1 ? 0.5f : 1));
    expect_rows(1, 3, 0, 0);
    expect_rows(1, 2, 0, 0);
    expect_rows(0, 3, 0, 0);
    expect_part(0, 2, &answer, first, sizeof answer);
    ps_row_figure_list figures = {0};
    assert_ok(ps_row_figures_add(&rig.shard.tables, &figures));
    assert_int_equal(figures.tables[0].of[PS_ROW_FIGURE_AHEAD], WORKERS * IDS);
    assert_int_equal(figures.tables[0].of[PS_ROW_FIGURE_READY], WORKERS * (IDS - 1));
    assert_int_equal(figures.tables[0].of[PS_ROW_FIGURE_STEPPED], IDS);
    free(figures.tables);
    rig_send(rig_pull_ahead(0, 2, 1, next)); // again: the rows once more
    expect_part(0, 2, &again, 0, sizeof again);
    rig_send(rig_push_of(1, 4, 1, 1, 0, 0));
    REFUSED("after that step's gradients", rig_pull(1, 5, 1, rig_ids), (void)m);
    rig_close();
    rig_open();
    rig_send(rig_pull_ahead(1, 1, 1, rig_ids));
    REFUSED("after one for the next step's", rig_pull(1, 2, 0, rig_ids), (void)m);
    rig_message load = rig_message_of(PS_MSG_LOAD_ROWS, 1, 3, 0, 40);
    set_u32(&load, 4, DIM);
    rig_send(load);
    expect_rows(1, 3, 0, 0);
    REFUSED("does not ask ahead", rig_pull(1, 4, 1, rig_ids), (void)m);
    REFUSED("does not ask ahead", rig_pull(1, 5, 1, rig_ids),
            set_u32(&m, 0, PS_ROWS_AHEAD));
    rig_close();
}

TEST(a_worker_that_breaks_a_rule_is_named)
{
    rig_open();
    const rig_message good = rig_pull(1, 1, 0, rig_ids);
    REFUSED("0 of 40", good, m.bytes -= 8);
    REFUSED("0 of 32", good, m.h.count -= 8);
    REFUSED("8 of 40", good, m.h.rows.at = 8);
    REFUSED("at 0 of 40", good, m.h.rows.number = 0);
    REFUSED("malformed", good, set_u32(&m, 0, 8));
    rig_close();
    rig_open();
    REFUSED("malformed", good, set_u32(&m, 4, 1));
    rig_close();
    rig_open();
    REFUSED("malformed", rig_pull(1, 1, 0, rig_ids), set_u32(&m, 8, IDS + 1));
    REFUSED("partition 0 of table 9",
            rig_message_of(PS_MSG_SAVE_ROWS, 1, 2, 0, sizeof(ps_rows_save)),
            set_u32(&m, 0, 9));
    REFUSED("row 9 of partition 0",
            rig_message_of(PS_MSG_SAVE_ROWS, 1, 2, 0, sizeof(ps_rows_save)),
            set_u32(&m, 8, 9));
    REFUSED("malformed", rig_message_of(PS_MSG_LOAD_ROWS, 1, 3, 0, 40),
            set_u32(&m, 16, UINT32_MAX));
    REFUSED("malformed", rig_message_of(PS_MSG_LOAD_ROWS, 1, 4, 0, 40),
            set_u32(&m, 28, 1)); // a clock that no version can have
    REFUSED("rows of 9 numbers", rig_message_of(PS_MSG_LOAD_ROWS, 1, 5, 0, 40),
            set_u32(&m, 4, 9));
    REFUSED("a point without a name", keep(6, 0, 0), m.h.rank = 1);
    REFUSED("files of kind 4", keep(7, 0, 1), m.h.rank = 1; m.body[8] = 4);
    REFUSED("none from /", rig_message_of(PS_MSG_KEEP_ROWS, 1, 8, 0, 20),
            m.body[16] = 'a');
    REFUSED("manifest of rows is damaged", go_back(9, 0, 1), m.h.rank = 1;
            m.body[20] = 1);
    REFUSED("gradients of 1 requests for rows; it made 0", rig_push(1, 10, 0, 1),
            (void)m);
    // more ids than an arena has room for: no memory is taken for them
    REFUSED("malformed", shared_pull(11, 0), set_u32(&m, 8, UINT32_MAX));
    REFUSED("3 rows of table user outside of its arena", shared_pull(12, 0),
            set_u32(&m, m.bytes - sizeof(uint32_t), 1));
    rig_send(rig_pull(1, 13, 0, rig_ids));
    REFUSED("24 bytes of gradients of rows; 0 were", rig_push(1, 14, 0, 1),
            m.body[ps_rows_push_head(1, 0)] = 0);
    rig_send(rig_push(1, 15, 0, 1));
    REFUSED("after that step's gradients", rig_pull(1, 16, 0, rig_ids), (void)m);
    REFUSED("at 0 of 1099511627776", rig_pull(1, 17, 0, rig_ids),
            m.h.count = UINT64_C(1) << 40;
            m.bytes = 40);
    rig_close();
}

/* A PUSH_ROWS of int8, all rows `value` and exact. */
static rig_message coded_push(uint32_t rank, uint64_t number, uint64_t step, float value)
{
    const size_t head = ps_rows_push_head(1, 1);
    rig_message m = rig_push_of(rank, number, step, 1, 0, 0);
    float rows[IDS * DIM];
    for (int i = 0; i < IDS * DIM; i++)
        rows[i] = value;
    ps_row_codec_encode(&rig_table, IDS, rig_ids, 0, rows);
    m.bytes = m.h.count = head + ps_row_codec_size(&rig_table, IDS) * sizeof *rows;
    memcpy(m.body + head, rows, m.bytes - head);
    return m;
}

/* By int8 three rows of two numbers are 18 bytes, in whole float32. Worker 1 shares
 * memory, where float32 stay float32, of the same values; in its second step it does not,
 * too. */
TEST(rows_by_a_codec)
{
    enum { CODED = 5, ROW = 6 };
    rig_table.codec = PS_CODEC_INT8;
    rig_open();
    rig_send(rig_pull(0, 1, 0, rig_ids));
    rig_send(shared_pull(1, 0));
    expect_rows(1, 1, 0, 0);
    ps_wire_frames f;
    ps_wire_header h = {0};
    ps_wire_frames_open(&f);
    float rows[IDS * DIM];
    for (bool got = true; got && h.kind != PS_MSG_ROWS;) {
        assert_ok(ps_wire_recv(rig.worker[0], false, &f, &got));
        assert_ok(ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h));
    }
    assert_int_equal(zmq_msg_size(&f.payload), CODED * sizeof(float));
    assert_ok(
        ps_row_codec_decode(&rig_table, IDS, rig_ids, zmq_msg_data(&f.payload), rows));
    for (int i = 0; i < IDS * DIM; i++)
        assert_true(fabsf(rows[i] - 1) < 1e-6f);
    expect_in_arena(128, rows[0]);
    ps_wire_frames_close(&f);
    // a length of another codec; scales that no worker encodes; the step counts once
    const size_t head = ps_rows_push_head(1, 1);
    float scale = NAN;
    rig_message bad = coded_push(0, 2, 0, 0.5f);
    memcpy(bad.body + head + ROW, &scale, sizeof scale);
    assert_error(rig_hand_in(&bad), PS_ERR_NUMERIC,
                 "worker 0 sent: table 'user': the row or");
    rig_send(shared_pull(2, 0)); // of two lookups, so that the gradients are put together
    rig_send(rig_push_of(1, 3, 0, 2, 0, 0));
    rig_close();
    rig_open();
    rig_send(rig_pull(1, 1, 0, rig_ids));
    REFUSED("24 bytes of gradients of rows; 20 were", rig_push(1, 2, 0, 1), (void)m);
    REFUSED("id -1, with a scale that int8 has not", coded_push(1, 3, 0, 0.5f),
            m.body[head + ROW + 3] = 0xBF);
    rig_send(coded_push(1, 4, 0, 0.5f));
    rig_send(rig_pull(0, 1, 0, rig_ids));
    rig_send(coded_push(0, 2, 0, 0.5f));
    rig_send(shared_pull(5, 1));
    for (int i = 0; i < IDS * DIM; i++) // 1 - 0.5 (0.5 + 0.5)
        assert_true(fabsf(((float *)rig.arena.base)[128 / sizeof(float) + (size_t)i] -
                          0.5f) < 1e-6f);
    rig_close();
    rig_table.codec = PS_CODEC_NONE;
}

/* The rows came with the clock of another job: the error counts this one's steps. */
TEST(a_gradient_that_is_not_finite)
{
    const ps_rows_load load = {.width = DIM, .steps = 900, .clock = 1000, .begins = 1};
    rig_open();
    rig_message m = rig_message_of(PS_MSG_LOAD_ROWS, 0, 1, 0, ps_rows_load_bytes(0, DIM));
    ps_rows_load_write(m.body, &load);
    rig_send(m);
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(rig_pull(r, 2 - r, 0, rig_ids));
    rig_send(rig_push(0, 3, 0, INFINITY));
    m = rig_push(1, 2, 0, 1);
    assert_error(rig_hand_in(&m), PS_ERR_NUMERIC,
                 "in step 0 of the rows: table 'user': the gradient of id ");
    rig_close();
}

/* Whatever worker 1 sends, the shard neither crashes nor reads beyond a message; what it
 * refuses names worker 1. */
TEST(random_messages)
{
    ps_mt19937 rng;
    int n_refused = 0;
    rig_open();
    ps_mt19937_seed(&rng, 3);
    uint64_t number = 1;
    for (int i = 0; i < 20000; i++) {
        const uint32_t draw = ps_mt19937_u32(&rng);
        rig_message m = !(draw & 1)              ? rig_push(1, number, 0, 1)
                        : (draw >> 1 & 15) == 15 ? rig_pull_ahead(1, number, 1, rig_ids)
                                                 : rig_pull(1, number, 0, rig_ids);
        if ((draw & 9) == 9) m = shared_pull(number, 0);
        if (draw & 4) m.h.kind = (uint8_t)(PS_MSG_PULL_ROWS + (draw >> 3) % 6);
        if (draw & 32) m.body[(draw >> 6) % m.bytes] ^= (uint8_t)(1u << (draw >> 20) % 8);
        if (draw & 1024) m.h.count = m.bytes = 1 + (draw >> 11) % sizeof m.body;
        if ((draw >> 28) == 0) m.h.rows.number += draw >> 12 & 3;
        const ps_err err = rig_hand_in(&m);
        n_refused += err != PS_OK;
        if (err != PS_OK &&
            (err != PS_ERR_PROTOCOL || !strstr(ps_err_message(), "worker 1 sent")))
            fail_msg("message %d: %s", i, ps_err_message());
        number += m.h.rows.number >= number;
        if (i % 100 == 99) {
            rig_close();
            rig_open();
            number = 1;
        }
    }
    if (n_refused < 1000 || n_refused > 19900)
        fail_msg("%d of 20000 were refused", n_refused);
    rig_close();
}
