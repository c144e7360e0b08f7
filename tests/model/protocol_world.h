/* A whole job in one struct: the real shards and the real communication of the workers,
 * with queues of messages where the program has sockets.
 *
 *     2 workers x 2 shards, one chunk each
 *
 *     worker: what its main thread would do (exchange_ps.c) -> ps_comm_* ->
 * up[worker][shard] shard:  ps_shard_take_message, ps_policy_* -> down[worker][shard]
 *
 * Everything that changes lies in the struct, at fixed addresses: memory that the
 * programs allocate comes out of `memory`. So a state of the job is a copy of the struct,
 * and copying it back brings the job back.
 *
 * What libzmq promises is modelled, and no more. Messages of a connection arrive in
 * order. A lost connection loses a tail of them, either way; what is left comes before
 * the messages of the connection that follows. A payload that is sent without a copy is
 * read when it arrives.
 */
#ifndef PROTOCOL_WORLD_H
#define PROTOCOL_WORLD_H

#include "model_fault.h"
#include "ps_comm_state.h"
#include "shard_state.h"

enum {
    WORKERS = 2,
    SHARDS = 2,
    MEMBERS = WORKERS + SHARDS, // workers first
    ELEMENTS = 2,               // of a chunk
    ARENA = 32,                 // floats of an arena: two tensors, aligned
    QUEUE = 10,                 // messages of a connection
    PAYLOAD = 40,
    MEMORY = 5632, // bytes of a shard, or of a worker's communication
    NONCE = 1000,  // of incarnation 0
    STEPS_MOST = 4
};

typedef struct message {
    ps_wire_header header;
    const void *borrowed; // read when it arrives; NULL: bytes has it
    uint32_t n_bytes;
    uint8_t bytes[PAYLOAD];
} message;

typedef struct queue {
    uint32_t n;
    message messages[QUEUE];
} queue;

/* What a worker's main thread is about. */
typedef enum phase {
    PHASE_JOINING,
    PHASE_READY,    // waits for the shards' READY
    PHASE_RESTORE,  // rank 0: array by array
    PHASE_FIRST,    // the first weights
    PHASE_STEP,     // the weights of `step`
    PHASE_SNAPSHOT, // rank 0: array by array
    PHASE_EXACT,    // with a codec: the exact weights
    PHASE_LEAVE,    // has said BYE
    PHASE_DONE
} phase;

typedef struct worker {
    phase phase;
    bool acted;                   // in this phase: has asked for what it waits for now
    bool exact_due, snapshot_due; // before this step
    uint32_t array;               // of a snapshot
    uint64_t step;
    uint32_t n_orders; // given to the communication, and not taken yet
    ps_command orders[SHARDS];
    float params[ARENA], grads[ARENA];
    float arenas[PS_OPTIMIZER_MAX_STATES + 1][ARENA]; // of the snapshot, by array
} worker;

/* What a job begins with, or goes on from. */
typedef struct snapshot {
    uint64_t version;
    float params[ARENA];
    float arrays[PS_OPTIMIZER_MAX_STATES + 1][ARENA]; // the last: the servers' weights
    float feedback[WORKERS][ARENA];
    uint32_t rule_bytes;
    uint8_t rule[PS_STEP_RULE_STATE_BYTES];
} snapshot;

typedef struct world {
    uint32_t incarnation;    // 0: nobody has joined yet
    uint32_t deaths, losses; // that may still come
    bool joining[MEMBERS];
    bool broken; // somebody has died: members that notice it go back to joining
    snapshot newest, on_disk;
    worker workers[WORKERS];
    queue up[WORKERS][SHARDS], down[WORKERS][SHARDS];
    bool connected[WORKERS][SHARDS]; // news that the communication has not read
    /* With clipping: steps whose sums of squares the shard has sent, and whose norm it
     * has been told; the last sums, by the step's parity. */
    uint64_t summed[SHARDS], told[SHARDS];
    double sums[SHARDS][2];
    uint32_t staged; // ranks whose feedback is in `next`
    snapshot next;
    _Alignas(64) uint8_t memory[MEMBERS][MEMORY];
    uint32_t used[MEMBERS];
    uint64_t hashes[MEMBERS]; // of the memory, since world_canonicalize
} world;

/* One rule of the protocol that the check itself breaks: it has to notice. */
typedef enum mistake {
    MISTAKE_NONE,
    MISTAKE_REPEATED_PUSH_COUNTS,
    MISTAKE_APPLIED_PUSH_COUNTS,
    MISTAKE_OLD_NONCE_COUNTS,
    MISTAKE_SECRETS_STAY,
    MISTAKE_NOTHING_IS_REPEATED,
    MISTAKE_CREDIT_SURVIVES,
    MISTAKE_NO_STATE_IS_RESTORED,
    MISTAKE_FEEDBACK_IS_FORGOTTEN
} mistake;

