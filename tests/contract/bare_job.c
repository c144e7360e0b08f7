#include "bare_job.h"

#include "check.h"
#include "zsock.h"

enum { WAIT_MS = 5000 };

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

void *bare_open_socket(bare_job *b, const void *id, size_t bytes, const ps_secret *secret,
                       void **monitor)
{
    const ps_zsock_options options = {.type = ZMQ_DEALER,
                                      .routing_id = id,
                                      .routing_id_bytes = bytes,
                                      .secret = secret};
    void *s;
    assert_ok(ps_zsock_open(b->context, &options, &s));
    if (monitor) assert_ok(ps_zsock_monitor(b->context, s, "peer", monitor));
    assert_ok(ps_zsock_connect(s, NULL, b->roster->servers[0].endpoints[0]));
    return s;
}

static void open_sockets(bare_job *b)
{
    b->context = zmq_ctx_new();
    for (int r = 0; r < b->workers; r++) {
        uint8_t id[PS_WIRE_ID_BYTES];
        const ps_secret *secret = ps_member_secret(b->member[r]);
        ps_wire_id((uint32_t)r, secret, id);
        b->socket[r] = bare_open_socket(b, id, sizeof id, secret, NULL);
    }
}

void bare_open_with(bare_job *b, int workers, const char *const *sets, int n_sets)
{
    static const char *const base[] = {"optimizer.name=sgd", "optimizer.lr=0.5",
                                       "exchange.shm=auto", "exchange.credit=4MiB",
                                       "exchange.codec_warmup=0"};
    enum { BASE = sizeof base / sizeof base[0] };
    const char *all[TEST_JOB_SETS];
    assert_in_range(n_sets, 0, TEST_JOB_SETS - BASE);
    memcpy(all, base, sizeof base);
    if (n_sets > 0) memcpy(all + BASE, sets, (size_t)n_sets * sizeof *sets);
    *b = (bare_job){.workers = workers};
    test_job_start(&b->job, 1, workers, all, BASE + n_sets);
    assert_ok(ps_plan_init(&b->plan, &b->job.spec.table,
                           ps_chunk_size_wanted(&b->job.cfg, true), 1));
    joiner j[BARE_WORKERS_MAX];
    for (int r = 0; r < workers; r++) {
        j[r] = (joiner){.b = b, .rank = r};
        assert_int_equal(pthread_create(&j[r].thread, NULL, join_main, &j[r]), 0);
    }
    for (int r = 0; r < workers; r++) {
        pthread_join(j[r].thread, NULL);
        assert_non_null(b->member[r]);
    }
    b->roster = ps_member_roster(b->member[0]);
    assert_ok(test_job_put_steps(b->member[0], 100));
    b->payload = calloc(b->plan.max_chunk_count + 1024, sizeof(float));
    open_sockets(b);
}

void bare_open(bare_job *b, int workers)
{
    bare_open_with(b, workers, NULL, 0);
}

void bare_close(bare_job *b)
{
    for (int r = 0; r < b->workers; r++) {
        ps_member_abort(b->member[r], PS_ERR_PEER, "the test is over");
        ps_zsock_close(&b->socket[r]);
        ps_member_destroy(&b->member[r]);
    }
    zmq_ctx_term(b->context);
    test_job_end(&b->job);
    ps_plan_fini(&b->plan);
    free(b->payload);
}

ps_wire_header bare_header(const bare_job *b, int kind, int rank, uint32_t chunk)
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

void bare_send_bytes(void *socket, const void *header_bytes, size_t n,
                     const void *payload, size_t bytes)
{
    assert_true(zmq_send(socket, header_bytes, n, payload ? ZMQ_SNDMORE : 0) >= 0);
    if (payload) assert_true(zmq_send(socket, payload, bytes, 0) >= 0);
}

void bare_send(void *socket, const ps_wire_header *h, const void *payload, size_t bytes)
{
    assert_ok(ps_wire_send(socket, NULL, 0, h, payload, bytes, PS_WIRE_COPY, NULL));
}

ps_wire_header bare_answer(void *socket, void *out, size_t cap)
{
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    if (zmq_poll(&item, 1, WAIT_MS) != 1) fail_msg("no answer");
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    bool got;
    ps_wire_header h;
    assert_ok(ps_wire_recv(socket, false, &f, &got));
    assert_true(got);
    assert_ok(ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h));
    size_t n = f.has_payload ? zmq_msg_size(&f.payload) : 0;
    if (n > cap) n = cap;
    if (n) memcpy(out, zmq_msg_data(&f.payload), n);
    if (cap > n) memset((char *)out + n, 0, cap - n);
    ps_wire_frames_close(&f);
    return h;
}

void bare_hello(bare_job *b, int rank)
{
    ps_wire_header h = bare_header(b, PS_MSG_HELLO, rank, 0);
    bare_send(b->socket[rank], &h, NULL, 0);
    char none;
    assert_int_equal(bare_answer(b->socket[rank], &none, 0).kind, PS_MSG_READY);
}

void bare_send_chunk(bare_job *b, int kind, int rank, uint32_t chunk, uint64_t step,
                     float value)
{
    uint64_t count = b->plan.chunks[chunk].count;
    for (uint64_t i = 0; i < count; i++)
        b->payload[i] = value;
    ps_wire_header h = bare_header(b, kind, rank, chunk);
    h.step = step;
    bare_send(b->socket[rank], &h, b->payload, count * sizeof(float));
}

void bare_begin(bare_job *b)
{
    for (int r = 0; r < b->workers; r++)
        bare_hello(b, r);
    for (uint32_t c = 0; c < b->plan.n_chunks; c++) {
        bare_send_chunk(b, PS_MSG_INIT, 0, c, 0, 1.0f);
        char none;
        assert_int_equal(bare_answer(b->socket[0], &none, 0).kind, PS_MSG_CREDIT);
    }
}

uint32_t bare_coded_chunk(const bare_job *b, ps_chunk_codec *codec)
{
    ps_chunk_codec_init(codec, &b->job.cfg, &b->job.spec.table);
    for (uint32_t c = 0; c < b->plan.n_chunks; c++) {
        const ps_chunk *chunk = &b->plan.chunks[c];
        if (chunk->first_tensor == chunk->last_tensor &&
            ps_chunk_codec_of(codec, chunk, PS_CODED_GRADIENT, 0) != PS_CODEC_NONE)
            return c;
    }
    fail_msg("no coded chunk");
    return 0;
}
