/* What a shard holds: its chunks, its workers, and the scratch memory of a step. Only for
 * shard.c and its parts: shard_reply, shard_apply, shard_orders, shard_messages. */
#ifndef PS_SHARD_STATE_H
#define PS_SHARD_STATE_H

#include <pthread.h>

#include "aggregate.h"
#include "coded_chunk.h"
#include "coord_link.h"
#include "counter.h"
#include "credit.h"
#include "frame_check.h"
#include "pace.h"
#include "param_groups.h"
#include "policy.h"
#include "shard.h"
#include "sync_policy.h"
#include "wire_rings.h"

typedef struct ps_shard_chunk {
    uint32_t index; // in the plan
    const ps_chunk *chunk;
    ps_policy_chunk policy;
    ps_aggregate memory;
    ps_coded_chunk coded;
    zmq_msg_t *pushes; // by rank; empty where the gradient is in shared memory
    zmq_msg_t *early;  // by rank: pushes of the step after the present one
    bool restored;     // RESTORE brought the weights; INIT brings what workers were told
} ps_shard_chunk;

typedef struct ps_shard_peer {
    uint8_t id[PS_WIRE_ID_BYTES]; // its routing id
    bool joined, left;
    bool dead;  // until a process has taken its place, by HELLO
    bool hello; // that came before the order which says that the worker is dead
    ps_wire_header hello_header; // if so
    bool shm;                    // agreed on in HELLO
    float *params;
    float *grads;  // read, except where a FETCH has its array written there
    uint64_t owed; // bytes received and not yet returned as credit
    // Agreed on in HELLO: its pushes come through a ring. Else to_shard.memory is NULL.
    ps_wire_rings rings;
    uint32_t n_pending; // pushes from its ring that wait for those of other workers
    bool told;          // has weights in its ring that it waits for: ring its bell
} ps_shard_peer;

/* Where a worker is with a fragment, where workers go on at their own pace. */
typedef struct ps_shard_turn {
    uint64_t clock;  // number of its next push: its own version of the weights
    uint32_t n_in;   // chunks of that push that are here
    uint64_t number; // of the last push that is here whole
    bool applied;    // and was applied, by an order that did not answer it
    uint32_t rest;   // what the last answer said of it and about rests (wire.h)
} ps_shard_turn;

struct ps_shard {
    ps_shard_options o;
    uint32_t index;
    uint64_t first_step; // of the job; above 0 when it resumes
    uint32_t ahead;      // fragments that have made it already
    bool mean;           // a worker's gradient counts 1 / n_workers
    void *router;
    char endpoint[PS_ENDPOINT_MAX];
    ps_frame_rules rules;
    ps_step_rule rule;
    ps_param_groups groups; // without any: n 0
    /* The workers that push and are answered, in rank order: all, or with exchange.levels
     * 2 the leaders of the hosts. */
    uint32_t *senders; // (n_senders) ranks
    uint32_t n_senders;
    bool *sends; // by rank
    ps_credit credit;
    ps_chunk_codec codec;
    const void **payloads; // scratch: by rank
    float *sum, *decoded;  // scratch of the largest chunk; NULL without a codec
    float *slab;
    bool bypass_caches; // new weights do, on their way to shared arenas
    uint32_t n_chunks;
    ps_shard_chunk *chunks;
    uint32_t *chunk_of; // plan index -> index in chunks
    ps_shard_peer *peers;
    uint32_t n_left;
    ps_shard_chunk **unsent; // applied; workers in shared memory are not told yet
    uint32_t n_unsent;
    uint64_t unsent_count;                    // elements
    const float **grads;                      // scratch: by rank
    bool own_pace;                            // the coordinator decides: shard_orders.h
    ps_shard_turn *turns;                     // (fragments, workers); NULL in bsp
    uint32_t n_in_fragment[PS_MAX_FRAGMENTS]; // chunks here
    uint32_t n_holders[PS_MAX_FRAGMENTS];     // shards that have chunks of it
    ps_sync_entry *entries;                   // scratch: by rank
    float *factors;                           // likewise
    uint32_t *ranks;                          // likewise
    float *compensations;                     // likewise
    const float **bases;                      // likewise
    uint64_t *numbers;                        // likewise
    ps_sync_order order; // with clipping: it is summed, and waits for the norm
    bool order_waits;
    float **copies;
    // waits (clipping, loss scaling): the sums of a step are kept until the global norm
    // is known, or, without clipping, whether the whole gradient is finite.
    bool clip, waits;
    // LAMB: the updates of the step are kept until the sums of all blocks are here.
    bool trusts, asked_sums;
    double grad_scale; // of that step
    double *all_sums;  // (ps_lamb_sums)
    uint32_t n_summed;
    struct {
        ps_pace pace;
        double *figures;    // as pace.h's parts of shards; the means are sums until told
        uint64_t step;      // which is applied now
        uint32_t n_applied; // chunks of it
    } paced;
    uint64_t summed_ns; // the last of them, for the trace; 0: there is none
    ps_coord_link *link;
    // By chunk, in the order of the arena. With LAMB once more, for the updates' sums.
    uint64_t *run_first, *run_counts;
    uint64_t n_blocks; // of all chunks
    double *block_sums;
    // Life
    ps_member *member;
    const ps_shm_door *door;
    pthread_t thread;
    bool started;
    ps_event stop;
    ps_event wake;           // workers with rings set it while the shard sleeps
    uint32_t n_rings;        // workers with rings
    uint64_t spin_ns;        // with rings: how long it looks before it sleeps
    uint32_t n_first;        // chunks that have first weights
    const ps_event *changed; // set when `state` changes; may be NULL
    atomic_int state;
    ps_counter bytes_received, bytes_sent, pushes, repeated, strangers, steps;
    ps_counter sum_ns, apply_ns;
};

/* Allocates everything that a step needs, by o, index, codec and waits. NOMEM; s is safe
 * for fini in every case. */
ps_err ps_shard_memory_init(ps_shard *s);
void ps_shard_memory_fini(ps_shard *s);

static inline ps_shard_turn *ps_shard_turn_of(const ps_shard *s, uint32_t fragment,
                                              uint32_t rank)
{
    return &s->turns[fragment * (uint32_t)s->o.n_workers + rank];
}

/* Called by the shard's thread. Also sets `changed`. */
void ps_shard_set_state(ps_shard *s, ps_shard_state state);

#endif
