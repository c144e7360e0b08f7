#include "cuda_run.h"

#include <string.h>

#include "cpu_loss.h"
#include "cuda_layers.h"

ps_err ps_cuda_run_init(ps_cuda_run *run, ps_gpu *gpu, const ps_program_options *options,
                        const ps_model_graph *graph, const ps_cuda_resident *resident)
{
    size_t arena = options->spec->arena_count * sizeof(float);
    size_t buffers = options->spec->buffer_bytes;
    *run = (ps_cuda_run){0};
    PS_TRY(ps_cuda_plan_init(&run->plan, gpu, options, graph, resident));
    PS_TRY(ps_gpu_event_create(gpu, &run->idle));
    PS_TRY(ps_gpu_event_create(gpu, &run->uploaded));
    PS_TRY(ps_gpu_event_create(gpu, &run->finished));
    if (!resident)
        PS_TRY(
            ps_gpu_pin(gpu, options->params, arena, "parameters", &run->params_pinned));
    if (options->training && !resident)
        PS_TRY(ps_gpu_pin(gpu, options->grads, arena, "gradients", &run->grads_pinned));
    if (buffers == 0) return PS_OK;
    return ps_gpu_pin(gpu, options->buffers, buffers, "buffers", &run->buffers_pinned);
}

void ps_cuda_run_fini(ps_cuda_run *run)
{
    ps_gpu *gpu = run->plan.gpu;
    const ps_program_options *o = run->plan.options;
    if (gpu) ps_gpu_drain(gpu);
    if (run->params_pinned) ps_gpu_unpin(gpu, o->params);
    if (run->grads_pinned) ps_gpu_unpin(gpu, o->grads);
    if (run->buffers_pinned) ps_gpu_unpin(gpu, o->buffers);
    ps_gpu_event_destroy(&run->idle);
    ps_gpu_event_destroy(&run->uploaded);
    ps_gpu_event_destroy(&run->finished);
    ps_cuda_plan_fini(&run->plan);
    *run = (ps_cuda_run){0};
}

static ps_cuda_pass pass_of(const ps_cuda_run *run, int n, const ps_pass *pass)
{
    const ps_cuda_plan *p = &run->plan;
    return (ps_cuda_pass){
        .plan = p,
        .n = n,
        .pass = pass,
        .positions = (const uint32_t *)(const void *)(p->batch + p->positions_at)};
}

static const int32_t *labels_of(const ps_cuda_run *run)
{
    return (const int32_t *)(const void *)run->plan.batch;
}

/* -------------------------------------------------------------------------- forward */

/* Staging is free: the pass before has waited for its copy. */
static ps_err upload_batch(ps_cuda_run *run, const ps_batch *batch)
{
    ps_cuda_plan *p = &run->plan;
    size_t n = (size_t)batch->n, x = n * (size_t)p->values[0].features * sizeof(float);
    if (batch->labels) memcpy(p->staging, batch->labels, n * sizeof(int32_t));
    if (batch->positions)
        memcpy(p->staging + p->positions_at, batch->positions, n * sizeof(uint32_t));
    memcpy(p->staging + p->x_at, batch->x, x);
    PS_TRY(ps_gpu_copy_in(p->gpu, PS_GPU_UPLOAD, p->batch, p->staging, p->x_at + x,
                          "the batch"));
    PS_TRY(ps_gpu_record(p->gpu, run->uploaded, PS_GPU_UPLOAD));
    return ps_gpu_await(p->gpu, PS_GPU_COMPUTE, run->uploaded);
}

/* Images of several channels are turned channel by channel. */
static ps_err arrange_input(ps_cuda_run *run, int64_t n)
{
    const ps_cuda_plan *p = &run->plan;
    const ps_cuda_value *v = &p->values[0];
    if (v->slot == PS_NO_SLOT) return PS_OK;
    return PS_LAUNCH(p->gpu, swap, n * v->features, "the batch",
                     .x = (const float *)(const void *)(p->batch + p->x_at), .y = v->at,
                     .b = (uint32_t)v->channels, .a = ps_divisor_of(n),
                     .inner = ps_divisor_of(v->plane));
}

/* Counters of batches live on the host; the statistics travel to the GPU and back. */
static ps_err upload_buffers(ps_cuda_run *run, bool training)
{
    ps_cuda_plan *p = &run->plan;
    const ps_model_spec *spec = p->options->spec;
    if (spec->buffer_bytes == 0) return PS_OK;
    for (int i = 0; i < spec->n_buffers && training; i++) {
        const ps_tensor *t = &spec->buffers[i];
        if (t->role != PS_TENSOR_COUNTER) continue;
        ++*(int64_t *)(void *)((char *)p->options->buffers + t->offset);
    }
    return ps_gpu_copy_in(p->gpu, PS_GPU_UPLOAD, p->buffers, p->options->buffers,
                          spec->buffer_bytes, "the buffers");
}

