#include "init_weights.h"

#include <math.h>
#include <string.h>

#include "model_spec.h"
#include "rng.h"

/* Conv2d.reset_parameters and Linear's: kaiming_uniform_(a = sqrt(5)) for the weight; the
 * same products of doubles as in torch.nn.init, so that the bound's last bit agrees. */
static float weight_bound(int64_t fan_in)
{
    double slope = sqrt(5.0);
    double gain = sqrt(2.0 / (1.0 + slope * slope));
    return (float)(sqrt(3.0) * (gain / sqrt((double)fan_in)));
}

static float bias_bound(int64_t fan_in)
{
    return (float)(1.0 / sqrt((double)fan_in));
}

static void init_norm(const ps_model_spec *spec, const ps_layer *layer, float *params)
{
    const ps_tensor *weight = &spec->table.tensors[layer->weight];
    for (uint64_t i = 0; i < weight->count; i++)
        params[weight->offset + i] = 1.0f;
}

/* Draws in the order in which PyTorch constructs and registers the layers. */
static void init_params(const ps_model_spec *spec, uint64_t seed, int fused,
                        float *params)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, seed);
    memset(params, 0, spec->table.arena_count * sizeof *params);
    for (int i = 0; i < spec->n_layers; i++)
        if (spec->layers[i].kind == PS_LAYER_BATCH_NORM2D)
            init_norm(spec, &spec->layers[i], params);
    for (int i = 0; i < spec->table.n_tensors; i++) {
        const ps_tensor *t = &spec->table.tensors[i];
        if (t->role == PS_TENSOR_BATCHNORM) continue;
        bool weight = t->role == PS_TENSOR_WEIGHT;
        float bound = weight ? weight_bound(t->fan_in) : bias_bound(t->fan_in);
        ps_uniform(&g, -bound, bound, fused, t->count, params + t->offset);
    }
}

static void init_buffers(const ps_model_spec *spec, unsigned char *buffers)
{
    memset(buffers, 0, spec->table.buffer_bytes);
    for (int i = 0; i < spec->n_layers; i++) {
        if (spec->layers[i].running_var == PS_NONE) continue;
        const ps_tensor *var = &spec->table.buffers[spec->layers[i].running_var];
        float *values = (float *)(void *)(buffers + var->offset);
        for (uint64_t k = 0; k < var->count; k++)
            values[k] = 1.0f;
    }
}

void ps_init_weights(const ps_model_spec *spec, uint64_t seed, int fused, float *params,
                     void *buffers)
{
    init_params(spec, seed, fused, params);
    if (spec->table.n_buffers) init_buffers(spec, buffers);
}
