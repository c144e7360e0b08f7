/* A shard against peers that break the protocol: one clear answer each, nothing counted
 * that must not be, no crash; strangers do not disturb a job, members that break the
 * rules end it. The peers are bare DEALER sockets. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chunk_codec.h"
#include "model_spec.h"
#include "test_job.h"
#include "wire_socket.h"
#include "zsock.h"

enum { WAIT_MS = 5000, WORKERS_MAX = 2 };

typedef struct bare_job {
    test_job job;
    int workers;
    ps_model_spec spec;
    ps_plan plan;
    ps_member *member[WORKERS_MAX];
    const ps_roster *roster;
    void *context;
    void *socket[WORKERS_MAX]; // with the workers' routing ids
    float *payload;            // of the largest chunk
} bare_job;

typedef struct joiner {
    bare_job *b;
    int rank;
    pthread_t thread;
} joiner;

static void *join_main(void *arg)
{
    joiner *j = arg;
    if (test_job_join(&j->b->job, j->rank, j->b->plan.hash, &j->b->member[j->rank]))
        fprintf(stderr, "join: %s\n", ps_err_message());
    return NULL;
}

static void *open_socket(bare_job *b, const void *id, size_t bytes,
                         const ps_secret *secret)
{
    const ps_zsock_options options = {.type = ZMQ_DEALER,
                                      .routing_id = id,
                                      .routing_id_bytes = bytes,
                                      .secret = secret};
    void *s;
    assert_int_equal(ps_zsock_open(b->context, &options, &s), PS_OK);
    assert_int_equal(ps_zsock_connect(s, b->roster->servers[0].endpoints[0]), PS_OK);
    return s;
}

static void open_job_of(bare_job *b, int workers, const char *codec, const char *warmup)
{
    const char *const sets[] = {"optimizer.name=sgd",
                                "optimizer.lr=0.5",
                                "exchange.shm=auto",
                                "exchange.credit=4MiB",
                                codec,
                                warmup};
    *b = (bare_job){.workers = workers};
    test_job_start(&b->job, 1, workers, sets, 6);
    assert_int_equal(ps_model_spec_init(&b->spec, &b->job.cfg), PS_OK);
    assert_int_equal(
        ps_plan_init(&b->plan, &b->spec.table, (ps_chunk_size){.bytes = 16384}, 1),
        PS_OK);
    joiner j[WORKERS_MAX];
    for (int r = 0; r < workers; r++) {
        j[r] = (joiner){.b = b, .rank = r};
        assert_int_equal(pthread_create(&j[r].thread, NULL, join_main, &j[r]), 0);
    }
    for (int r = 0; r < workers; r++) {
        pthread_join(j[r].thread, NULL);
        assert_non_null(b->member[r]);
    }
    b->roster = ps_member_roster(b->member[0]);
    assert_int_equal(test_job_put_steps(b->member[0], 100), PS_OK);
    b->context = zmq_ctx_new();
    b->payload = calloc(b->plan.max_chunk_count + 1024, sizeof(float));
    for (int r = 0; r < workers; r++) {
        uint8_t id[PS_WIRE_ID_BYTES];
        const ps_secret *secret = ps_member_secret(b->member[r]);
        ps_wire_id((uint32_t)r, secret, id);
        b->socket[r] = open_socket(b, id, sizeof id, secret);
    }
}

/* The shard has answered with its error; the news that the job is over has to be here,
 * too, before the test ends it for a reason of its own. */
static void wait_for_the_news(const bare_job *b)
{
    struct pollfd aborted = {.fd = ps_member_abort_fd(b->member[0]), .events = POLLIN};
    assert_int_equal(poll(&aborted, 1, 10000), 1);
}

static void open_job(bare_job *b, int workers)
{
    open_job_of(b, workers, "exchange.codec=none", "exchange.codec_warmup=0");
}

