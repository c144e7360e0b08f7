#include "host_gemm.h"

#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include "../support/half.h"

/* Each of the 65,536 halves. */
static double halves[1 << 16];
static pthread_once_t halves_once = PTHREAD_ONCE_INIT;

static void fill_halves(void)
{
    for (uint32_t bits = 0; bits < 1 << 16; bits++)
        halves[bits] = half_value((uint16_t)bits);
}

static double element(ps_values v, int64_t i)
{
    if (v.format == PS_FORMAT_FP32) return ((const float *)v.at)[i];
    uint16_t bits = ((const uint16_t *)v.at)[i];
    return v.format == PS_FORMAT_BF16 ? (double)ps_float_of_bf16(bits) : halves[bits];
}

/* Owned by the caller: rows * columns elements. Element (i, j) of v is v[i * ld + j], or
 * v[j * ld + i] if it is transposed. */
static double *matrix(ps_values v, bool transposed, int64_t ld, int64_t rows,
                      int64_t columns)
{
    double *out = malloc(sizeof *out * (size_t)(rows * columns));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[i * columns + j] = element(v, transposed ? j * ld + i : i * ld + j);
    return out;
}

static void add_scaled(double *restrict sums, const double *restrict x, double scale,
                       int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sums[i] += x[i] * scale;
}

/* BLAS has columns first. */
void host_gemm(const ps_gpu_gemm *g)
{
    pthread_once(&halves_once, fill_halves);
    double *column = malloc(sizeof *column * (size_t)g->m);
    double *a = matrix(g->a, g->ta, g->lda, g->k, g->m);
    double *b = matrix(g->b, g->tb, g->ldb, g->n, g->k);
    for (int64_t j = 0; j < g->n; j++) {
        memset(column, 0, sizeof *column * (size_t)g->m);
        for (int64_t l = 0; l < g->k; l++)
            add_scaled(column, a + l * g->m, b[j * g->k + l], g->m);
        for (int64_t i = 0; i < g->m; i++) {
            int64_t to = j * g->ldc + i;
            double old = g->beta == 0.0f ? 0.0 : g->beta * element(g->c, to);
            ps_set(g->c, (size_t)to, (float)(column[i] + old), false);
        }
    }
    free(b);
    free(a);
    free(column);
}
