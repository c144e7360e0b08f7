#include "session.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "absent.h"
#include "curve.h"
#include "device_codes.h"
#include "device_stream.h"
#include "device_sums.h"
#include "exchange_local.h"
#include "fd_limit.h"
#include "init_method.h"
#include "interrupt.h"
#include "local_steps.h"
#include "log.h"
#include "plateau.h"
#include "shm_offer.h"

enum { BUFFERS_MIN = 64 }; // bytes: an arena even where there are no buffers

struct ps_session {
    ps_session_options o;
    ps_life own_life;
    ps_life *life; // the own one, or the options'
    int rank, world_size, n_servers;
    ps_job_start start;
    uint64_t next_step;
    uint32_t step_of;           // whose step the last one was
    uint64_t end_step;          // none begins from here on
    int fewest;                 // workers, of an elastic job; 0: their number is fixed
    const ps_exchange_ops *ops; // of the exchange
    ps_exchange_options exchange_options;
    ps_exchange_ops local_ops; // these two: with the policy local
    ps_exchange_local_options local_options;
    ps_plan plan;
    ps_step_rule rule;
    ps_step_rule outer_rule; // with the policy local
    ps_param_groups rates;   // with schedule.name plateau; else n 0
    int64_t cuts;            // of the rates, for the next step
    bool cut;                // they are new
    ps_member *member;       // NULL: no other process
    ps_shared_mem params, grads;
    void *buffers;
    ps_device_stream *stream; // where the weights stay on a GPU
    ps_device_sums *sums;     // where the gradients do, for the others of the host
    ps_coded_arena coded;     // where it encodes them
    ps_device_codes *codes;
    ps_exchange *exchange;
};

/* With the caller's life a failure is the caller's to tell; but arguments alone fail none
 * of its calls. */
static ps_err session_reach(ps_session *s, ps_stage next, ps_err err)
{
    if (err == PS_OK)
        ps_life_reach(s->life, next);
    else if (!s->o.life || err == PS_ERR_ARG)
        ps_life_fail(s->life, err);
    return err;
}

/* --- create ------------------------------------------------------------------------ */

static ps_err session_make_rules(ps_session *s)
{
    const ps_config *c = s->o.config;
    if (c->sync.policy != PS_POLICY_BSP && !s->o.counts)
        return ps_err_set(PS_ERR_CONFIG,
                          "sync.policy: %s is for models that ps-worker "
                          "trains, not for programs that use libpstrain",
                          ps_word_name(ps_policy_words, (int)c->sync.policy));
    PS_TRY(ps_step_rule_init(&s->rule, c));
    if (s->ops->rounds) PS_TRY(ps_local_steps_outer_rule(c, &s->outer_rule));
    const int n = ps_plateau_groups(c);
    if (n > 0) PS_TRY(ps_param_groups_init(&s->rates, n));
    const ps_param_groups *groups = n > 0 ? &s->rates : s->o.groups;
    ps_param_groups_use(groups, &s->rule.optimizer);
    ps_param_groups_use(groups, &s->outer_rule.optimizer);
    return PS_OK;
}

static ps_err session_choose_exchange(ps_session *s)
{
    const ps_config *c = s->o.config;
    PS_TRY(ps_exchange_find(&c->exchange, &s->ops));
    if (!ps_local_steps_on(c)) return PS_OK;
    s->local_options = (ps_exchange_local_options){
        .config = c, .outer = s->ops, .outer_rule = &s->outer_rule};
    s->local_ops = ps_exchange_local_ops_over(s->ops);
    s->ops = &s->local_ops;
    return PS_OK;
}

