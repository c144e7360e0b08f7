/* Training with the weights on the GPU (cuda_stream.c) against training with the host's
 * optimizer: the same bits, step by step, for every optimizer and with the policy local.
 * It runs on the host in a GPU's place, which counts the bytes of copies, and, as
 * gpu_stream, on a GPU. Without a GPU that is skipped. */
#include <math.h>

#include "../support/device_there.h"
#include "check.h"
#include "device_stream.h"
#include "exchange_local.h"
#include "init_weights.h"
#include "model_spec.h"

#ifdef PS_HOST_GPU
#include "host_gpu.h"
static const size_t *const copied = &host_gpu_counted.copied;
#else
static const size_t *const copied = NULL;
#endif

enum { BATCH = 6, STEPS = 5, LOCAL_STEPS = 12, FEATURES = 64 };
static uint64_t skipped; // steps that the optimizer does not count

/* One training: [0] with the host's optimizer, [1] on the stream. */
typedef struct side {
    ps_shared_mem params, grads;
    void *buffers;
    ps_device_stream *stream;
    ps_exchange *exchange;
    ps_program *program, *evaluation;
    float scale; // of the last step's loss
} side;

typedef struct rig {
    ps_config cfg;
    ps_model_spec spec;
    ps_plan plan;
    ps_step_rule rule;
    ps_exchange_local_options local;
    ps_device *device;
    float weight; // of the loss
    side sides[2];
    float x[BATCH * FEATURES];
    int32_t labels[BATCH];
    uint32_t positions[BATCH];
} rig;

static void check(ps_err err)
{
    if (err != PS_OK) fail_msg("%s", ps_err_message());
}

/* --- what stands for the servers: each change is a step against it -------------------
 */

typedef struct outer {
    ps_exchange base;
    ps_exchange_options o;
} outer;

static void outer_apply(ps_exchange *x, uint64_t begin, uint64_t end)
{
    const ps_exchange_options *o = &((outer *)x)->o;
    float *anchor = o->params->base, *change = o->grads->base;
    for (uint64_t i = begin; i < end; i++) {
        anchor[i] -= 0.75f * change[i];
        change[i] = NAN; // it belongs to the exchange
    }
}

static ps_err outer_finish(ps_exchange *x)
{
    outer_apply(x, 0, ((outer *)x)->o.table->arena_count);
    return PS_OK;
}

static ps_err outer_push(ps_exchange *x, uint32_t c, uint64_t step)
{
    const ps_chunk *chunk = &((outer *)x)->o.plan->chunks[c];
    outer_apply(x, chunk->offset, chunk->offset + chunk->count);
    return PS_OK;
}

static ps_err outer_nothing(ps_exchange *x)
{
    return PS_OK;
}

static ps_err outer_begin(ps_exchange *x, uint64_t step)
{
    return PS_OK;
}

static ps_err outer_grads_ready(ps_exchange *x, uint64_t begin, uint64_t end)
{
    return PS_OK;
}

static ps_err outer_wait(ps_exchange *x, uint32_t chunk, uint64_t version)
{
    return PS_OK;
}

static ps_err outer_save(ps_exchange *x, ps_exchange_state *out)
{
    return PS_OK;
}

static void outer_destroy(ps_exchange **x)
{
    free(*x);
    *x = NULL;
}

static ps_err outer_create(const ps_exchange_options *options, ps_exchange **out);

static const ps_exchange_chunks outer_chunks = {.push = outer_push, .wait = outer_wait};
static const ps_exchange_ops outer_ops = {.name = "outer",
                                          .chunks = &outer_chunks,
                                          .create = outer_create,
                                          .start = outer_nothing,
                                          .begin = outer_begin,
                                          .grads_ready = outer_grads_ready,
                                          .finish = outer_finish,
                                          .drain = outer_nothing,
                                          .sync_buffers = outer_nothing,
                                          .save = outer_save,
                                          .destroy = outer_destroy};

static ps_err outer_create(const ps_exchange_options *options, ps_exchange **out)
{
    outer *x;
    assert_null(options->stream);
    PS_TRY(PS_NEW(&x, 1, "outer"));
    x->base.ops = &outer_ops;
    x->o = *options;
    *out = &x->base;
    return PS_OK;
}

/* --- both trainings ------------------------------------------------------------------
 */

