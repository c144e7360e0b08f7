/* Sessions: a job of tensors that the program names itself, without a model, a file or
 * the step loop. Gradients are small binary fractions, so that every sum and every step
 * is exact and the weights are closed forms. */
#include <signal.h>
#include <sys/resource.h>

#include "check.h"
#include "log.h"
#include "session.h"
#include "test_job.h"

enum { WORKERS = 2, STEPS = 3, SETS_MAX = 16 };

typedef struct worker {
    const ps_config *config;
    const ps_tensor_table *table;
    const char *init_method; // NULL: alone
    int rank, workers;
    uint64_t total_steps;
    ps_err (*run)(struct worker *w); // joined
    ps_session *session;
    pthread_t thread;
    ps_err err;
    char text[768];
} worker;

/* --- a job ------------------------------------------------------------------------- */

static void make_table(ps_tensor_table *table)
{
    const struct {
        const char *name;
        ps_dims dims;
    } tensors[] = {{"a.weight", {.n = 2, .d = {90, 70}}},
                   {"a.bias", {.n = 1, .d = {90}}},
                   {"b.weight", {.n = 2, .d = {130, 90}}},
                   {"b.bias", {.n = 1, .d = {130}}}};
    int index;
    *table = (ps_tensor_table){0};
    for (int i = 0; i < 4; i++)
        assert_ok(ps_tensor_table_add(table, tensors[i].name, tensors[i].dims,
                                      PS_TENSOR_WEIGHT, 1, &index));
    const ps_dims mean = {.n = 1, .d = {90}};
    assert_ok(ps_tensor_table_add_buffer(table, "mean", mean, PS_TENSOR_BUFFER, &index));
}

static void load(ps_config *config, int servers, int workers, const char *const *sets,
                 int n_sets)
{
    char sizes[2][32];
    const char *all[SETS_MAX] = {sizes[0],
                                 sizes[1],
                                 "exchange.chunk=16384",
                                 "optimizer.name=sgd",
                                 "optimizer.lr=0.5",
                                 "net.step_timeout_ms=20000",
                                 "net.join_timeout_ms=20000"};
    enum { BASE = 7 };
    snprintf(sizes[0], sizeof sizes[0], "job.servers=%d", servers);
    snprintf(sizes[1], sizeof sizes[1], "job.workers=%d", workers);
    for (int i = 0; i < n_sets; i++)
        all[BASE + i] = sets[i];
    if (ps_config_load(config, NULL, all, BASE + n_sets) != PS_OK)
        fail_msg("%s", ps_err_message());
}

static ps_err join(worker *w)
{
    const ps_session_options options = {.config = w->config,
                                        .table = w->table,
                                        .init_method = w->init_method,
                                        .rank = w->rank,
                                        .local_rank = -1};
    PS_TRY(ps_session_create(&options, &w->session));
    return ps_session_join(w->session, w->total_steps);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    w->err = join(w);
    if (w->err == PS_OK) w->err = w->run(w);
    if (w->err != PS_OK) {
        snprintf(w->text, sizeof w->text, "%s", ps_err_message());
        ps_session_abort(w->session, PS_ERR_PEER, w->text);
    }
    ps_session_destroy(&w->session);
    return NULL;
}

typedef struct rig {
    test_job job;
    ps_tensor_table table;
    worker worker[WORKERS];
} rig;

/* servers 0: the exchange needs none. The workers may still be changed. */
static void rig_start(rig *r, int servers, ps_err (*run)(worker *w),
                      const char *const *sets, int n_sets)
{
    r->job = (test_job){.servers = servers, .workers = WORKERS, .table = &r->table};
    make_table(&r->table);
    load(&r->job.cfg, servers, WORKERS, sets, n_sets);
    ps_log_init("test", PS_LOG_ERROR + 1); // these tests cause errors
    test_job_serve(&r->job);
    for (int i = 0; i < WORKERS; i++)
        r->worker[i] = (worker){.config = &r->job.cfg,
                                .table = &r->table,
                                .init_method = r->job.init_method,
                                .rank = i,
                                .workers = WORKERS,
                                .total_steps = STEPS,
                                .run = run};
}

static void rig_run(rig *r)
{
    for (int i = 0; i < WORKERS; i++)
        assert_int_equal(
            pthread_create(&r->worker[i].thread, NULL, worker_main, &r->worker[i]), 0);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(r->worker[i].thread, NULL);
    test_job_end(&r->job);
    ps_tensor_table_fini(&r->table);
}

