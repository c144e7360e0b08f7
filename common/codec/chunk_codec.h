/* How a job codes its chunks: tensors smaller than min_bytes travel as float32 (biases
 * and norms are few and sensitive), the others by the codec; a chunk's payload is its
 * tensors' pieces one after another.
 *
 * The first `warmup` steps of onebit and topk travel by int8, both ways: the second
 * moments of Adam grow from the first gradients, which are also the largest, and weights
 * move fastest then (Tang et al. 2021, 1-bit Adam, and Lin et al. 2018, deep gradient
 * compression, warm up for the same reason). So do the last `cooldown` ones, with what
 * was kept until then: after the last step there is no later in which it could travel,
 * and the weights settle from the noise of few bits. topk's changes travel by onebit: an
 * optimizer with moments moves every weight in every step, and of that the largest few
 * say little. */
#ifndef PS_CHUNK_CODEC_H
#define PS_CHUNK_CODEC_H

#include <stdbool.h>

#include "codec.h"
#include "config.h"
#include "plan.h"

/* What a payload holds: a worker's gradient, or a shard's reply. */
typedef enum ps_coded {
    PS_CODED_GRADIENT,
    PS_CODED_CHANGE // of the weights, since what the workers were told last
} ps_coded;

typedef struct ps_chunk_codec {
    ps_codec codec;
    double topk;
    uint64_t min_bytes;
    /* fp16: what is too large becomes infinite instead of 65504. Loss scaling wants it of
     * gradients: else the scale would grow for ever, and nobody see what is cut off. */
    bool overflow;
    uint64_t warmup, cooldown;    // steps
    uint64_t total_steps;         // of the job; 0: no cooldown
    const ps_tensor_table *table; // borrowed
} ps_chunk_codec;

ps_err ps_chunk_codec_init(ps_chunk_codec *c, const ps_config *cfg,
                           const ps_tensor_table *table);

/* How many steps the job has (PS_STEPS_UNKNOWN: no cooldown): the cooldown is counted
 * from their end. Comes before any question about a step. */
void ps_chunk_codec_end(ps_chunk_codec *c, uint64_t total_steps);

/* True when the quantization error of a step's gradients is fed back:
 * ps_codec_feeds_back, after the warm-up. (In the warm-up int8's roundings are right in
 * the mean.) */
bool ps_chunk_codec_keeps(const ps_chunk_codec *c, uint64_t step);

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

/* What the configuration makes of its chunks' size. one_host: ps_init_method_is_loopback,
 * for who finds the coordinator there is on its host: every process knows the same
 * without asking. */
ps_chunk_size ps_chunk_size_wanted(const ps_config *cfg, bool one_host);

/* values and residual (NULL: nothing is kept) are the chunk's own (chunk->count
 * elements). The gaps between tensors do not travel. key: ps_codec_draw_key. */
void ps_chunk_codec_encode(const ps_chunk_codec *c, const ps_chunk *chunk, ps_codec codec,
                           const float *values, float *residual, uint64_t key, void *out);
/* Encodes values - told, both of chunk->count elements, and adds to told what the payload
 * decodes to. Tensors that travel as float32 go as they are, and told becomes them: with
 * their change it would round, by chance of what else is in the chunk. */
void ps_chunk_codec_encode_change(const ps_chunk_codec *c, const ps_chunk *chunk,
                                  ps_codec codec, const float *values, float *told,
                                  uint64_t key, void *out);
/* What the other side does with it: told (chunk->count) becomes what the sender's has
 * become. PROTOCOL when the payload does not fit the chunk; told is then undefined. */
ps_err ps_chunk_codec_decode_change(const ps_chunk_codec *c, const ps_chunk *chunk,
                                    ps_codec codec, const void *payload, uint64_t bytes,
                                    float *told);
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
