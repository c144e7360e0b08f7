/* Readers of a shard's rows: what they are told, and that whatever they send disturbs
 * neither the job nor another reader. */
#include "check.h"
#include "rng.h"
#include "rows_body.h"
#include "shard_rows_rig.h"

static rig_message reads(uint64_t number, const uint64_t wanted[IDS])
{
    const uint32_t count = IDS;
    const size_t head = ps_rows_ask_head(1);
    rig_message m = rig_message_of(PS_MSG_READ_ROWS, PS_WIRE_READER, number, 0,
                                   head + IDS * sizeof *wanted);
    memcpy(m.body, &count, sizeof count);
    memcpy(m.body + head, wanted, IDS * sizeof *wanted);
    return m;
}

static ps_err read_in(const rig_message *m)
{
    return rig_hand_in_from(m, rig.reader_id, sizeof rig.reader_id);
}

/* The reader's next message, which f holds: *h. */
static void reader_hears(ps_wire_frames *f, ps_wire_header *h)
{
    bool got;
    ps_wire_frames_open(f);
    assert_ok(ps_wire_recv(rig.reader, false, f, &got));
    assert_true(got);
    assert_ok(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), h));
}

/* All numbers of the rows that it gets are `value`, after `step` steps. */
static void expect_read(uint64_t number, uint64_t step, float value)
{
    ps_wire_frames f;
    ps_wire_header h;
    rig_message m = reads(number, rig_ids);
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

static void expect_kind(const rig_message *m, int kind, const char *words)
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
    return ps_counter_get(&rig.shard.rows_now);
}

/* Rows as they are between two steps. Nothing is stored for an id that is read. */
TEST(a_reader_sees_whole_steps_and_changes_nothing)
{
    rig_open();
    const rig_message early = reads(1, rig_ids);
    expect_kind(&early, PS_MSG_SOON, "");
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(rig_pull(r, 1, 0, rig_ids));
    expect_read(2, 0, 1);
    rig_send(rig_push(0, 2, 0, 0.25f));
    expect_read(3, 0, 1);
    rig_send(rig_push(1, 2, 0, 0.75f));
    expect_read(4, 1, 0.5f); // 1 - 0.5 (0.25 + 0.75)
    const uint64_t others[IDS] = {100, 200, 300};
    const rig_message unknown = reads(5, others);
    expect_kind(&unknown, PS_MSG_READ, "");
    for (uint32_t r = 0; r < WORKERS; r++) {
        rig_send(rig_pull(r, 3, 1, rig_ids));
        rig_send(rig_push(r, 4, 1, 0.5f));
    }
    expect_read(6, 2, 0);
    assert_int_equal(rows_stored(), IDS);
    rig_close();
}

TEST(a_reader_is_told_the_tables)
{
    ps_wire_frames f;
    ps_wire_header h;
    ps_row_spec *specs;
    uint32_t n_shards, n;
    rig_message m = rig_message_of(PS_MSG_ASK_TABLES, PS_WIRE_READER, 1, 0, 0);
    m.no_payload = true;
    rig_open();
    assert_ok(read_in(&m));
    reader_hears(&f, &h);
    assert_int_equal(h.kind, PS_MSG_TABLES);
    assert_ok(ps_rows_tables_read(zmq_msg_data(&f.payload), zmq_msg_size(&f.payload),
                                  &n_shards, &specs, &n));
    assert_int_equal(n_shards, 1);
    assert_int_equal(n, 1);
    assert_int_equal(ps_row_spec_hash(&specs[0]), ps_row_spec_hash(&rig_table));
    free(specs);
    ps_wire_frames_close(&f);
    rig_close();
}