typedef struct scenario {
    const char *name;
    const char *const *settings; // key=value, ended by NULL
    uint32_t losses, deaths;
    uint64_t steps, snapshot_at; // snapshot_at 0: none
    uint64_t exact_at;           // 0: never
    bool any_order; // shard 0 alone gets any message at any time, early pushes too
    mistake mistake;
} scenario;

extern world W;
/* The member whose code runs and allocates; MEMBERS: none. */
extern uint32_t world_owner;
/* The incarnation of the message that a shard is given. */
extern uint32_t world_giving;
/* Stand for sockets; their addresses say whose they are. */
extern char world_dealers[WORKERS][SHARDS], world_routers[SHARDS],
    world_monitors[WORKERS][SHARDS];

/* Sets the constants of a scenario (table, plan, rule) and W to its beginning. */
void world_open(const scenario *s);
const scenario *world_scenario(void);

ps_shard *world_shard(uint32_t shard);
ps_comm *world_comm(uint32_t rank);
/* In this incarnation, and not gone back to joining. */
bool world_runs(uint32_t member);

void world_must(ps_err err, const char *who, uint32_t i); // else it is wrong

/* The memory of the owner. */
ps_err world_take_memory(void *out, size_t bytes);
void world_clear_memory(uint32_t member);
/* A payload as it is now: of messages whose sender ends. */
void world_copy_payload(message *m);
void world_copy_payloads(queue *q);
void world_cut_tail(queue *q, uint32_t keep);
/* A worker's in an incarnation: all are drawn anew. */
void world_secret(uint32_t incarnation, uint32_t rank, ps_secret *out);

/* After an action that touched these members (a bit set): counters and times, which do
 * not belong to the state, back to 0; and the invariants. */
void world_canonicalize(uint32_t members);
void world_canonicalize_shard(ps_shard *s);
uint64_t world_hash(void);
bool world_is_final(void);

/* ---- what can happen ---- */

/* Everybody has joined: a new incarnation begins with the newest snapshot. */
void world_begin(void);
void world_die(uint32_t member, bool zombie);
void world_notice(uint32_t member); // goes back to joining
void world_deliver_up(uint32_t rank, uint32_t shard);
void world_deliver_down(uint32_t rank, uint32_t shard);
void world_lose(uint32_t rank, uint32_t shard, uint32_t keep_up, uint32_t keep_down);
void world_take_orders(uint32_t rank);
bool world_norm_is_here(uint32_t shard);
void world_take_norm(uint32_t shard);
void world_write_to_disk(void);
/* any_order: whether the protocol allows the message now; sends it. */
bool world_any_can(uint32_t rank, uint8_t kind, uint64_t step);
void world_any(uint32_t rank, uint8_t kind, uint64_t step);
void world_copy(world *to, const world *from); // what is in use of it

/* Messages that were on their way when an incarnation ended (protocol_old.c). They may
 * come later, any number of times, and must change nothing: so they are no part of the
 * state. Every state of a shard is kept as well; at the end each is given each message.
 */
void world_keep_old(uint32_t rank, uint32_t shard, const message *m);
void world_keep_shard(uint32_t shard);
void world_check_old(void);
void world_forget_old(void);
void world_give_to_shard(uint32_t shard, const message *m, uint32_t rank,
                         uint32_t incarnation);

/* The main thread of a worker (protocol_main_thread.c). */
bool world_main_can(uint32_t rank);
void world_main_act(uint32_t rank);
/* Orders for the worker's communication, for chunks [0, n). */
void world_order(uint32_t rank, uint8_t kind, uint64_t step, uint32_t n);
bool world_has(uint32_t rank, uint32_t n, int64_t version);

/* The constants of a scenario (protocol_setup.c). */
typedef struct constants {
    ps_config config;
    ps_tensor_table table;
    ps_plan plan;
    ps_chunk chunks[SHARDS];
    ps_step_rule rule;
    bool waits, coded;
} constants;
extern constants K;
void world_set_up(const scenario *s);

/* What has to come out at a version: of the rule in plain arithmetic, or, with codecs and
 * clipping, what came out first, when nothing was disturbed. */
typedef struct expected {
    bool knows_params, knows_weights[SHARDS], knows_feedback[WORKERS];
    float params[ARENA], feedback[WORKERS][ARENA];
    float weights[ARENA], states[PS_OPTIMIZER_MAX_STATES][ARENA];
} expected;
extern expected E[STEPS_MOST + 1];
void world_expect(float *known, bool *knows, const float *found, uint32_t first,
                  uint32_t n, const char *what, uint64_t version);
/* Names its rank, step, place and the bits of the weights that it is of. */
void world_gradient(uint32_t rank, uint64_t step, const float *params, float *grads);

#endif
