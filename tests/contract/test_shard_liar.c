/* A member that lies: worker 1 of 3 sends a shard frames that are changed at random.
 * Whatever it sends, the shard takes at most one of its gradients, of the right size, per
 * chunk and step. The other workers' gradients, the weights and their versions are those
 * of a plain model of the shard. Every refusal names worker 1. Frames are handed to the
 * shard in place, without sockets.
 *
 *   test_shard_liar [FRAMES [SEED]]      10,000 frames, seed 1 */
#include "check.h"
#include "log.h"
#include "model_spec.h"
#include "rng.h"
#include "shard_state.h"

enum { WORKERS = 3, LIAR = 1, CHUNKS_MAX = 16, NONCE = 77, EPOCH = 1 };

static long n_frames = 10000;
static uint64_t seed = 1;

/* What a chunk has to be: gradients are whole numbers, the same for all elements of a
 * chunk, and the optimizer is SGD with a rate of 1, so all sums are exact. */
typedef struct chunk_model {
    int64_t version;
    float weight;
    bool has[WORKERS], has_early;
    float push[WORKERS], early;
} chunk_model;

static struct {
    ps_mt19937 rng;
    ps_config config;
    ps_model_spec spec;
    ps_plan plan;
    ps_step_rule rule;
    void *zmq_context;
    ps_secret secrets[WORKERS];
    ps_shard shard;
    chunk_model model[CHUNKS_MAX];
    long n_taken, n_refused;
} t;

static uint32_t draw(uint32_t below)
{
    return below > 0 ? ps_mt19937_u32(&t.rng) % below : 0;
}

static float draw_gradient(void)
{
    return (float)((int)draw(17) - 8);
}

static void open_shard(void)
{
    static const char *const set[] = {
        "model.input=[64]", "model.layers=[{linear: 100}, relu, {linear: 10}]",
        "exchange.chunk=16384", "optimizer.name=sgd", "optimizer.lr=1"};
    ps_mt19937_seed(&t.rng, seed);
    assert_ok(ps_config_load(&t.config, NULL, set, 5));
    assert_ok(ps_model_spec_init(&t.spec, &t.config));
    const ps_chunk_size size = {.bytes = 16384};
    assert_ok(ps_plan_init(&t.plan, &t.spec.table, size, 1));
    assert_in_range(t.plan.n_chunks, 2, CHUNKS_MAX);
    assert_ok(ps_step_rule_init(&t.rule, &t.config));
    assert_ok(ps_step_rule_start(&t.rule, &t.config, 1u << 30));
    ps_shard *s = &t.shard;
    *s = (ps_shard){.o = {.config = &t.config,
                          .table = &t.spec.table,
                          .plan = &t.plan,
                          .rule = &t.rule,
                          .n_workers = WORKERS},
                    .rule = t.rule,
                    .pace = &ps_shard_bsp};
    ps_chunk_codec_init(&s->codec, &t.config, &t.spec.table);
    assert_ok(ps_shard_memory_init(s));
    assert_ok(ps_zsock_context(1, 16, false, &t.zmq_context));
    const ps_zsock_options o = {.type = ZMQ_ROUTER}; // no peer is connected
    assert_ok(ps_zsock_open(t.zmq_context, &o, &s->router));
    for (uint32_t r = 0; r < WORKERS; r++) {
        memset(t.secrets[r].bytes, (int)('a' + r), sizeof t.secrets[r].bytes);
        ps_wire_id(r, &t.secrets[r], s->peers[r].id);
    }
    s->rules = (ps_frame_rules){.plan = &t.plan,
                                .table = &t.spec.table,
                                .codec = &s->codec,
                                .nonce = NONCE,
                                .epoch = EPOCH,
                                .n_workers = WORKERS,
                                .secrets = t.secrets};
}

