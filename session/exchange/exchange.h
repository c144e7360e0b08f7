/* Exchanges: how gradients become new weights. One of the project's vtables.
 *
 * All functions are called by the worker's main thread. Life: create, start, then for
 * each step begin, params_needed/grads_ready (from the device's hooks) and finish; drain
 * before anybody reads all parameters (evaluation, saving); stop; destroy.
 */
#ifndef PS_EXCHANGE_H
#define PS_EXCHANGE_H

#include "coded_arena.h"
#include "mem.h"
#include "member.h"
#include "own_rounds.h"
#include "plan.h"
#include "ready_ranges.h"
#include "step_rule.h"

typedef struct ps_exchange ps_exchange;
struct ps_device_stream; // device_stream.h

struct ps_exchange_local_options; // exchange_local.h

/* What exchanges take from the configuration. */
typedef struct ps_exchange_settings {
    uint64_t join_timeout_ms; // for all workers to meet
    uint64_t step_timeout_ms; // without progress
    uint64_t verdict_ms;      // until the coordinator knows of a dead worker
    int64_t io_threads;       // ZeroMQ's
    int64_t threads;          // of arithmetic; 0: all cores
    ps_switch shm;
    ps_chunk_codec codec; // its steps are not set yet
    uint64_t credit;      // bytes to a shard; 0: auto
    uint64_t bucket;      // bytes
    bool coarse;          // few bytes travel: ps_chunk_size_is_coarse
    bool drops;           // gradients may be dropped: backup with sync.late drop
} ps_exchange_settings;

/* Borrows table. */
void ps_exchange_settings_init(ps_exchange_settings *s, const ps_config *cfg,
                               const ps_tensor_table *table);

typedef struct ps_exchange_options { // all borrowed for the exchange's life
    ps_exchange_settings settings;
    const ps_tensor_table *table;
    const ps_plan *plan;      // chunks and shards (ps); otherwise one shard
    const ps_step_rule *rule; // started; each exchange steps a copy of it
    ps_member *member;        // NULL only for `none`
    int rank, world_size;
    uint64_t total_steps; // of the job, as servers read it from the coordinator
    uint64_t first_step;  // the first to make; above 0 when the job resumes
    uint32_t ahead;       // fragments of the plan that have made it already
    /* Of a rank that takes a dead one's place while the others go on (sync_policy.h):
     * the number of its first push, which is empty. 0: it is in the job from the start.
     */
    uint64_t back_at;
    uint64_t back_fragment; // then: that it pushes next
    uint64_t buffer_pieces; // then: what has travelled before it came (buffer_sync.h)
    const ps_shared_mem *params; // table->arena_count float32
    const ps_shared_mem *grads;
    void *buffers; // the buffer arena
    bool rows;     // the job has embedding tables
    /* Of a device with memory of its own (all-reduce there); NULL: the arenas above. */
    struct ps_device_stream *stream;
    /* Of exchange.levels 2, where the gradients may stay on a device (device_sums.h).
     * create destroys it, and clears the pointer, where the workers of the host do not
     * all read each other's. *sums NULL: there is none. */
    struct ps_device_sums **sums;
    const struct ps_exchange_local_options *local; // of exchange_local alone
    /* Where the device encodes gradients: it does so by the key that begin sets. NULL:
     * they are in grads. */
    ps_coded_arena *coded;
} ps_exchange_options;

/* From now on. */
static inline ps_deadline ps_exchange_join_deadline(const ps_exchange_options *o)
{
    return ps_deadline_in_ms(o->settings.join_timeout_ms);
}

typedef struct ps_exchange_stats {
    uint64_t bytes_sent, bytes_received; // payload and headers, this worker, since start
    bool computed;                       // the bytes were computed, not read from sockets
    double wait_seconds; // main thread's, in params_needed and drain, since start
    uint64_t raw_bytes;  // what bytes_sent would be without a codec
    uint64_t shm_sent, shm_received; // payload passed in shared memory instead
    uint64_t buffer_pieces;          // of buffers that have travelled (buffer_sync.h)
    uint64_t most_in_flight; // payload bytes without credit, the most to any one shard
    /* Beside the arithmetic: of compressing gradients, and of handing messages to the
     * sockets. 0 where the exchange does not know. */
    double encode_seconds, send_seconds;
} ps_exchange_stats;

