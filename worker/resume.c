#include "resume.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_file.h"
#include "file_wait.h"
#include "job_keys.h"
#include "log.h"
#include "membership_log.h"
#include "regular_file.h"
#include "run_config.h"
#include "tell.h"
#include "trainer.h"

/* ---- finding and reading, on rank 0 ---- */

/* A start of the same command that had not come to its first checkpoint is begun anew. A
 * run that has ended stays; but what starts dead parts again (recovery.rejoins) does so
 * with one that died after its summary, too: with the same settings it is made again. */
static bool has_ended(const char *run_dir)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/summary.json", run_dir);
    return lstat(path, &st) == 0;
}

static ps_err none_found(ps_resume *r, const ps_checkpoint_folder *f)
{
    if (!r->o.cli->resume_auto)
        return ps_err_set(PS_ERR_IO, "--resume: there is no checkpoint in %s", f->path);
    r->overwrites =
        !has_ended(r->run_dir) || (r->o.config->recovery.rejoins > 0 &&
                                   ps_run_config_is_of(r->o.config, r->run_dir));
    return PS_OK;
}

static ps_err check_changes(const ps_resume *r, const json_t *manifest)
{
    char changed[1024];
    PS_TRY(ps_checkpoint_compare(manifest, r->o.config, changed, sizeof changed));
    if (changed[0])
        PS_WARN(
            "resume",
            "note=\"the configuration is not the checkpoint's: the result is not that "
            "of an unbroken run\" changed=\"%s\"",
            changed);
    return PS_OK;
}

/* A table's means and categories are those of train.init, and else of the samples: these
 * are others where that file is gone. Every checkpoint has them, too. */
static ps_err explain_table(const ps_resume *r, ps_err err, const char *folder)
{
    const char *init = r->o.config->train.init;
    if (!r->shape.table->preprocessing || !init[0] || access(init, R_OK) == 0) return err;
    return ps_err_set(err,
                      "%s; or, as train.init is gone, from which the table's means and "
                      "categories were: train.init=%s/model.safetensors",
                      ps_err_message(), folder);
}

/* *damaged: an older checkpoint may be whole; else it is whole, and of another job. */
static ps_err read_one(ps_resume *r, const char *folder, bool *damaged)
{
    json_t *manifest;
    *damaged = true;
    PS_TRY(ps_checkpoint_verify(folder, &manifest));
    *damaged = false;
    ps_err err = check_changes(r, manifest);
    if (err == PS_OK) err = ps_snapshot_init(&r->snapshot, &r->shape, 0, true);
    if (err == PS_OK) err = ps_checkpoint_read(folder, manifest, &r->shape, &r->snapshot);
    json_decref(manifest);
    return err == PS_OK ? PS_OK
                        : explain_table(r, ps_err_prefix(err, "%s", folder), folder);
}

static void say_resume(const ps_resume *r, const char *from)
{
    const ps_trainer_snapshot *s = &r->snapshot.trainer;
    const uint64_t made = r->choice.made, n_lost = made > s->step ? made - s->step : 0;
    const bool known = made > 0; // to somebody
    char lost[48] = "";
    if (known) snprintf(lost, sizeof lost, " steps_lost=%" PRIu64, n_lost);
    ps_tell("resume", "{s:I, s:o}", "step", (json_int_t)s->step, "steps_lost",
            known ? json_integer((json_int_t)n_lost) : json_null());
    PS_INFO("resume", "step=%" PRIu64 " epoch=%" PRId64 " from=\"%s\"%s", s->step,
            s->epoch, from, lost);
}

/* had, has: samples, and their mark. */
static void compare_part(const char *part, const char *effect, const uint64_t had[2],
                         const uint64_t has[2])
{
    if (had[0] == 0 || has[0] == 0 || (had[0] == has[0] && had[1] == has[1])) return;
    PS_WARN("resume",
            "note=\"the %s samples are not the checkpoint's: %s\" had=%" PRIu64
            " has=%" PRIu64 "%s",
            part, effect, had[0], has[0], had[0] == has[0] ? " differ=answers" : "");
}

