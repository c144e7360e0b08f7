/* The plan: tensors -> chunks -> shards, the same on every process.
 *
 * Chunk 0 holds the last layer's end, the first to be ready in the backward pass; the
 * last chunk starts at element 0 of the arena. Small tensors go together, large ones are
 * cut; a chunk ends at a tensor's end or at a multiple of PS_NORM_BLOCK elements within
 * its tensor. Shards are filled with the largest chunk first, always the emptiest shard
 * (lowest index among equals), by bytes.
 */
#ifndef PS_PLAN_H
#define PS_PLAN_H

#include "model_spec.h"

typedef struct ps_chunk {
    uint64_t offset, count; // elements of the arena, gaps between its tensors included
    int first_tensor, last_tensor; // tensors it touches, inclusive
    uint32_t shard;                // global index: server * shards per server + thread
} ps_chunk;

/* The part [*begin, *end) of a tensor, in its own elements, that lies in a chunk which
 * touches it. */
void ps_chunk_overlap(const ps_chunk *chunk, const ps_tensor *t, uint64_t *begin,
                      uint64_t *end);

typedef struct ps_plan {
    uint32_t n_chunks;
    ps_chunk *chunks;
    uint32_t n_shards;
    uint64_t *shard_counts;   // elements per shard
    uint64_t max_chunk_count; // elements of the largest chunk
    uint64_t hash; // over the tensors (name, shape, offset), the chunks and their shards
} ps_plan;

/* Sizes of chunks that stand for "what suits the exchange". */
enum { PS_CHUNK_AUTO = 0, PS_CHUNK_AUTO_ONE_HOST = 1 };

/* chunk_bytes: the largest chunk wanted, in whole blocks; or one of the above:
 * ps_plan_auto_chunk_bytes, or somewhat less where the shards are evener for it. CONFIG
 * when there are more shards than chunks can be made for; NOMEM. plan is safe for fini
 * after a failure. */
ps_err ps_plan_init(ps_plan *plan, const ps_model_spec *spec, uint64_t chunk_bytes,
                    uint32_t n_shards);
void ps_plan_fini(ps_plan *plan);

/* Pure: the size that fills and drains the pipe of a step of `bytes` quickly without
 * paying for too many messages, a multiple of a block: over a network about sqrt(bytes)
 * scaled, 48 KiB .. 1 MiB; on one host 512 KiB; less for a small model of many shards. */
uint64_t ps_plan_auto_chunk_bytes(uint64_t bytes, uint32_t n_shards, bool one_host);

/* configured: exchange.chunk, 0: auto. one_host: ps_init_method_is_loopback, for who
 * finds the coordinator there is on its host: every process knows the same without
 * asking. */
uint64_t ps_plan_chunk_wanted(int64_t configured, bool one_host);

#endif