static void open_side(rig *r, side *s, bool on_stream)
{
    size_t bytes = r->spec.table.arena_count * sizeof(float);
    check(ps_shared_mem_init(&s->params, bytes, "p"));
    check(ps_shared_mem_init(&s->grads, bytes, "g"));
    check(ps_mem_zalloc_aligned(&s->buffers, r->spec.table.buffer_bytes + 64, "b"));
    ps_init_weights(&r->spec, 3, 1, s->params.base, s->buffers);
    const ps_host_stream_options stream = {.table = &r->spec.table,
                                           .optimizer = &r->rule.optimizer,
                                           .params = s->params.base,
                                           .grads = s->grads.base,
                                           .buffers = s->buffers};
    if (on_stream) check(r->device->ops->stream_create(r->device, &stream, &s->stream));
    const ps_exchange_options exchange = {.table = &r->spec.table,
                                          .plan = &r->plan,
                                          .rule = &r->rule,
                                          .world_size = 1,
                                          .total_steps = LOCAL_STEPS,
                                          .params = &s->params,
                                          .grads = &s->grads,
                                          .buffers = s->buffers,
                                          .stream = s->stream,
                                          .local = &r->local};
    check(r->cfg.sync.policy == PS_POLICY_LOCAL
              ? ps_exchange_local_create(&exchange, &s->exchange)
              : ps_exchange_none_ops.create(&exchange, &s->exchange));
    check(ps_exchange_start(s->exchange));
    ps_program_options program = {.spec = &r->spec,
                                  .max_batch = BATCH,
                                  .training = true,
                                  .params = s->params.base,
                                  .grads = s->grads.base,
                                  .buffers = s->buffers};
    check(ps_program_create(r->device, &program, &s->program));
    program.training = false;
    check(ps_program_create(r->device, &program, &s->evaluation));
}

static void rig_init(rig *r, const char *optimizer, const char *more)
{
    const char *overrides[] = {
        "model.input=[1, 8, 8]",
        "model.loss=cross_entropy",
        "model.layers=[{conv2d: {name: a, out: 70, kernel: 3}}, {batch_norm2d: {name: "
        "n}}, relu, flatten, {linear: {name: fc, out: 5}}]",
        "optimizer.lr=0.05",
        optimizer,
        more};
    memset(r, 0, sizeof *r);
    check(ps_config_load(&r->cfg, NULL, overrides, 6));
    check(ps_model_spec_init(&r->spec, &r->cfg));
    r->local = (ps_exchange_local_options){.config = &r->cfg, .outer = &outer_ops};
    check(ps_plan_init(&r->plan, &r->spec.table, ps_chunk_size_wanted(&r->cfg, true), 1));
    check(ps_step_rule_init(&r->rule, &r->cfg));
    check(ps_step_rule_start(&r->rule, &r->cfg, STEPS));
    r->rule.scale.skipped = skipped;
    const ps_device_options device = {
        .index = -1, .local_rank = -1, .precision = r->cfg.train.precision};
    check(ps_device_open(PS_DEVICE_CUDA, &device, &r->device));
    open_side(r, &r->sides[0], false);
    open_side(r, &r->sides[1], true);
    // gradients overflow: float32 under the test's scales, fp16 under its own
    r->weight = strstr(more, "loss_scale") ? 1000.0f : strstr(more, "fp16") ? 8.0f : 0.5f;
    for (int i = 0; i < BATCH * FEATURES; i++)
        r->x[i] = sinf((float)(i * i));
    for (int i = 0; i < BATCH; i++)
        r->labels[i] = i % 5;
}

static void rig_fini(rig *r)
{
    for (int i = 0; i < 2; i++) {
        side *s = &r->sides[i];
        ps_program_destroy(&s->program);
        ps_program_destroy(&s->evaluation);
        ps_exchange_destroy(&s->exchange);
        if (s->stream) s->stream->ops->destroy(&s->stream);
        ps_shared_mem_fini(&s->params);
        ps_shared_mem_fini(&s->grads);
        free(s->buffers);
    }
    ps_device_close(&r->device);
    ps_plan_fini(&r->plan);
    ps_model_spec_fini(&r->spec);
    ps_config_fini(&r->cfg);
}

static ps_err on_params(void *ctx, uint64_t begin, uint64_t end)
{
    return ps_exchange_params_needed(ctx, begin, end);
}

static ps_err on_grads(void *ctx, uint64_t begin, uint64_t end)
{
    return ps_exchange_grads_ready(ctx, begin, end);
}

