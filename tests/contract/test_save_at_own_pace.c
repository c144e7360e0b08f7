/* Workers at their own pace: what one of them saves at a rest is of one version, although
 * another one goes on. A stand-in holds its fetching until the other one has pushed, or
 * waits for it. */
#include <semaphore.h>
#include <stdlib.h>

#include "check.h"
#include "job_keys.h"
#include "ps_comm.h"
#include "session.h"
#include "sync_codec.h"
#include "test_job.h"

enum { WORKERS = 2, STEPS = 4 };

static sem_t other_went_on;

ps_err __real_ps_comm_snapshot_fetch(ps_comm *c, uint64_t array, bool over_gradients,
                                     float *arena);
ps_err __wrap_ps_comm_snapshot_fetch(ps_comm *c, uint64_t array, bool over_gradients,
                                     float *arena);
ps_err __real_ps_member_barrier(ps_member *m, const char *name, ps_deadline deadline);
ps_err __wrap_ps_member_barrier(ps_member *m, const char *name, ps_deadline deadline);

ps_err __wrap_ps_comm_snapshot_fetch(ps_comm *c, uint64_t array, bool over_gradients,
                                     float *arena)
{
    sem_wait(&other_went_on);
    return __real_ps_comm_snapshot_fetch(c, array, over_gradients, arena);
}

ps_err __wrap_ps_member_barrier(ps_member *m, const char *name, ps_deadline deadline)
{
    if (ps_member_rank(m) == 1 && strcmp(name, "saved") == 0) sem_post(&other_went_on);
    return __real_ps_member_barrier(m, name, deadline);
}

typedef struct worker {
    test_job *job;
    int rank;
    pthread_t thread;
    ps_session *session;
    float *momentum; // the arena that worker 0 saves
    uint64_t step;
    ps_err err;
    char text[512];
} worker;

/* All rest after the first step; then each push is applied when it comes. */
static ps_err put_policy(ps_member *m)
{
    const ps_sync_rules rules = {.kind = PS_POLICY_ASP,
                                 .n_workers = WORKERS,
                                 .total = STEPS,
                                 .stretch = STEPS,
                                 .stop = 1};
    const uint64_t batches[WORKERS] = {1, 1};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_sync_rules_write(&w, &rules, 1, batches);
    return ps_member_put_written(m, PS_JOB_KEY_POLICY, &w, ps_deadline_in_ms(20000));
}

static ps_err start(worker *w)
{
    const ps_session_options options = {.config = &w->job->cfg,
                                        .table = w->job->table,
                                        .init_method = w->job->init_method,
                                        .rank = w->rank,
                                        .local_rank = w->rank,
                                        .counts = true};
    PS_TRY(ps_session_create(&options, &w->session));
    PS_TRY(ps_session_join(w->session, STEPS));
    if (w->rank == 0) PS_TRY(put_policy(ps_session_member(w->session)));
    return ps_session_start(w->session, NULL, NULL);
}

/* Every gradient is 1. */
static ps_err make_step(worker *w, bool *rests)
{
    const int n = w->job->table->n_tensors;
    bool over;
    PS_TRY(ps_session_begin(w->session, w->step++));
    PS_TRY(ps_session_wait(w->session, 0, n));
    for (uint64_t i = 0; i < w->job->table->arena_count; i++)
        ps_session_grads(w->session)[i] = 1;
    PS_TRY(ps_session_push(w->session, 0, n));
    PS_TRY(ps_session_finish(w->session));
    return ps_session_rest(w->session, rests, &over);
}

static ps_err work(worker *w)
{
    bool rests = false;
    ps_exchange_state state = {.states = {w->rank == 0 ? w->momentum : NULL}};
    PS_TRY(start(w));
    PS_TRY(make_step(w, &rests));
    if (!rests) return ps_err_set(PS_ERR_INTERNAL, "no rest after the first step");
    PS_TRY(ps_session_drain(w->session));
    PS_TRY(ps_session_save(w->session, &state));
    for (rests = false; !rests;) {
        PS_TRY(make_step(w, &rests));
        if (w->rank == 1) sem_post(&other_went_on);
    }
    return ps_session_close(w->session);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    w->err = work(w);
    if (w->err != PS_OK) snprintf(w->text, sizeof w->text, "%s", ps_err_message());
    if (w->err != PS_OK) sem_post(&other_went_on);
    ps_session_destroy(&w->session);
    return NULL;
}

/* Both pushes of the first step are applied together, as a gradient of 2: that is the
 * momentum then. The next one makes it 0.75 * 2 + 1. */
TEST(what_is_saved_at_rest_is_of_one_version)
{
    static const char *const sets[] = {"sync.policy=asp", "optimizer.name=sgd",
                                       "optimizer.momentum=0.75",
                                       "optimizer.weight_decay=0"};
    test_job job;
    worker workers[WORKERS];
    sem_init(&other_went_on, 0, 0);
    test_job_start(&job, 1, WORKERS, sets, 4);
    float *momentum = calloc(job.table->arena_count, sizeof *momentum);
    assert_non_null(momentum);
    for (int r = 0; r < WORKERS; r++) {
        workers[r] = (worker){.job = &job, .rank = r, .momentum = momentum};
        assert_int_equal(
            pthread_create(&workers[r].thread, NULL, worker_main, &workers[r]), 0);
    }
    for (int r = 0; r < WORKERS; r++)
        pthread_join(workers[r].thread, NULL);
    for (int r = 0; r < WORKERS; r++)
        if (workers[r].err != PS_OK) fail_msg("worker %d: %s", r, workers[r].text);
    for (int t = 0; t < job.table->n_tensors; t++)
        for (uint64_t i = 0; i < job.table->tensors[t].count; i++)
            assert_float_equal(momentum[job.table->tensors[t].offset + i], 2, 0);
    assert_int_equal(job.server[0].err, PS_OK);
    test_job_end(&job);
    free(momentum);
}
