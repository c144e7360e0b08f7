/* What the ps exchange's communication holds: the main thread's commands, the thread's
 * links and their waiting chunks, and the results. Only for ps_comm.c and its parts:
 *
 *     ps_comm           the main thread, and the memory and connections before and after
 *     ps_comm_thread    the communication thread: commands, sending, mending, receiving
 *     ps_comm_snapshot  the state that lies in the shards
 *     ps_comm_rings     the main thread: gradients and weights in shared memory
 *     ps_comm_rows      rows of embedding tables, in messages beside the chunks'
 *
 * When every shard is on this host, gradients and the weights that answer them travel
 * through rings (wire_rings.h), which the main thread writes and reads itself. First
 * weights, checkpoints, goodbyes and the connections remain with the thread. Two threads
 * may take the main thread's part: one at a time pushes, one at a time waits.
 */
#ifndef PS_COMM_STATE_H
#define PS_COMM_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "chunk_codec.h"
#include "counter.h"
#include "credit.h"
#include "event.h"
#include "pace.h"
#include "ps_comm.h"
#include "thread.h"
#include "wire_rings.h"

/* ---- commands, from the main thread to the one that sleeps in poll: a lock-free ring
 * with one writer and one reader ---- */

typedef struct ps_command {
    uint8_t kind; // ps_msg_kind, or PS_COMM_QUIT
    uint32_t chunk;
    uint64_t step;
    uint32_t step_of;
} ps_command;

typedef struct ps_command_queue {
    ps_command *ring; // owned
    uint32_t mask;
    _Atomic uint32_t head, tail; // the reader's, the writer's
    atomic_bool asleep;          // the reader is in poll: a command has to wake it
    ps_event wake;               // for the reader's poll
} ps_command_queue;

/* Room for n commands at least. NOMEM, IO; q is safe for fini in every case. */
ps_err ps_command_queue_init(ps_command_queue *q, uint32_t n);
void ps_command_queue_fini(ps_command_queue *q);

/* The writer: any number of commands, then one call of wake. INTERNAL when it is full. */
ps_err ps_command_queue_put(ps_command_queue *q, ps_command command);
void ps_command_queue_wake(ps_command_queue *q);

/* The reader. count: how many commands there are. peek: command i, of which 0 is the
 * oldest; valid until it is dropped. */
uint32_t ps_command_queue_count(const ps_command_queue *q);
static inline const ps_command *ps_command_queue_peek(const ps_command_queue *q,
                                                      uint32_t i)
{
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    return &q->ring[(head + i) & q->mask];
}
void ps_command_queue_drop(ps_command_queue *q, uint32_t n);

/* Before the reader polls: whether it may sleep, because there is no command. No command
 * is missed: `asleep` is set before this last look at the queue, and read after a command
 * is in it. */
bool ps_command_queue_sleep(ps_command_queue *q);
/* After it has polled; woken: `wake` was readable. */
void ps_command_queue_awake(ps_command_queue *q, bool woken);

/* A command that is not a kind of message: the thread ends without saying BYE. */
enum { PS_COMM_QUIT = 0 };

/* What the main thread waits for; any other value is a chunk's index + 1. */
enum {
    PS_COMM_WAIT_NONE = 0,
    PS_COMM_WAIT_ROWS = UINT32_MAX - 2,
    PS_COMM_WAIT_ANY = UINT32_MAX
};

/* Calls of ps_comm_rows_send that may be on the way, and so messages of a link. */
enum { PS_COMM_ROWS_MESSAGES = 8 };

/* The communication thread's while it waits, else the main thread's. */
typedef struct ps_comm_rows_message {
    int kind;
    uint32_t call; // its place in rows_calls
    uint64_t step, number;
    ps_exchange_body body;
    ps_exchange_body *answer; // NULL: it holds nothing
    uint64_t sent, got;       // bytes
    atomic_bool waits;        // for its answer
} ps_comm_rows_message;

/* The connection of a link. When it is made, HELLO is sent over it with the next number;
 * it is open when the READY of that number is here. Everything that was sent and not
 * answered then waits again. Other messages travel only while it is
 * open. */
typedef struct ps_comm_link {
    void *socket, *monitor;
    int server;
    const char *host, *endpoint; // borrowed from the roster
    bool shm;
    bool known, open;         // has answered any HELLO; the last HELLO
    bool said_bye, left;      // the BYE is sent, answered
    uint64_t n_hellos;        // the last one's number
    uint64_t n_groups;        // sets of parameter groups sent over this connection, or,
                              // with rings, ever: then it is the main thread's
    _Atomic uint64_t lost_ns; // no connection since then; 0: connected
    ps_credit credit;
    uint64_t on_the_way; // payload bytes without credit, of the present connection
    uint64_t *waiting;   // bit set over the plan's chunks: to be sent
    uint32_t n_waiting;
    struct {
        uint64_t given; // the last one's number; the main thread's
        uint64_t taken; // by the communication thread
        ps_comm_rows_message messages[PS_COMM_ROWS_MESSAGES];
    } rows;
    ps_wire_rings rings; // these three: the main thread's
    ps_event wake;       // of the shard
    uint64_t held_bytes; // of gradients in the ring since the shard was last woken
} ps_comm_link;

