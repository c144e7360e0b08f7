#include "world_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "curve_stand_in.h"
#include "gradnorm_sum.h"
#include "nemesis.h"
#include "pstrain.h"
#include "world.h"

enum {
    WORKERS_MOST = 8,
    SERVERS_MOST = WORLD_SIZE_MOST,
    FEW_WORKERS = 4, // most jobs are small
    FEW_SERVERS = 3,
    TENSORS = 6,
    ELEMENTS_MOST = 4096, // of the arena
    STEPS = 20,
    GROWTH = 7,   // steps, after which a table may get longer
    IDS = 6,      // of a lookup
    ROWS = 40,    // of the table
    ROW_WIDTH = 5 // elements
};
#define MS UINT64_C(1000000)
#define LR 0.015625 // 2^-6: sums of whole numbers times it are exact

int ps_server_program(int argc, char **argv); // server_main.c

static struct {
    uint64_t seed;
    int workers, servers, shards;
    int64_t sizes[TENSORS];
    const char *codec;
    bool clips;       // the weights then have no closed form: all ranks have the same
    bool sets_rate;   // a rate of its own for each step
    bool lacks;       // of some parameters no rank has a gradient in some steps
    bool saves;       // collectives and the optimizer's state in between
    bool sums;        // the servers sum arrays instead
    bool embeds;      // rows of a table, too
    bool grows;       // few of the tensors, then more, then all
    bool shares;      // one host, and memory
    bool adds;        // the workers of a host do (exchange.levels)
    bool takes_turns; // two optimizers, of every other tensor, step in turn
    world_process *members[WORKERS_MOST + SERVERS_MOST]; // servers first
    nemesis nemesis;
    uint64_t late_ms[WORKERS_MOST + SERVERS_MOST];
    char error[WORKERS_MOST][400];
    uint64_t steps_made;
    world_job_options o;
    uint64_t *weights;
} J;

/* ---- the workers' program ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static float gradient_of(int rank, uint64_t step, uint64_t element)
{
    const uint64_t x =
        mix(J.seed * 31 + (uint64_t)rank * 1000003 + step * 8191 + element);
    // Without a closed form nothing has to be exact: then the order of sums shows.
    return (float)((int64_t)(x % 17) - 8) * (J.clips ? 0.1f : 1.0f);
}

static float gradient_of_row(int rank, uint64_t step, int64_t id)
{
    const uint64_t x =
        mix(J.seed * 37 + (uint64_t)rank * 131 + step * 8191 + (uint64_t)id);
    return (float)((int64_t)(x % 17) - 8);
}

static float first_weight(uint64_t element)
{
    return (float)(element % 64);
}

static bool is_idle(int tensor, uint64_t step)
{
    return J.takes_turns && (uint64_t)tensor % 2 != step % 2;
}

static bool is_lacking(int tensor, uint64_t step)
{
    return J.lacks && mix(J.seed + step * 64 + (uint64_t)tensor) % 3 == 0;
}

static double rate_of(uint64_t step)
{
    return J.sets_rate && step % 3 == 1 ? LR / 4 : LR;
}

/* Each shard needs one. */
static int tensors_at(uint64_t step)
{
    const int least = J.servers * J.shards, times = (int)(step / GROWTH);
    return J.grows && times < 2 ? least + (TENSORS - least) * times / 2 : TENSORS;
}

static float weight_at(uint64_t step, int tensor, uint64_t element)
{
    float w = first_weight(element);
    for (uint64_t s = 0; s < step; s++) {
        if (tensor >= tensors_at(s)) continue;
        if (is_idle(tensor, s) || is_lacking(tensor, s)) continue;
        float sum = 0;
        for (int r = 0; r < J.workers; r++)
            sum += gradient_of(r, s, element);
        w -= (float)rate_of(s) * sum;
    }
    return w;
}

/* Of the first rank that has them, where there is no closed form. */
static uint64_t hash_of[STEPS + 1];

static uint64_t norms_of[STEPS + 1]; // of the gradient, by step

