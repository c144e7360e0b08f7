/* Rows of a shard, frames handed in without a network: what two workers are answered,
 * what is sent again, and a worker that breaks the rules, one by one and at random; and
 * what it keeps for a shard of another server. One table of two numbers a row, first rows
 * 1, SGD with a rate of 1/2: all sums are exact. */
#include <math.h>

#include "check.h"
#include "codec.h"
#include "log.h"
#include "model_spec.h"
#include "rng.h"
#include "row_codec.h"
#include "row_walk.h"
#include "rows_body.h"
#include "shard_rows.h"

enum { WORKERS = 2, NONCE = 77, DIM = 2, IDS = 3, OTHER = 1 };

static struct {
    ps_config config;
    ps_model_spec spec;
    ps_plan plan;
    ps_step_rule rule;
    void *context, *worker[WORKERS], *reader, *other;
    uint8_t reader_id[PS_WIRE_READER_ID_BYTES], other_id[PS_WIRE_ID_BYTES];
    ps_secret secrets[WORKERS], readers, twins;
    ps_shared_mem arena; // worker 1's
    ps_shard shard;
} t;

static ps_row_spec table = {
    .name = "user", .dim = DIM, .init = PS_ROW_CONSTANT, .init_scale = 1};

static void *open_dealer(const void *id, size_t bytes)
{
    void *dealer;
    const ps_zsock_options o = {
        .type = ZMQ_DEALER, .routing_id = id, .routing_id_bytes = bytes};
    assert_ok(ps_zsock_open(t.context, &o, &dealer));
    assert_int_equal(zmq_connect(dealer, "inproc://shard"), 0);
    return dealer;
}

/* Of one shard; or with rows.buddy the first of two. */
static void open_shard_of(ps_rows_keeper *keeper, bool buddy)
{
    static const char *const set[] = {"model.input=[64]", "model.layers=[{linear: 10}]",
                                      "optimizer.name=sgd", "job.servers=2",
                                      "rows.buddy=true"};
    memset(&t, 0, sizeof t);
    assert_ok(ps_config_load(&t.config, NULL, set, buddy ? 5 : 3));
    assert_ok(ps_model_spec_init(&t.spec, &t.config));
    assert_ok(ps_plan_init(&t.plan, &t.spec.table, (ps_chunk_size){0}, 1 + buddy));
    assert_ok(ps_step_rule_init(&t.rule, &t.config));
    ps_shard *s = &t.shard;
    s->o = (ps_shard_options){.config = &t.config,
                              .table = &t.spec.table,
                              .plan = &t.plan,
                              .rule = &t.rule,
                              .n_workers = WORKERS,
                              .keeper = keeper};
    s->rule = t.rule;
    s->pace = &ps_shard_bsp;
    assert_ok(ps_chunk_codec_init(&s->codec, &t.config, &t.spec.table));
    assert_ok(ps_shard_memory_init(s));
    assert_ok(ps_zsock_context(1, 16, false, &t.context));
    const ps_zsock_options router = {.type = ZMQ_ROUTER};
    assert_ok(ps_zsock_open(t.context, &router, &s->router));
    assert_int_equal(zmq_bind(s->router, "inproc://shard"), 0);
    for (uint32_t r = 0; r < WORKERS; r++) {
        memset(t.secrets[r].bytes, (int)('a' + r), sizeof t.secrets[r].bytes);
        ps_wire_id(r, &t.secrets[r], s->peers[r].id);
        t.worker[r] = open_dealer(s->peers[r].id, PS_WIRE_ID_BYTES);
        s->peers[r].joined = true;
    }
    memset(t.readers.bytes, 'r', sizeof t.readers.bytes);
    ps_wire_reader_id(&t.readers, 9, t.reader_id);
    t.reader = open_dealer(t.reader_id, sizeof t.reader_id);
    memset(t.twins.bytes, 't', sizeof t.twins.bytes);
    ps_wire_id(OTHER, &t.twins, t.other_id);
    t.other = open_dealer(t.other_id, sizeof t.other_id);
    s->rules = (ps_frame_rules){.plan = &t.plan,
                                .table = &t.spec.table,
                                .codec = &s->codec,
                                .nonce = NONCE,
                                .n_workers = WORKERS,
                                .secrets = t.secrets,
                                .readers = &t.readers,
                                .twins = &t.twins};
    assert_ok(ps_row_figures_init(&s->tables));
    assert_ok(ps_shard_rows_open(s, &table, 1));
    assert_ok(ps_shared_mem_init_sparse(&t.arena, PS_ROWS_ARENA_BYTES, "rows"));
    s->peers[1].rows = t.arena.base;
    zmq_pollitem_t item = {.socket = s->router, .events = ZMQ_POLLIN};
    zmq_poll(&item, 1, 0); // it learns of the workers
}

static void open_shard_with(ps_rows_keeper *keeper)
{
    open_shard_of(keeper, false);
}

static void open_shard(void)
{
    open_shard_with(NULL);
}

static void close_shard(void)
{
    ps_shard_rows_close(&t.shard);
    free(t.shard.readers);
    ps_row_figures_fini(&t.shard.tables);
    ps_shared_mem_fini(&t.arena);
    for (uint32_t r = 0; r < WORKERS; r++)
        ps_zsock_close(&t.worker[r]);
    ps_zsock_close(&t.reader);
    ps_zsock_close(&t.other);
    ps_zsock_close(&t.shard.router);
    zmq_ctx_term(t.context);
    ps_shard_memory_fini(&t.shard);
    ps_plan_fini(&t.plan);
    ps_model_spec_fini(&t.spec);
    ps_config_fini(&t.config);
}

/* ---- messages ---- */

typedef struct message {
    ps_wire_header h;
    uint8_t body[256] __attribute__((aligned(8)));
    size_t bytes; // of the payload
    bool no_payload;
} message;

static message message_of(int kind, uint32_t rank, uint64_t number, uint64_t step,
                          size_t bytes)
{
    return (message){.h = {.version = PS_WIRE_VERSION,
                           .kind = (uint8_t)kind,
                           .nonce = NONCE,
                           .rank = rank,
                           .step = step,
                           .count = bytes,
                           .rows.number = number},
                     .bytes = bytes};
}