/* The last command of a chunk: to be sent while its bit in `waiting` is set. */
typedef struct ps_comm_chunk {
    ps_command command;
    bool unanswered;
    bool first;            // an INIT was sent, and no weights have come: it may be lost
    bool init_due;         // it is to be sent again, before the command
    uint64_t encoded_step; // step of the gradient in `encoded`, plus 1
    atomic_bool in_ring;   // pushed through a ring, and no weights are taken yet
} ps_comm_chunk;

struct ps_comm {
    ps_exchange_options o;
    const ps_plan *plan;
    uint64_t nonce;
    uint32_t epoch;
    ps_thread thread;
    ps_command_queue commands;
    ps_shared_mem ring_memory;    // without base: no rings
    ps_shared_mem row_memory;     // the arena for rows; without base: none
    uint64_t n_rows_calls;        // of ps_comm_rows_send
    _Atomic uint32_t n_pushed;    // through rings, ever
    uint32_t n_taken;             // weights from rings, ever; of the thread that waits
    bool rings;                   // all links have them; constant while the thread runs
    uint64_t spin_ns;             // with rings: how long a wait looks before it sleeps
    _Atomic uint32_t steps_of[2]; // by step % 2: whose step is pushed
    ps_wire_frames ring_frames;   // the main thread's

    // The thread's, while it runs
    void *zmq_context;
    uint32_t n_links;
    ps_comm_link *links;  // by shard
    ps_zsock_item *items; // the links' sockets, commands, the end, and their monitors
    struct pollfd *fds;   // for poll
    uint32_t n_words;
    bool bypass_caches; // weights do, on their way to the arena
    ps_chunk_codec codec;
    uint8_t **encoded; // by chunk: its gradient, encoded, until the reply is here; NULL
                       // where it travels as float32
    float *residual;   // an arena: what the codec has not sent yet, or NULL
    /* Where gradients may be dropped: the residual without the last one. A dropped one
     * leaves nothing behind, neither what was sent of it nor what was kept; and what
     * others before it have left waits again. NULL elsewhere. */
    float *residual_before;
    /* What FETCH and RESTORE are about; the main thread's until the command is put. */
    struct {
        uint64_t array;
        float *arena;        // filled, or sent from
        bool over_gradients; // shards of this host fill the gradient arena first
        uint8_t rule[PS_STEP_RULE_STATE_BYTES]; // instead, of PS_WIRE_STATE_RULE
        size_t rule_bytes;
    } snapshot;
    ps_comm_chunk *chunks; // by chunk
    bool bye, quit;
    bool returns; // with another table; of the main thread until BYE is queued
    ps_deadline bye_deadline;
    uint32_t n_left;        // links that have answered the BYE
    uint64_t scale_version; // the newest of any chunk
    struct {
        ps_pace pace;
        double *figures;          // as pace.h's part 0; the means are sums until told
        uint32_t *n_sent;         // (shards) gradients in the sums
        uint64_t sent_step, step; // whose gradients were sent, whose weights come
        uint32_t n_had;           // chunks of it
    } paced;

    // Results
    _Atomic uint64_t computed_step, computed_ns;
    _Atomic uint32_t scale_bits; // of scale_version
    _Atomic uint32_t rest;       // what the newest weights came with (wire.h)
    _Atomic int64_t *versions;
    uint64_t rows_pushed; // steps; the main thread's, as number and ahead_of
    struct {
        uint64_t number;
        uint64_t ahead_of;           // of a pull: its step
        _Atomic uint32_t unanswered; // messages
    } rows_calls[PS_COMM_ROWS_MESSAGES];
    int64_t *asked; // scratch of the main thread: versions at which it asks
    _Atomic uint32_t n_ready;
    ps_bell *bell; // the main thread's: own_bell, or the rings'; `wanted`: see above
    ps_bell own_bell;
    _Atomic uint64_t progress_ns;
    ps_err_saved failure;
    atomic_bool failing, failed; // set before and after failure is written
    ps_comm_told *told;          // NULL: nobody is
    void *told_ctx;
    ps_counter bytes_sent, bytes_received, raw_bytes, most_on_the_way;
    ps_counter shm_sent, shm_received;
    ps_counter encode_ns, send_ns;
};

/* Of the chunk's first weights. */
static inline uint64_t ps_comm_first_version(const ps_comm *c, uint32_t chunk)
{
    return ps_chunk_first_version(&c->plan->chunks[chunk], c->o.first_step, c->o.ahead);
}

/* ---- ps_comm.c ---- */

/* Allocates everything except the links' own memory, by o, plan and n_links. NOMEM, IO; c
 * is safe for fini in every case. */
