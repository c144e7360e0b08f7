/* A worker sends no more than its credit to a shard that receives nothing. All shards
 * have to report the same loss scale. */
#include <math.h>

#include "check.h"
#include "ps_comm.h"
#include "server_gate.h"
#include "test_job.h"
#include "wire_socket.h"
#include "zsock.h"

/* A server that says READY, may give first weights with its own loss scales, and then
 * takes nothing more from its socket. */
typedef struct dead_server {
    test_job *job;
    const ps_plan *plan;
    const float *scales; // of the weights of chunks 0 and 1; NULL: it gives none
    void *router;
    ps_server_gate *gate;
    char endpoint[PS_ENDPOINT_MAX];
    pthread_t thread;
    ps_member *member;
} dead_server;

static bool receive(dead_server *s, ps_wire_frames *f)
{
    bool got = false;
    zmq_pollitem_t item = {.socket = s->router, .events = ZMQ_POLLIN};
    if (zmq_poll(&item, 1, 5000) == 1) (void)ps_wire_recv(s->router, true, f, &got);
    return got;
}

/* First weights of chunks 0 and 1, all zero. */
static void give_weights(dead_server *s, ps_wire_frames *f, ps_wire_header h)
{
    float *zeros = calloc(s->plan->max_chunk_count, sizeof *zeros);
    h.kind = PS_MSG_WEIGHTS;
    h.step = 0;
    for (uint32_t c = 0; c < 2; c++) {
        h.chunk = c;
        h.count = s->plan->chunks[c].count;
        memcpy(&h.weights.scale, &s->scales[c], sizeof h.weights.scale);
        (void)ps_wire_send(s->router, zmq_msg_data(&f->id), zmq_msg_size(&f->id), &h,
                           zeros, h.count * sizeof *zeros, PS_WIRE_COPY, NULL);
    }
    free(zeros);
}

static void *dead_server_main(void *arg)
{
    dead_server *s = arg;
    const char *endpoint = s->endpoint;
    const ps_member_options options = {
        .config = &s->job->cfg,
        .role = PS_ROLE_SERVER,
        .world_size = 1,
        .n_servers = 1,
        .init_method = s->job->init_method,
        .plan_hash = s->plan->hash,
        .local_rank = -1,
        .endpoints = &endpoint,
        .n_endpoints = 1,
    };
    if (ps_member_join(&options, &s->member) != PS_OK) return NULL;
    ps_server_gate_open(s->gate, ps_member_roster(s->member)->secrets,
                        ps_member_roster(s->member)->n_workers);
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    ps_wire_header hello;
    if (receive(s, &f) && ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header),
                                         &hello) == PS_OK) {
        const ps_roster *roster = ps_member_roster(s->member);
        const ps_wire_header ready = {.version = PS_WIRE_VERSION,
                                      .kind = PS_MSG_READY,
                                      .nonce = roster->nonce,
                                      .epoch = roster->epoch,
                                      .hello.number = hello.hello.number};
        (void)ps_wire_send(s->router, zmq_msg_data(&f.id), zmq_msg_size(&f.id), &ready,
                           NULL, 0, PS_WIRE_COPY, NULL);
        // the worker asks for two chunks
        if (s->scales && receive(s, &f) && receive(s, &f)) give_weights(s, &f, hello);
    }
    ps_wire_frames_close(&f);
    return NULL;
}

typedef struct rig {
    test_job job;
    ps_plan plan;
    ps_step_rule rule;
    dead_server server;
    void *context;
    ps_shared_mem params, grads;
    ps_exchange_options options;
    ps_comm *comm;
    uint32_t *chunks; // all
} rig;