/* Ends the job, if it has not ended yet. */
static void close_job(bare_job *b)
{
    for (int r = 0; r < b->workers; r++) {
        ps_member_abort(b->member[r], "the test is over");
        ps_zsock_close(&b->socket[r]);
        ps_member_destroy(&b->member[r]);
    }
    zmq_ctx_term(b->context);
    test_job_end(&b->job);
    ps_plan_fini(&b->plan);
    ps_model_spec_fini(&b->spec);
    free(b->payload);
}

static ps_wire_header header(const bare_job *b, int kind, int rank, uint32_t chunk)
{
    ps_wire_header h = {
        .version = PS_WIRE_VERSION,
        .kind = (uint8_t)kind,
        .nonce = b->roster->nonce,
        .epoch = b->roster->epoch,
        .rank = (uint32_t)rank,
        .chunk = chunk,
    };
    if (kind == PS_MSG_PUSH || kind == PS_MSG_INIT) h.count = b->plan.chunks[chunk].count;
    return h;
}

static void send_bytes(void *socket, const void *header_bytes, size_t n,
                       const void *payload, size_t bytes)
{
    assert_true(zmq_send(socket, header_bytes, n, payload ? ZMQ_SNDMORE : 0) >= 0);
    if (payload) assert_true(zmq_send(socket, payload, bytes, 0) >= 0);
}

static void send_frame(void *socket, const ps_wire_header *h, const void *payload,
                       size_t bytes)
{
    assert_int_equal(ps_wire_send(socket, NULL, 0, h, payload, bytes, PS_WIRE_COPY, NULL),
                     PS_OK);
}

/* The next answer; its payload (at most cap bytes) in out. Fails after WAIT_MS. */
static ps_wire_header answer(void *socket, void *out, size_t cap)
{
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    if (zmq_poll(&item, 1, WAIT_MS) != 1) fail_msg("no answer");
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    bool got;
    ps_wire_header h;
    assert_int_equal(ps_wire_recv(socket, false, &f, &got), PS_OK);
    assert_true(got);
    assert_int_equal(ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h),
                     PS_OK);
    size_t n = f.has_payload ? zmq_msg_size(&f.payload) : 0;
    if (n > cap) n = cap;
    if (n) memcpy(out, zmq_msg_data(&f.payload), n);
    if (cap > n) memset((char *)out + n, 0, cap - n);
    ps_wire_frames_close(&f);
    return h;
}

static void silence(void *socket)
{
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    assert_int_equal(zmq_poll(&item, 1, 100), 0);
}

static void hello(bare_job *b, int rank)
{
    ps_wire_header h = header(b, PS_MSG_HELLO, rank, 0);
    send_frame(b->socket[rank], &h, NULL, 0);
    char none;
    assert_int_equal(answer(b->socket[rank], &none, 0).kind, PS_MSG_READY);
}

static void send_chunk(bare_job *b, int kind, int rank, uint32_t chunk, uint64_t step,
                       float value)
{
    uint64_t count = b->plan.chunks[chunk].count;
    for (uint64_t i = 0; i < count; i++)
        b->payload[i] = value;
    ps_wire_header h = header(b, kind, rank, chunk);
    h.step = step;
    send_frame(b->socket[rank], &h, b->payload, count * sizeof(float));
}

/* HELLO of every rank, and first weights of 1 in every chunk. */
static void begin(bare_job *b)
{
    for (int r = 0; r < b->workers; r++)
        hello(b, r);
    for (uint32_t c = 0; c < b->plan.n_chunks; c++) {
        send_chunk(b, PS_MSG_INIT, 0, c, 0, 1.0f);
        char none;
        assert_int_equal(answer(b->socket[0], &none, 0).kind, PS_MSG_CREDIT);
    }
}

/* ---- strangers ---- */

