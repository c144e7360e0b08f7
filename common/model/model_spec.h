/* A model: layers in topological order, with every shape inferred, and its tensors.
 *
 * It is read from model.layers of the configuration, a list. Each item is a layer's kind,
 * alone or with its settings:
 *
 *   model:
 *     input: [1, 28, 28]          # C, H, W; or [C, length]; or [features]
 *     loss: nll                   # nll | cross_entropy | mse | l1 | ... (config_words.h)
 *     layers:
 *       - conv2d: {name: conv1, out: 32, kernel: 3}   # stride 1, padding 0,
 *                                                        # bias true, dilation 1,
 *                                                        # groups 1
 *       - relu                                           # tanh, sigmoid, relu6, silu,
 *                                                        # gelu, gelu_tanh
 *       - leaky_relu: 0.01                               # negative_slope; elu: alpha
 *       - max_pool2d: 2                                    # kernel; stride the same
 *       - dropout: 0.25
 *       - flatten
 *       - linear: {name: fc1, out: 128}
 *       - batch_norm2d: {name: bn1}                        # eps 1e-5, momentum 0.1
 *       - group_norm: {name: gn1, groups: 8}               # eps 1e-5
 *       - layer_norm: {name: ln1}                          # of features; eps 1e-5
 *       - avg_pool2d: global                               # or kernel/stride
 *       - adaptive_avg_pool2d: 7                           # size of the output, any;
 *                                                        # adaptive_max_pool2d, too
 *       - upsample: {scale: 2, mode: bilinear}             # or size; mode nearest
 *       - concat:                                          # along the channels
 *           name: mixed                                    # prefix of the names inside
 *           branches: [[ ... layers ... ], [ ... ]]        # []: the input itself
 *       - residual:                                        # out = body(x) + shortcut(x)
 *           name: layer1.0                                 # prefix of the names inside
 *           body: [ ... layers ... ]
 *           shortcut: [ ... ]                              # absent: the identity
 *       - log_softmax
 *       - interaction:                                     # of recommenders (DLRM)
 *           branches: [[ ... layers ... ], [ ... ]]        # of vectors of one size
 *       - embedding_bag: {tables: 26, dim: 16}             # optimizer adagrad, lr,
 *                                                        # init uniform, scale 0.01
 *
 * embedding_bag stands first in a branch. It reads the ids of a sample, not its numbers:
 * one id, and one table of rows on the servers, for each of the columns C1, C2, ... of
 * the data (or for those of a list). Its output is their rows, one after the other.
 * interaction has the vectors of its branches, the first of which is one vector: its
 * output is that vector, then the dot products of all pairs.
 *
 * The last inputs of a table may be categories, each a whole number (model.categories).
 * An embedding turns each of them into a row of numbers that is learned; it stands first,
 * by itself or as "- embedding: 16" with the numbers of a row.
 *
 * For sequences, whose input is [channels, length]: conv1d, batch_norm1d, max_pool1d,
 * avg_pool1d and adaptive_avg_pool1d, with one number where images have two. Devices
 * compute them as images of height 1; weights have PyTorch's shapes. batch_norm1d also
 * takes features.
 *
 * A layer may have a name. A layer that has parameters and no name is named by its index
 * in its list, as torch.nn.Sequential does. Names inside a residual block or a concat are
 * prefixed with its name.
 */
#ifndef PS_MODEL_SPEC_H
#define PS_MODEL_SPEC_H

#include "config.h"
#include "layer_settings.h"
#include "tensor_table.h"

enum { PS_INPUT = -1, PS_NONE = -1 };

/* Positions in a window of MAX_POOL2D, in which the place of a maximum is one byte. */
enum { PS_MAX_POOL_WINDOW = 256 };

typedef struct ps_layer {
    ps_layer_kind kind;    // what devices compute
    ps_layer_kind written; // what the file says: CONV1D becomes CONV2D
    char *name;            // PyTorch path; may be "" for a layer without parameters
    int line;              // in the configuration file
    int input[2];          // indices of the producing layers; PS_INPUT: the model's input
    int n_inputs;          // 1; ADD (body, shortcut) and CONCAT: 2
    int n_consumers;       // layers (and the loss) that read this one's output
    ps_dims in, out;       // one sample's: (C, H, W) or (F)
    /* Settings; those that the kind does not have are 0. */
    int kernel[2], stride[2], padding[2]; // h, w: CONV2D, MAX_POOL2D, AVG_POOL2D
    int dilation[2];                      // h, w: CONV2D
    ps_interpolation mode;                // UPSAMPLE, adaptive pools
    int64_t groups;                       // CONV2D, GROUP_NORM; LAYER_NORM: 1
    double alpha;                         // ELU; LEAKY_RELU: the slope below 0
    double p;                             // DROPOUT (0 when model.dropout is false)
    double eps, momentum;                 // of norms; BATCH_NORM2D
    int first_table, n_tables;            // of ps_model_spec.rows: EMBEDDING_BAG
    int dropout_id;   // DROPOUT: 0, 1, ... : the layer's stream of draws
    int weight, bias; // of ps_tensor_table_at, or PS_NONE
    int running_mean, running_var, num_batches; // indices into buffers, or PS_NONE
} ps_layer;

typedef struct ps_model_spec {
    ps_dims input;       // one sample's
    bool sequences;      // model.input is [channels, length]; values are (C, 1, length)
    int n_categories;    // of the last inputs, which EMBEDDING takes
    int64_t *categories; // (n_categories) rows of each; owned
    int64_t n_outputs;   // classes, or numbers
    ps_loss_kind loss;
    float label_smoothing; // like the next two: of nll and cross_entropy
    float *class_weights;  // (n_outputs); owned; NULL: all 1
    int32_t ignore_index;  // samples with this label do not count
    int n_layers;
    ps_layer *layers;
    ps_tensor_table table; // of the layers' parameters and buffers
    ps_row_spec *rows;     // (n_rows) embedding tables, which live on the servers; owned
    int *columns;          // (n_rows) of the ids that are looked up there; owned
    int n_rows, n_columns; // columns of ids that a sample has at least
} ps_model_spec;

/* Builds the model that cfg describes; cfg is borrowed during the call. CONFIG or SHAPE
 * on failure, naming file, line, layer and shapes; spec is then safe for fini. */
ps_err ps_model_spec_init(ps_model_spec *spec, const ps_config *cfg);
void ps_model_spec_fini(ps_model_spec *spec);

/* Multiply-adds of one sample's forward pass; of layers that have none, or few, 0. */
uint64_t ps_layer_products(const ps_model_spec *spec, const ps_layer *l);

/* CONFIG, naming the key, for a job that cannot have the model's embedding tables. */
ps_err ps_model_spec_check_rows(const ps_model_spec *spec, const ps_config *cfg);

#endif