static void rig_init(rig *r, const char *const *sets, int n_sets, const float *scales)
{
    test_job_start(&r->job, 0, 1, sets, n_sets);
    r->job.servers = 1;
    assert_ok(
        ps_plan_init(&r->plan, &r->job.spec.table, (ps_chunk_size){.bytes = 16384}, 1));
    assert_ok(ps_step_rule_init(&r->rule, &r->job.cfg));
    r->server = (dead_server){.job = &r->job, .plan = &r->plan, .scales = scales};
    r->context = zmq_ctx_new();
    const ps_zsock_options router = {.type = ZMQ_ROUTER, .asks_for_secret = true};
    assert_ok(ps_server_gate_create(r->context, NULL, 1, &r->server.gate));
    assert_ok(ps_zsock_open(r->context, &router, &r->server.router));
    assert_ok(ps_gate_watch(ps_server_gate_of(r->server.gate), r->server.router,
                            PS_GATE_MEMBERS));
    assert_ok(ps_server_gate_start(r->server.gate));
    assert_ok(
        ps_zsock_bind(r->server.router, NULL, "tcp://127.0.0.1:0", r->server.endpoint));
    pthread_create(&r->server.thread, NULL, dead_server_main, &r->server);
    size_t bytes = r->job.spec.table.arena_count * sizeof(float);
    assert_ok(ps_shared_mem_init(&r->params, bytes, "params"));
    assert_ok(ps_shared_mem_init(&r->grads, bytes, "grads"));
    r->options = (ps_exchange_options){.table = &r->job.spec.table,
                                       .plan = &r->plan,
                                       .rule = &r->rule,
                                       .world_size = 1,
                                       .params = &r->params,
                                       .grads = &r->grads};
    ps_exchange_settings_init(&r->options.settings, &r->job.cfg, &r->job.spec.table);
    assert_ok(test_job_join(&r->job, 0, r->plan.hash, &r->options.member));
    assert_ok(ps_comm_create(&r->options, true, &r->comm));
    assert_ok(ps_comm_wait_ready(r->comm));
    r->chunks = calloc(r->plan.n_chunks, sizeof *r->chunks);
    for (uint32_t c = 0; c < r->plan.n_chunks; c++)
        r->chunks[c] = c;
}

static void rig_fini(rig *r)
{
    ps_comm_destroy(&r->comm);
    pthread_join(r->server.thread, NULL);
    ps_member_abort(r->options.member, PS_ERR_PEER, "the test is over");
    ps_member_destroy(&r->options.member);
    ps_gate_unwatch(r->server.router);
    ps_server_gate_destroy(&r->server.gate);
    ps_member_destroy(&r->server.member);
    ps_zsock_close(&r->server.router);
    zmq_ctx_term(r->context);
    free(r->chunks);
    ps_shared_mem_fini(&r->params);
    ps_shared_mem_fini(&r->grads);
    ps_plan_fini(&r->plan);
    r->job.servers = 0;
    test_job_end(&r->job);
}

TEST(a_stopped_server_costs_a_window)
{
    enum { WINDOW = 40000 };
    const char *const sets[] = {"exchange.credit=40000", "exchange.shm=off",
                                "net.step_timeout_ms=3000"};
    rig r;
    rig_init(&r, sets, 3, NULL);
    assert_true(r.params.bytes > 3 * WINDOW);
    assert_ok(ps_comm_submit(r.comm, PS_COMM_INIT, 0, r.chunks, r.plan.n_chunks));
    // The chunk that the forward pass needs first was sent first. The last one was never
    // sent.
    assert_ok(ps_comm_wait(r.comm, r.plan.n_chunks - 1, 0));
    assert_error(ps_comm_wait(r.comm, 0, 0), PS_ERR_TIMEOUT, "chunk 0");
    ps_comm_stats stats;
    ps_comm_get_stats(r.comm, &stats);
    assert_in_range(stats.most_on_the_way, 16384, WINDOW);
    assert_in_range(stats.bytes_sent, 16384, WINDOW + 1000);
    rig_fini(&r);
}

TEST(shards_that_differ_in_the_loss_scale_end_the_job)
{
    static const float scales[][2] = {{1024, 1024}, {1024, 512}, {1024, NAN}, {0, 1024}};
    const char *const sets[] = {"exchange.shm=off", "loss_scale.use=on",
                                "loss_scale.init=1024", "net.step_timeout_ms=5000"};
    for (int i = 0; i < 4; i++) {
        rig r;
        rig_init(&r, sets, 4, scales[i]);
        assert_ok(ps_comm_submit(r.comm, PS_COMM_PULL, 0, r.chunks, 2));
        ps_err err = ps_comm_wait(r.comm, 0, 0);
        if (err == PS_OK) err = ps_comm_wait(r.comm, 1, 0);
        assert_int_equal(err, i == 0 ? PS_OK : PS_ERR_PROTOCOL);
        if (i == 0) assert_float_equal(ps_comm_loss_scale(r.comm), 1024, 0);
        if (i > 0) assert_non_null(strstr(ps_err_message(), "loss scale"));
        rig_fini(&r);
    }
}
