/* What a shard holds: its chunks, its workers, and the scratch memory of a step. Only for
 * shard.c and its parts:
 *
 *     shard           the thread: what it is told, what it tells its workers; its life
 *     shard_state     the memory
 *     shard_bsp       the pace of a job whose workers make each step together
 *     shard_orders    the pace of a job whose workers go on at their own
 *     shard_rings     gradients and weights of workers on its host, in shared memory
 *     shard_snapshot  what a checkpoint takes, and gives back
 *     shard_rows      embedding tables
 *     shard_twin_feed, shard_twin_keep  their copies in other servers
 */
#ifndef PS_SHARD_STATE_H
#define PS_SHARD_STATE_H

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
#include "shard_pace.h"
#include "thread.h"
#include "wire_rings.h"

struct ps_shard_chunk {
    uint32_t index; // in the plan
    const ps_chunk *chunk;
    ps_policy_chunk policy;
    ps_aggregate memory;
    ps_coded_chunk coded;
    zmq_msg_t *pushes; // by rank; empty where the gradient is in shared memory
    zmq_msg_t *early;  // by rank: pushes of the step after the present one
    bool restored;     // RESTORE brought the weights; INIT brings what workers were told
    /* Whose the present step is, and the next one (by step % 2), as the first push of
     * the chunk says (wire.h). */
    struct {
        bool known;
        uint32_t step_of, rank;
    } owners[2];
    bool idle; // the last step, or the one that is being made, leaves it as it is
};

typedef struct ps_shard_peer {
    uint8_t id[PS_WIRE_ID_BYTES]; // its routing id
    bool joined, left;
    bool returns;  // it has left, and comes back with another table
    bool dead;     // until a process has taken its place, by HELLO
    uint64_t back; // of the last order which says that it is dead (ps_sync_order)
    bool hello;    // that came before such an order
    ps_wire_header hello_header; // if so
    bool shm;                    // agreed on in HELLO
    float *params;
    float *grads;  // read, except where a FETCH has its array written there
    void *rows;    // the arena for rows; NULL: none
    uint64_t owed; // bytes received and not yet returned as credit
    // Agreed on in HELLO: its pushes come through a ring. Else to_shard.memory is NULL.
    ps_wire_rings rings;
    uint32_t n_pending; // pushes from its ring that wait for those of other workers
    bool bell_due;      // has weights in its ring that it waits for: ring its bell
} ps_shard_peer;

/* The sums of a step wait here until the norm of the whole gradient is known (clipping)
 * or whether it is finite (loss scaling). */
typedef struct ps_shard_norm {
    bool clip, waits;
    // LAMB: the updates of the step are kept until the sums of all blocks are here.
    bool trusts, asked_sums;
    double grad_scale; // of that step
    double *all_sums;  // (ps_lamb_sums)
    uint32_t n_summed;
    uint64_t summed_ns; // the last of them, for the trace; 0: there is none
    // By chunk, in the order of the arena. With LAMB once more, for the updates' sums.
    uint64_t *run_first, *run_counts;
    uint64_t n_blocks; // of all chunks
    double *block_sums;
} ps_shard_norm;

typedef struct ps_shard_rows ps_shard_rows; // shard_rows.c

struct ps_shard {
    ps_shard_options o;
    void *router;
    char endpoint[PS_ENDPOINT_MAX];
    ps_event stop;         // of the thread
    ps_wire_frames frames; // the thread's
    bool holds;            // the frames have the first message of the next table
    ps_event wake;         // workers with rings set it while the shard sleeps
    atomic_int state;
    ps_counter bytes_received, bytes_sent, pushes, repeated, strangers, steps;
    ps_counter sum_ns, apply_ns;
    ps_counter rows_now, rows_bytes, rows_stepped, rows_dropped; // of embedding tables
    ps_row_figures tables;                                       // of each of them
    struct ps_shard_reader *readers; // (server.readers); NULL: none has come
    // From start on; ps_shard_clear zeroes it, from index to the end.
    uint32_t index;
    uint64_t first_step; // of the job; above 0 when it resumes
    uint32_t ahead;      // fragments that have made it already
    bool mean;           // a worker's gradient counts 1 / n_workers
    bool router_idle;    // ps_zsock_item
    ps_frame_rules rules;
    ps_step_rule rule;
    ps_param_groups groups; // without any: n 0
    /* The workers that push and are answered, in rank order: all, or with exchange.levels
     * 2 the leaders of the hosts. */
    uint32_t *senders; // (n_senders) ranks
    uint32_t n_senders;
    bool *sends;      // by rank
    uint32_t speaker; // whose message is handled: an error names it
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
    uint32_t n_left, n_return; // of these, those that come back
    ps_shard_chunk **unsent;   // applied; workers in shared memory are not told yet
    uint32_t n_unsent;
    uint64_t unsent_count; // elements
    const float **grads;   // scratch: by rank
    const ps_shard_pace_ops *pace;
    struct ps_shard_orders *orders; // of the pace of that name
    ps_shard_rows *rows;            // NULL: the job has no embedding tables
    float **copies;
    ps_shard_norm norm;
    struct {
        ps_pace pace;
        double *figures;    // as pace.h's parts of shards; the means are sums until told
        uint64_t step;      // which is applied now
        uint32_t n_applied; // chunks of it
    } paced;
    ps_coord_link *link;
    // Life
    ps_member *member;
    const ps_shm_door *door;
    ps_thread thread;
    uint32_t n_rings;        // workers with rings
    uint64_t spin_ns;        // with rings: how long it looks before it sleeps
    uint32_t n_first;        // chunks that have first weights
    const ps_event *changed; // set when `state` changes; may be NULL
};

