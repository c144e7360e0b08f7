#include "coded_chunk.h"

#include <stdlib.h>
#include <string.h>

#include "finite.h"
#include "floats.h"
#include "mem.h"

ps_err ps_coded_chunk_init(ps_coded_chunk *c, const ps_chunk_codec *codec,
                           const ps_chunk *chunk, bool adds_up, uint32_t n_known,
                           bool keeps)
{
    const uint64_t align = PS_TENSOR_ALIGN;
    *c = (ps_coded_chunk){
        .codec = codec, .chunk = chunk, .adds_up = adds_up, .n_known = n_known};
    c->stride = (chunk->count + align - 1) / align * align;
    c->coded = ps_chunk_codec_of(codec, chunk, PS_CODED_CHANGE, 0) != PS_CODEC_NONE;
    if (c->coded || keeps)
        PS_TRY(ps_mem_zalloc_aligned(&c->known, n_known * c->stride * sizeof *c->known,
                                     "the weights that workers were told"));
    if (!c->coded) return PS_OK;
    return ps_mem_zalloc_aligned(&c->reply,
                                 ps_chunk_codec_most_bytes(codec, chunk, PS_CODED_CHANGE),
                                 "an encoded reply");
}

void ps_coded_chunk_fini(ps_coded_chunk *c)
{
    free(c->known);
    free(c->reply);
    *c = (ps_coded_chunk){0};
}

void ps_coded_chunk_start(ps_coded_chunk *c, const float *weights)
{
    for (uint32_t i = 0; c->known && i < c->n_known; i++)
        memcpy(ps_coded_chunk_known(c, i), weights, c->chunk->count * sizeof *weights);
}

/* --- gradients ---------------------------------------------------------------------- */

static uint32_t rank_of(const ps_coded_pushes *p, int i)
{
    return p->ranks ? p->ranks[i] : (uint32_t)i;
}

typedef ps_err (*decode_fn)(const ps_chunk_codec *, const ps_chunk *, ps_codec,
                            const void *, uint64_t, float *);

static ps_err coded_chunk_decode(const ps_coded_chunk *c, const ps_coded_pushes *p, int i,
                                 decode_fn fn, float *out)
{
    const uint64_t number = p->numbers ? p->numbers[i] : p->step;
    const ps_codec by = ps_chunk_codec_of(c->codec, c->chunk, PS_CODED_GRADIENT, number);
    const uint64_t bytes = ps_chunk_codec_bytes(c->codec, c->chunk, by);
    ps_err err = fn(c->codec, c->chunk, by, p->payloads[i], bytes, out);
    if (err == PS_OK) return PS_OK;
    return ps_err_prefix(PS_ERR_PEER, "worker %u sent a payload with", rank_of(p, i));
}

/* Names the worker whose gradient is not finite; OK when only their sum is not. */
static ps_err check_ranks(const ps_coded_chunk *c, const ps_aggregate *a,
                          const ps_coded_pushes *p, float *scratch)
{
    for (int i = 0; i < p->n; i++) {
        PS_TRY(coded_chunk_decode(c, p, i, ps_chunk_codec_decode, scratch));
        PS_TRY(ps_aggregate_check(a, scratch, (int)rank_of(p, i), p->step));
    }
    return PS_OK;
}

/* Decodes push i, corrects it, and adds it to sum; the first one becomes the sum. */
static ps_err add_push(const ps_coded_chunk *c, const ps_aggregate *a,
                       const ps_coded_pushes *p, int i, float *sum, float *scratch)
{
    const float factor = p->factors ? p->factors[i] : 1;
    const float compensation = p->compensations ? p->compensations[i] : 0;
    const uint64_t count = c->chunk->count;
    if (factor == 1 && compensation == 0)
        return coded_chunk_decode(
            c, p, i, i == 0 ? ps_chunk_codec_decode : ps_chunk_codec_decode_add, sum);
    float *grad = i == 0 ? sum : scratch;
    PS_TRY(coded_chunk_decode(c, p, i, ps_chunk_codec_decode, grad));
    if (compensation != 0)
        ps_floats_compensate(grad, grad, a->weights,
                             ps_coded_chunk_known(c, rank_of(p, i)), compensation, count);
    ps_floats_scale(grad, factor, count);
    if (i > 0) ps_floats_add(sum, grad, count);
    return PS_OK;
}

ps_err ps_coded_chunk_sum(const ps_coded_chunk *c, const ps_aggregate *a,
                          const ps_coded_pushes *p, float *sum, float *scratch)
{
    for (int i = 0; i < p->n; i++)
        PS_TRY(add_push(c, a, p, i, sum, scratch));
    if (!p->check || ps_finite_all(sum, c->chunk->count)) return PS_OK;
    return check_ranks(c, a, p, scratch);
}

/* --- weights ------------------------------------------------------------------------ */

void ps_coded_chunk_reply(ps_coded_chunk *c, uint32_t rank, const float *weights,
                          uint64_t version)
{
    const ps_chunk *chunk = c->chunk;
    const uint64_t key = ps_codec_draw_key(PS_CODEC_DRAW_REPLY, version);
    const ps_codec by = ps_chunk_codec_of(c->codec, chunk, PS_CODED_CHANGE, version - 1);
    float *known = ps_coded_chunk_known(c, rank);
    c->reply_codec = by;
    c->reply_bytes = ps_chunk_codec_bytes(c->codec, chunk, by);
    if (c->adds_up) memset(known, 0, chunk->count * sizeof *known);
    ps_chunk_codec_encode_change(c->codec, chunk, by, weights, known, key, c->reply);
}
