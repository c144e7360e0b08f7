/* Messages that a shard gets twice, as after a lost connection, count once and are
 * answered. A worker may be a step ahead of the others. The workers are bare DEALER
 * sockets. */
#include "bare_job.h"
#include "check.h"
#include "hash.h"
#include "job_keys.h"
#include "sync_codec.h"

/* A gradient of `value` for 16 elements from `first` on. */
static void push_range(bare_job *b, const ps_chunk_codec *codec, int rank, uint32_t c,
                       uint64_t first, float value)
{
    static float values[8192];
    static uint8_t payload[65536];
    const ps_chunk *chunk = &b->plan.chunks[c];
    memset(values, 0, sizeof values);
    for (uint64_t i = first; i < first + 16; i++)
        values[i] = value;
    ps_chunk_codec_encode(codec, chunk, PS_CODEC_TOPK, values, NULL, 0, payload);
    ps_wire_header h = bare_header(b, PS_MSG_PUSH, rank, c);
    h.codec = PS_CODEC_TOPK;
    bare_send(b->socket[rank], &h, payload,
              ps_chunk_codec_bytes(codec, chunk, PS_CODEC_TOPK));
}

static void ask_for_exact(bare_job *b, int rank, uint32_t c, uint64_t step)
{
    ps_wire_header h = bare_header(b, PS_MSG_EXACT, rank, c);
    h.step = step;
    bare_send(b->socket[rank], &h, NULL, 0);
}

/* The first weights are 1, lr is 0.5. Two workers push different elements, few enough for
 * topk to send them whole: the weights become 0 and 0.75 there. The answer, by onebit,
 * has five eighths of the changes. The exact weights have all changes. They come when
 * both workers have asked. */
TEST(everybody_gets_the_exact_weights)
{
    bare_job b;
    ps_chunk_codec codec;
    bare_open_with(&b, 2, (const char *const[]){"exchange.codec=topk"}, 1);
    bare_begin(&b);
    uint32_t c = bare_coded_chunk(&b, &codec);
    const ps_chunk *chunk = &b.plan.chunks[c];
    assert_true(chunk->count <= 8192);
    push_range(&b, &codec, 0, c, 0, 2.0f);
    push_range(&b, &codec, 1, c, 16, 0.5f);
    static float got[8192], change[8192];
    for (int r = 0; r < 2; r++) {
        ps_wire_header h = bare_answer(b.socket[r], got, sizeof got);
        assert_int_equal(h.codec, PS_CODEC_ONEBIT);
        uint64_t bytes = ps_chunk_codec_bytes(&codec, chunk, PS_CODEC_ONEBIT);
        assert_ok(
            ps_chunk_codec_decode(&codec, chunk, PS_CODEC_ONEBIT, got, bytes, change));
        for (uint64_t i = 0; i < chunk->count; i++)
            assert_true(change[i] == (i < 16 ? -0.625f : i < 32 ? -0.15625f : 0.0f));
    }
    ask_for_exact(&b, 1, c, 1);
    ask_for_exact(&b, 1, c, 1);
    bare_hello(&b, 1);
    ask_for_exact(&b, 0, c, 1);
    for (int r = 0; r < 2; r++) {
        ps_wire_header h = bare_answer(b.socket[r], got, sizeof got);
        assert_int_equal(h.codec, PS_CODEC_NONE);
        assert_int_equal(h.step, 1);
        for (uint64_t i = 0; i < chunk->count; i++)
            assert_true(got[i] == (i < 16 ? 0.0f : i < 32 ? 0.75f : 1.0f));
    }
    ask_for_exact(&b, 0, c, 1); // its answer was lost
    assert_int_equal(bare_answer(b.socket[0], got, sizeof got).codec, PS_CODEC_NONE);
    bare_hello(&b, 1);
    bare_close(&b);
}

/* ---- repetitions, as after a lost connection ---- */

static void send_short(bare_job *b, int kind, int rank, uint32_t chunk, uint64_t step)
{
    ps_wire_header h = bare_header(b, kind, rank, chunk);
    h.step = step;
    if (kind == PS_MSG_HELLO) h.hello.number = step;
    bare_send(b->socket[rank], &h, NULL, 0);
}