static ps_err upload_tensors(ps_cuda_run *run, int first, int n, ps_gpu_event *event)
{
    ps_cuda_plan *p = &run->plan;
    const ps_tensor *from = &p->options->spec->tensors[first], *to = from + n - 1;
    size_t bytes = (size_t)(to->offset + to->count - from->offset) * sizeof(float);
    PS_TRY(ps_gpu_copy_in(p->gpu, PS_GPU_UPLOAD, p->params + from->offset,
                          p->options->params + from->offset, bytes, from->name));
    PS_TRY(ps_gpu_record(p->gpu, event, PS_GPU_UPLOAD));
    return ps_gpu_await(p->gpu, PS_GPU_COMPUTE, event);
}

/* The layer's parameters, as soon as the host has the wanted ones. */
static ps_err upload_layer(ps_cuda_run *run, const ps_cuda_step *s,
                           const ps_pass_hooks *hooks)
{
    int first, n;
    ps_cuda_layer_tensors(s->node->layer, &first, &n);
    if (n == 0) return PS_OK;
    PS_TRY(hooks->params_needed(hooks->ctx, first, n));
    if (run->plan.resident)
        return ps_gpu_await(run->plan.gpu, PS_GPU_COMPUTE, run->plan.resident->released);
    return upload_tensors(run, first, n, s->uploaded);
}

/* Loss, hits and statistics, in host memory when this returns. */
static ps_err bring_home(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass,
                         ps_pass_result *result)
{
    ps_cuda_plan *p = &run->plan;
    const ps_model_spec *spec = p->options->spec;
    const ps_cuda_pass r = pass_of(run, batch->n, pass);
    if (result) {
        PS_TRY(ps_cuda_loss_forward(&r, labels_of(run)));
        PS_TRY(ps_gpu_copy_out(p->gpu, PS_GPU_COMPUTE, p->total_home, p->total,
                               sizeof *p->total_home, "the loss"));
    }
    if (pass->training && spec->buffer_bytes > 0)
        PS_TRY(ps_gpu_copy_out(p->gpu, PS_GPU_COMPUTE, p->options->buffers, p->buffers,
                               spec->buffer_bytes, "the buffers"));
    PS_TRY(ps_gpu_record(p->gpu, run->finished, PS_GPU_COMPUTE));
    PS_TRY(ps_gpu_sync(p->gpu, run->finished, "the forward pass"));
    if (result)
        *result = (ps_pass_result){.loss_sum = p->total_home->a,
                                   .correct = (int64_t)p->total_home->b};
    return PS_OK;
}

static ps_err check_batch(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass,
                          const ps_pass_result *result)
{
    const ps_program_options *o = run->plan.options;
    if (pass->training && !o->training)
        return ps_err_set(PS_ERR_ARG, "a training pass of a program for evaluation");
    if (batch->n < 1 || batch->n > o->max_batch)
        return ps_err_set(PS_ERR_ARG, "a batch of %d samples; the program takes 1 to %d",
                          batch->n, o->max_batch);
    if ((result || pass->training) && !batch->labels)
        return ps_err_set(PS_ERR_ARG, "the loss needs labels");
    if (!batch->labels) return PS_OK;
    return ps_cpu_labels_check(batch->n, o->spec->n_outputs, batch->labels);
}

ps_err ps_cuda_run_forward(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass,
                           ps_pass_result *result)
{
    ps_cuda_plan *p = &run->plan;
    const ps_pass_hooks *hooks = pass->hooks;
    PS_TRY(check_batch(run, batch, pass, result));
    bool by_layer = hooks && hooks->params_needed;
    // between the micro-batches of a step the parameters stay as they are
    bool at_once = !by_layer && !(pass->training && pass->accumulate);
    const ps_cuda_pass r = pass_of(run, batch->n, pass);
    run->n = batch->n;
    run->trained = pass->training;
    PS_TRY(ps_gpu_record(p->gpu, run->idle, PS_GPU_COMPUTE));
    PS_TRY(ps_gpu_await(p->gpu, PS_GPU_UPLOAD, run->idle));
    PS_TRY(upload_buffers(run, pass->training));
    PS_TRY(upload_batch(run, batch));
    PS_TRY(arrange_input(run, batch->n));
    if (p->resident) PS_TRY(ps_gpu_await(p->gpu, PS_GPU_COMPUTE, p->resident->released));
    if (at_once && !p->resident && p->options->spec->n_tensors > 0)
        PS_TRY(upload_tensors(run, 0, p->options->spec->n_tensors, run->uploaded));
    for (int i = 0; i < p->graph->n_nodes; i++) {
        if (by_layer) PS_TRY(upload_layer(run, &p->steps[i], hooks));
        PS_TRY(ps_cuda_layer_forward(&r, &p->steps[i]));
    }
    return bring_home(run, batch, pass, result);
}

