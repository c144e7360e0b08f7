/* ps-bench-rows: the rows of one shard, in one thread without a wire. Prints one line of
 * JSON. Times are processor time, the best of some steps.
 *
 *   core DIM OPTIMIZER [IDS]         two workers, 26 tables of IDS (100,000) ids, 2,048
 *                                    samples of one id each, by Zipf 1.05
 *   core DIM OPTIMIZER IDS FOLDER    the same of a tenth of the ids; that many rows fit
 *                                    into memory, the others lie in a file in the folder
 *                                    (-: all are in memory)
 *   grow ROWS DIM OPTIMIZER          ids are new, 1,000 in each step
 *   files ROWS DIM OPTIMIZER FILE    likewise; then a full file, and one of 1% of rows
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mem.h"
#include "procstat.h"
#include "row_file.h"
#include "row_table.h"

enum { TABLES = 26, WORKERS = 2, BATCH = 2048, STEPS = 40, STEPS_OF_DISK = 400 };

typedef struct core {
    uint64_t n_ids, n_looked_up;
    uint32_t dim;
    double *zipf; // sums of the ids' shares
    ps_row_memory memory;
    ps_row_table tables[TABLES];
    ps_row_step steps[TABLES];
    ps_row_batch batches[WORKERS][TABLES];
    uint64_t lookups[WORKERS][TABLES][BATCH];
    float *rows, *grads;
} core;

enum { PULL, PUSH, N_PARTS };

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ps_row_spec spec_of(uint32_t number, const char *dim, const char *optimizer)
{
    int kind = PS_ROW_SGD;
    if (!ps_word_find(ps_row_optimizer_words, optimizer, &kind)) {
        fprintf(stderr, "no such optimizer: %s\n", optimizer);
        exit(2);
    }
    ps_row_spec spec = ps_row_spec_default((ps_row_optimizer)kind);
    spec.number = number;
    spec.dim = (uint32_t)strtoul(dim, NULL, 10);
    snprintf(spec.name, sizeof spec.name, "table %u", number);
    return spec;
}

/* A sample's id: the inverse of the distribution, by bisection. */
static uint64_t zipf_draw(const core *c)
{
    static uint64_t drawn = 1;
    uint64_t low = 0, high = c->n_looked_up - 1;
    drawn += 0x9e3779b97f4a7c15u;
    const double x = (double)(ps_row_mix(drawn) >> 11) * 0x1p-53 * c->zipf[high];
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (c->zipf[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return ps_row_mix(low);
}

/* All ids get a row first. */
static ps_err core_fill(core *c, ps_row_table *t)
{
    uint64_t ids[BATCH];
    for (uint64_t at = 0; at < c->n_ids; at += BATCH) {
        const uint64_t n = c->n_ids - at < BATCH ? c->n_ids - at : BATCH;
        for (uint64_t i = 0; i < n; i++)
            ids[i] = ps_row_mix(at + i);
        ps_row_table_read(t, n, ids, c->rows);
        PS_TRY(ps_row_table_set(t, n, ids, c->rows, 0));
    }
    return PS_OK;
}

static ps_err core_init(core *c, char **v, int n)
{
    const uint64_t floats = (uint64_t)BATCH * strtoul(v[0], NULL, 10);
    c->n_ids = n > 2 ? strtoull(v[2], NULL, 10) : 100000;
    c->n_looked_up = n > 3 ? c->n_ids / 10 : c->n_ids;
    PS_TRY(ps_mem_zalloc_large(&c->zipf, c->n_ids * sizeof(double), "ids"));
    for (uint64_t i = 0; i < c->n_ids; i++)
        c->zipf[i] = (i > 0 ? c->zipf[i - 1] : 0) + pow((double)i + 1, -1.05);
    PS_TRY(ps_mem_zalloc_large(&c->rows, TABLES * floats * sizeof(float), "rows"));
    const uint64_t all = WORKERS * TABLES * floats;
    PS_TRY(ps_mem_zalloc_large(&c->grads, all * sizeof(float), "gradients"));
    for (uint64_t i = 0; i < all; i++)
        c->grads[i] = (float)i * 0x1p-24f;
    ps_row_memory_init(&c->memory);
    const ps_row_spec any = spec_of(0, v[0], v[1]);
    const ps_row_disk disk = {
        n > 3 && strcmp(v[3], "-") != 0 ? v[3] : NULL,
        TABLES * (c->n_looked_up * ps_row_spec_row_bytes(&any) + (256 << 10))};
    PS_TRY(ps_row_memory_use_disk(&c->memory, &disk));
    for (uint32_t t = 0; t < TABLES; t++) {
        const ps_row_spec spec = spec_of(t, v[0], v[1]);
        c->dim = spec.dim;
        PS_TRY(ps_row_table_init(&c->tables[t], &spec, PS_ROW_KEY_PLAIN, 0,
                                 PS_ROW_PARTITIONS, &c->memory));
        PS_TRY(ps_row_step_init(&c->steps[t], WORKERS, PS_ROW_KEY_PLAIN));
        PS_TRY(core_fill(c, &c->tables[t]));
        for (int w = 0; w < WORKERS; w++)
            ps_row_batch_init(&c->batches[w][t]);
    }
    return PS_OK;
}

/* The shard's answer to a worker's PULL. */
static ps_err core_pull(core *c, int w, double *seconds)
{
    for (uint32_t t = 0; t < TABLES; t++)
        PS_TRY(
            ps_row_batch_split(&c->batches[w][t], t, 1, BATCH, c->lookups[w][t], NULL));
    const double then = cpu_seconds();
    float *rows = c->rows;
    for (uint32_t t = 0; t < TABLES; t++) {
        const ps_row_batch *b = &c->batches[w][t];
        PS_TRY(ps_row_step_pull(&c->steps[t], (uint32_t)w, b->n_rows, b->ids));
        ps_row_table_read(&c->tables[t], b->n_rows, b->ids, rows);
        rows += (uint64_t)b->n_rows * c->dim;
    }
    seconds[PULL] += cpu_seconds() - then;
    return PS_OK;
}

static ps_err core_step(core *c, uint64_t step, double *seconds)
{
    const ps_row_update update = {.lr = 0.01, .t = step + 1, .step = step};
    for (int w = 0; w < WORKERS; w++)
        for (uint32_t t = 0; t < TABLES; t++)
            for (uint32_t i = 0; i < BATCH; i++)
                c->lookups[w][t][i] = zipf_draw(c);
    for (int w = 0; w < WORKERS; w++)
        PS_TRY(core_pull(c, w, seconds));
    const double then = cpu_seconds();
    const uint64_t floats = (uint64_t)BATCH * c->dim;
    for (uint32_t t = 0; t < TABLES; t++) {
        const float *const grads[WORKERS] = {c->grads + t * floats,
                                             c->grads + (TABLES + t) * floats};
        PS_TRY(ps_row_table_apply(&c->tables[t], &c->steps[t], &update, grads));
        ps_row_step_clear(&c->steps[t]);
    }
    seconds[PUSH] += cpu_seconds() - then;
    return PS_OK;
}

static ps_err bench_core(char **v, int n)
{
    static core c;
    double best[N_PARTS] = {1e9, 1e9};
    uint64_t unique = 0;
    PS_TRY(core_init(&c, v, n));
    for (uint64_t step = 0; step < (n > 3 ? STEPS_OF_DISK : STEPS); step++) {
        double seconds[N_PARTS] = {0};
        PS_TRY(core_step(&c, step, seconds));
        for (int p = 0; p < N_PARTS; p++)
            if (seconds[p] < best[p]) best[p] = seconds[p];
    }
    for (uint32_t t = 0; t < TABLES; t++)
        unique += c.batches[0][t].n_rows;
    printf("{\"dim\": %u, \"optimizer\": \"%s\", \"unique\": %" PRIu64
           ", \"pull_ms\": %.2f, \"push_ms\": %.2f, \"shard_mlookups\": %.1f}\n",
           c.dim, v[1], unique, best[PULL] * 1e3, best[PUSH] * 1e3,
           (double)WORKERS * TABLES * BATCH * 1e-6 / (best[PULL] + best[PUSH]));
    return PS_OK;
}

enum { NEW_IDS = 1000 };

static int order_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A step with a gradient for ids first, first + stride, ... */
static ps_err grow_step(ps_row_table *t, ps_row_step *step, uint64_t s, uint64_t first,
                        uint64_t stride, const float *grads, double *seconds)
{
    uint64_t ids[NEW_IDS];
    const ps_row_update update = {.lr = 0.01, .t = s + 1, .step = s};
    for (uint64_t i = 0; i < NEW_IDS; i++)
        ids[i] = ps_row_mix(first + i * stride);
    const double then = cpu_seconds();
    PS_TRY(ps_row_step_pull(step, 0, NEW_IDS, ids));
    PS_TRY(ps_row_table_apply(t, step, &update, &grads));
    *seconds = cpu_seconds() - then;
    ps_row_step_clear(step);
    return PS_OK;
}

typedef struct growth {
    ps_row_memory memory;
    ps_row_table table;
    ps_row_step step;
    uint64_t rows, steps;
    float *grads;
    double *seconds, bytes_per_row;
} growth;

static ps_err growth_run(growth *g, char **v)
{
    const ps_row_spec spec = spec_of(0, v[1], v[2]);
    g->rows = strtoull(v[0], NULL, 10);
    g->steps = g->rows / NEW_IDS;
    if (g->steps == 0) return ps_err_set(PS_ERR_ARG, "%s rows: give 1,000 or more", v[0]);
    ps_row_memory_init(&g->memory);
    PS_TRY(ps_row_table_init(&g->table, &spec, PS_ROW_KEY_PLAIN, 0, PS_ROW_PARTITIONS,
                             &g->memory));
    PS_TRY(ps_row_step_init(&g->step, 1, PS_ROW_KEY_PLAIN));
    PS_TRY(ps_mem_zalloc_large(&g->grads, (uint64_t)NEW_IDS * spec.dim * sizeof(float),
                               "gradients"));
    PS_TRY(PS_NEW(&g->seconds, g->steps, "times"));
    const uint64_t before = ps_procstat_rss();
    for (uint64_t s = 0; s < g->steps; s++)
        PS_TRY(
            grow_step(&g->table, &g->step, s, s * NEW_IDS, 1, g->grads, &g->seconds[s]));
    g->bytes_per_row = (double)(ps_procstat_rss() - before) / (double)g->rows;
    return PS_OK;
}

static ps_err bench_grow(char **v)
{
    static growth g;
    double all = 0;
    PS_TRY(growth_run(&g, v));
    for (uint64_t s = 0; s < g.steps; s++)
        all += g.seconds[s];
    qsort(g.seconds, g.steps, sizeof *g.seconds, order_doubles);
    printf("{\"rows\": %" PRIu64 ", \"dim\": %s, \"optimizer\": \"%s\", \"mrows\": %.2f, "
           "\"median_ms\": %.3f, \"p99_ms\": %.3f, \"worst_ms\": %.3f, "
           "\"bytes_per_row\": %.1f, \"of_row_and_27\": %.3f}\n",
           g.rows, v[1], v[2], (double)g.rows / all * 1e-6, g.seconds[g.steps / 2] * 1e3,
           g.seconds[g.steps * 99 / 100] * 1e3, g.seconds[g.steps - 1] * 1e3,
           g.bytes_per_row,
           g.bytes_per_row / (double)ps_row_spec_row_bytes(&g.table.spec));
    return PS_OK;
}

static ps_err bench_files(char **v)
{
    static growth g;
    uint64_t full, part;
    double seconds[3], ignored;
    PS_TRY(growth_run(&g, v));
    const uint64_t version = g.steps;
    seconds[0] = cpu_seconds();
    PS_TRY(ps_row_file_write(v[3], &g.table, 0, version, &full, NULL));
    seconds[1] = cpu_seconds();
    ps_row_table_forget(&g.table, version);
    for (uint64_t s = 0; s < g.rows / 100 / NEW_IDS; s++)
        PS_TRY(grow_step(&g.table, &g.step, version + s, s * NEW_IDS * 100, 100, g.grads,
                         &ignored));
    seconds[2] = cpu_seconds();
    PS_TRY(ps_row_file_write(v[3], &g.table, version, version + 1000, &part, NULL));
    const double last = cpu_seconds() - seconds[2];
    remove(v[3]);
    printf("{\"rows\": %" PRIu64 ", \"full_bytes\": %" PRIu64
           ", \"full_seconds\": %.2f, \"part_bytes\": %" PRIu64
           ", \"part_seconds\": %.2f, \"part\": %.5f}\n",
           g.rows, full, seconds[1] - seconds[0], part, last,
           (double)part / (double)full);
    return PS_OK;
}

int main(int argc, char **argv)
{
    ps_err err = PS_ERR_ARG;
    if (argc >= 4 && strcmp(argv[1], "core") == 0)
        err = bench_core(argv + 2, argc - 2);
    else if (argc >= 5 && strcmp(argv[1], "grow") == 0)
        err = bench_grow(argv + 2);
    else if (argc >= 6 && strcmp(argv[1], "files") == 0)
        err = bench_files(argv + 2);
    else
        ps_err_set(err, "see the head of bench/rows_main.c for what it takes");
    if (err != PS_OK) fprintf(stderr, "ps-bench-rows: %s\n", ps_err_message());
    return err == PS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