static message pull(uint32_t rank, uint64_t number, uint64_t step,
                    const uint64_t ids[IDS])
{
    const uint32_t count = IDS;
    const size_t head = ps_rows_pull_head(1);
    message m =
        message_of(PS_MSG_PULL_ROWS, rank, number, step, head + IDS * sizeof *ids);
    ps_rows_pull_write(m.body, true, false, &count, 1);
    memcpy(m.body + head, ids, IDS * sizeof *ids);
    return m;
}

/* Of all rows of n_pulls pulls, of which n numbers do not lie in an arena: value. */
static message push_of(uint32_t rank, uint64_t number, uint64_t step, uint32_t n_pulls,
                       size_t n, float value)
{
    const double rate = 0.5;
    const size_t head = ps_rows_push_head(1, n_pulls);
    message m = message_of(PS_MSG_PUSH_ROWS, rank, number, step, head + n * sizeof value);
    ps_rows_push_write(m.body, &rate, 1, n_pulls);
    memset(m.body + ps_rows_push_head(1, 0), 1, n_pulls); // has
    for (size_t i = 0; i < n; i++)
        memcpy(m.body + head + i * sizeof value, &value, sizeof value);
    return m;
}

static message push(uint32_t rank, uint64_t number, uint64_t step, float value)
{
    return push_of(rank, number, step, 1, IDS * DIM, value);
}

static ps_err hand_in_from(const message *m, const void *id, size_t id_bytes)
{
    ps_wire_frames f;
    uint8_t header[PS_WIRE_HEADER_MAX];
    size_t n;
    ps_wire_frames_open(&f);
    ps_wire_encode(&m->h, header, &n);
    assert_ok(ps_zsock_msg_copy(&f.id, id, id_bytes));
    assert_ok(ps_zsock_msg_copy(&f.header, header, n));
    assert_ok(ps_zsock_msg_copy(&f.payload, m->body, m->bytes));
    f.n = m->no_payload ? 2 : 3;
    f.has_payload = !m->no_payload;
    const ps_err err = ps_shard_take_message(&t.shard, &f);
    ps_wire_frames_close(&f);
    return err;
}

static ps_err hand_in(const message *m)
{
    return hand_in_from(m, t.shard.peers[m->h.rank].id, PS_WIRE_ID_BYTES);
}

/* The worker's next ROWS of a message, which has n numbers, all `value`. */
static void expect_rows(uint32_t rank, uint64_t number, size_t n, float value)
{
    ps_wire_frames f;
    ps_wire_header h = {0};
    ps_wire_frames_open(&f);
    for (bool got = true; got && h.kind != PS_MSG_ROWS;) {
        assert_ok(ps_wire_recv(t.worker[rank], false, &f, &got));
        if (!got) fail_msg("no answer to message %d", (int)number);
        assert_ok(ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h));
    }
    assert_int_equal(h.rows.number, number);
    assert_int_equal(zmq_msg_size(&f.payload), n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        float at;
        memcpy(&at, (char *)zmq_msg_data(&f.payload) + i * sizeof at, sizeof at);
        assert_true(at == value);
    }
    ps_wire_frames_close(&f);
}

static void expect_no_rows(uint32_t rank)
{
    ps_wire_frames f;
    ps_wire_header h;
    bool got = true;
    ps_wire_frames_open(&f);
    while (got) {
        assert_ok(ps_wire_recv(t.worker[rank], false, &f, &got));
        if (!got) break;
        assert_ok(ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h));
        assert_int_not_equal(h.kind, PS_MSG_ROWS);
    }
    ps_wire_frames_close(&f);
}

static void send(message m)
{
    assert_ok(hand_in(&m));
}

static const uint64_t ids[IDS] = {5, UINT64_MAX, 7};

/* Worker 0 goes ahead: its second pull waits until worker 1 has pushed. */
TEST(a_pull_waits_for_the_step_before_it)
{
    open_shard();
    for (uint32_t r = 0; r < WORKERS; r++) {
        send(pull(r, 1, 0, ids));
        expect_rows(r, 1, IDS * DIM, 1);
    }
    send(push(0, 2, 0, 0.25f));
    send(pull(0, 3, 1, ids));
    expect_no_rows(0);
    send(push(1, 2, 0, 0.75f));
    expect_rows(1, 2, 0, 0);
    expect_rows(0, 2, 0, 0);
    expect_rows(0, 3, IDS * DIM, 0.5f); // 1 - 0.5 (0.25 + 0.75)
    close_shard();
}

/* After a lost connection all that is unanswered comes again. */
TEST(what_comes_again_counts_once)
{
    open_shard();
    for (uint32_t r = 0; r < WORKERS; r++)
        for (int again = 0; again < 2; again++) {
            send(pull(r, 1, 0, ids));
            expect_rows(r, 1, IDS * DIM, 1);
        }
    for (int again = 0; again < 2; again++) {
        send(push(0, 2, 0, 0.25f));
        send(pull(0, 3, 1, ids));
    }
    expect_no_rows(0);
    send(push(1, 2, 0, 0.75f));
    expect_rows(0, 2, 0, 0);
    expect_rows(0, 3, IDS * DIM, 0.5f);
    send(push(0, 2, 0, 0.25f));
    expect_rows(0, 2, 0, 0);
    expect_no_rows(0);
    close_shard();
}

/* As `m`, with ids, rows and gradients in the arena of worker 1. */
static message shared_pull(uint64_t number, uint64_t step)
{
    const uint32_t count = IDS;
    const ps_rows_place place = {64, 128, 256};
    const size_t head = ps_rows_pull_head(1);
    message m = message_of(PS_MSG_PULL_ROWS, 1, number, step, head + sizeof place);
    ps_rows_pull_write(m.body, true, true, &count, 1);
    memcpy(m.body + head, &place, sizeof place);
    memcpy((char *)t.arena.base + place.ids, ids, sizeof ids);
    return m;
}