/* Returns the next answer, which has to have this kind and step (READY: number). */
static ps_wire_header expect_kind(bare_job *b, int rank, int kind, uint64_t step,
                                  float value)
{
    float w[4];
    ps_wire_header h = bare_answer(b->socket[rank], w, sizeof w);
    assert_int_equal(h.kind, kind);
    assert_int_equal(kind == PS_MSG_READY ? h.hello.number : h.step, step);
    if (kind == PS_MSG_WEIGHTS || kind == PS_MSG_EXACT_WEIGHTS)
        assert_true(w[3] == value);
    return h;
}

TEST(a_hello_starts_the_credits_anew)
{
    bare_job b;
    bare_open(&b, 2);
    bare_begin(&b);
    uint64_t bytes = b.plan.chunks[1].count * sizeof(float);
    for (uint64_t number = 2; number < 5; number++) {
        // The shard owes credit for it, but would have sent it to the connection before.
        bare_send_chunk(&b, PS_MSG_PUSH, 0, 1, 0, 1.0f);
        send_short(&b, PS_MSG_HELLO, 0, 0, number);
        assert_int_equal(expect_kind(&b, 0, PS_MSG_READY, number, 0).credit, 0);
    }
    bare_send_chunk(&b, PS_MSG_PUSH, 0, 1, 0, 1.0f);
    send_short(&b, PS_MSG_PULL, 0, 3, 0); // its answer says that the push has been read
    uint64_t credit = expect_kind(&b, 0, PS_MSG_WEIGHTS, 0, 1.0f).credit;
    bare_send_chunk(&b, PS_MSG_PUSH, 1, 1, 0, 1.0f);
    credit += expect_kind(&b, 0, PS_MSG_WEIGHTS, 1, 0.0f).credit;
    assert_int_equal(credit, bytes);
    assert_int_equal(expect_kind(&b, 1, PS_MSG_WEIGHTS, 1, 0.0f).credit, bytes);
    bare_close(&b);
    assert_int_equal(b.job.server[0].stats.pushes, 2);
    assert_int_equal(b.job.server[0].stats.repeated, 3);
}

TEST(whatever_is_repeated_counts_once_and_is_answered)
{
    bare_job b;
    bare_open(&b, 2);
    for (int r = 0; r < 2; r++)
        bare_hello(&b, r);
    const uint32_t c = 2;
    send_short(&b, PS_MSG_PULL, 1, c, 0); // waits
    send_short(&b, PS_MSG_PULL, 1, c, 0);
    bare_hello(&b, 1);
    // Worker 0's first weights were lost with a connection, but not what it sent later.
    bare_send_chunk(&b, PS_MSG_PUSH, 0, c, 0, 88.0f);
    send_short(&b, PS_MSG_EXACT, 0, c, 0);
    send_short(&b, PS_MSG_FETCH, 0, c, 0);
    bare_hello(&b, 0);
    bare_send_chunk(&b, PS_MSG_INIT, 0, c, 0, 1.0f);
    expect_kind(&b, 0, PS_MSG_CREDIT, 0, 0);
    expect_kind(&b, 1, PS_MSG_WEIGHTS, 0, 1.0f);
    bare_send_chunk(&b, PS_MSG_INIT, 0, c, 0, 77.0f);
    expect_kind(&b, 0, PS_MSG_CREDIT, 0, 0);
    send_short(&b, PS_MSG_PULL, 1, c, 0);
    expect_kind(&b, 1, PS_MSG_WEIGHTS, 0, 1.0f);
    // 1 - 0.5 * (1 + 1) = 0
    bare_send_chunk(&b, PS_MSG_PUSH, 0, c, 0, 1.0f);
    bare_hello(&b, 0);
    bare_send_chunk(&b, PS_MSG_INIT, 0, c, 0, 77.0f);
    bare_send_chunk(&b, PS_MSG_PUSH, 0, c, 0, 99.0f);
    expect_kind(&b, 0, PS_MSG_CREDIT, 0, 0);
    bare_send_chunk(&b, PS_MSG_PUSH, 1, c, 0, 1.0f);
    for (int r = 0; r < 2; r++)
        expect_kind(&b, r, PS_MSG_WEIGHTS, 1, 0.0f);
    for (int kind = 0; kind < 3; kind++) { // of the last step, and of older ones
        if (kind == 0) bare_send_chunk(&b, PS_MSG_PUSH, 1, c, 0, 50.0f);
        if (kind == 1) send_short(&b, PS_MSG_PULL, 1, c, 0);
        if (kind == 2) send_short(&b, PS_MSG_EXACT, 1, c, 0);
        expect_kind(&b, 1, PS_MSG_WEIGHTS, 1, 0.0f);
    }
    for (int times = 0; times < 2; times++) {
        send_short(&b, PS_MSG_EXACT, 0, c, 1);
        send_short(&b, PS_MSG_EXACT, 1, c, 1);
        if (times > 0) continue;
        for (int r = 0; r < 2; r++)
            expect_kind(&b, r, PS_MSG_EXACT_WEIGHTS, 1, 0.0f);
    }
    for (int r = 0; r < 2; r++)
        expect_kind(&b, r, PS_MSG_EXACT_WEIGHTS, 1, 0.0f);
    for (int times = 0; times < 3; times++) {
        send_short(&b, PS_MSG_BYE, 0, 0, 0);
        expect_kind(&b, 0, PS_MSG_LEFT, 0, 0);
        bare_hello(&b, 0);
    }
    assert_ok(ps_member_check(b.member[0]));
    bare_close(&b);
    assert_int_equal(b.job.server[0].stats.pushes, 2);
}

