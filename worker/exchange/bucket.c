#include "bucket.h"

#include <stdlib.h>

#include "mem.h"

ps_err ps_buckets_init(ps_buckets *buckets, const ps_model_spec *spec,
                       uint64_t first_bytes, uint64_t bytes)
{
    *buckets = (ps_buckets){0};
    size_t n = (size_t)spec->n_tensors;
    PS_TRY(ps_mem_zalloc(&buckets->list, n, sizeof *buckets->list, "buckets"));
    PS_TRY(ps_mem_zalloc(&buckets->of_tensor, n, sizeof *buckets->of_tensor, "buckets"));

    uint64_t limit = first_bytes, taken = 0;
    int last = spec->n_tensors - 1; // of the bucket that is being filled
    for (int i = last; i >= 0; i--) {
        const ps_tensor *t = &spec->tensors[i];
        buckets->of_tensor[i] = buckets->n;
        taken += t->count * sizeof(float);
        if (taken < limit && i > 0) continue;
        const ps_tensor *end = &spec->tensors[last];
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
    free(buckets->of_tensor);
    *buckets = (ps_buckets){0};
}
