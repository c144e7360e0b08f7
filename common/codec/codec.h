/* Codecs: fewer bytes for a gradient, or for the change of the weights, at some loss.
 *
 * A vector of n float32 becomes, little-endian:
 *
 *   none    n float32                                                        4n bytes
 *   fp16    n IEEE half precision, rounded to nearest even, held at +-65504        2n
 *   bf16    n bfloat16, rounded to nearest even (float16.h)                        2n
 *   int8    blocks of 256: float32 scale = max|v|/127, then int8 floor(v/scale + u),
 *           u uniform in [0, 1): unbiased (Alistarh et al. 2017, QSGD)       n + 4n/256
 *   int4    blocks of 64: the upper half of the float32 max|v|, then two elements to a
 *           byte, i and i + half of the block, the first in its lower half:
 *           8 + v / (max|v|/7), rounded to nearest, 1 .. 15            n/2 + 2n/64
 *   onebit  blocks of 320: the upper half of the float32 max|v|, then 4 bits for each
 *           sixteen elements, the first in a byte's lower half: the largest of them is
 *           max|v| / sqrt(2)^e or nearly, then a sign or nothing per element, five to a
 *           byte (base 3): 5/8 of its sixteen's largest, 0 or -5/8      n/5 + 12n/320
 *   topk    blocks of 256: the k = ceil(share * 256) largest by |v| (lower index first
 *           among equals): float32 scale = max|v|, k index bytes, ascending, then k
 *           values of 4 bits, the first in a byte's lower half: a sign (8) and e, for
 *           scale / sqrt(2)^e, e = 7 for 0                            (1.5k + 4) n/256
 *
 * Blocks start anew every PS_GRADNORM_BLOCK elements of a tensor, the only places within
 * it where chunks may be cut (plan.h). So a tensor's bytes are the same however it is
 * cut. The last block of a span may be shorter; its k is ceil(share * its length).
 *
 * onebit sends the elements above 3/8 of the largest of their sixteen, so that an
 * element's error shrinks whenever it is sent. Signs alone (Seide et al. 2014;
 * Karimireddy et al. 2019, EF-signSGD) are far worse under Adam: most elements of a
 * gradient are much smaller than their block's mean, a sign makes them as large as the
 * mean, and the second moment never forgets that. One magnitude for a block, the best by
 * Lloyd's algorithm (1982), is worse too: features of very different size lie side by
 * side.
 *
 * The size depends on codec, n and share alone, so that a frame that lies about one of
 * them is refused by its length. A number that is not finite is not finite after decoding
 * either, so that the check of the sums still finds it.
 *
 * Error feedback (ps_codec_feeds_back; Seide et al. 2014): v = input + residual is
 * encoded and residual becomes v - decoded(v), so that nothing is lost, only delayed.
 * int4, onebit and topk need it.
 */
#ifndef PS_CODEC_H
#define PS_CODEC_H

#include <stdint.h>

#include "config_words.h"
#include "err.h"

/* What int8's random roundings depend on: the payload (ps_codec_draw_key), and the index
 * of the vector's first element in its tensor. */
typedef struct ps_codec_draw {
    uint64_t key, first;
} ps_codec_draw;

/* Bytes of n elements. topk: the share of topk, in (0, 1]. */
uint64_t ps_codec_bytes(ps_codec codec, uint64_t n, double topk);

/* Encodes in[0 .. n) into out (ps_codec_bytes of it). residual NULL: no feedback. */
void ps_codec_encode(ps_codec codec, double topk, uint64_t n, const float *in,
                     float *residual, ps_codec_draw draw, void *out);

/* The same for PS_CODEC_FP16, except that values above 65504 become infinite. */
void ps_codec_encode_fp16_overflow(uint64_t n, const float *in, void *out);

/* Encodes values - known and adds to known what the payload decodes to, so that the rest
 * goes into the next change. */
void ps_codec_encode_change(ps_codec codec, double topk, uint64_t n, const float *values,
                            float *known, ps_codec_draw draw, void *out);

/* Decodes into out (n). PROTOCOL when bytes is not the size of n elements, topk's indices
 * are not ascending within their block, a number of int4 is below -7, or a byte of onebit
 * is not five digits. out is then undefined. */
ps_err ps_codec_decode(ps_codec codec, double topk, uint64_t n, const void *payload,
                       uint64_t bytes, float *out);

/* The same, added to sum (n). */
ps_err ps_codec_decode_add(ps_codec codec, double topk, uint64_t n, const void *payload,
                           uint64_t bytes, float *sum);

/* The key of a sender (a worker's rank, or PS_CODEC_DRAW_REPLY for a shard) and a step.
 * Tensor t uses key + t. Pure. */
enum { PS_CODEC_DRAW_REPLY = 0x7fffffff };
uint64_t ps_codec_draw_key(uint32_t sender, uint64_t step);

#endif
