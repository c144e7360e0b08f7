/* The kinds of layers, and the settings of one as the configuration gives them.
 *
 * One table (layer_settings.c) says which kind takes which setting; model_spec.h shows
 * the notation. Shapes are checked elsewhere (model_spec.h).
 */
#ifndef PS_LAYER_SETTINGS_H
#define PS_LAYER_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "row_spec.h"
#include "yaml_tree.h"

/* Kinds that devices compute. */
#define PS_LAYER_MAP(X)                                                                  \
    X(CONV2D, "conv2d")                                                                  \
    X(LINEAR, "linear")                                                                  \
    X(EMBEDDING, "embedding")                                                            \
    X(BATCH_NORM2D, "batch_norm2d")                                                      \
    X(GROUP_NORM, "group_norm")                                                          \
    X(LAYER_NORM, "layer_norm")                                                          \
    X(RELU, "relu")                                                                      \
    X(TANH, "tanh")                                                                      \
    X(SIGMOID, "sigmoid")                                                                \
    X(RELU6, "relu6")                                                                    \
    X(LEAKY_RELU, "leaky_relu")                                                          \
    X(ELU, "elu")                                                                        \
    X(SILU, "silu")                                                                      \
    X(GELU, "gelu")                                                                      \
    X(GELU_TANH, "gelu_tanh")                                                            \
    X(MAX_POOL2D, "max_pool2d")                                                          \
    X(AVG_POOL2D, "avg_pool2d")                                                          \
    X(ADAPTIVE_AVG_POOL2D, "adaptive_avg_pool2d")                                        \
    X(ADAPTIVE_MAX_POOL2D, "adaptive_max_pool2d")                                        \
    X(UPSAMPLE, "upsample")                                                              \
    X(DROPOUT, "dropout")                                                                \
    X(FLATTEN, "flatten")                                                                \
    X(ADD, "residual")                                                                   \
    X(CONCAT, "concat")                                                                  \
    X(EMBEDDING_BAG, "embedding_bag")                                                    \
    X(INTERACTION, "interaction")                                                        \
    X(LOG_SOFTMAX, "log_softmax")

/* Kinds that a file may name, which become one of the others. */
#define PS_LAYER_ALIAS_MAP(X)                                                            \
    X(CONV1D, "conv1d")                                                                  \
    X(BATCH_NORM1D, "batch_norm1d")                                                      \
    X(MAX_POOL1D, "max_pool1d")                                                          \
    X(AVG_POOL1D, "avg_pool1d")                                                          \
    X(ADAPTIVE_AVG_POOL1D, "adaptive_avg_pool1d")

typedef enum ps_layer_kind {
#define PS_LAYER_ENUM(name, text) PS_LAYER_##name,
    PS_LAYER_MAP(PS_LAYER_ENUM) PS_LAYER_KIND_COUNT, // of those that devices compute
    PS_LAYER_BEFORE_ALIASES = PS_LAYER_KIND_COUNT - 1,
    PS_LAYER_ALIAS_MAP(PS_LAYER_ENUM)
#undef PS_LAYER_ENUM
        PS_LAYER_WRITTEN_COUNT
} ps_layer_kind;

/* "conv2d": as a file names it. */
const char *ps_layer_kind_name(ps_layer_kind kind);

/* Whether layers of this kind have parameters, and so need a name. */
bool ps_layer_kind_has_tensors(ps_layer_kind kind);

/* 2: the kind is for images, (channels, height, width); 1: for sequences, (channels, 1,
 * length); 0: for any input. */
int ps_layer_kind_axes(ps_layer_kind kind);

/* How UPSAMPLE and the adaptive pools compute a position of their output. */
typedef enum ps_interpolation {
    PS_INTERPOLATE_NEAREST,
    PS_INTERPOLATE_BILINEAR, // PyTorch's with align_corners=False
    PS_INTERPOLATE_MEAN,     // of a window; windows differ by at most 1 in size
    PS_INTERPOLATE_MAX       // of the same windows
} ps_interpolation;

typedef struct ps_layer_settings {
    ps_layer_kind kind; // as written; PS_LAYER_ADD: a residual block
    const ps_yaml *at;  // the list's item, for messages
    const char *name;   // borrowed from the tree; NULL when not given
    int64_t out; // CONV2D: channels; LINEAR: features; EMBEDDING: of a row, 0: by rows
    int kernel[2], stride[2], padding[2]; // stride 0: not given
    int dilation[2];                      // CONV2D
    int64_t groups;                       // CONV2D, GROUP_NORM; 0: not given
    bool global;                          // AVG_POOL2D over the whole image
    int size[2], scale[2];                // of the output: adaptive pools, UPSAMPLE
    ps_interpolation mode;                // UPSAMPLE
    bool bias;
    double p, eps, momentum;
    double alpha;                   // ELU; LEAKY_RELU: negative_slope; NaN: not given
    const ps_yaml *body, *shortcut; // of a residual block; shortcut may be NULL
    const ps_yaml *branches;        // CONCAT, INTERACTION: lists of layers
    const ps_yaml *tables;          // EMBEDDING_BAG: names of columns; NULL: n_tables
    int64_t n_tables, dim;          // likewise
    ps_row_optimizer row_optimizer; // likewise
    ps_row_init init;               // likewise
    ps_codec codec;                 // likewise
    double row_lr, init_scale;      // likewise; NaN: not given
    int64_t admit, expire;          // likewise: as in ps_row_spec
    int64_t max_bytes;              // likewise
    bool evict;                     // likewise
} ps_layer_settings;

/* Reads one item of a list of layers. CONFIG on failure, naming file, line and setting:
 * unknown kinds and settings (with the nearest known one), missing or mistyped ones and
 * those out of range. */
ps_err ps_layer_settings_read(const ps_yaml *item, ps_layer_settings *out);

#endif