static ps_err session_make_plan(ps_session *s)
{
    const ps_config *c = s->o.config;
    // A program of libpstrain has joined before it was known.
    PS_TRY(ps_curve_check_exchange(c));
    PS_TRY(session_choose_exchange(s));
    s->world_size = (int)c->job.most_workers;
    s->fewest = ps_config_fewest_workers(c);
    s->n_servers = s->ops->servers ? (int)c->job.servers : 0;
    if (s->ops->servers && s->n_servers == 0)
        return ps_err_set(PS_ERR_CONFIG, "exchange.name is ps, but job.servers is 0");
    const ps_chunk_size size =
        ps_chunk_size_wanted(c, ps_init_method_is_loopback(s->o.init_method));
    PS_TRY(s->ops->servers ? ps_plan_init_servers(&s->plan, s->o.table, size,
                                                  (uint32_t)s->n_servers, &c->server)
                           : ps_plan_init(&s->plan, s->o.table, size, 1));
    PS_TRY(session_make_rules(s));
    return PS_OK;
}

static ps_err session_check_descriptors(const ps_session *s)
{
    const ps_config *c = s->o.config;
    const bool first = s->o.rank == 0 || s->world_size == 1;
    const uint64_t servers = (uint64_t)s->n_servers;
    const ps_fd_job job = {.workers = (uint64_t)s->world_size,
                           .servers = servers,
                           .shards = servers ? s->plan.n_shards / servers : 0,
                           .io_threads = (uint64_t)c->net.io_threads,
                           .hosts = first && s->n_servers == 0,
                           .shm = c->exchange.shm != PS_SWITCH_OFF,
                           .levels = s->ops->peers};
    const ps_fd_need need = ps_fd_need_of_worker(&job);
    return ps_fd_limit_check(&need);
}

static ps_err session_become_member(ps_session *s)
{
    if (s->ops->alone && s->world_size == 1) return PS_OK;
    const ps_member_options options = {.config = s->o.config,
                                       .role = PS_ROLE_WORKER,
                                       .rank = s->o.rank,
                                       .world_size = s->world_size,
                                       .min_workers = s->fewest,
                                       .expected_workers = s->o.expected_workers,
                                       .view = s->o.view,
                                       .n_servers = s->n_servers,
                                       .init_method = s->o.init_method,
                                       .plan_hash = s->plan.hash,
                                       .local_rank = s->o.local_rank,
                                       .incarnation = s->o.incarnation};
    s->member = s->o.member;
    if (!s->member) PS_TRY(ps_member_join(&options, &s->member));
    s->rank = ps_member_rank(s->member);
    s->world_size = ps_member_roster(s->member)->n_workers;
    return PS_OK;
}

ps_err ps_session_create(const ps_session_options *options, ps_session **out)
{
    ps_session *s;
    *out = NULL;
    PS_TRY(PS_NEW(&s, 1, "a session"));
    s->o = *options;
    ps_life_init(&s->own_life);
    s->life = s->o.life ? s->o.life : &s->own_life;
    ps_err err = session_make_plan(s);
    if (err == PS_OK) err = session_check_descriptors(s);
    if (err == PS_OK && s->o.life) err = session_become_member(s);
    if (err != PS_OK) ps_session_destroy(&s);
    *out = s;
    return err;
}

/* --- join -------------------------------------------------------------------------- */

static ps_err session_make_arenas(ps_session *s)
{
    const size_t bytes = s->o.table->arena_count * sizeof(float);
    const ps_exchange_settings *x = &s->exchange_options.settings;
    const bool shared = s->member && ps_shm_offer_possible(
                                         s->ops, x, ps_member_roster(s->member), s->rank);
    ps_err (*init)(ps_shared_mem *, size_t, const char *) =
        shared ? ps_shared_mem_init : ps_shared_mem_init_private;
    PS_TRY(init(&s->params, bytes, "the parameters"));
    PS_TRY(init(&s->grads, bytes, "the gradients"));
    const size_t buffers = s->o.table->buffer_bytes;
    return ps_mem_zalloc_aligned(&s->buffers, buffers > 0 ? buffers : BUFFERS_MIN,
                                 "the buffers");
}

ps_err ps_session_join_members(ps_session *s)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_CREATED, "ps_session_join_members"));
    return session_reach(s, PS_STAGE_JOINED, session_become_member(s));
}