static void expect_in_arena(size_t at, float value)
{
    for (size_t i = 0; i < IDS * DIM; i++) {
        float got;
        memcpy(&got, (char *)t.arena.base + at + i * sizeof got, sizeof got);
        assert_true(got == value);
    }
}

/* Worker 1 shares memory, worker 0 does not. What comes again is answered without a look
 * at the arena, which holds something else by then. */
TEST(rows_in_an_arena)
{
    uint64_t number = 0;
    open_shard();
    for (uint64_t step = 0; step < 3; step++) {
        const float row = 1 - 0.5f * (float)step;
        const bool two = step == 1; // the second pull has its gradient in the message
        send(pull(0, 1 + 2 * step, step, ids));
        expect_rows(0, 1 + 2 * step, IDS * DIM, row);
        number++;
        for (int again = 0; again < 2; again++) {
            message m = shared_pull(number, step);
            if (again) memset((char *)t.arena.base + 64, 255, sizeof ids);
            send(m);
            expect_rows(1, number, 0, 0);
            expect_in_arena(128, row);
        }
        for (size_t i = 0; i < IDS * DIM; i++)
            ((float *)t.arena.base)[256 / sizeof(float) + i] = two ? 0.5f : 0.75f;
        if (two) send(pull(1, ++number, step, ids));
        if (two) expect_rows(1, number, IDS * DIM, row);
        send(push_of(1, ++number, step, 1 + two, two ? IDS * DIM : 0, 0.25f));
        send(push(0, 2 + 2 * step, step, 0.25f));
        expect_rows(0, 2 + 2 * step, 0, 0);
        expect_rows(1, number, 0, 0);
    }
    close_shard();
}

/* The first piece was lost with a connection, over which the second one did not go. */
TEST(a_piece_after_a_lost_one_is_dropped)
{
    open_shard();
    message m = pull(1, 1, 0, ids);
    m.h.rows.at = PS_WIRE_PIECE_BYTES;
    m.h.count += PS_WIRE_PIECE_BYTES;
    send(m);
    expect_no_rows(1);
    send(pull(1, 1, 0, ids));
    expect_rows(1, 1, IDS * DIM, 1);
    close_shard();
}

/* It was written while the connection was down, and the one before was lost with that. */
TEST(a_message_after_a_lost_one_comes_again)
{
    open_shard();
    send(pull(1, 2, 0, ids));
    expect_no_rows(1);
    for (uint64_t number = 1; number <= 2; number++) {
        send(pull(1, number, 0, ids));
        expect_rows(1, number, IDS * DIM, 1);
    }
    close_shard();
}

/* ---- points ---- */

static message keep(uint64_t number, uint64_t step, uint64_t point)
{
    const ps_rows_keep what = {.point = point};
    message m = message_of(PS_MSG_KEEP_ROWS, 0, number, step, ps_rows_keep_bytes(&what));
    ps_rows_keep_write(m.body, &what);
    return m;
}

static message go_back(uint64_t number, uint64_t step, uint64_t point)
{
    char manifest[160];
    snprintf(
        manifest, sizeof manifest,
        "{\"rows\":1,\"point\":%d,\"step\":1,\"tables\":[{\"name\":\"user\",\"steps\":1}]"
        ",\"files\":[]}",
        (int)point);
    const ps_rows_return what = {point, "/", manifest, 1, strlen(manifest)};
    message m =
        message_of(PS_MSG_RETURN_ROWS, 0, number, step, ps_rows_return_bytes(&what));
    ps_rows_return_write(m.body, &what);
    return m;
}

/* An answer to worker 0 that begins with this number. Of KEEP_ROWS 0: no files; of
 * RETURN_ROWS 1: the shard has gone back. */
static void expect_number(uint64_t number, uint64_t wanted)
{
    ps_wire_frames f;
    ps_wire_header h = {0};
    ps_wire_frames_open(&f);
    for (bool got = true; got && h.kind != PS_MSG_ROWS;) {
        assert_ok(ps_wire_recv(t.worker[0], false, &f, &got));
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

static void both_step(uint64_t number, uint64_t step, float before)
{
    for (uint32_t r = 0; r < WORKERS; r++) {
        send(pull(r, number + 1 - r, step, ids)); // worker 0 has sent one more
        expect_rows(r, number + 1 - r, IDS * DIM, before);
    }
    for (uint32_t r = 0; r < WORKERS; r++)
        send(push(r, number + 2 - r, step, 0.5f));
    for (uint32_t r = 0; r < WORKERS; r++)
        expect_rows(r, number + 2 - r, 0, 0);
}

/* In the job, which has a lookup under way, and in the next one of the process. */
TEST(goes_back_to_a_point)
{
    ps_rows_keeper *keeper;
    uint64_t points[PS_ROW_MARKS];
    assert_ok(ps_rows_keeper_create(&keeper));
    open_shard();
    t.shard.o.keeper = keeper;
    for (uint32_t r = 0; r < WORKERS; r++) {
        send(pull(r, 1, 0, ids));
        expect_rows(r, 1, IDS * DIM, 1);
        send(push(r, 2, 0, 0.5f));
    }
    for (uint32_t r = 0; r < WORKERS; r++)
        expect_rows(r, 2, 0, 0);
    for (int again = 0; again < 2; again++) {
        send(keep(3, 1, 77));
        expect_number(3, 0);
    }
    both_step(3, 1, 0.5f);
    send(pull(1, 5, 2, ids));
    expect_rows(1, 5, IDS * DIM, 0);
    send(pull(1, 6, 3, ids)); // asked for ahead
    send(go_back(6, 2, 5));
    expect_number(6, 0);
    for (int again = 0; again < 2; again++) {
        send(go_back(7, 2, 77));
        expect_number(7, 1);
    }
    expect_rows(1, 6, IDS * DIM, 0.5f);
    send(pull(0, 8, 1, ids));
    expect_rows(0, 8, IDS * DIM, 0.5f);
    close_shard();
    // twice, since a job may fail before its workers have chosen
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ps_rows_keeper_points(keeper, 0, 1, points), 1);
        assert_int_equal(points[0], 77);
        assert_int_equal(ps_rows_keeper_points(keeper, 0, 2, points), 0);
        open_shard_with(keeper);
        if (i == 1) {
            send(go_back(1, 0, 77));
            expect_number(1, 1);
            send(pull(0, 2, 1, ids));
            expect_rows(0, 2, IDS * DIM, 0.5f);
        }
        close_shard();
    }
    // a job that begins anew gives it up
    open_shard_with(keeper);
    send(pull(0, 1, 0, ids));
    expect_rows(0, 1, IDS * DIM, 1);
    send(go_back(2, 0, 77));
    expect_number(2, 0);
    close_shard();
    assert_int_equal(ps_rows_keeper_points(keeper, 0, 1, points), 0);
    ps_rows_keeper_destroy(&keeper);
}

