#include "cpu_embedding.h"

#include <string.h>

/* The row of a column, in the tensor; -1: none. first: the column's first row. */
static int64_t embedding_row(float id, int64_t first, int64_t rows)
{
    return id >= 0 && id < (float)rows ? first + (int64_t)id : -1;
}

void ps_cpu_embedding_forward(const ps_cpu_embedding *e, const float *x,
                              const float *weight, float *y)
{
    const int64_t others = e->in - e->n_columns;
    const size_t bytes = (size_t)e->width * sizeof *y;
    for (int64_t i = 0; i < e->n; i++, x += e->in) {
        memcpy(y, x, (size_t)others * sizeof *y);
        y += others;
        int64_t first = 0;
        for (int k = 0; k < e->n_columns; k++, y += e->width) {
            const int64_t row = embedding_row(x[others + k], first, e->rows[k]);
            if (row >= 0)
                memcpy(y, weight + row * e->width, bytes);
            else
                memset(y, 0, bytes);
            first += e->rows[k];
        }
    }
}

void ps_cpu_embedding_backward(const ps_cpu_embedding *e, const float *x, const float *dy,
                               float *dweight, bool accumulate)
{
    const int64_t others = e->in - e->n_columns;
    int64_t all = 0;
    for (int k = 0; k < e->n_columns; k++)
        all += e->rows[k];
    if (!accumulate) memset(dweight, 0, (size_t)(all * e->width) * sizeof *dweight);
    for (int64_t i = 0; i < e->n; i++, x += e->in) {
        int64_t first = 0;
        dy += others;
        for (int k = 0; k < e->n_columns; k++, dy += e->width) {
            const int64_t row = embedding_row(x[others + k], first, e->rows[k]);
            first += e->rows[k];
            for (int64_t j = 0; row >= 0 && j < e->width; j++)
                dweight[row * e->width + j] += dy[j];
        }
    }
}
