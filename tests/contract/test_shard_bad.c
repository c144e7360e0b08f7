/* A shard against peers that break the protocol. Each gets one clear answer, nothing is
 * counted by mistake, and the shard does not crash. Strangers do not disturb a job;
 * members that break the rules end it. The peers are bare DEALER sockets. */
#include <poll.h>

#include "../support/sent_away.h"
#include "bare_job.h"
#include "check.h"

/* ---- strangers ---- */

static void expect_error(void *socket, const char *part)
{
    char text[600];
    ps_wire_header h = bare_answer(socket, text, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(h.kind, PS_MSG_ERROR);
    if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* A stranger that was refused may have lost its connection: then nothing is sent. Returns
 * how many messages are. */
static int say(void *stranger, const void *header, size_t n, const void *payload,
               size_t bytes)
{
    if (zmq_send(stranger, header, n, ZMQ_DONTWAIT | (payload ? ZMQ_SNDMORE : 0)) < 0)
        return 0;
    return !payload || zmq_send(stranger, payload, bytes, ZMQ_DONTWAIT) >= 0;
}

static int say_header(void *stranger, const ps_wire_header *h, const void *payload,
                      size_t bytes)
{
    uint8_t header[PS_WIRE_HEADER_MAX];
    size_t n;
    ps_wire_encode(h, header, &n);
    return say(stranger, header, n, payload, bytes);
}

/* Sends a gradient of 1000 in the name of worker 0 in every form of a message. None of
 * them is to be answered or counted. Returns how many were sent. */
static uint64_t say_everything(bare_job *b, void *stranger)
{
    ps_wire_header h = bare_header(b, PS_MSG_PUSH, 0, 0);
    uint64_t bytes = h.count * sizeof(float);
    for (uint64_t i = 0; i < h.count; i++)
        b->payload[i] = 1000.0f;
    int sent = 0;
    for (int kind = PS_MSG_HELLO; kind <= PS_MSG_EXACT; kind++) {
        h.kind = (uint8_t)kind;
        sent += say_header(stranger, &h, b->payload, bytes);
        sent += say_header(stranger, &h, NULL, 0);
    }
    h.kind = 77;
    sent += say_header(stranger, &h, NULL, 0);
    h = bare_header(b, PS_MSG_PUSH, 0, 0);
    uint8_t good[PS_WIRE_HEADER_MAX];
    size_t n;
    ps_wire_encode(&h, good, &n);
    for (size_t cut = 0; cut < n; cut++)
        sent += say(stranger, good, cut, b->payload, bytes);
    for (int i = 0; i < 200; i++) {
        uint8_t noise[64];
        for (int k = 0; k < 64; k++)
            noise[k] = (uint8_t)((i * 131 + k * 37 + k * k * i) >> 2);
        sent += say(stranger, noise, sizeof noise, NULL, 0);
    }
    return (uint64_t)sent;
}

/* The shard has heard that many that are no member's, and has not answered this one. */
static void assert_dropped(const bare_job *b, uint64_t many, void *stranger)
{
    zmq_pollitem_t answer = {.socket = stranger, .events = ZMQ_POLLIN};
    const ps_deadline deadline = ps_deadline_in_ms(20000);
    ps_shard_stats stats;
    do {
        assert_int_equal(zmq_poll(&answer, 1, 1), 0);
        assert_false(ps_deadline_passed(deadline));
        ps_server_get_stats(b->job.server[0].server, &stats);
    } while (stats.strangers < many);
}

/* Worker 0 makes one more step, which changes its weights from 1 to 0.5. */
static void assert_undisturbed(bare_job *b)
{
    float weights[4];
    bare_send_chunk(b, PS_MSG_PUSH, 0, 0, 0, 1.0f);
    ps_wire_header h = bare_answer(b->socket[0], weights, sizeof weights);
    assert_int_equal(h.kind, PS_MSG_WEIGHTS);
    assert_int_equal(h.step, 1);
    assert_true(weights[0] == 0.5f && weights[3] == 0.5f);
    assert_ok(ps_member_check(b->member[0]));
}

/* Four strangers: one with the routing id of 0.1.0, one with an id of its own, one that
 * knows a worker's id, and one that also has a secret, which is that of another job. */
TEST(strangers_do_not_disturb)
{
    bare_job b;
    bare_open(&b, 1);
    bare_begin(&b);
    uint8_t id[PS_WIRE_ID_BYTES];
    const ps_secret *secret = ps_member_secret(b.member[0]);
    ps_secret other = *secret;
    other.bytes[0] ^= 0x80;
    ps_wire_id(0, secret, id);
    void *monitors[4];
    void *strangers[] = {
        bare_open_socket(&b, "w\0\0\0\0", 5, NULL, &monitors[0]),
        bare_open_socket(&b, "stranger", 8, NULL, &monitors[1]),
        bare_open_socket(&b, id, sizeof id, NULL, &monitors[2]),
        bare_open_socket(&b, id, sizeof id, &other, &monitors[3]),
    };
    for (int i = 0; i < 4; i++)
        say_everything(&b, strangers[i]);
    for (int i = 0; i < 4; i++) {
        assert_true(test_ends(monitors[i], 20000));
        test_assert_silent(strangers[i], monitors[i]);
    }
    assert_undisturbed(&b);
    for (int i = 0; i < 4; i++)
        ps_zsock_close(&strangers[i]);
    bare_close(&b);
}

/* A peer has a valid secret, but not the routing id that belongs to it. */
TEST(what_comes_under_another_id_is_dropped)
{
    bare_job b;
    bare_open(&b, 2);
    bare_begin(&b);
    const ps_secret *own = ps_member_secret(b.member[1]);
    ps_secret other = *own;
    other.bytes[3] ^= 1;
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_wire_id(0, own, id); // of worker 1, in the name of worker 0
    void *second = bare_open_socket(&b, id, sizeof id, own, NULL);
    ps_wire_id(0, &other, id);
    void *third = bare_open_socket(&b, id, sizeof id, own, NULL);
    const uint64_t sent = say_everything(&b, second) + say_everything(&b, third);
    assert_true(sent > 400);
    assert_dropped(&b, sent, second);
    bare_send_chunk(&b, PS_MSG_PUSH, 1, 0, 0, 0.0f);
    assert_undisturbed(&b);
    assert_dropped(&b, sent, second);
    assert_dropped(&b, sent, third);
    ps_zsock_close(&second);
    ps_zsock_close(&third);
    bare_close(&b);
    assert_int_equal(b.job.server[0].stats.strangers, sent);
}

/* Frames beyond the limit cost the connection, not the shard. */
TEST(a_frame_too_long_costs_the_connection)
{
    bare_job b;
    bare_open(&b, 1);
    bare_begin(&b);
    uint8_t id[PS_WIRE_ID_BYTES];
    const ps_secret *secret = ps_member_secret(b.member[0]);
    ps_wire_id(7, secret, id);
    void *monitor, *greedy = bare_open_socket(&b, id, sizeof id, secret, &monitor);
    char *huge = calloc(4, 1 << 20);
    bare_send_bytes(greedy, id, sizeof id, huge, 4 << 20);
    assert_true(test_ends(monitor, 20000));
    test_assert_silent(greedy, monitor);
    free(huge);
    assert_undisturbed(&b);
    ps_zsock_close(&greedy);
    bare_close(&b);
}

TEST(another_epoch_is_told_the_present_one)
{
    bare_job b;
    bare_open(&b, 1);
    bare_begin(&b);
    const uint32_t epochs[] = {b.roster->epoch + 3, b.roster->epoch - 1};
    for (int i = 0; i < 2; i++) {
        ps_wire_header h = bare_header(&b, PS_MSG_PUSH, 0, 0);
        h.epoch = epochs[i];
        bare_send(b.socket[0], &h, b.payload, h.count * sizeof(float));
        char none;
        h = bare_answer(b.socket[0], &none, 0);
        assert_int_equal(h.kind, PS_MSG_STALE);
        assert_int_equal(h.stale.present, b.roster->epoch);
    }
    assert_ok(ps_member_check(b.member[0]));
    bare_close(&b);
}

/* ---- members ---- */

/* The shard has answered with its error. The test waits until the members know it, too,
 * and only then ends the job for its own reason. */
static void wait_for_the_news(const bare_job *b)
{
    struct pollfd aborted = {.fd = ps_member_abort_fd(b->member[0]), .events = POLLIN};
    assert_int_equal(poll(&aborted, 1, 10000), 1);
}

/* A push of worker 0 that breaks a rule. */
typedef struct breach {
    bare_job b;
    ps_wire_header h;
    size_t bytes; // of the payload; NO_PAYLOAD: there is no such frame
} breach;
enum { NO_PAYLOAD = -1 };

static void breach_begin(breach *x)
{
    bare_open(&x->b, 1);
    bare_begin(&x->b);
    x->h = bare_header(&x->b, PS_MSG_PUSH, 0, 0);
    x->bytes = x->h.count * sizeof(float);
}

/* says: a part of the answer. */
static void breach_send(breach *x, const char *says)
{
    const bool none = x->bytes == (size_t)NO_PAYLOAD;
    bare_send(x->b.socket[0], &x->h, none ? NULL : x->b.payload, none ? 0 : x->bytes);
    expect_error(x->b.socket[0], says);
    wait_for_the_news(&x->b);
    bare_close(&x->b);
    assert_int_not_equal(x->b.job.server[0].err, PS_OK);
    if (!strstr(x->b.job.server[0].text, "worker 0 sent"))
        fail_msg("%s", x->b.job.server[0].text);
}

/* What the changes of the push are answered with. */
#define REFUSED(says, ...)                                                               \
    do {                                                                                 \
        breach x;                                                                        \
        breach_begin(&x);                                                                \
        __VA_ARGS__;                                                                     \
        breach_send(&x, says);                                                           \
    } while (0)

TEST(pushes_that_do_not_fit_end_the_job)
{
    REFUSED("does not have", x.h.chunk = x.b.plan.n_chunks);
    REFUSED("the plan has", x.h.count++);
    REFUSED("the plan has", x.h.count = UINT64_MAX / 2);
    REFUSED("bytes of payload", x.bytes -= 4);
    REFUSED("bytes of payload", x.bytes += 4);
    REFUSED("bytes of payload", x.bytes = 0);
    REFUSED("no payload", x.bytes = NO_PAYLOAD);
    REFUSED("before that step", x.h.step = 2); // of step 1 it would be early
    REFUSED("codec", x.h.codec = PS_CODEC_FP16);
    REFUSED("unknown codec", x.h.codec = PS_CODEC_COUNT);
    REFUSED("another path", x.h.codec = PS_CODEC_SHM, x.bytes = NO_PAYLOAD);
    REFUSED("another job", x.h.nonce++);
    REFUSED("in the name of worker 1", x.h.rank = 1);
    REFUSED("in the name of worker 4294967295", x.h.rank = UINT32_MAX);
    REFUSED("version 200", x.h.version = 200);
}

TEST(other_messages_that_do_not_fit_end_the_job)
{
    REFUSED("kind 77", x.h.kind = 77);
    REFUSED("only shards send", x.h.kind = PS_MSG_WEIGHTS);
    REFUSED("a HELLO that differs", x.h.kind = PS_MSG_HELLO, x.h.codec = PS_CODEC_SHM,
            x.bytes = NO_PAYLOAD);
    REFUSED("a pull of chunk", x.h.kind = PS_MSG_PULL, x.h.step = 7,
            x.bytes = NO_PAYLOAD);
    REFUSED("where none belongs", x.h.kind = PS_MSG_BYE);
    REFUSED("at version 3, the job begins at 0", x.h.kind = PS_MSG_INIT, x.h.step = 3);
    REFUSED("other parameter groups than the job's", x.h.kind = PS_MSG_GROUPS,
            x.h.count = 1, x.bytes = 64);
}

TEST(states_that_do_not_fit_end_the_job)
{
    REFUSED("of array 0, which chunk", x.h.kind = PS_MSG_FETCH,
            x.bytes = NO_PAYLOAD); // sgd without momentum keeps nothing
    REFUSED("state of chunk 0 at version 1; it is at version 0", x.h.kind = PS_MSG_FETCH,
            x.h.state.array = PS_WIRE_STATE_WEIGHTS, x.h.step = 1, x.bytes = NO_PAYLOAD);
    REFUSED("FETCH into shared memory", x.h.kind = PS_MSG_FETCH,
            x.h.state.array = PS_WIRE_STATE_WEIGHTS, x.h.codec = PS_CODEC_SHM,
            x.bytes = NO_PAYLOAD); // its HELLO named none
    REFUSED("where none belongs", x.h.kind = PS_MSG_FETCH);
    REFUSED("no payload", x.h.kind = PS_MSG_RESTORE,
            x.h.state.array = PS_WIRE_STATE_WEIGHTS, x.bytes = NO_PAYLOAD);
    REFUSED("in shared memory", x.h.kind = PS_MSG_RESTORE, x.h.codec = PS_CODEC_SHM,
            x.bytes = NO_PAYLOAD);
    REFUSED("of array 255, which chunk", x.h.kind = PS_MSG_RESTORE,
            x.h.state.array = PS_WIRE_STATE_RULE);
}

TEST(a_push_before_hello_and_too_many_frames)
{
    bare_job b;
    bare_open(&b, 1);
    bare_send_chunk(&b, PS_MSG_PUSH, 0, 0, 0, 1.0f);
    expect_error(b.socket[0], "before HELLO");
    wait_for_the_news(&b);
    bare_close(&b);
    bare_open(&b, 1);
    bare_begin(&b);
    ps_wire_header h = bare_header(&b, PS_MSG_PUSH, 0, 0);
    uint8_t bytes[PS_WIRE_HEADER_MAX];
    size_t n;
    ps_wire_encode(&h, bytes, &n);
    zmq_send(b.socket[0], bytes, n, ZMQ_SNDMORE);
    for (int i = 0; i < 5; i++)
        zmq_send(b.socket[0], b.payload, 64, i < 4 ? ZMQ_SNDMORE : 0);
    expect_error(b.socket[0], "too many frames");
    wait_for_the_news(&b);
    bare_close(&b);
}

/* ---- codecs ---- */

typedef struct lie {
    const char *codec;
    int warmup;
    const char *says;
    int frame_codec;  // -1: the right one
    int64_t surplus;  // bytes
    bool raw_indices; // topk: descending ones
} lie;

TEST(coded_frames_that_lie_are_refused)
{
    static const lie lies[] = {
        {"fp16", 0, "codec", PS_CODEC_NONE, 0, false},
        {"fp16", 0, "codec", PS_CODEC_INT8, 0, false},
        {"int8", 0, "bytes of payload", -1, 4, false},
        {"onebit", 0, "bytes of payload", -1, -1, false},
        {"topk", 0, "bytes of payload", -1, 8, false},
        {"topk", 0, "ind", -1, 0, true},
        {"onebit", 1, "codec", PS_CODEC_ONEBIT, 0, false}, // this step still has int8
        {"onebit", 1, "bytes of payload", -1, -1, false},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        bare_job b;
        ps_chunk_codec codec;
        char codec_set[64];
        snprintf(codec_set, sizeof codec_set, "exchange.codec=%s", lies[i].codec);
        const char *const sets[] = {codec_set, lies[i].warmup
                                                   ? "exchange.codec_warmup=1"
                                                   : "exchange.codec_warmup=0"};
        bare_open_with(&b, 1, sets, 2);
        bare_begin(&b);
        uint32_t c = bare_coded_chunk(&b, &codec);
        const ps_chunk *chunk = &b.plan.chunks[c];
        ps_codec right = ps_chunk_codec_of(&codec, chunk, PS_CODED_GRADIENT, 0);
        uint64_t bytes = ps_chunk_codec_bytes(&codec, chunk, right);
        ps_wire_header h = bare_header(&b, PS_MSG_PUSH, 0, c);
        h.codec = (uint8_t)(lies[i].frame_codec < 0 ? (int)right : lies[i].frame_codec);
        memset(b.payload, 0, bytes + 8);
        if (lies[i].raw_indices) ((uint8_t *)b.payload)[4] = 7; // before 0
        bare_send(b.socket[0], &h, b.payload, (size_t)((int64_t)bytes + lies[i].surplus));
        expect_error(b.socket[0], lies[i].says);
        wait_for_the_news(&b);
        bare_close(&b);
        assert_int_not_equal(b.job.server[0].err, PS_OK);
    }
}

/* exchange.levels 2: the workers are on one host. So worker 0 sends the gradient of both,
 * and worker 1 sends nothing. */
TEST(only_the_leader_of_a_host_may_speak)
{
    bare_job b;
    float weight;
    bare_open_with(&b, 2, (const char *const[]){"exchange.levels=2"}, 1);
    bare_hello(&b, 0);
    for (uint32_t c = 0; c < b.plan.n_chunks; c++) {
        bare_send_chunk(&b, PS_MSG_INIT, 0, c, 0, 1.0f);
        assert_int_equal(bare_answer(b.socket[0], &weight, 0).kind, PS_MSG_CREDIT);
    }
    bare_send_chunk(&b, PS_MSG_PUSH, 0, 3, 0, 2.0f);
    const ps_wire_header got = bare_answer(b.socket[0], &weight, sizeof weight);
    assert_true(got.kind == PS_MSG_WEIGHTS && got.step == 1 && weight == 0.0f);
    const ps_wire_header h = bare_header(&b, PS_MSG_HELLO, 1, 0);
    bare_send(b.socket[1], &h, NULL, 0);
    expect_error(b.socket[1], "worker 1 sent");
    wait_for_the_news(&b);
    bare_close(&b);
    assert_int_not_equal(b.job.server[0].err, PS_OK);
}
