/* The loops of an optimizer's step (optimizer.h): built once for each level
 * (cpu_level.h). */
#ifndef PS_OPTIMIZER_LOOPS_H
#define PS_OPTIMIZER_LOOPS_H

#include "optimizer.h"

/* One step over n elements by k; states: PS_OPTIMIZER_MAX_STATES pointers, NULL where the
 * optimizer has none. ema (n): the weights' average; NULL: none. */
void ps_optimizer_loops(const ps_optimizer_scalars *k, uint64_t n, float *param,
                        const float *grad, float *const *states, float *ema);

/* The two passes of LAMB (lamb.h) over n elements. grad becomes u; ema as above. */
void ps_lamb_loop_update(const ps_optimizer_scalars *k, uint64_t n, const float *param,
                         float *grad, float *m, float *v);
void ps_lamb_loop_apply(const ps_optimizer_scalars *k, float ratio, uint64_t n,
                        float *param, const float *update, float *ema);

#endif