/* Training samples that have been seen are known by their places. Evaluations are
 * compared with each other: for the best one, train.patience and schedule.name=plateau.
 */
static void compare_data(const ps_resume *r)
{
    const ps_trainer_snapshot *s = &r->snapshot.trainer;
    compare_part("training", "the result is not that of an unbroken run",
                 (const uint64_t[]){s->train_samples, s->train_mark},
                 (const uint64_t[]){(uint64_t)r->o.train->n, r->o.train_mark});
    compare_part("test", "evaluations before and after are not of the same samples",
                 (const uint64_t[]){s->test_samples, s->test_mark},
                 (const uint64_t[]){(uint64_t)r->o.test->n, r->o.test_mark});
}

static ps_err read_newest(ps_resume *r, const ps_checkpoint_folder *f,
                          const uint64_t *steps, size_t n)
{
    char folder[PATH_MAX];
    ps_err err = PS_OK;
    bool damaged;
    size_t i = 0;
    for (; i < n; i++) {
        ps_checkpoint_folder_step(f, steps[i], folder);
        err = read_one(r, folder, &damaged);
        if (err == PS_OK) break;
        ps_snapshot_fini(&r->snapshot);
        if (!damaged) return err;
        if (i + 1 < n)
            PS_WARN("resume", "reason=\"%s\" note=\"the checkpoint before is used\"",
                    ps_err_message());
    }
    if (i == n) return ps_err_prefix(err, "--resume: no checkpoint is whole; the oldest");
    for (size_t k = 0; k < i; k++)
        ps_checkpoint_folder_set_aside(f, steps[k]);
    r->goes_on = true;
    say_resume(r, folder);
    compare_data(r);
    return PS_OK;
}

static ps_err resume_find(ps_resume *r)
{
    ps_checkpoint_folder folder;
    uint64_t *steps;
    size_t n;
    ps_checkpointer_folder(r->o.config, r->run_dir, &folder);
    PS_TRY(ps_checkpoint_folder_list(&folder, &steps, &n));
    ps_err err = n == 0 ? none_found(r, &folder) : read_newest(r, &folder, steps, n);
    free(steps);
    return err;
}

/* Rank 0 of a process that joins again has checkpoints of its own, or none. */
static bool is_back(const ps_resume *r)
{
    return r->o.rank == 0 && r->o.own_dir;
}

/* Rank 0: the folder of the run that may go on; NULL: a new job, or a new one so far. */
static ps_err choose_run_dir(ps_resume *r)
{
    const ps_cli *cli = r->o.cli;
    if (r->o.rank != 0) return PS_OK;
    if (is_back(r) && ps_checkpointer_has_written(r->o.checkpointer)) {
        r->run_dir = r->o.own_dir;
        return PS_OK;
    }
    if (!cli->resume || !cli->resume[0]) return PS_OK;
    r->run_dir = r->o.cli->resume_auto ? cli->out : cli->resume;
    if (r->run_dir && r->run_dir[0]) return PS_OK;
    return ps_err_set(PS_ERR_ARG, "--resume auto needs --out, the folder of the run");
}

/* Rank 0: the step of the newest checkpoint on disk; 0: there is none. */
static ps_err find_disk_step(const ps_resume *r, uint64_t *out)
{
    ps_checkpoint_folder folder;
    uint64_t *steps;
    size_t n;
    *out = 0;
    if (!r->run_dir) return PS_OK;
    ps_checkpointer_folder(r->o.config, r->run_dir, &folder);
    PS_TRY(ps_checkpoint_folder_list(&folder, &steps, &n));
    if (n > 0) *out = steps[0];
    free(steps);
    return PS_OK;
}

/* Rank 0 trusts the others' memory where the job goes on: it has been in it itself, was
 * started again (PS_INCARNATION), or server 0 has been in it, whose process everybody
 * joins. Else they may be left over from another job. */