static void expect_error(void *socket, const char *part)
{
    char text[600];
    ps_wire_header h = answer(socket, text, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(h.kind, PS_MSG_ERROR);
    if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* A gradient of 1000 in the name of worker 0, in every form of a message; nothing of it
 * is answered or counted. */
static void say_everything(bare_job *b, void *stranger)
{
    ps_wire_header h = header(b, PS_MSG_PUSH, 0, 0);
    uint64_t bytes = h.count * sizeof(float);
    for (uint64_t i = 0; i < h.count; i++)
        b->payload[i] = 1000.0f;
    for (int kind = PS_MSG_HELLO; kind <= PS_MSG_SETTLE; kind++) {
        h.kind = (uint8_t)kind;
        send_frame(stranger, &h, b->payload, bytes);
        send_frame(stranger, &h, NULL, 0);
    }
    h.kind = 77;
    send_frame(stranger, &h, NULL, 0);
    h = header(b, PS_MSG_PUSH, 0, 0);
    uint8_t good[PS_WIRE_HEADER_MAX];
    size_t n;
    ps_wire_encode(&h, good, &n);
    for (size_t cut = 0; cut < n; cut++)
        send_bytes(stranger, good, cut, b->payload, bytes);
    for (int i = 0; i < 200; i++) {
        uint8_t noise[64];
        for (int k = 0; k < 64; k++)
            noise[k] = (uint8_t)((i * 131 + k * 37 + k * k * i) >> 2);
        send_bytes(stranger, noise, sizeof noise, NULL, 0);
    }
    silence(stranger);
}

/* One more step of worker 0: from 1 by -0.5. */
static void assert_undisturbed(bare_job *b)
{
    float weights[4];
    send_chunk(b, PS_MSG_PUSH, 0, 0, 0, 1.0f);
    ps_wire_header h = answer(b->socket[0], weights, sizeof weights);
    assert_int_equal(h.kind, PS_MSG_WEIGHTS);
    assert_int_equal(h.step, 1);
    assert_true(weights[0] == 0.5f && weights[3] == 0.5f);
    assert_int_equal(ps_member_check(b->member[0]), PS_OK);
}

/* The routing id of 0.1.0; a worker's own, known somehow; another secret, as that of a
 * worker of a dead job whose port this one has. */
static void strangers_do_not_disturb(void **state)
{
    bare_job b;
    open_job(&b, 1);
    begin(&b);
    uint8_t id[PS_WIRE_ID_BYTES];
    const ps_secret *secret = ps_member_secret(b.member[0]);
    ps_secret other = *secret;
    other.bytes[0] ^= 0x80;
    ps_wire_id(0, secret, id);
    void *strangers[] = {
        open_socket(&b, "w\0\0\0\0", 5, NULL),
        open_socket(&b, "stranger", 8, NULL),
        open_socket(&b, id, sizeof id, NULL),
        open_socket(&b, id, sizeof id, &other),
    };
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
        say_everything(&b, strangers[i]);
    assert_undisturbed(&b);
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
        ps_zsock_close(&strangers[i]);
    close_job(&b);
}

/* One that has a secret, and not the routing id that goes with it. */
static void what_comes_under_another_id_is_dropped(void **state)
{
    bare_job b;
    open_job(&b, 2);
    begin(&b);
    const ps_secret *own = ps_member_secret(b.member[1]);
    ps_secret other = *own;
    other.bytes[3] ^= 1;
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_wire_id(0, own, id); // of worker 1, in the name of worker 0
    void *second = open_socket(&b, id, sizeof id, own);
    ps_wire_id(0, &other, id);
    void *third = open_socket(&b, id, sizeof id, own);
    say_everything(&b, second);
    say_everything(&b, third);
    send_chunk(&b, PS_MSG_PUSH, 1, 0, 0, 0.0f);
    assert_undisturbed(&b);
    ps_zsock_close(&second);
    ps_zsock_close(&third);
    close_job(&b);
    assert_true(b.job.server[0].stats.strangers > 400);
}

/* Frames beyond the limit cost the connection, not the shard. */
static void a_frame_too_long_costs_the_connection(void **state)
{
    bare_job b;
    open_job(&b, 1);
    begin(&b);
    uint8_t id[PS_WIRE_ID_BYTES];
    const ps_secret *secret = ps_member_secret(b.member[0]);
    ps_wire_id(7, secret, id);
    void *greedy = open_socket(&b, id, sizeof id, secret);
    char *huge = calloc(4, 1 << 20);
    send_bytes(greedy, id, sizeof id, huge, 4 << 20);
    silence(greedy);
    free(huge);
    assert_undisturbed(&b);
    ps_zsock_close(&greedy);
    close_job(&b);
}

static void another_epoch_is_told_the_present_one(void **state)
{
    bare_job b;
    open_job(&b, 1);
    begin(&b);
    ps_wire_header h = header(&b, PS_MSG_PUSH, 0, 0);
    h.epoch += 3;
    send_frame(b.socket[0], &h, b.payload, h.count * sizeof(float));
    char none;
    h = answer(b.socket[0], &none, 0);
    assert_int_equal(h.kind, PS_MSG_STALE);
    assert_int_equal(h.count, b.roster->epoch);
    assert_int_equal(ps_member_check(b.member[0]), PS_OK);
    close_job(&b);
}

/* ---- members ---- */

static void a_push_counts_once(void **state)
{
    bare_job b;
    open_job(&b, 2);
    begin(&b);
    float w[2][4];
    char none;
    // Pending: dropped. Then complete: 1 - 0.5 * (2 + 4) = -2.
    send_chunk(&b, PS_MSG_PUSH, 0, 3, 0, 2.0f);
    send_chunk(&b, PS_MSG_PUSH, 0, 3, 0, 1000.0f);
    silence(b.socket[0]);
    send_chunk(&b, PS_MSG_PUSH, 1, 3, 0, 4.0f);
    for (int r = 0; r < 2; r++) {
        ps_wire_header h = answer(b.socket[r], w[r], sizeof w[r]);
        assert_int_equal(h.kind, PS_MSG_WEIGHTS);
        assert_int_equal(h.step, 1);
        assert_true(w[r][0] == -2.0f);
    }
    // Applied already: answered, never summed.
    send_chunk(&b, PS_MSG_PUSH, 1, 3, 0, 1000.0f);
    ps_wire_header h = answer(b.socket[1], w[1], sizeof w[1]);
    assert_int_equal(h.kind, PS_MSG_WEIGHTS);
    assert_int_equal(h.step, 1);
    assert_true(w[1][0] == -2.0f);
    silence(b.socket[0]);
    // A pull gives the same, and one of the next version waits for it.
    h = header(&b, PS_MSG_PULL, 0, 3);
    h.step = 1;
    send_frame(b.socket[0], &h, NULL, 0);
    h = answer(b.socket[0], w[0], sizeof w[0]);
    assert_true(h.kind == PS_MSG_WEIGHTS && h.step == 1 && w[0][0] == -2.0f);
    // The next step, in the other order: -2 - 0.5 * (1 + 1) = -3.
    send_chunk(&b, PS_MSG_PUSH, 1, 3, 1, 1.0f);
    send_chunk(&b, PS_MSG_PUSH, 0, 3, 1, 1.0f);
    h = answer(b.socket[0], w[0], sizeof w[0]);
    assert_true(h.kind == PS_MSG_WEIGHTS && h.step == 2 && w[0][0] == -3.0f);
    h = answer(b.socket[1], &none, 0);
    assert_true(h.kind == PS_MSG_WEIGHTS && h.step == 2);
    close_job(&b);
    assert_int_equal(b.job.server[0].stats.pushes, 4);
    assert_int_equal(b.job.server[0].stats.repeated, 2);
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
    h->place = UINT64_MAX;
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
    h->place = PS_WIRE_STATE_WEIGHTS;
    h->step = 1;
    *bytes = SIZE_MAX;
}
static void fetch_with_payload(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_FETCH;
}
static void restore_without_payload(const bare_job *b, ps_wire_header *h, size_t *bytes)
{
    h->kind = PS_MSG_RESTORE;
    h->place = PS_WIRE_STATE_WEIGHTS;
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
    h->place = PS_WIRE_STATE_RULE;
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

static void members_that_break_the_rules_end_the_job(void **state)
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
        {"another HELLO", hello_with_shm},
        {"only shards send", shard_kind},
        {"a pull of chunk", far_pull},
        {"where none belongs", bye_with_payload},
        {"of array 0, which chunk", no_such_array},
        {"state of chunk 0 at version 1; it stands at 0", far_fetch},
        {"where none belongs", fetch_with_payload},
        {"no payload", restore_without_payload},
        {"in shared memory", restore_in_shared_memory},
        {"of array 255, which chunk", restore_of_the_rule},
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
        open_job(&b, 1);
        begin(&b);
        ps_wire_header h = header(&b, PS_MSG_PUSH, 0, 0);
        size_t bytes = h.count * sizeof(float);
        breaches[i].change(&b, &h, &bytes);
        send_frame(b.socket[0], &h, bytes == SIZE_MAX ? NULL : b.payload,
                   bytes == SIZE_MAX ? 0 : bytes);
        expect_error(b.socket[0], breaches[i].says);
        wait_for_the_news(&b);
        close_job(&b);
        assert_int_not_equal(b.job.server[0].err, PS_OK);
        if (!strstr(b.job.server[0].text, "worker 0 sent"))
            fail_msg("%s", b.job.server[0].text);
    }
}

static void a_push_before_hello_and_too_many_frames(void **state)
{
    bare_job b;
    open_job(&b, 1);
    send_chunk(&b, PS_MSG_PUSH, 0, 0, 0, 1.0f);
    expect_error(b.socket[0], "before HELLO");
    wait_for_the_news(&b);
    close_job(&b);
    open_job(&b, 1);
    begin(&b);
    ps_wire_header h = header(&b, PS_MSG_PUSH, 0, 0);
    uint8_t bytes[PS_WIRE_HEADER_MAX];
    size_t n;
    ps_wire_encode(&h, bytes, &n);
    zmq_send(b.socket[0], bytes, n, ZMQ_SNDMORE);
    for (int i = 0; i < 5; i++)
        zmq_send(b.socket[0], b.payload, 64, i < 4 ? ZMQ_SNDMORE : 0);
    expect_error(b.socket[0], "too many frames");
    wait_for_the_news(&b);
    close_job(&b);
}

/* ---- codecs ---- */

/* A chunk of one tensor that travels by the job's codec. */
static uint32_t coded_chunk(const bare_job *b, ps_chunk_codec *codec)
{
    assert_int_equal(ps_chunk_codec_init(codec, &b->job.cfg, &b->spec.table), PS_OK);
    for (uint32_t c = 0; c < b->plan.n_chunks; c++) {
        const ps_chunk *chunk = &b->plan.chunks[c];
        if (chunk->first_tensor == chunk->last_tensor &&
            ps_chunk_codec_of(codec, chunk, PS_CODED_GRADIENT, 0) != PS_CODEC_NONE)
            return c;
    }
    fail_msg("no coded chunk");
    return 0;
}

typedef struct lie {
    const char *codec, *warmup, *says;
    int frame_codec;  // -1: the right one
    int64_t surplus;  // bytes
    bool raw_indices; // topk: descending ones
} lie;

static void coded_frames_that_lie_are_refused(void **state)
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
         false}, // too early for it
        {"exchange.codec=onebit", "exchange.codec_warmup=1", "bytes of payload", -1, -1,
         false},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        bare_job b;
        ps_chunk_codec codec;
        open_job_of(&b, 1, lies[i].codec, lies[i].warmup);
        begin(&b);
        uint32_t c = coded_chunk(&b, &codec);
        const ps_chunk *chunk = &b.plan.chunks[c];
        ps_codec right = ps_chunk_codec_of(&codec, chunk, PS_CODED_GRADIENT, 0);
        uint64_t bytes = ps_chunk_codec_bytes(&codec, chunk, right);
        ps_wire_header h = header(&b, PS_MSG_PUSH, 0, c);
        h.codec = (uint8_t)(lies[i].frame_codec < 0 ? (int)right : lies[i].frame_codec);
        memset(b.payload, 0, bytes + 8);
        if (lies[i].raw_indices) ((uint8_t *)b.payload)[4] = 7; // before 0
        send_frame(b.socket[0], &h, b.payload,
                   (size_t)((int64_t)bytes + lies[i].surplus));
        expect_error(b.socket[0], lies[i].says);
        wait_for_the_news(&b);
        close_job(&b);
        assert_int_not_equal(b.job.server[0].err, PS_OK);
    }
}

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
    ps_wire_header h = header(b, PS_MSG_PUSH, rank, c);
    h.codec = PS_CODEC_TOPK;
    send_frame(b->socket[rank], &h, payload,
               ps_chunk_codec_bytes(codec, chunk, PS_CODEC_TOPK));
}