static void close_shard(void)
{
    ps_zsock_close(&t.shard.router);
    zmq_ctx_term(t.zmq_context);
    ps_shard_memory_fini(&t.shard);
    ps_plan_fini(&t.plan);
    ps_model_spec_fini(&t.spec);
    ps_config_fini(&t.config);
}

/* ---- frames ---- */

typedef struct frame {
    uint8_t id[PS_WIRE_ID_BYTES];
    size_t id_bytes;
    uint8_t header[PS_WIRE_HEADER_MAX];
    size_t header_bytes;
    int n; // frames after the id
    size_t payload_bytes;
    float value; // of every element
} frame;

static frame make(const ps_wire_header *h, float value)
{
    frame f = {.id_bytes = PS_WIRE_ID_BYTES, .n = 1, .value = value};
    ps_wire_id(h->rank, &t.secrets[h->rank], f.id);
    ps_wire_encode(h, f.header, &f.header_bytes);
    if (!ps_wire_has_payload(h)) return f;
    f.n = 2;
    f.payload_bytes = h->count * sizeof(float);
    return f;
}

static ps_wire_header header(int kind, uint32_t rank, uint32_t chunk, int64_t step)
{
    return (ps_wire_header){.version = PS_WIRE_VERSION,
                            .kind = (uint8_t)kind,
                            .nonce = NONCE,
                            .epoch = EPOCH,
                            .rank = rank,
                            .step = (uint64_t)step,
                            .chunk = chunk,
                            .count = t.plan.chunks[chunk].count};
}

static ps_err hand_in(const frame *f)
{
    ps_wire_frames frames;
    ps_wire_frames_open(&frames);
    assert_ok(ps_zsock_msg_copy(&frames.id, f->id, f->id_bytes));
    assert_ok(ps_zsock_msg_copy(&frames.header, f->header, f->header_bytes));
    frames.n = 1 + f->n;
    frames.has_payload = f->n > 1;
    if (frames.has_payload) {
        assert_int_equal(zmq_msg_init_size(&frames.payload, f->payload_bytes), 0);
        float *values = zmq_msg_data(&frames.payload);
        for (size_t i = 0; i < f->payload_bytes / sizeof(float); i++)
            values[i] = f->value;
    }
    ps_err err = ps_shard_take_message(&t.shard, &frames);
    if (err == PS_OK) err = ps_shard_reply_flush(&t.shard);
    ps_wire_frames_close(&frames);
    return err;
}

/* ---- the model ---- */

static void model_push(uint32_t chunk, uint32_t rank, float value)
{
    chunk_model *m = &t.model[chunk];
    m->has[rank] = true;
    m->push[rank] = value;
    if (!m->has[0] || !m->has[1] || !m->has[2]) return;
    m->weight -= m->push[0] + m->push[1] + m->push[2];
    m->version++;
    memset(m->has, 0, sizeof m->has);
    m->has[LIAR] = m->has_early;
    m->push[LIAR] = m->early;
    m->has_early = false;
}

/* What a shard may take from the liar: a frame that is right in everything. */
static void model_lie(const frame *f)
{
    ps_wire_header h;
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_wire_id(LIAR, &t.secrets[LIAR], id);
    if (f->id_bytes != sizeof id || memcmp(f->id, id, sizeof id) != 0 || f->n != 2 ||
        ps_wire_decode(f->header, f->header_bytes, &h) != PS_OK ||
        h.kind != PS_MSG_PUSH || h.rank != LIAR || h.nonce != NONCE || h.epoch != EPOCH ||
        h.codec != PS_CODEC_NONE || h.push.groups != 0 || h.push.step_of != 0 ||
        h.chunk >= t.plan.n_chunks || h.count != t.plan.chunks[h.chunk].count ||
        f->payload_bytes != h.count * sizeof(float) || !t.shard.peers[LIAR].joined ||
        t.shard.peers[LIAR].left)
        return;
    chunk_model *m = &t.model[h.chunk];
    if (h.step == (uint64_t)m->version && !m->has[LIAR]) {
        model_push(h.chunk, LIAR, f->value);
        t.n_taken++;
    } else if (h.step == (uint64_t)m->version + 1 && !m->has_early) {
        m->has_early = true;
        m->early = f->value;
        t.n_taken++;
    }
}

