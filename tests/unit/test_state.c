/* State is saved in the middle of a job and loaded into another part, which goes on with
 * the same bits. */
#include "aggregate.h"
#include "check.h"
#include "checkpoint_file.h"
#include "coded_chunk.h"
#include "device_stream.h"
#include "model_spec.h"
#include "state_tensors.h"
#include "temp_files.h"

enum { CUT = 3, STEPS = 7 };

typedef struct fixture {
    ps_config cfg;
    ps_model_spec spec;
    ps_step_rule rule;
    ps_plan plan;
    size_t bytes; // of an arena
} fixture;

static void setup(fixture *f, const char *optimizer, const char *codec)
{
    const char *const sets[] = {
        "model.input=[30]",
        "model.layers=[{linear: {name: a, out: 301}}, {linear: {name: b, out: 7}}]",
        "model.loss=mse",
        "optimizer.lr=0.01",
        "schedule.name=linear",
        "exchange.codec_warmup=0",
        "exchange.codec_cooldown=0",
        optimizer,
        codec};
    assert_ok(ps_config_load(&f->cfg, NULL, sets, 9));
    assert_ok(ps_model_spec_init(&f->spec, &f->cfg));
    assert_ok(ps_step_rule_init(&f->rule, &f->cfg));
    assert_ok(ps_step_rule_start(&f->rule, &f->cfg, STEPS));
    const ps_chunk_size size = {.bytes = 16384};
    assert_ok(ps_plan_init(&f->plan, &f->spec.table, size, 1));
    f->bytes = f->spec.table.arena_count * sizeof(float);
}

static void teardown(fixture *f)
{
    ps_plan_fini(&f->plan);
    ps_model_spec_fini(&f->spec);
    ps_config_fini(&f->cfg);
}

static float *arena(const fixture *f)
{
    float *a = calloc(1, f->bytes);
    assert_non_null(a);
    return a;
}

static void draw(uint64_t n, uint32_t seed, float *out)
{
    for (uint64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (float)(int32_t)seed * 0x1p-31f;
    }
}

/* ---- aggregate ---- */

static void step_aggregate(const fixture *f, ps_aggregate *a, uint64_t step)
{
    float *grad = calloc(a->count, sizeof *grad);
    draw(a->count, (uint32_t)step + 1, grad);
    const float *grads[] = {grad};
    const ps_aggregate_step s = {.rule = &f->rule,
                                 .factor = 1,
                                 .step = step,
                                 .now = ps_step_rule_optimizer_step(&f->rule, step, 1),
                                 .grads = grads,
                                 .n_grads = 1};
    assert_ok(ps_aggregate_apply(a, &s));
    free(grad);
}

static float *open_aggregate(const fixture *f, const ps_chunk *chunk, ps_aggregate *a)
{
    float *slab = calloc(ps_aggregate_slab_count(chunk, &f->rule.optimizer, false), 4);
    assert_ok(
        ps_aggregate_init(a, &f->spec.table, chunk, &f->rule.optimizer, false, slab));
    return slab;
}

static void check_aggregate(const fixture *f, const ps_chunk *chunk)
{
    ps_aggregate a, b;
    float *slab_a = open_aggregate(f, chunk, &a), *slab_b = open_aggregate(f, chunk, &b);
    const size_t bytes = chunk->count * sizeof(float);
    draw(chunk->count, 77, a.weights);
    for (uint64_t s = 0; s < CUT; s++)
        step_aggregate(f, &a, s);
    for (uint64_t array = 0; array <= PS_AGGREGATE_WEIGHTS; array++) {
        const float *from = ps_aggregate_array(&a, array);
        float *to = ps_aggregate_array(&b, array);
        assert_true(!from == !to);
        if (to) memcpy(to, from, bytes);
    }
    assert_null(ps_aggregate_array(&a, PS_AGGREGATE_WEIGHTS + 1));
    for (uint64_t s = CUT; s < STEPS; s++) {
        step_aggregate(f, &a, s);
        step_aggregate(f, &b, s);
    }
    assert_memory_equal(a.weights, b.weights, bytes);
    ps_aggregate_fini(&a);
    ps_aggregate_fini(&b);
    free(slab_a);
    free(slab_b);
}

static const char *const optimizers[] = {
    "optimizer={name: sgd}",
    "optimizer={name: sgd, momentum: 0.9, dampening: 0.1}",
    "optimizer={name: adam}",
    "optimizer={name: adamw}",
    "optimizer={name: rmsprop, momentum: 0.9, centered: true}",
    "optimizer={name: adagrad, initial_accumulator_value: 0.1}",
    "optimizer={name: lion}"};