/* ---- a worker that breaks the rules ---- */

static void refused(message m, const char *why)
{
    assert_int_equal(hand_in(&m), PS_ERR_PROTOCOL);
    if (!strstr(ps_err_message(), why) ||
        strstr(ps_err_message(), " sent") != ps_err_message() + strlen("worker 1"))
        fail_msg("\"%s\" does not say \"%s\"", ps_err_message(), why);
}

#define REFUSED(why, make, change)                                                       \
    do {                                                                                 \
        message m = make;                                                                \
        change;                                                                          \
        refused(m, why);                                                                 \
    } while (0)

static void set_u32(message *m, size_t at, uint32_t value)
{
    memcpy(m->body + at, &value, sizeof value);
}

/* Worker 1's gradients end the step before the one that worker 0 lies about. */
TEST(a_message_that_waited_is_its_senders)
{
    open_shard();
    for (uint32_t r = 0; r < WORKERS; r++) {
        send(pull(r, 1, 0, ids));
        expect_rows(r, 1, IDS * DIM, 1);
    }
    send(push(0, 2, 0, 0.25f));
    send(push(0, 3, 1, 0.25f)); // without a pull
    const message m = push(1, 2, 0, 0.25f);
    assert_int_equal(hand_in(&m), PS_ERR_PROTOCOL);
    assert_string_equal(ps_err_message(),
                        "worker 0 sent: gradients of 1 requests for rows; it made 0 in "
                        "step 1");
    close_shard();
}

/* Worker 1 asks ahead, in its arena, worker 0 by messages. A row that nobody has pulled
 * in the present step is read at once, the others when it is applied. */
TEST(rows_of_the_next_step)
{
    static const uint64_t next[IDS] = {6, UINT64_MAX, 8};
    open_shard();
    for (uint32_t r = 0; r < WORKERS; r++) {
        send(pull(r, 1, 0, ids));
        expect_rows(r, 1, IDS * DIM, 1);
    }
    const message ahead = shared_pull(2, 1);
    memcpy((char *)t.arena.base + 64, next, sizeof next);
    send(ahead);
    send(ahead); // again: it waits
    expect_no_rows(1);
    assert_true(((float *)t.arena.base)[128 / sizeof(float)] == 0); // worker 0 may pull
    send(pull(0, 2, 1, next));
    expect_no_rows(0);
    const float *rows = (const float *)t.arena.base + 128 / sizeof(float);
    for (size_t i = 0; i < IDS * DIM; i++)
        assert_true(rows[i] == (i / DIM == 1 ? 0 : 1)); // of UINT64_MAX later
    send(push(0, 3, 0, 0.25f));
    send(push(1, 3, 0, 0.75f));
    for (size_t i = 0; i < IDS * DIM; i++)
        assert_true(rows[i] == (i / DIM == 1 ? 0.5f : 1));
    expect_rows(1, 3, 0, 0);
    expect_rows(1, 2, 0, 0);
    expect_rows(0, 3, 0, 0);
    ps_row_figure_list figures = {0};
    assert_ok(ps_row_figures_add(&t.shard.tables, &figures));
    assert_int_equal(figures.tables[0].of[PS_ROW_FIGURE_AHEAD], WORKERS * IDS);
    assert_int_equal(figures.tables[0].of[PS_ROW_FIGURE_READY], WORKERS * (IDS - 1));
    assert_int_equal(figures.tables[0].of[PS_ROW_FIGURE_STEPPED], IDS);
    free(figures.tables);
    send(pull(0, 2, 1, next)); // again: the rows once more
    send(push_of(1, 4, 1, 1, 0, 0));
    REFUSED("after that step's gradients", pull(1, 5, 1, ids), (void)m);
    close_shard();
    open_shard();
    send(pull(1, 1, 1, ids));
    REFUSED("after one for the next step's", pull(1, 2, 0, ids), (void)m);
    REFUSED("asked ahead", message_of(PS_MSG_LOAD_ROWS, 1, 3, 0, 24),
            set_u32(&m, 4, DIM));
    REFUSED("without gradients", pull(1, 4, 1, ids), set_u32(&m, 0, 0));
    close_shard();
}

TEST(a_worker_that_breaks_a_rule_is_named)
{
    open_shard();
    const message good = pull(1, 1, 0, ids);
    REFUSED("0 of 40", good, m.bytes -= 8);
    REFUSED("0 of 32", good, m.h.count -= 8);
    REFUSED("8 of 40", good, m.h.rows.at = 8);
    REFUSED("at 0 of 40", good, m.h.rows.number = 0);
    REFUSED("malformed", good, set_u32(&m, 0, 7));
    close_shard();
    open_shard();
    REFUSED("malformed", pull(1, 1, 0, ids), set_u32(&m, 8, IDS + 1));
    REFUSED("partition 0 of table 9",
            message_of(PS_MSG_SAVE_ROWS, 1, 2, 0, sizeof(ps_rows_save)),
            set_u32(&m, 0, 9));
    REFUSED("row 9 of partition 0",
            message_of(PS_MSG_SAVE_ROWS, 1, 2, 0, sizeof(ps_rows_save)),
            set_u32(&m, 8, 9));
    REFUSED("malformed", message_of(PS_MSG_LOAD_ROWS, 1, 3, 0, 24),
            set_u32(&m, 16, UINT32_MAX));
    REFUSED("rows of 9 numbers", message_of(PS_MSG_LOAD_ROWS, 1, 4, 0, 24),
            set_u32(&m, 4, 9));
    REFUSED("a point without a name", keep(5, 0, 0), m.h.rank = 1);
    REFUSED("files of kind 4", keep(6, 0, 1), m.h.rank = 1; m.body[8] = 4);
    REFUSED("none from /", message_of(PS_MSG_KEEP_ROWS, 1, 7, 0, 20), m.body[16] = 'a');
    REFUSED("manifest of rows is damaged", go_back(8, 0, 1), m.h.rank = 1;
            m.body[20] = 1);
    REFUSED("gradients of 1 requests for rows; it made 0", push(1, 9, 0, 1), (void)m);
    REFUSED("3 rows of table user outside of its arena", shared_pull(10, 0),
            set_u32(&m, m.bytes - sizeof(uint32_t), 1));
    send(pull(1, 11, 0, ids));
    REFUSED("24 bytes of gradients of rows; 0 were", push(1, 12, 0, 1),
            m.body[ps_rows_push_head(1, 0)] = 0);
    send(push(1, 13, 0, 1));
    REFUSED("after that step's gradients", pull(1, 14, 0, ids), (void)m);
    REFUSED("at 0 of 1099511627776", pull(1, 15, 0, ids), m.h.count = UINT64_C(1) << 40;
            m.bytes = 40);
    close_shard();
}

