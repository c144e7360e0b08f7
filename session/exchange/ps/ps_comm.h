/* The communication thread of the ps exchange: it owns every data socket of the worker.
 *
 * The main thread submits commands through a queue and waits for versions of chunks. The
 * thread sends what the credits allow, beginning with the chunks that the next forward
 * pass needs first, and writes weights into the parameter arena. It sleeps in poll
 * whenever there is nothing to do. */
#ifndef PS_COMM_H
#define PS_COMM_H

#include "exchange.h"

typedef struct ps_comm ps_comm;

/* Connects to every shard, hands the arenas to servers of this host, and starts
 * the thread, which says HELLO. Does not wait for the shards. rings: gradients may travel
 * in shared memory, since nobody pushes while another thread waits and computes. *out is
 * owned by the caller. */
ps_err ps_comm_create(const ps_exchange_options *options, bool rings, ps_comm **out);

/* Called by the thread: a chunk has the version. */
typedef void ps_comm_told(void *ctx, uint32_t chunk, int64_t version);
/* From the first command on, tells of each version that a chunk reaches, again when it
 * reaches one again. Not with rings. */
void ps_comm_tell(ps_comm *c, ps_comm_told *told, void *ctx);

/* Waits until every shard has answered. TIMEOUT names those that have not. */
ps_err ps_comm_wait_ready(ps_comm *c);

typedef enum ps_comm_command {
    PS_COMM_INIT,
    PS_COMM_PUSH,
    PS_COMM_PULL,
    PS_COMM_EXACT, // the exact weights of the present version; every worker must ask
    PS_COMM_FETCH, // these two: by the snapshot calls below
    PS_COMM_RESTORE
} ps_comm_command;

/* Gives the same command for n chunks. step: the version or step. INIT and PUSH send from
 * the arenas, which may be changed again when the next version of the chunk is here. When
 * an INIT has been sent, the chunk counts as having that version here too: it may still
 * be read, or sent again. After a EXACT, FETCH or RESTORE the chunk counts as one version
 * older until the answer is here. */
ps_err ps_comm_submit(ps_comm *c, ps_comm_command command, uint64_t step,
                      const uint32_t *chunks, uint32_t n);
/* Submits PS_COMM_PUSH for n chunks. more: other gradients of the step follow soon, and
 * nobody waits for an answer before they do. Shards of this host may sleep until then. */
ps_err ps_comm_push(ps_comm *c, uint64_t step, const uint32_t *chunks, uint32_t n,
                    bool more);
/* What is pushed from now on is of steps of that one (plan.h). */
void ps_comm_set_step_of(ps_comm *c, uint64_t step, uint32_t step_of);
/* Gives a command for the first n chunks, each at the version that it has, and blocks
 * until all are answered. No push of them is unanswered. TIMEOUT as ps_comm_wait. */
ps_err ps_comm_ask(ps_comm *c, ps_comm_command command, uint32_t n);

/* Takes what has arrived, without waiting. Call it before ps_comm_has if no thread waits.
 */
ps_err ps_comm_look(ps_comm *c);
bool ps_comm_has(const ps_comm *c, uint32_t chunk, int64_t version);
/* Blocks until the chunk has reached the version. TIMEOUT when nothing at all has arrived
 * for net.step_timeout_ms, naming chunk, shard and server; else the thread's failure. */
ps_err ps_comm_wait(ps_comm *c, uint32_t chunk, int64_t version);
/* The same for all chunks, with fewer wake-ups. */
ps_err ps_comm_wait_all(ps_comm *c, int64_t version);

/* Messages of rows: as ps_exchange_rows says. */
ps_err ps_comm_rows_send(ps_comm *c, int kind, uint64_t step,
                         const ps_exchange_body *bodies, ps_exchange_body *answers,
                         uint64_t *sent);
/* TIMEOUT as ps_comm_wait. */
ps_err ps_comm_rows_wait(ps_comm *c, uint64_t sent);
void *ps_comm_rows_arena(const ps_comm *c, uint32_t shard);

/* A thread that pushes or communicates has failed, with the present error message: waits
 * end with it, unless one has failed before. */
void ps_comm_give_up(ps_comm *c, ps_err err);

/* The loss scale of the newest version that any chunk has reached: ask when all have
 * reached the same. */
float ps_comm_loss_scale(const ps_comm *c);

/* Where workers go on at their own pace: what the newest weights of the last fragment
 * came with (exchange.h). Ask when all its chunks have reached the same version. */
void ps_comm_rest(const ps_comm *c, bool *rests, bool *over);

/* The state that lies in the shards: fetched for a checkpoint between two steps, when no
 * push is unanswered, and restored by worker 0 before the first weights. array as in
 * wire.h. Block until all shards have answered; TIMEOUT as ps_comm_wait. over_gradients:
 * the gradients are needed no more, and shards of this host may write over them. */
ps_err ps_comm_snapshot_fetch(ps_comm *c, uint64_t array, bool over_gradients,
                              float *arena);
ps_err ps_comm_snapshot_fetch_rule(ps_comm *c, uint8_t rule[PS_STEP_RULE_STATE_BYTES],
                                   size_t *bytes);
ps_err ps_comm_snapshot_restore(ps_comm *c, uint64_t array, const float *arena);
/* Between two steps: what the codec has not sent yet, an arena; NULL where it keeps
 * nothing. */
float *ps_comm_snapshot_feedback(ps_comm *c);

/* The main thread has computed for that long in the step. */
void ps_comm_computed(ps_comm *c, uint64_t step, uint64_t ns);

typedef struct ps_comm_stats {
    uint64_t bytes_sent, bytes_received;
    uint64_t raw_bytes;              // what bytes_sent would be without a codec
    uint64_t shm_sent, shm_received; // payload bytes passed in shared memory
    uint64_t most_on_the_way; // payload bytes without credit, the most to any one shard
    uint64_t encode_ns, send_ns; // of the communication thread: codecs, sockets
} ps_comm_stats;

void ps_comm_get_stats(const ps_comm *c, ps_comm_stats *out);

/* Says BYE to every shard and ends the thread when all have answered. TIMEOUT names the
 * first that has not after net.step_timeout_ms. returns: with another table. */
ps_err ps_comm_stop(ps_comm *c, bool returns);
void ps_comm_destroy(ps_comm **c);

#endif
