/* However the arena is cut into chunks, their sums and steps have the bits of a plain
 * serial loop. */
#include <math.h>

#include "aggregate.h"
#include "check.h"
#include "model_spec.h"

enum { RANKS = 5 };

static const char *const model[] = {
    "model.input=[30]",
    "model.layers=[{linear: {name: a, out: 301}}, {linear: {name: b, out: 7}}]",
    "model.loss=mse",
};

typedef struct fixture {
    ps_config cfg;
    ps_model_spec spec;
    ps_step_rule rule;
    float *grads[RANKS];
    float *start;
    float factor; // of each gradient
} fixture;

static float draw(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int32_t)*seed * 0x1p-31f;
}

static float *arena(const ps_model_spec *spec)
{
    float *a = calloc(spec->table.arena_count, sizeof *a);
    assert_non_null(a);
    return a;
}

static void fill(const ps_model_spec *spec, float *a, uint32_t seed)
{
    for (int t = 0; t < spec->table.n_tensors; t++)
        for (uint64_t i = 0; i < spec->table.tensors[t].count; i++)
            a[spec->table.tensors[t].offset + i] = draw(&seed);
}

static void setup(fixture *f, const char *const *extra, int n)
{
    const char *all[16];
    memcpy(all, model, sizeof model);
    memcpy(all + 3, extra, (size_t)n * sizeof *extra);
    assert_ok(ps_config_load(&f->cfg, NULL, all, 3 + n));
    assert_ok(ps_model_spec_init(&f->spec, &f->cfg));
    assert_ok(ps_step_rule_init(&f->rule, &f->cfg));
    assert_ok(ps_step_rule_start(&f->rule, &f->cfg, 3));
    for (int r = 0; r < RANKS; r++) {
        f->grads[r] = arena(&f->spec);
        fill(&f->spec, f->grads[r], 77u + (uint32_t)r);
    }
    f->start = arena(&f->spec);
    fill(&f->spec, f->start, 5);
}

static void teardown(fixture *f)
{
    for (int r = 0; r < RANKS; r++)
        free(f->grads[r]);
    free(f->start);
    ps_model_spec_fini(&f->spec);
    ps_config_fini(&f->cfg);
}

/* Makes steps over all chunks of a plan. params (an arena) gets the result. */
static void run_chunks(const fixture *f, uint64_t chunk_bytes, int ranks, int steps,
                       bool keep_sum, float *params, float *copy)
{
    ps_plan plan;
    assert_ok(
        ps_plan_init(&plan, &f->spec.table, (ps_chunk_size){.bytes = chunk_bytes}, 1));
    memcpy(params, f->start, f->spec.table.arena_count * sizeof *params);
    for (uint32_t c = 0; c < plan.n_chunks; c++) {
        const ps_chunk *chunk = &plan.chunks[c];
        float *slab =
            calloc(ps_aggregate_slab_count(chunk, &f->rule.optimizer, keep_sum), 4);
        ps_aggregate a;
        assert_ok(ps_aggregate_init(&a, &f->spec.table, chunk, &f->rule.optimizer,
                                    keep_sum, slab));
        memcpy(a.weights, params + chunk->offset, chunk->count * sizeof(float));
        const float *grads[RANKS];
        for (int r = 0; r < ranks; r++)
            grads[r] = f->grads[r] + chunk->offset;
        float *copies[] = {copy + chunk->offset};
        ps_aggregate_step s = {.rule = &f->rule,
                               .factor = f->factor,
                               .grads = grads,
                               .n_grads = ranks,
                               .copies = copies,
                               .n_copies = 1,
                               .bypass_caches = ranks % 2,
                               .check = true};
        for (int t = 1; t <= steps; t++) {
            s.step = (uint64_t)t - 1;
            s.now = ps_step_rule_optimizer_step(&f->rule, s.step, 1);
            if (keep_sum) {
                s.grads = grads, s.n_grads = ranks, s.summed = false;
                assert_ok(ps_aggregate_sum(&a, &s));
                s.grads = (const float *const *)&a.sum, s.n_grads = 1, s.summed = true;
            }
            assert_ok(ps_aggregate_apply(&a, &s));
        }
        memcpy(params + chunk->offset, a.weights, chunk->count * sizeof(float));
        ps_aggregate_fini(&a);
        free(slab);
    }
    ps_plan_fini(&plan);
}

/* torch.optim.SGD with momentum, dampening 0, written out: scalars in double, tensors in
 * float32, one rounding for every operation. */
static void sgd_by_hand(const fixture *f, int ranks, int steps, float *params)
{
    memcpy(params, f->start, f->spec.table.arena_count * sizeof *params);
    for (int n = 0; n < f->spec.table.n_tensors; n++) {
        const ps_tensor *tensor = &f->spec.table.tensors[n];
        float wd = tensor->role == PS_TENSOR_WEIGHT ? 0.25f : 0; // a power of 2: exact
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
            float p = params[i], buf = 0;
            for (int t = 1; t <= steps; t++) {
                float g = f->grads[0][i] * f->factor;
                for (int r = 1; r < ranks; r++)
                    g = g + f->grads[r][i] * f->factor;
                g = g + wd * p;
                buf = t == 1 ? g : 0.5f * buf + g;
                p = p - 0.125f * buf;
            }
            params[i] = p;
        }
    }
}