static void ask_to_settle(bare_job *b, int rank, uint32_t c)
{
    ps_wire_header h = header(b, PS_MSG_SETTLE, rank, c);
    h.step = 1;
    send_frame(b->socket[rank], &h, NULL, 0);
}

/* The first weights are 1, lr is 0.5. Two workers push different elements, few enough for
 * topk to send them whole: the weights become 0 and 0.75 there. The answer, by onebit,
 * has five eighths of the changes. The exact weights have all, and come when both have
 * asked.
 */
static void settling_gives_everybody_the_exact_weights(void **state)
{
    bare_job b;
    ps_chunk_codec codec;
    open_job_of(&b, 2, "exchange.codec=topk", "exchange.codec_warmup=0");
    begin(&b);
    uint32_t c = coded_chunk(&b, &codec);
    const ps_chunk *chunk = &b.plan.chunks[c];
    assert_true(chunk->count <= 8192);
    push_range(&b, &codec, 0, c, 0, 2.0f);
    push_range(&b, &codec, 1, c, 16, 0.5f);
    static float got[8192], change[8192];
    for (int r = 0; r < 2; r++) {
        ps_wire_header h = answer(b.socket[r], got, sizeof got);
        assert_int_equal(h.codec, PS_CODEC_ONEBIT);
        uint64_t bytes = ps_chunk_codec_bytes(&codec, chunk, PS_CODEC_ONEBIT);
        assert_int_equal(
            ps_chunk_codec_decode(&codec, chunk, PS_CODEC_ONEBIT, got, bytes, change),
            PS_OK);
        for (uint64_t i = 0; i < chunk->count; i++)
            assert_true(change[i] == (i < 16 ? -0.625f : i < 32 ? -0.15625f : 0.0f));
    }
    ask_to_settle(&b, 1, c);
    ask_to_settle(&b, 1, c);
    silence(b.socket[1]);
    ask_to_settle(&b, 0, c);
    for (int r = 0; r < 2; r++) {
        ps_wire_header h = answer(b.socket[r], got, sizeof got);
        assert_int_equal(h.codec, PS_CODEC_NONE);
        assert_int_equal(h.step, 1);
        for (uint64_t i = 0; i < chunk->count; i++)
            assert_true(got[i] == (i < 16 ? 0.0f : i < 32 ? 0.75f : 1.0f));
    }
    ask_to_settle(&b, 0, c); // its answer was lost
    assert_int_equal(answer(b.socket[0], got, sizeof got).codec, PS_CODEC_NONE);
    silence(b.socket[1]);
    close_job(&b);
}

