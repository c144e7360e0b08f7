/* A shard against peers that break the protocol. Each gets one clear answer, nothing is
 * counted by mistake, and the shard does not crash. Strangers do not disturb a job;
 * members that break the rules end it. The peers are bare DEALER sockets. */
#include <poll.h>

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

/* A stranger that was refused may have lost its connection: then nothing is sent. */
static void say(void *stranger, const void *header, size_t n, const void *payload,
                size_t bytes)
{
    if (zmq_send(stranger, header, n, ZMQ_DONTWAIT | (payload ? ZMQ_SNDMORE : 0)) >= 0 &&
        payload)
        (void)zmq_send(stranger, payload, bytes, ZMQ_DONTWAIT);
}

static void say_header(void *stranger, const ps_wire_header *h, const void *payload,
                       size_t bytes)
{
    uint8_t header[PS_WIRE_HEADER_MAX];
    size_t n;
    ps_wire_encode(h, header, &n);
    say(stranger, header, n, payload, bytes);
}

/* Sends a gradient of 1000 in the name of worker 0 in every form of a message. None of
 * them is answered or counted. */
static void say_everything(bare_job *b, void *stranger)
{
    ps_wire_header h = bare_header(b, PS_MSG_PUSH, 0, 0);
    uint64_t bytes = h.count * sizeof(float);
    for (uint64_t i = 0; i < h.count; i++)
        b->payload[i] = 1000.0f;
    for (int kind = PS_MSG_HELLO; kind <= PS_MSG_EXACT; kind++) {
        h.kind = (uint8_t)kind;
        say_header(stranger, &h, b->payload, bytes);
        say_header(stranger, &h, NULL, 0);
    }
    h.kind = 77;
    say_header(stranger, &h, NULL, 0);
    h = bare_header(b, PS_MSG_PUSH, 0, 0);
    uint8_t good[PS_WIRE_HEADER_MAX];
    size_t n;
    ps_wire_encode(&h, good, &n);
    for (size_t cut = 0; cut < n; cut++)
        say(stranger, good, cut, b->payload, bytes);
    for (int i = 0; i < 200; i++) {
        uint8_t noise[64];
        for (int k = 0; k < 64; k++)
            noise[k] = (uint8_t)((i * 131 + k * 37 + k * k * i) >> 2);
        say(stranger, noise, sizeof noise, NULL, 0);
    }
    bare_silence(stranger);
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
    assert_int_equal(ps_member_check(b->member[0]), PS_OK);
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
    void *strangers[] = {
        bare_open_socket(&b, "w\0\0\0\0", 5, NULL),
        bare_open_socket(&b, "stranger", 8, NULL),
        bare_open_socket(&b, id, sizeof id, NULL),
        bare_open_socket(&b, id, sizeof id, &other),
    };
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
        say_everything(&b, strangers[i]);
    assert_undisturbed(&b);
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
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
    void *second = bare_open_socket(&b, id, sizeof id, own);
    ps_wire_id(0, &other, id);
    void *third = bare_open_socket(&b, id, sizeof id, own);
    say_everything(&b, second);
    say_everything(&b, third);
    bare_send_chunk(&b, PS_MSG_PUSH, 1, 0, 0, 0.0f);
    assert_undisturbed(&b);
    ps_zsock_close(&second);
    ps_zsock_close(&third);
    bare_close(&b);
    assert_true(b.job.server[0].stats.strangers > 0); // some may not have arrived
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
    void *greedy = bare_open_socket(&b, id, sizeof id, secret);
    char *huge = calloc(4, 1 << 20);
    bare_send_bytes(greedy, id, sizeof id, huge, 4 << 20);
    bare_silence(greedy);
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
    assert_int_equal(ps_member_check(b.member[0]), PS_OK);
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

typedef struct breach {
    const char *says; // a part of the answer
    void (*change)(const bare_job *b, ps_wire_header *h, size_t *bytes);
} breach;

static void far_chunk(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->chunk = b->plan.n_chunks;
}
static void wrong_count(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->count++;
}
static void huge_count(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->count = UINT64_MAX / 2;
}
static void short_payload(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    *bytes -= 4;
}
static void long_payload(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    *bytes += 4;
}
static void empty_payload(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    *bytes = 0;
}
static void no_payload(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    *bytes = SIZE_MAX;
}
static void later_step(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->step = 2; // of step 1 it would be early
}
static void other_codec(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->codec = PS_CODEC_FP16;
}
static void lies_about_shm(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->codec = PS_CODEC_SHM;
    *bytes = SIZE_MAX;
}
static void hello_with_shm(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_HELLO;
    h->codec = PS_CODEC_SHM;
    *bytes = SIZE_MAX;
}
static void shard_kind(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_WEIGHTS;
}
static void far_pull(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_PULL;
    h->step = 7;
    *bytes = SIZE_MAX;
}
static void bye_with_payload(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_BYE;
}

static void no_such_array(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_FETCH; // sgd without momentum keeps nothing
    *bytes = SIZE_MAX;
}
static void far_fetch(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_FETCH;
    h->state.array = PS_WIRE_STATE_WEIGHTS;
    h->step = 1;
    *bytes = SIZE_MAX;
}
static void fetch_into_shared_memory(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_FETCH; // its HELLO named none
    h->state.array = PS_WIRE_STATE_WEIGHTS;
    h->codec = PS_CODEC_SHM;
    *bytes = SIZE_MAX;
}
static void fetch_with_payload(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_FETCH;
}
static void restore_without_payload(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_RESTORE;
    h->state.array = PS_WIRE_STATE_WEIGHTS;
    *bytes = SIZE_MAX;
}
static void restore_in_shared_memory(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_RESTORE;
    h->codec = PS_CODEC_SHM;
    *bytes = SIZE_MAX;
}
static void restore_of_the_rule(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_RESTORE;
    h->state.array = PS_WIRE_STATE_RULE;
}
static void groups_in_a_job_with_a_model(const bare_job *b, ps_wire_header *h,
                                         size_t *bytes)
{
    h->kind = PS_MSG_GROUPS;
    h->count = 1;
    *bytes = 64;
}
static void init_at_another_step(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_INIT;
    h->step = 3;
}

static void other_nonce(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->nonce++;
}
static void other_rank(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->rank = 1;
}
static void no_rank(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->rank = UINT32_MAX;
}
static void no_kind(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = 77;
}
static void other_version(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->version = 9;
}
static void no_codec(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->codec = PS_CODEC_COUNT;
}

TEST(members_that_break_the_rules_end_the_job)
{
    static const breach breaches[] = {
        {"does not have", far_chunk},
        {"the plan has", wrong_count},
        {"the plan has", huge_count},
        {"bytes of payload", short_payload},
        {"bytes of payload", long_payload},
        {"bytes of payload", empty_payload},
        {"no payload", no_payload},
        {"before that step", later_step},
        {"codec", other_codec},
        {"another path", lies_about_shm},
        {"a HELLO that differs", hello_with_shm},
        {"only shards send", shard_kind},
        {"a pull of chunk", far_pull},
        {"where none belongs", bye_with_payload},
        {"of array 0, which chunk", no_such_array},
        {"state of chunk 0 at version 1; it is at version 0", far_fetch},
        {"FETCH into shared memory", fetch_into_shared_memory},
        {"where none belongs", fetch_with_payload},
        {"no payload", restore_without_payload},
        {"in shared memory", restore_in_shared_memory},
        {"of array 255, which chunk", restore_of_the_rule},
        {"other parameter groups than the job's", groups_in_a_job_with_a_model},
        {"at version 3, the job begins at 0", init_at_another_step},
        {"another job", other_nonce},
        {"in the name of worker 1", other_rank},
        {"in the name of worker 4294967295", no_rank},
        {"kind 77", no_kind},
        {"version 9", other_version},
        {"unknown codec", no_codec},
    };
    for (size_t i = 0; i < sizeof breaches / sizeof breaches[0]; i++) {
        bare_job b;
        bare_open(&b, 1);
        bare_begin(&b);
        ps_wire_header h = bare_header(&b, PS_MSG_PUSH, 0, 0);
        size_t bytes = h.count * sizeof(float);
        breaches[i].change(&b, &h, &bytes);
        bare_send(b.socket[0], &h, bytes == SIZE_MAX ? NULL : b.payload,
                  bytes == SIZE_MAX ? 0 : bytes);
        expect_error(b.socket[0], breaches[i].says);
        wait_for_the_news(&b);
        bare_close(&b);
        assert_int_not_equal(b.job.server[0].err, PS_OK);
        if (!strstr(b.job.server[0].text, "worker 0 sent"))
            fail_msg("%s", b.job.server[0].text);
    }
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
    const char *codec, *warmup, *says;
    int frame_codec;  // -1: the right one
    int64_t surplus;  // bytes
    bool raw_indices; // topk: descending ones
} lie;

TEST(coded_frames_that_lie_are_refused)
{
    static const lie lies[] = {
        {"exchange.codec=fp16", "exchange.codec_warmup=0", "codec", PS_CODEC_NONE, 0,
         false},
        {"exchange.codec=fp16", "exchange.codec_warmup=0", "codec", PS_CODEC_INT8, 0,
         false},
        {"exchange.codec=int8", "exchange.codec_warmup=0", "bytes of payload", -1, 4,
         false},
        {"exchange.codec=onebit", "exchange.codec_warmup=0", "bytes of payload", -1, -1,
         false},
        {"exchange.codec=topk", "exchange.codec_warmup=0", "bytes of payload", -1, 8,
         false},
        {"exchange.codec=topk", "exchange.codec_warmup=0", "ind", -1, 0, true},
        {"exchange.codec=onebit", "exchange.codec_warmup=1", "codec", PS_CODEC_ONEBIT, 0,
         false}, // this step still has int8
        {"exchange.codec=onebit", "exchange.codec_warmup=1", "bytes of payload", -1, -1,
         false},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        bare_job b;
        ps_chunk_codec codec;
        bare_open_with(&b, 1, (const char *const[]){lies[i].codec, lies[i].warmup}, 2);
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
