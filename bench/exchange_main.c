/* ps-bench-exchange: a worker that exchanges (exchange.name) and computes nothing.
 *
 *   ps-bench-exchange <options of ps-worker>
 *
 * Every step submits all gradients at once and waits for all weights. train.steps are
 * timed after train.warmup_steps. The result is one line of JSON on stdout. Rank 0 prints
 * "mark" before and after the timed steps and then waits for a line on stdin, while the
 * other ranks wait for rank 0. Meanwhile the caller can read the processes' CPU times.
 *
 * Gradients are small whole numbers and the optimizer should be sgd with lr 1: the final
 * weights are then known exactly, and are checked if no codec rounds them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "model_spec.h"
#include "session.h"

enum { STATES = 17, JOIN_MS = 60000 };

static const ps_cli_program program = {
    .name = "ps-bench-exchange",
    .about = "Exchanges synthetic gradients as a worker of a job would, and times it.\n",
    .examples = "  bench/exchange starts it.\n",
};

typedef struct bench {
    const ps_config *cfg;
    const ps_cli *cli;
    ps_model_spec spec;
    ps_session *session;
    ps_member *member;  // owned by the session
    float *first_grads; // NULL where sums do not overwrite gradients: ps with one level
    size_t arena_bytes;
    uint64_t n_warmup, n_steps;
    uint64_t *step_ns;
    ps_exchange_stats before, after;
} bench;

/* An integer in -8 .. 8 for (rank, element). */
static float gradient(int rank, uint64_t i)
{
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u + (uint64_t)rank * 0xD1B54A32D192ED03u;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9u;
    return (float)((int)((x >> 33) % STATES) - STATES / 2);
}

static ps_err join(bench *b)
{
    const ps_config *cfg = b->cfg;
    b->n_warmup = (uint64_t)cfg->train.warmup_steps;
    b->n_steps = (uint64_t)cfg->train.steps;
    if (b->n_steps == 0) return ps_err_set(PS_ERR_CONFIG, "train.steps: at least 1");
    PS_TRY(ps_model_spec_init(&b->spec, cfg));
    b->arena_bytes = b->spec.table.arena_count * sizeof(float);
    PS_TRY(PS_NEW(&b->step_ns, b->n_steps, "times"));
    const ps_session_options options = {.config = cfg,
                                        .table = &b->spec.table,
                                        .init_method = b->cli->init_method,
                                        .rank = b->cli->rank,
                                        .local_rank = b->cli->local_rank};
    PS_TRY(ps_session_create(&options, &b->session));
    PS_TRY(ps_session_join(b->session, b->n_warmup + b->n_steps));
    b->member = ps_session_member(b->session);
    return PS_OK;
}

static ps_err fill_gradients(bench *b)
{
    const int rank = ps_session_rank(b->session);
    float *grads = ps_session_grads(b->session);
    for (int t = 0; t < b->spec.table.n_tensors; t++)
        for (uint64_t k = 0; k < b->spec.table.tensors[t].count; k++) {
            uint64_t i = b->spec.table.tensors[t].offset + k;
            grads[i] = gradient(rank, i);
        }
    if (b->cfg->exchange.name == PS_EXCHANGE_PS && !ps_config_two_levels(b->cfg))
        return PS_OK;
    PS_TRY(ps_mem_zalloc_aligned(&b->first_grads, b->arena_bytes, "the first gradients"));
    memcpy(b->first_grads, grads, b->arena_bytes);
    return PS_OK;
}

static ps_err exchange_one_step(bench *b, uint64_t step)
{
    PS_TRY(ps_session_begin(b->session, step));
    PS_TRY(ps_session_wait(b->session, 0, b->spec.table.n_tensors));
    PS_TRY(ps_session_push(b->session, 0, b->spec.table.n_tensors));
    PS_TRY(ps_session_finish(b->session));
    return ps_session_drain(b->session);
}

/* All ranks wait for rank 0, which waits for a line on stdin. */
static ps_err mark(bench *b, const char *name)
{
    PS_TRY(ps_member_barrier(b->member, name, ps_deadline_in_ms(JOIN_MS)));
    if (ps_session_rank(b->session) == 0) {
        char line[16];
        printf("mark\n");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin))
            return ps_err_set(PS_ERR_IO, "nobody reads the marks");
    }
    return ps_member_barrier(b->member, name, ps_deadline_in_ms(JOIN_MS));
}