/* ---- a worker that is a step ahead ---- */

enum { AHEAD_STEPS = 4, AHEAD_CHUNKS = 64, AHEAD_BYTES = 1 << 16 };

/* A hash of each answer: by rank, step and chunk. */
typedef struct answers {
    uint64_t hash[2][AHEAD_STEPS][AHEAD_CHUNKS];
} answers;

static void push_all(bare_job *b, const ps_chunk_codec *codec, int rank, uint64_t step)
{
    static uint8_t encoded[AHEAD_BYTES];
    for (uint32_t c = 0; c < b->plan.n_chunks; c++) {
        const ps_chunk *chunk = &b->plan.chunks[c];
        for (uint64_t i = 0; i < chunk->count; i++)
            b->payload[i] =
                0.25f * (float)((i * 31 + c * 5 + (uint64_t)rank * 7 + step * 13) % 17) -
                2;
        ps_wire_header h = bare_header(b, PS_MSG_PUSH, rank, c);
        const ps_codec by = ps_chunk_codec_of(codec, chunk, PS_CODED_GRADIENT, step);
        h.step = step;
        h.codec = (uint8_t)by;
        uint64_t bytes = chunk->count * sizeof(float);
        if (by != PS_CODEC_NONE) {
            bytes = ps_chunk_codec_bytes(codec, chunk, by);
            assert_in_range(bytes, 1, sizeof encoded);
            ps_chunk_codec_encode(codec, chunk, by, b->payload, NULL,
                                  ps_codec_draw_key((uint32_t)rank, step), encoded);
        }
        bare_send(b->socket[rank], &h, by == PS_CODEC_NONE ? (void *)b->payload : encoded,
                  bytes);
    }
}

static void take_answers(bare_job *b, int rank, uint64_t step, answers *out)
{
    static uint8_t payload[AHEAD_BYTES];
    for (uint32_t n = 0; n < b->plan.n_chunks; n++) {
        const ps_wire_header h = bare_answer(b->socket[rank], payload, sizeof payload);
        assert_int_equal(h.kind, PS_MSG_WEIGHTS);
        assert_int_equal(h.step, step + 1);
        ps_hash hash;
        ps_hash_init(&hash);
        ps_hash_u64(&hash, h.codec);
        ps_hash_u64(&hash, h.weights.scale);
        ps_hash_bytes(&hash, payload, sizeof payload);
        out->hash[rank][step][h.chunk] = ps_hash_value(&hash);
    }
}