ps_err __real_ps_gradnorm_sum_total(const ps_gradnorm_sum *, double *, double **);

/* In double precision, which the weights do not show. */
ps_err __wrap_ps_gradnorm_sum_total(const ps_gradnorm_sum *s, double *norm, double **sums)
{
    const ps_err err = __real_ps_gradnorm_sum_total(s, norm, sums);
    uint64_t bits;
    memcpy(&bits, norm, sizeof bits);
    if (err == PS_OK) norms_of[s->step % (STEPS + 1)] = bits;
    return err;
}

static void check_same(const float *w, uint64_t n, int rank, uint64_t step)
{
    uint64_t hash = 1;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &w[i], sizeof bits);
        hash = mix(hash * 31 + bits);
    }
    if (hash_of[step] == 0) hash_of[step] = hash;
    if (hash_of[step] != hash)
        world_wrong("worker %d has other weights than another one after %llu steps", rank,
                    (unsigned long long)step);
}

/* All is exact: no rounding hides a gradient that counts twice, or not. */
static void check_weights(pstrain_session *s, int rank, uint64_t step)
{
    const float *w = pstrain_params(s);
    check_same(w, pstrain_arena_count(s), rank, step);
    if (J.clips) return;
    for (int t = 0; t < tensors_at(step); t++) {
        const uint64_t at = pstrain_tensor_offset(s, t);
        for (int64_t i = 0; i < J.sizes[t]; i += 1 + J.sizes[t] / 40) {
            const float is = w[at + (uint64_t)i];
            const float should = weight_at(step, t, at + (uint64_t)i);
            if (is != should)
                world_wrong("worker %d has %g instead of %g as weight %lld of tensor %d "
                            "after %llu steps",
                            rank, (double)is, (double)should, (long long)i, t,
                            (unsigned long long)step);
        }
    }
}

static int push_tensor(pstrain_session *s, int rank, uint64_t step, int t)
{
    if (is_idle(t, step)) return 0;
    if (is_lacking(t, step)) return pstrain_push_none(s, t, 1);
    float *g = pstrain_grads(s);
    const uint64_t at = pstrain_tensor_offset(s, t);
    for (uint64_t i = 0; i < (uint64_t)J.sizes[t]; i++)
        g[at + i] = gradient_of(rank, step, at + i);
    return pstrain_push(s, t, 1);
}

/* ---- rows ---- */

static int64_t id_of(int rank, uint64_t step, int k)
{
    return (int64_t)(mix(J.seed * 7 + (uint64_t)rank * 1009 + step * 4099 +
                         (uint64_t)k * 65537) %
                     ROWS);
}

static float row_at(uint64_t step, int64_t id)
{
    float w = 1;
    for (uint64_t s = 0; s < step; s++)
        for (int r = 0; r < J.workers; r++)
            for (int k = 0; k < IDS; k++)
                if (id_of(r, s, k) == id) w -= (float)LR * gradient_of_row(r, s, id);
    return w;
}

static void check_row(const float *row, int64_t id, int rank, uint64_t step)
{
    for (int e = 0; e < ROW_WIDTH; e++)
        if (row[e] != row_at(step, id))
            world_wrong("worker %d has %g instead of %g in row %lld after %llu steps",
                        rank, (double)row[e], (double)row_at(step, id), (long long)id,
                        (unsigned long long)step);
}

/* In some jobs always, in the others in some steps. */
static bool asks_ahead(int rank, uint64_t step)
{
    const uint64_t one_in = mix(J.seed * 43) % 2 ? 1 : 4;
    return step + 1 < STEPS &&
           mix(J.seed * 41 + step * 64 + (uint64_t)rank) % one_in == 0;
}

/* In memory of the caller's. */
static pstrain_rows_lookup lookup_of(int rank, uint64_t step, int64_t *ids, float *out)
{
    for (int k = 0; k < IDS; k++)
        ids[k] = id_of(rank, step, k);
    return (pstrain_rows_lookup){.struct_size = sizeof(pstrain_rows_lookup),
                                 .ids = ids,
                                 .n_ids = IDS,
                                 .n_rows = ROWS,
                                 .out = out};
}

