#include "exchange_run.h"

#include <math.h>
#include <unistd.h>

#include "check.h"
#include "job_keys.h"
#include "session.h"

static uint64_t steps_of(const test_run_options *run)
{
    return run->steps ? run->steps : TEST_STEPS;
}

/* The gradient of (param - goal)^2 / 2. Each rank has its own goal. The mean over the
 * ranks is smallest at the mean of the goals. */
static float way_to_goal(int rank, int workers, uint64_t i, float param)
{
    return (param - test_noise(rank, 77, i)) / (float)workers;
}

typedef struct rank_state {
    ps_config config; // the job's, except the host
    char host[16];
    const ps_model_spec *spec;
    ps_session *session;
    float *params, *grads;
    uint8_t *buffers;
    unsigned seed;
} rank_state;

static void pause_a_little(const test_rank *r, rank_state *s)
{
    if (r->run->sleeps) usleep((unsigned)rand_r(&s->seed) % 400);
}

static bool is_faulty(const test_rank *r)
{
    return r->run->fault && r->rank == r->run->workers - 1;
}

static ps_err forward(const test_rank *r, rank_state *s)
{
    for (int t = 0; t < s->spec->table.n_tensors; t++) {
        PS_TRY(ps_session_wait(s->session, t, 1));
        pause_a_little(r, s);
    }
    return PS_OK;
}

/* Pushes all gradients in ranges that begin and end anywhere, in any order. Every rank
 * has ranges of its own. */
static ps_err push_pieces(const test_rank *r, rank_state *s, uint64_t step)
{
    enum { PIECES = 12 };
    const uint64_t all = s->spec->table.arena_count;
    unsigned seed = r->run->pieces + (unsigned)r->rank * 100 + (unsigned)step;
    uint64_t cuts[PIECES + 1] = {0};
    for (int i = 1; i < PIECES; i++)
        cuts[i] = cuts[i - 1] + (all - cuts[i - 1]) / (unsigned)(PIECES - i + 1) +
                  (unsigned)rand_r(&seed) % 7 - 3;
    cuts[PIECES] = all;
    const int first = rand_r(&seed) % PIECES;
    for (int i = 0; i < PIECES; i++) {
        const int piece = (first + i * 5) % PIECES;
        pause_a_little(r, s);
        PS_TRY(ps_session_push_range(s->session, cuts[piece], cuts[piece + 1]));
    }
    return PS_OK;
}

static ps_err backward(const test_rank *r, rank_state *s, uint64_t step)
{
    const float scale = r->scales[step < TEST_STEPS_MAX ? step : TEST_STEPS_MAX];
    bool faulty = is_faulty(r) && step == 2;
    for (int t = s->spec->table.n_tensors - 1; t >= 0; t--) {
        const ps_tensor *tensor = &s->spec->table.tensors[t];
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++)
            s->grads[i] = r->run->quadratic
                              ? way_to_goal(r->rank, r->run->workers, i, s->params[i])
                              : test_gradient(r->rank, step, i, s->params[i]) * scale;
        if (step % (uint64_t)s->spec->table.n_tensors == (uint64_t)t)
            test_overflow_some(&r->run->overflows, s->spec, r->rank, step, s->grads);
        if (faulty && r->run->fault == TEST_FAULT_NAN && t == 4)
            s->grads[tensor->offset] = NAN;
        if (faulty && r->run->fault == TEST_FAULT_STOPPED && t == 2)
            (void)ps_member_cause(ps_session_member(s->session),
                                  ps_deadline_in_ms(60000));
        pause_a_little(r, s);
        if (!r->run->pieces) PS_TRY(ps_session_push(s->session, t, 1));
    }
    return r->run->pieces ? push_pieces(r, s, step) : PS_OK;
}

static bool buffers_are(const rank_state *s, uint8_t value)
{
    for (uint64_t i = 0; i < s->spec->table.buffer_bytes; i++)
        if (s->buffers[i] != value) return false;
    return true;
}

/* Notes the rank's loss scale and weights before a step, or after all steps. */
static ps_err note(test_rank *r, rank_state *s, uint64_t step)
{
    PS_TRY(ps_session_loss_scale(s->session, &r->scales[step]));
    for (int t = 0, n = 0; t < s->spec->table.n_tensors; t++)
        for (uint64_t i = 0; i < s->spec->table.tensors[t].count && n < 8; i++)
            r->weights[step][n++] = s->params[s->spec->table.tensors[t].offset + i];
    return PS_OK;
}

/* Whether the coordinator has the first buffers still, which all have. */
static bool buffers_are_kept(const rank_state *s)
{
    const ps_job_key key = ps_job_key_buffers(0);
    ps_member *member = ps_session_member(s->session);
    void *value = NULL;
    size_t bytes;
    if (!member) return false;
    const ps_err err =
        ps_member_get(member, key.text, &value, &bytes, ps_deadline_in_ms(0));
    free(value);
    return err != PS_ERR_TIMEOUT;
}

