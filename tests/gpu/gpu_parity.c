/* ps-gpu-parity: the CUDA device against the CPU's, teacher-forced.
 *
 *   ps-gpu-parity [--smooth] CONFIG STEPS [key=value ...]
 *
 * In every step both devices get the CPU's weights, the same made-up batch and the same
 * dropout. The CPU's gradient then makes the next weights (SGD). The program prints one
 * JSON object: the worst relative difference of a loss, and the worst difference of a
 * gradient's element over the largest of its step (and the median step's). Exit code: 1
 * if the value that is judged is above its bound, 77 without a GPU.
 *
 * train.precision holds for the GPU; the CPU stays with float32. Rounding to 16 bits
 * moves many inputs of a relu past 0. So the median step's gradient is judged, and the
 * bounds are wide. test_device checks exactly how factors are rounded.
 *
 * A relu whose input is within a rounding of 0 may have either slope, and of two inputs
 * within a rounding of each other a max_pool may take either. Among millions of inputs
 * some step meets one, and its gradient says nothing. So models with either are judged
 * by the median step. --smooth replaces relu by tanh and max_pool by avg_pool, and the
 * worst step is judged. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "device.h"
#include "init_weights.h"
#include "mem.h"
#include "model_spec.h"

typedef struct bounds {
    ps_precision precision;
    double loss, gradient;
    float loss_scale; // fp16 does not hold small gradients
} bounds;

static const bounds precisions[] = {{PS_PRECISION_FLOAT32, 1e-5, 1e-4, 1.0f},
                                    {PS_PRECISION_BF16, 1.0 / 64, 1.0 / 4, 1.0f},
                                    {PS_PRECISION_FP16, 1.0 / 512, 1.0 / 32, 4096.0f}};

enum { N_DEVICES = 2, EXIT_SKIPPED = 77 };

/* One device's copy of everything. [0] is the CPU. */
typedef struct side {
    ps_device *device;
    ps_program *program;
    float *params, *grads;
    void *buffers;
    ps_pass_result result;
} side;

typedef struct parity {
    ps_config cfg;
    ps_model_spec spec;
    side sides[N_DEVICES];
    int n;
    float *x;
    int32_t *labels;
    uint32_t *positions;
    uint64_t noise;
    bool has_kinks; // relus or max_pools
    double worst_loss, worst_gradient;
    double *gradients; // of each step
} parity;

static float noise(parity *p) // [-1, 1)
{
    p->noise = p->noise * 6364136223846793005ull + 1442695040888963407ull;
    return (float)((double)(p->noise >> 40) / (1 << 23) - 1.0);
}

static ps_err open_side(parity *p, side *s, ps_device_kind kind)
{
    ps_device_options options = {.index = -1, .local_rank = -1};
    if (s == &p->sides[1]) {
        options.precision = p->cfg.train.precision;
        options.cudnn = p->cfg.train.cudnn;
        options.channels_last = p->cfg.train.channels_last;
    }
    size_t bytes = p->spec.table.arena_count * sizeof(float);
    PS_TRY(ps_device_open(kind, &options, &s->device));
    PS_TRY(ps_mem_map_zeroed(&s->params, bytes, "parameters")); // these are pinned
    PS_TRY(ps_mem_map_zeroed(&s->grads, bytes, "gradients"));
    PS_TRY(
        ps_mem_zalloc_aligned(&s->buffers, p->spec.table.buffer_bytes + 64, "buffers"));
    ps_init_weights(&p->spec, 1, 1, s->params, s->buffers);
    const ps_program_options program = {.spec = &p->spec,
                                        .max_batch = p->n,
                                        .training = true,
                                        .params = s->params,
                                        .grads = s->grads,
                                        .buffers = s->buffers};
    return ps_program_create(s->device, &program, &s->program);
}

static void choose_layers(parity *p, bool smooth)
{
    for (int l = 0; l < p->spec.n_layers; l++) {
        ps_layer *layer = &p->spec.layers[l];
        const bool relu = layer->kind == PS_LAYER_RELU;
        const bool pool = layer->kind == PS_LAYER_MAX_POOL2D;
        const bool other = layer->kind == PS_LAYER_RELU6 ||
                           layer->kind == PS_LAYER_LEAKY_RELU ||
                           layer->kind == PS_LAYER_ADAPTIVE_MAX_POOL2D;
        if (other || (!smooth && (relu || pool))) p->has_kinks = true;
        if (smooth && relu) layer->kind = PS_LAYER_TANH;
        if (smooth && pool) layer->kind = PS_LAYER_AVG_POOL2D;
    }
}

static ps_err set_up(parity *p, bool smooth, const char *config,
                     const char *const *overrides, int n)
{
    PS_TRY(ps_config_load(&p->cfg, config, overrides, n));
    PS_TRY(ps_model_spec_init(&p->spec, &p->cfg));
    choose_layers(p, smooth);
    p->n = (int)ps_config_batch(&p->cfg, 0);
    size_t samples = (size_t)p->n, features = (size_t)ps_dims_count(&p->spec.input);
    PS_TRY(ps_mem_zalloc_aligned(&p->x, samples * features * sizeof(float), "batch"));
    PS_TRY(ps_mem_zalloc_aligned(&p->labels, samples * sizeof(int32_t), "batch"));
    PS_TRY(ps_mem_zalloc_aligned(&p->positions, samples * sizeof(uint32_t), "batch"));
    PS_TRY(open_side(p, &p->sides[1], PS_DEVICE_CUDA));
    return open_side(p, &p->sides[0], PS_DEVICE_CPU);
}

