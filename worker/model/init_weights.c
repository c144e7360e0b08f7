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

/* Where a parameter's values are: frozen ones are buffers. */
static float *init_values_of(const ps_model_spec *spec, int tensor, float *params,
                             void *buffers)
{
    const uint64_t offset = ps_tensor_table_at(&spec->table, tensor)->offset;
    if (ps_tensor_table_trains(&spec->table, tensor)) return params + offset;
    return (float *)(void *)((char *)buffers + offset);
}

static bool is_norm(const ps_model_spec *spec, const ps_layer *layer)
{
    return layer->weight != PS_NONE &&
           ps_tensor_table_at(&spec->table, layer->weight)->role == PS_TENSOR_BATCHNORM;
}

/* Biases of normalisation layers stay 0. */
static void init_norm_weights(const ps_model_spec *spec, const ps_layer *layer,
                              float *params, void *buffers)
{
    float *weight = init_values_of(spec, layer->weight, params, buffers);
    const uint64_t count = ps_tensor_table_at(&spec->table, layer->weight)->count;
    for (uint64_t i = 0; i < count; i++)
        weight[i] = 1.0f;
}

static void init_draw(const ps_model_spec *spec, int tensor, ps_mt19937 *g, int fused,
                      float *params, void *buffers)
{
    if (tensor == PS_NONE) return;
    const ps_tensor *t = ps_tensor_table_at(&spec->table, tensor);
    if (t->role == PS_TENSOR_BATCHNORM) return;
    bool weight = t->role == PS_TENSOR_WEIGHT;
    float bound = weight ? weight_bound(t->fan_in) : bias_bound(t->fan_in);
    ps_uniform(g, -bound, bound, fused, t->count,
               init_values_of(spec, tensor, params, buffers));
}

/* Draws in the order in which PyTorch constructs and registers the layers. */
static void init_params(const ps_model_spec *spec, uint64_t seed, int fused,
                        float *params, void *buffers)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, seed);
    for (int i = 0; i < spec->n_layers; i++) {
        const ps_layer *l = &spec->layers[i];
        if (is_norm(spec, l)) init_norm_weights(spec, l, params, buffers);
        init_draw(spec, l->weight, &g, fused, params, buffers);
        init_draw(spec, l->bias, &g, fused, params, buffers);
    }
}

static void init_statistics(const ps_model_spec *spec, unsigned char *buffers)
{
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
    memset(params, 0, spec->table.arena_count * sizeof *params);
    if (spec->table.n_buffers) memset(buffers, 0, spec->table.buffer_bytes);
    init_params(spec, seed, fused, params, buffers);
    if (spec->table.n_buffers) init_statistics(spec, buffers);
}