/* All that the exchange has to know, except the device's stream. */
static ps_err session_set_exchange_options(ps_session *s, const ps_job_start *start)
{
    s->exchange_options = (ps_exchange_options){.table = s->o.table,
                                                .plan = &s->plan,
                                                .rule = &s->rule,
                                                .member = s->member,
                                                .rank = s->rank,
                                                .world_size = s->world_size,
                                                .total_steps = start->total_steps,
                                                .first_step = start->step,
                                                .back_at = start->back_at,
                                                .back_fragment = start->back_fragment,
                                                .buffer_pieces = start->buffer_pieces,
                                                .params = &s->params,
                                                .grads = &s->grads,
                                                .rows = s->o.rows,
                                                .local = &s->local_options};
    ps_exchange_settings *settings = &s->exchange_options.settings;
    ps_exchange_settings_init(settings, s->o.config, s->o.table);
    // The servers would have to map another process's memory while they use the dead
    // one's.
    if (start->back_at > 0) settings->shm = PS_SWITCH_OFF;
    return PS_OK;
}

static ps_err session_set_start(ps_session *s, const ps_job_start *start)
{
    s->start = *start;
    s->next_step = start->step;
    if (start->back_at == 0)
        s->next_step += ps_local_steps_begun(s->o.config, start->step);
    s->end_step = ps_config_own_pace(s->o.config) ? UINT64_MAX : start->total_steps;
    PS_TRY(ps_job_start_rule(start, s->o.config, &s->rule));
    PS_TRY(session_set_exchange_options(s, start));
    return session_make_arenas(s);
}

ps_err ps_session_set_start(ps_session *s, const ps_job_start *start)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_JOINED, "ps_session_set_start"));
    return session_reach(s, PS_STAGE_OPEN, session_set_start(s, start));
}

/* Servers have no data, and cannot count the steps that a schedule spans. */
static ps_err session_tell_start(ps_session *s, const ps_job_start *start)
{
    if (!s->member || s->rank != 0) return PS_OK;
    return ps_job_start_put(s->member, start, ps_config_step_deadline(s->o.config));
}

ps_err ps_session_join(ps_session *s, uint64_t total_steps)
{
    const ps_job_start start = {.total_steps = total_steps};
    PS_TRY(ps_life_expect(s->life, PS_IN_CREATED, "ps_session_join"));
    // Checked first: nobody is told of a job that cannot begin.
    PS_TRY(session_reach(s, PS_STAGE_CREATED,
                         ps_job_start_rule(&start, s->o.config, &s->rule)));
    PS_TRY(ps_session_join_members(s));
    PS_TRY(session_reach(s, PS_STAGE_JOINED, session_tell_start(s, &start)));
    return ps_session_set_start(s, &start);
}

/* --- start ------------------------------------------------------------------------- */

/* nccl, none and a worker's own steps work on the weights in the device's memory, ps and
 * gloo on those in the host's. */
static ps_err session_open_stream(ps_session *s, ps_device *device)
{
    if (!s->ops->on_device || !device || !device->ops->stream_create) return PS_OK;
    const ps_host_stream_options options = {.table = s->o.table,
                                            .optimizer = &s->rule.optimizer,
                                            .params = s->params.base,
                                            .grads = s->grads.base,
                                            .buffers = s->buffers};
    return device->ops->stream_create(device, &options, &s->stream);
}

/* The exchange finds out whether the workers of the host can read each other's. */
static ps_err session_share_gradients(ps_session *s, ps_device *device)
{
    if (!ps_config_two_levels(s->o.config) || !device || !device->ops->sums_create)
        return PS_OK;
    const ps_device_sums_options options = {.table = s->o.table,
                                            .params = s->params.base,
                                            .grads = s->grads.base,
                                            .most = s->plan.max_chunk_count};
    const ps_err err = device->ops->sums_create(device, &options, &s->sums);
    if (err != PS_ERR_UNSUPPORTED) return err;
    PS_WARN("levels", "sums=host reason=\"%s\"", ps_err_message());
    return PS_OK;
}

