/* What a layer's settings make of its input: the output's shape, and the layer's tensors.
 */
#ifndef PS_LAYER_SHAPES_H
#define PS_LAYER_SHAPES_H

#include <limits.h>

#include "model_spec.h"

/* The most elements of a tensor, and of one sample's value: they fit an int everywhere.
 */
#define PS_LAYER_COUNT_MAX ((int64_t)INT_MAX)

/* Vectors of an INTERACTION. */
enum { PS_INTERACTION_MAX = PS_ROW_TABLES_MAX + 1 };

/* Sets the output's shape and the settings of the layer, whose name and inputs are
 * set and whose output has the shape of its input, and adds its parameters and buffers to
 * the model's table. CONFIG or SHAPE on failure, naming file, line, layer and shapes. */
ps_err ps_layer_infer(ps_model_spec *spec, const ps_layer_settings *s, ps_layer *layer);

#endif