static void fini(parity *p)
{
    for (int i = 0; i < N_DEVICES; i++) {
        side *s = &p->sides[i];
        ps_program_destroy(&s->program);
        ps_device_close(&s->device);
        ps_mem_unmap(s->params, p->spec.table.arena_count * sizeof(float));
        ps_mem_unmap(s->grads, p->spec.table.arena_count * sizeof(float));
        free(s->buffers);
    }
    free(p->x);
    free(p->labels);
    free(p->positions);
    ps_model_spec_fini(&p->spec);
    ps_config_fini(&p->cfg);
}

static void make_batch(parity *p, int step)
{
    int64_t features = ps_dims_count(&p->spec.input);
    for (int64_t i = 0; i < p->n * features; i++)
        p->x[i] = noise(p);
    for (int i = 0; i < p->n; i++) {
        p->labels[i] = (int32_t)((unsigned)(i * 7 + step) % (unsigned)p->spec.n_outputs);
        p->positions[i] = (uint32_t)(step * p->n + i);
    }
}

static void compare(parity *p, int step)
{
    const side *cpu = &p->sides[0], *gpu = &p->sides[1];
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < p->spec.table.arena_count; i++) {
        double d = fabs((double)gpu->grads[i] - cpu->grads[i]);
        worst = d <= worst ? worst : d; // NaN stays
        largest = fmax(largest, fabs(cpu->grads[i]));
    }
    double loss =
        fabs(gpu->result.loss_sum - cpu->result.loss_sum) / fabs(cpu->result.loss_sum);
    if (!(loss <= p->worst_loss)) p->worst_loss = loss;
    p->gradients[step] = worst / largest;
    if (!(worst / largest <= p->worst_gradient)) p->worst_gradient = worst / largest;
}

static const bounds *bounds_of(const parity *p)
{
    size_t i = 0;
    while (precisions[i].precision != p->cfg.train.precision)
        i++; // the table has every precision
    return &precisions[i];
}

static ps_err one_step(parity *p, int step)
{
    const float scale = bounds_of(p)->loss_scale;
    const ps_pass pass = {
        .training = true, .grad_scale = scale, .dropout = {.seed = 7, .epoch = 1}};
    const ps_batch batch = {
        .n = p->n, .x = p->x, .labels = p->labels, .positions = p->positions};
    make_batch(p, step);
    for (int i = 0; i < N_DEVICES; i++) {
        side *s = &p->sides[i];
        PS_TRY(ps_program_forward(s->program, &batch, &pass, &s->result));
        PS_TRY(ps_program_backward(s->program, &batch, &pass));
        PS_TRY(ps_program_fetch_buffers(s->program));
    }
    compare(p, step);
    for (uint64_t i = 0; i < p->spec.table.arena_count; i++) {
        p->sides[0].params[i] -= 0.01f / scale * p->sides[0].grads[i];
        p->sides[1].params[i] = p->sides[0].params[i];
    }
    memcpy(p->sides[1].buffers, p->sides[0].buffers, p->spec.table.buffer_bytes);
    return PS_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int report(const parity *p, int steps)
{
    char text[200];
    const bounds *most = bounds_of(p);
    qsort(p->gradients, (size_t)steps, sizeof *p->gradients, ascending);
    bool worst = most == precisions && !p->has_kinks;
    double judged = worst ? p->worst_gradient : p->gradients[steps / 2];
    bool passed = p->worst_loss <= most->loss && judged <= most->gradient &&
                  isfinite(p->worst_gradient);
    ps_device_describe(p->sides[1].device, text, sizeof text);
    printf("{\"device\": \"%s\", \"precision\": \"%s\", \"steps\": %d, \"batch\": %d, "
           "\"loss\": %.3g, "
           "\"loss_bound\": %g, \"gradient\": %.3g, \"gradient_median\": %.3g, "
           "\"gradient_bound\": %g, \"passed\": %s}\n",
           text, ps_word_name(ps_precision_words, (int)most->precision), steps, p->n,
           p->worst_loss, most->loss, p->worst_gradient, p->gradients[steps / 2],
           most->gradient, passed ? "true" : "false");
    return passed ? 0 : 1;
}

int main(int argc, char **argv)
{
    bool smooth = argc > 1 && strcmp(argv[1], "--smooth") == 0;
    argc -= smooth;
    argv += smooth;
    if (argc < 3) {
        fprintf(stderr, "usage: ps-gpu-parity [--smooth] CONFIG STEPS [key=value ...]\n");
        return 2;
    }
    parity p = {.noise = 1};
    int steps = atoi(argv[2]) > 1 ? atoi(argv[2]) : 1, code = 1;
    ps_err err =
        ps_mem_zalloc(&p.gradients, (size_t)steps, sizeof(double), "differences");
    if (err == PS_OK)
        err = set_up(&p, smooth, argv[1], (const char *const *)argv + 3, argc - 3);
    bool no_gpu = err == PS_ERR_UNSUPPORTED && !p.sides[1].device;
    for (int i = 0; i < steps && err == PS_OK; i++)
        err = one_step(&p, i);
    if (err == PS_OK)
        code = report(&p, steps);
    else
        fprintf(stderr, "%s%s\n", no_gpu ? "skipped: " : "", ps_err_message());
    fini(&p);
    free(p.gradients);
    return no_gpu ? EXIT_SKIPPED : code;
}