static int step_rows(pstrain_session *s, int rank, uint64_t step)
{
    int64_t ids[IDS], next_ids[IDS];
    float out[IDS * ROW_WIDTH], grad[IDS * ROW_WIDTH];
    const double lr = LR;
    uint64_t ticket;
    const pstrain_rows_lookup l = lookup_of(rank, step, ids, out),
                              next = lookup_of(rank, step + 1, next_ids, NULL);
    int code = pstrain_rows_pull(s, &l, 1, 1, &ticket);
    for (int k = 0; k < IDS && code == 0; k++) {
        check_row(out + k * ROW_WIDTH, ids[k], rank, step);
        for (int e = 0; e < ROW_WIDTH; e++)
            grad[k * ROW_WIDTH + e] = gradient_of_row(rank, step, ids[k]);
    }
    if (code == 0 && asks_ahead(rank, step)) code = pstrain_rows_prefetch(s, &next, 1);
    if (code == 0) code = pstrain_rows_gradient(s, ticket, 0, grad, NULL);
    return code == 0 ? pstrain_rows_push(s, 1, &lr) : code;
}

/* All rows, in the end. */
static int check_rows(pstrain_session *s, int rank)
{
    pstrain_rows_page page = {.struct_size = sizeof page};
    int code;
    do {
        code = pstrain_rows_save(s, 0, &page);
        for (uint64_t i = 0; i < page.n && code == 0; i++)
            check_row(page.values + i * ROW_WIDTH, page.ids[i], rank, STEPS);
    } while (code == 0 && page.next);
    return code;
}

static int make_step(pstrain_session *s, int rank, uint64_t step)
{
    int code = J.sets_rate ? pstrain_set_lr(s, rate_of(step)) : 0;
    if (code == 0)
        code = J.takes_turns ? pstrain_begin_of(s, (int)(step % 2), NULL)
                             : pstrain_begin(s, NULL);
    const int n = tensors_at(step);
    if (code == 0) code = pstrain_wait(s, 0, n);
    if (code != 0) return code;
    check_weights(s, rank, step);
    const int first = (int)world_draw((uint64_t)n);
    for (int k = 0; k < n && code == 0; k++) {
        code = push_tensor(s, rank, step, (first + k) % n);
        world_yield();
    }
    if (code == 0) code = pstrain_finish(s);
    if (code == 0 && J.steps_made < step + 1) J.steps_made = step + 1;
    return code;
}

/* Between two steps: what goes through the coordinator, and the optimizer's state. */
static int save_state(pstrain_session *s, int rank, uint64_t step)
{
    int64_t sum = rank + (int64_t)step;
    const int64_t n = J.workers;
    int code = pstrain_all_reduce(s, &sum, 1, PSTRAIN_INT64, PSTRAIN_SUM);
    if (code != 0) return code;
    if (sum != n * (n - 1) / 2 + n * (int64_t)step)
        world_wrong("worker %d has the sum %lld in step %llu", rank, (long long)sum,
                    (unsigned long long)step);
    if ((code = pstrain_sync(s)) != 0) return code;
    check_weights(s, rank, step);
    float *momentum = calloc(pstrain_arena_count(s), sizeof *momentum);
    pstrain_state state = {.struct_size = sizeof state};
    if (rank == 0 && pstrain_state_arrays(s) > 0) state.arrays[0] = momentum;
    code = pstrain_save(s, &state);
    free(momentum);
    if (code == 0 && state.step != step)
        world_wrong("worker %d has saved step %llu instead of %llu", rank,
                    (unsigned long long)state.step, (unsigned long long)step);
    return code;
}

