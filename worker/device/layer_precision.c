#include "layer_precision.h"

static const ps_layer_precision of_kinds[] = {
    [PS_LAYER_CONV2D] = PS_MULTIPLIES_NARROW,
    [PS_LAYER_LINEAR] = PS_MULTIPLIES_NARROW,
    [PS_LAYER_EMBEDDING] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_GROUP_NORM] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_LAYER_NORM] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_RELU] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_TANH] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_SIGMOID] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_RELU6] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_LEAKY_RELU] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_ELU] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_SILU] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_GELU] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_GELU_TANH] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_MAX_POOL2D] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_AVG_POOL2D] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_ADAPTIVE_AVG_POOL2D] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_ADAPTIVE_MAX_POOL2D] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_UPSAMPLE] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_DROPOUT] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_FLATTEN] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_BATCH_NORM2D] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_ADD] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_CONCAT] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_EMBEDDING_BAG] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_INTERACTION] = PS_COMPUTES_FLOAT32,
    [PS_LAYER_LOG_SOFTMAX] = PS_READS_FLOAT32,
};
_Static_assert(sizeof of_kinds / sizeof *of_kinds == PS_LAYER_KIND_COUNT,
               "each kind of layer has its line");

ps_layer_precision ps_layer_precision_of(ps_layer_kind kind)
{
    return of_kinds[kind];
}

bool ps_edge_stays_float32(const ps_model_graph *g, int edge)
{
    if (edge == g->output) return true;
    for (int i = 0; i < g->n_nodes; i++) {
        const ps_model_node *node = &g->nodes[i];
        const bool near = node->out == edge || node->in[0] == edge;
        if (near && ps_layer_precision_of(node->layer->kind) == PS_READS_FLOAT32)
            return true;
    }
    return false;
}