/* What a worker that has come back pushes first is no gradient of the device's. */
static ps_err session_encode_on(ps_session *s, ps_device *device)
{
    ps_chunk_codec codec = s->exchange_options.settings.codec;
    codec.overflow = s->rule.scale.on;
    if (!s->ops->coded || !device || !device->ops->codes_create ||
        s->exchange_options.back_at > 0 || !ps_coded_arena_takes(&codec))
        return PS_OK;
    PS_TRY(ps_coded_arena_init(&s->coded, &codec));
    const ps_err err =
        device->ops->codes_create(device, &s->coded, s->grads.base, &s->codes);
    if (err == PS_ERR_UNSUPPORTED) ps_coded_arena_fini(&s->coded);
    if (err != PS_OK) return err == PS_ERR_UNSUPPORTED ? PS_OK : err;
    s->exchange_options.coded = &s->coded;
    PS_INFO("codec", "gradients=encoded-by-%s", device->ops->name);
    return PS_OK;
}

static ps_err session_make_exchange(ps_session *s)
{
    s->exchange_options.buffers = s->buffers;
    s->exchange_options.stream = s->stream;
    s->exchange_options.sums = &s->sums;
    return s->ops->create(&s->exchange_options, &s->exchange);
}

static ps_err session_start(ps_session *s, ps_device *device,
                            const ps_exchange_state *state)
{
    PS_TRY(session_open_stream(s, device));
    PS_TRY(session_share_gradients(s, device));
    PS_TRY(session_encode_on(s, device));
    PS_TRY(session_make_exchange(s));
    if (state) PS_TRY(ps_exchange_load(s->exchange, state));
    return ps_exchange_start(s->exchange);
}

ps_err ps_session_start(ps_session *s, ps_device *device, const ps_exchange_state *state)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_OPEN, "ps_session_start"));
    return session_reach(s, PS_STAGE_STARTED, session_start(s, device, state));
}

/* --- steps ------------------------------------------------------------------------- */

void ps_session_set_cuts(ps_session *s, int64_t cuts)
{
    if (s->rates.n == 0 || cuts == s->cuts) return;
    s->cuts = cuts;
    s->cut = true;
}

static void session_set_rates(ps_session *s, uint64_t step)
{
    ps_group_numbers numbers[1 + PS_CONFIG_GROUPS_MAX];
    ps_plateau_numbers(s->o.config, &s->rule.optimizer, s->cuts, numbers);
    ps_param_groups_set(&s->rates, step, numbers);
    s->cut = false;
}

static bool session_is_idle(const ps_session *s, int tensor, uint32_t step_of)
{
    return step_of != PS_STEP_OF_ALL &&
           (uint32_t)s->o.table->tensors[tensor].owner + 1 != step_of;
}

/* The first tensors from *end on that such a step leaves out: [*first, *end). */
static bool session_next_idle(const ps_session *s, uint32_t step_of, int *first, int *end)
{
    const int n = s->o.table->n_tensors;
    *first = *end;
    while (*first < n && !session_is_idle(s, *first, step_of))
        ++*first;
    *end = *first;
    while (*end < n && session_is_idle(s, *end, step_of))
        ++*end;
    return *end > *first;
}

/* Nobody waits for tensors that the last step has left out, but a chunk is pushed once its
 * push before is answered. */
static ps_err session_wait_for_idle(ps_session *s)
{
    for (int first, end = 0; session_next_idle(s, s->step_of, &first, &end);)
        PS_TRY(ps_session_wait(s, first, end - first));
    return PS_OK;
}

static ps_err session_begin(ps_session *s, uint64_t step, uint32_t step_of)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_begin"));
    if (step != s->next_step)
        return ps_err_set(PS_ERR_ARG, "step %" PRIu64 " begins when %" PRIu64 " is due",
                          step, s->next_step);
    if (step >= s->end_step)
        return ps_err_set(PS_ERR_ARG,
                          "step %" PRIu64 " begins, but the job has %" PRIu64 " steps",
                          step, s->start.total_steps);
    if (s->cut) session_set_rates(s, step);
    PS_TRY(ps_exchange_begin(s->exchange, step));
    PS_TRY(session_wait_for_idle(s));
    s->step_of = step_of;
    const ps_exchange_ops *ops = s->exchange->ops; // a follower has others than s->ops
    if (ops->set_step_of) ops->set_step_of(s->exchange, step_of);
    return PS_OK;
}