/* ---- repetitions, as after a lost connection ---- */

static void send_short(bare_job *b, int kind, int rank, uint32_t chunk, uint64_t step)
{
    ps_wire_header h = header(b, kind, rank, chunk);
    h.step = step;
    send_frame(b->socket[rank], &h, NULL, 0);
}

/* The next answer, of the kind and step. */
static ps_wire_header expect_kind(bare_job *b, int rank, int kind, uint64_t step,
                                  float value)
{
    float w[4];
    ps_wire_header h = answer(b->socket[rank], w, sizeof w);
    assert_int_equal(h.kind, kind);
    assert_int_equal(h.step, step);
    if (kind == PS_MSG_WEIGHTS || kind == PS_MSG_SETTLED) assert_true(w[3] == value);
    return h;
}

static void a_hello_starts_the_credits_anew(void **state)
{
    bare_job b;
    open_job(&b, 2);
    begin(&b);
    uint64_t bytes = b.plan.chunks[1].count * sizeof(float);
    for (uint64_t number = 2; number < 5; number++) {
        // Taken over and owed, but the answer would have gone to the connection before.
        send_chunk(&b, PS_MSG_PUSH, 0, 1, 0, 1.0f);
        send_short(&b, PS_MSG_HELLO, 0, 0, number);
        assert_int_equal(expect_kind(&b, 0, PS_MSG_READY, number, 0).credit, 0);
    }
    send_chunk(&b, PS_MSG_PUSH, 0, 1, 0, 1.0f);
    silence(b.socket[0]);
    send_chunk(&b, PS_MSG_PUSH, 1, 1, 0, 1.0f);
    assert_int_equal(expect_kind(&b, 0, PS_MSG_WEIGHTS, 1, 0.0f).credit, bytes);
    assert_int_equal(expect_kind(&b, 1, PS_MSG_WEIGHTS, 1, 0.0f).credit, bytes);
    close_job(&b);
    assert_int_equal(b.job.server[0].stats.pushes, 2);
    assert_int_equal(b.job.server[0].stats.repeated, 3);
}

