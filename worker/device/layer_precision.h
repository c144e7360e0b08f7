/* Which layer computes in which precision with train.precision bf16 or fp16: alike
 * on all devices, after torch.autocast's lists.
 *
 * Products take factors of 16 bits and sum them in float32: inputs, weights, and the
 * gradients of outputs are rounded first. Everything else computes in float32, of values
 * that have 16 bits between layers; a CPU that emulates bf16 keeps these in float32.
 * What the loss or a log_softmax reads or writes is float32: these are few values for
 * each sample, and they need the precision. Weights that are stepped, their gradients,
 * batch norm's statistics and all sums are float32. */
#ifndef PS_LAYER_PRECISION_H
#define PS_LAYER_PRECISION_H

#include "model_graph.h"

typedef enum ps_layer_precision {
    PS_COMPUTES_FLOAT32,  // in float32; reads and writes what lies between layers
    PS_MULTIPLIES_NARROW, // products of factors of 16 bits
    PS_READS_FLOAT32      // computes, reads and writes float32
} ps_layer_precision;

ps_layer_precision ps_layer_precision_of(ps_layer_kind kind);

/* Whether the value stays float32 on every device; edge: a value of the graph. */
bool ps_edge_stays_float32(const ps_model_graph *graph, int edge);

#endif
