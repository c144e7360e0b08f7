/* Epochs in which workers go on at their own pace (sync_policy.h).
 *
 * An epoch goes on until the servers say that it is over. Then all ranks have the same
 * weights. Each rank takes its own samples of the epoch; one that is fast goes over them
 * again in another order, one that is slow leaves some out. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance.h"
#include "fault_point.h"
#include "job_keys.h"
#include "local_steps.h"
#include "log.h"
#include "policy_log.h"
#include "rest_record.h"
#include "sync_codec.h"
#include "trace.h"
#include "trainer_state.h"

struct ps_trainer_own {
    uint64_t first_clock; // where t->clock began
    bool loads;           // the loader is in t->pass
    uint64_t own_steps;   // of this rank in this epoch
    double shown_seconds; // of all steps that were shown
    uint64_t version;     // updates made, at the last rest
    uint64_t n_rests;
    uint64_t log_step;      // where the job began or went on, which names policy.log
    bool log_ended;         // the disk had no room for it
    bool asks;              // it has taken a dead worker's place, and has no weights yet
    bool repeats;           // the job repeats a record: sync.replay of worker 0
    ps_policy_lines replay; // worker 0's
    bool told_end;          // it has told the servers that it was told to end
    char *figures;          // JSON, owned; NULL: none yet
    /* With sync.steps_by_speed; otherwise NULL: */
    int64_t *round_steps; // (ranks) of a round; owned
    double round_seconds; // of this rank's own steps, older ones less
    double round_done;    // these steps
};

/* Where policy.log goes; NULL: nowhere. */
static const ps_run_dir *stretch_log(const ps_trainer *t)
{
    return t->own->log_ended ? NULL : t->o.run_dir;
}

/* err: of lines of policy.log. The disk may have no room for them: then it ends, for
 * without them those that follow would repeat another run. */
static ps_err stretch_logged(const ps_trainer *t, ps_err err)
{
    if (err != PS_ERR_IO) return err;
    PS_ERROR("record",
             "reason=\"%s\" note=\"training goes on; --replay can repeat the steps up to "
             "here\"",
             ps_err_message());
    t->own->log_ended = true;
    return PS_OK;
}

/* --- rounds of as many steps as fit a worker's own speed (sync.steps_by_speed) -------
 */

/* Before the first step. With other rounds this and what follows do nothing. */
static ps_err trainer_rounds_init(ps_trainer *t)
{
    const ps_config_sync *s = &t->o.config->sync;
    const int n = t->o.sampler->world_size;
    if (!s->steps_by_speed || n < 2 || s->local_steps < 2) return PS_OK;
    PS_TRY(PS_NEW(&t->own->round_steps, (size_t)n, "the rounds' steps"));
    for (int r = 0; r < n; r++)
        t->own->round_steps[r] = s->local_steps;
    return PS_OK;
}

/* The steps that all make before they agree for the first time. None waits for an answer
 * before that: of the first round no fragment is sent yet. */
static uint64_t rounds_probe(const ps_trainer *t)
{
    enum { PART = 16, MOST = 4 };
    const ps_config_sync *s = &t->o.config->sync;
    const int64_t n = s->local_steps / PART;
    const int64_t most = s->local_steps / s->fragments - s->overlap - 1;
    const int64_t made = n < 1 ? 1 : n > MOST ? MOST : n;
    return (uint64_t)(made < most ? made : most);
}

/* The least steps of a round of that each fragment has, and more than `made`: those of
 * the present round that are made already. */
static int64_t least_steps(const ps_trainer *t, int64_t made)
{
    const ps_config_sync *s = &t->o.config->sync;
    const int64_t each = made > s->overlap ? made : s->overlap;
    const int64_t least = s->fragments * (each + 1);
    return least < s->local_steps ? least : s->local_steps;
}