/* What an exchange holds between two steps beside the parameter arena and its rule.
 * Arrays are arenas (table->arena_count); NULL: there is no such array. */
typedef struct ps_exchange_state {
    /* To save: a rank that gets the same arrays as rank 0, the same on every rank; 0:
     * there is none. */
    int holder;
    /* To save: the gradients are needed no more, and the exchange may write over them. */
    bool over_gradients;
    float *states[PS_OPTIMIZER_MAX_STATES]; // the optimizer's
    /* The servers' exact weights; with a codec the workers have others. */
    float *weights;
    float *feedback; // what this rank's codec has not sent yet
    /* With table->optional: the steps that each tensor has missed (absent.h), a uint32_t
     * in each of its elements. */
    float *missed;
    /* With the policy local: what this rank has of its own (exchange_local.h), in
     * ps_local_memory_bytes. */
    void *local;
    size_t rule_bytes;
    uint8_t rule[PS_STEP_RULE_STATE_BYTES]; // ps_step_rule_save's
} ps_exchange_state;

/* A facet: chunks of the plan that go on by themselves, each with versions of its own,
 * instead of steps of all tensors. One thread may push while another waits. Other slots
 * may be called when every chunk has the version of its last push. */
typedef struct ps_exchange_chunks {
    /* Pushes a chunk's gradient of its step. */
    ps_err (*push)(ps_exchange *x, uint32_t chunk, uint64_t step);
    /* Blocks until the chunk has a version. */
    ps_err (*wait)(ps_exchange *x, uint32_t chunk, uint64_t version);
} ps_exchange_chunks;

/* What a message of rows holds (rows_body.h), or its answer. */
typedef struct ps_exchange_body {
    void *bytes;
    uint64_t n;
    bool grows;    // of an answer: it has any size up to `most`, and gets memory then, by
                   // malloc
    uint64_t most; // bytes
    uint64_t shared; // bytes beside it, in the arena
    uint64_t saved;  // bytes that a codec has saved
} ps_exchange_body;

/* A facet: rows of embedding tables, beside the steps of the tensors. */
typedef struct ps_exchange_rows {
    /* Sends each shard a message of rows of that kind (wire.h) and step of the rows; to
     * those with an empty body none. bodies, answers (one per shard): what is sent, and
     * where the answers go, which have these sizes; their bytes belong to the exchange
     * until wait returns, answers themselves, too. answers NULL: they hold nothing; so do
     * those of no bytes. Blocks only where many are on the way. *sent: their number. */
    ps_err (*send)(ps_exchange *x, int kind, uint64_t step,
                   const ps_exchange_body *bodies, ps_exchange_body *answers,
                   uint64_t *sent);
    /* Blocks until the messages of a number are answered; PS_EXCHANGE_ROWS_ALL: all. */
    ps_err (*wait)(ps_exchange *x, uint64_t sent);
    /* PS_ROWS_ARENA_BYTES of memory that the shard reads and writes (rows_body.h), the
     * same for all shards that do; NULL: what it sends and gets is in the bodies. */
    void *(*arena)(ps_exchange *x, uint32_t shard);
} ps_exchange_rows;

enum { PS_EXCHANGE_ROWS_ALL = 0 };

/* A facet: workers go on at their own pace (sync_policy.h). */
typedef struct ps_exchange_rests {
    /* After finish: blocks until each push is answered whose answer is due. *rests: all
     * ranks rest now, and what sync_buffers shows is the same in all; *over: and no step
     * follows. */
    ps_err (*rest)(ps_exchange *x, bool *rests, bool *over);
} ps_exchange_rests;

/* A facet: steps between two synchronisations (local_steps.h). Gradients are each rank's
 * own mean, not multiplied by its share. */