static ps_err is_job_old(const ps_resume *r, bool *old)
{
    void *value = NULL;
    size_t bytes = 0;
    *old = is_back(r) || r->o.cli->incarnation > 0;
    if (*old || r->o.rank != 0 || ps_member_roster(r->o.member)->n_servers == 0)
        return PS_OK;
    PS_TRY(ps_member_get(r->o.member, PS_JOB_KEY_AGAIN, &value, &bytes,
                         ps_config_step_deadline(r->o.config)));
    *old = bytes > 0;
    free(value);
    return PS_OK;
}

/* Becomes NULL where a server does not have that snapshot's rows of embedding tables. */
static ps_err resume_check_rows(const ps_resume *r, const ps_snapshot **newest)
{
    bool kept = true;
    if (*newest && (*newest)->trainer.rows_point > 0)
        PS_TRY(ps_rows_point_is_kept(
            r->o.member, ps_member_roster(r->o.member)->n_servers,
            (*newest)->trainer.rows_point, ps_config_step_deadline(r->o.config), &kept));
    if (!kept) *newest = NULL;
    return PS_OK;
}

/* Rank 0: at least that of the results, which another process may have begun. */
static ps_err resume_find_generation(const ps_resume *r, uint64_t *generation)
{
    const char *folder = r->o.own_dir ? r->o.own_dir : r->o.cli->out;
    uint64_t last;
    if (r->o.rank != 0 || !folder || !folder[0]) return PS_OK;
    PS_TRY(ps_membership_generation(r->o.config, folder, &last));
    if (last > *generation) *generation = last;
    return PS_OK;
}

static ps_err resume_meet(ps_resume *r)
{
    const ps_snapshot *newest = ps_checkpointer_newest(r->o.checkpointer);
    ps_survivor own = {.made = r->o.made,
                       .generation = r->o.generation,
                       .starts = (uint64_t)r->o.cli->incarnation};
    uint64_t disk_step;
    r->choice = (ps_survivors_choice){.source = -1};
    if (!r->o.member) return PS_OK;
    PS_TRY(is_job_old(r, &r->old));
    PS_TRY(resume_check_rows(r, &newest));
    if (newest) own.step = newest->trainer.step;
    if (newest) own.n_ranks = newest->n_ranks;
    PS_TRY(find_disk_step(r, &disk_step));
    PS_TRY(resume_find_generation(r, &own.generation));
    return ps_survivors_meet(r->o.member, &own, r->old, disk_step,
                             ps_file_meeting_deadline(r->o.config, r->o.rank),
                             &r->choice);
}

static ps_err take_arrays(ps_resume *r, const ps_snapshot *from)
{
    char text[48];
    snprintf(text, sizeof text, "memory of worker %d", r->choice.source);
    if (!r->shape.own_stays) PS_TRY(ps_snapshot_fold(from, &r->shape, &r->snapshot));
    PS_TRY(ps_trainer_snapshot_copy(&r->snapshot.trainer, &from->trainer));
    r->arrays = from;
    r->run_dir = r->o.own_dir ? r->o.own_dir : r->o.cli->out;
    r->goes_on = true;
    say_resume(r, text);
    return PS_OK;
}

/* All ranks: the choice is a snapshot in a worker's memory. */
static ps_err take_from_memory(ps_resume *r)
{
    const int from = r->choice.source, rank = r->o.rank;
    const ps_snapshot *newest = ps_checkpointer_newest(r->o.checkpointer);
    ps_snapshot_shape shape = r->shape;
    if (shape.own_stays) shape.local = shape.feedback = false;
    const ps_snapshot_ranks ranks = {.member = r->o.member,
                                     .rank = rank,
                                     .world_size = r->o.world_size,
                                     .timeout_ms =
                                         (uint64_t)r->o.config->net.step_timeout_ms};
    if (from == 0) return rank == 0 ? take_arrays(r, newest) : PS_OK;
    shape.n_ranks = r->choice.of_source.n_ranks;
    ps_snapshot *s = rank == 0      ? &r->moved
                     : rank == from ? (ps_snapshot *)(uintptr_t)newest // only read
                                    : NULL;
    if (rank == 0) PS_TRY(ps_snapshot_init(s, &shape, 0, true));
    PS_TRY(ps_snapshot_move(s, &shape, &ranks, from));
    return rank == 0 ? take_arrays(r, s) : PS_OK;
}