/* A PUSH_ROWS of int8, all rows `value` and exact. */
static message coded_push(uint32_t rank, uint64_t number, uint64_t step, float value)
{
    const size_t head = ps_rows_push_head(1, 1);
    message m = push_of(rank, number, step, 1, 0, 0);
    float rows[IDS * DIM];
    for (int i = 0; i < IDS * DIM; i++)
        rows[i] = value;
    ps_row_codec_encode(&table, IDS, ids, 0, rows);
    m.bytes = m.h.count = head + ps_row_codec_size(&table, IDS) * sizeof *rows;
    memcpy(m.body + head, rows, m.bytes - head);
    return m;
}

/* By int8 three rows of two numbers are 18 bytes, in whole float32. Worker 1 shares
 * memory, where float32 stay float32, of the same values; in its second step it does not,
 * too. */
TEST(rows_by_a_codec)
{
    enum { CODED = 5, ROW = 6 };
    table.codec = PS_CODEC_INT8;
    open_shard();
    send(pull(0, 1, 0, ids));
    send(shared_pull(1, 0));
    expect_rows(1, 1, 0, 0);
    ps_wire_frames f;
    ps_wire_header h = {0};
    ps_wire_frames_open(&f);
    float rows[IDS * DIM];
    for (bool got = true; got && h.kind != PS_MSG_ROWS;) {
        assert_ok(ps_wire_recv(t.worker[0], false, &f, &got));
        assert_ok(ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h));
    }
    assert_int_equal(zmq_msg_size(&f.payload), CODED * sizeof(float));
    assert_ok(ps_row_codec_decode(&table, IDS, ids, zmq_msg_data(&f.payload), rows));
    for (int i = 0; i < IDS * DIM; i++)
        assert_true(fabsf(rows[i] - 1) < 1e-6f);
    expect_in_arena(128, rows[0]);
    ps_wire_frames_close(&f);
    // a length of another codec; scales that no worker encodes; the step counts once
    const size_t head = ps_rows_push_head(1, 1);
    float scale = NAN;
    message bad = coded_push(0, 2, 0, 0.5f);
    memcpy(bad.body + head + ROW, &scale, sizeof scale);
    assert_error(hand_in(&bad), PS_ERR_NUMERIC,
                 "worker 0 sent: table 'user': the row or");
    send(shared_pull(2, 0)); // of two lookups, so that the gradients are put together
    send(push_of(1, 3, 0, 2, 0, 0));
    close_shard();
    open_shard();
    send(pull(1, 1, 0, ids));
    REFUSED("24 bytes of gradients of rows; 20 were", push(1, 2, 0, 1), (void)m);
    REFUSED("id -1, with a scale that int8 has not", coded_push(1, 3, 0, 0.5f),
            m.body[head + ROW + 3] = 0xBF);
    send(coded_push(1, 4, 0, 0.5f));
    send(pull(0, 1, 0, ids));
    send(coded_push(0, 2, 0, 0.5f));
    send(shared_pull(5, 1));
    for (int i = 0; i < IDS * DIM; i++) // 1 - 0.5 (0.5 + 0.5)
        assert_true(fabsf(((float *)t.arena.base)[128 / sizeof(float) + (size_t)i] -
                          0.5f) < 1e-6f);
    close_shard();
    table.codec = PS_CODEC_NONE;
}

/* Whatever worker 1 sends, the shard neither crashes nor reads beyond a message; what it
 * refuses names worker 1. */
TEST(random_messages)
{
    ps_mt19937 rng;
    int n_refused = 0;
    open_shard();
    ps_mt19937_seed(&rng, 3);
    uint64_t number = 1;
    for (int i = 0; i < 20000; i++) {
        const uint32_t draw = ps_mt19937_u32(&rng);
        message m = draw & 1 ? pull(1, number, (draw >> 1 & 15) == 15, ids)
                             : push(1, number, 0, 1);
        if ((draw & 9) == 9) m = shared_pull(number, 0);
        if (draw & 4) m.h.kind = (uint8_t)(PS_MSG_PULL_ROWS + (draw >> 3) % 6);
        if (draw & 32) m.body[(draw >> 6) % m.bytes] ^= (uint8_t)(1u << (draw >> 20) % 8);
        if (draw & 1024) m.h.count = m.bytes = 1 + (draw >> 11) % sizeof m.body;
        if ((draw >> 28) == 0) m.h.rows.number += draw >> 12 & 3;
        const ps_err err = hand_in(&m);
        n_refused += err != PS_OK;
        if (err != PS_OK &&
            (err != PS_ERR_PROTOCOL || !strstr(ps_err_message(), "worker 1 sent")))
            fail_msg("message %d: %s", i, ps_err_message());
        number += m.h.rows.number >= number;
        if (i % 100 == 99) {
            close_shard();
            open_shard();
            number = 1;
        }
    }
    if (n_refused < 1000 || n_refused > 19900)
        fail_msg("%d of 20000 were refused", n_refused);
    close_shard();
}

