#include "serial_training.h"

#include <math.h>

#include "check.h"
#include "gradnorm.h"
#include "model_spec.h"
#include "optimizer.h"
#include "schedule.h"

float test_noise(int rank, uint64_t step, uint64_t i)
{
    uint64_t x = i * 0x9E3779B97F4A7C15u + step * 0xD1B54A32D192ED03u +
                 (uint64_t)(rank + 1) * 0x8CB92BA72F3D8DD7u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 32;
    return (float)(int32_t)(uint32_t)x * 0x1p-31f;
}

float test_gradient(int rank, uint64_t step, uint64_t i, float param)
{
    return test_noise(rank, step, i) + 0.125f * param;
}

void test_overflow_some(const test_overflows *overflows, const ps_model_spec *spec,
                        int rank, uint64_t step, float *grads)
{
    const ps_tensor *t = &spec->table.tensors[step % (uint64_t)spec->table.n_tensors];
    for (size_t i = 0; i < overflows->n; i++)
        if (overflows->list[i].step == step && overflows->list[i].rank == rank)
            grads[t->offset] = overflows->list[i].value;
}

void test_first_weights(const ps_model_spec *spec, float *params)
{
    for (int t = 0; t < spec->table.n_tensors; t++)
        for (uint64_t i = 0; i < spec->table.tensors[t].count; i++) {
            uint64_t at = spec->table.tensors[t].offset + i;
            params[at] = test_noise(99, 0, at);
        }
}

/* A second implementation of torch.amp.GradScaler. */
typedef struct scaler {
    bool on;
    float scale;
    int64_t streak;
    uint64_t skipped;
} scaler;

static void scaler_update(scaler *s, const ps_config_loss_scale *cfg, bool finite)
{
    s->streak = finite ? s->streak + 1 : 0;
    s->skipped += !finite;
    if (!finite) s->scale = (float)(s->scale * cfg->backoff);
    if (s->streak < cfg->interval) return;
    if (isfinite((float)(s->scale * cfg->growth)))
        s->scale = (float)(s->scale * cfg->growth);
    s->streak = 0;
}

typedef struct serial {
    int workers;
    const int *hosts;
    const test_overflows *overflows;
    const ps_config *cfg;
    ps_model_spec spec;
    ps_optimizer opt;
    ps_schedule schedule;
    scaler scaler;
    float *params, *sum, *host, *one, *states[3];
    double *blocks;
} serial;

static void add(float *sum, const float *x, uint64_t n, bool first)
{
    for (uint64_t i = 0; i < n; i++)
        sum[i] = first ? x[i] : sum[i] + x[i];
}

static bool leads(const serial *s, int rank)
{
    for (int r = 0; r < rank; r++)
        if (s->hosts && s->hosts[r] == s->hosts[rank]) return false;
    return true;
}

/* Sums the gradients of the ranks of a host in their order. */
static void serial_host_sum(serial *s, int leader, uint64_t step)
{
    const uint64_t n = s->spec.table.arena_count;
    for (int r = leader; r < s->workers; r++) {
        if (r != leader && (!s->hosts || s->hosts[r] != s->hosts[leader])) continue;
        for (uint64_t i = 0; i < n; i++)
            s->one[i] = test_gradient(r, step, i, s->params[i]) * s->scaler.scale;
        test_overflow_some(s->overflows, &s->spec, r, step, s->one);
        add(s->host, s->one, n, r == leader);
    }
}

/* Sums all ranks' gradients: the hosts in the order of their first ranks. Returns whether
 * the sum is finite. */
static bool serial_sum(serial *s, uint64_t step)
{
    const float inverse = (float)(1.0 / (double)s->scaler.scale);
    bool finite = true;
    for (int r = 0; r < s->workers; r++) {
        if (!leads(s, r)) continue;
        serial_host_sum(s, r, step);
        add(s->sum, s->host, s->spec.table.arena_count, r == 0);
    }
    for (uint64_t i = 0; i < s->spec.table.arena_count; i++) {
        s->sum[i] *= inverse;
        finite = finite && isfinite(s->sum[i]);
    }
    return finite;
}

static double serial_clip(serial *s)
{
    const ps_chunk whole = {.count = s->spec.table.arena_count,
                            .last_tensor = s->spec.table.n_tensors - 1};
    if (s->cfg->optimizer.clip_norm <= 0) return 1;
    ps_gradnorm_chunk(&s->spec.table, &whole, s->sum, s->blocks);
    double norm = ps_gradnorm_total(s->blocks, ps_gradnorm_blocks(&s->spec.table));
    return ps_gradnorm_clip(norm, s->cfg->optimizer.clip_norm);
}

static void serial_step(serial *s, uint64_t step)
{
    bool finite = serial_sum(s, step);
    ps_optimizer_step o = {.lr = ps_schedule_lr(&s->schedule, step),
                           .t = step + 1 - s->scaler.skipped,
                           .grad_scale = serial_clip(s)};
    if (s->scaler.on) scaler_update(&s->scaler, &s->cfg->loss_scale, finite);
    if (s->scaler.on && !finite) return;
    for (int t = 0; t < s->spec.table.n_tensors; t++) {
        uint64_t at = s->spec.table.tensors[t].offset;
        float *const state[] = {s->states[0] + at, s->states[1] + at, s->states[2] + at};
        ps_optimizer_apply(
            &s->opt, &o, ps_optimizer_decay(&s->opt, s->spec.table.tensors[t].role),
            s->spec.table.tensors[t].count, s->params + at, s->sum + at, state);
    }
}

float *test_serial_weights(const ps_config *cfg, int workers, const int *hosts,
                           const test_overflows *overflows)
{
    serial s = {.workers = workers, .hosts = hosts, .overflows = overflows, .cfg = cfg};
    s.scaler.on = cfg->loss_scale.use == PS_SWITCH_ON;
    s.scaler.scale = s.scaler.on ? (float)cfg->loss_scale.init : 1;
    assert_ok(ps_model_spec_init(&s.spec, cfg));
    ps_optimizer_init(&s.opt, cfg);
    assert_ok(ps_schedule_init(&s.schedule, cfg, TEST_STEPS));
    float **arenas[] = {&s.params,    &s.sum,       &s.host,     &s.one,
                        &s.states[0], &s.states[1], &s.states[2]};
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++)
        *arenas[i] = calloc(s.spec.table.arena_count, sizeof(float));
    s.blocks = calloc(ps_gradnorm_blocks(&s.spec.table), sizeof *s.blocks);
    test_first_weights(&s.spec, s.params);
    for (uint64_t step = 0; step < TEST_STEPS; step++)
        serial_step(&s, step);
    free(s.sum), free(s.host), free(s.one), free(s.blocks);
    for (int i = 0; i < 3; i++)
        free(s.states[i]);
    ps_model_spec_fini(&s.spec);
    return s.params;
}