TEST(an_aggregate_goes_on)
{
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        fixture f;
        setup(&f, optimizers[i], i % 2 ? "train.ema=0.9" : "train.ema=0");
        for (uint32_t c = 0; c < f.plan.n_chunks; c++)
            check_aggregate(&f, &f.plan.chunks[c]);
        teardown(&f);
    }
}

/* ---- codecs ---- */

/* A shard's side: the weights that the workers have lag behind the shard's. */
static void check_shard(const ps_chunk_codec *codec, const ps_chunk *c)
{
    ps_coded_chunk a, b;
    float *weights = calloc(c->count, 4), *change = calloc(c->count, 4);
    assert_ok(ps_coded_chunk_init(&a, codec, c, false, 1, false));
    assert_ok(ps_coded_chunk_init(&b, codec, c, false, 1, false));
    ps_coded_chunk_start(&a, weights);
    for (uint64_t s = 0; s < STEPS && a.coded; s++) {
        if (s == CUT) ps_coded_chunk_start(&b, a.known);
        draw(c->count, (uint32_t)s + 5, change);
        for (uint64_t i = 0; i < c->count; i++)
            weights[i] += change[i] * 0.01f;
        ps_coded_chunk_reply(&a, 0, weights, s + 1);
        if (s < CUT) continue;
        ps_coded_chunk_reply(&b, 0, weights, s + 1);
        assert_int_equal(a.reply_bytes, b.reply_bytes);
        assert_memory_equal(a.reply, b.reply, a.reply_bytes);
        assert_memory_equal(a.known, b.known, c->count * 4);
    }
    ps_coded_chunk_fini(&a);
    ps_coded_chunk_fini(&b);
    free(weights), free(change);
}

TEST(what_the_workers_have_goes_on)
{
    static const char *const codecs[] = {"exchange.codec=fp16", "exchange.codec=int8",
                                         "exchange.codec=int4", "exchange.codec=onebit",
                                         "exchange.codec=topk"};
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        fixture f;
        ps_chunk_codec codec;
        setup(&f, "optimizer.name=sgd", codecs[i]);
        ps_chunk_codec_init(&codec, &f.cfg, &f.spec.table);
        ps_chunk_codec_end(&codec, STEPS);
        for (uint32_t c = 0; c < f.plan.n_chunks; c++)
            check_shard(&codec, &f.plan.chunks[c]);
        teardown(&f);
    }
}

/* ---- the state of a stream, by way of a file ---- */

typedef struct side {
    float *params, *grads;
    ps_device_stream *stream;
} side;

static void open_side(const fixture *f, side *s)
{
    *s = (side){.params = arena(f), .grads = arena(f)};
    const ps_host_stream_options options = {.table = &f->spec.table,
                                            .optimizer = &f->rule.optimizer,
                                            .params = s->params,
                                            .grads = s->grads};
    assert_ok(ps_host_stream_create(&options, &s->stream));
}

static void close_side(side *s)
{
    s->stream->ops->destroy(&s->stream);
    free(s->params);
    free(s->grads);
}

static void step_side(const fixture *f, side *s, uint64_t step)
{
    const ps_chunk whole = {.count = f->spec.table.arena_count,
                            .last_tensor = f->spec.table.n_tensors - 1};
    const ps_optimizer_step now = ps_step_rule_optimizer_step(&f->rule, step, 1);
    draw(whole.count, (uint32_t)step + 3, s->grads);
    assert_ok(s->stream->ops->apply(s->stream, &now, &whole));
}

static void write_states(const fixture *f, side *s, const char *path)
{
    ps_state_tensors list = {0};
    float *states[PS_OPTIMIZER_MAX_STATES] = {NULL};
    for (int i = 0; i < f->rule.optimizer.n_states; i++) {
        states[i] = arena(f);
        assert_ok(s->stream->ops->save_state(s->stream, i, 0, f->spec.table.arena_count,
                                             states[i]));
        assert_ok(ps_state_tensors_add_arena(
            &list, &f->spec.table, ps_optimizer_state_name(&f->rule.optimizer, i),
            states[i]));
    }
    assert_ok(ps_state_tensors_add_arena(&list, &f->spec.table, "w", s->params));
    assert_ok(ps_st_save(path, list.list, list.n, NULL, 0));
    ps_state_tensors_fini(&list);
    for (int i = 0; i < f->rule.optimizer.n_states; i++)
        free(states[i]);
}

static void read_states(const fixture *f, side *s, const char *path)
{
    ps_st_file file;
    float *values = arena(f);
    assert_ok(ps_st_load(path, &file));
    for (int i = 0; i < f->rule.optimizer.n_states; i++) {
        const char *name = ps_optimizer_state_name(&f->rule.optimizer, i);
        assert_ok(ps_state_tensors_read(path, &file, &f->spec.table, name, values));
        assert_ok(s->stream->ops->load_state(s->stream, i, 0, f->spec.table.arena_count,
                                             values));
    }
    assert_ok(ps_state_tensors_read(path, &file, &f->spec.table, "w", s->params));
    assert_error(ps_state_tensors_read(path, &file, &f->spec.table, "x", values),
                 PS_ERR_FORMAT, "a.weight.x is missing");
    ps_st_fini(&file);
    free(values);
}

