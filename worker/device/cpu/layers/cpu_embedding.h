/* EMBEDDING: rows of a table, by the numbers that the last inputs of a sample are.
 * PyTorch's nn.Embedding over all columns' rows, one column's below the other's. */
#ifndef PS_CPU_EMBEDDING_H
#define PS_CPU_EMBEDDING_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ps_cpu_embedding {
    int64_t n, in, width; // samples; inputs; numbers of a row
    int n_columns;        // the last of the inputs
    const int64_t *rows;  // (n_columns) of each; borrowed
} ps_cpu_embedding;

/* y (n, in - n_columns + n_columns * width): the other inputs, then a row of weight (sum
 * of rows, width) for each column; zeros for what is no number of a row. x (n, in). */
void ps_cpu_embedding_forward(const ps_cpu_embedding *e, const float *x,
                              const float *weight, float *y);
/* dweight, of which rows without a sample are 0; accumulate: adds. In the order of the
 * samples. */
void ps_cpu_embedding_backward(const ps_cpu_embedding *e, const float *x, const float *dy,
                               float *dweight, bool accumulate);

#endif
