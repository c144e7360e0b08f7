/* How a job encodes its chunks. Tensors smaller than min_bytes travel as float32, because
 * biases and norms are few and sensitive; the others travel by the codec. A chunk's
 * payload is the pieces of its tensors, one after another. Where tensors may lack a
 * gradient (absent.h), a byte for each of them follows: 1, or 0 of one that is lacking,
 * whose numbers do not count.
 *
 * In the first `warmup` steps int8 replaces codecs with feedback, in both directions.
 * Adam's second moments grow from the first gradients, which are also the largest, and
 * weights move fastest then (Tang et al. 2021, 1-bit Adam, and Lin et al. 2018, deep
 * gradient compression, warm up for the same reason). int8 also replaces them in the last
 * `cooldown` steps and carries the residuals kept until then: no later step could carry
 * them, and the weights recover from the noise of few bits. With topk, the changes of the
 * weights travel by onebit: an optimizer with moments moves every weight in every step,
 * so the few largest changes say little. */
#ifndef PS_CHUNK_CODEC_H
#define PS_CHUNK_CODEC_H

#include <stdbool.h>

#include "codec.h"
#include "config.h"
#include "plan.h"

/* What a payload holds: a worker's gradient, or a shard's reply. */
typedef enum ps_coded {
    PS_CODED_GRADIENT,
    PS_CODED_CHANGE // of the weights since the shard's last reply
} ps_coded;

/* Until ps_chunk_codec_end: the length follows from the job's number of steps. */
#define PS_CHUNK_CODEC_AUTO ((uint64_t)PS_CONFIG_AUTO)

typedef struct ps_chunk_codec {
    ps_codec codec;
    double topk;
    uint64_t min_bytes;
    /* fp16: values that are too large become infinite instead of 65504. Loss scaling
     * needs this for gradients: otherwise the scale would grow without end, and nothing
     * would show that values are cut off. */
    bool overflow;
    uint64_t warmup, cooldown;    // steps, or PS_CHUNK_CODEC_AUTO
    uint64_t total_steps;         // of the job; 0: no cooldown
    const ps_tensor_table *table; // borrowed
} ps_chunk_codec;

void ps_chunk_codec_init(ps_chunk_codec *c, const ps_config *cfg,
                         const ps_tensor_table *table);

/* Sets the job's number of steps, from whose end the cooldown counts (PS_STEPS_UNKNOWN:
 * no cooldown), and the lengths that follow from it. Must be called before any function
 * that takes a step. */
void ps_chunk_codec_end(ps_chunk_codec *c, uint64_t total_steps);

/* True when the quantization error of a step's gradients is fed back:
 * ps_codec_feeds_back, after the warm-up. (The warm-up needs none: int8's rounding is
 * unbiased.) */
bool ps_chunk_codec_keeps(const ps_chunk_codec *c, uint64_t step);

/* The codec that a chunk's frames carry in a step (from 0; a change answers the step's
 * gradients): NONE when all its tensors travel as float32, because the payload is then
 * the chunk itself. */
ps_codec ps_chunk_codec_of(const ps_chunk_codec *c, const ps_chunk *chunk, ps_coded what,
                           uint64_t step);

/* The bytes of a chunk's payload: by a codec that ps_chunk_codec_of returned, and of the
 * largest payload in any step. */
uint64_t ps_chunk_codec_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                              ps_codec codec);
uint64_t ps_chunk_codec_most_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                                   ps_coded what);

/* For credits (credit.h): the most payload bytes of a step's gradients to a shard, and
 * those of the largest chunk of all shards. */
void ps_chunk_codec_step_bytes(const ps_chunk_codec *c, const ps_plan *plan,
                               uint32_t shard, uint64_t *total, uint64_t *largest);

/* The chunk size that the configuration asks for. one_host: ps_init_method_is_loopback. A
 * process that finds the coordinator at a loopback address is on its host, so every
 * process knows this without asking. */
ps_chunk_size ps_chunk_size_wanted(const ps_config *cfg, bool one_host);

/* values and residual (NULL: no error feedback) are the chunk's own (chunk->count
 * elements). The gaps between tensors do not travel. key: ps_codec_draw_key. */
void ps_chunk_codec_encode(const ps_chunk_codec *c, const ps_chunk *chunk, ps_codec codec,
                           const float *values, float *residual, uint64_t key, void *out);
/* Encodes values - known, both of chunk->count elements, and adds to known what the
 * payload decodes to. Tensors that travel as float32 are sent as they are, and known
 * becomes equal to them: adding a change would round, and the result would depend on what
 * else is in the chunk. */
void ps_chunk_codec_encode_change(const ps_chunk_codec *c, const ps_chunk *chunk,
                                  ps_codec codec, const float *values, float *known,
                                  uint64_t key, void *out);
/* The receiver's part: known (chunk->count) becomes equal to the sender's. PROTOCOL when
 * the payload does not fit the chunk; known is then undefined. */
ps_err ps_chunk_codec_decode_change(const ps_chunk_codec *c, const ps_chunk *chunk,
                                    ps_codec codec, const void *payload, uint64_t bytes,
                                    float *known);
/* Fills out (chunk->count; gaps zero). PROTOCOL when the payload does not fit the chunk.
 */
ps_err ps_chunk_codec_decode(const ps_chunk_codec *c, const ps_chunk *chunk,
                             ps_codec codec, const void *payload, uint64_t bytes,
                             float *out);
/* The same, added to sum. */
ps_err ps_chunk_codec_decode_add(const ps_chunk_codec *c, const ps_chunk *chunk,
                                 ps_codec codec, const void *payload, uint64_t bytes,
                                 float *sum);

#endif
