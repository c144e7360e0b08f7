/* ps-bench-step: the arithmetic of one worker alone, without data files or an exchange.
 *
 *   ps-bench-step CONFIG STEPS WARMUP SECONDS [key=value ...]
 *   ps-bench-step --weights OUT CONFIG [key=value ...]
 *
 * --weights writes the job's first weights (of train.init, else of train.seed) as
 * safetensors, and that is all: every side of a comparison loads them. Else it trains
 * CONFIG's model on one synthetic batch (forward, loss, backward, optimizer), until STEPS
 * or SECONDS are over, but at least 3 steps. Prints one JSON object: for each step after
 * WARMUP the milliseconds of the step and its parts, the processor time of all threads,
 * and the time in oneDNN's kernels.
 *
 * The linker puts wrap_ functions around the two calls that run kernels (--wrap, see
 * bench/CMakeLists.txt); the device's code is unchanged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <oneapi/dnnl/dnnl.h>

#include "clock.h"
#include "config.h"
#include "cpu_level.h"
#include "device.h"
#include "init_weights.h"
#include "mem.h"
#include "model_file.h"
#include "model_spec.h"
#include "optimizer.h"

typedef struct bench {
    ps_config cfg;
    ps_model_spec spec;
    ps_optimizer optimizer;
    ps_device *device;
    ps_program *program;
    int n;
    ps_shared_mem params, grads; // as in a worker
    float *states[PS_OPTIMIZER_MAX_STATES];
    void *buffers;
    float *x;
    int32_t *labels;
    uint32_t *positions;
    double *ms; // per measured step: all, forward, backward, optimizer
    double loss;
} bench;

enum { PARTS = 6, LEAST_STEPS = 3 };

static uint64_t library_ns; // in the library's kernels, since the program's start

__typeof__(dnnl_primitive_execute) __real_dnnl_primitive_execute,
    __wrap_dnnl_primitive_execute;
dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                            dnnl_stream_t stream, int n,
                                            const dnnl_exec_arg_t *args)
{
    uint64_t start = ps_clock_ns();
    dnnl_status_t s = __real_dnnl_primitive_execute(primitive, stream, n, args);
    library_ns += ps_clock_ns() - start;
    return s;
}

__typeof__(dnnl_sgemm) __real_dnnl_sgemm, __wrap_dnnl_sgemm;
dnnl_status_t __wrap_dnnl_sgemm(char ta, char tb, dnnl_dim_t m, dnnl_dim_t n,
                                dnnl_dim_t k, float alpha, const float *a, dnnl_dim_t lda,
                                const float *b, dnnl_dim_t ldb, float beta, float *c,
                                dnnl_dim_t ldc)
{
    uint64_t start = ps_clock_ns();
    dnnl_status_t s =
        __real_dnnl_sgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    library_ns += ps_clock_ns() - start;
    return s;
}

/* Processor time of all threads, as step_torch.py measures PyTorch's. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static ps_err make_batch(bench *b)
{
    size_t n = (size_t)b->n, features = (size_t)ps_dims_count(&b->spec.input);
    ps_mt19937 g;
    PS_TRY(ps_mem_zalloc_aligned(&b->x, n * features * sizeof(float), "batch"));
    PS_TRY(ps_mem_zalloc_aligned(&b->labels, n * sizeof(int32_t), "batch"));
    PS_TRY(ps_mem_zalloc_aligned(&b->positions, n * sizeof(uint32_t), "batch"));
    ps_mt19937_seed(&g, 7);
    ps_uniform(&g, -1.0f, 1.0f, 0, n * features, b->x);
    for (size_t i = 0; i < n; i++) {
        b->labels[i] = (int32_t)(ps_mt19937_u32(&g) % (uint32_t)b->spec.n_outputs);
        b->positions[i] = (uint32_t)i;
    }
    return PS_OK;
}

static ps_err step_make_weights(bench *b)
{
    const ps_tensor_table *table = &b->spec.table;
    PS_TRY(ps_shared_mem_init_private(&b->params, sizeof(float) * table->arena_count,
                                      "parameters"));
    PS_TRY(ps_mem_zalloc_aligned(&b->buffers, table->buffer_bytes, "buffers"));
    if (b->cfg.train.init[0])
        return ps_model_file_load(b->cfg.train.init, table, true, b->params.base,
                                  b->buffers);
    ps_init_weights(&b->spec, b->cfg.train.seed, 1, b->params.base, b->buffers);
    return PS_OK;
}

static ps_err step_make_program(bench *b)
{
    size_t arena = sizeof(float) * b->spec.table.arena_count;
    PS_TRY(step_make_weights(b));
    PS_TRY(ps_shared_mem_init_private(&b->grads, arena, "gradients"));
    for (int i = 0; i < b->optimizer.n_states; i++)
        PS_TRY(ps_mem_zalloc_large(&b->states[i], arena, "optimizer state"));
    const ps_device_options device =
        ps_device_options_of(&b->cfg, -1, (int)b->cfg.train.threads);
    const ps_program_options program = {.spec = &b->spec,
                                        .max_batch = b->n,
                                        .training = true,
                                        .params = b->params.base,
                                        .grads = b->grads.base,
                                        .buffers = b->buffers};
    PS_TRY(ps_device_open(b->cfg.train.device.kind, &device, &b->device));
    return ps_program_create(b->device, &program, &b->program);
}

static void optimize(bench *b, uint64_t t)
{
    const ps_optimizer_step step = {.lr = b->optimizer.lr, .t = t, .grad_scale = 1.0};
    for (int i = 0; i < b->spec.table.n_tensors; i++) {
        const ps_tensor *w = &b->spec.table.tensors[i];
        float *states[PS_OPTIMIZER_MAX_STATES];
        for (int s = 0; s < b->optimizer.n_states; s++)
            states[s] = b->states[s] + w->offset;
        ps_optimizer_apply(&b->optimizer, &step,
                           ps_optimizer_decay(&b->optimizer, w->role), w->count,
                           (float *)b->params.base + w->offset,
                           (float *)b->grads.base + w->offset, states);
    }
}

static ps_err run_step(bench *b, uint64_t t, double ms[PARTS])
{
    const ps_batch batch = {
        .n = b->n, .x = b->x, .labels = b->labels, .positions = b->positions};
    const ps_pass pass = {.training = true,
                          .grad_scale = 1.0f,
                          .dropout = {b->cfg.train.seed, (uint32_t)t}};
    ps_pass_result result;
    uint64_t kernels = library_ns, cpu = cpu_ns(), start = ps_clock_ns();
    PS_TRY(ps_program_forward(b->program, &batch, &pass, &result));
    uint64_t forward = ps_clock_ns();
    PS_TRY(ps_program_backward(b->program, &batch, &pass));
    uint64_t backward = ps_clock_ns();
    optimize(b, t);
    uint64_t end = ps_clock_ns();
    b->loss = result.loss_sum / b->n;
    ms[0] = (double)(end - start) * 1e-6;
    ms[1] = (double)(forward - start) * 1e-6;
    ms[2] = (double)(backward - forward) * 1e-6;
    ms[3] = (double)(end - backward) * 1e-6;
    ms[4] = (double)(cpu_ns() - cpu) * 1e-6;
    ms[5] = (double)(library_ns - kernels) * 1e-6;
    return PS_OK;
}

static void step_print_result(const bench *b, int steps)
{
    static const char *const names[PARTS] = {"step_ms",      "forward_ms", "backward_ms",
                                             "optimizer_ms", "cpu_ms",     "library_ms"};
    char text[256];
    ps_device_describe(b->device, text, sizeof text);
    printf("{\"device\": \"%s\", \"batch\": %d, \"loss\": %.9g", text, b->n, b->loss);
    for (int part = 0; part < PARTS; part++) {
        printf(", \"%s\": [", names[part]);
        for (int i = 0; i < steps; i++)
            printf("%s%.4f", i ? ", " : "", b->ms[i * PARTS + part]);
        printf("]");
    }
    printf("}\n");
}

static ps_err step_load(bench *b, const char *config, char **keys, int n)
{
    PS_TRY(ps_config_load(&b->cfg, config, (const char *const *)keys, n));
    return ps_model_spec_init(&b->spec, &b->cfg);
}

static ps_err step_write_weights(bench *b, int argc, char **argv)
{
    PS_TRY(step_load(b, argv[3], argv + 4, argc - 4));
    PS_TRY(step_make_weights(b));
    return ps_model_file_save(argv[2], &b->spec.table, b->params.base, b->buffers, NULL,
                              0);
}

static ps_err step_run(bench *b, int argc, char **argv)
{
    int steps = atoi(argv[2]), warmup = atoi(argv[3]);
    double seconds = atof(argv[4]);
    if (steps < 1 || warmup < 0)
        return ps_err_set(PS_ERR_ARG, "STEPS has to be 1 or more, WARMUP 0 or more");
    PS_TRY(step_load(b, argv[1], argv + 5, argc - 5));
    ps_optimizer_init(&b->optimizer, &b->cfg);
    b->n = (int)ps_config_batch(&b->cfg, 0);
    PS_TRY(make_batch(b));
    PS_TRY(step_make_program(b));
    PS_TRY(PS_NEW(&b->ms, (size_t)steps * PARTS, "times"));
    uint64_t start = ps_clock_ns();
    int done = 0;
    for (int i = 0; i < warmup + steps; i++) {
        if (i == warmup) start = ps_clock_ns();
        if (done >= LEAST_STEPS && (double)(ps_clock_ns() - start) > 1e9 * seconds) break;
        PS_TRY(run_step(b, (uint64_t)i + 1, b->ms + done * PARTS));
        if (i >= warmup) done++;
    }
    step_print_result(b, done);
    return PS_OK;
}

int main(int argc, char **argv)
{
    bench b = {0};
    ps_mem_keep_freed(); // as ps-worker does
    const bool weights = argc >= 4 && strcmp(argv[1], "--weights") == 0;
    if (argc < 5 && !weights) {
        fprintf(stderr,
                "ps-bench-step: see the head of bench/step_main.c for what it takes\n");
        return 2;
    }
    const char *level = getenv("PS_CPU_LEVEL"); // as ps-worker's
    ps_err err = level ? ps_cpu_level_use(level) : PS_OK;
    if (err == PS_OK)
        err = weights ? step_write_weights(&b, argc, argv) : step_run(&b, argc, argv);
    if (err != PS_OK) fprintf(stderr, "ps-bench-step: %s\n", ps_err_message());
    ps_program_destroy(&b.program);
    ps_device_close(&b.device);
    ps_model_spec_fini(&b.spec);
    ps_config_fini(&b.cfg);
    ps_shared_mem_fini(&b.params);
    ps_shared_mem_fini(&b.grads);
    for (int i = 0; i < PS_OPTIMIZER_MAX_STATES; i++)
        free(b.states[i]);
    free(b.buffers);
    free(b.x);
    free(b.labels);
    free(b.positions);
    free(b.ms);
    return err == PS_OK ? 0 : 1;
}
