#include "fragments.h"

#include <inttypes.h>

/* The place nearest to the element at which a fragment may begin; the arena's end if that
 * is nearer than any. */
static uint64_t place_near(const ps_tensor_table *table, uint64_t element)
{
    int i = table->n_tensors - 1;
    while (table->tensors[i].offset > element)
        i--;
    const ps_tensor *t = &table->tensors[i];
    const uint64_t half = PS_GRADNORM_BLOCK / 2;
    const uint64_t blocks = (element - t->offset + half) / PS_GRADNORM_BLOCK;
    const uint64_t in_tensor = blocks * PS_GRADNORM_BLOCK;
    if (in_tensor < t->count) return t->offset + in_tensor;
    return i < table->n_tensors - 1 ? t[1].offset : table->arena_count;
}

ps_err ps_fragments_init(ps_fragments *f, const ps_tensor_table *table, uint32_t n)
{
    *f = (ps_fragments){.n = n, .count = table->arena_count};
    uint64_t end = f->count;
    for (uint32_t i = 0; i < n; i++) {
        f->begins[i] = place_near(table, f->count / n * (n - 1 - i));
        if (f->begins[i] >= end)
            return ps_err_set(PS_ERR_CONFIG,
                              "sync.fragments: the model's %" PRIu64
                              " parameters cannot be cut into %u fragments, as tensors "
                              "are cut at every %d parameters only: take fewer",
                              table->n_params, n, PS_GRADNORM_BLOCK);
        end = f->begins[i];
    }
    return PS_OK;
}
