#include "device_rig.h"

#include <math.h>

#include "check.h"
#include "cpu_instructions.h"
#include "init_weights.h"
#include "mem.h"
#include "model_spec.h"

const rig_rounding rig_float32 = {PS_PRECISION_FLOAT32, 0, 0, 2e-5, 4e-5, 1e-5};
const rig_rounding rig_sixteen_bits[2] = {{PS_PRECISION_BF16, 8, -133, 8e-3, 8e-3, 8e-3},
                                          {PS_PRECISION_FP16, 11, -24, 2e-3, 2e-3, 1e-3}};

static uint64_t noise_state = 1;

static float noise(void) // [-1, 1)
{
    noise_state = noise_state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)((double)(noise_state >> 40) / (1 << 23) - 1.0);
}

static void rig_data(rig *r)
{
    int64_t features = ps_dims_count(&r->spec.input);
    for (int64_t i = 0; i < r->max_batch * features; i++)
        r->x[i] = noise();
    for (int i = 0; i < r->max_batch; i++) {
        r->labels[i] = (int32_t)((unsigned)(i * 7 + 3) % (unsigned)r->spec.n_outputs);
        r->positions[i] = (uint32_t)(i * 31 + 5);
    }
    for (int64_t i = 0; r->targets && i < r->max_batch * r->spec.n_outputs; i++)
        r->targets[i] = r->spec.loss == PS_LOSS_BCE_WITH_LOGITS ||
                                r->spec.loss == PS_LOSS_CROSS_ENTROPY
                            ? 0.5f * (noise() + 1.0f)
                            : 2.0f * noise();
    for (int t = 0; t < r->spec.table.n_tensors;
         t++) { // not the symmetric initial values
        const ps_tensor *tensor = &r->spec.table.tensors[t];
        for (uint64_t i = 0; i < tensor->count; i++)
            r->params[tensor->offset + i] += 0.1f * noise();
    }
    for (int b = 0; b < r->spec.table.n_buffers; b++) {
        const ps_tensor *t = &r->spec.table.buffers[b];
        float *v = (float *)((char *)r->buffers + t->offset);
        for (uint64_t i = 0; t->role == PS_TENSOR_BUFFER && i < t->count; i++)
            v[i] += 0.3f * (noise() + 1.0f);
    }
}

/* Returns whether samples are compared with numbers. */
static bool load_model(rig *r, const char *input, const char *loss, const char *layers)
{
    enum { KEYS = 6 };
    char a[256], b[512], c[4096], *rest = NULL;
    const char *overrides[KEYS] = {a, b, c};
    int n = 3;
    bool numbers = false;
    snprintf(a, sizeof a, "model.input=%s", input);
    snprintf(b, sizeof b, "model.loss=%s", loss);
    snprintf(c, sizeof c, "model.layers=[%s]", layers);
    strtok_r(b, " ", &rest);
    for (char *key; (key = strtok_r(NULL, " ", &rest));) {
        if (strcmp(key, "numbers") == 0)
            numbers = true;
        else if (n < KEYS)
            overrides[n++] = key;
    }
    if (ps_config_load(&r->cfg, NULL, overrides, n) != PS_OK ||
        ps_model_spec_init(&r->spec, &r->cfg) != PS_OK)
        fail_msg("%s", ps_err_message());
    return numbers;
}