/* before, weights: of a table that was shorter; NULL: there was none. */
static int open_and_start(pstrain_session *s, int rank, uint64_t step,
                          const pstrain_state *before, const float *const *weights)
{
    const int n = tensors_at(step);
    pstrain_tensor tensors[TENSORS];
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f"};
    for (int t = 0; t < TENSORS; t++)
        tensors[t] = (pstrain_tensor){.name = names[t],
                                      .shape = &J.sizes[t],
                                      .n_dims = 1,
                                      .group = J.takes_turns ? t % 2 : 0};
    const pstrain_group groups[] = {{.lr = LR, .name = "sgd"},
                                    {.lr = LR, .name = "sgd", .optimizer = 1}};
    char codec[40];
    snprintf(codec, sizeof codec, "exchange.codec=%s", J.codec);
    const char *settings[] = {
        "optimizer.name=sgd", "optimizer.lr=0.015625", "schedule.name=constant", codec,
        J.clips ? "optimizer.clip_norm=1" : "optimizer.clip_norm=0"};
    const pstrain_rows_table rows = {.name = "rows",
                                     .dim = ROW_WIDTH,
                                     .optimizer = "sgd",
                                     .lr = LR,
                                     .init = "constant",
                                     .scale = 1};
    const pstrain_table table = {.struct_size = sizeof table,
                                 .tensors = tensors,
                                 .n_tensors = n,
                                 .tensor_size = sizeof *tensors,
                                 .groups = J.takes_turns ? groups : NULL,
                                 .n_groups = J.takes_turns ? 2 : 0,
                                 .group_size = sizeof *groups,
                                 .settings = settings,
                                 .n_settings = sizeof settings / sizeof *settings,
                                 .total_steps = STEPS,
                                 .resume = before,
                                 .rows = J.embeds ? &rows : NULL,
                                 .n_rows = J.embeds,
                                 .rows_size = sizeof rows};
    int code = pstrain_open(s, &table);
    if (code != 0) return code;
    float *w = pstrain_params(s);
    for (int t = 0; rank == 0 && t < n; t++) {
        const uint64_t at = pstrain_tensor_offset(s, t);
        for (uint64_t i = 0; i < (uint64_t)J.sizes[t]; i++)
            w[at + i] = weights[t] ? weights[t][i] : first_weight(at + i);
    }
    return pstrain_start(s);
}

/* Sums of arrays, two on their way at a time. */
static int sum_arrays(pstrain_session *s, int rank)
{
    enum { ON_WAY = 2 };
    static float arrays[WORKERS_MOST][ON_WAY][ELEMENTS_MOST];
    const pstrain_reducer options = {.struct_size = sizeof options, .bytes = 1 << 16};
    int code = pstrain_open_reducer(s, &options);
    if (code == 0) code = pstrain_start(s);
    for (uint64_t step = 0; step < STEPS && code == 0; step++) {
        uint64_t tickets[ON_WAY], n[ON_WAY];
        for (int k = 0; k < ON_WAY && code == 0; k++) {
            n[k] = 1 + mix(J.seed + step * ON_WAY + (uint64_t)k) % ELEMENTS_MOST;
            for (uint64_t i = 0; i < n[k]; i++)
                arrays[rank][k][i] = gradient_of(rank, step * ON_WAY + (uint64_t)k, i);
            code = pstrain_reduce_begin(s, arrays[rank][k], n[k], &tickets[k]);
        }
        for (int k = 0; k < ON_WAY && code == 0; k++) {
            code = pstrain_reduce_end(s, tickets[k]);
            for (uint64_t i = 0; i < n[k] && code == 0; i++) {
                float sum = 0;
                for (int r = 0; r < J.workers; r++)
                    sum += gradient_of(r, step * ON_WAY + (uint64_t)k, i);
                if (arrays[rank][k][i] != sum)
                    world_wrong("worker %d has a wrong sum in step %llu", rank,
                                (unsigned long long)step);
            }
        }
        J.steps_made = code == 0 ? step + 1 : J.steps_made;
    }
    return code;
}