ps_err ps_session_begin(ps_session *s, uint64_t step)
{
    return session_begin(s, step, PS_STEP_OF_ALL);
}

/* Tensors [first, first + n) have no gradient in the step. */
static ps_err session_leave_out(ps_session *s, int first, int n)
{
    uint64_t begin, end;
    ps_tensor_table_range(s->o.table, first, n, &begin, &end);
    PS_TRY(ps_exchange_params_needed(s->exchange, begin, end));
    for (int i = first; i < first + n && !s->exchange->ops->leaves_out; i++) {
        const ps_tensor *t = &s->o.table->tensors[i];
        ps_absent_fill(ps_session_grads(s) + t->offset, t->count);
    }
    return ps_exchange_grads_ready(s->exchange, begin, end);
}

ps_err ps_session_begin_of(ps_session *s, uint64_t step, uint32_t step_of)
{
    PS_TRY(session_begin(s, step, step_of));
    for (int first, end = 0; session_next_idle(s, step_of, &first, &end);)
        PS_TRY(session_leave_out(s, first, end - first));
    return PS_OK;
}

/* The range of tensors [first, first + n), of a session that runs. */
static ps_err session_range_of(const ps_session *s, int first, int n, const char *call,
                               uint64_t *begin, uint64_t *end)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, call));
    const int all = s->o.table->n_tensors;
    if (first < 0 || n <= 0 || n > all - first)
        return ps_err_set(PS_ERR_ARG, "%s: tensors %d to %d, but there are %d", call,
                          first, first + n - 1, all);
    ps_tensor_table_range(s->o.table, first, n, begin, end);
    return PS_OK;
}

/* Checks that the session runs and that [begin, end) are elements of the arena. */
static ps_err session_check_range(const ps_session *s, uint64_t begin, uint64_t end,
                                  const char *call)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, call));
    const uint64_t all = s->o.table->arena_count;
    if (begin < end && end <= all) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "%s: elements %" PRIu64 " to %" PRIu64 ", but there are %" PRIu64,
                      call, begin, end, all);
}

ps_err ps_session_wait(ps_session *s, int first, int n)
{
    uint64_t begin, end;
    PS_TRY(session_range_of(s, first, n, "ps_session_wait", &begin, &end));
    return ps_exchange_params_needed(s->exchange, begin, end);
}

ps_err ps_session_wait_range(ps_session *s, uint64_t begin, uint64_t end)
{
    PS_TRY(session_check_range(s, begin, end, "ps_session_wait_range"));
    return ps_exchange_params_needed(s->exchange, begin, end);
}

ps_err ps_session_ready(ps_session *s, int first, int n, bool *ready)
{
    uint64_t begin, end;
    PS_TRY(session_range_of(s, first, n, "ps_session_ready", &begin, &end));
    return ps_exchange_params_ready(s->exchange, begin, end, ready);
}

ps_err ps_session_push_chunk(ps_session *s, uint32_t chunk, uint64_t step)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_push_chunk"));
    return ps_exchange_push_chunk(s->exchange, chunk, step);
}

ps_err ps_session_wait_chunk(ps_session *s, uint32_t chunk, uint64_t version)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_wait_chunk"));
    return ps_exchange_wait_chunk(s->exchange, chunk, version);
}

ps_err ps_session_rows_send(ps_session *s, int kind, uint64_t step,
                            const ps_exchange_body *bodies, ps_exchange_body *answers,
                            uint64_t *sent)
{
    return ps_exchange_rows_send(s->exchange, kind, step, bodies, answers, sent);
}

ps_err ps_session_rows_wait(ps_session *s, uint64_t sent)
{
    return ps_exchange_rows_wait(s->exchange, sent);
}

void *ps_session_rows_arena(ps_session *s, uint32_t shard)
{
    return ps_exchange_rows_arena(s->exchange, shard);
}

