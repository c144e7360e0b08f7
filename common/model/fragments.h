/* Fragments: parts of the arena that are synchronised at different times (sync.fragments,
 * local_steps.h). They depend on the tensors alone, not on chunks and shards, so that
 * results do not either.
 *
 * Fragment 0 holds the last layer's end, as chunk 0 does. All have about as many
 * elements: fragment i begins near (n - 1 - i) / n of the arena, at a tensor's beginning
 * or at a multiple of PS_GRADNORM_BLOCK elements within its tensor. The fragments of
 * Streaming DiLoCo are whole layers; here a single layer may hold most of a model, and
 * what counts is how many bytes travel together. */
#ifndef PS_FRAGMENTS_H
#define PS_FRAGMENTS_H

#include "config.h"
#include "tensor_table.h"

typedef struct ps_fragments {
    uint32_t n;
    uint64_t count;                    // elements of the arena
    uint64_t begins[PS_MAX_FRAGMENTS]; // elements, in descending order; the last is 0
} ps_fragments;

/* n: 1 to PS_MAX_FRAGMENTS. CONFIG when the tensors cannot be cut into that many. Pure.
 */
ps_err ps_fragments_init(ps_fragments *f, const ps_tensor_table *table, uint32_t n);

/* Elements [*begin, *end) of the arena are fragment i. */
static inline void ps_fragments_range(const ps_fragments *f, uint32_t i, uint64_t *begin,
                                      uint64_t *end)
{
    *begin = f->begins[i];
    *end = i > 0 ? f->begins[i - 1] : f->count;
}

#endif