/* The others have gone on. */
static ps_err resume_take_place(ps_resume *r)
{
    const ps_coord_orders_reentry from = ps_member_reentry(r->o.member);
    if (from.fragment >= (uint64_t)r->o.config->sync.fragments)
        return ps_err_set(PS_ERR_PROTOCOL, "the coordinator gave fragment %" PRIu64,
                          from.fragment);
    r->goes_on = true;
    r->run_dir = r->o.own_dir ? r->o.own_dir : r->o.cli->out;
    PS_TRY(
        ps_job_start_get(r->o.member, &r->start, ps_config_step_deadline(r->o.config)));
    PS_TRY(ps_trainer_reentry_hear(r->o.member, &from, r->shape.table,
                                   &r->snapshot.trainer, &r->reentry,
                                   ps_config_step_deadline(r->o.config)));
    r->choice = (ps_survivors_choice){.source = -1, .generation = r->reentry.generation};
    r->start.step = r->snapshot.trainer.step;
    r->start.back_at = from.push;
    r->start.back_fragment = from.fragment;
    r->start.buffer_pieces = r->reentry.buffer_pieces;
    ps_tell("back", "{}");
    PS_INFO("back", "step=%" PRIu64 " note=\"the others have gone on\"", r->start.step);
    return PS_OK;
}

ps_err ps_resume_init(ps_resume *r, const ps_resume_options *options,
                      const ps_optimizer *optimizer)
{
    *r = (ps_resume){.o = *options};
    r->shape = ps_snapshot_shape_of(options->config, options->table, optimizer,
                                    options->world_size);
    r->arrays = &r->snapshot;
    if (options->member && ps_member_reentry(options->member).push > 0)
        return resume_take_place(r);
    // What is in memory is as new as what is on the disk, which may be slow.
    if (!ps_checkpointer_newest(options->checkpointer)) PS_TRY(choose_run_dir(r));
    PS_TRY(resume_meet(r));
    if (r->choice.source >= 0) return take_from_memory(r);
    PS_TRY(choose_run_dir(r));
    return r->run_dir ? resume_find(r) : PS_OK;
}

void ps_resume_fini(ps_resume *r)
{
    ps_snapshot_fini(&r->snapshot);
    ps_snapshot_fini(&r->moved);
    ps_trainer_reentry_fini(&r->reentry);
}

/* ---- telling the others ---- */

static ps_err put_state(ps_resume *r)
{
    json_t *json;
    if (!r->goes_on) return PS_OK;
    PS_TRY(ps_trainer_snapshot_to_json(&r->snapshot.trainer, &json));
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (!text) return ps_err_set(PS_ERR_NOMEM, "no memory for the state of training");
    ps_err err = ps_member_put(r->o.member, PS_JOB_KEY_TRAINER, text, strlen(text),
                               ps_config_step_deadline(r->o.config));
    free(text);
    return err;
}

static ps_err get_state(ps_resume *r)
{
    void *value = NULL;
    size_t bytes;
    PS_TRY(ps_snapshot_init(&r->snapshot, &r->shape, r->o.rank, false));
    PS_TRY(ps_member_get(r->o.member, PS_JOB_KEY_TRAINER, &value, &bytes,
                         ps_config_step_deadline(r->o.config)));
    json_t *json = json_loadb(value, bytes, 0, NULL);
    free(value);
    ps_err err = ps_trainer_snapshot_from_json(json, &r->snapshot.trainer);
    json_decref(json);
    return err;
}

/* The batches of the checkpoint, if it divides as many samples among as many workers. */
static void take_batches(const ps_resume *r, const ps_sampler_options *sampler)
{
    const ps_trainer_snapshot *s = &r->snapshot.trainer;
    const int n = sampler->world_size;
    double all = 0;
    for (int k = 0; k < n; k++) {
        if (s->n_ranks != n || s->batches[k] < 1) return;
        all += s->batches[k] - (double)sampler->batch[k];
    }
    for (int k = 0; k < n && all == 0; k++)
        r->o.batches[k] = (int64_t)s->batches[k];
}

