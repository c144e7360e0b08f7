/* What the files of the reference (ref_layers.h) share: the tensors of a model, and how
 * it rounds what a device stores. */
#ifndef PS_REF_STATE_H
#define PS_REF_STATE_H

#include "ref_layers.h"

/* Room for n zeros. Owned by the caller. */
double *ref_zeros(int64_t n);
/* A tensor's place in an arena of the model. NULL for PS_NONE. */
double *ref_tensor(const ref_model *m, double *arena, int t);

/* A copy of x (n), rounded as a factor of a product. NULL for NULL. The caller owns
 * it. */
double *ref_rounded(const ref_model *m, const double *x, int64_t n);
/* Rounds what the device stores as layer i's output or its gradient, or as the model's
 * input (PS_INPUT). x is (n, out). */
void ref_store(const ref_model *m, int i, double *x);
/* A product is stored before its bias is added, unless the device rounds once. */
void ref_add_bias(ref_model *m, const ps_layer *l, double *y);

#endif