/* Worker 0 brings what the tensors had, and the steps that the new ones have missed. */
static int grow(pstrain_session *s, int rank, uint64_t step)
{
    uint64_t missed[TENSORS] = {0};
    const float *weights[TENSORS] = {0};
    pstrain_arenas *old = NULL;
    pstrain_state state = {.struct_size = sizeof state,
                           .missed = rank == 0 ? missed : NULL};
    int code = pstrain_drain(s);
    if (code == 0) code = pstrain_save(s, &state);
    const int before = tensors_at(step - 1);
    for (int t = 0; t < TENSORS; t++)
        if (t < before)
            weights[t] = pstrain_params(s) + pstrain_tensor_offset(s, t);
        else
            missed[t] = state.step;
    if (code == 0) code = pstrain_close_table(s, &old);
    if (code == 0) code = open_and_start(s, rank, step, &state, weights);
    pstrain_arenas_free(&old);
    return code;
}

static int make_steps(pstrain_session *s, int rank)
{
    const float *no_weights[TENSORS] = {0};
    int code = open_and_start(s, rank, 0, NULL, no_weights);
    for (uint64_t step = 0; step < STEPS && code == 0; step++) {
        if (step > 0 && tensors_at(step) != tensors_at(step - 1))
            code = grow(s, rank, step);
        if (code != 0) break;
        if (J.embeds) code = step_rows(s, rank, step);
        if (code == 0) code = make_step(s, rank, step);
        if (code == 0 && J.saves && step % 8 == 3) code = save_state(s, rank, step + 1);
    }
    if (code == 0) code = pstrain_drain(s);
    if (code == 0) check_weights(s, rank, STEPS);
    return code == 0 && J.embeds && rank == 0 ? check_rows(s, rank) : code;
}

static int train(pstrain_session *s, int rank)
{
    int code = pstrain_join(s);
    if (code == 0) code = J.sums ? sum_arrays(s, rank) : make_steps(s, rank);
    return code == 0 ? pstrain_close(s) : code;
}

const char world_init_method[] = "tcp://10.0.0.2:29500"; // server 0's

static void start_late(int member)
{
    if (J.late_ms[member] > 0) usleep((useconds_t)J.late_ms[member] * 1000);
}

static const char *shm_setting(void)
{
    return J.shares ? "exchange.shm=auto" : "exchange.shm=off";
}

static const char *levels_setting(void)
{
    return J.adds ? "exchange.levels=2" : "exchange.levels=1";
}

static int worker_program(void *arg)
{
    const int rank = (int)(intptr_t)arg;
    start_late(J.servers + rank);
    char dead[40], shards[40];
    snprintf(dead, sizeof dead, "net.dead_after_ms=%d", NEMESIS_DEAD_AFTER_MS);
    snprintf(shards, sizeof shards, "server.shards=%d", J.shards);
    const char *settings[] = {curve_stand_in_setting(true), shm_setting(), dead, shards,
                              levels_setting()};
    const pstrain_options options = {.struct_size = sizeof options,
                                     .init_method = world_init_method,
                                     .rank_plus_1 = rank + 1,
                                     .world_size = J.workers,
                                     .servers_plus_1 = J.servers + 1,
                                     .settings = settings,
                                     .n_settings = sizeof settings / sizeof *settings};
    pstrain_session *s = NULL;
    int code = pstrain_create(&options, &s);
    if (code == 0) code = train(s, rank);
    if (code != 0) {
        snprintf(J.error[rank], sizeof J.error[rank], "%s", pstrain_error());
        world_say("failed: %s", J.error[rank]);
    }
    pstrain_destroy(&s);
    return code;
}

int world_run_server(int rank, int n_servers, int n_workers, int n_shards,
                     const char *shm)
{
    char number[16], servers[16], workers[16], dead[40], shards[40];
    snprintf(number, sizeof number, "%d", rank);
    snprintf(servers, sizeof servers, "%d", n_servers);
    snprintf(workers, sizeof workers, "%d", n_workers);
    snprintf(dead, sizeof dead, "net.dead_after_ms=%d", NEMESIS_DEAD_AFTER_MS);
    snprintf(shards, sizeof shards, "server.shards=%d", n_shards);
    char *argv[] = {"ps-server",
                    "--rank",
                    number,
                    "--servers",
                    servers,
                    "--world-size",
                    workers,
                    "--init-method",
                    (char *)(uintptr_t)world_init_method,
                    "--set",
                    (char *)(uintptr_t)curve_stand_in_setting(false),
                    "--set",
                    (char *)(uintptr_t)shm,
                    "--set",
                    dead,
                    "--set",
                    shards,
                    "--log-level",
                    world_logs() ? "debug" : "error",
                    NULL};
    return ps_server_program(sizeof argv / sizeof *argv - 1, argv);
}