/* ---- readers ---- */

static message reads(uint64_t number, const uint64_t wanted[IDS])
{
    const uint32_t count = IDS;
    const size_t head = ps_rows_ask_head(1);
    message m = message_of(PS_MSG_READ_ROWS, PS_WIRE_READER, number, 0,
                           head + IDS * sizeof *wanted);
    memcpy(m.body, &count, sizeof count);
    memcpy(m.body + head, wanted, IDS * sizeof *wanted);
    return m;
}

static ps_err read_in(const message *m)
{
    return hand_in_from(m, t.reader_id, sizeof t.reader_id);
}

/* The reader's next message, which f holds: *h. */
static void reader_hears(ps_wire_frames *f, ps_wire_header *h)
{
    bool got;
    ps_wire_frames_open(f);
    assert_ok(ps_wire_recv(t.reader, false, f, &got));
    assert_true(got);
    assert_ok(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), h));
}

/* All numbers of the rows that it gets are `value`, after `step` steps. */
static void expect_read(uint64_t number, uint64_t step, float value)
{
    ps_wire_frames f;
    ps_wire_header h;
    message m = reads(number, ids);
    assert_ok(read_in(&m));
    reader_hears(&f, &h);
    assert_int_equal(h.kind, PS_MSG_READ);
    assert_int_equal(h.rows.number, number);
    assert_int_equal(h.step, step);
    assert_int_equal(zmq_msg_size(&f.payload), IDS * DIM * sizeof value);
    for (size_t i = 0; i < IDS * DIM; i++) {
        float at;
        memcpy(&at, (char *)zmq_msg_data(&f.payload) + i * sizeof at, sizeof at);
        assert_true(at == value);
    }
    ps_wire_frames_close(&f);
}

static void expect_words(ps_wire_frames *f, const char *words)
{
    char text[512] = "";
    if (f->has_payload && zmq_msg_size(&f->payload) < sizeof text)
        memcpy(text, zmq_msg_data(&f->payload), zmq_msg_size(&f->payload));
    if (!strstr(text, words)) fail_msg("%s", text);
}

static void expect_kind(const message *m, int kind, const char *words)
{
    ps_wire_frames f;
    ps_wire_header h;
    assert_ok(read_in(m));
    reader_hears(&f, &h);
    assert_int_equal(h.kind, kind);
    expect_words(&f, words);
    ps_wire_frames_close(&f);
}

static uint64_t rows_stored(void)
{
    return ps_counter_get(&t.shard.rows_now);
}

/* Rows as they are between two steps. Nothing is stored for an id that is read. */
TEST(a_reader_sees_whole_steps_and_changes_nothing)
{
    open_shard();
    const message early = reads(1, ids);
    expect_kind(&early, PS_MSG_SOON, "");
    for (uint32_t r = 0; r < WORKERS; r++)
        send(pull(r, 1, 0, ids));
    expect_read(2, 0, 1);
    send(push(0, 2, 0, 0.25f));
    expect_read(3, 0, 1);
    send(push(1, 2, 0, 0.75f));
    expect_read(4, 1, 0.5f); // 1 - 0.5 (0.25 + 0.75)
    const uint64_t others[IDS] = {100, 200, 300};
    const message unknown = reads(5, others);
    expect_kind(&unknown, PS_MSG_READ, "");
    for (uint32_t r = 0; r < WORKERS; r++) {
        send(pull(r, 3, 1, ids));
        send(push(r, 4, 1, 0.5f));
    }
    expect_read(6, 2, 0);
    assert_int_equal(rows_stored(), IDS);
    close_shard();
}

TEST(a_reader_is_told_the_tables)
{
    ps_wire_frames f;
    ps_wire_header h;
    ps_row_spec *specs;
    uint32_t n_shards, n;
    message m = message_of(PS_MSG_ASK_TABLES, PS_WIRE_READER, 1, 0, 0);
    m.no_payload = true;
    open_shard();
    assert_ok(read_in(&m));
    reader_hears(&f, &h);
    assert_int_equal(h.kind, PS_MSG_TABLES);
    assert_ok(ps_rows_tables_read(zmq_msg_data(&f.payload), zmq_msg_size(&f.payload),
                                  &n_shards, &specs, &n));
    assert_int_equal(n_shards, 1);
    assert_int_equal(n, 1);
    assert_int_equal(ps_row_spec_hash(&specs[0]), ps_row_spec_hash(&table));
    free(specs);
    ps_wire_frames_close(&f);
    close_shard();
}

/* What is wrong with a reader's message is the reader's affair: the job goes on. */
TEST(a_reader_that_breaks_a_rule_is_refused)
{
    open_shard();
    send(pull(0, 1, 0, ids));
    message m = reads(1, ids);
    m.h.nonce++;
    expect_kind(&m, PS_MSG_ERROR, "of another job");
    m = reads(1, ids);
    m.h.version++;
    expect_kind(&m, PS_MSG_ERROR, "protocol version");
    m = reads(1, ids);
    m.h.kind = PS_MSG_PUSH_ROWS;
    expect_kind(&m, PS_MSG_ERROR, "PUSH_ROWS, which readers do not send");
    m = reads(1, ids);
    m.h.count--;
    expect_kind(&m, PS_MSG_ERROR, "a READ_ROWS of 2 frames, with 32 bytes");
    m = reads(1, ids);
    m.no_payload = true;
    expect_kind(&m, PS_MSG_ERROR, "a READ_ROWS of 1 frames");
    m = reads(1, ids);
    m.body[0]++;
    expect_kind(&m, PS_MSG_ERROR, "READ_ROWS of 32 bytes that is malformed");
    expect_read(2, 0, 1);
    close_shard();
}