/* Books a step of this rank. */
static void trainer_rounds_book(ps_trainer *t, double seconds)
{
    const bool cold = t->clock == t->own->first_clock && !t->o.reentry;
    if (cold && rounds_probe(t) > 1) return;
    t->own->round_seconds += seconds;
    t->own->round_done++;
}

/* Whether this rank has just made the steps since the job began or went on after which
 * all agree for the first time. */
static bool trainer_rounds_are_new(const ps_trainer *t)
{
    return t->clock == t->own->first_clock + rounds_probe(t) && !t->o.reentry;
}

/* As measured. A worker that has just come back may have made no step. */
static ps_err rounds_measure(ps_trainer *t, int n)
{
    double speeds[PS_MAX_RANKS] = {0};
    const double seconds = t->own->round_seconds > 1e-6 ? t->own->round_seconds : 1e-6;
    speeds[t->rank] = t->own->round_done / seconds;
    PS_TRY(ps_trainer_reduce(t, "rounds", t->own->n_rests, speeds, (size_t)n));
    ps_balance_rounds(speeds, n, t->o.config->sync.local_steps, t->own->round_steps);
    const bool within = trainer_rounds_are_new(t); // the first round
    const uint64_t begun = ps_local_steps_begun(t->o.config, t->result->first_step);
    const int64_t least = least_steps(t, within ? (int64_t)(begun + rounds_probe(t)) : 0);
    for (int r = 0; r < n; r++)
        if (t->own->round_steps[r] < least) t->own->round_steps[r] = least;
    return PS_OK;
}

/* As recorded. After the log's end they stay as they are. */
static ps_err rounds_repeat(ps_trainer *t, int n)
{
    double steps[PS_MAX_RANKS] = {0};
    if (t->rank == 0)
        PS_TRY(ps_policy_lines_next_steps(&t->own->replay, least_steps(t, 0),
                                          t->o.config->sync.local_steps,
                                          t->own->round_steps, n));
    for (int r = 0; r < n && t->rank == 0; r++)
        steps[r] = (double)t->own->round_steps[r];
    PS_TRY(ps_trainer_reduce(t, "rounds", t->own->n_rests, steps, (size_t)n));
    for (int r = 0; r < n; r++)
        t->own->round_steps[r] = (int64_t)steps[r];
    return PS_OK;
}

/* Returns what the change of this rank weighs, times its share of a step's samples. */
static double rounds_weigh(const ps_trainer *t, uint64_t *samples, int n)
{
    double batches = 0, all = 0;
    for (int r = 0; r < n; r++) {
        samples[r] = (uint64_t)(t->o.sampler->batch[r] * t->own->round_steps[r]);
        batches += (double)t->o.sampler->batch[r];
        all += (double)samples[r];
    }
    return (double)t->own->round_steps[t->rank] * batches / all;
}

static ps_err rounds_tell(const ps_trainer *t, const uint64_t *samples, int n)
{
    char text[PS_BALANCE_TEXT_BYTES];
    PS_INFO("rounds", "after_step=%" PRIu64 " steps=%s", t->step,
            ps_balance_text(t->own->round_steps, n, text));
    if (stretch_log(t))
        PS_TRY(stretch_logged(t, ps_policy_log_add_steps(t->o.run_dir, t->own->log_step,
                                                         t->own->round_steps, n)));
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_sync_batches_write(&w, samples, (uint32_t)n);
    return ps_member_put_written(t->member, PS_JOB_KEY_POLICY_BATCHES, &w,
                                 ps_config_step_deadline(t->o.config));
}

/* After that step, and at rest, all ranks before the next step: agrees on the steps of
 * each rank's rounds, by the speeds measured since the last time or as the log that is
 * repeated says. Servers and log learn of them. */