static void set_sampler(const ps_resume *r, ps_sampler_options *sampler)
{
    const ps_trainer_snapshot *s = &r->snapshot.trainer;
    sampler->start = (ps_sampler_start){0};
    if (r->goes_on && !ps_trainer_reentrys_are_own(r->o.config))
        sampler->start = (ps_sampler_start){(uint64_t)s->epoch, s->position};
    if (r->goes_on && ps_config_balances(r->o.config)) take_batches(r, sampler);
}

/* Rank 0, and a worker that is alone. */
static ps_err resume_tell(ps_resume *r, ps_sampler_options *sampler)
{
    const ps_exchange_state *x = &r->arrays->exchange;
    set_sampler(r, sampler);
    r->start.step = r->goes_on ? r->snapshot.trainer.step : 0;
    // At their own pace workers keep their places in the epoch themselves.
    r->start.total_steps = ps_trainer_total_steps(
        r->o.config, sampler, r->o.accumulate,
        ps_trainer_reentrys_are_own(r->o.config) ? 0 : r->start.step);
    r->start.rule_bytes = r->goes_on ? x->rule_bytes : 0;
    memcpy(r->start.rule, x->rule, r->start.rule_bytes);
    if (!r->o.member) return PS_OK;
    PS_TRY(put_state(r));
    return ps_job_start_put(r->o.member, &r->start, ps_config_step_deadline(r->o.config));
}

static ps_err resume_hear(ps_resume *r, ps_sampler_options *sampler)
{
    PS_TRY(
        ps_job_start_get(r->o.member, &r->start, ps_config_file_deadline(r->o.config)));
    r->goes_on = r->start.step > 0;
    if (r->goes_on) PS_TRY(get_state(r));
    set_sampler(r, sampler);
    return PS_OK;
}

ps_err ps_resume_tell(ps_resume *r, ps_sampler_options *sampler)
{
    if (r->start.back_at > 0) return PS_OK; // it was told already
    PS_TRY(r->o.rank == 0 ? resume_tell(r, sampler) : resume_hear(r, sampler));
    const bool own_counts = r->choice.own_counts;
    ps_checkpointer_forget_after(r->o.checkpointer, own_counts ? r->start.step : 0);
    return PS_OK;
}

/* ---- the folder of results ---- */

static bool in_place(const ps_resume *r, const ps_run_dir *dir)
{
    return r->goes_on && ps_regular_file_is_same(r->run_dir, dir->path);
}

/* Checkpoints of another run, with higher steps, would outlive the new ones. */
static ps_err claim_checkpoints(const ps_resume *r, const ps_run_dir *dir, bool overwrite)
{
    ps_checkpoint_folder folder;
    uint64_t *steps;
    size_t n;
    if (!ps_config_makes_checkpoints(r->o.config)) return PS_OK;
    ps_checkpointer_folder(r->o.config, dir->path, &folder);
    if (r->goes_on) return PS_OK;
    if (overwrite) ps_checkpoint_folder_remove(&folder);
    PS_TRY(ps_checkpoint_folder_list(&folder, &steps, &n));
    free(steps);
    if (n == 0) return PS_OK;
    return ps_err_set(PS_ERR_IO,
                      "%s holds checkpoints already: go on from them with --resume, "
                      "replace them with --overwrite, or give another checkpoint.path",
                      folder.path);
}

/* A file that the job has still to read must not be removed before. */
static ps_err check_replaced(const ps_resume *r, const ps_run_dir *dir, const char *key,
                             const char *file)
{
    ps_checkpoint_folder folder;
    ps_checkpointer_folder(r->o.config, dir->path, &folder);
    if (!file[0] ||
        (!ps_run_dir_replaces(dir, file) && !ps_checkpoint_folder_holds(&folder, file)))
        return PS_OK;
    return ps_err_set(PS_ERR_IO,
                      "%s: %s is of the run in %s, which --overwrite replaces: give "
                      "another --out, or copy the file elsewhere before",
                      key, file, dir->path);
}