static void assert_all_are(const char *what, const float *values, uint64_t n,
                           float wanted, long at)
{
    for (uint64_t i = 0; i < n; i++)
        if (values[i] != wanted)
            fail_msg("frame %ld of seed %llu: %s: %g instead of %g", at,
                     (unsigned long long)seed, what, (double)values[i], (double)wanted);
}

static void assert_as_the_model(long at)
{
    for (uint32_t i = 0; i < t.plan.n_chunks; i++) {
        const ps_shard_chunk *c = &t.shard.chunks[t.shard.chunk_of[i]];
        const chunk_model *m = &t.model[i];
        if (c->policy.version != m->version)
            fail_msg("frame %ld of seed %llu: version", at, (unsigned long long)seed);
        for (int k = 0; k < c->memory.n_segments; k++) { // the rest is padding
            const ps_segment *part = &c->memory.segments[k];
            assert_all_are("weights", c->memory.weights + part->offset, part->count,
                           m->weight, at);
        }
        for (uint32_t r = 0; r < WORKERS; r++) {
            assert_int_equal(ps_rank_set_has(&c->policy.arrived, r), m->has[r]);
            if (!m->has[r]) continue;
            assert_int_equal(zmq_msg_size(&c->pushes[r]),
                             c->chunk->count * sizeof(float));
            assert_all_are("a gradient", zmq_msg_data(&c->pushes[r]), c->chunk->count,
                           m->push[r], at);
        }
    }
}

/* ---- lies ---- */

static void change_header(ps_wire_header *h)
{
    static const uint64_t edges[] = {
        0, 1, 2, 3, 4096, 65535, UINT32_MAX, UINT64_C(1) << 32, UINT64_MAX};
    const uint64_t v = edges[draw(sizeof edges / sizeof *edges)];
    switch (draw(10)) {
    case 0:
        h->kind = (uint8_t)draw(32);
        break;
    case 1:
        h->codec = (uint8_t)draw(10);
        break;
    case 2:
        h->nonce = v;
        break;
    case 3:
        h->epoch = (uint32_t)v;
        break;
    case 4:
        h->rank = draw(4);
        break;
    case 5:
        h->step = v;
        break;
    case 6:
        h->chunk = (uint32_t)v;
        break;
    case 7:
        h->count = v;
        break;
    case 8:
        h->hello.number = v; // and the other members of the union
        break;
    default:
        h->version = (uint8_t)draw(6);
    }
}

static void change_bytes(frame *f)
{
    switch (draw(6)) {
    case 0:
        f->header[draw((uint32_t)f->header_bytes)] ^= (uint8_t)(1u << draw(8));
        break;
    case 1:
        f->header_bytes = draw((uint32_t)f->header_bytes + 1);
        break;
    case 2: // in another worker's name, without its secret
        f->id[draw(PS_WIRE_ID_BYTES)] ^= (uint8_t)(1u << draw(8));
        break;
    case 3:
        f->id_bytes = draw(PS_WIRE_ID_BYTES + 1);
        break;
    case 4:
        f->n = (int)draw(5);
        break;
    default:
        f->payload_bytes = f->payload_bytes + draw(9) - 4 < (1u << 20)
                               ? f->payload_bytes + draw(9)
                               : draw(64);
    }
}