void rig_init(rig *r, const rig_device *on, const char *input, const char *loss,
              const char *layers, int max_batch)
{
    memset(r, 0, sizeof *r);
    const bool numbers = load_model(r, input, loss, layers);
    r->max_batch = max_batch;
    r->rounding = on->rounding;
    r->rounds_once = on->kind == PS_DEVICE_CPU;
    // where the CPU emulates bf16, only products read 16 bits
    ps_cpu_factors factors = PS_CPU_FLOAT32;
    if (r->rounds_once) ps_cpu_factors_choose(on->rounding->precision, &factors);
    r->whole_values = ps_cpu_factors_are_rounded(factors);
    size_t n = (size_t)max_batch, arena = sizeof(float) * r->spec.table.arena_count;
    size_t features = (size_t)ps_dims_count(&r->spec.input);
    assert_ok(ps_mem_map_zeroed(&r->params, arena, "p")); // these are
    assert_ok(ps_mem_map_zeroed(&r->grads, arena, "g"));  // pinned
    assert_ok(ps_mem_zalloc_aligned(&r->buffers, r->spec.table.buffer_bytes, "b"));
    assert_ok(ps_mem_zalloc_aligned(&r->x, n * features * 4, "x"));
    assert_ok(ps_mem_zalloc_aligned(&r->labels, n * 4, "l"));
    assert_ok(ps_mem_zalloc_aligned(&r->positions, n * 4, "q"));
    if (numbers)
        assert_ok(
            ps_mem_zalloc_aligned(&r->targets, n * (size_t)r->spec.n_outputs * 4, "t"));
    noise_state = 42;
    ps_init_weights(&r->spec, 3, 1, r->params, r->buffers);
    rig_data(r);
    const ps_device_options device = {.index = -1,
                                      .threads = 1,
                                      .precision = on->rounding->precision,
                                      .cudnn = on->cudnn,
                                      .channels_last = on->channels_last,
                                      .winograd = on->winograd};
    const ps_program_options program = {.spec = &r->spec,
                                        .max_batch = max_batch,
                                        .training = true,
                                        .soft_targets = numbers,
                                        .params = r->params,
                                        .grads = r->grads,
                                        .buffers = r->buffers};
    if (ps_device_open(on->kind, &device, &r->device) != PS_OK ||
        ps_program_create(r->device, &program, &r->program) != PS_OK)
        fail_msg("%s", ps_err_message());
}

void rig_fini(rig *r)
{
    ps_program_destroy(&r->program);
    ps_device_close(&r->device);
    ps_mem_unmap(r->params, sizeof(float) * r->spec.table.arena_count);
    ps_mem_unmap(r->grads, sizeof(float) * r->spec.table.arena_count);
    ps_model_spec_fini(&r->spec);
    ps_config_fini(&r->cfg);
    free(r->buffers);
    free(r->x);
    free(r->labels);
    free(r->targets);
    free(r->positions);
}

ps_batch rig_batch(const rig *r, int n)
{
    return (ps_batch){.n = n,
                      .x = r->x,
                      .labels = r->targets ? NULL : r->labels,
                      .targets = r->targets,
                      .positions = r->positions};
}

static void begin_reference(const rig *r, ref_model *ref, int n, const void *buffers)
{
    ref_init(ref, &r->spec, n, r->params, buffers);
    ref->digits = r->rounding->digits;
    ref->least = r->rounding->least;
    ref->whole_values = r->whole_values;
    ref->rounds_once = r->rounds_once;
}

/* Of a reference. */
typedef enum array_kind { OUTPUTS, GRADIENTS, STATISTICS } array_kind;

static const double *array_of(const ref_model *ref, array_kind kind)
{
    if (kind == OUTPUTS) return ref_outputs(ref);
    return kind == GRADIENTS ? ref->grads : ref->statistics;
}

enum { TIES = 8 };

/* What the device's pass began with. */
struct rig_ties {
    ps_batch batch;
    const ps_pass *pass;
    void *buffers;
    float *grads;
};

static void add_to_gradients(const rig *r, ref_model *ref, const ps_pass *pass,
                             const float *grads)
{
    for (uint64_t i = 0; i < r->spec.table.arena_count && pass->accumulate; i++)
        ref->grads[i] = grads[i];
}

static void *copy_of(const void *from, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    memcpy(copy, from, bytes);
    return copy;
}

static void begin_ties(rig *r, int n, const ps_pass *pass)
{
    const bool gpu = strcmp(r->device->ops->name, "cuda") == 0;
    if (!r->rounding->digits || !gpu) return;
    r->ties = malloc(sizeof *r->ties);
    *r->ties =
        (rig_ties){.batch = rig_batch(r, n),
                   .pass = pass,
                   .buffers = copy_of(r->buffers, r->spec.table.buffer_bytes),
                   .grads = copy_of(r->grads, sizeof(float) * r->spec.table.arena_count)};
}

static void end_ties(rig *r)
{
    if (!r->ties) return;
    free(r->ties->buffers);
    free(r->ties->grads);
    free(r->ties);
    r->ties = NULL;
}

/* How far references that round ties otherwise are from b, which is the array's part from
 * `first` on. */
