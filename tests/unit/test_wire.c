#include "wire_socket.h"

#include "check.h"

/* Written by hand after the MessagePack specification: fixarray 11; 10, 3; uint64
 * 0x1122334455667788; 7, 2; uint16 300; uint32 65536; 0; uint64 2^40; uint8 128; 2. */
static const uint8_t PUSH_BYTES[] = {0x9b, 0x0a, 0x03, 0xcf, 0x11, 0x22, 0x33, 0x44, 0x55,
                                     0x66, 0x77, 0x88, 0x07, 0x02, 0xcd, 0x01, 0x2c, 0xce,
                                     0x00, 0x01, 0x00, 0x00, 0x00, 0xcf, 0x00, 0x00, 0x01,
                                     0x00, 0x00, 0x00, 0x00, 0x00, 0xcc, 0x80, 0x02};

static const ps_wire_header PUSH = {.version = PS_WIRE_VERSION,
                                    .kind = PS_MSG_PUSH,
                                    .nonce = 0x1122334455667788u,
                                    .epoch = 7,
                                    .rank = 2,
                                    .step = 300,
                                    .chunk = 65536,
                                    .codec = PS_CODEC_NONE,
                                    .count = (uint64_t)1 << 40,
                                    .push = {.groups = 128, .step_of = 2}};

static void assert_same(const ps_wire_header *a, const ps_wire_header *b)
{
    assert_int_equal(a->version, b->version);
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->codec, b->codec);
    assert_int_equal(a->nonce, b->nonce);
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->rank, b->rank);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->chunk, b->chunk);
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->credit, b->credit);
    assert_int_equal(a->push.groups, b->push.groups); // these two cover the other members
    assert_int_equal(a->push.step_of, b->push.step_of);
}

TEST(encodes_as_msgpack)
{
    uint8_t out[PS_WIRE_HEADER_MAX];
    size_t bytes;
    ps_wire_encode(&PUSH, out, &bytes);
    assert_int_equal(bytes, sizeof PUSH_BYTES);
    assert_memory_equal(out, PUSH_BYTES, bytes);
}

TEST(reads_what_others_write)
{
    ps_wire_header h;
    assert_ok(ps_wire_decode(PUSH_BYTES, sizeof PUSH_BYTES, &h));
    assert_same(&h, &PUSH);
}

TEST(widest_header_fits_and_returns)
{
    const ps_wire_header widest = {.version = PS_WIRE_VERSION,
                                   .kind = PS_MSG_STATE,
                                   .nonce = UINT64_MAX,
                                   .epoch = UINT32_MAX,
                                   .rank = UINT32_MAX,
                                   .step = UINT64_MAX,
                                   .chunk = UINT32_MAX,
                                   .codec = PS_CODEC_TOPK,
                                   .count = UINT64_MAX,
                                   .credit = UINT64_MAX,
                                   .state.array = UINT64_MAX};
    uint8_t out[PS_WIRE_HEADER_MAX];
    size_t bytes;
    ps_wire_encode(&widest, out, &bytes);
    assert_int_equal(bytes, 1 + 3 * 1 + 3 * 5 + 5 * 9);
    ps_wire_header back;
    assert_ok(ps_wire_decode(out, bytes, &back));
    assert_same(&back, &widest);
}

/* Beside the five items of all messages each kind has those of its line at the head of
 * wire.h. What it does not say is 0 at the other end. */
