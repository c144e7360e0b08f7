#include "coded_arena.h"

#include <stdlib.h>

bool ps_coded_arena_takes(const ps_chunk_codec *codec)
{
    const ps_codec c = codec->codec;
    return !codec->table->optional &&
           (c == PS_CODEC_FP16 || c == PS_CODEC_BF16 || c == PS_CODEC_INT8);
}

ps_codec ps_coded_arena_codec_of(const ps_coded_arena *a, int tensor)
{
    const ps_tensor *t = &a->codec.table->tensors[tensor];
    const bool small = t->count * sizeof(float) < a->codec.min_bytes;
    return small ? PS_CODEC_NONE : a->codec.codec;
}

ps_err ps_coded_arena_init(ps_coded_arena *a, const ps_chunk_codec *codec)
{
    const ps_tensor_table *table = codec->table;
    *a = (ps_coded_arena){.codec = *codec};
    PS_TRY(PS_NEW(&a->at, (size_t)table->n_tensors + 1, "codecs"));
    for (int t = 0; t < table->n_tensors; t++)
        a->at[t + 1] = a->at[t] + ps_codec_bytes(ps_coded_arena_codec_of(a, t),
                                                 table->tensors[t].count, 0);
    return ps_shared_mem_init_private(&a->memory, a->at[table->n_tensors],
                                      "encoded gradients");
}

void ps_coded_arena_fini(ps_coded_arena *a)
{
    ps_shared_mem_fini(&a->memory);
    free(a->at);
    a->at = NULL;
}

uint8_t *ps_coded_arena_at(const ps_coded_arena *a, int tensor, uint64_t element)
{
    return (uint8_t *)a->memory.base + a->at[tensor] +
           ps_codec_bytes(ps_coded_arena_codec_of(a, tensor), element, 0);
}

const uint8_t *ps_coded_arena_payload(const ps_coded_arena *a, const ps_chunk *chunk)
{
    uint64_t begin, end;
    ps_chunk_overlap(chunk, &a->codec.table->tensors[chunk->first_tensor], &begin, &end);
    return ps_coded_arena_at(a, chunk->first_tensor, begin);
}