ps_err ps_comm_memory_init(ps_comm *c);
/* The thread's failure, if it has failed. */
ps_err ps_comm_check(const ps_comm *c);
/* The end of a message about a wait for the shard: since when there has been no
 * connection, or "" when there is one. From any thread; returns text. */
const char *ps_comm_lost_text(const ps_comm_link *l, char *text, size_t cap);
/* A message to a shard: of this job and worker, all else zero. */
ps_wire_header ps_comm_header(const ps_comm *c, int kind);

/* ---- ps_comm_thread.c ---- */

void *ps_comm_main(void *c);

void ps_comm_set_version(ps_comm *c, uint32_t chunk, int64_t version);
/* The thread's steps (pace.h): the main thread has given a gradient; it was sent. */
void ps_comm_pace_given(ps_comm *c, uint32_t shard);
void ps_comm_pace_sent(ps_comm *c, uint32_t shard, uint64_t step);
/* Rings are read and written by the thread that computes, if one computes at all:
 * programs may push and wait in two threads, which then share nothing of this. */
static inline bool ps_comm_is_paced(const ps_comm *c)
{
    return atomic_load_explicit(&c->computed_step, memory_order_relaxed) > 0;
}

/* Before the gradients of a step: sends its numbers of the parameter groups, if they are
 * new, and those of the steps before that the shard may not have. */
ps_err ps_comm_send_groups(ps_comm *c, ps_comm_link *l);
/* 1 + the step of the newest numbers that were sent before a gradient; 0: none. */
uint64_t ps_comm_groups_sent(const ps_comm *c, const ps_comm_link *l);
/* Takes a chunk's command. */
void ps_comm_send_later(ps_comm *c, const ps_command *what);
/* The chunk has nothing to send: everything is answered. */
void ps_comm_send_no_more(ps_comm *c, uint32_t chunk);
/* Sends everything that the credits allow now; also BYE, once there was a command for it.
 */
ps_err ps_comm_send_allowed(ps_comm *c);

/* Handles news of the link's connection: sends HELLO over a new one. Nothing is sent to
 * the shard until it has answered. */
ps_err ps_comm_mend_news(ps_comm *c, ps_comm_link *l);
/* Handles the READY of a HELLO. After that of the last HELLO the connection is open, and
 * everything unanswered waits to be sent over it. */
ps_err ps_comm_mend_ready(ps_comm *c, ps_comm_link *l, uint64_t number);

/* Takes some of the messages that are here. PROTOCOL names the shard that sent what it
 * must not; PEER has the text of a shard's ERROR. */
ps_err ps_comm_receive(ps_comm *c, ps_comm_link *l, ps_wire_frames *f);
/* From the main thread, with rings: takes the weights that are in the link's ring. */
ps_err ps_comm_receive_ring(ps_comm *c, ps_comm_link *l);

/* ---- ps_comm_snapshot.c ---- */

/* From the thread: a STATE or RESTORED. PROTOCOL when it does not fit. */
ps_err ps_comm_snapshot_take(ps_comm *c, const ps_comm_link *l, const ps_wire_header *h,
                             ps_wire_frames *f);

/* ---- ps_comm_rows.c ---- */

/* Makes the arena for rows where a shard is on this host and may share memory. */
void ps_comm_rows_open(ps_comm *c);
/* From the main thread. late_shard: one that has not answered. */
bool ps_comm_rows_are_answered(const ps_comm *c, uint64_t sent);
uint32_t ps_comm_rows_late_shard(const ps_comm *c);
/* From the thread: the next message to the shard was given. */
void ps_comm_rows_later(ps_comm *c, uint32_t shard);
/* Sends a piece if the credit allows it; *any: it did. */
ps_err ps_comm_rows_send_piece(ps_comm *c, ps_comm_link *l, bool *any);
/* All unanswered messages are to be sent again. Returns how many. */
uint32_t ps_comm_rows_repeat(ps_comm_link *l);
/* A ROWS. PROTOCOL when it does not fit. */
ps_err ps_comm_rows_take(ps_comm *c, ps_comm_link *l, const ps_wire_header *h,
                         ps_wire_frames *f);

/* ---- ps_comm_rings.c: instead of sockets, to shards of this host ---- */

/* Makes the rings when every shard is on this host and may share memory; else there are
 * none. For all links; before they are offered. */
ps_err ps_comm_rings_open(ps_comm *c);
/* The rings are in use when every server has taken them. */
void ps_comm_rings_agree(ps_comm *c);
/* Puts the gradients of chunks into the rings, and wakes shards that sleep. more: others
 * of the step follow; a shard may sleep until they are here. */
ps_err ps_comm_rings_push(ps_comm *c, uint64_t step, const uint32_t *chunks, uint32_t n,
                          bool more);
/* Before a wait for all chunks, all of which have been pushed: whether one wake-up is
 * enough, when all weights are here (PS_WIRE_WANTED_ALL). False: none is on the way. */
bool ps_comm_rings_want_all(ps_comm *c);
/* Takes all weights that are in the rings. */
ps_err ps_comm_rings_take(ps_comm *c);

#endif