static ps_err trainer_rounds_renew(ps_trainer *t)
{
    uint64_t samples[PS_MAX_RANKS];
    const int n = t->o.sampler->world_size;
    if (!t->own->round_steps) return PS_OK;
    PS_TRY(t->own->repeats ? rounds_repeat(t, n) : rounds_measure(t, n));
    // A speed is that of several epochs, the newest ones most; the first steps are few.
    const double keep = trainer_rounds_are_new(t) ? 0 : 0.5;
    t->own->round_seconds *= keep;
    t->own->round_done *= keep;
    const double weight = rounds_weigh(t, samples, n);
    if (t->rank == 0) PS_TRY(rounds_tell(t, samples, n));
    PS_TRY(ps_trainer_reduce(t, "rounds", t->own->n_rests, NULL, 0)); // a barrier
    ps_session_set_round(t->o.session, (uint64_t)t->own->round_steps[t->rank], weight);
    return PS_OK;
}

/* A worker that takes a dead one's place: its rounds are those of the others' last
 * agreement. */
static ps_err trainer_rounds_take(ps_trainer *t)
{
    uint64_t samples[PS_MAX_RANKS];
    const int n = t->o.sampler->world_size;
    if (!t->own->round_steps || !t->o.reentry->round_steps) return PS_OK;
    memcpy(t->own->round_steps, t->o.reentry->round_steps,
           (size_t)n * sizeof *t->own->round_steps);
    const double weight = rounds_weigh(t, samples, n);
    ps_session_set_round(t->o.session, (uint64_t)t->own->round_steps[t->rank], weight);
    return PS_OK;
}

/* --- where a job begins, or goes on ------------------------------------------------- */

static int64_t steps_per_epoch(const ps_trainer *t)
{
    return (t->n_batches + t->o.accumulate - 1) / t->o.accumulate;
}

/* The steps of what workers send at once: with a quorum a round's, otherwise one. */
static int64_t steps_per_push(const ps_trainer *t)
{
    return ps_config_quorum(t->o.config) ? t->o.config->sync.local_steps : 1;
}

static uint64_t whole_pushes(const ps_trainer *t, int64_t steps)
{
    return (uint64_t)((steps + steps_per_push(t) - 1) / steps_per_push(t));
}

static uint64_t pushes_per_epoch(const ps_trainer *t)
{
    return whole_pushes(t, steps_per_epoch(t));
}

/* The coordinator counts rounds as steps. In an epoch's last one workers make K steps,
 * too; only those count that the epoch has. */
static uint64_t pushes_of(const ps_trainer *t, uint64_t step)
{
    const uint64_t all = (uint64_t)steps_per_epoch(t);
    return step / all * pushes_per_epoch(t) + whole_pushes(t, (int64_t)(step % all));
}

static uint64_t steps_of(const ps_trainer *t, uint64_t pushes)
{
    const uint64_t all = (uint64_t)steps_per_epoch(t), k = (uint64_t)steps_per_push(t);
    const uint64_t epoch = pushes_per_epoch(t), rest = pushes % epoch * k;
    const uint64_t steps = pushes / epoch * all + (rest < all ? rest : all);
    return steps < t->total_steps ? steps : t->total_steps;
}

static ps_sync_rules stretch_rules_of(const ps_trainer *t)
{
    ps_config exchange;
    ps_local_steps_outer(&exchange, t->o.config);
    const ps_config_sync *s = &exchange.sync;
    return (ps_sync_rules){
        .kind = s->policy,
        .n_workers = (uint32_t)ps_session_world_size(t->o.session),
        .backups = s->policy == PS_POLICY_BACKUP ? (uint32_t)s->backup : 0,
        .add = s->late == PS_LATE_ADD,
        .grace_ms = (uint64_t)s->grace_ms,
        .cuts = ps_config_quorum(t->o.config),
        .come_back = ps_trainer_reentry_on(t->o.config, &t->o.spec->table),
        .staleness = (uint64_t)s->staleness,
        .correction = s->correction,
        .delay_strength = s->delay_strength,
        .first = pushes_of(t, t->step),
        .number = ps_config_quorum(t->o.config)
                      ? ps_local_steps_round(t->o.config, t->step)
                      : t->step,
        .version = t->own->version,
        .total = pushes_of(t, t->total_steps),
        .stretch = pushes_per_epoch(t),
        .pause = whole_pushes(t, t->o.config->checkpoint.every),
        .stop = pushes_of(t, (uint64_t)t->o.config->train.stop_after),
    };
}