static int server_program(void *arg)
{
    start_late((int)(intptr_t)arg);
    return world_run_server((int)(intptr_t)arg, J.servers, J.workers, J.shards,
                            shm_setting());
}

static int n_members(void)
{
    return J.servers + J.workers;
}

/* ---- the judges ---- */

static bool all_over(void *arg)
{
    (void)arg;
    for (int i = 0; i < n_members(); i++)
        if (!J.members[i]->dead) return false;
    return true;
}

/* How long a job may go on after the last fault: what waits for a member that is gone. */
enum { BOUND_MS = 4 * NEMESIS_DEAD_AFTER_MS + 60000 };

static const char *victim; // "worker 1": who was killed

/* As "worker 1", or in a list: "workers 0, 2-3 of 4". */
static bool names_victim(const char *text)
{
    char role[WORLD_NAME];
    if (strstr(text, victim)) return true;
    const size_t n = (size_t)(strchr(victim, ' ') - victim);
    snprintf(role, sizeof role, "%.*ss ", (int)n, victim);
    const char *at = strstr(text, role);
    const long rank = strtol(victim + n, NULL, 10);
    char *next = NULL;
    for (at = at ? at + strlen(role) : ""; strtol(at, &next, 10), next != at;
         at = next + strspn(next, ", ")) {
        const long first = strtol(at, NULL, 10);
        const long last = *next == '-' ? strtol(next + 1, &next, 10) : first;
        if (first <= rank && rank <= last) return true;
    }
    return false;
}

static void on_job_killed(world_process *p)
{
    static char name[WORLD_NAME];
    snprintf(name, sizeof name, "%s", p->name);
    *strchr(name, '-') = ' ';
    victim = name;
}

/* Whether the error of worker r names a worker of the set. */
static bool names_one_of(int r, unsigned set)
{
    char other[WORLD_NAME];
    bool names = false;
    for (int i = 0; i < J.workers && !names; i++) {
        snprintf(other, sizeof other, "worker %d", i);
        names = set >> i & 1 && strstr(J.error[r], other);
    }
    return names;
}

/* It was not there when the others heard why the job ends, and then nobody listened. */
static bool has_missed_the_end(int r)
{
    return J.members[J.servers + r]->was_cut && strstr(J.error[r], "the coordinator (");
}

/* Those that miss it name it, or a worker that failed by it. */
static void check_victim_named(void)
{
    unsigned leads = 0;
    for (int turn = 0; victim && turn <= J.workers; turn++)
        for (int r = 0; r < J.workers; r++)
            if (names_victim(J.error[r]) || names_one_of(r, leads)) leads |= 1u << r;
    for (int r = 0; r < J.workers; r++)
        if (victim && J.error[r][0] && !(leads >> r & 1) &&
            !(leads && has_missed_the_end(r)))
            world_wrong("%s was killed, and worker %d says: %s", victim, r, J.error[r]);
}

static int judge(void)
{
    world_wait(all_over, NULL, world_now() + 1000000 * MS);
    for (int i = 0; i < n_members(); i++) {
        const world_process *p = J.members[i];
        const bool is_worker = i >= J.servers;
        if (!p->dead)
            world_wrong("%s does not end (last fault at %.3f s)", p->name,
                        (double)J.nemesis.last_ns * 1e-9);
        if (!J.nemesis.has_killed && p->code != 0)
            world_wrong("%s ended with %d: %s", p->name, p->code,
                        is_worker ? J.error[i - J.servers] : "(--trace shows its log)");
    }
    world_memory_judge(J.o.memory, J.o.disturbed);
    if (J.nemesis.has_killed) {
        if (!J.nemesis.has_slept) check_victim_named();
        return 0;
    }
    if (J.steps_made != STEPS)
        world_wrong("%llu steps were made", (unsigned long long)J.steps_made);
    uint64_t hash = hash_of[STEPS];
    for (int i = 0; i <= STEPS; i++)
        hash = mix(hash * 31 + norms_of[i]);
    if (*J.weights && *J.weights != hash)
        world_wrong("other weights, or norms of the gradient, than without faults");
    *J.weights = hash;
    return 0;
}