/* Whatever readers send, they are answered, and the workers' step is the same. */
TEST(random_messages_of_readers)
{
    ps_mt19937 rng;
    ps_mt19937_seed(&rng, 5);
    open_shard();
    for (uint32_t r = 0; r < WORKERS; r++)
        send(pull(r, 1, 0, ids));
    for (int i = 0; i < 5000; i++) {
        const uint32_t draw = ps_mt19937_u32(&rng);
        message m = reads(i, ids);
        if (draw & 1) m.h.kind = (uint8_t)((draw >> 1) % 34);
        if (draw & 64) m.body[(draw >> 7) % m.bytes] ^= (uint8_t)(1u << (draw >> 20) % 8);
        if (draw & 4096) m.h.count = m.bytes = (draw >> 13) % sizeof m.body;
        m.no_payload = (draw >> 28) == 0;
        ps_wire_frames f;
        ps_wire_header h;
        assert_ok(read_in(&m));
        reader_hears(&f, &h);
        ps_wire_frames_close(&f);
    }
    send(push(0, 2, 0, 0.25f));
    send(push(1, 2, 0, 0.75f));
    expect_read(9000, 1, 0.5f);
    assert_int_equal(rows_stored(), IDS);
    close_shard();
}

/* A reader over TCP that asks for as many rows as go into a message. */
static void *dial_shard(uint64_t name)
{
    uint8_t id[PS_WIRE_READER_ID_BYTES];
    char endpoint[PS_ENDPOINT_MAX];
    size_t bytes = sizeof endpoint;
    void *dealer;
    const int buffer = 64 << 10;
    ps_wire_reader_id(&t.readers, name, id);
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .waiting_messages = 1,
                                .routing_id = id,
                                .routing_id_bytes = sizeof id};
    assert_ok(ps_zsock_open(t.context, &o, &dealer));
    zmq_setsockopt(dealer, ZMQ_RCVBUF, &buffer, sizeof buffer);
    zmq_getsockopt(t.shard.router, ZMQ_LAST_ENDPOINT, endpoint, &bytes);
    assert_int_equal(zmq_connect(dealer, endpoint), 0);
    return dealer;
}

static void await_message(void *socket, ps_wire_frames *f)
{
    bool got;
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    assert_int_equal(zmq_poll(&item, 1, 30000), 1);
    assert_ok(ps_wire_recv(socket, socket == t.shard.router, f, &got));
    assert_true(got);
}

/* Returns the bytes that the shard has answered. */
static uint64_t ask_over_tcp(void *dealer, uint64_t number)
{
    enum { MANY = PS_WIRE_ASKED_BYTES / sizeof(uint64_t) - 1 };
    static uint64_t body[1 + MANY];
    ps_wire_frames f;
    const uint64_t before = ps_counter_get(&t.shard.bytes_sent);
    const message m =
        message_of(PS_MSG_READ_ROWS, PS_WIRE_READER, number, 0, sizeof body);
    body[0] = MANY;
    assert_ok(ps_wire_send(dealer, NULL, 0, &m.h, body, sizeof body, PS_WIRE_COPY, NULL));
    ps_wire_frames_open(&f);
    await_message(t.shard.router, &f);
    assert_ok(ps_shard_take_message(&t.shard, &f));
    ps_wire_frames_close(&f);
    return ps_counter_get(&t.shard.bytes_sent) - before;
}

/* Their number, and what they do not take. A place is free when its connection is lost.
 */
TEST(readers_are_bounded)
{
    enum { ASKED = 200 }; // 25 MiB of answers
    ps_wire_frames f;
    uint64_t answered = 0, bytes = 0;
    open_shard();
    t.config.server.readers = 1;
    assert_int_equal(zmq_bind(t.shard.router, "tcp://127.0.0.1:*"), 0);
    send(pull(0, 1, 0, ids));
    void *first = dial_shard(1), *second = dial_shard(2);
    for (uint64_t i = 0; i < ASKED; i++) {
        const uint64_t one = ask_over_tcp(first, i);
        answered += one > 0;
        bytes += one;
    }
    assert_true(bytes > PS_WIRE_READ_BYTES && bytes < 2 * PS_WIRE_READ_BYTES);
    ps_wire_frames_open(&f);
    for (uint64_t i = 0; i < answered; i++)
        await_message(first, &f);
    assert_true(ask_over_tcp(first, ASKED) > PS_WIRE_ASKED_BYTES - 100);
    assert_true(ask_over_tcp(second, 1) > 0);
    await_message(second, &f);
    expect_words(&f, "lets 1 readers of its rows in");
    ps_wire_frames_close(&f);
    ps_zsock_close(&first);
    while (ask_over_tcp(second, 2) < PS_WIRE_ASKED_BYTES - 100)
        continue; // until the system has closed it
    ps_zsock_close(&second);
    close_shard();
}

/* ---- a shard of another server ---- */

enum { ROWS_THERE = 6 };

/* Its tables: rows of ids that the job's second shard has, each `value`. */
static ps_row_store *rows_there(float value)
{
    ps_row_store *store;
    assert_ok(ps_row_store_create(&table, 1, ps_row_first_partition(1, 2),
                                  PS_ROW_PARTITIONS, &store));
    const float row[DIM] = {value, value};
    for (uint64_t id = 0, n = 0; n < ROWS_THERE; id++) {
        const ps_row_view v = {.id = id, .version = 1, .row = row};
        if (!ps_row_table_owns(&store->tables[0], id)) continue;
        assert_ok(ps_row_table_put(&store->tables[0], &v));
        n++;
    }
    return store;
}

static message twin_message(int kind, uint64_t number, size_t bytes)
{
    return message_of(kind, 0, number, 0, bytes);
}

static message twin_point(uint64_t number, uint64_t base, uint64_t point, bool whole)
{
    const uint64_t made = 9;
    message m = twin_message(PS_MSG_TWIN_POINT, number, ps_rows_twin_point_bytes(1));
    const ps_rows_twin_point p = {
        .base = base, .point = point, .step = point, .whole = whole, .made = &made};
    ps_rows_twin_point_write(m.body, &p, 1);
    return m;
}

/* A piece with all rows of the store. */
static message twin_rows(uint64_t number, const ps_row_store *store)
{
    uint64_t bytes;
    ps_row_walk walk = {0};
    message m = twin_message(PS_MSG_TWIN_ROWS, number, 0);
    ps_row_walk_begin(&walk, store, false);
    assert_ok(ps_row_walk_next(&walk, m.body, sizeof m.body, &bytes));
    ps_row_walk_end(&walk);
    m.h.count = m.bytes = bytes;
    return m;
}

