/* A chunk that travels encoded, on the shard's side.
 *
 * Gradients arrive encoded (error feedback, where the codec needs it, is the worker's).
 * The reply is encoded too: it holds the change of the weights since the workers were
 * last told. `told` is what every worker has, bit for bit, because both sides add the
 * same decoded change; what the codec loses stays in weights - told and goes into the
 * next change. So the weights that the optimizer steps never drift, and a worker that
 * joins late gets `told`. Where the optimizer only adds up (optimizer.h), the reply is
 * the encoded sum itself: a change from the zeros that both sides begin with. */
#ifndef PS_CODED_CHUNK_H
#define PS_CODED_CHUNK_H

#include "aggregate.h"
#include "chunk_codec.h"

typedef struct ps_coded_chunk {
    const ps_chunk_codec *codec; // borrowed
    const ps_chunk *chunk;       // borrowed
    bool coded;                  // false: the chunk travels as float32
    bool adds_up;                // the optimizer does: a reply is a sum, not a change
    float *told;                 // owned, count
    uint8_t *reply;              // owned: the last change, encoded
    ps_codec reply_codec;
    uint64_t reply_bytes;
} ps_coded_chunk;

/* NOMEM; c is safe for fini in every case. Allocates nothing for a chunk
 * that is not coded. */
ps_err ps_coded_chunk_init(ps_coded_chunk *c, const ps_chunk_codec *codec,
                           const ps_chunk *chunk, bool adds_up);
void ps_coded_chunk_fini(ps_coded_chunk *c);

/* Sets `told` to the first weights, or to exact ones. All workers get them unencoded,
 * and none pushes before it has them. */
void ps_coded_chunk_start(ps_coded_chunk *c, const float *weights);

/* sum = decoded payloads[0] + payloads[1] + ... in rank order (sum and scratch: count
 * elements). PEER names the worker whose payload cannot be decoded, NUMERIC (with check)
 * the one whose gradient is not finite. */
ps_err ps_coded_chunk_sum(const ps_coded_chunk *c, const ps_aggregate *a,
                          const void *const *payloads, int n, uint64_t step, bool check,
                          float *sum, float *scratch);

/* New weights of a version (from 1): encodes their change into c->reply and updates
 * c->told. */
void ps_coded_chunk_reply(ps_coded_chunk *c, const float *weights, uint64_t version);

#endif