/* -------------------------------------------------------------------------- backward */

/* Queues the copy of the layer's gradients, which run behind what made them. */
static ps_err download_layer(ps_cuda_run *run, const ps_cuda_step *s)
{
    ps_cuda_plan *p = &run->plan;
    int first, n;
    ps_cuda_layer_tensors(s->node->layer, &first, &n);
    const ps_tensor *from = &p->options->spec->tensors[first], *to = from + n - 1;
    size_t bytes = (size_t)(to->offset + to->count - from->offset) * sizeof(float);
    PS_TRY(ps_gpu_await(p->gpu, PS_GPU_DOWNLOAD, s->made));
    PS_TRY(ps_gpu_copy_out(p->gpu, PS_GPU_DOWNLOAD, p->options->grads + from->offset,
                           p->grads + from->offset, bytes, from->name));
    return ps_gpu_record(p->gpu, s->home, PS_GPU_DOWNLOAD);
}

static bool sends_gradients(const ps_cuda_run *run, int node)
{
    const ps_cuda_step *s = &run->plan.steps[node];
    return s->home && run->plan.graph->edges[s->node->out].needs_grad;
}

/* Tells the layers above `until` whose gradients have come home, in order; *next is the
 * node that comes next. wait: all of them. */
static ps_err tell_ready(ps_cuda_run *run, const ps_pass_hooks *hooks, int until,
                         bool wait, int *next)
{
    ps_cuda_plan *p = &run->plan;
    for (; *next > until; --*next) {
        const ps_cuda_step *s = &p->steps[*next];
        if (!sends_gradients(run, *next)) continue;
        bool home = true;
        if (wait)
            PS_TRY(ps_gpu_sync(p->gpu, s->home, ps_cuda_layer_name(s->node->layer)));
        else
            PS_TRY(ps_gpu_passed(p->gpu, s->home, &home));
        if (!home) return PS_OK;
        int first, n;
        ps_cuda_layer_tensors(s->node->layer, &first, &n);
        if (hooks) PS_TRY(hooks->grads_ready(hooks->ctx, first, n));
    }
    return PS_OK;
}

/* Gradients that stay on the GPU: the exchange queues its work behind the event. */
static ps_err announce(ps_cuda_run *run, const ps_cuda_step *s,
                       const ps_pass_hooks *hooks)
{
    int first, n;
    ps_cuda_layer_tensors(s->node->layer, &first, &n);
    PS_TRY(ps_gpu_record(run->plan.gpu, run->plan.resident->announced, PS_GPU_COMPUTE));
    return hooks ? hooks->grads_ready(hooks->ctx, first, n) : PS_OK;
}

ps_err ps_cuda_run_backward(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass)
{
    ps_cuda_plan *p = &run->plan;
    const ps_model_graph *g = p->graph;
    const ps_pass_hooks *hooks = pass->hooks;
    if (!run->trained || run->n != batch->n)
        return ps_err_set(PS_ERR_ARG, "a backward pass needs a training forward pass of "
                                      "the same batch before it");
    run->trained = false;
    // hooks without grads_ready: micro-batches follow that add to these gradients
    bool wanted = !hooks || hooks->grads_ready;
    const ps_cuda_pass r = pass_of(run, batch->n, pass);
    int next = g->n_nodes - 1;
    PS_TRY(ps_cuda_loss_backward(&r, labels_of(run)));
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const ps_cuda_step *s = &p->steps[i];
        if (!g->edges[s->node->out].needs_grad) continue;
        if (!s->node->with_loss) PS_TRY(ps_cuda_layer_backward(&r, s));
        if (!wanted || !s->home) continue;
        if (p->resident) {
            PS_TRY(announce(run, s, hooks));
            continue;
        }
        PS_TRY(download_layer(run, s));
        // layers below are queued by now: the GPU has work while the hook runs
        PS_TRY(tell_ready(run, hooks, i, false, &next));
    }
    return wanted && !p->resident ? tell_ready(run, hooks, -1, true, &next) : PS_OK;
}

ps_err ps_cuda_run_outputs(ps_cuda_run *run, float *out, size_t count)
{
    ps_cuda_plan *p = &run->plan;
    const ps_cuda_value *v = &p->values[p->graph->output];
    if (run->n == 0) return ps_err_set(PS_ERR_ARG, "no forward pass was made yet");
    size_t wanted = (size_t)run->n * (size_t)v->features;
    if (count != wanted)
        return ps_err_set(PS_ERR_ARG, "%zu outputs were asked for; there are %zu", count,
                          wanted);
    PS_TRY(ps_gpu_copy_out(p->gpu, PS_GPU_COMPUTE, out, v->at, count * sizeof *out,
                           "the outputs"));
    PS_TRY(ps_gpu_record(p->gpu, run->finished, PS_GPU_COMPUTE));
    return ps_gpu_sync(p->gpu, run->finished, "the outputs");
}
