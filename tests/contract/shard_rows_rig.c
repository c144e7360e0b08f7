#include "shard_rows_rig.h"

#include "check.h"
#include "log.h"
#include "rows_body.h"

shard_rows_rig rig;

ps_row_spec rig_table = {
    .name = "user", .dim = DIM, .init = PS_ROW_CONSTANT, .init_scale = 1};

const uint64_t rig_ids[IDS] = {5, UINT64_MAX, 7};

static void *open_dealer(const void *id, size_t bytes)
{
    void *dealer;
    const ps_zsock_options o = {
        .type = ZMQ_DEALER, .routing_id = id, .routing_id_bytes = bytes};
    assert_ok(ps_zsock_open(rig.context, &o, &dealer));
    assert_int_equal(zmq_connect(dealer, "inproc://shard"), 0);
    return dealer;
}

void rig_open_with(ps_rows_keeper *keeper, bool twin, const char *const *more, int n)
{
    const char *set[6] = {"model.input=[64]", "model.layers=[{linear: 10}]",
                          "optimizer.name=sgd"};
    assert_in_range(n, 0, 3);
    for (int i = 0; i < n; i++)
        set[3 + i] = more[i];
    ps_log_init("test", PS_LOG_ERROR + 1); // what goes wrong here is meant to
    memset(&rig, 0, sizeof rig);
    assert_ok(ps_config_load(&rig.config, NULL, set, 3 + n));
    assert_ok(ps_model_spec_init(&rig.spec, &rig.config));
    assert_ok(ps_plan_init(&rig.plan, &rig.spec.table, (ps_chunk_size){0}, 1 + twin));
    assert_ok(ps_step_rule_init(&rig.rule, &rig.config));
    ps_shard *s = &rig.shard;
    s->o = (ps_shard_options){.config = &rig.config,
                              .table = &rig.spec.table,
                              .plan = &rig.plan,
                              .rule = &rig.rule,
                              .n_workers = WORKERS,
                              .keeper = keeper};
    s->rule = rig.rule;
    s->pace = &ps_shard_bsp;
    ps_chunk_codec_init(&s->codec, &rig.config, &rig.spec.table);
    assert_ok(ps_shard_memory_init(s));
    assert_ok(ps_zsock_context(1, 16, false, &rig.context));
    const ps_zsock_options router = {.type = ZMQ_ROUTER};
    assert_ok(ps_zsock_open(rig.context, &router, &s->router));
    assert_int_equal(zmq_bind(s->router, "inproc://shard"), 0);
    for (uint32_t r = 0; r < WORKERS; r++) {
        memset(rig.secrets[r].bytes, (int)('a' + r), sizeof rig.secrets[r].bytes);
        ps_wire_id(r, &rig.secrets[r], s->peers[r].id);
        rig.worker[r] = open_dealer(s->peers[r].id, PS_WIRE_ID_BYTES);
        s->peers[r].joined = true;
    }
    memset(rig.readers.bytes, 'r', sizeof rig.readers.bytes);
    ps_wire_reader_id(&rig.readers, 9, rig.reader_id);
    rig.reader = open_dealer(rig.reader_id, sizeof rig.reader_id);
    memset(rig.twins.bytes, 't', sizeof rig.twins.bytes);
    ps_wire_id(OTHER, &rig.twins, rig.other_id);
    rig.other = open_dealer(rig.other_id, sizeof rig.other_id);
    s->rules = (ps_frame_rules){.plan = &rig.plan,
                                .table = &rig.spec.table,
                                .codec = &s->codec,
                                .nonce = NONCE,
                                .n_workers = WORKERS,
                                .secrets = rig.secrets,
                                .readers = &rig.readers,
                                .twins = &rig.twins};
    assert_ok(ps_row_figures_init(&s->tables));
    assert_ok(ps_shard_rows_open(s, &rig_table, 1));
    assert_ok(ps_shared_mem_init_sparse(&rig.arena, PS_ROWS_ARENA_BYTES, "rows"));
    s->peers[1].rows = rig.arena.base;
    zmq_pollitem_t item = {.socket = s->router, .events = ZMQ_POLLIN};
    zmq_poll(&item, 1, 0); // it learns of the workers
}

