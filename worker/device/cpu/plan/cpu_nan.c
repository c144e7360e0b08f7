#include "cpu_nan.h"

#include <math.h>

#include "finite.h"

static bool is_finite(const ps_cpu_run *run, int tensor)
{
    if (tensor == PS_NONE) return true;
    const ps_tensor *t = ps_tensor_table_at(&run->options->spec->table, tensor);
    return ps_finite_all(ps_cpu_parameter(run, tensor), t->count);
}

static bool has_finite_statistics(const ps_cpu_step *s)
{
    if (s->node->layer->kind != PS_LAYER_BATCH_NORM2D) return true;
    const uint64_t channels = (uint64_t)s->batchnorm.shape.c;
    return ps_finite_all(s->batchnorm_arrays.running_mean, channels) &&
           ps_finite_all(s->batchnorm_arrays.running_variance, channels);
}

bool ps_cpu_nan_is_hidden(const ps_cpu_run *run, const ps_cpu_step *s,
                          const ps_pass *pass)
{
    const ps_layer *l = s->node->layer;
    if (!s->before_library_relu || pass->same_weights) return false; // or checked before
    bool goes_on = pass->training && run->graph->edges[s->node->in[0]].needs_grad;
    return !is_finite(run, l->bias) || (!goes_on && !is_finite(run, l->weight)) ||
           (!pass->training && !has_finite_statistics(s));
}

void ps_cpu_nan_show(const ps_cpu_run *run)
{
    float *out = run->values[run->graph->output].at;
    for (int64_t i = 0; i < run->n * run->options->spec->n_outputs; i++)
        out[i] = NAN;
}