static ps_err train(test_rank *r, rank_state *s)
{
    memset(s->buffers, 7 + r->rank, s->spec->table.buffer_bytes);
    if (r->rank == 0) test_first_weights(s->spec, s->params);
    PS_TRY(ps_session_start(s->session, NULL, NULL));
    r->buffers_right = buffers_are(s, 7);
    for (uint64_t step = 0; step < steps_of(r->run); step++) {
        PS_TRY(ps_session_begin(s->session, step));
        PS_TRY(forward(r, s));
        PS_TRY(note(r, s, step < TEST_STEPS_MAX ? step : TEST_STEPS_MAX));
        PS_TRY(backward(r, s, step));
        PS_TRY(ps_session_finish(s->session));
        if (step != 3) continue;
        memset(s->buffers, 70 + r->rank,
               s->spec->table.buffer_bytes); // as before evaluation
        PS_TRY(ps_session_drain(s->session));
        PS_TRY(ps_session_sync_buffers(s->session));
        r->buffers_right = r->buffers_right && buffers_are(s, 70) &&
                           !(r->rank == 0 && buffers_are_kept(s));
    }
    PS_TRY(ps_session_drain(s->session));
    PS_TRY(note(r, s,
                steps_of(r->run) < TEST_STEPS_MAX ? steps_of(r->run) : TEST_STEPS_MAX));
    memcpy(r->params, s->params, s->spec->table.arena_count * sizeof(float));
    ps_session_stats(s->session, &r->stats);
    if (is_faulty(r) && r->run->fault == TEST_FAULT_NO_BYE)
        return ps_member_leave(ps_session_member(s->session), ps_deadline_in_ms(10000));
    return ps_session_close(s->session);
}

static ps_err run_rank(test_rank *r, rank_state *s)
{
    const test_job *job = r->job;
    if (r->run->hosts) snprintf(s->host, sizeof s->host, "%d", r->run->hosts[r->rank]);
    s->config = job->cfg;
    s->config.net.host = s->host;
    if (r->run->sockets >> r->rank & 1) s->config.exchange.shm = PS_SWITCH_OFF;
    const ps_session_options options = {.config = &s->config,
                                        .table = job->table,
                                        .init_method = job->init_method,
                                        .rank = r->rank,
                                        .local_rank = r->rank};
    PS_TRY(ps_mem_zalloc(&r->params, job->table->arena_count, sizeof(float), "result"));
    PS_TRY(ps_session_create(&options, &s->session));
    PS_TRY(ps_session_join(s->session, steps_of(r->run)));
    s->params = ps_session_params(s->session);
    s->grads = ps_session_grads(s->session);
    s->buffers = ps_session_buffers(s->session);
    return train(r, s);
}

static void *rank_main(void *arg)
{
    test_rank *r = arg;
    rank_state s = {.spec = &r->job->spec,
                    .seed = r->run->sleeps * 31 + (unsigned)r->rank};
    r->err = run_rank(r, &s);
    if (r->err != PS_OK) {
        snprintf(r->text, sizeof r->text, "%s", ps_err_message());
        ps_session_abort(s.session, PS_ERR_PEER, r->text);
    }
    ps_session_destroy(&s.session);
    return NULL;
}

void test_run(const test_run_options *options, test_run_result *out)
{
    test_job job;
    char name[32];
    const char *sets[TEST_JOB_SETS] = {name};
    snprintf(name, sizeof name, "exchange.name=%s",
             ps_word_name(ps_exchange_words, (int)options->exchange));
    memcpy(sets + 1, options->sets, (size_t)options->n_sets * sizeof *sets);
    test_job_start(&job, options->servers, options->workers, sets, options->n_sets + 1);
    for (int r = 0; r < options->workers; r++) {
        out->rank[r] = (test_rank){.run = options, .job = &job, .rank = r};
        assert_int_equal(
            pthread_create(&out->rank[r].thread, NULL, rank_main, &out->rank[r]), 0);
    }
    for (int r = 0; r < options->workers; r++)
        pthread_join(out->rank[r].thread, NULL);
    out->want = test_serial_weights(&job.cfg, options->workers, options->hosts,
                                    &options->overflows);
    out->bytes = job.table->arena_count * sizeof(float);
    test_job_end(&job);
    memcpy(out->server, job.server, sizeof out->server);
}

void test_run_fini(test_run_result *result, int workers)
{
    for (int r = 0; r < workers; r++)
        free(result->rank[r].params);
    free(result->want);
}

void test_run_check_bits(const test_run_options *options)
{
    test_run_result result;
    test_run(options, &result);
    for (int r = 0; r < options->workers; r++) {
        if (result.rank[r].err != PS_OK) fail_msg("rank %d: %s", r, result.rank[r].text);
        assert_memory_equal(result.rank[r].params, result.want, result.bytes);
        assert_true(result.rank[r].buffers_right);
    }
    for (int i = 0; i < options->servers; i++)
        if (result.server[i].err != PS_OK)
            fail_msg("server %d: %s", i, result.server[i].text);
    test_run_fini(&result, options->workers);
}