static ps_err put_rules(ps_trainer *t)
{
    const char *path = t->o.config->sync.replay;
    ps_sync_rules rules = stretch_rules_of(t);
    uint64_t batches[PS_MAX_RANKS];
    ps_mp_writer w;
    for (uint32_t r = 0; r < rules.n_workers; r++)
        batches[r] = (uint64_t)t->o.sampler->batch[r];
    if (*path) PS_TRY(ps_policy_log_read(path, &rules, &t->own->replay));
    rules.script = t->own->replay.orders;
    ps_mp_writer_init(&w);
    ps_sync_rules_write(&w, &rules, (uint32_t)t->o.config->sync.fragments, batches);
    const ps_err err = ps_member_put_written(t->member, PS_JOB_KEY_POLICY, &w,
                                             ps_config_step_deadline(t->o.config));
    free(t->own->replay.orders);
    t->own->replay.orders = NULL;
    PS_TRY(err);
    return t->o.run_dir ? ps_policy_log_begin(t->o.run_dir, t->own->log_step, &rules)
                        : PS_OK;
}

/* What is known to go wrong. */
static void stretch_warn(const ps_trainer *t)
{
    const ps_config *c = t->o.config;
    if (ps_config_quorum(c)) return; // of what is known here, nothing is of rounds
    const bool stale = c->sync.policy != PS_POLICY_BACKUP || c->sync.late == PS_LATE_ADD;
    if (!stale || (c->sync.policy == PS_POLICY_SSP && c->sync.staleness == 0)) return;
    if (c->optimizer.name != PS_OPTIMIZER_SGD)
        PS_WARN("policy",
                "optimizer=%s note=\"each worker's gradient is a whole step of "
                "Adam: divide optimizer.lr by about the number of workers\"",
                ps_word_name(ps_optimizer_words, (int)c->optimizer.name));
    else if (c->optimizer.momentum > 0)
        PS_WARN("policy",
                "momentum=%g note=\"stale gradients act like more momentum "
                "(Mitliagkas et al. 2016): a smaller one may do better\"",
                c->optimizer.momentum);
    if (t->o.spec->table.buffer_bytes > t->o.spec->table.frozen_bytes)
        PS_WARN("policy", "note=\"batch norm's running statistics are worker 0's: if it "
                          "is slow, they come from few of the steps\"");
}

/* Where the job goes on, in the middle of an epoch perhaps. The checkpoint of another
 * policy does not know the steps of each rank: all have made as many. */
static void stretch_find_start(ps_trainer *t)
{
    const ps_trainer_snapshot *s = t->o.start;
    if (!s) return;
    const uint64_t epochs = (uint64_t)(s->epoch * steps_per_epoch(t));
    t->own->version = s->version > 0 ? s->version : pushes_of(t, s->step);
    t->own->own_steps =
        s->version > 0 ? (uint64_t)s->own_steps[t->rank] : s->step - epochs;
}

/* Of the samples, those are left out that the dead worker has seen, as far as is known:
 * worker 0's place at the last rest, and the rounds since. */
static ps_err stretch_take_place(ps_trainer *t)
{
    const ps_trainer_reentry *reentry = t->o.reentry;
    const int64_t k = t->own->round_steps ? t->own->round_steps[t->rank]
                                          : t->o.config->sync.local_steps;
    t->own->n_rests = reentry->stretch;
    t->own->log_step = reentry->first;
    t->kept = reentry->kept;
    t->own->own_steps = (uint64_t)t->o.start->own_steps[0] + reentry->made * (uint64_t)k;
    t->own->asks = true;
    t->own->repeats = *t->o.config->sync.replay;
    return trainer_rounds_take(t);
}

