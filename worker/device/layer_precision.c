#include "layer_precision.h"

ps_layer_precision ps_layer_precision_of(ps_layer_kind kind)
{
    if (kind == PS_LAYER_CONV2D || kind == PS_LAYER_LINEAR) return PS_MULTIPLIES_NARROW;
    return kind == PS_LAYER_LOG_SOFTMAX ? PS_READS_FLOAT32 : PS_COMPUTES_FLOAT32;
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
