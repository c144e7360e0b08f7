/* How a shard's chunks go from one version to the next: a table of functions for each
 * way, shard_bsp (when all workers' pushes of a step are in) and shard_orders (when the
 * coordinator says so). A shard has one of them for its whole life. Called by the shard's
 * thread alone; errors are those of the job: the shard ends it. */
#ifndef PS_SHARD_PACE_H
#define PS_SHARD_PACE_H

#include "policy.h"
#include "wire.h"

typedef struct ps_shard ps_shard;
typedef struct ps_shard_chunk ps_shard_chunk;

typedef struct ps_shard_pace_ops {
    /* Each worker counts its own pushes, and has a version of the weights of its own.
     * Else all have the same one. */
    bool by_worker;
    /* Optional: allocates and frees what it needs. NOMEM. close: safe after a failed
     * open. */
    ps_err (*open)(ps_shard *s);
    void (*close)(ps_shard *s);
    /* What a worker's push of a chunk is worth, as ps_policy_push says. */
    ps_verdict (*push)(ps_shard *s, ps_shard_chunk *c, uint32_t rank, uint64_t number);
    /* It counts (TAKE) and is here. Does what is due now. */
    ps_err (*taken)(ps_shard *s, ps_shard_chunk *c, uint32_t rank);
    /* Answers a push that was answered before. */
    ps_err (*answer_again)(ps_shard *s, ps_shard_chunk *c, uint32_t rank);
    /* What becomes of a request for weights, as ps_policy_pull says. */
    ps_verdict (*pull)(ps_shard *s, ps_shard_chunk *c, uint32_t rank, uint64_t version);
    /* The shard's version that a worker means which asks for `step` at rest. */
    uint64_t (*version)(const ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                        uint64_t step);
    /* Fills in what WEIGHTS say of the step: `step` and `scale`. */
    void (*stamp)(const ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                  ps_wire_header *h);
    /* The coordinator has written. */
    ps_err (*hear)(ps_shard *s);
    /* Optional. Some workers have left: ARG if another one waits in the chunk for what
     * they will never send. */
    ps_err (*check_left)(const ps_shard *s, const ps_shard_chunk *c);
    /* Optional. A worker whose push the chunk lacks, though another's is here; -1: none. */
    int64_t (*lacks)(const ps_shard *s, const ps_shard_chunk *c);
} ps_shard_pace_ops;

#endif