static void assert_all_ok(const rig *r)
{
    for (int i = 0; i < WORKERS; i++)
        if (r->worker[i].err != PS_OK) fail_msg("worker %d: %s", i, r->worker[i].text);
    for (int i = 0; i < r->job.servers; i++)
        if (r->job.server[i].err != PS_OK)
            fail_msg("server %d: %s", i, r->job.server[i].text);
}

/* --- three steps ------------------------------------------------------------------- */

static float first_weight(uint64_t i)
{
    return (float)(i % 64);
}

static float gradient(int rank, uint64_t step, uint64_t i)
{
    return (float)((uint64_t)rank + 1 + step + i % 7) / 64;
}

/* The weight before a step. lr is a half. */
static float weight(int workers, uint64_t step, uint64_t i)
{
    float w = first_weight(i);
    for (uint64_t s = 0; s < step; s++)
        for (int r = 0; r < workers; r++)
            w -= 0.5f * gradient(r, s, i);
    return w;
}

static ps_err check_weights(const worker *w, int tensor, uint64_t step)
{
    const ps_tensor *t = &w->table->tensors[tensor];
    const float *params = ps_session_params(w->session);
    for (uint64_t i = t->offset; i < t->offset + t->count; i++)
        if (params[i] != weight(w->workers, step, i))
            return ps_err_set(PS_ERR_INTERNAL, "step %d: %s: %g is not %g", (int)step,
                              t->name, (double)params[i],
                              (double)weight(w->workers, step, i));
    return PS_OK;
}

static ps_err start(worker *w)
{
    float *params = ps_session_params(w->session);
    uint8_t *buffers = ps_session_buffers(w->session);
    for (uint64_t i = 0; i < w->table->arena_count; i++)
        params[i] = w->rank == 0 ? first_weight(i) : 99;
    memset(buffers, 7 + w->rank, w->table->buffer_bytes);
    PS_TRY(ps_session_start(w->session, NULL, NULL));
    return buffers[0] == 7 ? PS_OK : ps_err_set(PS_ERR_INTERNAL, "other buffers");
}

static void fill_gradients(const worker *w, uint64_t step)
{
    float *grads = ps_session_grads(w->session);
    for (uint64_t i = 0; i < w->table->arena_count; i++)
        grads[i] = gradient(w->rank, step, i);
}

/* Pushes all gradients: the last tensor, the others' second half, then the first, which
 * begins and ends where no chunk and no row does. */
static ps_err push_ranges(const worker *w)
{
    const int n = w->table->n_tensors;
    uint64_t begin, end;
    ps_tensor_table_range(w->table, 0, n - 1, &begin, &end);
    const uint64_t middle = (begin + end) / 2 + 1;
    PS_TRY(ps_session_push(w->session, n - 1, 1));
    PS_TRY(ps_session_push_range(w->session, middle, end));
    return ps_session_push_range(w->session, begin, middle);
}

/* Waits for weights tensor by tensor. Gradients are pushed also as ranges. */
static ps_err one_step(worker *w, uint64_t step)
{
    const int n = w->table->n_tensors;
    PS_TRY(ps_session_begin(w->session, step));
    for (int t = 0; t < n; t++) {
        PS_TRY(ps_session_wait(w->session, t, 1));
        PS_TRY(check_weights(w, t, step));
    }
    fill_gradients(w, step);
    PS_TRY(push_ranges(w));
    return ps_session_finish(w->session);
}

static ps_err three_steps(worker *w)
{
    PS_TRY(start(w));
    for (uint64_t step = 0; step < STEPS; step++)
        PS_TRY(one_step(w, step));
    PS_TRY(ps_session_drain(w->session));
    for (int t = 0; t < w->table->n_tensors; t++)
        PS_TRY(check_weights(w, t, STEPS));
    return ps_session_close(w->session);
}

TEST(sums_are_exact)
{
    static const char *const ways[][2] = {{"exchange.shm=off", "server.shards=1"},
                                          {"exchange.shm=on", "server.shards=2"}};
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_start(&r, 2, three_steps, ways[i], 2);
        rig_run(&r);
        assert_all_ok(&r);
    }
}