ps_err ps_session_check_push(const ps_session *s, int first, int n)
{
    uint64_t begin, end;
    PS_TRY(session_range_of(s, first, n, "ps_session_check_push", &begin, &end));
    return ps_ready_ranges_check_new(s->exchange->ready, begin, end);
}

ps_err ps_session_push(ps_session *s, int first, int n)
{
    uint64_t begin, end;
    PS_TRY(session_range_of(s, first, n, "ps_session_push", &begin, &end));
    return ps_exchange_grads_ready(s->exchange, begin, end);
}

ps_err ps_session_push_range(ps_session *s, uint64_t begin, uint64_t end)
{
    PS_TRY(session_check_range(s, begin, end, "ps_session_push_range"));
    return ps_exchange_grads_ready(s->exchange, begin, end);
}

bool ps_session_counts(const ps_session *s)
{
    return s->ops->rounds != NULL;
}

ps_err ps_session_count(ps_session *s, uint64_t mine, uint64_t all)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_count"));
    ps_exchange_count(s->exchange, mine, all);
    return PS_OK;
}

ps_err ps_session_rest(ps_session *s, bool *rests, bool *over)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_rest"));
    return ps_exchange_rest(s->exchange, rests, over);
}

void ps_session_set_round(ps_session *s, uint64_t steps, double weight)
{
    ps_exchange_set_round(s->exchange, steps, weight);
}

ps_err ps_session_end_round(ps_session *s, bool now, bool *sent)
{
    return ps_exchange_end_round(s->exchange, now, sent);
}

ps_round_cut ps_session_swap_cut(ps_session *s, ps_round_cut plan)
{
    return ps_exchange_swap_cut(s->exchange, plan);
}

ps_err ps_session_finish(ps_session *s)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_finish"));
    if (ps_ready_ranges_check_all(s->exchange->ready) != PS_OK)
        return ps_err_set(PS_ERR_ARG, "%s in step %" PRIu64, ps_err_message(),
                          s->next_step);
    PS_TRY(ps_exchange_finish(s->exchange));
    s->next_step++;
    return PS_OK;
}

ps_err ps_session_drain(ps_session *s)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_drain"));
    return ps_exchange_drain(s->exchange);
}

ps_err ps_session_loss_scale(ps_session *s, float *scale)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_loss_scale"));
    return ps_exchange_loss_scale(s->exchange, scale);
}

ps_err ps_session_sync_buffers(ps_session *s)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_sync_buffers"));
    return ps_exchange_sync_buffers(s->exchange);
}

ps_err ps_session_save(ps_session *s, ps_exchange_state *out)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_save"));
    PS_TRY(ps_exchange_save(s->exchange, out));
    // There a push may be applied while another rank still fetches.
    if (!ps_config_own_pace(s->o.config)) return PS_OK;
    return ps_member_barrier(s->member, "saved", ps_config_step_deadline(s->o.config));
}

/* --- the end ----------------------------------------------------------------------- */

ps_err ps_session_stop(ps_session *s)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_stop"));
    return session_reach(s, PS_STAGE_STOPPED, ps_exchange_stop(s->exchange));
}

/* Where no server notices a worker that goes on instead. Half of what that one waits for
 * this one, so that the error is this one's. */
static ps_err session_meet(ps_session *s)
{
    if (!s->member || (s->ops->servers && !s->ops->peers)) return PS_OK;
    const uint64_t ms = (uint64_t)s->o.config->net.step_timeout_ms / 2;
    return ps_member_barrier(s->member, "another table", ps_deadline_in_ms(ms));
}

ps_err ps_session_retire(ps_session *s)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_STARTED, "ps_session_retire"));
    PS_TRY(ps_exchange_drain(s->exchange));
    PS_TRY(session_meet(s));
    s->exchange->returns = true;
    PS_TRY(ps_session_stop(s));
    ps_exchange_destroy(&s->exchange);
    return PS_OK;
}

