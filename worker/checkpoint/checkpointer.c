#include "checkpointer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_file.h"
#include "clock.h"
#include "fault_point.h"
#include "file_wait.h"
#include "log.h"
#include "nontemporal_copy.h"
#include "regular_file.h"
#include "secret.h"
#include "survivors.h"
#include "tell.h"
#include "thread.h"

struct ps_checkpointer {
    ps_checkpointer_options o;
    ps_snapshot_shape shape;
    ps_optimizer optimizer;   // the shape's
    ps_session *session;      // NULL: not attached
    ps_member *member;        // its; NULL: alone
    ps_rows_points *points;   // NULL: no embedding tables
    char *rows, *rows_folder; // of the next snapshot, as there
    int64_t rows_written; // with and since the last one that has all rows; 0: none has
    bool no_links;        // the disk's file system has none
    int rank, n_ranks;    // its
    int holder;           // its second one; 0: none
    bool taken;           // one, since it was attached
    bool keeps_own;       // where other ranks hold all, this one keeps its own
    ps_checkpoint_folder folder;
    uint64_t last_ns;   // when the last one for the disk was taken, or the job began
    uint64_t memory_ns; // when the last one of both kinds was taken; 0: never
    double cost;        // the seconds that one takes here: a running mean; 0: not known
    bool cost_is_known; // by one that was not the first of its membership
    double holder_cost; // and on the holder, before the last one
    ps_snapshot_pair pair;
    ps_snapshot *snapshot; // of the pair: the last one taken; NULL: none

    /* Rank 0's thread. */
    ps_thread thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Under the lock:
    bool writing, stop;
    bool saved;          // the last one is whole
    uint64_t saved_step; // the last whole one's
    bool wrote;          // any
    bool best;           // the one that is being written is the best so far
};

void ps_checkpointer_folder(const ps_config *cfg, const char *run_dir,
                            ps_checkpoint_folder *out)
{
    const char *path = cfg->checkpoint.path;
    const bool given = path[0] != '\0';
    int n = snprintf(out->path, sizeof out->path, "%s%s", given ? path : run_dir,
                     given ? "" : "/checkpoints");
    if (n >= (int)sizeof out->path) out->path[0] = '\0'; // making it fails
}

/* --- the thread ------------------------------------------------------------------- */

/* The job goes on behind the lines that are there now. */
static void checkpointer_keep_metrics(const ps_checkpointer *c)
{
    char path[PATH_MAX];
    int fd;
    snprintf(path, sizeof path, "%s/metrics.jsonl", c->o.run_dir);
    if (ps_regular_file_open(path, O_RDONLY, &fd) != PS_OK) return;
    fsync(fd);
    close(fd);
}

static ps_err write_files(const ps_checkpointer *c, uint64_t step)
{
    char folder[PATH_MAX];
    if (c->snapshot->rows) // servers have written there
        snprintf(folder, sizeof folder, "%s", c->snapshot->rows_folder);
    else
        PS_TRY(ps_checkpoint_folder_begin(&c->folder, step, folder));
    PS_FAULT_POINT("checkpoint.begun");
    PS_TRY(ps_checkpoint_write(folder, c->o.config, &c->shape, c->snapshot));
    checkpointer_keep_metrics(c);
    PS_FAULT_POINT("checkpoint.written");
    PS_TRY(ps_checkpoint_folder_commit(&c->folder, step));
    PS_FAULT_POINT("checkpoint.kept");
    ps_checkpoint_folder_prune(&c->folder, (size_t)c->o.config->checkpoint.keep);
    return PS_OK;
}

static void checkpointer_abandon(const ps_checkpointer *c, uint64_t step,
                                 const char *reason, const char *mend)
{
    PS_ERROR("checkpoint",
             "step=%" PRIu64 " reason=\"%s%s\" note=\"training goes on without it\"",
             step, reason, mend);
    ps_checkpoint_folder_abandon(&c->folder, step);
}

static bool checkpointer_write_one(const ps_checkpointer *c)
{
    const uint64_t step = c->snapshot->trainer.step, begin = ps_clock_ns();
    const ps_err err = write_files(c, step);
    if (err == PS_OK) {
        ps_tell("checkpoint", "{s:I}", "step", (json_int_t)step);
        PS_INFO("checkpoint", "step=%" PRIu64 " folder=%s ms=%.0f", step, c->folder.path,
                (double)(ps_clock_ns() - begin) * 1e-6);
        return true;
    }
    checkpointer_abandon(c, step, ps_err_message(), "");
    return false;
}

