#include "cpu_device.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_processor.h"
#include "cpu_run.h"
#include "cpu_waits.h"
#include "log.h"
#include "mem.h"
#include "procstat.h"

typedef struct cpu_device {
    ps_device base;
    int threads;
    ps_cpu_library library;
    ps_spare_memory spare;
    ps_cpu_waits *waits; // NULL: OpenMP decides how threads wait
} cpu_device;

typedef struct cpu_program {
    ps_program base;
    ps_program_options options;
    ps_model_graph graph;
    int n_runs;
    ps_cpu_run **runs; // (max_batch + 1), by batch size; NULL: not made yet
    ps_cpu_run *last;  // of the last forward
    bool trained;      // last was a training forward, without a backward yet
    ps_pass_result owed[PS_RESULTS_KEPT];
    int n_owed;
} cpu_program;

static void cpu_close(ps_device **device)
{
    cpu_device *d = (cpu_device *)(void *)*device;
    ps_cpu_waits_stop(&d->waits);
    if (d->library.stream) dnnl_stream_destroy(d->library.stream);
    if (d->library.engine) dnnl_engine_destroy(d->library.engine);
    ps_spare_memory_fini(&d->spare);
    free(d);
    *device = NULL;
}

static void warn_of_emulation(void)
{
    PS_WARN("emulated bf16",
            "train.precision=bf16 reason=\"this processor has no bf16 instructions, so "
            "factors are rounded and multiplied in float32: no faster, often slower than "
            "float32 alone\" hint=\"train.precision=float32\"");
}

static ps_err cpu_open(const ps_device_options *options, ps_device **out)
{
    cpu_device *d = NULL;
    *out = NULL;
    ps_cpu_factors factors;
    PS_TRY(ps_cpu_factors_choose(options->precision, &factors));
    PS_TRY(PS_NEW(&d, 1, "device"));
    d->base.ops = &ps_cpu_device_ops;
    d->library.winograd = options->winograd;
    d->library.factors = factors;
    d->library.spare = &d->spare;
    if (ps_cpu_factors_are_rounded(factors)) warn_of_emulation();
    d->threads = options->threads > 0 ? options->threads : ps_process_cores();
    *out = &d->base;
    ps_err err = ps_dnnl_check(dnnl_engine_create(&d->library.engine, dnnl_cpu, 0),
                               "device cpu", "engine");
    if (err == PS_OK && d->threads > 1 && !options->own_waits)
        err = ps_cpu_waits_start(d->threads, &d->waits);
    if (err == PS_OK)
        err = ps_dnnl_check(dnnl_stream_create(&d->library.stream, d->library.engine,
                                               dnnl_stream_default_flags),
                            "device cpu", "stream");
    if (err != PS_OK) cpu_close(out);
    return err;
}

static void cpu_describe(const ps_device *device, char *out, size_t bytes)
{
    const cpu_device *d = (const cpu_device *)(const void *)device;
    const dnnl_version_t *v = dnnl_version();
    const ps_cpu_factors factors = d->library.factors;
    char name[128];
    ps_cpu_processor_name(name, sizeof name);
    int n = snprintf(out, bytes, "cpu: %s, %d thread%s, oneDNN %d.%d.%d %s", name,
                     d->threads, d->threads == 1 ? "" : "s", v->major, v->minor, v->patch,
                     ps_cpu_isa_name());
    if (factors == PS_CPU_FLOAT32 || n < 0 || (size_t)n >= bytes) return;
    snprintf(out + n, bytes - (size_t)n, ", products in %s: %s",
             ps_cpu_factors_type(factors) == PS_CPU_FP16 ? "fp16" : "bf16",
             ps_cpu_products_name(factors));
}

static void cpu_program_destroy(ps_program **program)
{
    cpu_program *p = (cpu_program *)(void *)*program;
    // runs[max_batch] owns the memory that the others share
    for (int n = 1; p->runs && n <= p->options.max_batch; n++) {
        if (!p->runs[n]) continue;
        ps_cpu_run_fini(p->runs[n]);
        free(p->runs[n]);
    }
    free(p->runs);
    ps_model_graph_fini(&p->graph);
    free(p);
    *program = NULL;
}

