#include "cuda_run.h"

#include <stdio.h>

#include "cuda_codes.h"
#include "loss_terms.h"
#include "model_spec.h"

/* -------------------------------------------------------------------------- results */

static ps_err init_results(ps_cuda_results *r, ps_gpu *gpu)
{
    PS_TRY(
        ps_gpu_take_pinned(gpu, PS_RESULTS_KEPT * sizeof *r->home, "losses", &r->home));
    for (int i = 0; i < PS_RESULTS_KEPT; i++)
        PS_TRY(ps_gpu_event_create(gpu, &r->there[i]));
    return PS_OK;
}

static void fini_results(ps_cuda_results *r, ps_gpu *gpu)
{
    if (gpu) ps_gpu_give_pinned(gpu, r->home);
    for (int i = 0; i < PS_RESULTS_KEPT; i++)
        ps_gpu_event_destroy(&r->there[i]);
}

/* Queues the copy of the pass's loss to the host; it overlaps the following work on
 * compute. */
static ps_err send_result(ps_cuda_run *run)
{
    ps_cuda_results *r = &run->results;
    ps_gpu *gpu = run->plan.gpu;
    int at = (r->first + r->n++) % PS_RESULTS_KEPT;
    PS_TRY(ps_gpu_record(gpu, run->finished, PS_GPU_COMPUTE));
    PS_TRY(ps_gpu_await(gpu, PS_GPU_DOWNLOAD, run->finished));
    PS_TRY(ps_gpu_copy_out(gpu, PS_GPU_DOWNLOAD, &r->home[at], run->plan.total,
                           sizeof *r->home, "the loss"));
    r->last = r->there[at];
    return ps_gpu_record(gpu, r->last, PS_GPU_DOWNLOAD);
}

static ps_err read_result(ps_cuda_run *run, int at, ps_pass_result *out)
{
    ps_cuda_results *r = &run->results;
    PS_TRY(ps_gpu_sync(run->plan.gpu, r->there[at], "the forward pass"));
    *out = (ps_pass_result){.loss_sum = r->home[at].a, .correct = (int64_t)r->home[at].b};
    r->n--;
    return PS_OK;
}

ps_err ps_cuda_run_result(ps_cuda_run *run, ps_pass_result *out)
{
    ps_cuda_results *r = &run->results;
    int at = r->first;
    if (r->n == 0) return ps_err_set(PS_ERR_ARG, "no result is outstanding");
    r->first = (r->first + 1) % PS_RESULTS_KEPT;
    return read_result(run, at, out);
}

/* ----------------------------------------------------------------------------- life */

ps_err ps_cuda_run_init(ps_cuda_run *run, ps_gpu *gpu, ps_conv_library *library,
                        ps_switch channels_last, const ps_program_options *options,
                        const ps_model_graph *graph, ps_cuda_kept kept, bool no_graphs)
{
    const ps_model_spec *spec = options->spec;
    size_t arena = spec->table.arena_count * sizeof(float);
    *run = (ps_cuda_run){0};
    PS_TRY(
        ps_cuda_plan_init(&run->plan, gpu, library, channels_last, options, graph, kept));
    const ps_cuda_value *x = &run->plan.values[0];
    PS_TRY(ps_cuda_batch_init(&run->batch, gpu, options, x->plane, x->layout));
    ps_cuda_graphs_init(&run->graphs, gpu, run->plan.n_groups, no_graphs);
    PS_TRY(init_results(&run->results, gpu));
    PS_TRY(ps_gpu_event_create(gpu, &run->uploaded));
    PS_TRY(ps_gpu_event_create(gpu, &run->finished));
    if (!kept.resident && !kept.params)
        PS_TRY(
            ps_gpu_pin(gpu, options->params, arena, "parameters", &run->params_pinned));
    if (!options->training || kept.resident || kept.grads || kept.codes) return PS_OK;
    return ps_gpu_pin(gpu, options->grads, arena, "gradients", &run->grads_pinned);
}