/* A step of two micro-batches: the second adds to the first one's gradients. */
static ps_err train_step(rig *r, side *s, uint64_t step, double *loss)
{
    ps_batch batch = {
        .n = BATCH, .x = r->x, .labels = r->labels, .positions = r->positions};
    ps_pass_result result = {0};
    PS_TRY(ps_exchange_begin(s->exchange, step));
    for (int m = 0; m < 2; m++) {
        batch.n = BATCH - m;
        ps_pass_hooks hooks = {.ctx = s->exchange,
                               .params_needed = m == 0 ? on_params : NULL,
                               .grads_ready = m == 1 ? on_grads : NULL};
        ps_pass pass = {.training = true, .accumulate = m > 0, .hooks = &hooks};
        PS_TRY(ps_program_forward(s->program, &batch, &pass, &result));
        PS_TRY(ps_exchange_loss_scale(s->exchange, &s->scale));
        pass.grad_scale = r->weight * s->scale;
        PS_TRY(ps_program_backward(s->program, &batch, &pass));
        *loss += result.loss_sum;
    }
    ps_exchange_count(s->exchange, 1, 3);
    return ps_exchange_finish(s->exchange);
}

static double evaluate(rig *r, side *s)
{
    check(ps_program_fetch_buffers(s->program)); // which this reads
    ps_batch batch = {
        .n = BATCH, .x = r->x, .labels = r->labels, .positions = r->positions};
    ps_pass pass = {.grad_scale = 1};
    ps_pass_result result;
    check(ps_program_forward(s->evaluation, &batch, &pass, &result));
    return result.loss_sum;
}

/* Each side goes on with the other's state: the states are the same. */
static void swap_states(rig *r)
{
    const size_t count = r->spec.table.arena_count;
    ps_exchange_state s[2] = {0};
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < r->rule.optimizer.n_states; k++)
            s[i].states[k] = malloc(count * sizeof(float));
        check(ps_exchange_drain(r->sides[i].exchange));
        check(ps_exchange_save(r->sides[i].exchange, &s[i]));
    }
    assert_int_equal(s[0].rule_bytes, s[1].rule_bytes);
    assert_memory_equal(s[0].rule, s[1].rule, s[0].rule_bytes);
    for (int i = 0; i < 2; i++)
        check(ps_exchange_load(r->sides[i].exchange, &s[1 - i]));
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < r->rule.optimizer.n_states; k++)
            free(s[i].states[k]);
}

/* Returns the loss scale of the last step. */
static float assert_same_training(const char *optimizer, const char *more)
{
    rig *r = malloc(sizeof *r);
    print_message("%s %s\n", optimizer, more);
    rig_init(r, optimizer, more);
    size_t bytes = r->spec.table.arena_count * sizeof(float);
    float *first = malloc(bytes);
    memcpy(first, r->sides[0].params.base, bytes);
    for (uint64_t step = 0; step < STEPS; step++) {
        double loss[2] = {0, 0}, evaluated[2];
        for (int i = 0; i < 2; i++) {
            check(train_step(r, &r->sides[i], step, &loss[i]));
            evaluated[i] = evaluate(r, &r->sides[i]); // before drain: on the device
        }
        check(ps_exchange_drain(r->sides[1].exchange));
        assert_float_equal(r->sides[0].scale, r->sides[1].scale, 0);
        assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
        assert_memory_equal(&evaluated[0], &evaluated[1], sizeof loss[0]);
        assert_memory_equal(r->sides[0].params.base, r->sides[1].params.base, bytes);
        assert_memory_equal(r->sides[0].buffers, r->sides[1].buffers,
                            r->spec.table.buffer_bytes);
        if (step == 2) swap_states(r);
    }
    assert_memory_not_equal(first, r->sides[1].params.base, bytes);
    float scale = r->sides[0].scale;
    free(first);
    rig_fini(r);
    free(r);
    return scale;
}

