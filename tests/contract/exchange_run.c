#include "exchange_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "chunk_codec.h"
#include "model_spec.h"

static uint64_t steps_of(const test_run_options *run)
{
    return run->steps ? run->steps : TEST_STEPS;
}

/* Of (param - goal)^2 / 2, where each rank has a goal of its own: the mean over the ranks
 * is least at the mean of the goals. */
static float way_to_goal(int rank, int workers, uint64_t i, float param)
{
    return (param - test_noise(rank, 77, i)) / (float)workers;
}

typedef struct rank_state {
    ps_model_spec spec;
    ps_plan plan;
    ps_step_rule rule;
    ps_shared_mem params, grads;
    uint8_t *buffers;
    ps_member *member;
    ps_exchange *x;
    unsigned seed;
} rank_state;

static void pause_a_little(const test_rank *r, rank_state *s)
{
    if (r->run->sleeps) usleep((unsigned)rand_r(&s->seed) % 400);
}

static bool is_faulty(const test_rank *r)
{
    return r->run->fault && r->rank == r->run->workers - 1;
}

static ps_err forward(const test_rank *r, rank_state *s)
{
    for (int t = 0; t < s->spec.table.n_tensors; t++) {
        PS_TRY(ps_exchange_params_needed(s->x, t, 1));
        pause_a_little(r, s);
    }
    return PS_OK;
}

static ps_err backward(const test_rank *r, rank_state *s, uint64_t step)
{
    float *grads = s->grads.base;
    const float *params = s->params.base;
    const float scale = r->scales[step < TEST_STEPS_MAX ? step : TEST_STEPS_MAX];
    bool faulty = is_faulty(r) && step == 2;
    for (int t = s->spec.table.n_tensors - 1; t >= 0; t--) {
        const ps_tensor *tensor = &s->spec.table.tensors[t];
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++)
            grads[i] = r->run->quadratic
                           ? way_to_goal(r->rank, r->run->workers, i, params[i])
                           : test_gradient(r->rank, step, i, params[i]) * scale;
        if (step % (uint64_t)s->spec.table.n_tensors == (uint64_t)t)
            test_overflow_some(&r->run->overflows, &s->spec, r->rank, step, grads);
        if (faulty && r->run->fault == TEST_FAULT_NAN && t == 4)
            grads[tensor->offset] = NAN;
        if (faulty && r->run->fault == TEST_FAULT_STOPPED && t == 2)
            while (ps_member_check(s->member) == PS_OK)
                usleep(10000);
        pause_a_little(r, s);
        PS_TRY(ps_exchange_grads_ready(s->x, t, 1));
    }
    return PS_OK;
}

static bool buffers_are(const rank_state *s, uint8_t value)
{
    for (uint64_t i = 0; i < s->spec.table.buffer_bytes; i++)
        if (s->buffers[i] != value) return false;
    return true;
}

/* What the rank has before a step, or after all. */
static ps_err note(test_rank *r, rank_state *s, uint64_t step)
{
    PS_TRY(ps_exchange_loss_scale(s->x, &r->scales[step]));
    for (int t = 0, n = 0; t < s->spec.table.n_tensors; t++)
        for (uint64_t i = 0; i < s->spec.table.tensors[t].count && n < 8; i++)
            r->weights[step][n++] =
                ((float *)s->params.base)[s->spec.table.tensors[t].offset + i];
    return PS_OK;
}

static ps_err train(test_rank *r, rank_state *s)
{
    memset(s->buffers, 7 + r->rank, s->spec.table.buffer_bytes);
    if (r->rank == 0) test_first_weights(&s->spec, s->params.base);
    PS_TRY(ps_exchange_start(s->x));
    r->buffers_right = buffers_are(s, 7);
    for (uint64_t step = 0; step < steps_of(r->run); step++) {
        PS_TRY(ps_exchange_begin(s->x, step));
        PS_TRY(forward(r, s));
        PS_TRY(note(r, s, step < TEST_STEPS_MAX ? step : TEST_STEPS_MAX));
        PS_TRY(backward(r, s, step));
        PS_TRY(ps_exchange_finish(s->x));
        if (step != 3) continue;
        memset(s->buffers, 70 + r->rank,
               s->spec.table.buffer_bytes); // as before evaluation
        PS_TRY(ps_exchange_drain(s->x));
        PS_TRY(ps_exchange_sync_buffers(s->x));
        r->buffers_right = r->buffers_right && buffers_are(s, 70);
    }
    PS_TRY(ps_exchange_drain(s->x));
    PS_TRY(note(r, s,
                steps_of(r->run) < TEST_STEPS_MAX ? steps_of(r->run) : TEST_STEPS_MAX));
    memcpy(r->params, s->params.base, s->spec.table.arena_count * sizeof(float));
    ps_exchange_stats_get(s->x, &r->stats);
    if (is_faulty(r) && r->run->fault == TEST_FAULT_NO_BYE)
        PS_TRY(ps_exchange_drain(s->x));
    else
        PS_TRY(ps_exchange_stop(s->x));
    return s->member ? ps_member_leave(s->member, ps_deadline_in_ms(10000)) : PS_OK;
}