/* Allocates everything that a step needs, by o, index, codec, pace and the flags of norm.
 * NOMEM; s is safe for fini in every case. */
ps_err ps_shard_memory_init(ps_shard *s);
void ps_shard_memory_fini(ps_shard *s);

/* Whether a worker that has left is waited for: ARG. */
static inline ps_err ps_shard_check_left(const ps_shard *s, const ps_shard_chunk *c)
{
    return s->n_left > 0 && s->pace->check_left ? s->pace->check_left(s, c) : PS_OK;
}

/* ARG: one worker has left to come back with another table, and another one has not. */
ps_err ps_shard_adds_alone(int64_t adds, int64_t other);

/* ---- shard.c: what it is told, and what it tells its workers. A worker that is gone is
 * no failure here: the coordinator notices and decides. ---- */

/* Handles one message and everything that follows from it. Takes the payload of a push
 * out of f. A message from outside the job is counted and dropped, without an error.
 * PROTOCOL names the worker. */
ps_err ps_shard_take_message(ps_shard *s, ps_wire_frames *f);

/* Takes what the coordinator has written: a norm, or orders. */
ps_err ps_shard_hear(ps_shard *s);

/* Sends a READY, CREDIT, STALE or LEFT. Like every message, it returns the credit that is
 * owed. number: of the HELLO in a READY, the member epoch in a STALE, else 0. */
ps_err ps_shard_reply_short(ps_shard *s, ps_msg_kind kind, uint32_t rank,
                            uint64_t number);

/* Sends a chunk's new weights to all workers. Workers in shared memory are told with the
 * next flush. */
ps_err ps_shard_reply_weights(ps_shard *s, ps_shard_chunk *c);
ps_err ps_shard_reply_flush(ps_shard *s);

/* Sends a chunk's present weights to one worker that asks, or asks again. kind: WEIGHTS
 * or EXACT_WEIGHTS. */
ps_err ps_shard_reply_out_of_turn(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                  ps_msg_kind kind);

/* Sends a chunk's present weights, or what a codec makes of them, as they are: to a
 * worker in shared memory only the message. BORROW: in turn (shard.c says why it is
 * safe). */
ps_err ps_shard_reply_send(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                           ps_msg_kind kind, ps_wire_pass pass);

/* Sends a STATE: an array of the chunk, or the shard's step rule. */
ps_err ps_shard_reply_state(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                            uint64_t array, const void *payload, size_t bytes,
                            ps_wire_pass pass);
/* Sends a RESTORED: the shard has taken over the array. */
ps_err ps_shard_reply_restored(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                               uint64_t array);

/* Sends a piece of a ROWS (wire.h): the answer to a message of rows. Copied. */
ps_err ps_shard_reply_rows(ps_shard *s, uint32_t rank, uint64_t step, uint64_t number,
                           uint64_t all_bytes, uint64_t at, const void *piece,
                           size_t bytes);

/* ---- shard_orders.c ---- */

extern const ps_shard_pace_ops ps_shard_orders;

/* ---- shard_bsp.c ---- */

extern const ps_shard_pace_ops ps_shard_bsp;

/* The norm of a step's gradient, which only the coordinator can know: shards send it the
 * sums of squares of their blocks, and keep the sums meanwhile. */

/* Notes what the sum of a chunk, in its memory, adds to the norm. */
void ps_shard_norm_note(ps_shard *s, const ps_shard_chunk *c);
/* Asks the coordinator for the norm of a step, all of whose chunks were noted. */
ps_err ps_shard_norm_ask(ps_shard *s, uint64_t step);

/* ---- shard_snapshot.c ---- */

/* PROTOCOL when the chunk has no such array or version. */
ps_err ps_shard_snapshot_fetch(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h);
/* A repetition after the first weights is answered, and changes nothing. PROTOCOL as
 * above. */
ps_err ps_shard_snapshot_restore(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h,
                                 ps_wire_frames *f);

/* ---- shard_rings.c: the rings of the workers on its host (wire_rings.h) ---- */

/* Whether gradients may be taken from rings. Before all first weights are here they stay
 * there: worker 0 sends the weights through its socket and then a gradient through its
 * ring. */
bool ps_shard_rings_in_use(const ps_shard *s);

/* Takes one message from a worker's ring if there is one: *got. PROTOCOL names it. */
ps_err ps_shard_rings_next(ps_shard *s, uint32_t rank, ps_wire_frames *f, bool *got);

/* Before the shard sleeps: returns when a worker that it may have to wait for has sent
 * something, or after a moment, where the host has cores to spare. */
void ps_shard_rings_look(const ps_shard *s);
/* Then: asks workers to wake it, false when one of them has sent something already. */
bool ps_shard_rings_sleep(ps_shard *s);
/* Afterwards; woken: `wake` is set. */
void ps_shard_rings_awake(ps_shard *s, bool woken);

/* Puts a chunk's new weights into a worker's ring. PROTOCOL when it has no room. */
ps_err ps_shard_rings_put(ps_shard *s, uint32_t rank, const ps_wire_header *h);
/* Then wakes the workers that wait for one of them. */
void ps_shard_rings_wake(ps_shard *s);

#endif
