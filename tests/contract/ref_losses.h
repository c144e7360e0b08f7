/* The reference's losses (ref_layers.h). */
#ifndef PS_REF_LOSSES_H
#define PS_REF_LOSSES_H

#include "ref_layers.h"

/* Returns the loss of sample i. d (outputs), if not NULL, gets its gradient, and *weight
 * its part in the mean. */
double ref_loss(const ref_model *m, const ps_batch *batch, int64_t i, double *d,
                double *weight);

#endif