static ps_err stretch_create(ps_trainer *t)
{
    PS_TRY(PS_NEW(&t->own, 1, "the trainer"));
    return trainer_rounds_init(t);
}

static void stretch_destroy(ps_trainer *t)
{
    if (!t->own) return;
    free(t->own->figures);
    free(t->own->round_steps);
    ps_policy_lines_fini(&t->own->replay);
    free(t->own);
}

static ps_err stretch_start(ps_trainer *t)
{
    if (t->step >= t->total_steps) return PS_OK;
    stretch_find_start(t);
    t->clock = t->own->log_step = t->step;
    if (!t->o.reentry) t->clock += ps_local_steps_begun(t->o.config, t->step);
    t->own->first_clock = t->clock;
    if (t->o.reentry) return stretch_take_place(t);
    if (t->rank == 0) stretch_warn(t);
    if (t->rank == 0) PS_TRY(put_rules(t));
    double repeats = t->rank == 0 && *t->o.config->sync.replay;
    PS_TRY(ps_member_reduce(t->member, "policy/start", &repeats, 1,
                            ps_config_step_deadline(t->o.config)));
    t->own->repeats = repeats > 0;
    return PS_OK;
}

/* --- steps -------------------------------------------------------------------------- */

/* Others learn of it through the servers, which bring all to rest. */
static ps_err tell_end(ps_trainer *t)
{
    if (t->own->told_end || !ps_session_told_to_end(t->o.session)) return PS_OK;
    t->own->told_end = true;
    return ps_member_put(t->member, PS_JOB_KEY_POLICY_END, "", 0,
                         ps_config_step_deadline(t->o.config));
}

static void stretch_show(ps_trainer *t, double seconds, int64_t group_n)
{
    const uint64_t all = (uint64_t)steps_per_epoch(t);
    if (t->shown < all) t->shown++;
    ps_duration_add(&t->result->step_time, seconds);
    // Until the first rest, as if all ranks were as fast as this one.
    if (t->samples_a_step == 0) t->samples_a_step = (double)group_n;
    if (t->seconds_a_step == 0) t->seconds_a_step = seconds;
    t->own->shown_seconds += seconds;
    ps_exchange_stats stats;
    ps_session_stats(t->o.session, &stats);
    ps_trainer_show_values(t, &stats, t->own->shown_seconds);
    ps_trainer_show_progress(t, t->step_loss, false);
}

/* For processes that take the place of workers which die in this stretch. */
static ps_err tell_place(const ps_trainer *t)
{
    ps_trainer_snapshot now;
    ps_exchange_stats stats;
    const ps_tensor_table *table = &t->o.spec->table;
    if (t->rank != 0 || !ps_trainer_reentry_on(t->o.config, table)) return PS_OK;
    PS_TRY(ps_program_fetch_buffers(t->program));
    ps_session_stats(t->o.session, &stats);
    const ps_trainer_reentry reentry = {.stretch = t->own->n_rests,
                                        .generation = t->o.generation,
                                        .first = t->own->log_step,
                                        .kept = t->kept,
                                        .round_steps = t->own->round_steps,
                                        .buffer_pieces = stats.buffer_pieces,
                                        .buffers = ps_session_buffers(t->o.session)};
    ps_err err = ps_trainer_snapshot_init(&now, t->o.sampler->world_size);
    if (err == PS_OK) {
        ps_trainer_fill_state(t, &now);
        // If this process dies before the best one is on the disk, that is none.
        if (ps_checkpointer_best_is_due(t->o.checkpointer)) now.best = t->best_before;
        err = ps_trainer_reentry_tell(t->member, table, &now, &reentry,
                                      ps_config_step_deadline(t->o.config));
    }
    ps_trainer_snapshot_fini(&now);
    return err;
}

