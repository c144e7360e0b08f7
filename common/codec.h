/* Codecs: fewer bytes for a gradient, or for the change of the weights, at some loss.
 *
 * A vector of n float32 becomes, little-endian:
 *
 *   none    n float32                                                        4n bytes
 *   fp16    n IEEE half precision, rounded to nearest even, held at +-65504        2n
 *   bf16    n bfloat16, rounded to nearest even (float16.h)                        2n
 *   int8    blocks of 256: float32 scale = max|v|/127, then int8 floor(v/scale + u),
 *           u uniform in [0, 1): unbiased (Alistarh et al. 2017, QSGD)       n + 4n/256
 *   onebit  blocks of 320: bfloat16 a, then a sign or nothing per element, which is
 *           a, 0 or -a, five to a byte (base 3)                            n/5 + 2n/320
 *   topk    blocks of 256: the k = ceil(share * 256) largest by |v| (lower index first
 *           among equals): float32 scale = max|v|, k index bytes, ascending, then k
 *           values of 4 bits, the first in a byte's lower half: a sign (8) and e, for
 *           scale / sqrt(2)^e, e = 7 for 0                            (1.5k + 4) n/256
 *
 * The last block may be shorter; its k is ceil(share * its length).
 *
 * onebit chooses between sign and nothing by two rounds of Lloyd's algorithm (1982): who
 * is above 3/4 of mean|v|, then above half of those elements' mean. Signs alone (Seide et
 * al. 2014; Karimireddy et al. 2019, EF-signSGD) were tried and are worse by far under
 * Adam: most elements of a gradient are much smaller than their block's mean, a sign
 * makes them as large as it, and the second moment never forgets that.
 *
 * The size depends on codec, n and share alone, so that a frame that lies about either is
 * refused by its length. What is not finite in the input is not finite after decoding, so
 * that the check of the sums still finds it.
 *
 * Error feedback (Seide et al. 2014): v = input + residual is encoded and residual
 * becomes v - decoded(v), so that nothing is lost, only late. onebit and topk need it.
 */
#ifndef PS_CODEC_H
#define PS_CODEC_H

#include <stdbool.h>
#include <stddef.h>

#include "config.h"
#include "plan.h"
#include "wire.h"

enum {
    PS_CODEC_INT8_BLOCK = 256,
    PS_CODEC_ONEBIT_BLOCK = 320,
    PS_CODEC_TOPK_BLOCK = 256 // its indices are bytes
};

/* Bytes of n elements. topk: the share of topk, in (0, 1]. */
uint64_t ps_codec_bytes(ps_codec codec, uint64_t n, double topk);

/* Whether error feedback is kept for it (a residual of n float32, zero at first). */
bool ps_codec_feeds_back(ps_codec codec);

/* Encodes in[0 .. n) into out (ps_codec_bytes of it). residual NULL: no feedback.
 * draw: what int8's random numbers depend on, with the element's index. */
void ps_codec_encode(ps_codec codec, double topk, uint64_t n, const float *in,
                     float *residual, uint64_t draw, void *out);

/* Decodes into out (n). PROTOCOL when bytes is not the size of n elements, topk's indices
 * are not ascending within their block, or a byte of onebit is not five digits. out is
 * then undefined. */
ps_err ps_codec_decode(ps_codec codec, double topk, uint64_t n, const void *payload,
                       uint64_t bytes, float *out);

/* What int8's roundings of one payload depend on: who encodes (a worker's rank, or
 * PS_CODEC_DRAW_REPLY for a shard), the step, the place of the values. Pure. */
enum { PS_CODEC_DRAW_REPLY = 0x7fffffff };
uint64_t ps_codec_draw(uint32_t sender, uint64_t step, uint64_t place);

/* What a payload holds: a worker's gradient, or a shard's reply. */
typedef enum ps_coded {
    PS_CODED_GRADIENT,
    PS_CODED_CHANGE // of the weights, since what the workers were told last
} ps_coded;

/* How a job codes its chunks: tensors smaller than min_bytes travel as float32 (biases
 * and norms are few and sensitive), the others by the codec; a chunk's payload is its
 * tensors' pieces one after another.
 *
 * The first `warmup` steps of onebit and topk travel by int8, both ways: the second
 * moments of Adam grow from the first gradients, which are also the largest, and weights
 * move fastest then (Tang et al. 2021, 1-bit Adam, and Lin et al. 2018, deep gradient
 * compression, warm up for the same reason). topk's changes travel by onebit: an
 * optimizer with moments moves every weight in every step, and of that the largest few
 * say little. */
typedef struct ps_chunk_codec {
    ps_codec codec;
    double topk;
    uint64_t min_bytes;
    /* fp16: what is too large becomes infinite instead of 65504. Loss scaling wants it of
     * gradients: else the scale would grow for ever, and nobody see what is cut off. */
    bool overflow;
    uint64_t warmup;           // steps
    const ps_model_spec *spec; // borrowed
} ps_chunk_codec;

ps_err ps_chunk_codec_init(ps_chunk_codec *c, const ps_config *cfg,
                           const ps_model_spec *spec);

/* The codec that a chunk's frames carry in a step (from 0; a change answers the step's
 * gradients): none where all its tensors travel as float32, for then the payload is the
 * chunk itself. */
ps_codec ps_chunk_codec_of(const ps_chunk_codec *c, const ps_chunk *chunk, ps_coded what,
                           uint64_t step);

/* The payload's bytes by a codec that ps_chunk_codec_of gave, and those of the largest
 * payload in any step. */
uint64_t ps_chunk_codec_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                              ps_codec codec);
uint64_t ps_chunk_codec_most_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                                   ps_coded what);

/* What credits are made for: the largest payload bytes of a step's gradients to a shard,
 * and of the largest chunk of all shards. */
void ps_chunk_codec_step_bytes(const ps_chunk_codec *c, const ps_plan *plan,
                               uint32_t shard, uint64_t *total, uint64_t *largest);

/* values and residual (may be NULL) are the chunk's own (chunk->count elements). The gaps
 * between tensors do not travel. */
void ps_chunk_codec_encode(const ps_chunk_codec *c, const ps_chunk *chunk, ps_codec codec,
                           const float *values, float *residual, uint64_t draw,
                           void *out);
/* Fills out (chunk->count; gaps zero). PROTOCOL when the payload does not fit the chunk.
 */
ps_err ps_chunk_codec_decode(const ps_chunk_codec *c, const ps_chunk *chunk,
                             ps_codec codec, const void *payload, uint64_t bytes,
                             float *out);

#endif