void rig_open_of(ps_rows_keeper *keeper, bool buddy)
{
    static const char *const set[] = {"job.servers=2", "rows.buddy=true"};
    rig_open_with(keeper, buddy, set, buddy ? 2 : 0);
}

void rig_open(void)
{
    rig_open_of(NULL, false);
}

void rig_close(void)
{
    ps_shard_rows_close(&rig.shard);
    free(rig.shard.readers);
    ps_row_figures_fini(&rig.shard.tables);
    ps_shared_mem_fini(&rig.arena);
    for (uint32_t r = 0; r < WORKERS; r++)
        ps_zsock_close(&rig.worker[r]);
    ps_zsock_close(&rig.reader);
    ps_zsock_close(&rig.other);
    ps_zsock_close(&rig.shard.router);
    zmq_ctx_term(rig.context);
    ps_shard_memory_fini(&rig.shard);
    ps_plan_fini(&rig.plan);
    ps_model_spec_fini(&rig.spec);
    ps_config_fini(&rig.config);
}

rig_message rig_message_of(int kind, uint32_t rank, uint64_t number, uint64_t step,
                           size_t bytes)
{
    return (rig_message){.h = {.version = PS_WIRE_VERSION,
                               .kind = (uint8_t)kind,
                               .nonce = NONCE,
                               .rank = rank,
                               .step = step,
                               .count = bytes,
                               .rows.number = number},
                         .bytes = bytes};
}

static rig_message rig_pull_how(uint32_t how, uint32_t rank, uint64_t number,
                                uint64_t step, const uint64_t ids[IDS])
{
    const uint32_t count = IDS;
    const size_t head = ps_rows_pull_head(1);
    rig_message m =
        rig_message_of(PS_MSG_PULL_ROWS, rank, number, step, head + IDS * sizeof *ids);
    ps_rows_pull_write(m.body, how, &count, 1);
    memcpy(m.body + head, ids, IDS * sizeof *ids);
    return m;
}

rig_message rig_pull(uint32_t rank, uint64_t number, uint64_t step,
                     const uint64_t ids[IDS])
{
    return rig_pull_how(PS_ROWS_TRAINS, rank, number, step, ids);
}

rig_message rig_pull_ahead(uint32_t rank, uint64_t number, uint64_t step,
                           const uint64_t ids[IDS])
{
    return rig_pull_how(PS_ROWS_TRAINS | PS_ROWS_AHEAD, rank, number, step, ids);
}

rig_message rig_push_of(uint32_t rank, uint64_t number, uint64_t step, uint32_t n_pulls,
                        size_t n, float value)
{
    const double rate = 0.5;
    const size_t head = ps_rows_push_head(1, n_pulls);
    rig_message m =
        rig_message_of(PS_MSG_PUSH_ROWS, rank, number, step, head + n * sizeof value);
    ps_rows_push_write(m.body, &rate, 1, n_pulls);
    memset(m.body + ps_rows_push_head(1, 0), 1, n_pulls); // has
    for (size_t i = 0; i < n; i++)
        memcpy(m.body + head + i * sizeof value, &value, sizeof value);
    return m;
}

rig_message rig_push(uint32_t rank, uint64_t number, uint64_t step, float value)
{
    return rig_push_of(rank, number, step, 1, IDS * DIM, value);
}

ps_err rig_hand_in_from(const rig_message *m, const void *id, size_t id_bytes)
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
    const ps_err err = ps_shard_take_message(&rig.shard, &f);
    ps_wire_frames_close(&f);
    return err;
}

ps_err rig_hand_in(const rig_message *m)
{
    return rig_hand_in_from(m, rig.shard.peers[m->h.rank].id, PS_WIRE_ID_BYTES);
}

void rig_send(rig_message m)
{
    assert_ok(rig_hand_in(&m));
}