static void whatever_is_repeated_counts_once_and_is_answered(void **state)
{
    bare_job b;
    open_job(&b, 2);
    for (int r = 0; r < 2; r++)
        hello(&b, r);
    const uint32_t c = 2;
    send_short(&b, PS_MSG_PULL, 1, c, 0); // waits
    send_short(&b, PS_MSG_PULL, 1, c, 0);
    hello(&b, 1);
    send_chunk(&b, PS_MSG_INIT, 0, c, 0, 1.0f);
    expect_kind(&b, 0, PS_MSG_CREDIT, 0, 0);
    expect_kind(&b, 1, PS_MSG_WEIGHTS, 0, 1.0f);
    send_chunk(&b, PS_MSG_INIT, 0, c, 0, 77.0f);
    expect_kind(&b, 0, PS_MSG_CREDIT, 0, 0);
    send_short(&b, PS_MSG_PULL, 1, c, 0);
    expect_kind(&b, 1, PS_MSG_WEIGHTS, 0, 1.0f);
    // 1 - 0.5 * (1 + 1) = 0
    send_chunk(&b, PS_MSG_PUSH, 0, c, 0, 1.0f);
    hello(&b, 0);
    send_chunk(&b, PS_MSG_INIT, 0, c, 0, 77.0f);
    send_chunk(&b, PS_MSG_PUSH, 0, c, 0, 1.0f);
    expect_kind(&b, 0, PS_MSG_CREDIT, 0, 0);
    send_chunk(&b, PS_MSG_PUSH, 1, c, 0, 1.0f);
    for (int r = 0; r < 2; r++)
        expect_kind(&b, r, PS_MSG_WEIGHTS, 1, 0.0f);
    for (int kind = 0; kind < 3; kind++) { // of the step before, and of long ago
        if (kind == 0) send_chunk(&b, PS_MSG_PUSH, 1, c, 0, 50.0f);
        if (kind == 1) send_short(&b, PS_MSG_PULL, 1, c, 0);
        if (kind == 2) send_short(&b, PS_MSG_SETTLE, 1, c, 0);
        expect_kind(&b, 1, PS_MSG_WEIGHTS, 1, 0.0f);
    }
    for (int times = 0; times < 2; times++) {
        send_short(&b, PS_MSG_SETTLE, 0, c, 1);
        send_short(&b, PS_MSG_SETTLE, 1, c, 1);
        if (times > 0) continue;
        for (int r = 0; r < 2; r++)
            expect_kind(&b, r, PS_MSG_SETTLED, 1, 0.0f);
    }
    for (int r = 0; r < 2; r++)
        expect_kind(&b, r, PS_MSG_SETTLED, 1, 0.0f);
    for (int times = 0; times < 3; times++) {
        send_short(&b, PS_MSG_BYE, 0, 0, 0);
        expect_kind(&b, 0, PS_MSG_LEFT, 0, 0);
        hello(&b, 0);
    }
    assert_int_equal(ps_member_check(b.member[0]), PS_OK);
    close_job(&b);
    assert_int_equal(b.job.server[0].stats.pushes, 2);
}

