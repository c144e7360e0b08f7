#include "coded_chunk.h"

#include <stdlib.h>
#include <string.h>

#include "finite.h"
#include "mem.h"

ps_err ps_coded_chunk_init(ps_coded_chunk *c, const ps_chunk_codec *codec,
                           const ps_chunk *chunk, bool adds_up)
{
    *c = (ps_coded_chunk){.codec = codec, .chunk = chunk, .adds_up = adds_up};
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

/* Names the worker whose gradient is not finite; OK when only their sum is not. */
static ps_err check_ranks(const ps_coded_chunk *c, const ps_aggregate *a, ps_codec by,
                          uint64_t bytes, const void *const *payloads, int n,
                          uint64_t step, float *scratch)
{
    for (int r = 0; r < n; r++) {
        PS_TRY(
            ps_chunk_codec_decode(c->codec, c->chunk, by, payloads[r], bytes, scratch));
        PS_TRY(ps_aggregate_check(a, scratch, r, step));
    }
    return PS_OK;
}

ps_err ps_coded_chunk_sum(const ps_coded_chunk *c, const ps_aggregate *a,
                          const void *const *payloads, int n, uint64_t step, bool check,
                          float *sum, float *scratch)
{
    const ps_codec by = ps_chunk_codec_of(c->codec, c->chunk, PS_CODED_GRADIENT, step);
    const uint64_t bytes = ps_chunk_codec_bytes(c->codec, c->chunk, by);
    for (int r = 0; r < n; r++) {
        ps_err err = (r == 0 ? ps_chunk_codec_decode : ps_chunk_codec_decode_add)(
            c->codec, c->chunk, by, payloads[r], bytes, sum);
        if (err != PS_OK)
            return ps_err_prefix(PS_ERR_PEER, "worker %d sent a payload with", r);
    }
    if (!check || ps_finite_all(sum, c->chunk->count)) return PS_OK;
    return check_ranks(c, a, by, bytes, payloads, n, step, scratch);
}

void ps_coded_chunk_reply(ps_coded_chunk *c, const float *weights, uint64_t version)
{
    const ps_chunk *chunk = c->chunk;
    const uint64_t key = ps_codec_draw_key(PS_CODEC_DRAW_REPLY, version);
    const ps_codec by = ps_chunk_codec_of(c->codec, chunk, PS_CODED_CHANGE, version - 1);
    c->reply_codec = by;
    c->reply_bytes = ps_chunk_codec_bytes(c->codec, chunk, by);
    if (c->adds_up) memset(c->told, 0, chunk->count * sizeof *c->told);
    ps_chunk_codec_encode_change(c->codec, chunk, by, weights, c->told, key, c->reply);
}
