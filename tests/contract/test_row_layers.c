/* embedding_bag and interaction on the CPU: gradients of rows and of weights against
 * finite differences of the loss. */
#include <math.h>

#include "check.h"
#include "device_rig.h"

enum { BATCH = 3, TABLES = 5, WIDTH = 4 + 4 + 4 + 2 + 2, ROWS = BATCH * WIDTH };

/* Two layers read the same columns, one with rows of another size; a branch without rows
 * that is not the first. */
static const char LAYERS[] =
    "concat: {name: c, branches: [[interaction: {name: i, branches: [[linear: {name: a, "
    "out: 4}, tanh], [embedding_bag: {name: big, tables: 3, dim: 4}], [linear: {name: b, "
    "out: 4}]]}], [embedding_bag: {name: small, tables: [C3, C1], dim: 2}]]}, linear: "
    "{name: top, out: 1}";

typedef struct rows_rig {
    rig r;
    float rows[ROWS], grads[ROWS];
} rows_rig;

static void open_rows(rows_rig *s, const rig_rounding *rounding)
{
    const rig_device cpu = {.kind = PS_DEVICE_CPU, .rounding = rounding};
    rig_init(&s->r, &cpu, "[3]", "bce_with_logits numbers", LAYERS, BATCH);
    assert_int_equal(s->r.spec.n_rows, TABLES);
    for (int i = 0; i < ROWS; i++)
        s->rows[i] = sinf((float)(i * i + 1));
}

/* The mean loss. */
static double pass(rows_rig *s, bool backward)
{
    const ps_pass p = {.training = true, .grad_scale = 1};
    ps_batch batch = rig_batch(&s->r, BATCH);
    ps_pass_result result;
    batch.rows = s->rows;
    batch.row_grads = s->grads;
    assert_ok(ps_program_forward(s->r.program, &batch, &p, &result));
    if (backward) assert_ok(ps_program_backward(s->r.program, &batch, &p));
    return result.loss_sum / BATCH;
}

static void check_slope(rows_rig *s, float *at, float grad, const char *what, int i)
{
    static const float STEP = 1.0f / 64;
    const float was = *at;
    *at = was + STEP;
    const double above = pass(s, false);
    *at = was - STEP;
    const double below = pass(s, false);
    *at = was;
    const double slope = (above - below) / (2 * (double)STEP);
    if (!(fabs(slope - (double)grad) <= 1e-4 + 2e-3 * fabs(slope)))
        fail_msg("%s %d: gradient %g, slope %g", what, i, (double)grad, slope);
}

TEST(gradients_are_slopes)
{
    rows_rig s;
    open_rows(&s, &rig_float32);
    pass(&s, true);
    for (int i = 0; i < ROWS; i++)
        check_slope(&s, &s.rows[i], s.grads[i], "row element", i);
    for (int t = 0; t < s.r.spec.table.n_tensors; t++) {
        const ps_tensor *tensor = &s.r.spec.table.tensors[t];
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++)
            check_slope(&s, &s.r.params[i], s.r.grads[i], tensor->name,
                        (int)(i - tensor->offset));
    }
    rig_fini(&s.r);
}

/* Factors of 16 bits in the linear layers alone. */
TEST(gradients_with_bf16)
{
    rows_rig exact, rounded;
    double worst = 0, largest = 0;
    open_rows(&exact, &rig_float32);
    open_rows(&rounded, &rig_sixteen_bits[0]);
    pass(&exact, true);
    pass(&rounded, true);
    for (int i = 0; i < ROWS; i++) {
        worst = fmax(worst, fabs((double)exact.grads[i] - (double)rounded.grads[i]));
        largest = fmax(largest, fabs((double)exact.grads[i]));
    }
    if (!(worst <= 0.03 * largest)) fail_msg("off by %g of %g", worst, largest);
    rig_fini(&exact.r);
    rig_fini(&rounded.r);
}

TEST(a_batch_without_rows)
{
    rows_rig s;
    open_rows(&s, &rig_float32);
    const ps_batch batch = rig_batch(&s.r, BATCH);
    const ps_pass p = {.training = true, .grad_scale = 1};
    assert_int_equal(ps_program_forward(s.r.program, &batch, &p, NULL), PS_ERR_ARG);
    rig_fini(&s.r);
}

/* The model's settings. */
static void refused(const char *layers, const char *key, const char *says)
{
    char list[512];
    const char *overrides[] = {"model.input=[4]", "model.loss=bce_with_logits", list,
                               "job.servers=2", key};
    ps_config cfg;
    ps_model_spec spec;
    snprintf(list, sizeof list, "model.layers=[%s, linear: {name: top, out: 1}]", layers);
    assert_ok(ps_config_load(&cfg, NULL, overrides, 5));
    ps_err err = ps_model_spec_init(&spec, &cfg);
    if (err == PS_OK) err = ps_model_spec_check_rows(&spec, &cfg);
    if (err == PS_OK) fail_msg("taken: %s %s", layers, key);
    if (!strstr(ps_err_message(), says))
        fail_msg("says \"%s\", not \"%s\"", ps_err_message(), says);
    ps_model_spec_fini(&spec);
    ps_config_fini(&cfg);
}

TEST(what_is_refused)
{
    static const char good[] = "embedding_bag: {tables: 2, dim: 4}",
                      none[] = "data.seed=1";
    refused("linear: 4, embedding_bag: {tables: 2, dim: 4}", none, "first in its branch");
    refused("embedding_bag: {tables: 2}", none, "\"dim\" is missing");
    refused("embedding_bag: {dim: 2}", none, "\"tables\" is missing");
    refused("embedding_bag: {tables: [C1, D2], dim: 2}", none, "named C1, C2");
    refused("embedding_bag: {tables: [C1, C1], dim: 2}", none, "C1 is there twice");
    refused("embedding_bag: {tables: 2, dim: 2, optimizer: adam}", none, "sparse_adam");
    refused("embedding_bag: {tables: 2, dim: 2, codec: bf16}", none,
            "none | fp16 | int8");
    refused("embedding_bag: {tables: 2, dim: 2, lr: -1}", none, "lr");
    refused("embedding_bag: {tables: 2, dim: 2, admit: -1}", none, "admit");
    refused("embedding_bag: {tables: 2, dim: 2, evict: true}", none,
            "evicts rows, and has no max_bytes");
    refused("embedding_bag: {tables: 2, dim: 2, max_bytes: 9}", none, "at least 44032");
    refused("interaction: [[linear: {name: a, out: 3}], [embedding_bag: {tables: 2, dim: "
            "4}]]",
            none, "the first branch gives (3), the others (8)");
    refused(good, "exchange.name=none",
            "exchange.name: with embedding_bag it has to be ps");
    refused(good, "sync.policy=asp", "sync.policy");
    refused(good, "train.ema=0.9", "train.ema");
    refused(good, "exchange.levels=2", "exchange.levels");
    refused(good, "train.device=cuda", "train.device");
    refused("linear: 4", "rows.buddy=true",
            "rows.buddy: without embedding_bag it has to be false");
    refused("linear: 4", "checkpoint.rows_full_every=2",
            "checkpoint.rows_full_every: without embedding_bag it has to be 1");
}