void ps_cuda_run_fini(ps_cuda_run *run)
{
    ps_gpu *gpu = run->plan.gpu;
    const ps_program_options *o = run->plan.options;
    if (gpu) ps_gpu_drain(gpu);
    if (run->params_pinned) ps_gpu_unpin(gpu, o->params);
    if (run->grads_pinned) ps_gpu_unpin(gpu, o->grads);
    ps_gpu_event_destroy(&run->uploaded);
    ps_gpu_event_destroy(&run->finished);
    ps_cuda_graphs_fini(&run->graphs);
    ps_cuda_batch_fini(&run->batch);
    fini_results(&run->results, gpu);
    ps_cuda_plan_fini(&run->plan);
    *run = (ps_cuda_run){0};
}

/* ---------------------------------------------------------------------- weights here */

/* Calls the hook for a group, which has at least one tensor. */
static ps_err cuda_run_call_hook(const ps_cuda_run *run,
                                 ps_err (*hook)(void *, uint64_t, uint64_t), void *ctx,
                                 const ps_cuda_group *g)
{
    uint64_t begin, end;
    ps_tensor_table_range(&run->plan.options->spec->table, g->first, g->n, &begin, &end);
    return hook(ctx, begin, end);
}

static ps_err upload_tensors(ps_cuda_run *run, int first, int n, ps_gpu_event *event)
{
    ps_cuda_plan *p = &run->plan;
    const ps_tensor *from = &p->options->spec->table.tensors[first], *to = from + n - 1;
    size_t bytes = (size_t)(to->offset + to->count - from->offset) * sizeof(float);
    PS_TRY(ps_gpu_copy_in(p->gpu, PS_GPU_UPLOAD, p->params + from->offset,
                          p->options->params + from->offset, bytes, from->name));
    PS_TRY(ps_gpu_record(p->gpu, event, PS_GPU_UPLOAD));
    return ps_gpu_await(p->gpu, PS_GPU_COMPUTE, event);
}

/* Uploads the group's parameters as soon as the host has those of this pass. Where they
 * are shared, they are on the GPU then. */
static ps_err bring_group(ps_cuda_run *run, const ps_cuda_group *g,
                          const ps_pass_hooks *hooks)
{
    const ps_cuda_plan *p = &run->plan;
    if (g->n == 0) return PS_OK;
    PS_TRY(cuda_run_call_hook(run, hooks->params_needed, hooks->ctx, g));
    if (p->kept.params) return PS_OK;
    if (p->resident) return ps_gpu_await(p->gpu, PS_GPU_COMPUTE, p->resident->released);
    return upload_tensors(run, g->first, g->n, g->uploaded);
}

/* Without a params_needed hook: uploads all parameters, unless they have not changed
 * since the last pass. */
static ps_err bring_weights(ps_cuda_run *run, const ps_pass *pass)
{
    const ps_cuda_plan *p = &run->plan;
    int n = p->options->spec->table.n_tensors;
    bool by_group = pass->hooks && pass->hooks->params_needed;
    // between the micro-batches of a step the parameters do not change
    bool same = pass->training ? pass->accumulate : pass->same_weights;
    if (by_group || p->kept.params) return PS_OK;
    if (p->resident) return ps_gpu_await(p->gpu, PS_GPU_COMPUTE, p->resident->released);
    return same || n == 0 ? PS_OK : upload_tensors(run, 0, n, run->uploaded);
}

/* --------------------------------------------------------------------------- buffers */

/* Training keeps them on the GPU from its first pass on. */
static ps_err bring_buffers(ps_cuda_run *run, const ps_pass *pass)
{
    ps_cuda_plan *p = &run->plan;
    const ps_model_spec *spec = p->options->spec;
    if (spec->table.buffer_bytes == 0) return PS_OK;
    run->counted += pass->training;
    if (run->buffers_here || pass->same_weights) return PS_OK;
    run->buffers_here = p->options->training;
    PS_TRY(ps_gpu_copy_in(p->gpu, PS_GPU_UPLOAD, p->buffers, p->options->buffers,
                          spec->table.buffer_bytes, "the buffers"));
    PS_TRY(ps_gpu_record(p->gpu, run->uploaded, PS_GPU_UPLOAD));
    return ps_gpu_await(p->gpu, PS_GPU_COMPUTE, run->uploaded);
}

