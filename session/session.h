/* A worker's part in a job: joining, the plan, the arenas, and the exchange that turns
 * gradients into new weights. It needs a table of tensors and settings, but no model, no
 * file and no step loop:
 *
 *   ps_session_create     checks the settings, makes the plan
 *   ps_session_join       waits for every member; from now on there are arenas
 *     (rank 0 writes the first weights)
 *   ps_session_start      rank 0's weights and buffers become everybody's
 *   each step:
 *     ps_session_begin
 *     ps_session_wait     before weights are read: all at once, or tensor by tensor
 *     ps_session_push     when gradients are final: likewise, in any order
 *     ps_session_finish
 *   ps_session_drain      before all weights are read after the last step
 *   ps_session_close      says goodbye to everybody
 *   ps_session_destroy
 *
 * One thread calls these functions; those of the member (member.h) may be called from
 * any. A call at the wrong time (life.h) is an ARG error that says so. After
 * any other error only ps_session_abort and ps_session_destroy may be called. Every wait
 * has a deadline of the settings (net.join_timeout_ms, net.step_timeout_ms); when another
 * member has ended the job, the error is PEER with its reason.
 *
 * The session changes nothing of its process: no signal, no limit, no option of malloc.
 * Programs do: they keep freed memory (mem.h), raise the limit of descriptors
 * (fd_limit.h), take the log (log.h), and ignore SIGPIPE where Gloo is the exchange.
 */
#ifndef PS_SESSION_H
#define PS_SESSION_H

#include "device.h"
#include "exchange.h"
#include "job_start.h"
#include "life.h"

typedef struct ps_session ps_session;

typedef struct ps_session_options { // all borrowed for the session's life
    /* Its sections job, optimizer, schedule, loss_scale, exchange, server and net are
     * used. ps_config_load without a file gives the defaults, with settings as
     * "exchange.codec=int8". */
    const ps_config *config;
    const ps_tensor_table *table; // the same in every member
    /* tcp://host:port or file:///path. NULL: no other process (job.workers 1). */
    const char *init_method;
    int rank;             // -1: any that is free
    int local_rank;       // -1: not given
    uint64_t incarnation; // how often this worker's process was started before
    /* A member that has joined already; NULL: the session joins by itself. The session
     * leaves the job with it, but does not destroy it. */
    ps_member *member;
    /* Of a session that this one belongs to, which has joined already as `member`, or
     * alone. NULL: a life of its own. */
    ps_life *life;
    const struct ps_param_groups *groups; // param_groups.h; NULL: none
    int expected_workers;                 // elastic jobs: as in ps_member_options
    ps_job_view *view;                    // as in ps_member_options
    bool counts; // the caller calls ps_session_count; otherwise no sync.policy local
    bool rows;   // the job has embedding tables
} ps_session_options;

/* *out is owned by the caller. CONFIG: settings that contradict each other, or more
 * shards than the plan has chunks; UNSUPPORTED: too few descriptors. */
ps_err ps_session_create(const ps_session_options *options, ps_session **out);

/* total_steps: of the job, the same in every worker. PS_STEPS_UNKNOWN gives CONFIG when
 * the schedule needs the number. 0 for a job that only evaluates. Errors as
 * ps_member_join's. */
ps_err ps_session_join(ps_session *s, uint64_t total_steps);

/* The two halves of join, for a caller that learns from the members where the job begins.
 * Rank 0 tells the servers between them (ps_job_start_put), and all pass the same start.
 */
ps_err ps_session_join_members(ps_session *s);
ps_err ps_session_set_start(ps_session *s, const ps_job_start *start);

/* device: keeps parameters and gradients in its own memory if the exchange can use them
 * there; borrowed for the session's life. NULL: they are in the arenas. state: what
 * ps_session_save gave after the step before the first one; NULL: a new job. */
ps_err ps_session_start(ps_session *s, ps_device *device, const ps_exchange_state *state);

/* With schedule.name plateau: from the next step on, the rates are those after that many
 * cuts (plateau.h). All ranks call it before the same step. */
void ps_session_set_cuts(ps_session *s, int64_t cuts);

/* Begins optimizer step `step`: the first one (0 in a new job), then one more each time.
 */
ps_err ps_session_begin(ps_session *s, uint64_t step);
/* The same for a step of one of the program's optimizers (plan.h); others' tensors are as
 * if they had been pushed without a gradient, and nothing of them travels. Blocks until
 * the weights of these are here. */
ps_err ps_session_begin_of(ps_session *s, uint64_t step, uint32_t step_of);
/* Blocks until the weights of tensors [first, first + n) are those of the step. */
ps_err ps_session_wait(ps_session *s, int first, int n);
/* The same for elements [begin, end) of the arena. */
ps_err ps_session_wait_range(ps_session *s, uint64_t begin, uint64_t end);
/* *ready: whether that would return at once. */
ps_err ps_session_ready(ps_session *s, int first, int n, bool *ready);
/* The gradients of these tensors are final, multiplied by the rank's share n_r / sum n
 * (and by the loss scale). Gradients and weights belong to the session until the next
 * wait for them. ARG when one is pushed twice. */
