#include "scatter.h"

#include <stdlib.h>

#include "mem.h"

ps_err ps_scatter_init(ps_scatter *s, const ps_tensor_table *table,
                       const ps_buckets *buckets, int n_ranks, uint64_t segment)
{
    *s = (ps_scatter){
        .n_buckets = buckets->n, .n_ranks = n_ranks, .segment = segment, .table = table};
    const size_t n = (size_t)buckets->n, ranks = (size_t)n_ranks;
    PS_TRY(PS_NEW(&s->parts, n * ranks, "parts"));
    PS_TRY(PS_NEW(&s->before, (n + 1) * ranks, "parts"));
    for (size_t b = 0; b < n; b++) {
        ps_bucket_cut(table, &buckets->list[b], n_ranks, s->parts + b * ranks);
        for (size_t r = 0; r < ranks; r++)
            s->before[(b + 1) * ranks + r] =
                s->before[b * ranks + r] + s->parts[b * ranks + r].count;
    }
    return PS_OK;
}

void ps_scatter_fini(ps_scatter *s)
{
    free(s->parts);
    free(s->before);
    *s = (ps_scatter){0};
}

uint64_t ps_scatter_segments(const ps_scatter *s, int bucket, int rank)
{
    const uint64_t count = ps_scatter_part(s, bucket, rank)->count;
    return count / s->segment + (count % s->segment != 0);
}

ps_chunk ps_scatter_segment(const ps_scatter *s, int bucket, int rank, uint64_t i)
{
    const ps_chunk *part = ps_scatter_part(s, bucket, rank);
    const uint64_t from = i * s->segment, left = part->count - from;
    const uint64_t count = left < s->segment ? left : s->segment;
    ps_chunk segment = *part;
    ps_bucket_narrow(s->table, &segment, part->offset + from, count);
    return segment;
}