/* num_batches_tracked is counted on the host, not on the GPU. */
static void add_counted(ps_cuda_run *run)
{
    const ps_program_options *o = run->plan.options;
    for (int i = 0; i < o->spec->table.n_buffers; i++) {
        const ps_tensor *t = &o->spec->table.buffers[i];
        if (t->role == PS_TENSOR_COUNTER)
            *(int64_t *)(void *)((char *)o->buffers + t->offset) += run->counted;
    }
    run->counted = 0;
}

ps_err ps_cuda_run_fetch_buffers(ps_cuda_run *run)
{
    ps_cuda_plan *p = &run->plan;
    if (!run->buffers_here) return PS_OK;
    PS_TRY(ps_gpu_copy_out(p->gpu, PS_GPU_COMPUTE, p->options->buffers, p->buffers,
                           p->options->spec->table.buffer_bytes, "the buffers"));
    PS_TRY(ps_gpu_record(p->gpu, run->finished, PS_GPU_COMPUTE));
    PS_TRY(ps_gpu_sync(p->gpu, run->finished, "the buffers"));
    add_counted(run);
    run->buffers_here = false;
    return PS_OK;
}

/* --------------------------------------------------------------------------- forward */

static ps_err check_batch(const ps_cuda_run *run, const ps_batch *batch,
                          const ps_pass *pass, bool loss)
{
    const ps_program_options *o = run->plan.options;
    if (pass->training && !o->training)
        return ps_err_set(PS_ERR_ARG,
                          "a training pass needs a program made for training");
    if (batch->n < 1 || batch->n > o->max_batch)
        return ps_err_set(PS_ERR_ARG, "a batch of %d samples; the program takes 1 to %d",
                          batch->n, o->max_batch);
    if ((loss || pass->training) && !batch->labels && !batch->targets)
        return ps_err_set(PS_ERR_ARG, "the loss needs labels");
    if (loss && run->results.n == PS_RESULTS_KEPT)
        return ps_err_set(PS_ERR_ARG, "%d results are outstanding; fetch one first",
                          PS_RESULTS_KEPT);
    return ps_answers_check(o->spec, batch);
}

static ps_err begin_pass(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass,
                         bool loss)
{
    const ps_cuda_kind kind = {.n = batch->n,
                               .training = pass->training,
                               .accumulate = pass->training && pass->accumulate,
                               .loss = loss,
                               .targets = batch->targets != NULL};
    run->pass = (ps_cuda_pass){.plan = &run->plan,
                               .n = kind.n,
                               .training = kind.training,
                               .accumulate = kind.accumulate,
                               .loss = kind.loss,
                               .labels = run->batch.labels,
                               .targets = kind.targets ? run->batch.targets : NULL,
                               .positions = run->batch.positions,
                               .key = run->batch.key};
    run->trained = pass->training;
    return ps_cuda_graphs_find(&run->graphs, kind, &run->set);
}

/* Uploads everything that the layers read, except the weights that hooks announce. */
static ps_err bring_inputs(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass)
{
    ps_cuda_plan *p = &run->plan;
    PS_TRY(ps_cuda_batch_take(&run->batch, batch, p->values[0].at, pass->dropout));
    // the upload queue need not wait: the host has the previous pass's buffers, so that
    // pass is done
    PS_TRY(bring_buffers(run, pass));
    PS_TRY(bring_weights(run, pass));
    // this pass's loss overwrites the previous one, which must be copied first
    if (!run->results.last) return PS_OK;
    return ps_gpu_await(p->gpu, PS_GPU_COMPUTE, run->results.last);
}