static void set_best(const ps_checkpointer *c, uint64_t step)
{
    if (ps_checkpoint_folder_set_best(&c->folder, step) != PS_OK)
        PS_ERROR("checkpoint", "step=%" PRIu64 " reason=\"%s\"", step, ps_err_message());
}

static void *checkpointer_write_all(void *arg)
{
    ps_checkpointer *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->stop || c->writing) {
        if (!c->writing) {
            pthread_cond_wait(&c->changed, &c->lock); // ended by destroy at the latest
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        const bool saved = checkpointer_write_one(c);
        pthread_mutex_lock(&c->lock);
        c->saved = saved;
        c->wrote |= saved;
        if (saved) c->saved_step = c->snapshot->trainer.step;
        c->writing = false;
        if (saved && c->best) set_best(c, c->snapshot->trainer.step);
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Waits until the thread is done, if it may; returns whether it is. */
static bool disk_is_free(ps_checkpointer *c, bool wait)
{
    const ps_deadline deadline = ps_config_file_deadline(c->o.config);
    pthread_mutex_lock(&c->lock);
    while (c->writing && wait && !ps_deadline_passed(deadline))
        ps_cond_wait(&c->changed, &c->lock, deadline);
    const bool is_free = !c->writing;
    pthread_mutex_unlock(&c->lock);
    return is_free;
}

/* --- life --------------------------------------------------------------------------- */

ps_err ps_checkpointer_create(const ps_checkpointer_options *o, ps_checkpointer **out)
{
    ps_checkpointer *c;
    *out = NULL;
    PS_TRY(PS_NEW(&c, 1, "checkpoints"));
    c->o = *o;
    c->shape = *o->shape;
    c->optimizer = *o->shape->optimizer;
    c->shape.optimizer = &c->optimizer;
    c->last_ns = ps_clock_ns();
    pthread_mutex_init(&c->lock, NULL);
    ps_cond_init(&c->changed);
    *out = c;
    return PS_OK;
}

void ps_checkpointer_destroy(ps_checkpointer **pointer)
{
    ps_checkpointer *c = *pointer;
    if (!c) return;
    ps_cond_set(&c->changed, &c->lock, &c->stop);
    ps_thread_join(&c->thread);
    ps_snapshot_pair_fini(&c->pair);
    free(c->rows);
    free(c->rows_folder);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
    *pointer = NULL;
}

/* Whether processes join again after a failure: worker 0's answer counts. */
static bool checkpointer_recovers(const ps_checkpointer *c)
{
    const ps_config_recovery *r = &c->o.config->recovery;
    return c->member && r->rejoins > 0 && r->share > 0;
}

static ps_err checkpointer_start_thread(ps_checkpointer *c)
{
    if (c->rank != 0 || c->thread.runs) return PS_OK;
    ps_checkpointer_folder(c->o.config, c->o.run_dir, &c->folder);
    return ps_thread_start(&c->thread, "checkpoint", checkpointer_write_all, c);
}

/* The first one is taken at once. */
ps_err ps_checkpointer_attach(ps_checkpointer *c, ps_session *session,
                              ps_rows_points *points)
{
    c->session = session;
    c->points = points;
    c->member = ps_session_member(session);
    c->rank = ps_session_rank(session);
    c->n_ranks = ps_session_world_size(session);
    c->holder = c->member ? ps_survivors_holder(ps_member_roster(c->member)) : 0;
    c->taken = false;
    c->memory_ns = 0;
    c->rows_written = 0;
    const bool holds = c->rank == 0 || (checkpointer_recovers(c) && c->rank == c->holder);
    if (holds && disk_is_free(c, false))
        PS_TRY(ps_snapshot_pair_reserve(&c->pair, &c->shape, c->rank,
                                        checkpointer_recovers(c) ? 2 : 1));
    return checkpointer_start_thread(c);
}

void ps_checkpointer_detach(ps_checkpointer *c)
{
    if (!c) return;
    c->session = NULL;
    c->member = NULL;
    c->points = NULL;
}

/* --- when -------------------------------------------------------------------------- */

bool ps_checkpointer_due(const ps_checkpointer *c, uint64_t before, uint64_t step)
{
    const uint64_t every = c ? (uint64_t)c->o.config->checkpoint.every : 0;
    return every > 0 && step / every > before / every;
}

/* The seconds between two in memory. */
static double memory_period(const ps_checkpointer *c)
{
    return fmax(c->cost, c->holder_cost) / c->o.config->recovery.share;
}

ps_checkpoint_target ps_checkpointer_late(ps_checkpointer *c)
{
    if (!c) return PS_CHECKPOINT_NOWHERE;
    const double minutes = c->o.config->checkpoint.minutes;
    const bool disk = minutes > 0 && ps_clock_seconds_since(c->last_ns) >= minutes * 60;
    if (disk && disk_is_free(c, false)) return PS_CHECKPOINT_DISK;
    if (!checkpointer_recovers(c)) return PS_CHECKPOINT_NOWHERE;
    const bool due =
        c->memory_ns == 0 || ps_clock_seconds_since(c->memory_ns) >= memory_period(c);
    return due ? PS_CHECKPOINT_MEMORY : PS_CHECKPOINT_NOWHERE;
}

double ps_checkpointer_seconds_left(const ps_checkpointer *c)
{
    if (!c || !checkpointer_recovers(c)) return INFINITY;
    const double period = memory_period(c);
    const double left = period - ps_clock_seconds_since(c->memory_ns);
    return left > 0 ? left : period; // this one is being taken
}

/* --- one checkpoint ----------------------------------------------------------------- */

const ps_snapshot *ps_checkpointer_newest(const ps_checkpointer *c)
{
    return c ? ps_snapshot_pair_newest(&c->pair) : NULL;
}

const ps_snapshot *ps_checkpointer_of_step(const ps_checkpointer *c, uint64_t step)
{
    return c ? ps_snapshot_pair_of_step(&c->pair, step) : NULL;
}

static void hand_over(ps_checkpointer *c)
{
    if (c->rank != 0) return;
    if (c->snapshot->own_alone)
        PS_WARN("checkpoint",
                "step=%" PRIu64 " note=\"worker 0 alone knows its own state: from this "
                "one the others' optimizers begin anew\"",
                c->snapshot->trainer.step);
    ps_snapshot_renew_others(c->snapshot, &c->shape, c->rank);
    pthread_mutex_lock(&c->lock);
    c->best = false;
    c->writing = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static const ps_snapshot *not_saved(const ps_checkpointer *c)
{
    const ps_snapshot *newest = ps_snapshot_pair_newest(&c->pair);
    const bool whole = newest && newest->trainer.rows_point == 0; // rows are elsewhere
    return whole && newest->trainer.step > c->saved_step ? newest : NULL;
}

bool ps_checkpointer_secure(ps_checkpointer *c)
{
    if (!c || !c->thread.runs || !disk_is_free(c, true)) return false;
    const ps_snapshot *newest = not_saved(c);
    if (!newest) return c->wrote;
    c->snapshot = &c->pair.of[newest - c->pair.of];
    c->shape.n_ranks = newest->n_ranks;
    hand_over(c);
    return disk_is_free(c, true) && c->wrote;
}

void ps_checkpointer_forget_after(ps_checkpointer *c, uint64_t step)
{
    if (c) ps_snapshot_pair_forget_after(&c->pair, step);
}

bool ps_checkpointer_has_written(ps_checkpointer *c)
{
    return c && disk_is_free(c, true) && c->wrote;
}

/* Beside the trainer's numbers, in the order of their places: whether rank 0's disk is
 * busy, which keeps all from going on; whether there is a holder; what the one before has
 * cost it. */
enum { BUSY, RECOVERS, HOLDER_COST, N_MORE };

/* A point's name, which another job or another course of this one does not have, too. */
static ps_err checkpointer_draw_point(uint64_t *out)
{
    ps_secret secret;
    PS_TRY(ps_secret_draw(&secret));
    memcpy(out, secret.bytes, sizeof *out);
    *out = (*out >> 12) + 1; // a double holds it
    return PS_OK;
}

/* Makes the folder, in which servers find it. */
static ps_err checkpointer_begin_folder(ps_checkpointer *c, uint64_t step)
{
    char folder[PATH_MAX];
    PS_TRY(ps_checkpoint_folder_begin(&c->folder, step, folder));
    free(c->rows_folder);
    c->rows_folder = realpath(folder, NULL);
    return c->rows_folder ? PS_OK : ps_err_errno(PS_ERR_IO, "%s", folder);
}

/* What has changed only where the checkpoint before is whole: it has the files that these
 * add to, its own or links. */
static ps_row_writes checkpointer_row_writes(ps_checkpointer *c, uint64_t step)
{
    const int64_t every = c->o.config->checkpoint.rows_full_every;
    if (every == 1 || c->no_links) return PS_ROW_WRITE_FULL;
    pthread_mutex_lock(&c->lock);
    const bool whole = c->saved && c->saved_step != step;
    pthread_mutex_unlock(&c->lock);
    return whole && c->rows_written % every > 0 ? PS_ROW_WRITE_CHANGES
                                                : PS_ROW_WRITE_FIRST;
}

/* Puts the files of the manifest that the servers have not written now into the folder,
 * as links: so each folder has all that it needs, whatever becomes of the others. Returns
 * an errno; the folder then has none of them. */
static int checkpointer_link_rows(const ps_checkpointer *c, const ps_row_manifest *m,
                                  const char *written)
{
    char from[PATH_MAX], before[2 * PATH_MAX], here[2 * PATH_MAX];
    int failed = 0;
    ps_checkpoint_folder_step(&c->folder, c->saved_step, from);
    for (uint32_t i = 0; i < m->n_files && !failed; i++) {
        const char *name = m->files[i].name;
        if (strncmp(name, written, strlen(written)) == 0) continue;
        snprintf(before, sizeof before, "%s/%s", from, name);
        snprintf(here, sizeof here, "%s/%s", c->rows_folder, name);
        if (link(before, here) != 0) failed = errno;
        PS_FAULT_POINT("checkpoint.linked");
    }
    for (uint32_t i = 0; i < m->n_files && failed; i++) {
        if (strncmp(m->files[i].name, written, strlen(written)) == 0) continue;
        snprintf(here, sizeof here, "%s/%s", c->rows_folder, m->files[i].name);
        unlink(here);
    }
    return failed;
}

static ps_err checkpointer_set_point(ps_checkpointer *c, const ps_rows_point *what,
                                     const char **fault)
{
    free(c->rows);
    c->rows = NULL;
    return ps_rows_points_set(c->points, c->session, what, &c->rows, fault);
}

/* Lets the servers write. Where a file cannot be linked, they write all rows. */
static ps_err checkpointer_write_rows(ps_checkpointer *c, ps_rows_point *what,
                                      const char **fault)
{
    char name[48] = "rows";
    ps_row_manifest m;
    if (c->o.config->checkpoint.rows_full_every > 1)
        snprintf(name, sizeof name, "step-%" PRIu64 ".rows", what->step);
    what->name = name;
    what->writes = checkpointer_row_writes(c, what->step);
    PS_TRY(checkpointer_set_point(c, what, fault));
    PS_TRY(ps_row_manifest_read(c->rows, strlen(c->rows), &m));
    const int failed = (*fault)[0] ? 0 : checkpointer_link_rows(c, &m, name);
    ps_row_manifest_fini(&m);
    if (failed) {
        c->no_links = failed == EPERM || failed == EOPNOTSUPP || failed == ENOSYS;
        PS_WARN("checkpoint",
                "step=%" PRIu64 " reason=\"%s: cannot link the rows of the checkpoint "
                "before: %s\" note=\"this one has all rows\"",
                what->step, c->folder.path, strerror(failed));
        what->writes = PS_ROW_WRITE_FIRST;
        PS_TRY(checkpointer_set_point(c, what, fault));
    }
    const bool adds = what->writes == PS_ROW_WRITE_CHANGES;
    c->rows_written = (*fault)[0] ? 0 : adds ? c->rows_written + 1 : 1;
    return PS_OK;
}

/* Rank 0, before any rank copies its state: so servers have the point of every snapshot
 * that is whole, and of the one before. Without files the snapshot stays in memory. */
static ps_err checkpointer_keep_rows(ps_checkpointer *c, ps_trainer_snapshot *state,
                                     bool disk)
{
    const char *fault = "";
    PS_TRY(checkpointer_draw_point(&state->rows_point));
    const bool writes = disk && checkpointer_begin_folder(c, state->step) == PS_OK;
    if (disk && !writes) checkpointer_abandon(c, state->step, ps_err_message(), "");
    ps_rows_point what = {.point = state->rows_point,
                          .step = state->step,
                          .writes = PS_ROW_WRITE_NONE,
                          .folder = c->rows_folder,
                          .name = "rows"};
    PS_TRY(writes ? checkpointer_write_rows(c, &what, &fault)
                  : checkpointer_set_point(c, &what, &fault));
    if (writes && !fault[0]) return PS_OK;
    if (writes)
        checkpointer_abandon(
            c, state->step, fault,
            ": checkpoint.path has to be a folder that all servers see, with room");
    free(c->rows);
    c->rows = NULL;
    return PS_OK;
}

/* This rank's own sums; rank 0's state and answers; zeros. */
static void say_own(const ps_checkpointer *c, const ps_trainer_snapshot *state,
                    bool is_free, double *values, double *more)
{
    const ps_trainer_snapshot sums = {.n_ranks = state->n_ranks,
                                      .loss_sums = state->loss_sums,
                                      .loss_samples = state->loss_samples,
                                      .correct = state->correct,
                                      .counted = state->counted,
                                      .own_steps = state->own_steps,
                                      .batches = state->batches};
    ps_trainer_snapshot_to_values(c->rank == 0 ? state : &sums, values);
    if (c->rank == 0) more[BUSY] = !is_free;
    if (c->rank == 0) more[RECOVERS] = checkpointer_recovers(c);
    if (c->holder && c->rank == c->holder) more[HOLDER_COST] = c->cost;
}

/* From here on an earlier one is being overwritten: the newest only where nobody joins
 * again. Workers join and leave between checkpoints. */
static ps_err checkpointer_begin(ps_checkpointer *c, const double *values, bool recovers)
{
    const int holder = recovers ? c->holder : 0;
    const bool holds = c->rank == 0 || (holder && c->rank == holder);
    c->shape.n_ranks = c->n_ranks;
    // A former holder: since the one before, others hold it.
    if (!holds && c->taken && !c->shape.own_stays && ps_snapshot_pair_newest(&c->pair))
        ps_snapshot_pair_fini(&c->pair);
    c->keeps_own = c->shape.own_stays && recovers;
    PS_TRY(ps_snapshot_pair_begin(&c->pair, &c->shape, c->rank, holds, recovers || !holds,
                                  &c->snapshot));
    ps_trainer_snapshot_fini(&c->snapshot->trainer);
    PS_TRY(ps_trainer_snapshot_init(&c->snapshot->trainer, c->n_ranks));
    ps_trainer_snapshot_from_values(values, &c->snapshot->trainer);
    free(c->snapshot->rows);
    free(c->snapshot->rows_folder);
    c->snapshot->rows = c->rows;
    c->snapshot->rows_folder = c->rows_folder;
    c->rows = c->rows_folder = NULL;
    c->snapshot->exchange.holder = holder;
    // With the policy local, changes may be on their way from there.
    c->snapshot->exchange.over_gradients = !c->shape.local;
    return PS_OK;
}

/* All ranks say what they know, and learn whether to go on. */
static ps_err gather_state(ps_checkpointer *c, const ps_trainer_snapshot *state,
                           bool is_free, bool *go_on)
{
    const size_t n = ps_trainer_snapshot_n_values(c->n_ranks);
    double *values, *more;
    PS_TRY(PS_NEW(&values, n + N_MORE, "a checkpoint"));
    more = values + n;
    say_own(c, state, is_free, values, more);
    ps_err err = PS_OK;
    if (c->member) {
        char name[48];
        snprintf(name, sizeof name, "checkpoint/%" PRIu64, state->step);
        err = ps_member_reduce(c->member, name, values, n + N_MORE,
                               ps_file_meeting_deadline(c->o.config, c->rank));
    }
    *go_on = more[BUSY] == 0;
    c->holder_cost = more[HOLDER_COST];
    if (err == PS_OK && *go_on) err = checkpointer_begin(c, values, more[RECOVERS] > 0);
    free(values);
    return err;
}

static ps_err copy_arrays(ps_checkpointer *c, bool disk)
{
    const ps_tensor_table *table = c->shape.table;
    ps_snapshot *s = c->snapshot;
    const ps_snapshot_ranks ranks = {.member = c->member,
                                     .rank = c->rank,
                                     .world_size = c->n_ranks,
                                     .holder = s->exchange.holder,
                                     .timeout_ms =
                                         (uint64_t)c->o.config->net.step_timeout_ms};
    PS_TRY(ps_session_save(c->session, &s->exchange));
    // At once: rank 0 may have a whole one even if this rank fails from here on.
    if (!s->params && c->keeps_own) ps_snapshot_pair_commit(&c->pair);
    if (s->params) // past the caches: nobody reads them soon
        ps_nontemporal_copy(s->params, ps_session_params(c->session), table->arena_count);
    ps_nontemporal_copy_done();
    if (s->params) // of the holder's, only frozen parameters are rank 0's by now
        memcpy(s->buffers, ps_session_buffers(c->session), table->buffer_bytes);
    PS_TRY(ps_snapshot_share_buffers(s, &c->shape, &ranks));
    s->own_alone = c->shape.own_stays && !disk;
    if (!s->own_alone) PS_TRY(ps_snapshot_gather(s, &c->shape, &ranks));
    if (s->params) ps_snapshot_pair_commit(&c->pair);
    c->taken = true;
    return PS_OK;
}

/* One that had to wait for the processor says little of the next one. The first one of a
 * membership also maps its memory: it only counts until there is another. */
static void note_cost(ps_checkpointer *c, double seconds, bool first)
{
    const double weight = c->cost_is_known ? 0.25 : 1;
    if (first && c->cost_is_known) return;
    c->cost += weight * (seconds - c->cost);
    c->cost_is_known = !first;
}

ps_err ps_checkpointer_take(ps_checkpointer *c, ps_trainer_snapshot *state,
                            ps_checkpoint_target target, bool must, uint64_t begin_ns,
                            bool *taken)
{
    const bool disk = target == PS_CHECKPOINT_DISK;
    const bool is_free = c->rank != 0 || disk_is_free(c, must);
    if (c->points && c->rank == 0 && is_free)
        PS_TRY(checkpointer_keep_rows(c, state, disk));
    PS_TRY(gather_state(c, state, is_free, taken));
    if (!*taken) {
        c->memory_ns = ps_clock_ns(); // not at once again
        if (c->rank == 0 && disk)
            PS_WARN("checkpoint",
                    "step=%" PRIu64 " note=\"skipped: the checkpoint before is still "
                    "being written\"",
                    state->step);
        return PS_OK;
    }
    const bool first = !c->taken;
    PS_TRY(copy_arrays(c, disk));
    c->memory_ns = ps_clock_ns();
    if (!(disk && c->points)) // servers have written their rows meanwhile
        note_cost(c, (double)(c->memory_ns - begin_ns) * 1e-9, first);
    if (!disk) return PS_OK;
    c->last_ns = c->memory_ns;
    if (c->points && c->rank == 0 && !c->snapshot->rows)
        c->saved = false;
    else
        hand_over(c);
    return PS_OK;
}

bool ps_checkpointer_keeps_best(const ps_checkpointer *c)
{
    return c && c->o.config->checkpoint.best != PS_BEST_NONE;
}

void ps_checkpointer_mark_best(ps_checkpointer *c, uint64_t step)
{
    if (c->rank != 0) return;
    pthread_mutex_lock(&c->lock);
    const bool last = c->snapshot && c->snapshot->trainer.step == step;
    if (last) c->best = true;
    if (last && !c->writing && c->saved) set_best(c, step);
    pthread_mutex_unlock(&c->lock);
}

bool ps_checkpointer_best_is_due(ps_checkpointer *c)
{
    if (!c) return false;
    pthread_mutex_lock(&c->lock);
    const bool due = c->writing && c->best;
    pthread_mutex_unlock(&c->lock);
    return due;
}

ps_err ps_checkpointer_finish(ps_checkpointer *c, bool *saved)
{
    double value = 0;
    if (c->rank == 0) value = disk_is_free(c, true) && c->saved;
    if (c->member)
        PS_TRY(ps_member_reduce(c->member, "checkpoint/saved", &value, 1,
                                ps_file_meeting_deadline(c->o.config, c->rank)));
    *saved = value > 0;
    return PS_OK;
}
