/* The dot products of all pairs of vectors: the interaction of DLRM (Naumov et al., 2019,
 * https://arxiv.org/abs/1906.00091), in the order of its code. */
#ifndef PS_CPU_INTERACTION_H
#define PS_CPU_INTERACTION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ps_cpu_interaction {
    int64_t samples, dim, vectors; // vectors: those of b, without the first
} ps_cpu_interaction;

/* a (samples, dim) is vector 0, b (samples, vectors, dim) the others. y (samples, dim +
 * pairs): a; then the products (1, 0), (2, 0), (2, 1), (3, 0) and so on. */
void ps_cpu_interaction_forward(const ps_cpu_interaction *i, const float *a,
                                const float *b, float *y);

/* da, db: NULL, or the gradients of a and b from dy, that of y. add_a, add_b: they are
 * added. */
void ps_cpu_interaction_backward(const ps_cpu_interaction *i, const float *a,
                                 const float *b, const float *dy, float *da, bool add_a,
                                 float *db, bool add_b);

#endif