static ps_err queue_forward(void *of, int group)
{
    ps_cuda_run *run = of;
    const ps_cuda_plan *p = &run->plan;
    const ps_cuda_group *g = &p->groups[group];
    for (int i = g->begin; i < g->end; i++)
        PS_TRY(ps_cuda_layer_forward(&run->pass, &p->steps[i]));
    bool last = group == p->n_groups - 1;
    return last && run->pass.loss ? ps_cuda_loss_forward(&run->pass) : PS_OK;
}

ps_err ps_cuda_run_forward(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass,
                           ps_pass_result *result)
{
    ps_cuda_plan *p = &run->plan;
    const ps_pass_hooks *hooks = pass->hooks;
    bool loss = result || pass->loss_later;
    PS_TRY(check_batch(run, batch, pass, loss));
    PS_TRY(begin_pass(run, batch, pass, loss));
    PS_TRY(bring_inputs(run, batch, pass));
    for (int g = 0; g < p->n_groups; g++) {
        if (hooks && hooks->params_needed) PS_TRY(bring_group(run, &p->groups[g], hooks));
        PS_TRY(ps_cuda_segment_run(p->gpu, run->set ? &run->set->forward[g] : NULL,
                                   queue_forward, run, g));
    }
    if (loss) PS_TRY(send_result(run));
    if (!result) return PS_OK;
    // the newest result, whatever older ones are outstanding
    return read_result(run, (run->results.first + run->results.n - 1) % PS_RESULTS_KEPT,
                       result);
}

/* -------------------------------------------------------------------------- backward */

static ps_err queue_backward(void *of, int group)
{
    ps_cuda_run *run = of;
    const ps_cuda_plan *p = &run->plan;
    const ps_cuda_group *g = &p->groups[group];
    for (int i = g->end - 1; i >= g->begin; i--) {
        const ps_cuda_step *s = &p->steps[i];
        if (!p->graph->edges[s->node->out].needs_grad || s->node->with_loss) continue;
        PS_TRY(ps_cuda_layer_backward(&run->pass, s));
    }
    return PS_OK;
}

/* Queues the copy of the group's gradients, after the work that computes them. Those that
 * the host's processes read on the GPU are there then. */
static ps_err download_group(ps_cuda_run *run, const ps_cuda_group *g)
{
    ps_cuda_plan *p = &run->plan;
    if (p->kept.grads) return ps_gpu_record(p->gpu, g->home, PS_GPU_COMPUTE);
    const ps_tensor *from = &p->options->spec->table.tensors[g->first],
                    *to = from + g->n - 1;
    size_t bytes = (size_t)(to->offset + to->count - from->offset) * sizeof(float);
    PS_TRY(ps_gpu_record(p->gpu, g->made, PS_GPU_COMPUTE));
    PS_TRY(ps_gpu_await(p->gpu, PS_GPU_DOWNLOAD, g->made));
    if (p->kept.codes)
        PS_TRY(ps_cuda_codes_fetch(p->kept.codes, p->gpu, p->grads, g->first, g->n,
                                   from->name));
    else
        PS_TRY(ps_gpu_copy_out(p->gpu, PS_GPU_DOWNLOAD, p->options->grads + from->offset,
                               p->grads + from->offset, bytes, from->name));
    return ps_gpu_record(p->gpu, g->home, PS_GPU_DOWNLOAD);
}

/* Calls grads_ready for the groups from *next down to `until` whose gradients are where
 * they are taken from, and updates *next. wait: waits for all of them. */
