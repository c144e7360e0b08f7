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

#include "wire.h"

/* Bytes of n elements. topk: the share of topk, in (0, 1]. */
uint64_t ps_codec_bytes(ps_codec codec, uint64_t n, double topk);

/* Whether error feedback is kept for it (a residual of n float32, zero at first). */
bool ps_codec_feeds_back(ps_codec codec);

/* Encodes in[0 .. n) into out (ps_codec_bytes of it). residual NULL: no feedback.
 * draw: what int8's random numbers depend on, with the element's index. */
void ps_codec_encode(ps_codec codec, double topk, uint64_t n, const float *in,
                     float *residual, uint64_t draw, void *out);

/* The same by PS_CODEC_FP16, but what is above 65504 becomes infinite. */
void ps_codec_encode_fp16_overflow(uint64_t n, const float *in, void *out);

/* Encodes values - told and adds to told what the payload decodes to, so that the rest
 * goes into the next change. */
void ps_codec_encode_change(ps_codec codec, double topk, uint64_t n, const float *values,
                            float *told, uint64_t draw, void *out);

/* Decodes into out (n). PROTOCOL when bytes is not the size of n elements, topk's indices
 * are not ascending within their block, or a byte of onebit is not five digits. out is
 * then undefined. */
ps_err ps_codec_decode(ps_codec codec, double topk, uint64_t n, const void *payload,
                       uint64_t bytes, float *out);

/* The same, added to sum (n). */
ps_err ps_codec_decode_add(ps_codec codec, double topk, uint64_t n, const void *payload,
                           uint64_t bytes, float *sum);

/* What int8's roundings of one payload depend on: who encodes (a worker's rank, or
 * PS_CODEC_DRAW_REPLY for a shard), the step, the place of the values. Pure. */
enum { PS_CODEC_DRAW_REPLY = 0x7fffffff };
uint64_t ps_codec_draw(uint32_t sender, uint64_t step, uint64_t place);

#endif