TEST(equals_a_serial_loop_whatever_the_cut)
{
    const char *const extra[] = {"optimizer.name=sgd", "optimizer.lr=0.125",
                                 "optimizer.momentum=0.5", "optimizer.weight_decay=0.25",
                                 "optimizer.decay_bias_norm=false"};
    fixture f;
    setup(&f, extra, 5);
    size_t bytes = f.spec.table.arena_count * sizeof(float);
    float *want = arena(&f.spec), *got = arena(&f.spec), *copy = arena(&f.spec);
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        f.factor = ranks % 2 ? 1 / 3.0f : 1;
        sgd_by_hand(&f, ranks, 3, want);
        const uint64_t cuts[] = {16384, 32768, 1 << 20};
        for (int i = 0; i < 6; i++) {
            run_chunks(&f, cuts[i / 2], ranks, 3, i % 2, got, copy);
            assert_memory_equal(got, want, bytes);
            assert_memory_equal(copy, want, bytes);
        }
    }
    free(want), free(got), free(copy);
    teardown(&f);
}

static ps_err apply_whole(const fixture *f, bool check, int ranks)
{
    const ps_chunk chunk = {.count = f->spec.table.arena_count,
                            .last_tensor = f->spec.table.n_tensors - 1};
    float *slab = calloc(ps_aggregate_slab_count(&chunk, &f->rule.optimizer, false), 4);
    ps_aggregate a;
    assert_ok(
        ps_aggregate_init(&a, &f->spec.table, &chunk, &f->rule.optimizer, false, slab));
    const ps_aggregate_step s = {
        .factor = 1,
        .rule = &f->rule,
        .step = 12,
        .now = {.lr = 0.1, .t = 13, .grad_scale = 1},
        .grads = (const float *const *)f->grads,
        .n_grads = ranks,
        .check = check,
    };
    ps_err err = ps_aggregate_apply(&a, &s);
    ps_aggregate_fini(&a);
    free(slab);
    return err;
}

/* The formula of Zheng et al. 2017, in double: g + c g^2 (w - w0). */
TEST(compensates_for_delay)
{
    const char *const extra[] = {"optimizer.name=sgd"};
    fixture f;
    setup(&f, extra, 1);
    const uint64_t count = f.spec.table.arena_count;
    const ps_chunk chunk = {.count = count, .last_tensor = f.spec.table.n_tensors - 1};
    const float factors[] = {1, 0.5f, 0.25f}, compensations[] = {0, 3, 0.7f};
    const float *const bases[] = {NULL, f.grads[0], f.grads[1]}; // any numbers will do
    for (int keep = 0; keep < 2; keep++) {
        float *slab = calloc(ps_aggregate_slab_count(&chunk, &f.rule.optimizer, keep), 4);
        ps_aggregate a;
        assert_ok(
            ps_aggregate_init(&a, &f.spec.table, &chunk, &f.rule.optimizer, keep, slab));
        memcpy(a.weights, f.start, count * sizeof *slab);
        ps_aggregate_step s = {.factor = 1,
                               .rule = &f.rule,
                               .now = {.lr = 0.1, .t = 1, .grad_scale = 1},
                               .grads = (const float *const *)f.grads,
                               .n_grads = 3,
                               .factors = factors,
                               .compensations = compensations,
                               .bases = bases};
        if (keep) assert_ok(ps_aggregate_sum(&a, &s));
        if (keep) s.grads = (const float *const *)&a.sum, s.n_grads = 1;
        if (keep) s.factors = s.compensations = NULL;
        assert_ok(ps_aggregate_apply(&a, &s));
        for (uint64_t i = 0; i < count; i++) {
            double sum = f.grads[0][i];
            for (int r = 1; r < 3; r++) {
                const double g = f.grads[r][i];
                sum += factors[r] *
                       (g + compensations[r] * g * g * (f.start[i] - bases[r][i]));
            }
            assert_true(fabs(a.weights[i] - (f.start[i] - 0.1 * sum)) < 1e-5);
        }
        ps_aggregate_fini(&a);
        free(slab);
    }
    teardown(&f);
}

TEST(names_rank_tensor_and_step_of_a_nan)
{
    const char *const extra[] = {"optimizer.name=sgd"};
    fixture f;
    setup(&f, extra, 1);
    const ps_tensor *tensor = ps_tensor_table_find(&f.spec.table, "b.weight");
    assert_non_null(tensor);
    f.grads[2][tensor->offset + tensor->count - 1] = NAN;
    assert_ok(apply_whole(&f, true, 2));
    assert_error(apply_whole(&f, true, 3), PS_ERR_NUMERIC,
                 "worker 2 for b.weight in step 12");
    assert_ok(apply_whole(&f, false, 3));
    f.grads[0][tensor->offset] = f.grads[1][tensor->offset] = 3e38f;
    assert_error(apply_whole(&f, true, 2), PS_ERR_NUMERIC, "overflow");
    teardown(&f);
}