static ps_err tell_ready(ps_cuda_run *run, const ps_pass_hooks *hooks, int until,
                         bool wait, int *next)
{
    ps_cuda_plan *p = &run->plan;
    for (; *next >= until; --*next) {
        const ps_cuda_group *g = &p->groups[*next];
        if (g->n == 0) continue;
        bool home = true;
        char who[160];
        snprintf(who, sizeof who, "the backward pass: the gradient of %s",
                 p->options->spec->table.tensors[g->first].name);
        if (wait)
            PS_TRY(ps_gpu_sync(p->gpu, g->home, who));
        else
            PS_TRY(ps_gpu_passed(p->gpu, g->home, who, &home));
        if (!home) return PS_OK;
        if (p->kept.codes)
            ps_cuda_codes_unpack(p->kept.codes, p->options->grads, g->first, g->n);
        if (hooks) PS_TRY(cuda_run_call_hook(run, hooks->grads_ready, hooks->ctx, g));
    }
    return PS_OK;
}

/* Announces gradients that stay on the GPU: the exchange queues its work after the event.
 */
static ps_err cuda_run_announce(ps_cuda_run *run, const ps_cuda_group *g,
                                const ps_pass_hooks *hooks)
{
    const ps_cuda_plan *p = &run->plan;
    PS_TRY(ps_gpu_record(p->gpu, p->resident->announced, PS_GPU_COMPUTE));
    return hooks ? cuda_run_call_hook(run, hooks->grads_ready, hooks->ctx, g) : PS_OK;
}

ps_err ps_cuda_run_backward(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass)
{
    ps_cuda_plan *p = &run->plan;
    const ps_pass_hooks *hooks = pass->hooks;
    if (!run->trained || run->pass.n != batch->n)
        return ps_err_set(PS_ERR_ARG, "a backward pass needs a training forward pass of "
                                      "the same batch before it");
    run->trained = false;
    // hooks without grads_ready: later micro-batches add to these gradients
    bool wanted = !hooks || hooks->grads_ready;
    int next = p->n_groups - 1;
    PS_TRY(ps_cuda_loss_backward(
        &run->pass, ps_batch_share(p->options->spec, batch, pass->grad_scale)));
    for (int g = p->n_groups - 1; g >= 0; g--) {
        PS_TRY(ps_cuda_segment_run(p->gpu, run->set ? &run->set->backward[g] : NULL,
                                   queue_backward, run, g));
        if (!wanted || p->groups[g].n == 0) continue;
        if (p->resident) {
            PS_TRY(cuda_run_announce(run, &p->groups[g], hooks));
            continue;
        }
        PS_TRY(download_group(run, &p->groups[g]));
        // this group is queued now, so the GPU has work while hooks for later layers run
        PS_TRY(tell_ready(run, hooks, g, false, &next));
    }
    return wanted && !p->resident ? tell_ready(run, hooks, 0, true, &next) : PS_OK;
}

/* ---------------------------------------------------------------------------- others */

ps_err ps_cuda_run_outputs(ps_cuda_run *run, float *out, size_t count)
{
    ps_cuda_plan *p = &run->plan;
    const ps_cuda_value *v = &p->values[p->graph->output];
    if (run->pass.n == 0) return ps_err_set(PS_ERR_ARG, "no forward pass was made yet");
    size_t wanted = (size_t)run->pass.n * (size_t)v->features;
    if (count != wanted)
        return ps_err_set(PS_ERR_ARG, "%zu outputs were asked for; there are %zu", count,
                          wanted);
    PS_TRY(ps_gpu_copy_out(p->gpu, PS_GPU_COMPUTE, out, v->at.at, count * sizeof *out,
                           "the outputs"));
    PS_TRY(ps_gpu_record(p->gpu, run->finished, PS_GPU_COMPUTE));
    return ps_gpu_sync(p->gpu, run->finished, "the outputs");
}

ps_err ps_cuda_run_prefetch(ps_cuda_run *run, const ps_batch *batch)
{
    const ps_program_options *o = run->plan.options;
    if (batch->n < 1 || batch->n > o->max_batch)
        return ps_err_set(PS_ERR_ARG, "a batch of %d samples; the program takes 1 to %d",
                          batch->n, o->max_batch);
    return ps_cuda_batch_prefetch(&run->batch, batch);
}