static double spread_of(rig *r, array_kind kind, uint64_t first, const double *b,
                        uint64_t n)
{
    const rig_ties *t = r->ties;
    double worst = 0;
    for (uint64_t k = 1; k <= TIES; k++) {
        ref_model ref;
        begin_reference(r, &ref, t->batch.n, t->buffers);
        ref.nudge = k;
        add_to_gradients(r, &ref, t->pass, t->grads);
        ref_forward(&ref, &t->batch, t->pass);
        if (t->pass->training) ref_backward(&ref, &t->batch, t->pass);
        const double *a = array_of(&ref, kind) + first;
        for (uint64_t i = 0; i < n; i++)
            worst = fmax(worst, fabs(a[i] - b[i]));
        ref_fini(&ref);
    }
    return worst;
}

/* max |a - b| <= bound * max |b|, over a tensor: b is the reference's array from `first`
 * on. max |b| counts as at least 0.05, with 16 bits as 0.125: the gradient of a bias
 * before a batch norm is a sum of terms of that size. The sum is zero, but one term may
 * be rounded differently.
 *
 * With 16 bits a GPU, whose matrix units add in orders of their own, may be twice as far
 * away as references that round ties otherwise, but no more than four times the bound. */
static void assert_close(rig *r, const char *what, const float *a, const ref_model *ref,
                         array_kind kind, uint64_t first, uint64_t n, double bound)
{
    const double *b = array_of(ref, kind) + first;
    double worst = 0, largest = r->rounding->digits ? 0.125 : 0.05;
    for (uint64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]))
            fail_msg("%s[%llu] is not finite", what, (unsigned long long)i);
        worst = fmax(worst, fabs(a[i] - b[i]));
        largest = fmax(largest, fabs(b[i]));
    }
    r->worst = fmax(r->worst, worst / (bound * largest));
    if (worst <= bound * largest) return;
    double spread = r->ties ? spread_of(r, kind, first, b, n) : 0;
    if (worst > 2 * spread || worst > 4 * bound * largest)
        fail_msg("%s: off by %g, the largest is %g, ties make %g", what, worst, largest,
                 spread);
}

static void check_outputs(rig *r, const ref_model *ref, int n)
{
    size_t count = (size_t)(n * r->spec.n_outputs);
    float *out = malloc(count * sizeof *out);
    assert_ok(ps_program_outputs(r->program, out, count));
    assert_close(r, "outputs", out, ref, OUTPUTS, 0, count, r->rounding->outputs);
    free(out);
}

void rig_check_gradients(rig *r, const ref_model *ref)
{
    for (int t = 0; t < r->spec.table.n_tensors; t++) {
        const ps_tensor *tensor = &r->spec.table.tensors[t];
        assert_close(r, tensor->name, r->grads + tensor->offset, ref, GRADIENTS,
                     tensor->offset, tensor->count, r->rounding->gradients);
    }
    for (int b = 0; b < r->spec.table.n_buffers; b++) {
        const ps_tensor *t = &r->spec.table.buffers[b];
        if (t->role == PS_TENSOR_COUNTER) continue;
        assert_close(r, t->name, (const float *)((const char *)r->buffers + t->offset),
                     ref, STATISTICS, t->offset / 4, t->count, r->rounding->statistics);
    }
}

void rig_reference(rig *r, ref_model *ref, int n)
{
    begin_reference(r, ref, n, r->buffers);
}

void rig_compare(rig *r, int n, const ps_pass *pass)
{
    ref_model ref;
    ps_pass_result result;
    ps_batch batch = rig_batch(r, n);
    rig_reference(r, &ref, n);
    add_to_gradients(r, &ref, pass, r->grads);
    begin_ties(r, n, pass);
    double loss = ref_forward(&ref, &batch, pass);
    assert_ok(ps_program_forward(r->program, &batch, pass, &result));
    if (fabs(result.loss_sum - loss) > 0.5 * r->rounding->outputs * fabs(loss) + 1e-6)
        fail_msg("loss %.9g, reference %.9g", result.loss_sum, loss);
    check_outputs(r, &ref, n);
    if (pass->training) {
        ref_backward(&ref, &batch, pass);
        assert_ok(ps_program_backward(r->program, &batch, pass));
        assert_ok(ps_program_fetch_buffers(r->program));
        rig_check_gradients(r, &ref);
    }
    end_ties(r);
    ref_fini(&ref);
}
