/* The plan: tensors -> chunks -> shards, the same on every process.
 *
 * Chunk 0 holds the last layer's end, the first to be ready in the backward pass; the
 * last chunk starts at element 0 of the arena. Small tensors go together, large ones are
 * cut; a chunk ends at a tensor's end or at a multiple of PS_GRADNORM_BLOCK elements
 * within its tensor. A chunk lies within one fragment, and its tensors have one owner.
 * Chunks are given to shards by size, the largest first, each to the shard that then has
 * the fewest bytes for its share (lowest index among equals); with several fragments, the
 * fewest of the chunk's fragment, as these travel together. Every shard gets at least one
 * chunk. */
#ifndef PS_PLAN_H
#define PS_PLAN_H

#include "config.h"
#include "tensor_table.h"

/* Fragments: parts of the arena that are synchronised at different times (sync.fragments,
 * local_steps.h). They depend on the tensors alone, not on chunks and shards, so that
 * results do not either.
 *
 * Fragment 0 holds the last layer's end, as chunk 0 does. All have about as many
 * elements: fragment i begins near (n - 1 - i) / n of the arena, at a tensor's beginning
 * or at a multiple of PS_GRADNORM_BLOCK elements within its tensor. The fragments of
 * Streaming DiLoCo are whole layers; here a single layer may hold most of a model, and
 * what counts is how many bytes travel together. */
typedef struct ps_fragments {
    uint32_t n;
    uint64_t count;                    // elements of the arena
    uint64_t begins[PS_MAX_FRAGMENTS]; // elements, in descending order; the last is 0
} ps_fragments;

/* n: 1 to PS_MAX_FRAGMENTS. CONFIG when the tensors cannot be cut into that many. Pure.
 */
ps_err ps_fragments_init(ps_fragments *f, const ps_tensor_table *table, uint32_t n);

/* Elements [*begin, *end) of the arena are fragment i. */
static inline void ps_fragments_range(const ps_fragments *f, uint32_t i, uint64_t *begin,
                                      uint64_t *end)
{
    *begin = f->begins[i];
    *end = i > 0 ? f->begins[i - 1] : f->count;
}

typedef struct ps_chunk {
    uint64_t offset, count; // elements of the arena, gaps between its tensors included
    int first_tensor, last_tensor; // tensors it touches, inclusive
    uint32_t shard;                // global index: server * shards per server + thread
    uint32_t fragment;             // that it is a part of
} ps_chunk;

/* The version at which the chunk's first weights are in a job that goes on with
 * first_step: fragments before `ahead` have made that step already. */
static inline uint64_t ps_chunk_first_version(const ps_chunk *chunk, uint64_t first_step,
                                              uint32_t ahead)
{
    return first_step + (chunk->fragment < ahead);
}

/* Of a step that belongs to an optimizer: 1 + its number; 0: to all of them. */
enum { PS_STEP_OF_ALL = 0 };

/* Whether a step of that one leaves the chunk as it is: its tensors belong to another. */
static inline bool ps_chunk_is_idle(const ps_chunk *chunk, const ps_tensor_table *table,
                                    uint32_t step_of)
{
    return step_of != PS_STEP_OF_ALL &&
           (uint32_t)table->tensors[chunk->first_tensor].owner + 1 != step_of;
}

/* The error, of that code, where two workers make steps of different optimizers; names
 * each by its first tensor. */
ps_err ps_step_of_differs(ps_err code, const ps_tensor_table *table, uint64_t step,
                          const uint32_t ranks[2], const uint32_t steps_of[2]);

/* The part [*begin, *end) of a tensor, in its own elements, that lies in a chunk which
 * touches it. */
void ps_chunk_overlap(const ps_chunk *chunk, const ps_tensor *t, uint64_t *begin,
                      uint64_t *end);

/* What decides the size of chunks. */
typedef struct ps_chunk_size {
    uint64_t bytes;     // of float32: the largest allowed, in whole blocks; 0: automatic
    bool one_host;      // no network between workers and servers
    bool crowded;       // and fewer processors than processes
    float travels;      // the share of those bytes that travels; 0: all
    uint32_t fragments; // that chunks lie within; 0: one
} ps_chunk_size;

typedef struct ps_plan {
    ps_fragments fragments;
    uint32_t n_chunks;
    ps_chunk *chunks;
    uint32_t n_shards;
    uint64_t *shard_counts;   // elements per shard
    uint64_t max_chunk_count; // elements of the largest chunk
    ps_chunk_size size;       // what it was made for
    uint64_t hash; // over the tensors (name, shape, offset), the chunks and their shards
} ps_plan;

/* True when so little travels (onebit's and topk's few bits) that the processor limits an
 * exchange, not the network. */
bool ps_chunk_size_is_coarse(ps_chunk_size size);

/* size.bytes 0 means ps_plan_auto_chunk_bytes, or somewhat less where that spreads the
 * bytes more evenly over the shards. CONFIG when there are more shards than possible
 * chunks, or too many fragments; NOMEM. plan is safe for fini after a failure. */
ps_err ps_plan_init(ps_plan *plan, const ps_tensor_table *table, ps_chunk_size size,
                    uint32_t n_shards);
/* Shards of each of n_servers servers: config->shards, or where that is 0 as many as pay:
 * on one host one for each 8 MiB of a server's parameters, and no more than each can have
 * a core of the machine; else 1. The same for all processes of a job. */
uint32_t ps_plan_shards_per_server(const ps_config_server *config,
                                   const ps_tensor_table *table, ps_chunk_size size,
                                   uint32_t n_servers);

/* How many are worth it on a host with that many cores, where the servers are and the
 * workers compute on GPUs: one for each MiB, as far as there are cores beside the two
 * threads of each worker, but no fewer than without GPUs. The other processes cannot know
 * it: psrun tells them, by server.shards. More shards change no bit: a sum, and a step,
 * is one element's, in the order of ranks. */
uint32_t ps_plan_shards_beside_gpus(const ps_tensor_table *table, uint32_t n_servers,
                                    uint32_t n_workers, int cores);

/* The same for n_servers servers with that many shards each, which hold parts of the
 * parameters in the ratio of config->share. CONFIG when share has another length. */
ps_err ps_plan_init_servers(ps_plan *plan, const ps_tensor_table *table,
                            ps_chunk_size size, uint32_t n_servers,
                            const ps_config_server *config);
void ps_plan_fini(ps_plan *plan);

/* The size of chunks for a step of `bytes`: small enough to fill and drain the pipeline
 * quickly, and large enough not to need too many messages. It is a multiple of a block.
 * Over a network it grows with sqrt(bytes), from 48 KiB (96 KiB where coarse) to 1 MiB of
 * what travels. On one host it is 512 KiB, or 1 MiB where that is crowded. A shard gets
 * at least four chunks, or one where coarse; on one host no chunk is below 256 KiB for
 * that, and a crowded one may have one chunk for a shard. Pure. */
uint64_t ps_plan_auto_chunk_bytes(uint64_t bytes, uint32_t n_shards, ps_chunk_size size);

#endif