ps_err ps_session_push(ps_session *s, int first, int n);
/* Whether these may be pushed: ARG names one that was pushed in this step already. */
ps_err ps_session_check_push(const ps_session *s, int first, int n);
/* The same for elements [begin, end) of the arena. The gap after a tensor comes with the
 * tensor's end. */
ps_err ps_session_push_range(ps_session *s, uint64_t begin, uint64_t end);
/* Whether the exchange wants each rank's own mean gradients, which are not multiplied by
 * its share (sync.policy local). Then count has to be called in every step before finish,
 * with the samples of the step: this rank's, and all ranks'. Otherwise count is ignored.
 */
bool ps_session_counts(const ps_session *s);
ps_err ps_session_count(ps_session *s, uint64_t mine, uint64_t all);
/* Every tensor of the step has been pushed: else ARG names one. May return before the
 * step is made. */
ps_err ps_session_finish(ps_session *s);
/* Where workers go on at their own pace, after finish: as in exchange.h. */
ps_err ps_session_rest(ps_session *s, bool *rests, bool *over);
/* With a quorum, as in exchange.h; exchanges without such rounds do nothing. */
void ps_session_set_round(ps_session *s, uint64_t steps, double weight);
ps_err ps_session_end_round(ps_session *s, bool now, bool *sent);
ps_round_cut ps_session_swap_cut(ps_session *s, ps_round_cut plan);

/* Instead of steps: chunks of the plan that go on by themselves (exchange.h). One thread
 * may push while another waits. UNSUPPORTED: the exchange cannot. */
ps_err ps_session_push_chunk(ps_session *s, uint32_t chunk, uint64_t step);
ps_err ps_session_wait_chunk(ps_session *s, uint32_t chunk, uint64_t version);

/* Rows of embedding tables, as in exchange.h: their steps are apart from the others. */
ps_err ps_session_rows_send(ps_session *s, int kind, uint64_t step,
                            const ps_exchange_body *bodies, ps_exchange_body *answers,
                            uint64_t *sent);
ps_err ps_session_rows_wait(ps_session *s, uint64_t sent);
void *ps_session_rows_arena(ps_session *s, uint32_t shard);

/* Blocks until the weights are those after all finished steps. */
ps_err ps_session_drain(ps_session *s);
/* As ps_exchange_ops: the scale of the next gradients; 1 without loss scaling. */
ps_err ps_session_loss_scale(ps_session *s, float *scale);
/* Rank 0's buffers become everybody's, and with a codec the exact weights. All ranks call
 * it after the same step, after drain. */
ps_err ps_session_sync_buffers(ps_session *s);

/* As ps_exchange_ops.save, by all ranks after the same step, after drain. Where workers
 * go on at their own pace, none does before all have what they save. */
ps_err ps_session_save(ps_session *s, ps_exchange_state *out);

/* Drains and ends the exchange in order. The member's functions work until close. close
 * calls this if the caller has not. */
ps_err ps_session_stop(ps_session *s);
/* Stops because the job goes on with another table, in a session of its own. All members
 * call it between the same two steps. The arenas stay until destroy; the member is the
 * caller's, which takes it to the next table (ps_member_next_table). */
ps_err ps_session_retire(ps_session *s);
/* Stops, and leaves the job. Waits until every worker has left. */
ps_err ps_session_close(ps_session *s);
/* The same instead of ps_session_start, by a worker that has nothing to do, as without
 * data. The servers learn that none of its gradients will come. */
ps_err ps_session_withdraw(ps_session *s);
/* Ends the job for everybody, with the failure's code and the reason, and the exchange.
 * NULL: nothing. */
void ps_session_abort(ps_session *s, ps_err cause, const char *reason);
/* Without close before, the others learn that this worker is gone. */
void ps_session_destroy(ps_session **s);

/* From create on. */
const ps_plan *ps_session_plan(const ps_session *s);
const ps_exchange_ops *ps_session_ops(const ps_session *s); // what the exchange can do
/* The exchange's: with the policy local the outer one. */
const ps_optimizer *ps_session_optimizer(const ps_session *s);
int ps_session_servers(const ps_session *s); // processes; 0: the exchange has none
/* From join on. */
int ps_session_rank(const ps_session *s);
int ps_session_world_size(const ps_session *s);    // before: the most that there may be
ps_member *ps_session_member(const ps_session *s); // borrowed; NULL: no other process
uint64_t ps_session_total_steps(const ps_session *s);
double ps_session_lr(const ps_session *s, uint64_t step);
double ps_session_lr_factor(const ps_session *s, uint64_t step); // step_rule.h
/* The arenas: table->arena_count float32 each, and table->buffer_bytes bytes. Zeroed, and
 * shared with processes of this host that ask for them. Borrowed. */
float *ps_session_params(const ps_session *s);
float *ps_session_grads(const ps_session *s);
void *ps_session_buffers(const ps_session *s);
/* Whether this process or another one was told to end the job in order. Never blocks. */
bool ps_session_told_to_end(const ps_session *s);
/* Whether this worker alone was told to end, and the others go on: SIGTERM to a worker of
 * an elastic job, except worker 0, which has the checkpoint. */
bool ps_session_told_to_leave(const ps_session *s);
/* From start on. */
const char *ps_session_exchange_name(const ps_session *s); // "ps", "gloo", "nccl", "none"
void ps_session_stats(const ps_session *s, ps_exchange_stats *out);

#endif