/* A round that comes too late for the stretch ends now, or where the record has it. */
static ps_err cut_short(ps_trainer *t, bool *rests, bool *over)
{
    bool sent;
    const bool late = !t->own->repeats && ps_member_closed(t->member) > t->own->n_rests;
    PS_TRY(ps_session_end_round(t->o.session, late, &sent));
    return sent ? ps_session_rest(t->o.session, rests, over) : PS_OK;
}

static ps_err own_step(ps_trainer *t, int64_t first, int64_t count, bool *rests,
                       bool *over)
{
    PS_TRY(ps_member_check(t->member));
    PS_TRY(tell_end(t));
    const int64_t group_n = ps_trainer_samples(t->global_n, first, count);
    const uint64_t begin = ps_trace_begin(PS_TRACE_STEP);
    PS_TRY(ps_trainer_run_group(t, first, count, group_n));
    trainer_rounds_book(t, ps_clock_seconds_since(begin));
    PS_TRY(ps_session_rest(t->o.session, rests, over));
    if (!*rests) PS_TRY(cut_short(t, rests, over));
    ps_trace_add(PS_TRACE_STEP, begin, t->clock);
    t->clock++;
    t->own->own_steps++;
    stretch_show(t, ps_clock_seconds_since(begin), group_n);
    if (!trainer_rounds_are_new(t)) return PS_OK;
    PS_TRY(trainer_rounds_renew(t));
    return t->own->round_steps ? tell_place(t) : PS_OK;
}

/* The pass and the micro-batch at which this rank's next step begins. */
static ps_err stretch_find_place(ps_trainer *t, int64_t *first)
{
    const uint64_t steps = (uint64_t)steps_per_epoch(t),
                   passes = t->own->own_steps / steps;
    *first = (int64_t)(t->own->own_steps % steps) * t->o.accumulate;
    if (t->own->loads && *first > 0) return PS_OK;
    t->pass =
        (uint64_t)t->epoch + passes * (uint64_t)t->epochs; // later: no epoch's order
    t->own->loads = true;
    return ps_loader_epoch(t->loader, t->pass, *first);
}

/* Which round of this stretch the record has cut short. */
static ps_err plan_cut(ps_trainer *t)
{
    ps_round_cut cuts[PS_MAX_RANKS] = {{0}};
    double numbers[2 * PS_MAX_RANKS] = {0};
    const int n = ps_session_world_size(t->o.session);
    if (!ps_config_quorum(t->o.config) || !t->own->repeats) return PS_OK;
    if (t->own->asks) return PS_OK; // the others have read it
    if (t->rank == 0)
        PS_TRY(ps_policy_lines_next_cuts(&t->own->replay, t->own->n_rests, cuts, n));
    for (int r = 0; r < n; r++) {
        numbers[2 * r] = (double)cuts[r].round;
        numbers[2 * r + 1] = (double)cuts[r].steps;
    }
    PS_TRY(ps_trainer_reduce(t, "cuts", t->own->n_rests, numbers, 2 * (size_t)n));
    const double *mine = &numbers[2 * t->rank];
    ps_session_swap_cut(t->o.session,
                        (ps_round_cut){(uint64_t)mine[0], (uint64_t)mine[1]});
    return PS_OK;
}

/* The weights that the exchange has asked for. */
static ps_err stretch_take_weights(ps_trainer *t, bool *rests, bool *over)
{
    if (!t->own->asks) return PS_OK;
    t->own->asks = false;
    return ps_session_rest(t->o.session, rests, over);
}