/* What is wrong with a reader's message is the reader's affair: the job goes on. */
TEST(a_reader_that_breaks_a_rule_is_refused)
{
    rig_open();
    rig_send(rig_pull(0, 1, 0, rig_ids));
    rig_message m = reads(1, rig_ids);
    m.h.nonce++;
    expect_kind(&m, PS_MSG_ERROR, "of another job");
    m = reads(1, rig_ids);
    m.h.version++;
    expect_kind(&m, PS_MSG_ERROR, "protocol version");
    m = reads(1, rig_ids);
    m.h.kind = PS_MSG_PUSH_ROWS;
    expect_kind(&m, PS_MSG_ERROR, "PUSH_ROWS, which readers do not send");
    m = reads(1, rig_ids);
    m.h.count--;
    expect_kind(&m, PS_MSG_ERROR, "a READ_ROWS of 2 frames, with 32 bytes");
    m = reads(1, rig_ids);
    m.no_payload = true;
    expect_kind(&m, PS_MSG_ERROR, "a READ_ROWS of 1 frames");
    m = reads(1, rig_ids);
    m.body[0]++;
    expect_kind(&m, PS_MSG_ERROR, "READ_ROWS of 32 bytes that is malformed");
    expect_read(2, 0, 1);
    rig_close();
}

/* Whatever readers send, they are answered, and the workers' step is the same. */
TEST(random_messages_of_readers)
{
    ps_mt19937 rng;
    ps_mt19937_seed(&rng, 5);
    rig_open();
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(rig_pull(r, 1, 0, rig_ids));
    for (int i = 0; i < 5000; i++) {
        const uint32_t draw = ps_mt19937_u32(&rng);
        rig_message m = reads(i, rig_ids);
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
    rig_send(rig_push(0, 2, 0, 0.25f));
    rig_send(rig_push(1, 2, 0, 0.75f));
    expect_read(9000, 1, 0.5f);
    assert_int_equal(rows_stored(), IDS);
    rig_close();
}

/* A reader over TCP that asks for as many rows as go into a message. */
static void *dial_shard(uint64_t name)
{
    uint8_t id[PS_WIRE_READER_ID_BYTES];
    char endpoint[PS_ENDPOINT_MAX];
    size_t bytes = sizeof endpoint;
    void *dealer;
    const int buffer = 64 << 10;
    ps_wire_reader_id(&rig.readers, name, id);
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .waiting_messages = 1,
                                .routing_id = id,
                                .routing_id_bytes = sizeof id};
    assert_ok(ps_zsock_open(rig.context, &o, &dealer));
    zmq_setsockopt(dealer, ZMQ_RCVBUF, &buffer, sizeof buffer);
    zmq_getsockopt(rig.shard.router, ZMQ_LAST_ENDPOINT, endpoint, &bytes);
    assert_int_equal(zmq_connect(dealer, endpoint), 0);
    return dealer;
}

static void await_message(void *socket, ps_wire_frames *f)
{
    bool got;
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    assert_int_equal(zmq_poll(&item, 1, 30000), 1);
    assert_ok(ps_wire_recv(socket, socket == rig.shard.router, f, &got));
    assert_true(got);
}

/* Returns the bytes that the shard has answered. */
static uint64_t ask_over_tcp(void *dealer, uint64_t number)
{
    enum { MANY = PS_WIRE_ASKED_BYTES / sizeof(uint64_t) - 1 };
    static uint64_t body[1 + MANY];
    ps_wire_frames f;
    const uint64_t before = ps_counter_get(&rig.shard.bytes_sent);
    const rig_message m =
        rig_message_of(PS_MSG_READ_ROWS, PS_WIRE_READER, number, 0, sizeof body);
    body[0] = MANY;
    assert_ok(ps_wire_send(dealer, NULL, 0, &m.h, body, sizeof body, PS_WIRE_COPY, NULL));
    ps_wire_frames_open(&f);
    await_message(rig.shard.router, &f);
    assert_ok(ps_shard_take_message(&rig.shard, &f));
    ps_wire_frames_close(&f);
    return ps_counter_get(&rig.shard.bytes_sent) - before;
}

/* Their number, and what they do not take. A place is free when its connection is lost.
 */
TEST(readers_are_bounded)
{
    enum { ASKED = 200 }; // 25 MiB of answers
    ps_wire_frames f;
    uint64_t answered = 0, bytes = 0;
    rig_open();
    rig.config.server.readers = 1;
    assert_int_equal(zmq_bind(rig.shard.router, "tcp://127.0.0.1:*"), 0);
    rig_send(rig_pull(0, 1, 0, rig_ids));
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
    rig_close();
}
