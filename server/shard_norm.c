#include "shard_norm.h"

#include <math.h>

#include "finite.h"
#include "gradnorm.h"

double *ps_shard_norm_sums(const ps_shard *s, uint32_t i)
{
    double *sums = s->norm.block_sums;
    for (uint32_t k = 0; k < i; k++)
        sums += s->norm.run_counts[k];
    return sums;
}

/* With clipping, stores the sums of squares of the blocks; none overflows in double, so
 * the norm is finite if the sum is. Without clipping, notes only whether the sum is
 * finite. */
void ps_shard_norm_note(ps_shard *s, const ps_shard_chunk *c)
{
    if (s->norm.clip)
        ps_gradnorm_chunk(s->o.table, c->chunk, c->memory.sum,
                          ps_shard_norm_sums(s, (uint32_t)(c - s->chunks)));
    else if (!ps_finite_all(c->memory.sum, c->chunk->count))
        s->norm.block_sums[0] = NAN;
}

/* Sends the sums of squares of all of the shard's blocks to the coordinator. Without
 * clipping one number per shard, 0 or NaN, is enough: their norm says whether the
 * gradient is finite. */
ps_err ps_shard_norm_ask(ps_shard *s, uint64_t step)
{
    const uint32_t n_shards = s->o.plan->n_shards;
    if (s->norm.clip)
        return ps_coord_link_gradnorm_send(
            s->link, step, n_shards, ps_gradnorm_blocks(s->o.table), s->n_chunks,
            s->norm.run_first, s->norm.run_counts, s->norm.block_sums);
    const uint64_t place = s->index, one = 1;
    const double finite = s->norm.block_sums[0]; // 0 or NaN
    s->norm.block_sums[0] = 0;
    return ps_coord_link_gradnorm_send(s->link, step, n_shards, n_shards, 1, &place, &one,
                                       &finite);
}