TEST(test_optimizers)
{
    assert_same_training("optimizer.name=sgd", "optimizer.weight_decay=0.1");
    assert_same_training("optimizer.name=sgd", "optimizer.momentum=0.9");
    assert_same_training("optimizer={name: sgd, momentum: 0.9, nesterov: true, "
                         "weight_decay: 0.01, decay_bias_norm: false}",
                         "optimizer.clip_norm=0.3");
    assert_same_training("optimizer.name=adam", "optimizer.weight_decay=0.1");
    assert_same_training("optimizer={name: adamw, weight_decay: 0.1, decay_bias_norm: "
                         "false, clip_norm: 0.2}",
                         "schedule.name=cosine");
    assert_same_training("optimizer={name: adam, betas: [0.3, 0.9]}",
                         "optimizer.pytorch=2");
    assert_same_training("optimizer.name=adamw", "optimizer.pytorch=1");
    assert_same_training("optimizer={name: rmsprop, weight_decay: 0.01}",
                         "optimizer.clip_norm=0.3");
    assert_same_training("optimizer={name: rmsprop, momentum: 0.9, centered: true}",
                         "optimizer.eps=0.01");
    assert_same_training("optimizer={name: adagrad, lr_decay: 0.1}",
                         "optimizer.initial_accumulator_value=0.1");
    assert_same_training("optimizer={name: lion, weight_decay: 0.1}",
                         "optimizer.decay_bias_norm=false");
    assert_same_training("optimizer={name: lamb, weight_decay: 0.1}",
                         "optimizer.decay_bias_norm=false");
    assert_same_training("optimizer={name: lamb, weight_decay: 0.1, clip_norm: 0.3, "
                         "groups: [{match: ['*.bias', n.*], weight_decay: 0}, {match: "
                         "fc.*, lr: 0.02}]}",
                         "train.ema=0.4");
    // more blocks than a thread reads at once: 50, of one tensor
    assert_same_training("optimizer={name: lamb, weight_decay: 0.1, clip_norm: 0.3}",
                         "model.layers=[{conv2d: {name: a, out: 70, kernel: 3}}, relu, "
                         "flatten, {linear: {name: fc, out: 80}}]");
    assert_same_training("optimizer.name=sgd", "train.ema=0.9");
    assert_same_training("optimizer={name: adamw, groups: [{match: ['*.bias', n.*], "
                         "weight_decay: 0}, {match: fc.*, lr: 0.02}]}",
                         "train.ema=0.4");
}

/* What evaluations and files get, and what is saved, is the same on both sides. */
static void assert_same_anchor(rig *r)
{
    const ps_optimizer *inner = &r->rule.optimizer;
    const size_t bytes = ps_local_memory_bytes(&r->spec.table, inner);
    double evaluated[2];
    void *saved[2];
    for (int i = 0; i < 2; i++) {
        ps_exchange *x = r->sides[i].exchange;
        saved[i] = calloc(1, bytes);
        ps_exchange_state state = {.local = saved[i]};
        check(ps_exchange_drain(x));
        check(ps_exchange_sync_buffers(x));
        evaluated[i] = evaluate(r, &r->sides[i]);
        check(ps_exchange_save(x, &state));
    }
    assert_memory_equal(&evaluated[0], &evaluated[1], sizeof evaluated[0]);
    assert_memory_equal(r->sides[0].params.base, r->sides[1].params.base,
                        r->sides[0].params.bytes);
    assert_memory_equal(saved[0], saved[1], bytes);
    free(saved[0]);
    free(saved[1]);
}

/* Looks at the weights after step `look`. In three rounds of four steps the weights come
 * to the host once a round, and go back once. */
static void assert_same_rounds(const char *optimizer, const char *sync, uint64_t look)
{
    rig *r = malloc(sizeof *r);
    print_message("%s %s\n", optimizer, sync);
    rig_init(r, optimizer, sync);
    const size_t arena = r->sides[1].params.bytes;
    size_t moved = 0;
    for (uint64_t step = 0; step < LOCAL_STEPS; step++) {
        double loss[2] = {0, 0};
        check(train_step(r, &r->sides[0], step, &loss[0]));
        const size_t before = copied ? *copied : 0;
        check(train_step(r, &r->sides[1], step, &loss[1]));
        moved += copied ? *copied - before : 0;
        assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
        if (step == look) assert_same_anchor(r);
    }
    assert_same_anchor(r);
    // beside batches, losses and verdicts; and the weights again that were looked at
    if (copied) assert_in_range(moved, 5 * arena, 8 * arena);
    rig_fini(r);
    free(r);
}

TEST(test_local)
{
    const char *const syncs[] = {
        "sync={policy: local, local_steps: 4}",
        "sync={policy: local, local_steps: 4, overlap: 2, mixing: 0.3}",
        "sync={policy: local, local_steps: 4, fragments: 2, overlap: 1, mixing: 0}",
        "sync={policy: local, local_steps: 4, fragments: 3}"};
    for (size_t i = 0; i < sizeof syncs / sizeof *syncs; i++)
        for (uint64_t look = 4; look < 9; look += 2)
            assert_same_rounds(i % 2 ? "optimizer={name: adamw, weight_decay: 0.1}"
                                     : "optimizer={name: sgd, momentum: 0.9}",
                               syncs[i], look);
}

/* The first scale is so large that gradients overflow, on both sides alike. */
TEST(test_loss_scale)
{
    const float first = 0x1p120f;
    float last = assert_same_training(
        "optimizer.name=adam", "loss_scale={use: on, init: 1.3292279957849159e36}");
    assert_true(last < first && last > 1);
    last = assert_same_training("optimizer.name=lamb",
                                "loss_scale={use: on, init: 1.3292279957849159e36}");
    assert_true(last < first && last > 1);
    last = assert_same_training("optimizer={name: sgd, momentum: 0.9, clip_norm: 0.3}",
                                "loss_scale={use: on, init: 1000, interval: 2}");
    assert_true(last > 1000);
}

