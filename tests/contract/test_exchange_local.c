/* The policy local between a worker and a server, both real. What is noted is the arena
 * that the outer exchange was given. */
#include "check.h"
#include "chunk_codec.h"
#include "exchange_local.h"
#include "job_start.h"
#include "local_steps.h"
#include "serial_training.h"
#include "test_job.h"

enum { STEPS = 8 };

static const ps_exchange_ops *outer_ops;
static const ps_shared_mem *anchor;

static ps_err note_and_create(const ps_exchange_options *options, ps_exchange **out)
{
    anchor = options->params;
    return outer_ops->create(options, out);
}

#define OK(call)                                                                         \
    do {                                                                                 \
        const ps_err err_ = (call);                                                      \
        if (err_ != PS_OK) fail_msg("%s", ps_err_message());                             \
    } while (0)

typedef struct local_rig {
    test_job job;
    ps_plan plan;
    ps_step_rule rule, outer_rule;
    ps_member *member;
    ps_shared_mem params, grads;
    void *buffers;
    ps_exchange_ops ops;
    ps_exchange_local_options local;
    ps_exchange *x;
} local_rig;

static void make_exchange(local_rig *r)
{
    const ps_config *c = &r->job.cfg;
    ps_exchange_options options = {.table = r->job.table,
                                   .plan = &r->plan,
                                   .rule = &r->rule,
                                   .member = r->member,
                                   .world_size = 1,
                                   .total_steps = STEPS,
                                   .params = &r->params,
                                   .grads = &r->grads,
                                   .buffers = r->buffers,
                                   .local = &r->local};
    r->local = (ps_exchange_local_options){
        .config = c, .outer = &r->ops, .outer_rule = &r->outer_rule};
    ps_exchange_settings_init(&options.settings, c, r->job.table);
    OK(ps_exchange_find(&c->exchange, &outer_ops));
    r->ops = *outer_ops;
    r->ops.create = note_and_create;
    OK(ps_exchange_local_create(&options, &r->x));
}

static void rig_init(local_rig *r, const char *const *sets, int n_sets)
{
    *r = (local_rig){0};
    test_job_start(&r->job, 1, 1, sets, n_sets);
    const ps_config *c = &r->job.cfg;
    const ps_tensor_table *table = r->job.table;
    const size_t bytes = table->arena_count * sizeof(float);
    const ps_job_start start = {.total_steps = STEPS};
    OK(ps_plan_init_servers(&r->plan, table, ps_chunk_size_wanted(c, true), 1,
                            &c->server));
    OK(ps_step_rule_init(&r->rule, c));
    OK(ps_local_steps_outer_rule(c, &r->outer_rule));
    OK(test_job_join(&r->job, 0, r->plan.hash, &r->member));
    OK(test_job_put_steps(r->member, STEPS));
    OK(ps_job_start_rule(&start, c, &r->rule));
    OK(ps_shared_mem_init(&r->params, bytes, "the parameters"));
    OK(ps_shared_mem_init(&r->grads, bytes, "the gradients"));
    r->buffers = calloc(1, table->buffer_bytes);
    make_exchange(r);
    test_first_weights(&r->job.spec, r->params.base);
    OK(ps_exchange_start(r->x));
}

static void rig_fini(local_rig *r)
{
    OK(ps_exchange_stop(r->x));
    ps_exchange_destroy(&r->x);
    OK(ps_member_leave(r->member, ps_deadline_in_ms(10000)));
    ps_member_destroy(&r->member);
    test_job_end(&r->job);
    ps_plan_fini(&r->plan);
    ps_shared_mem_fini(&r->params);
    ps_shared_mem_fini(&r->grads);
    free(r->buffers);
}

static void make_step(local_rig *r, uint64_t step)
{
    const uint64_t n = r->job.table->arena_count;
    float *grads = r->grads.base;
    const float *params = r->params.base;
    OK(ps_exchange_begin(r->x, step));
    OK(ps_exchange_params_needed(r->x, 0, n));
    for (uint64_t i = 0; i < n; i++)
        grads[i] = test_gradient(0, step, i, params[i]);
    OK(ps_exchange_grads_ready(r->x, 0, n));
    ps_exchange_count(r->x, 1, 1);
    OK(ps_exchange_finish(r->x));
}

static void *copy_of(const ps_shared_mem *arena)
{
    void *copy = malloc(arena->bytes);
    assert_non_null(copy);
    return memcpy(copy, arena->base, arena->bytes);
}

static void assert_holds(const ps_shared_mem *arena, const void *bytes)
{
    assert_memory_equal(arena->base, bytes, arena->bytes);
}

/* Looks at the anchor after each step, and asks for the weights again. */
static void look_after_each_step(const char *const *sets, int n_sets)
{
    local_rig r;
    rig_init(&r, sets, n_sets);
    for (uint64_t step = 0; step < STEPS; step++) {
        make_step(&r, step);
        OK(ps_exchange_drain(r.x));
        void *weights = copy_of(&r.params), *last = copy_of(anchor);
        OK(ps_exchange_sync_buffers(r.x));
        assert_holds(anchor, last);
        assert_holds(&r.params, last);
        OK(ps_exchange_drain(r.x));
        assert_holds(anchor, last);
        assert_holds(&r.params, weights);
        free(weights);
        free(last);
    }
    rig_fini(&r);
}

/* The outer exchange may still send it: a resumed job that began with an evaluation
 * trained the wrong weights when the server was slow. */
TEST(the_anchor_is_the_outer_exchanges)
{
    static const char *const rounds[] = {"sync.policy=local", "sync.local_steps=4"};
    static const char *const overlap[] = {"sync.policy=local", "sync.local_steps=4",
                                          "sync.overlap=1", "sync.fragments=2"};
    look_after_each_step(rounds, 2);
    look_after_each_step(overlap, 4);
}
