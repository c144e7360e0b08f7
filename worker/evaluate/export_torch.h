/* ps-worker --export-torch: the model of a configuration as PyTorch source. */
#ifndef PS_EXPORT_TORCH_H
#define PS_EXPORT_TORCH_H

#include <stdio.h>

#include "config.h"

/* Prints a Python module with a class Model(nn.Module) which has our names, so that
 * load_state_dict takes our model.safetensors strictly, and which gives the same outputs
 * (PyTorch 1.9 or newer). Reads no data. CONFIG or SHAPE as ps_model_spec_init. */
ps_err ps_export_torch(const ps_config *config, FILE *out);

#endif