/* Weights of 1, lr of 0.5; each worker pushes 2 * its rank + 2 in step 0 and 1 in steps 1
 * and 2: 1 - 0.5 * 6 = -2, then -3, -4. */
static void an_early_push_waits_for_its_step(void **state)
{
    bare_job b;
    open_job(&b, 2);
    begin(&b);
    const uint32_t c = 3;
    send_chunk(&b, PS_MSG_PUSH, 0, c, 0, 2.0f);
    send_chunk(&b, PS_MSG_PUSH, 0, c, 1, 1.0f);
    send_chunk(&b, PS_MSG_PUSH, 0, c, 1, 99.0f); // repeated
    silence(b.socket[0]);
    send_chunk(&b, PS_MSG_PUSH, 1, c, 1, 1.0f);
    silence(b.socket[1]);
    send_chunk(&b, PS_MSG_PUSH, 1, c, 0, 4.0f); // two steps are complete now
    for (int r = 0; r < 2; r++) {
        ps_wire_header h = answer(b.socket[r], NULL, 0);
        assert_true(h.kind == PS_MSG_WEIGHTS && h.step == 1);
        expect_kind(&b, r, PS_MSG_WEIGHTS, 2, -3.0f);
    }
    send_chunk(&b, PS_MSG_PUSH, 1, c, 2, 1.0f);
    send_chunk(&b, PS_MSG_PUSH, 0, c, 2, 1.0f);
    for (int r = 0; r < 2; r++)
        expect_kind(&b, r, PS_MSG_WEIGHTS, 3, -4.0f);
    close_job(&b);
    assert_int_equal(b.job.server[0].stats.pushes, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_do_not_disturb),
        cmocka_unit_test(what_comes_under_another_id_is_dropped),
        cmocka_unit_test(a_frame_too_long_costs_the_connection),
        cmocka_unit_test(another_epoch_is_told_the_present_one),
        cmocka_unit_test(a_push_counts_once),
        cmocka_unit_test(members_that_break_the_rules_end_the_job),
        cmocka_unit_test(coded_frames_that_lie_are_refused),
        cmocka_unit_test(settling_gives_everybody_the_exact_weights),
        cmocka_unit_test(a_push_before_hello_and_too_many_frames),
        cmocka_unit_test(a_hello_starts_the_credits_anew),
        cmocka_unit_test(whatever_is_repeated_counts_once_and_is_answered),
        cmocka_unit_test(an_early_push_waits_for_its_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