static message twin_ask(uint64_t number, uint64_t point, uint64_t first)
{
    message m = twin_message(PS_MSG_TWIN_ASK, number, 16);
    memcpy(m.body, &point, 8);
    memcpy(m.body + 8, &first, 8);
    return m;
}

static ps_err twin_in(const message *m)
{
    return hand_in_from(m, t.other_id, sizeof t.other_id);
}

/* The next answer's body, which f holds. number 0: there is none. */
static const void *other_hears(ps_wire_frames *f, uint64_t number, uint64_t *bytes)
{
    bool got;
    ps_wire_header h;
    ps_wire_frames_open(f);
    assert_ok(ps_wire_recv(t.other, false, f, &got));
    assert_int_equal(got, number > 0);
    if (!got) return NULL;
    assert_ok(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), &h));
    assert_int_equal(h.kind, PS_MSG_TWIN);
    assert_int_equal(h.rows.number, number);
    *bytes = zmq_msg_size(&f->payload);
    return zmq_msg_data(&f->payload);
}

static void expect_twin(message m, uint64_t number, uint64_t value)
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
        const message m = twin_ask(number + (uint64_t)k, point, k == 0);
        assert_ok(twin_in(&m));
        const void *body = other_hears(&f, number + (uint64_t)k, &bytes);
        assert_ok(ps_rows_twin_page_read(body, bytes, 1, &page));
        assert_int_equal(page.has, k ? PS_TWIN_HAS_ALL : PS_TWIN_HAS_MORE);
        assert_int_equal(page.step, point);
        assert_int_equal(page.made[0], 9);
        if (page.bytes) assert_ok(ps_row_store_put(back, page.piece, page.bytes));
        ps_wire_frames_close(&f);
    }
    const message a = twin_rows(1, back), b = twin_rows(1, there);
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.body, b.body, a.bytes);
    ps_row_store_destroy(&back);
    ps_row_store_destroy(&there);
}

/* Messages that come twice, too early, or not at all over one connection. */
TEST(keeps_the_rows_of_its_twin)
{
    ps_row_store *there = rows_there(0.5f), *later = rows_there(0.25f);
    open_shard_of(NULL, true);
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
    close_shard();
    ps_row_store_destroy(&there);
    ps_row_store_destroy(&later);
}

TEST(keeps_them_until_the_process_has_joined_again)
{
    ps_rows_keeper *keeper;
    uint64_t points[PS_ROW_MARKS];
    ps_row_store *there = rows_there(0.5f);
    assert_ok(ps_rows_keeper_create(&keeper));
    open_shard_of(keeper, true);
    expect_twin(twin_point(1, 0, 7, false), 1, PS_TWIN_WANTS_ALL);
    expect_twin(twin_rows(2, there), 2, 0);
    expect_twin(twin_point(3, 0, 7, true), 3, PS_TWIN_WANTS_NOTHING);
    expect_twin(twin_point(4, 7, 8, false), 4, PS_TWIN_WANTS_CHANGES); // and no more
    close_shard();
    assert_int_equal(ps_rows_keeper_points(keeper, OTHER, 1, points), 1);
    assert_int_equal(points[0], 7);
    open_shard_of(keeper, true);
    expect_back(1, 7, 0.5f);
    expect_twin(twin_point(3, 0, 9, false), 3, PS_TWIN_WANTS_ALL);
    close_shard();
    assert_int_equal(ps_rows_keeper_points(keeper, OTHER, 1, points), 0);
    ps_rows_keeper_destroy(&keeper);
    ps_row_store_destroy(&there);
}

static void twin_refused(message m, const char *words)
{
    assert_error(twin_in(&m), PS_ERR_PROTOCOL, words);
    assert_non_null(strstr(ps_err_message(), "shard 1 sent its twin"));
}

TEST(a_twin_that_breaks_a_rule_has_a_name)
{
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_row_store *there = rows_there(0.5f);
    const message rows = twin_rows(1, there);
    open_shard_of(NULL, true);
    ps_wire_id(OTHER, &t.secrets[0], id); // a worker's secret is not a server's
    assert_ok(hand_in_from(&rows, id, sizeof id));
    assert_int_equal(ps_counter_get(&t.shard.strangers), 1);
    ps_wire_id(0, &t.twins, id);
    assert_error(hand_in_from(&rows, id, sizeof id), PS_ERR_PROTOCOL,
                 "shard 0 sent its twin: TWIN_ROWS, but its twin is another shard");
    twin_refused(pull(0, 1, 0, ids), "PULL_ROWS, which servers do not send");
    message m = twin_point(1, 0, 7, false);
    m.h.nonce++;
    twin_refused(m, "of another job");
    m = twin_point(1, 0, 7, false);
    m.h.count--;
    twin_refused(m, "a TWIN_POINT of 2 frames, with 48 bytes");
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
    close_shard();
    ps_row_store_destroy(&there);
    open_shard(); // without rows.buddy
    twin_refused(twin_point(1, 0, 7, false), "its twin is another shard");
    close_shard();
}

TEST(random_messages_of_a_twin)
{
    ps_mt19937 rng;
    ps_row_store *there = rows_there(0.5f);
    ps_mt19937_seed(&rng, 11);
    open_shard_of(NULL, true);
    for (uint64_t i = 0, number = 1; i < 5000; i++) {
        const uint32_t draw = ps_mt19937_u32(&rng), point = 1 + (draw >> 3 & 1);
        message m = (draw & 3) == 0   ? twin_rows(number, there)
                    : (draw & 3) == 1 ? twin_ask(number, point, draw >> 2 & 1)
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
    close_shard();
    ps_row_store_destroy(&there);
}

int main(int argc, char **argv)
{
    ps_log_init("test", PS_LOG_ERROR + 1); // what goes wrong here is meant to
    if (argc > 1 && !check_choose(argv[1])) return 2;
    return check_run(NULL, NULL);
}