/* The run for batches of n samples, made at its first use. */
static ps_err run_for(cpu_program *p, int n, ps_cpu_run **out)
{
    const cpu_device *d = (const cpu_device *)(void *)p->base.device;
    omp_set_num_threads(d->threads); // for this thread, which may be a new one
    if (n < 1 || n > p->options.max_batch)
        return ps_err_set(PS_ERR_ARG, "a batch of %d samples; the program takes 1 to %d",
                          n, p->options.max_batch);
    if (!p->runs[n]) {
        ps_cpu_run *run = NULL;
        PS_TRY(PS_NEW(&run, 1, "model"));
        ps_err err = ps_cpu_run_init(run, &p->options, &p->graph, n, &d->library,
                                     p->runs[p->options.max_batch]);
        if (err != PS_OK) {
            ps_cpu_run_fini(run);
            free(run);
            return err;
        }
        p->runs[n] = run;
    }
    *out = p->runs[n];
    return PS_OK;
}

static ps_err cpu_program_create(ps_device *device, const ps_program_options *options,
                                 ps_program **out)
{
    cpu_program *p = NULL;
    ps_cpu_run *run;
    *out = NULL;
    PS_TRY(PS_NEW(&p, 1, "program"));
    *out = &p->base;
    p->base.device = device;
    p->options = *options;
    ps_err err = PS_NEW(&p->runs, (size_t)options->max_batch + 1, "program");
    if (err == PS_OK) err = ps_model_graph_init(&p->graph, options->spec);
    if (err == PS_OK) err = run_for(p, options->max_batch, &run);
    if (err != PS_OK) cpu_program_destroy(out);
    return err;
}

static ps_err cpu_forward(ps_program *program, const ps_batch *batch, const ps_pass *pass,
                          ps_pass_result *result)
{
    cpu_program *p = (cpu_program *)(void *)program;
    ps_cpu_run *run = NULL;
    if (pass->training && !p->options.training)
        return ps_err_set(PS_ERR_ARG,
                          "a training pass needs a program made for training");
    PS_TRY(run_for(p, batch->n, &run));
    p->last = run;
    p->trained = pass->training;
    if (!pass->loss_later) return ps_cpu_run_forward(run, batch, pass, result);
    if (p->n_owed == PS_RESULTS_KEPT)
        return ps_err_set(PS_ERR_ARG, "%d results are outstanding; fetch one first",
                          PS_RESULTS_KEPT);
    return ps_cpu_run_forward(run, batch, pass, &p->owed[p->n_owed++]);
}

static ps_err cpu_backward(ps_program *program, const ps_batch *batch,
                           const ps_pass *pass)
{
    cpu_program *p = (cpu_program *)(void *)program;
    if (!p->last || !p->trained || p->last->n != batch->n)
        return ps_err_set(PS_ERR_ARG, "a backward pass needs a training forward pass of "
                                      "the same batch before it");
    PS_TRY(run_for(p, batch->n, &p->last));
    p->trained = false; // the backward pass overwrites what it reads
    return ps_cpu_run_backward(p->last, batch, pass);
}

static ps_err cpu_result(ps_program *program, ps_pass_result *out)
{
    cpu_program *p = (cpu_program *)(void *)program;
    if (p->n_owed == 0) return ps_err_set(PS_ERR_ARG, "no result is outstanding");
    *out = p->owed[0];
    p->n_owed--;
    memmove(p->owed, p->owed + 1, sizeof *p->owed * (size_t)p->n_owed);
    return PS_OK;
}

static ps_err cpu_outputs(ps_program *program, float *out, size_t count)
{
    const cpu_program *p = (const cpu_program *)(void *)program;
    if (!p->last) return ps_err_set(PS_ERR_ARG, "no forward pass was made yet");
    size_t wanted = (size_t)p->last->n * (size_t)p->options.spec->n_outputs;
    if (count != wanted)
        return ps_err_set(PS_ERR_ARG, "%zu outputs were asked for; there are %zu", count,
                          wanted);
    memcpy(out, p->last->values[p->graph.output].at, sizeof(float) * count);
    return PS_OK;
}

const ps_device_ops ps_cpu_device_ops = {
    .kind = PS_DEVICE_CPU,
    .name = "cpu",
    .uses_cores = true,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .program_create = cpu_program_create,
    .program_destroy = cpu_program_destroy,
    .forward = cpu_forward,
    .backward = cpu_backward,
    .outputs = cpu_outputs,
    .result = cpu_result,
};
