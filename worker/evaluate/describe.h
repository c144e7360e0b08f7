/* ps-worker --describe: the model of a configuration as a table. */
#ifndef PS_DESCRIBE_H
#define PS_DESCRIBE_H

#include <stdio.h>

#include "config.h"

/* Prints a line per layer (name, kind, shape of a sample's output, parameters, bytes of
 * the output, multiply-adds of a sample's forward pass), the sums, and what a worker and
 * a server hold. Multiply-adds are those of convolutions and linear layers; a backward
 * pass has about twice as many. Reads no data. CONFIG or SHAPE as ps_model_spec_init. */
ps_err ps_describe(const ps_config *config, FILE *out);

#endif