/* ahead: worker 0 pushes each step, twice, before worker 1 pushes the step before it. */
static void train(const char *const *sets, bool ahead, answers *out)
{
    bare_job b;
    ps_chunk_codec codec;
    bare_open_with(&b, 2, sets, 4);
    assert_in_range(b.plan.n_chunks, 3, AHEAD_CHUNKS);
    (void)bare_coded_chunk(&b, &codec);
    bare_begin(&b);
    for (uint64_t step = 0; step < AHEAD_STEPS; step++) {
        if (step == 0 || !ahead) push_all(&b, &codec, 0, step);
        if (ahead && step + 1 < AHEAD_STEPS) {
            push_all(&b, &codec, 0, step + 1);
            push_all(&b, &codec, 0, step + 1);
        }
        bare_hello(&b, 0); // the shard has all of that
        push_all(&b, &codec, 1, step);
        for (int rank = 0; rank < 2; rank++)
            take_answers(&b, rank, step, out);
    }
    const uint64_t pushes = 2 * AHEAD_STEPS * b.plan.n_chunks;
    bare_close(&b);
    assert_int_equal(b.job.server[0].stats.pushes, pushes);
}

/* This holds also with codecs that change from step to step, and with decisions that wait
 * for the whole gradient. */
TEST(a_step_ahead_changes_no_bit)
{
    static const char *const codecs[] = {"exchange.codec=fp16", "exchange.codec=int8",
                                         "exchange.codec=int4", "exchange.codec=onebit",
                                         "exchange.codec=topk"};
    static const char *const decisions[] = {
        "optimizer.clip_norm=0", "optimizer.clip_norm=1.5", "loss_scale.use=on"};
    for (size_t i = 0; i < 3 * sizeof codecs / sizeof *codecs; i++) {
        if (i / 3 >= 2 && i % 3 == 2) continue; // residuals have no loss scale
        const char *const sets[] = {codecs[i / 3], "exchange.codec_warmup=2",
                                    decisions[i % 3], "exchange.codec_min=1024"};
        static answers in_order, ahead;
        train(sets, false, &in_order);
        train(sets, true, &ahead);
        if (memcmp(&in_order, &ahead, sizeof ahead) != 0)
            fail_msg("%s with %s", sets[0], sets[2]);
    }
}

/* ---- workers at their own pace ---- */

static void put_policy(const bare_job *b)
{
    const ps_sync_rules rules = {
        .kind = PS_POLICY_ASP, .n_workers = 2, .total = 100, .stretch = 100};
    const uint64_t batches[] = {1, 1};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_sync_rules_write(&w, &rules, 1, batches);
    assert_ok(ps_member_put_written(b->member[0], PS_JOB_KEY_POLICY, &w,
                                    ps_deadline_in_ms(5000)));
}

static void expect_exact(const bare_job *b, int rank, uint32_t c)
{
    static float got[8192];
    const ps_wire_header h = bare_answer(b->socket[rank], got, sizeof got);
    assert_true(h.kind == PS_MSG_EXACT_WEIGHTS && h.chunk == c && h.step == 0);
    for (uint64_t i = 0; i < b->plan.chunks[c].count; i++)
        assert_true(got[i] == 1.0f);
}

/* One goes on, and its push is applied, while the other one's answer is lost: that one
 * gets what it should have got. */
TEST(exact_weights_come_again_as_they_were)
{
    static const char *const sets[] = {"sync.policy=asp", "exchange.codec=fp16"};
    bare_job b;
    ps_chunk_codec codec;
    char none;
    bare_open_with(&b, 2, sets, 2);
    put_policy(&b);
    bare_begin(&b);
    const uint32_t c = bare_coded_chunk(&b, &codec);
    assert_true(b.plan.chunks[c].count <= 8192);
    for (int rank = 0; rank < 2; rank++)
        ask_for_exact(&b, rank, c, 0);
    for (int rank = 0; rank < 2; rank++)
        expect_exact(&b, rank, c);
    push_all(&b, &codec, 1, 0);
    for (uint32_t k = 0; k < b.plan.n_chunks; k++)
        assert_int_equal(bare_answer(b.socket[1], &none, 0).kind, PS_MSG_WEIGHTS);
    ask_for_exact(&b, 0, c, 0);
    expect_exact(&b, 0, c);
    bare_close(&b);
}