/* fp16 scales its losses by itself. Gradients that 16 bits cannot hold become infinite
 * factors of the next product, and the step is skipped. */
TEST(test_precision)
{
    assert_true(assert_same_training("optimizer.name=adamw", "train.precision=bf16") ==
                1);
    float last = assert_same_training("optimizer.name=adamw", "train.precision=fp16");
    assert_true(last > 1 && last < 65536);
}

/* Steps that the host does not wait for give the same weights as the host's steps. */
TEST(test_queued_steps)
{
    const char *const ways[][2] = {
        {"optimizer={name: sgd, momentum: 0.9}", "schedule.name=cosine"},
        {"optimizer={name: adamw, weight_decay: 0.1}", "optimizer.clip_norm=0.2"}};
    for (int w = 0; w < 2; w++) {
        rig *r = malloc(sizeof *r);
        double loss = 0;
        rig_init(r, ways[w][0], ways[w][1]);
        size_t bytes = r->spec.table.arena_count * sizeof(float);
        for (uint64_t step = 0; step < STEPS; step++)
            for (int i = 0; i < 2; i++)
                check(train_step(r, &r->sides[i], step, &loss));
        check(ps_exchange_drain(r->sides[1].exchange));
        assert_memory_equal(r->sides[0].params.base, r->sides[1].params.base, bytes);
        rig_fini(r);
        free(r);
    }
}

/* The error names the tensor and the step, as the host's error does. The stream reports
 * it once it is known. It makes neither that step nor a later one. */
static void assert_not_made(bool another_step)
{
    rig *r = malloc(sizeof *r);
    rig_init(r, "optimizer.name=sgd", "optimizer.momentum=0.9");
    size_t bytes = r->spec.table.arena_count * sizeof(float);
    ps_exchange *x = r->sides[1].exchange;
    double loss = 0;
    for (int i = 0; i < 2; i++)
        check(train_step(r, &r->sides[i], 0, &loss));
    float *before = malloc(bytes);
    memcpy(before, r->sides[0].params.base, bytes);
    r->x[17] = NAN;
    assert_error(train_step(r, &r->sides[0], 1, &loss), PS_ERR_NUMERIC,
                 "fc.weight in step 1");
    check(train_step(r, &r->sides[1], 1, &loss));
    r->x[17] = 0;
    ps_err err = another_step ? train_step(r, &r->sides[1], 2, &loss) : PS_OK;
    if (err == PS_OK) err = ps_exchange_drain(x);
    assert_error(err, PS_ERR_NUMERIC, "a.weight in step 1");
    ps_device_stream *s = r->sides[1].stream;
    check(s->ops->to_host(s, PS_STREAM_PARAMS));
    assert_memory_equal(before, r->sides[1].params.base, bytes);
    free(before);
    rig_fini(r);
    free(r);
}

/* A step that is not finite ends a round: its change is not pushed. */
TEST(test_local_is_not_finite)
{
    rig *r = malloc(sizeof *r);
    double loss = 0;
    rig_init(r, "optimizer.name=sgd", "sync={policy: local, local_steps: 2}");
    check(train_step(r, &r->sides[1], 0, &loss));
    r->x[17] = NAN;
    assert_error(train_step(r, &r->sides[1], 1, &loss), PS_ERR_NUMERIC,
                 "a.weight in step 1");
    rig_fini(r);
    free(r);
}

TEST(test_not_finite)
{
    assert_not_made(false);
    assert_not_made(true);
}

/* Of a worker that comes back, whose optimizer begins anew. */
TEST(test_not_finite_later)
{
    rig *r = malloc(sizeof *r);
    double loss = 0;
    skipped = 7;
    rig_init(r, "optimizer.name=sgd", "optimizer.momentum=0.9");
    skipped = 0;
    check(train_step(r, &r->sides[1], 7, &loss));
    r->x[17] = NAN;
    check(train_step(r, &r->sides[1], 8, &loss));
    assert_error(ps_exchange_drain(r->sides[1].exchange), PS_ERR_NUMERIC,
                 "a.weight in step 8");
    rig_fini(r);
    free(r);
}

int main(int argc, char **argv)
{
    return device_is_there(PS_DEVICE_CUDA, PS_PRECISION_FLOAT32)
               ? check_main(argc, argv, 1)
               : check_skipped(ps_err_message());
}