/* Restores the gradients as they were before the last step. All ranks then wait for each
 * other, so that this is not part of the next step's time. */
static ps_err restore_gradients(bench *b)
{
    if (!b->first_grads) return PS_OK;
    memcpy(ps_session_grads(b->session), b->first_grads, b->arena_bytes);
    return ps_member_barrier(b->member, "restored", ps_deadline_in_ms(JOIN_MS));
}

static ps_err measure(bench *b)
{
    uint64_t step = 0;
    for (; step < b->n_warmup; step++) {
        PS_TRY(restore_gradients(b));
        PS_TRY(exchange_one_step(b, step));
    }
    PS_TRY(mark(b, "begin"));
    ps_session_stats(b->session, &b->before);
    for (uint64_t i = 0; i < b->n_steps; i++) {
        PS_TRY(restore_gradients(b));
        uint64_t start = ps_clock_ns();
        PS_TRY(exchange_one_step(b, step + i));
        b->step_ns[i] = ps_clock_ns() - start;
    }
    ps_session_stats(b->session, &b->after);
    return mark(b, "end");
}

static ps_err exchange_check_sums(const bench *b)
{
    if (b->cfg->exchange.codec != PS_CODEC_NONE) return PS_OK;
    const float *params = ps_session_params(b->session);
    double steps = (double)(b->n_warmup + b->n_steps) * b->cfg->optimizer.lr;
    for (int t = 0; t < b->spec.table.n_tensors; t++)
        for (uint64_t k = 0; k < b->spec.table.tensors[t].count; k++) {
            uint64_t i = b->spec.table.tensors[t].offset + k;
            double sum = 0;
            for (int r = 0; r < (int)b->cfg->job.workers; r++)
                sum += (double)gradient(r, i);
            if ((double)params[i] == -steps * sum) continue;
            return ps_err_set(PS_ERR_NUMERIC,
                              "weight %" PRIu64 " is %.9g and should be %.9g", i,
                              (double)params[i], -steps * sum);
        }
    return PS_OK;
}

static void exchange_print_result(const bench *b)
{
    const ps_plan *plan = ps_session_plan(b->session);
    printf("{\"rank\": %d, \"bytes\": %" PRIu64
           ", \"chunks\": %u, \"chunk_bytes\": %" PRIu64 ", \"bytes_sent\": %" PRIu64
           ", \"bytes_received\": %" PRIu64 ", \"step_ns\": [",
           ps_session_rank(b->session), b->spec.table.n_params * sizeof(float),
           plan->n_chunks, plan->max_chunk_count * sizeof(float),
           b->after.bytes_sent - b->before.bytes_sent,
           b->after.bytes_received - b->before.bytes_received);
    for (uint64_t i = 0; i < b->n_steps; i++)
        printf("%s%" PRIu64, i ? ", " : "", b->step_ns[i]);
    printf("]}\n");
    fflush(stdout);
}

static ps_err exchange_run(bench *b)
{
    PS_TRY(join(b));
    PS_TRY(fill_gradients(b));
    PS_TRY(ps_session_start(b->session, NULL, NULL));
    PS_TRY(measure(b));
    PS_TRY(exchange_check_sums(b));
    exchange_print_result(b);
    return ps_session_close(b->session);
}

static ps_err bench_main(const ps_cli *cli)
{
    ps_config cfg;
    bench b = {.cfg = &cfg, .cli = cli};
    ps_err err = ps_cli_load_config(cli, &program, &cfg);
    if (err == PS_OK) err = exchange_run(&b);
    if (err != PS_OK) {
        ps_log_failure("failed", err);
        ps_session_abort(b.session, err, ps_err_message());
    }
    ps_session_destroy(&b.session);
    free(b.first_grads);
    free(b.step_ns);
    ps_model_spec_fini(&b.spec);
    ps_config_fini(&cfg);
    return err;
}

int main(int argc, char **argv)
{
    ps_mem_keep_freed(); // as ps-worker does
    ps_log_init("bench", PS_LOG_WARN);
    ps_cli cli;
    ps_err err = ps_cli_parse(&cli, &program, argc, argv, stdout);
    if (err != PS_OK)
        ps_log_failure("failed", err);
    else if (!cli.done)
        err = bench_main(&cli);
    ps_cli_fini(&cli);
    return err == PS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