typedef struct ps_exchange_rounds {
    /* In each step, before finish: the samples, this rank's and all ranks'. */
    void (*count)(ps_exchange *x, uint64_t mine, uint64_t all);
    /* These three with a quorum alone. At rest or within the first round: rounds have
     * `steps` steps of this rank from here on, more than were made of this one, and its
     * change counts `weight` times its share of the samples. */
    void (*set)(ps_exchange *x, uint64_t steps, double weight);
    /* When rest has found none: sends what ends the rank's round, if `now` or a plan says
     * so; *sent: it did, and rest is to be called again. */
    ps_err (*end)(ps_exchange *x, bool now, bool *sent);
    /* At rest: which round was cut short before it, and which one is to be before the
     * next one. */
    ps_round_cut (*swap_cut)(ps_exchange *x, ps_round_cut plan);
} ps_exchange_rounds;

typedef struct ps_exchange_ops {
    const char *name;
    const char *mode; // summary.json's: ps, allreduce or single
    bool servers;     // the weights are stepped by shards; otherwise by workers
    bool peers;       // workers of a host map each other's arenas: all create together
    bool alone;       // for one worker, which needs no coordinator
    bool on_device;   // works on the device's stream, where the device has one
    /* Facets; NULL: the exchange lacks it. */
    const ps_exchange_chunks *chunks;
    const ps_exchange_rests *rests;
    const ps_exchange_rounds *rounds;
    const ps_exchange_rows *rows;
    /* Connects. *out is owned by the caller. */
    ps_err (*create)(const ps_exchange_options *options, ps_exchange **out);
    /* Rank 0's params and buffers become everybody's. */
    ps_err (*start)(ps_exchange *x);
    /* Optimizer step `step` (from 0) begins: the one after the last that was finished. */
    ps_err (*begin)(ps_exchange *x, uint64_t step);
    /* Blocks until params [begin, end) of the arena are those of the step that has begun,
     * or, between two steps, of the next one. */
    ps_err (*params_needed)(ps_exchange *x, uint64_t begin, uint64_t end);
    /* *ready: whether params_needed would return at once. */
    ps_err (*params_ready)(ps_exchange *x, uint64_t begin, uint64_t end, bool *ready);
    /* Gradients [begin, end) of the arena are final (already multiplied by n_r / sum n);
     * they and the parameters belong to the exchange until the next params_needed of
     * them. A range may begin and end anywhere, and ranges may come in any order; the gap
     * after a tensor comes with the tensor's end. ARG when an element comes twice in a
     * step. */
    ps_err (*grads_ready)(ps_exchange *x, uint64_t begin, uint64_t end);
    /* All gradients of the step have been given. May return before they are applied. */
    ps_err (*finish)(ps_exchange *x);
    /* Blocks until the whole parameter arena is at the newest version. */
    ps_err (*drain)(ps_exchange *x);
    /* The loss scale after the steps finished so far, for the step that has begun or the
     * next one. 1 without loss scaling. Blocks until the outcome of those steps is known:
     * a step whose parameters were all needed adds no wait. */
    ps_err (*loss_scale)(ps_exchange *x, float *scale);
    /* Rank 0's buffer arena becomes everybody's; with a codec, so do the exact weights.
     * After drain, by all ranks in the same step. */
    ps_err (*sync_buffers)(ps_exchange *x);
    /* Fills the arrays that are given: feedback on every rank, the others on rank 0 and
     * on the holder alone (where they are NULL on the other ranks). After drain, by all
     * ranks in the same step. */
    ps_err (*save)(ps_exchange *x, ps_exchange_state *out);
    /* Called by all ranks before start: they continue at first_step, with the rule of
     * their options and rank 0's parameters. */
    ps_err (*load)(ps_exchange *x, const ps_exchange_state *in);
    void (*stats)(const ps_exchange *x, ps_exchange_stats *out);
    /* Orderly end of the connections; after a failure only destroy may be called. */
    ps_err (*stop)(ps_exchange *x);
    void (*destroy)(ps_exchange **x);
    /* Optional. After each begin: the step is of that optimizer (plan.h). PEER, later,
     * where ranks differ in it. */
    void (*set_step_of)(ps_exchange *x, uint32_t step_of);
    /* Then nothing of the others' tensors travels, and their gradients are ready without
     * being written. Otherwise these have to be -0.0 (absent.h). */
    bool leaves_out;
    bool coded; // takes gradients that the device has encoded
} ps_exchange_ops;

struct ps_exchange {
    const ps_exchange_ops *ops;
    const ps_ready_ranges *ready; // the gradients of the step that are final
    bool returns;                 // set before stop: the job goes on with another table
};

