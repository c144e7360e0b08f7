/* PyTorch's default initialisation: the same weights for the same seed, in the order of
 * the layers. */
#ifndef PS_INIT_WEIGHTS_H
#define PS_INIT_WEIGHTS_H

#include "model_spec.h"

/* params: the arena; its gaps are set to zero. buffers: running_mean 0, running_var 1,
 * counters 0. Conv2d and Linear: U(+-1/sqrt(fan_in)), weight then bias; norms: ones and
 * zeros. fused: whether u * (to - from) + from is one fmaf, as vectorised builds of
 * PyTorch do. */
void ps_init_weights(const ps_model_spec *spec, uint64_t seed, int fused, float *params,
                     void *buffers);

#endif
