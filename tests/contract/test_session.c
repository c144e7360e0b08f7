/* Sessions of one worker that the program names itself, without a model: calls at the
 * wrong time, and what a session leaves alone. Jobs of several: test_exchange,
 * test_pstrain. */
#include <signal.h>
#include <sys/resource.h>

#include "check.h"
#include "log.h"
#include "session.h"

enum { STEPS = 3, SETS_MAX = 8 };

typedef struct lone {
    ps_config config;
    ps_tensor_table table;
    ps_session *session;
} lone;

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

static void lone_init(lone *l, const char *const *sets, int n_sets)
{
    const char *all[SETS_MAX] = {"job.servers=0", "job.workers=1", "exchange.name=none",
                                 "optimizer.name=sgd", "optimizer.lr=0.5"};
    enum { BASE = 5 };
    for (int i = 0; i < n_sets; i++)
        all[BASE + i] = sets[i];
    make_table(&l->table);
    l->session = NULL;
    assert_ok(ps_config_load(&l->config, NULL, all, BASE + n_sets));
}

static void lone_fini(lone *l)
{
    ps_session_destroy(&l->session);
    ps_tensor_table_fini(&l->table);
    ps_config_fini(&l->config);
}

static ps_err join(lone *l)
{
    const ps_session_options options = {
        .config = &l->config, .table = &l->table, .local_rank = -1};
    PS_TRY(ps_session_create(&options, &l->session));
    return ps_session_join(l->session, STEPS);
}

/* Every weight is 1 at first, every gradient 1 / 4, and lr 1 / 2. */
static void start(lone *l)
{
    float *params = ps_session_params(l->session), *grads = ps_session_grads(l->session);
    for (uint64_t i = 0; i < l->table.arena_count; i++)
        params[i] = 1, grads[i] = 0.25f;
    assert_ok(ps_session_start(l->session, NULL, NULL));
}

static void make_steps(lone *l)
{
    for (uint64_t step = 0; step < STEPS; step++) {
        assert_ok(ps_session_begin(l->session, step));
        assert_ok(ps_session_wait(l->session, 0, l->table.n_tensors));
        assert_ok(ps_session_push(l->session, 0, l->table.n_tensors));
        assert_ok(ps_session_finish(l->session));
    }
}

TEST(local_steps_need_the_samples_counted)
{
    const char *const sets[] = {"exchange.name=ps", "job.servers=1", "sync.policy=local"};
    lone l;
    lone_init(&l, sets, 3);
    assert_error(join(&l), PS_ERR_CONFIG, "sync.policy: local is for models that");
    lone_fini(&l);
}

/* Each misuse gives an error and does the session no harm. */
TEST(calls_at_the_wrong_time_are_told)
{
    float scale;
    lone l;
    lone_init(&l, NULL, 0);
    assert_ok(join(&l));
    ps_session *s = l.session;
    assert_error(ps_session_join(s, STEPS), PS_ERR_ARG,
                 "ps_session_join: the session is open already");
    assert_error(ps_session_begin(s, 0), PS_ERR_ARG, "was not started");
    assert_error(ps_session_close(s), PS_ERR_ARG, "ps_session_close: ");
    start(&l);
    assert_error(ps_session_start(s, NULL, NULL), PS_ERR_ARG, "was already started");
    assert_error(ps_session_begin(s, 1), PS_ERR_ARG, "step 1 begins when 0 is due");
    assert_error(ps_session_wait(s, 3, 2), PS_ERR_ARG, "tensors 3 to 4, but there are 4");
    assert_error(ps_session_push(s, -1, 1), PS_ERR_ARG, "ps_session_push: ");
    assert_error(ps_session_push_range(s, 5, 5), PS_ERR_ARG,
                 "elements 5 to 5, but there are");
    assert_error(ps_session_wait_range(s, 0, UINT64_MAX), PS_ERR_ARG,
                 "ps_session_wait_range: ");
    make_steps(&l);
    assert_error(ps_session_begin(s, STEPS), PS_ERR_ARG, "the job has 3 steps");
    assert_ok(ps_session_drain(s));
    assert_true(ps_session_params(s)[0] == 1 - STEPS * 0.125f);
    assert_ok(ps_session_close(s));
    assert_error(ps_session_close(s), PS_ERR_ARG, "is closed");
    assert_error(ps_session_wait(s, 0, 1), PS_ERR_ARG, "is closed");
    assert_error(ps_session_loss_scale(s, &scale), PS_ERR_ARG, "is closed");
    assert_error(ps_session_start(s, NULL, NULL), PS_ERR_ARG, "is closed");
    ps_session_abort(s, PS_ERR_PEER, "too late");
    assert_error(ps_session_drain(s), PS_ERR_ARG, "has failed");
    lone_fini(&l);
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
    assert_ok(join(&l));
    assert_null(ps_session_member(l.session)); // it needs nobody
    start(&l);
    make_steps(&l);
    assert_ok(ps_session_close(l.session));
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
