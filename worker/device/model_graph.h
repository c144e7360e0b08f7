/* The model as devices run it: steps that read and write values. Layers without work of
 * their own vanish: a relu is folded into the step before it, and the output of a dropout
 * of probability 0 is its input. The graph depends only on the model, not on the batch
 * size. */
#ifndef PS_MODEL_GRAPH_H
#define PS_MODEL_GRAPH_H

#include "model_spec.h"

typedef struct ps_model_node {
    const ps_layer *layer; // what the step computes
    int in[2], n_in, out;  // values; value 0 is the model's input
    bool relu;             // max(0, .) follows (CONV2D, LINEAR, BATCH_NORM2D, ADD)
    /* The output's only reader is a max_pool, which applies the relu's gradient too: only
     * the maximum of a window passes a gradient on. */
    bool relu_by_pool;
    bool with_loss; // LOG_SOFTMAX before the nll loss: one gradient for both
} ps_model_node;

typedef struct ps_model_edge {
    ps_dims dims;     // one sample's
    int producer;     // node, or PS_NONE: the model's input
    int n_readers;    // nodes and the loss
    int last_reader;  // node; n_nodes: the loss
    bool needs_grad;  // it depends on parameters, or rows, that are trained
    bool flat_reader; // its only reader is FLATTEN
} ps_model_edge;

typedef struct ps_model_graph {
    int n_nodes, n_edges;
    ps_model_node *nodes; // in topological order
    ps_model_edge *edges;
    int output; // the value that the loss reads
} ps_model_graph;

/* SHAPE, ARG or UNSUPPORTED names the layer that the device can't run. */
ps_err ps_model_graph_init(ps_model_graph *graph, const ps_model_spec *spec);
void ps_model_graph_fini(ps_model_graph *graph); // safe on a zeroed one

/* relu, gelu and so on: an elementwise function without parameters or draws. */
bool ps_model_is_activation(ps_layer_kind kind);
/* GROUP_NORM, or LAYER_NORM, whose group holds all features. */
bool ps_model_is_group_norm(ps_layer_kind kind);
/* Whether an activation's gradient is computed from its input; the others' from their
 * output. */
bool ps_model_grad_reads_input(ps_layer_kind kind);

/* Whether the node may write its output over its input: nothing reads the input
 * afterwards, neither in the forward nor in the backward pass. */
bool ps_model_graph_in_place(const ps_model_graph *graph, const ps_model_node *node);

#endif
