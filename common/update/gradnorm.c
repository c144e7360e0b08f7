#include "gradnorm.h"

#include <math.h>

#include "floats.h"

static uint64_t gradnorm_blocks_of(uint64_t count)
{
    return (count + PS_GRADNORM_BLOCK - 1) / PS_GRADNORM_BLOCK;
}

uint64_t ps_gradnorm_tensor_block(const ps_tensor_table *table, int tensor)
{
    uint64_t n = 0;
    for (int i = 0; i < tensor; i++)
        n += gradnorm_blocks_of(table->tensors[i].count);
    return n;
}

uint64_t ps_gradnorm_blocks(const ps_tensor_table *table)
{
    return ps_gradnorm_tensor_block(table, table->n_tensors);
}

uint64_t ps_gradnorm_chunk_blocks(const ps_tensor_table *table, const ps_chunk *chunk,
                                  uint64_t *n)
{
    uint64_t first = ps_gradnorm_tensor_block(table, chunk->first_tensor), begin, end;
    ps_chunk_overlap(chunk, &table->tensors[chunk->first_tensor], &begin, &end);
    first += begin / PS_GRADNORM_BLOCK;
    *n = 0;
    for (int i = chunk->first_tensor; i <= chunk->last_tensor; i++) {
        ps_chunk_overlap(chunk, &table->tensors[i], &begin, &end);
        *n += gradnorm_blocks_of(end - begin);
    }
    return first;
}

void ps_gradnorm_chunk(const ps_tensor_table *table, const ps_chunk *chunk,
                       const float *grad, double *sums)
{
    for (int i = chunk->first_tensor; i <= chunk->last_tensor; i++) {
        const ps_tensor *t = &table->tensors[i];
        uint64_t begin, end;
        ps_chunk_overlap(chunk, t, &begin, &end);
        const float *x = grad + (t->offset + begin - chunk->offset);
        for (uint64_t at = 0; at < end - begin; at += PS_GRADNORM_BLOCK) {
            uint64_t left = end - begin - at;
            *sums++ = ps_floats_square_sum(
                x + at, left < PS_GRADNORM_BLOCK ? left : PS_GRADNORM_BLOCK);
        }
    }
}

double ps_gradnorm_total(const double *sums, uint64_t n)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < n; i++)
        sum += sums[i];
    return sqrt(sum);
}

double ps_gradnorm_clip(double norm, double max_norm)
{
    double factor = max_norm / (norm + 1e-6);
    return factor >= 1.0 ? 1.0 : factor; // NaN stays NaN, as in PyTorch
}