static ps_err session_leave(ps_session *s)
{
    if (!s->member) return PS_OK;
    return ps_member_leave(s->member, ps_config_step_deadline(s->o.config));
}

ps_err ps_session_close(ps_session *s)
{
    if (ps_life_stage(s->life) == PS_STAGE_STARTED) PS_TRY(ps_session_stop(s));
    PS_TRY(ps_life_expect(s->life, PS_IN_STOPPED, "ps_session_close"));
    return session_reach(s, PS_STAGE_CLOSED, session_leave(s));
}

static ps_err session_withdraw(ps_session *s)
{
    if (s->ops->servers && !s->ops->peers) {
        PS_TRY(session_make_exchange(s));
        PS_TRY(ps_exchange_stop(s->exchange)); // goodbyes alone
    }
    return session_leave(s);
}

ps_err ps_session_withdraw(ps_session *s)
{
    PS_TRY(ps_life_expect(s->life, PS_IN_OPEN, "ps_session_withdraw"));
    return session_reach(s, PS_STAGE_CLOSED, session_withdraw(s));
}

void ps_session_abort(ps_session *s, ps_err cause, const char *reason)
{
    if (!s) return;
    ps_life_fail(s->life, cause);
    if (s->member) ps_member_abort(s->member, cause, reason);
    ps_exchange_destroy(&s->exchange);
}

void ps_session_destroy(ps_session **session)
{
    ps_session *s = *session;
    if (!s) return;
    ps_exchange_destroy(&s->exchange);
    if (!s->o.member) ps_member_destroy(&s->member);
    if (s->stream) s->stream->ops->destroy(&s->stream);
    if (s->sums) s->sums->ops->destroy(&s->sums, false);
    if (s->codes) s->codes->destroy(&s->codes);
    ps_coded_arena_fini(&s->coded);
    ps_shared_mem_fini(&s->params);
    ps_shared_mem_fini(&s->grads);
    free(s->buffers);
    ps_plan_fini(&s->plan);
    ps_param_groups_fini(&s->rates);
    ps_life_fini(&s->own_life);
    free(s);
    *session = NULL;
}

/* --- what it has ------------------------------------------------------------------- */

const ps_plan *ps_session_plan(const ps_session *s)
{
    return &s->plan;
}

int ps_session_servers(const ps_session *s)
{
    return s->n_servers;
}

int ps_session_rank(const ps_session *s)
{
    return s->rank;
}

int ps_session_world_size(const ps_session *s)
{
    return s->world_size;
}

ps_member *ps_session_member(const ps_session *s)
{
    return s->member;
}

bool ps_session_told_to_leave(const ps_session *s)
{
    return s->member && s->rank != 0 && s->fewest > 0 && ps_interrupt_signal() == SIGTERM;
}

bool ps_session_told_to_end(const ps_session *s)
{
    return ps_member_interrupted(s->member) ||
           (ps_interrupted() && !ps_session_told_to_leave(s));
}

uint64_t ps_session_total_steps(const ps_session *s)
{
    return s->start.total_steps;
}

double ps_session_lr(const ps_session *s, uint64_t step)
{
    return ps_step_rule_lr(&s->rule, step, 0);
}

double ps_session_lr_factor(const ps_session *s, uint64_t step)
{
    return ps_step_rule_lr_factor(&s->rule, step);
}

float *ps_session_params(const ps_session *s)
{
    return s->params.base;
}

float *ps_session_grads(const ps_session *s)
{
    return s->grads.base;
}

void *ps_session_buffers(const ps_session *s)
{
    return s->buffers;
}

const ps_optimizer *ps_session_optimizer(const ps_session *s)
{
    return s->ops->rounds ? &s->outer_rule.optimizer : &s->rule.optimizer;
}

const ps_exchange_ops *ps_session_ops(const ps_session *s)
{
    return s->ops;
}

const char *ps_session_exchange_name(const ps_session *s)
{
    return s->exchange->ops->name;
}

void ps_session_stats(const ps_session *s, ps_exchange_stats *out)
{
    ps_exchange_stats_get(s->exchange, out);
}