static ps_err run_until_rest(ps_trainer *t, bool *over)
{
    bool rests = false;
    // A worker 0 that has come back itself need not tell it again; and in the job's first
    // stretch, it is told after the first steps, when all have agreed on the rounds.
    const bool begins = !t->o.reentry && t->clock == t->own->first_clock;
    const bool known = t->own->asks || (t->own->round_steps && begins);
    PS_TRY(plan_cut(t)); // all take part: until the place is told, nobody may be lost
    if (!known) PS_TRY(tell_place(t));
    PS_TRY(stretch_take_weights(t, &rests, over));
    PS_FAULT_POINT("rest.left");
    while (!rests) {
        int64_t first;
        PS_TRY(stretch_find_place(t, &first));
        const int64_t left = t->n_batches - first;
        PS_TRY(own_step(t, first, left < t->o.accumulate ? left : t->o.accumulate, &rests,
                        over));
    }
    PS_FAULT_POINT("rest.begun");
    return ps_trainer_take_losses(t, 0);
}

/* --- at rest ------------------------------------------------------------------------ */

/* Rank 0 gets the record since the last rest, and where the job stands; the coordinator
 * need not keep it. The caller calls ps_rest_record_fini; on other ranks it is empty. */
static ps_err fetch_record(ps_trainer *t, ps_rest_record *record)
{
    const ps_map_bytes *figures = &record->rest.figures;
    const uint64_t n = t->own->n_rests++;
    if (t->rank != 0) return PS_OK;
    PS_TRY(ps_rest_record_fetch(t->member, n, (uint64_t)t->o.config->net.step_timeout_ms,
                                record));
    free(t->own->figures);
    PS_TRY(ps_mem_zalloc(&t->own->figures, figures->n + 1, 1, "the figures"));
    memcpy(t->own->figures, figures->at, figures->n);
    return PS_OK;
}

/* Samples of the epoch's permutation that bsp would have seen after as many steps. */
static int64_t seen_in_epoch(const ps_trainer *t)
{
    const int64_t steps = (int64_t)t->step - t->epoch * steps_per_epoch(t);
    const int64_t batches = steps * t->o.accumulate;
    return ps_trainer_samples(t->global_n, 0,
                              batches < t->n_batches ? batches : t->n_batches);
}

/* cuts: of each rank its round and its steps. */
static ps_err record_cuts(const ps_trainer *t, const double *numbers, int n)
{
    ps_round_cut cuts[PS_MAX_RANKS];
    bool any = false;
    for (int r = 0; r < n; r++) {
        cuts[r] = (ps_round_cut){(uint64_t)numbers[2 * r], (uint64_t)numbers[2 * r + 1]};
        any = any || cuts[r].round > 0;
    }
    if (!any || !stretch_log(t)) return PS_OK;
    return stretch_logged(t, ps_policy_log_add_cuts(t->o.run_dir, t->own->log_step,
                                                    t->own->n_rests - 1, cuts, n));
}

/* Books the steps since the last rest; the ranks' samples are added up. own_seconds: less
 * than the others' where this process has come back meanwhile. rest: rank 0's counts. */
static ps_err stretch_book(ps_trainer *t, double own_seconds, const ps_sync_rest *rest)
{
    ps_trainer_window *w = &t->since_record;
    ps_trainer_result *r = t->result;
    // Each rank's seconds from OWN on, then each one's cut.
    enum { SAMPLES, STEP, VERSION, OWN };
    const int n = ps_session_world_size(t->o.session);
    double sums[OWN + 3 * PS_MAX_RANKS] = {[SAMPLES] = (double)w->samples,
                                           [STEP] = (double)rest->step,
                                           [VERSION] = (double)rest->version};
    double *cuts = sums + OWN + n;
    const ps_round_cut cut = ps_session_swap_cut(t->o.session, (ps_round_cut){0});
    sums[OWN + t->rank] = own_seconds;
    cuts[2 * t->rank] = (double)cut.round;
    cuts[2 * t->rank + 1] = (double)cut.steps;
    PS_TRY(ps_trainer_reduce(t, "rest", t->own->n_rests, sums, OWN + 3 * (size_t)n));
    PS_TRY(record_cuts(t, cuts, n));
    double seconds = 0;
    for (int i = 0; i < n; i++)
        seconds = fmax(seconds, sums[OWN + i]);
    const uint64_t steps = steps_of(t, (uint64_t)sums[STEP]) - t->step;
    t->step += steps;
    t->own->version = (uint64_t)sums[VERSION];
    t->position = seen_in_epoch(t);
    t->shown = 0;
    r->steps = t->step;
    r->samples += (uint64_t)sums[SAMPLES];
    r->seconds += seconds;
    w->steps += steps > 0 ? steps : 1;
    w->global_samples += (int64_t)sums[SAMPLES];
    w->seconds += seconds;
    t->samples_a_step = sums[SAMPLES] / (double)w->steps;
    t->seconds_a_step = seconds / (double)w->steps;
    return PS_OK;
}

