/* What a worker has on the way to a shard that takes nothing stays under the credits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ps_comm.h"
#include "test_job.h"
#include "wire_socket.h"
#include "zsock.h"

/* A server that says READY and then stops taking anything off its socket. */
typedef struct dead_server {
    test_job *job;
    uint64_t plan_hash;
    void *router;
    char endpoint[PS_ENDPOINT_MAX];
    pthread_t thread;
    ps_member *member;
} dead_server;

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
        .plan_hash = s->plan_hash,
        .local_rank = -1,
        .endpoints = &endpoint,
        .n_endpoints = 1,
    };
    if (ps_member_join(&options, &s->member) != PS_OK) return NULL;
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    bool got = false;
    zmq_pollitem_t item = {.socket = s->router, .events = ZMQ_POLLIN};
    if (zmq_poll(&item, 1, 5000) == 1) (void)ps_wire_recv(s->router, true, &f, &got);
    if (got) {
        const ps_roster *roster = ps_member_roster(s->member);
        const ps_wire_header ready = {.version = PS_WIRE_VERSION,
                                      .kind = PS_MSG_READY,
                                      .nonce = roster->nonce,
                                      .epoch = roster->epoch};
        (void)ps_wire_send(s->router, zmq_msg_data(&f.id), zmq_msg_size(&f.id), &ready,
                           NULL, 0, PS_WIRE_COPY, NULL);
    }
    ps_wire_frames_close(&f);
    return NULL;
}

static void a_stopped_server_costs_a_window(void **state)
{
    enum { WINDOW = 40000 };
    const char *const sets[] = {"exchange.credit=40000", "exchange.shm=off",
                                "net.step_timeout_ms=600"};
    test_job job;
    test_job_start(&job, 0, 1, sets, 3);
    job.servers = 1;
    ps_model_spec spec;
    ps_plan plan;
    assert_int_equal(ps_model_spec_init(&spec, &job.cfg), PS_OK);
    assert_int_equal(ps_plan_init(&plan, &spec, 16384, 1), PS_OK);
    dead_server server = {.job = &job, .plan_hash = plan.hash};
    void *context = zmq_ctx_new();
    const ps_zsock_options router = {.type = ZMQ_ROUTER};
    assert_int_equal(ps_zsock_open(context, &router, &server.router), PS_OK);
    assert_int_equal(ps_zsock_bind(server.router, "tcp://127.0.0.1:0", server.endpoint),
                     PS_OK);
    pthread_create(&server.thread, NULL, dead_server_main, &server);
    ps_shared_mem params, grads;
    size_t bytes = spec.arena_count * sizeof(float);
    assert_true(bytes > 3 * WINDOW);
    assert_int_equal(ps_shared_mem_init(&params, bytes, "params"), PS_OK);
    assert_int_equal(ps_shared_mem_init(&grads, bytes, "grads"), PS_OK);
    ps_exchange_options options = {.config = &job.cfg,
                                   .spec = &spec,
                                   .plan = &plan,
                                   .world_size = 1,
                                   .params = &params,
                                   .grads = &grads};
    assert_int_equal(test_job_join(&job, 0, plan.hash, &options.member), PS_OK);
    ps_comm *comm;
    assert_int_equal(ps_comm_create(&options, &comm), PS_OK);
    assert_int_equal(ps_comm_wait_ready(comm), PS_OK);
    uint32_t *chunks = calloc(plan.n_chunks, sizeof *chunks);
    for (uint32_t c = 0; c < plan.n_chunks; c++)
        chunks[c] = c;
    assert_int_equal(ps_comm_submit(comm, PS_COMM_INIT, 0, chunks, plan.n_chunks), PS_OK);
    // The chunk that the forward pass needs first went first, the last one never.
    assert_int_equal(ps_comm_wait(comm, plan.n_chunks - 1, 0), PS_OK);
    assert_int_equal(ps_comm_wait(comm, 0, 0), PS_ERR_TIMEOUT);
    assert_non_null(strstr(ps_err_message(), "chunk 0"));
    ps_comm_stats stats;
    ps_comm_get_stats(comm, &stats);
    assert_in_range(stats.most_on_the_way, 16384, WINDOW);
    assert_in_range(stats.bytes_sent, 16384, WINDOW + 1000);
    ps_comm_destroy(&comm);
    pthread_join(server.thread, NULL);
    ps_member_abort(options.member, "the test is over");
    ps_member_destroy(&options.member);
    ps_member_destroy(&server.member);
    ps_zsock_close(&server.router);
    zmq_ctx_term(context);
    free(chunks);
    ps_shared_mem_fini(&params);
    ps_shared_mem_fini(&grads);
    ps_plan_fini(&plan);
    ps_model_spec_fini(&spec);
    job.servers = 0;
    test_job_end(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stopped_server_costs_a_window)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
