#include "bucket.h"

#include <stdlib.h>

#include "mem.h"

ps_err ps_buckets_init(ps_buckets *buckets, const ps_tensor_table *table,
                       uint64_t first_bytes, uint64_t bytes)
{
    *buckets = (ps_buckets){0};
    size_t n = (size_t)table->n_tensors;
    PS_TRY(PS_NEW(&buckets->list, n, "buckets"));

    uint64_t limit = first_bytes, taken = 0;
    int last = table->n_tensors - 1; // of the bucket that is being filled
    for (int i = last; i >= 0; i--) {
        const ps_tensor *t = &table->tensors[i];
        taken += t->count * sizeof(float);
        if (taken < limit && i > 0) continue;
        const ps_tensor *end = &table->tensors[last];
        buckets->list[buckets->n++] = (ps_bucket){
            .first_tensor = i,
            .n_tensors = last - i + 1,
            .offset = t->offset,
            .count = end->offset + end->count - t->offset,
        };
        last = i - 1;
        taken = 0;
        limit = bytes;
    }
    return PS_OK;
}

void ps_buckets_fini(ps_buckets *buckets)
{
    free(buckets->list);
    *buckets = (ps_buckets){0};
}

/* Where in the arena the block begins that is nearest to a number of the bucket's
 * elements, gaps not counted. */
static uint64_t cut_near(const ps_tensor_table *table, const ps_bucket *b,
                         uint64_t elements)
{
    for (int i = b->first_tensor; i < b->first_tensor + b->n_tensors; i++) {
        const ps_tensor *t = &table->tensors[i];
        uint64_t at =
            (elements + PS_GRADNORM_BLOCK / 2) / PS_GRADNORM_BLOCK * PS_GRADNORM_BLOCK;
        if (at < t->count) return t->offset + at;
        if (elements < t->count) elements = t->count;
        elements -= t->count;
    }
    return b->offset + b->count;
}

void ps_bucket_narrow(const ps_tensor_table *table, ps_chunk *chunk, uint64_t from,
                      uint64_t count)
{
    const uint64_t to = from + count;
    chunk->offset = from;
    chunk->count = count;
    while (chunk->first_tensor < chunk->last_tensor &&
           table->tensors[chunk->first_tensor + 1].offset <= from)
        chunk->first_tensor++;
    while (chunk->last_tensor >= chunk->first_tensor &&
           table->tensors[chunk->last_tensor].offset >= to)
        chunk->last_tensor--;
    if (count == 0) chunk->last_tensor = chunk->first_tensor - 1;
}

void ps_bucket_cut(const ps_tensor_table *table, const ps_bucket *bucket, int n,
                   ps_chunk *parts)
{
    uint64_t elements = 0, from = bucket->offset;
    for (int i = 0; i < bucket->n_tensors; i++)
        elements += table->tensors[bucket->first_tensor + i].count;
    for (int k = 1; k <= n; k++) {
        uint64_t to = k < n
                          ? cut_near(table, bucket, elements * (uint64_t)k / (uint64_t)n)
                          : bucket->offset + bucket->count;
        parts[k - 1] =
            (ps_chunk){.first_tensor = bucket->first_tensor,
                       .last_tensor = bucket->first_tensor + bucket->n_tensors - 1};
        ps_bucket_narrow(table, &parts[k - 1], from, to - from);
        from = to;
    }
}
