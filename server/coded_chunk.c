#include "coded_chunk.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

ps_err ps_coded_chunk_init(ps_coded_chunk *c, const ps_chunk_codec *codec,
                           const ps_chunk *chunk)
{
    *c = (ps_coded_chunk){.codec = codec, .chunk = chunk};
    c->coded = ps_chunk_codec_of(codec, chunk, PS_CODED_CHANGE, 0) != PS_CODEC_NONE;
    if (!c->coded) return PS_OK;
    PS_TRY(ps_mem_zalloc_aligned(&c->told, chunk->count * sizeof *c->told,
                                 "the weights that workers were told"));
    return ps_mem_zalloc_aligned(&c->reply,
                                 ps_chunk_codec_most_bytes(codec, chunk, PS_CODED_CHANGE),
                                 "an encoded reply");
}

void ps_coded_chunk_fini(ps_coded_chunk *c)
{
    free(c->told);
    free(c->reply);
    *c = (ps_coded_chunk){0};
}

void ps_coded_chunk_start(ps_coded_chunk *c, const float *weights)
{
    if (c->told) memcpy(c->told, weights, c->chunk->count * sizeof *weights);
}

static void add_to(float *restrict out, const float *restrict a, uint64_t n)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] += a[i];
}

static void subtract(float *restrict out, const float *restrict a,
                     const float *restrict b, uint64_t n)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = a[i] - b[i];
}

ps_err ps_coded_chunk_sum(const ps_coded_chunk *c, const ps_aggregate *a,
                          const void *const *payloads, int n, uint64_t step, bool check,
                          float *sum, float *scratch)
{
    const ps_codec by = ps_chunk_codec_of(c->codec, c->chunk, PS_CODED_GRADIENT, step);
    const uint64_t bytes = ps_chunk_codec_bytes(c->codec, c->chunk, by);
    for (int r = 0; r < n; r++) {
        float *to = r == 0 ? sum : scratch;
        ps_err err =
            ps_chunk_codec_decode(c->codec, c->chunk, by, payloads[r], bytes, to);
        if (err != PS_OK)
            return ps_err_prefix(PS_ERR_PEER, "worker %d sent a payload with", r);
        if (check) PS_TRY(ps_aggregate_check(a, to, r, step));
        if (r > 0) add_to(sum, scratch, c->chunk->count);
    }
    return PS_OK;
}

ps_err ps_coded_chunk_reply(ps_coded_chunk *c, const float *weights, uint64_t version,
                            float *scratch)
{
    const ps_chunk *chunk = c->chunk;
    subtract(scratch, weights, c->told, chunk->count);
    uint64_t draw = ps_codec_draw(PS_CODEC_DRAW_REPLY, version, chunk->offset);
    const ps_codec by = ps_chunk_codec_of(c->codec, chunk, PS_CODED_CHANGE, version - 1);
    c->reply_codec = by;
    c->reply_bytes = ps_chunk_codec_bytes(c->codec, chunk, by);
    ps_chunk_codec_encode(c->codec, chunk, by, scratch, NULL, draw, c->reply);
    PS_TRY(ps_chunk_codec_decode(c->codec, chunk, by, c->reply, c->reply_bytes, scratch));
    add_to(c->told, scratch, chunk->count);
    return PS_OK;
}