/* The exchanges. Those of gloo and nccl are there where the build has them; levels is ps
 * with exchange.levels 2 (two_levels.h): only whole steps, of all workers. */
extern const ps_exchange_ops ps_exchange_ps_ops, ps_exchange_levels_ops;
extern const ps_exchange_ops ps_exchange_gloo_ops, ps_exchange_nccl_ops;
extern const ps_exchange_ops ps_exchange_none_ops;

/* The table of the exchange that the settings name. UNSUPPORTED names what the build
 * lacks. */
ps_err ps_exchange_find(const ps_config_exchange *settings, const ps_exchange_ops **out);

static inline ps_err ps_exchange_start(ps_exchange *x)
{
    return x->ops->start(x);
}
static inline ps_err ps_exchange_begin(ps_exchange *x, uint64_t step)
{
    return x->ops->begin(x, step);
}
static inline ps_err ps_exchange_params_needed(ps_exchange *x, uint64_t begin,
                                               uint64_t end)
{
    return x->ops->params_needed(x, begin, end);
}
static inline ps_err ps_exchange_params_ready(ps_exchange *x, uint64_t begin,
                                              uint64_t end, bool *ready)
{
    return x->ops->params_ready(x, begin, end, ready);
}
static inline ps_err ps_exchange_grads_ready(ps_exchange *x, uint64_t begin, uint64_t end)
{
    return x->ops->grads_ready(x, begin, end);
}
static inline ps_err ps_exchange_finish(ps_exchange *x)
{
    return x->ops->finish(x);
}
static inline ps_err ps_exchange_drain(ps_exchange *x)
{
    return x->ops->drain(x);
}
static inline ps_err ps_exchange_loss_scale(ps_exchange *x, float *scale)
{
    return x->ops->loss_scale(x, scale);
}
static inline ps_err ps_exchange_sync_buffers(ps_exchange *x)
{
    return x->ops->sync_buffers(x);
}
static inline ps_err ps_exchange_save(ps_exchange *x, ps_exchange_state *out)
{
    return x->ops->save(x, out);
}
static inline ps_err ps_exchange_load(ps_exchange *x, const ps_exchange_state *in)
{
    return x->ops->load(x, in);
}
/* The facets: UNSUPPORTED where the exchange lacks one. */
ps_err ps_exchange_push_chunk(ps_exchange *x, uint32_t chunk, uint64_t step);
ps_err ps_exchange_wait_chunk(ps_exchange *x, uint32_t chunk, uint64_t version);
ps_err ps_exchange_rest(ps_exchange *x, bool *rests, bool *over);
ps_err ps_exchange_rows_send(ps_exchange *x, int kind, uint64_t step,
                             const ps_exchange_body *bodies, ps_exchange_body *answers,
                             uint64_t *sent);
ps_err ps_exchange_rows_wait(ps_exchange *x, uint64_t sent);
void *ps_exchange_rows_arena(ps_exchange *x, uint32_t shard);
/* Exchanges without rounds do nothing. */
static inline void ps_exchange_count(ps_exchange *x, uint64_t mine, uint64_t all)
{
    if (x->ops->rounds) x->ops->rounds->count(x, mine, all);
}
static inline void ps_exchange_set_round(ps_exchange *x, uint64_t steps, double weight)
{
    if (x->ops->rounds) x->ops->rounds->set(x, steps, weight);
}
static inline ps_err ps_exchange_end_round(ps_exchange *x, bool now, bool *sent)
{
    *sent = false;
    return x->ops->rounds ? x->ops->rounds->end(x, now, sent) : PS_OK;
}
static inline ps_round_cut ps_exchange_swap_cut(ps_exchange *x, ps_round_cut plan)
{
    return x->ops->rounds ? x->ops->rounds->swap_cut(x, plan) : (ps_round_cut){0, 0};
}
static inline void ps_exchange_stats_get(const ps_exchange *x, ps_exchange_stats *out)
{
    x->ops->stats(x, out);
}
static inline ps_err ps_exchange_stop(ps_exchange *x)
{
    return x->ops->stop(x);
}
static inline void ps_exchange_destroy(ps_exchange **x)
{
    if (*x) (*x)->ops->destroy(x);
}

#endif
