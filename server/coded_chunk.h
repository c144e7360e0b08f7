/* A chunk that travels encoded, on the shard's side.
 *
 * Gradients arrive encoded (error feedback, where the codec needs it, is the worker's).
 * The reply is encoded too: it holds the change of the weights since the workers were
 * last told. `known` is what every worker has, bit for bit, because both sides add the
 * same decoded change; what the codec loses stays in weights - known and goes into the
 * next change. So the weights that the optimizer steps never drift, and a worker that
 * joins late gets `known`. Where workers go on at their own pace each has weights of its
 * own, and so a `known` of its own. Where the optimizer only adds up (optimizer.h), the
 * reply is the encoded sum itself: a change from the zeros that both sides begin with. */
#ifndef PS_CODED_CHUNK_H
#define PS_CODED_CHUNK_H

#include "aggregate.h"
#include "chunk_codec.h"

typedef struct ps_coded_chunk {
    const ps_chunk_codec *codec; // borrowed
    const ps_chunk *chunk;       // borrowed
    bool coded;                  // false: the chunk travels as float32
    bool adds_up;                // the optimizer does: a reply is a sum, not a change
    uint32_t n_known;            // 1, or one of each worker
    uint64_t stride;             // elements from one to the next
    float *known;                // owned, (n_known, stride): count elements each
    uint8_t *reply;              // owned: the last change, encoded
    ps_codec reply_codec;
    uint64_t reply_bytes;
} ps_coded_chunk;

/* n_known: 1, or the number of workers. keeps: notes what workers were told in a chunk
 * that is not coded, too. NOMEM; c is safe for fini in every case. Allocates nothing for
 * a chunk that is not coded, unless keeps. */
ps_err ps_coded_chunk_init(ps_coded_chunk *c, const ps_chunk_codec *codec,
                           const ps_chunk *chunk, bool adds_up, uint32_t n_known,
                           bool keeps);
void ps_coded_chunk_fini(ps_coded_chunk *c);

/* What the worker has; all have the same where n_known is 1. */
static inline float *ps_coded_chunk_known(const ps_coded_chunk *c, uint32_t rank)
{
    return c->known + (c->n_known > 1 ? rank * c->stride : 0);
}

/* Sets every `known` to the first weights, or to exact ones. All workers get them
 * unencoded, and none pushes before it has them. */
void ps_coded_chunk_start(ps_coded_chunk *c, const float *weights);

typedef struct ps_coded_pushes { // in rank order
    const void *const *payloads;
    int n;
    uint64_t step;           // of the job
    const uint64_t *numbers; // (n) of the pushes; NULL: each is `step`
    /* As ps_aggregate_step's; NULL: none. bases is what the worker was told. */
    const float *factors, *compensations;
    const uint32_t *ranks;
    bool check;
} ps_coded_pushes;

/* sum = decoded payloads[0] + payloads[1] + ... in order (sum and scratch: count
 * elements). PEER names the worker whose payload cannot be decoded, NUMERIC (with check)
 * the one whose gradient is not finite. */
ps_err ps_coded_chunk_sum(const ps_coded_chunk *c, const ps_aggregate *a,
                          const ps_coded_pushes *p, float *sum, float *scratch);

/* New weights of a version (from 1): encodes their change for the worker (or for all)
 * into c->reply and updates its `known`. */
void ps_coded_chunk_reply(ps_coded_chunk *c, uint32_t rank, const float *weights,
                          uint64_t version);

#endif