TEST(servers_may_be_missing)
{
    static const char *const sets[] = {"exchange.name=allreduce", "net.interface=lo"};
    rig r;
    rig_start(&r, 0, three_steps, sets, 2);
    rig_run(&r);
    if (r.worker[0].err == PS_ERR_UNSUPPORTED) skip(); // a build without Gloo
    assert_all_ok(&r);
}

/* --- the number of steps ----------------------------------------------------------- */

static const char *const cosine[] = {"schedule.name=cosine", "schedule.total=1000000",
                                     "schedule.min_lr=0.5"};

TEST(a_job_may_have_no_known_end)
{
    rig r;
    rig_start(&r, 2, three_steps, cosine, 3); // from 0.5 to 0.5
    for (int i = 0; i < WORKERS; i++)
        r.worker[i].total_steps = PS_STEPS_UNKNOWN;
    rig_run(&r);
    assert_all_ok(&r);
}

/* --- alone ------------------------------------------------------------------------- */

typedef struct lone {
    ps_config config;
    ps_tensor_table table;
    worker worker;
} lone;

static void lone_init(lone *l, const char *const *sets, int n_sets)
{
    const char *all[SETS_MAX] = {"exchange.name=none"};
    for (int i = 0; i < n_sets; i++)
        all[1 + i] = sets[i];
    make_table(&l->table);
    load(&l->config, 0, 1, all, 1 + n_sets);
    l->worker = (worker){
        .config = &l->config, .table = &l->table, .workers = 1, .total_steps = STEPS};
}

static void lone_fini(lone *l)
{
    ps_session_destroy(&l->worker.session);
    ps_tensor_table_fini(&l->table);
    ps_config_fini(&l->config);
}

TEST(one_worker_needs_nobody)
{
    lone l;
    lone_init(&l, NULL, 0);
    assert_ok(join(&l.worker));
    if (three_steps(&l.worker) != PS_OK) fail_msg("%s", ps_err_message());
    assert_null(ps_session_member(l.worker.session));
    lone_fini(&l);
}

TEST(a_schedule_says_that_it_needs_an_end)
{
    lone l;
    lone_init(&l, cosine, 1);
    l.worker.total_steps = PS_STEPS_UNKNOWN;
    assert_error(join(&l.worker), PS_ERR_CONFIG, "schedule.name: cosine");
    assert_non_null(strstr(ps_err_message(), "schedule.total"));
    lone_fini(&l);
}

TEST(local_steps_need_the_samples_counted)
{
    const char *const sets[] = {"exchange.name=ps", "job.servers=1", "sync.policy=local"};
    lone l;
    lone_init(&l, sets, 3);
    assert_error(join(&l.worker), PS_ERR_CONFIG, "sync.policy: local is for models that");
    lone_fini(&l);
}

static void assert_misuse(ps_err err, const char *want)
{
    assert_int_equal(err, PS_ERR_ARG);
    if (!strstr(ps_err_message(), want)) fail_msg("%s", ps_err_message());
}

/* Each misuse gives an error and does the session no harm. */
TEST(calls_at_the_wrong_time_are_told)
{
    float scale;
    lone l;
    lone_init(&l, NULL, 0);
    worker *w = &l.worker;
    assert_ok(join(w));
    ps_session *s = w->session;
    assert_misuse(ps_session_join(s, STEPS),
                  "ps_session_join: the session is open already");
    assert_misuse(ps_session_begin(s, 0), "was not started");
    assert_misuse(ps_session_close(s), "ps_session_close: ");
    assert_ok(start(w));
    assert_misuse(ps_session_start(s, NULL, NULL), "was already started");
    assert_misuse(ps_session_begin(s, 1), "step 1 begins when 0 is due");
    assert_misuse(ps_session_wait(s, 3, 2), "tensors 3 to 4, but there are 4");
    assert_misuse(ps_session_push(s, -1, 1), "ps_session_push: ");
    assert_misuse(ps_session_push_range(s, 5, 5), "elements 5 to 5, but there are");
    assert_misuse(ps_session_wait_range(s, 0, UINT64_MAX), "ps_session_wait_range: ");
    for (uint64_t step = 0; step < STEPS; step++)
        assert_ok(one_step(w, step));
    assert_misuse(ps_session_begin(s, STEPS), "the job has 3 steps");
    assert_ok(ps_session_drain(s));
    assert_ok(check_weights(w, 0, STEPS));
    assert_ok(ps_session_close(s));
    assert_misuse(ps_session_close(s), "is closed");
    assert_misuse(ps_session_wait(s, 0, 1), "is closed");
    assert_misuse(ps_session_loss_scale(s, &scale), "is closed");
    assert_misuse(ps_session_start(s, NULL, NULL), "is closed");
    ps_session_abort(s, PS_ERR_PEER, "too late");
    assert_misuse(ps_session_drain(s), "has failed");
    lone_fini(&l);
}