IN_FOLDER(a_streams_state_goes_on_by_way_of_a_file)
{
    const char *path = temp_path("state.safetensors");
    for (int k = 0; k < 4; k++) {
        fixture f;
        side a, b;
        setup(&f, optimizers[k], "exchange.codec=none");
        open_side(&f, &a);
        open_side(&f, &b);
        draw(f.spec.table.n_params, 1, a.params);
        for (uint64_t s = 0; s < CUT; s++)
            step_side(&f, &a, s);
        write_states(&f, &a, path);
        read_states(&f, &b, path);
        for (uint64_t s = CUT; s < STEPS; s++) {
            step_side(&f, &a, s);
            step_side(&f, &b, s);
        }
        for (int t = 0; t < f.spec.table.n_tensors; t++) {
            const ps_tensor *tensor = &f.spec.table.tensors[t];
            assert_memory_equal(a.params + tensor->offset, b.params + tensor->offset,
                                tensor->count * sizeof(float));
        }
        close_side(&a);
        close_side(&b);
        teardown(&f);
    }
}

/* ---- a checkpoint ---- */

enum { RANKS = 3, SKIPPED = 2 };

static void make_snapshot(const fixture *f, ps_snapshot *s)
{
    ps_snapshot_shape shape =
        ps_snapshot_shape_of(&f->cfg, &f->spec.table, &f->rule.optimizer, RANKS);
    assert_true(shape.feedback);
    assert_ok(ps_snapshot_init(s, &shape, 0, true));
    assert_ok(ps_trainer_snapshot_init(&s->trainer, RANKS));
    s->trainer.step = STEPS;
    s->trainer.skipped_steps = SKIPPED;
    for (int r = 0; r < RANKS; r++)
        for (int t = 0; t < f->spec.table.n_tensors; t++)
            draw(f->spec.table.tensors[t].count, (uint32_t)(10 * t + r),
                 (float *)s->feedback[r] + f->spec.table.tensors[t].offset);
}

/* What the ranks that are gone had kept back is added to that of the others. */
static void check_feedback(const fixture *f, const ps_snapshot *s, int n)
{
    json_t *manifest;
    ps_snapshot got;
    const ps_snapshot_shape shape =
        ps_snapshot_shape_of(&f->cfg, &f->spec.table, &f->rule.optimizer, n);
    assert_ok(ps_checkpoint_verify(folder.path, &manifest));
    assert_ok(ps_snapshot_init(&got, &shape, 0, true));
    assert_ok(ps_checkpoint_read(folder.path, manifest, &shape, &got));
    for (int r = 0; r < n; r++)
        for (uint64_t i = 0; i < f->spec.table.arena_count; i++) {
            float want = 0;
            for (int from = r; from < RANKS; from += n)
                want += ((const float *)s->feedback[from])[i];
            assert_true(((const float *)got.feedback[r])[i] == want);
        }
    json_decref(manifest);
    ps_snapshot_fini(&got);
}

/* For PyTorch, which corrects its moments by it: steps that overflowed do not count. */
static void check_steps(const fixture *f, const char *path)
{
    ps_st_file file;
    assert_ok(ps_st_load(path, &file));
    int n = 0;
    for (int i = 0; i < file.n; i++) {
        const ps_st_tensor *t = &file.tensors[i];
        if (!strstr(t->name, ".step")) continue;
        float steps;
        memcpy(&steps, t->data, sizeof steps);
        assert_true(steps == STEPS - SKIPPED);
        n++;
    }
    assert_int_equal(n, f->spec.table.n_tensors);
    ps_st_fini(&file);
}

IN_FOLDER(a_checkpoint_is_read_by_other_workers)
{
    fixture f;
    ps_snapshot s;
    setup(&f, "optimizer.name=adam", "exchange.codec=onebit");
    make_snapshot(&f, &s);
    assert_ok(ps_checkpoint_write(folder.path, &f.cfg,
                                  &(ps_snapshot_shape){.table = &f.spec.table,
                                                       .optimizer = &f.rule.optimizer,
                                                       .n_ranks = RANKS,
                                                       .told = true,
                                                       .feedback = true},
                                  &s));
    check_feedback(&f, &s, 1);
    check_feedback(&f, &s, 2);
    check_feedback(&f, &s, RANKS);
    check_steps(&f, temp_path("optimizer.safetensors"));
    ps_snapshot_fini(&s);
    teardown(&f);
}