TEST(says_only_what_its_kind_says)
{
    static const struct {
        uint8_t kind, items;
    } cases[] = {
        {PS_MSG_HELLO, 9},     {PS_MSG_INIT, 9},       {PS_MSG_PUSH, 11},
        {PS_MSG_PULL, 7},      {PS_MSG_BYE, 6},        {PS_MSG_EXACT, 7},
        {PS_MSG_FETCH, 9},     {PS_MSG_RESTORE, 10},   {PS_MSG_GROUPS, 7},
        {PS_MSG_READY, 7},     {PS_MSG_WEIGHTS, 12},   {PS_MSG_CREDIT, 6},
        {PS_MSG_STALE, 7},     {PS_MSG_ERROR, 6},      {PS_MSG_EXACT_WEIGHTS, 12},
        {PS_MSG_LEFT, 6},      {PS_MSG_STATE, 11},     {PS_MSG_RESTORED, 8},
        {PS_MSG_PULL_ROWS, 9}, {PS_MSG_PUSH_ROWS, 9},  {PS_MSG_LOAD_ROWS, 9},
        {PS_MSG_SAVE_ROWS, 9}, {PS_MSG_ROWS, 10},      {PS_MSG_ASK_TABLES, 6},
        {PS_MSG_READ_ROWS, 7}, {PS_MSG_TABLES, 7},     {PS_MSG_READ, 8},
        {PS_MSG_SOON, 6},      {PS_MSG_TWIN_POINT, 7}, {PS_MSG_TWIN_ROWS, 7},
        {PS_MSG_TWIN_ASK, 7},  {PS_MSG_TWIN, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ps_wire_header h = PUSH, back;
        h.kind = cases[i].kind;
        h.credit = 7;
        h.hello.number = 1;
        h.hello.rings = true;
        uint8_t out[PS_WIRE_HEADER_MAX];
        size_t bytes;
        ps_wire_encode(&h, out, &bytes);
        assert_int_equal(out[0], 0x90 | cases[i].items);
        assert_int_equal(ps_wire_decode(out, bytes, &back), PS_OK);
        assert_int_equal(back.credit, ps_wire_from_worker(h.kind) || i > 22 ? 0 : 7);
    }
}

TEST(refuses_every_truncation_and_a_tail)
{
    ps_wire_header h;
    for (size_t n = 0; n < sizeof PUSH_BYTES; n++)
        assert_int_equal(ps_wire_decode(PUSH_BYTES, n, &h), PS_ERR_PROTOCOL);
    uint8_t longer[sizeof PUSH_BYTES + 1] = {0};
    memcpy(longer, PUSH_BYTES, sizeof PUSH_BYTES);
    assert_int_equal(ps_wire_decode(longer, sizeof longer, &h), PS_ERR_PROTOCOL);
    assert_int_equal(ps_wire_decode(NULL, 0, &h), PS_ERR_PROTOCOL);
}

static void refuses_with(size_t place, uint8_t byte, const char *words)
{
    uint8_t frame[sizeof PUSH_BYTES];
    memcpy(frame, PUSH_BYTES, sizeof frame);
    frame[place] = byte;
    ps_wire_header h;
    assert_error(ps_wire_decode(frame, sizeof frame, &h), PS_ERR_PROTOCOL, words);
}

TEST(refuses_what_does_not_fit)
{
    refuses_with(0, 0x94, "header");     // four items
    refuses_with(0, 0x99, "malformed");  // nine: of another kind
    refuses_with(0, 0x8a, "header");     // a map
    refuses_with(1, 0x63, "version 99"); // of the future
    refuses_with(2, 0x63, "kind 99");    // unknown kind
    refuses_with(2, 0xff, "malformed");  // -1
    refuses_with(22, 0x09, "codec 9");   // unknown codec
    refuses_with(13, 0xc0, "malformed"); // nil as rank
}

TEST(tells_which_have_a_payload)
{
    ps_wire_header h = PUSH;
    assert_true(ps_wire_has_payload(&h));
    h.codec = PS_CODEC_SHM;
    assert_false(ps_wire_has_payload(&h));
    h.codec = PS_CODEC_IDLE;
    assert_false(ps_wire_has_payload(&h));
    h = (ps_wire_header){.kind = PS_MSG_CREDIT};
    assert_false(ps_wire_has_payload(&h));
    h = (ps_wire_header){.kind = 99};
    assert_false(ps_wire_has_payload(&h));
    assert_true(ps_wire_from_worker(PS_MSG_EXACT));
    assert_false(ps_wire_from_worker(PS_MSG_EXACT_WEIGHTS));
    assert_false(ps_wire_from_worker(99));
    assert_string_equal(ps_wire_kind_name(PS_MSG_WEIGHTS), "WEIGHTS");
    assert_string_equal(ps_wire_kind_name(99), "unknown");
}

/* A gradient in shared memory once came with the payload of the stranger's message before
 * it. The payload was returned as credit that no worker had spent. */
TEST(a_message_does_not_keep_the_payload_before_it)
{
    void *context = zmq_ctx_new();
    void *router = zmq_socket(context, ZMQ_ROUTER);
    void *dealer = zmq_socket(context, ZMQ_DEALER);
    assert_int_equal(zmq_bind(router, "inproc://wire"), 0);
    assert_int_equal(zmq_connect(dealer, "inproc://wire"), 0);
    zmq_send(dealer, "head", 4, ZMQ_SNDMORE);
    zmq_send(dealer, "payload", 7, 0);
    zmq_send(dealer, "head", 4, 0);
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    bool got;
    assert_ok(ps_wire_recv(router, true, &f, &got));
    assert_int_equal(got && f.has_payload, true);
    assert_int_equal(zmq_msg_size(&f.payload), 7);
    assert_ok(ps_wire_recv(router, true, &f, &got));
    assert_int_equal(got && !f.has_payload, true);
    assert_int_equal(zmq_msg_size(&f.payload), 0);
    ps_wire_frames_close(&f);
    zmq_close(dealer);
    zmq_close(router);
    zmq_ctx_term(context);
}