/* --- members that do not fit, and one that fails ----------------------------------- */

static ps_err never(worker *w)
{
    return ps_err_set(PS_ERR_INTERNAL, "it has joined");
}

static const char *const impatient[] = {"net.join_timeout_ms=6000"};

TEST(another_world_size_is_refused)
{
    rig r;
    ps_config other;
    rig_start(&r, 1, never, impatient, 1);
    load(&other, 1, 3, impatient, 1);
    r.worker[1].config = &other;
    r.worker[1].workers = 3;
    rig_run(&r);
    assert_int_equal(r.worker[1].err, PS_ERR_PEER);
    if (!strstr(r.worker[1].text, "worker 1 of 3 workers"))
        fail_msg("%s", r.worker[1].text);
    assert_int_not_equal(r.worker[0].err, PS_OK);
    ps_config_fini(&other);
}

TEST(another_table_is_refused)
{
    rig r;
    ps_tensor_table other;
    int index;
    const ps_dims dims = {.n = 1, .d = {5}};
    rig_start(&r, 1, never, impatient, 1);
    make_table(&other);
    assert_ok(ps_tensor_table_add(&other, "c.bias", dims, PS_TENSOR_BIAS, 1, &index));
    r.worker[1].table = &other;
    rig_run(&r);
    assert_int_equal(r.worker[1].err, PS_ERR_PEER);
    assert_int_not_equal(r.worker[0].err, PS_OK);
    ps_tensor_table_fini(&other);
}

static ps_err fail_in_step_1(worker *w)
{
    PS_TRY(start(w));
    PS_TRY(one_step(w, 0));
    if (w->rank == 1) return ps_err_set(PS_ERR_IO, "the disk of worker 1 is full");
    PS_TRY(one_step(w, 1));
    return ps_session_drain(w->session);
}

TEST(a_failure_is_known_to_all)
{
    rig r;
    rig_start(&r, 2, fail_in_step_1, NULL, 0);
    rig_run(&r);
    assert_int_equal(r.worker[0].err, PS_ERR_PEER);
    if (!strstr(r.worker[0].text, "the disk of worker 1 is full"))
        fail_msg("%s", r.worker[0].text);
    for (int i = 0; i < 2; i++)
        assert_non_null(strstr(r.job.server[i].text, "the disk of worker 1 is full"));
}

/* --- the process ------------------------------------------------------------------- */

typedef struct process {
    struct sigaction actions[3];
    sigset_t mask;
    struct rlimit files;
} process;

static void look_at_process(process *p)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGPIPE};
    memset(p, 0, sizeof *p);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sigaction(signals[i], NULL, &p->actions[i]), 0);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &p->mask), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &p->files), 0);
}

static void count_line(void *ctx, ps_log_level level, const char *text)
{
    ++*(int *)ctx;
}

/* A session changes neither signals nor limits of the process, and logs to the program's
 * sink. */
TEST(the_process_is_left_alone)
{
    process before, after;
    int lines = 0;
    lone l;
    lone_init(&l, NULL, 0);
    look_at_process(&before);
    ps_log_set_sink(count_line, &lines, PS_LOG_DEBUG);
    assert_ok(join(&l.worker));
    assert_ok(three_steps(&l.worker));
    ps_log_set_sink(NULL, NULL, PS_LOG_DEBUG);
    assert_true(lines > 0); // the sink got the log
    look_at_process(&after);
    for (int i = 0; i < 3; i++)
        assert_true(before.actions[i].sa_handler == after.actions[i].sa_handler);
    for (int i = 1; i < NSIG; i++)
        assert_int_equal(sigismember(&before.mask, i), sigismember(&after.mask, i));
    assert_int_equal(before.files.rlim_cur, after.files.rlim_cur);
    lone_fini(&l);
}