static frame draw_lie(void)
{
    const uint32_t chunk = draw(t.plan.n_chunks);
    const int kind = draw(2) ? PS_MSG_PUSH : PS_MSG_HELLO + (int)draw(8);
    const int64_t step = t.model[chunk].version + (int)draw(4) - 1;
    ps_wire_header h = header(kind, LIAR, chunk, step < 0 ? 0 : step);
    h.hello.number = draw(4);
    const bool headers = draw(4) == 0;
    ps_wire_header lie = h;
    if (headers) change_header(&lie);
    frame f = make(&h, draw_gradient());
    if (headers) ps_wire_encode(&lie, f.header, &f.header_bytes);
    for (uint32_t n = draw(4) == 0 ? 1 + draw(3) : 0; n > 0; n--)
        change_bytes(&f);
    return f;
}

/* Whether it said goodbye while others wait for its gradient. */
static bool is_missed(ps_err err)
{
    return err == PS_ERR_ARG && t.shard.peers[LIAR].left &&
           (strstr(ps_err_message(), "worker 1 has ended") ||
            strstr(ps_err_message(), "worker 1 adds parameters"));
}

/* A push of one optimizer's step where the others make all of them: the error that names
 * both workers ends the job. */
static bool ends_the_job(const frame *f)
{
    ps_wire_header h;
    return ps_wire_decode(f->header, f->header_bytes, &h) == PS_OK &&
           h.kind == PS_MSG_PUSH && h.push.step_of == 1;
}

static void tell_a_lie(long at)
{
    const frame f = draw_lie();
    if (ends_the_job(&f)) return;
    model_lie(&f);
    ps_err err = hand_in(&f);
    if (err == PS_ERR_PROTOCOL) {
        t.n_refused++;
        if (!strstr(ps_err_message(), "worker 1 sent"))
            fail_msg("frame %ld of seed %llu: \"%s\"", at, (unsigned long long)seed,
                     ps_err_message());
    } else if (err != PS_OK && !is_missed(err)) {
        fail_msg("frame %ld of seed %llu: %s: %s", at, (unsigned long long)seed,
                 ps_err_name(err), ps_err_message());
    }
    if (!t.shard.peers[LIAR].left) return;
    t.shard.peers[LIAR].left = false; // it has said goodbye: it comes again
    t.shard.n_left--;
    t.shard.n_return -= t.shard.peers[LIAR].returns;
}

static void an_honest_push(void)
{
    const uint32_t chunk = draw(t.plan.n_chunks), rank = draw(2) ? 0 : 2;
    const chunk_model *m = &t.model[chunk];
    if (m->has[rank]) return;
    const float value = draw_gradient();
    const ps_wire_header h = header(PS_MSG_PUSH, rank, chunk, m->version);
    const frame f = make(&h, value);
    model_push(chunk, rank, value);
    assert_ok(hand_in(&f));
}

static void begin(void)
{
    for (uint32_t r = 0; r < WORKERS; r++) {
        const ps_wire_header hello = header(PS_MSG_HELLO, r, 0, 0);
        const frame f = make(&hello, 0);
        assert_ok(hand_in(&f));
    }
    for (uint32_t i = 0; i < t.plan.n_chunks; i++) {
        const ps_wire_header h = header(PS_MSG_INIT, 0, i, 0);
        const frame f = make(&h, 1);
        assert_ok(hand_in(&f));
        t.model[i] = (chunk_model){.weight = 1};
    }
}

TEST(a_liar_has_its_own_gradients_and_nothing_else)
{
    open_shard();
    begin();
    assert_as_the_model(-1);
    for (long i = 0; i < n_frames; i++) {
        if (draw(2)) an_honest_push();
        tell_a_lie(i);
        assert_as_the_model(i);
    }
    print_message("%ld gradients taken, %ld frames refused, %lld steps of chunk 0\n",
                  t.n_taken, t.n_refused, (long long)t.model[0].version);
    assert_true(t.n_taken > n_frames / 100 && t.n_refused > n_frames / 10);
    close_shard();
}

int main(int argc, char **argv)
{
    if (argc > 1) n_frames = atol(argv[1]);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    ps_log_init("test", PS_LOG_ERROR + 1); // what goes wrong here is meant to
    return check_run(NULL, NULL);
}
