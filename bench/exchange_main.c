/* ps-bench-exchange: a worker that exchanges (exchange.name) and computes nothing.
 *
 *   ps-bench-exchange [--marks] <options of ps-worker>
 *
 * Every step hands in all gradients at once and waits for all weights. train.steps are
 * timed after train.warmup_steps. The result is one line of JSON on stdout. With --marks
 * rank 0 prints "mark" before and after the timed steps and waits for a line on stdin,
 * while everybody else waits for it: so that somebody can read the processes' CPU times.
 *
 * Gradients are small whole numbers and the optimizer should be sgd with lr 1: the last
 * weights are then known exactly, and are checked when no codec rounds them.
 */
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "chunk_codec.h"
#include "cli.h"
#include "exchange.h"
#include "init_method.h"
#include "model_spec.h"

enum { STATES = 17, JOIN_MS = 60000 };

static const ps_cli_program program = {
    .name = "ps-bench-exchange",
    .about = "Exchanges synthetic gradients as a worker of a job would, and times it.\n",
    .examples = "  bench/exchange starts it.\n",
};

typedef struct bench {
    const ps_config *cfg;
    const ps_cli *cli;
    bool marks;
    ps_model_spec spec;
    ps_plan plan;
    ps_step_rule rule;
    ps_shared_mem params, grads;
    float *first_grads; // what all-reduce overwrites with sums; NULL in ps mode
    void *buffers;
    ps_member *member;
    ps_exchange *x;
    uint64_t n_warmup, n_steps;
    uint64_t *step_ns;
    ps_exchange_stats before, after;
    double cpu_seconds;
} bench;

/* A whole number in -8 .. 8 for (rank, element). */
static float gradient(int rank, uint64_t i)
{
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u + (uint64_t)rank * 0xD1B54A32D192ED03u;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9u;
    return (float)((int)((x >> 33) % STATES) - STATES / 2);
}

static bool is_ps(const bench *b)
{
    return strcmp(b->cfg->exchange.name, "ps") == 0;
}

static int n_servers(const bench *b)
{
    return is_ps(b) ? (int)b->cfg->job.servers : 0;
}

static ps_err make(bench *b)
{
    const ps_config *cfg = b->cfg;
    b->n_warmup = (uint64_t)cfg->train.warmup_steps;
    b->n_steps = (uint64_t)cfg->train.steps;
    if (b->n_steps == 0) return ps_err_set(PS_ERR_CONFIG, "train.steps: at least 1");
    PS_TRY(ps_model_spec_init(&b->spec, cfg));
    PS_TRY(ps_plan_init(
        &b->plan, &b->spec.table,
        ps_chunk_size_wanted(cfg, ps_init_method_is_loopback(b->cli->init_method)),
        is_ps(b) ? (uint32_t)(n_servers(b) * cfg->server.shards) : 1));
    PS_TRY(ps_step_rule_init(&b->rule, cfg));
    PS_TRY(ps_step_rule_start(&b->rule, cfg, b->n_warmup + b->n_steps));
    PS_TRY(ps_mem_zalloc(&b->step_ns, b->n_steps, sizeof *b->step_ns, "times"));
    size_t bytes = b->spec.table.arena_count * sizeof(float);
    PS_TRY(ps_shared_mem_init(&b->params, bytes, "params"));
    PS_TRY(ps_shared_mem_init(&b->grads, bytes, "grads"));
    return ps_mem_zalloc_aligned(&b->buffers, b->spec.table.buffer_bytes, "buffers");
}

static ps_err join(bench *b)
{
    const ps_member_options options = {
        .config = b->cfg,
        .role = PS_ROLE_WORKER,
        .rank = b->cli->rank,
        .world_size = (int)b->cfg->job.workers,
        .n_servers = n_servers(b),
        .init_method = b->cli->init_method,
        .plan_hash = b->plan.hash,
        .local_rank = b->cli->local_rank,
    };
    PS_TRY(ps_member_join(&options, &b->member));
    uint64_t total = b->n_warmup + b->n_steps;
    if (ps_member_rank(b->member) != 0) return PS_OK;
    return ps_member_put(b->member, "job/total_steps", &total, sizeof total,
                         ps_deadline_in_ms(JOIN_MS));
}

static ps_err fill_gradients(bench *b, int rank)
{
    float *grads = b->grads.base;
    for (int t = 0; t < b->spec.table.n_tensors; t++)
        for (uint64_t k = 0; k < b->spec.table.tensors[t].count; k++) {
            uint64_t i = b->spec.table.tensors[t].offset + k;
            grads[i] = gradient(rank, i);
        }
    if (is_ps(b)) return PS_OK;
    PS_TRY(ps_mem_zalloc_aligned(&b->first_grads, b->grads.bytes, "the first gradients"));
    memcpy(b->first_grads, grads, b->grads.bytes);
    return PS_OK;
}

static ps_err connect(bench *b)
{
    int rank = ps_member_rank(b->member);
    const ps_exchange_options options = {
        .config = b->cfg,
        .table = &b->spec.table,
        .plan = &b->plan,
        .rule = &b->rule,
        .member = b->member,
        .rank = rank,
        .world_size = (int)b->cfg->job.workers,
        .total_steps = b->n_warmup + b->n_steps,
        .params = &b->params,
        .grads = &b->grads,
        .buffers = b->buffers,
    };
    PS_TRY(fill_gradients(b, rank));
    PS_TRY(ps_exchange_create(b->cfg->exchange.name, "cpu", &options, &b->x));
    return ps_exchange_start(b->x);
}