static ps_err make_rank(test_rank *r, rank_state *s)
{
    const ps_config *cfg = &r->job->cfg;
    int shards = r->run->servers ? r->run->servers * (int)cfg->server.shards : 1;
    PS_TRY(ps_model_spec_init(&s->spec, cfg));
    PS_TRY(ps_plan_init(&s->plan, &s->spec.table, ps_chunk_size_wanted(cfg, false),
                        (uint32_t)shards));
    PS_TRY(ps_step_rule_init(&s->rule, cfg));
    PS_TRY(ps_step_rule_start(&s->rule, cfg, TEST_STEPS));
    size_t bytes = s->spec.table.arena_count * sizeof(float);
    PS_TRY(ps_shared_mem_init(&s->params, bytes, "params"));
    PS_TRY(ps_shared_mem_init(&s->grads, bytes, "grads"));
    PS_TRY(
        ps_mem_zalloc_aligned(&s->buffers, s->spec.table.buffer_bytes + 64, "buffers"));
    PS_TRY(ps_mem_zalloc(&r->params, s->spec.table.arena_count, sizeof(float), "result"));
    if (strcmp(r->run->exchange, "none") == 0) return PS_OK;
    PS_TRY(test_job_join(r->job, r->rank, s->plan.hash, &s->member));
    return r->rank == 0 ? test_job_put_steps(s->member, steps_of(r->run)) : PS_OK;
}

static ps_err run_rank(test_rank *r, rank_state *s)
{
    PS_TRY(make_rank(r, s));
    const ps_exchange_options options = {
        .config = &r->job->cfg,
        .table = &s->spec.table,
        .plan = &s->plan,
        .rule = &s->rule,
        .member = s->member,
        .rank = r->rank,
        .world_size = r->run->workers,
        .total_steps = steps_of(r->run),
        .params = &s->params,
        .grads = &s->grads,
        .buffers = s->buffers,
    };
    PS_TRY(ps_exchange_create(r->run->exchange, "cpu", &options, &s->x));
    return train(r, s);
}

static void *rank_main(void *arg)
{
    test_rank *r = arg;
    rank_state s = {.seed = r->run->sleeps * 31 + (unsigned)r->rank};
    r->err = run_rank(r, &s);
    if (r->err != PS_OK) {
        snprintf(r->text, sizeof r->text, "%s", ps_err_message());
        if (s.member) ps_member_abort(s.member, r->text);
    }
    ps_exchange_destroy(&s.x);
    ps_member_destroy(&s.member);
    ps_shared_mem_fini(&s.params);
    ps_shared_mem_fini(&s.grads);
    free(s.buffers);
    ps_plan_fini(&s.plan);
    ps_model_spec_fini(&s.spec);
    return NULL;
}

void test_run(const test_run_options *options, test_run_result *out)
{
    test_job job;
    test_job_start(&job, options->servers, options->workers, options->sets,
                   options->n_sets);
    for (int r = 0; r < options->workers; r++) {
        out->rank[r] = (test_rank){.run = options, .job = &job, .rank = r};
        assert_int_equal(
            pthread_create(&out->rank[r].thread, NULL, rank_main, &out->rank[r]), 0);
    }
    for (int r = 0; r < options->workers; r++)
        pthread_join(out->rank[r].thread, NULL);
    out->want = test_serial_weights(&job.cfg, options->workers, &options->overflows);
    ps_model_spec spec;
    assert_int_equal(ps_model_spec_init(&spec, &job.cfg), PS_OK);
    out->bytes = spec.table.arena_count * sizeof(float);
    ps_model_spec_fini(&spec);
    test_job_end(&job);
    memcpy(out->server, job.server, sizeof out->server);
}

void test_run_fini(test_run_result *result, int workers)
{
    for (int r = 0; r < workers; r++)
        free(result->rank[r].params);
    free(result->want);
}

void test_run_check_bits(const test_run_options *options)
{
    test_run_result result;
    test_run(options, &result);
    for (int r = 0; r < options->workers; r++) {
        if (result.rank[r].err != PS_OK) fail_msg("rank %d: %s", r, result.rank[r].text);
        assert_memory_equal(result.rank[r].params, result.want, result.bytes);
        assert_true(result.rank[r].buffers_right);
    }
    for (int i = 0; i < options->servers; i++)
        if (result.server[i].err != PS_OK)
            fail_msg("server %d: %s", i, result.server[i].text);
    test_run_fini(&result, options->workers);
}