/* The ranks agree on whether to go on. A job that went on from train.stop_after, or
 * later, has that step behind it. */
static ps_err stretch_agree(ps_trainer *t, bool over, bool *stop)
{
    const uint64_t stop_after = (uint64_t)t->o.config->train.stop_after;
    const bool more = t->step < t->total_steps;
    const bool here = t->step >= stop_after && t->result->first_step < stop_after;
    *stop = more && (over || here);
    return ps_trainer_agree(t, true, stop);
}

/* From one rest to the next: the whole epoch, or a part of it. */
static ps_err run_stretch(ps_trainer *t, bool *stop)
{
    const uint64_t begin = ps_clock_ns();
    bool over = false;
    ps_rest_record record = {0};
    const ps_sync_rest *rest = &record.rest;
    PS_TRY(run_until_rest(t, &over));
    ps_err err = fetch_record(t, &record);
    if (err == PS_OK) err = stretch_book(t, ps_clock_seconds_since(begin), rest);
    if (err == PS_OK) err = stretch_agree(t, over, stop);
    if (err == PS_OK && stretch_log(t))
        err = stretch_logged(
            t, ps_policy_log_add_rest(t->o.run_dir, t->own->log_step, rest, *stop));
    ps_rest_record_fini(&record);
    PS_TRY(err);
    if (!*stop && t->step < t->total_steps) PS_TRY(trainer_rounds_renew(t));
    ps_trainer_show_progress(t, t->step_loss, true);
    return ps_trainer_checkpoint_if_due(t, *stop);
}

static ps_err stretch_epoch(ps_trainer *t, bool *stop)
{
    const uint64_t end = (uint64_t)((t->epoch + 1) * steps_per_epoch(t));
    if (!t->goes_on) t->own->own_steps = 0;
    t->goes_on = t->own->loads = false;
    while (t->step < end && t->step < t->total_steps && !*stop)
        PS_TRY(run_stretch(t, stop));
    return PS_OK;
}

/* With a codec each worker has other weights until all have the exact ones. */
static ps_err stretch_settle(ps_trainer *t)
{
    return ps_session_sync_buffers(t->o.session);
}

/* With a quorum workers rest between rounds, which need not end at a multiple. */
static uint64_t stretch_checked(const ps_trainer *t)
{
    return ps_config_quorum(t->o.config) ? t->kept : t->step - 1;
}

static const int64_t *stretch_shares(const ps_trainer *t)
{
    return t->own->round_steps;
}

static void stretch_fill(const ps_trainer *t, ps_trainer_snapshot *s)
{
    s->version = t->own->version;
    s->own_steps[t->rank] = (double)t->own->own_steps;
}

static void stretch_report(const ps_trainer *t)
{
    t->result->policy = t->own->figures;
    t->result->round_steps = t->own->round_steps;
}

const ps_trainer_pace_ops ps_trainer_pace_own = {.create = stretch_create,
                                                 .destroy = stretch_destroy,
                                                 .start = stretch_start,
                                                 .epoch = stretch_epoch,
                                                 .settle = stretch_settle,
                                                 .checked = stretch_checked,
                                                 .shares = stretch_shares,
                                                 .fill = stretch_fill,
                                                 .report = stretch_report};