/* ---- the run ---- */

bool world_job_has_no_closed_form(uint64_t seed)
{
    return world_choice_of(seed, 5, 4) == 0;
}

/* Sometimes all are on one host, sometimes on two. */
static const world_process *host_of(int member)
{
    const int hosts = 1 + (int)world_choice(15, 2);
    return J.shares && member >= hosts ? J.members[member % hosts] : NULL;
}

static int begin(void *arg)
{
    (void)arg;
    J.workers = 1 + (int)world_choice(1, FEW_WORKERS);
    J.servers = 1 + (int)world_choice(2, FEW_SERVERS);
    J.shards = 1 + (int)world_choice(3, 2);
    if (world_since(WORLD_KEYS) && world_choice(16, 12) == 0) {
        J.workers = WORKERS_MOST - (int)world_choice(1, FEW_WORKERS);
        J.servers = SERVERS_MOST;
        J.shards = 1;
    }
    if (J.o.size) J.workers = J.servers = J.o.size;
    // fp16 has these gradients and changes exactly.
    J.codec = world_choice(4, 4) == 0 ? "fp16" : "none";
    J.clips = world_job_has_no_closed_form(J.seed);
    J.sets_rate = world_choice(6, 3) == 0;
    J.lacks = world_choice(7, 3) == 0;
    J.saves = world_choice(8, 3) == 0;
    J.sums = world_choice(9, 6) == 0;
    J.takes_turns = world_choice(10, 4) == 0;
    J.grows = world_choice(12, 4) == 0 && !J.sums && !J.takes_turns;
    J.shares = world_choice(13, 4) == 0;
    J.adds = J.shares && world_choice(14, 2) && !J.sums && strcmp(J.codec, "none") == 0;
    J.embeds = world_choice(11, 3) == 0 && !J.sums && !J.grows && !J.adds;
    for (int t = 0; t < TENSORS; t++)
        J.sizes[t] = 1 + (int64_t)world_choice(
                             20 + (uint64_t)t,
                             1 + world_choice(30 + (uint64_t)t, ELEMENTS_MOST / TENSORS));
    char name[32];
    for (int i = 0; i < J.servers; i++) {
        snprintf(name, sizeof name, "server-%d", i);
        J.members[i] = world_start(name, host_of(i), server_program, (void *)(intptr_t)i);
    }
    for (int i = 0; i < J.workers; i++) {
        snprintf(name, sizeof name, "worker-%d", i);
        J.members[J.servers + i] = world_start(name, host_of(J.servers + i),
                                               worker_program, (void *)(intptr_t)i);
    }
    J.nemesis = (nemesis){.seed = J.seed,
                          .killed = on_job_killed,
                          .members = J.members,
                          .n_members = n_members(),
                          .span_ms = 400,
                          .most_kills = world_draw(3) == 0,
                          .without = J.o.without};
    J.nemesis.sleeps = J.nemesis.most_kills > 0;
    if (J.o.disturbed) nemesis_begin(&J.nemesis);
    for (int i = 0; i < n_members() && J.o.disturbed; i++)
        J.late_ms[i] = nemesis_start_ms(&J.nemesis, i);
    return judge();
}

int world_job_run(const world_options *options, const world_job_options *job,
                  uint64_t *weights)
{
    J.seed = options->seed;
    J.o = *job;
    J.weights = weights;
    world_options o = *options;
    o.most_ns = (STEPS * 1000 + BOUND_MS) * MS;
    return world_run(&o, begin, NULL);
}