ps_err ps_resume_claim(const ps_resume *r, ps_run_dir *dir)
{
    const ps_config *c = r->o.config;
    const bool overwrite = r->o.cli->overwrite || r->overwrites;
    if (in_place(r, dir)) return ps_run_dir_claim_again(dir);
    if (overwrite && !r->goes_on)
        PS_TRY(check_replaced(r, dir, "train.init", c->train.init));
    if (overwrite) PS_TRY(check_replaced(r, dir, "sync.replay", c->sync.replay));
    PS_TRY(ps_run_dir_claim(dir, overwrite, r->old));
    return claim_checkpoints(r, dir, overwrite);
}

ps_err ps_resume_metrics(const ps_resume *r, const ps_run_dir *dir, ps_metrics *metrics)
{
    char path[PATH_MAX];
    PS_TRY(ps_run_dir_path(dir, "metrics.jsonl", path));
    if (!in_place(r, dir)) return ps_metrics_open(metrics, path);
    return ps_metrics_reopen(metrics, path, r->snapshot.trainer.metrics_bytes);
}

/* ---- state ---- */

void ps_resume_weights(const ps_resume *r, float *params, void *buffers)
{
    const size_t bytes = r->shape.table->buffer_bytes;
    if (r->reentry.buffers) memcpy(buffers, r->reentry.buffers, bytes);
    if (!r->goes_on || r->o.rank != 0 || r->start.back_at > 0) return;
    memcpy(params, r->arrays->params, r->shape.table->arena_count * sizeof *params);
    memcpy(buffers, r->arrays->buffers, bytes);
}

/* What this process has kept itself; a new one begins anew. */
static void take_own(ps_resume *r)
{
    const ps_snapshot *own =
        r->choice.own_counts ? ps_checkpointer_of_step(r->o.checkpointer, r->start.step)
                             : NULL;
    if (!own && r->choice.own_counts)
        PS_WARN("resume", "step=%" PRIu64 " note=\"this worker's optimizer begins anew\"",
                r->start.step);
    r->exchange.feedback = own ? own->exchange.feedback : NULL;
    r->exchange.local = own ? own->exchange.local : NULL;
}

ps_err ps_resume_exchange(ps_resume *r, const ps_exchange_state **out)
{
    *out = NULL;
    if (!r->goes_on || r->start.back_at > 0) return PS_OK;
    r->exchange = r->arrays->exchange;
    *out = &r->exchange;
    if (r->shape.own_stays && r->choice.source >= 0) {
        take_own(r);
        return PS_OK;
    }
    r->exchange.feedback = r->snapshot.exchange.feedback;
    r->exchange.local = r->snapshot.exchange.local;
    const ps_snapshot_ranks ranks = {.member = r->o.member,
                                     .rank = r->o.rank,
                                     .world_size = r->o.world_size,
                                     .timeout_ms =
                                         (uint64_t)r->o.config->net.step_timeout_ms};
    return ps_snapshot_scatter(&r->snapshot, &r->shape, &ranks);
}

ps_err ps_resume_rows(const ps_resume *r, ps_session *session, ps_rows_points *points)
{
    const ps_snapshot *s = &r->snapshot;
    if (s->trainer.rows_point == 0)
        return ps_err_set(
            PS_ERR_CONFIG,
            "the checkpoint has no rows of embedding tables, but the model "
            "has such tables: begin a new job from its weights (train.init)");
    return s->rows ? ps_rows_points_return(points, session, 0, s->rows_folder, s->rows)
                   : ps_rows_points_return_in_memory(
                         points, session, s->trainer.rows_point, s->trainer.step);
}

void ps_resume_drop_arrays(ps_resume *r)
{
    ps_snapshot_drop_arrays(&r->snapshot);
    ps_snapshot_drop_arrays(&r->moved);
}