static ps_err one_step(bench *b, uint64_t step)
{
    PS_TRY(ps_exchange_begin(b->x, step));
    PS_TRY(ps_exchange_params_needed(b->x, 0, b->spec.table.n_tensors));
    PS_TRY(ps_exchange_grads_ready(b->x, 0, b->spec.table.n_tensors));
    PS_TRY(ps_exchange_finish(b->x));
    return ps_exchange_drain(b->x);
}

static double cpu_now(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Everybody waits for rank 0, which waits for its reader. */
static ps_err mark(bench *b, const char *name)
{
    PS_TRY(ps_member_barrier(b->member, name, ps_deadline_in_ms(JOIN_MS)));
    if (b->marks && ps_member_rank(b->member) == 0) {
        char line[16];
        printf("mark\n");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin))
            return ps_err_set(PS_ERR_IO, "nobody reads the marks");
    }
    return ps_member_barrier(b->member, name, ps_deadline_in_ms(JOIN_MS));
}

/* The gradients as they were before the last step. What takes longer on one worker than
 * on another is waited for, so that it is no part of the next step's time. */
static ps_err restore_gradients(bench *b)
{
    if (!b->first_grads) return PS_OK;
    memcpy(b->grads.base, b->first_grads, b->grads.bytes);
    return ps_member_barrier(b->member, "restored", ps_deadline_in_ms(JOIN_MS));
}

static ps_err measure(bench *b)
{
    uint64_t step = 0;
    for (; step < b->n_warmup; step++) {
        PS_TRY(restore_gradients(b));
        PS_TRY(one_step(b, step));
    }
    PS_TRY(mark(b, "begin"));
    ps_exchange_stats_get(b->x, &b->before);
    double cpu = cpu_now();
    for (uint64_t i = 0; i < b->n_steps; i++) {
        PS_TRY(restore_gradients(b));
        uint64_t start = ps_clock_ns();
        PS_TRY(one_step(b, step + i));
        b->step_ns[i] = ps_clock_ns() - start;
    }
    b->cpu_seconds = cpu_now() - cpu;
    ps_exchange_stats_get(b->x, &b->after);
    return mark(b, "end");
}

static ps_err check_sums(const bench *b)
{
    if (strcmp(b->cfg->exchange.codec, "none") != 0) return PS_OK;
    const float *params = b->params.base;
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

static void print_result(const bench *b)
{
    printf("{\"rank\": %d, \"bytes\": %" PRIu64
           ", \"chunks\": %u, \"chunk_bytes\": %" PRIu64 ", \"bytes_sent\": %" PRIu64
           ", \"bytes_received\": %" PRIu64 ", \"raw_bytes\": %" PRIu64
           ", \"cpu_seconds\": %.6f, \"step_ns\": [",
           ps_member_rank(b->member), b->spec.table.n_params * sizeof(float),
           b->plan.n_chunks, b->plan.max_chunk_count * sizeof(float),
           b->after.bytes_sent - b->before.bytes_sent,
           b->after.bytes_received - b->before.bytes_received,
           b->after.raw_bytes - b->before.raw_bytes, b->cpu_seconds);
    for (uint64_t i = 0; i < b->n_steps; i++)
        printf("%s%" PRIu64, i ? ", " : "", b->step_ns[i]);
    printf("]}\n");
    fflush(stdout);
}

static ps_err run(bench *b)
{
    PS_TRY(make(b));
    PS_TRY(join(b));
    PS_TRY(connect(b));
    PS_TRY(measure(b));
    PS_TRY(check_sums(b));
    print_result(b);
    PS_TRY(ps_exchange_stop(b->x));
    return ps_member_leave(b->member, ps_deadline_in_ms(JOIN_MS));
}

static ps_err bench_main(const ps_cli *cli, bool marks)
{
    ps_config cfg;
    bench b = {.cfg = &cfg, .cli = cli, .marks = marks};
    ps_err err = ps_cli_load_config(cli, &program, &cfg);
    if (err == PS_OK) err = run(&b);
    if (err != PS_OK) {
        PS_ERROR("failed", "reason=\"%s\"", ps_err_message());
        if (b.member) ps_member_abort(b.member, ps_err_message());
    }
    ps_exchange_destroy(&b.x);
    ps_member_destroy(&b.member);
    ps_shared_mem_fini(&b.params);
    ps_shared_mem_fini(&b.grads);
    free(b.first_grads);
    free(b.buffers);
    free(b.step_ns);
    ps_plan_fini(&b.plan);
    ps_model_spec_fini(&b.spec);
    ps_config_fini(&cfg);
    return err;
}

int main(int argc, char **argv)
{
    // As the real programs: freed payloads stay with the process.
    mallopt(M_MMAP_THRESHOLD, 256 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    bool marks = argc > 1 && strcmp(argv[1], "--marks") == 0;
    if (marks) {
        argv[1] = argv[0];
        argc--, argv++;
    }
    ps_log_init("bench", PS_LOG_WARN);
    ps_cli cli;
    ps_err err = ps_cli_parse(&cli, &program, argc, argv, stdout);
    if (err != PS_OK)
        PS_ERROR("failed", "reason=\"%s\"", ps_err_message());
    else if (!cli.done)
        err = bench_main(&cli, marks);
    ps_cli_fini(&cli);
    return err == PS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
