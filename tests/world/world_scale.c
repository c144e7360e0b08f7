/* ps-world --members N: how the coordinator fares with many members: they join, make
 * steps, wait, and join again, with a new process for the one that has died. Times are
 * the world's, except the coordinator's own work, which is this machine's. */
#include <stdio.h>
#include <unistd.h>

#include "curve_stand_in.h"
#include "pstrain.h"
#include "world_job.h"

enum {
    SERVERS = 2,
    STEPS = 20,
    IDLE_S = 5,
    AGAIN_MS = 1500,
    TRIES = 20,
    TRY_MS = 50,
    WORKERS_MOST = WORLD_MEMBERS_MOST,
    ELEMENTS = 8192
};
#define MS UINT64_C(1000000)

typedef enum moment {
    BEGAN,
    JOINED,
    STEPPING,
    STEPPED,
    DIED,
    HEARD,
    AGAIN,
    MOMENTS
} moment;

static struct {
    int workers; // of them one dies
    uint64_t at_ns[MOMENTS];
    world_work work[MOMENTS]; // of the coordinator until then
    world_process *members[SERVERS + WORKERS_MOST];
} S;

static void start_member(void *arg, uint64_t i);

/* The last call counts. */
static void note(moment m)
{
    S.at_ns[m] = world_now();
    S.work[m] = world_work_of("coordinator");
}

/* Returns false after the last step. */
static bool goes_on(int rank, int step)
{
    if (S.at_ns[DIED] && step == 2) return false;
    if (rank == 0 && step == 1) note(S.at_ns[DIED] ? AGAIN : STEPPING);
    if (step != STEPS) return true;
    if (rank == 0) note(STEPPED);
    usleep(IDLE_S * 1000000);
    if (rank != 0) return true;
    note(DIED);
    world_kill(S.members[SERVERS + S.workers - 1]);
    world_at(world_now() + AGAIN_MS * MS, start_member, NULL,
             (uint64_t)(SERVERS + S.workers - 1));
    return true;
}

static int train(pstrain_session *s, int rank)
{
    const int64_t size = ELEMENTS;
    const pstrain_tensor tensor = {.name = "w", .shape = &size, .n_dims = 1};
    const char *settings[] = {"optimizer.name=sgd"};
    const pstrain_table table = {.struct_size = sizeof table,
                                 .tensors = &tensor,
                                 .n_tensors = 1,
                                 .tensor_size = sizeof tensor,
                                 .settings = settings,
                                 .n_settings = 1};
    int code = pstrain_join(s);
    if (code == 0 && !S.at_ns[DIED]) note(JOINED);
    if (code == 0) code = pstrain_open(s, &table);
    if (code == 0) code = pstrain_start(s);
    for (int step = 0; code == 0; step++) { // until one has died
        if (!goes_on(rank, step)) return pstrain_close(s);
        code = pstrain_begin(s, NULL);
        if (code == 0) code = pstrain_wait(s, 0, 1);
        if (code == 0) code = pstrain_push(s, 0, 1);
        if (code == 0) code = pstrain_finish(s);
    }
    return code;
}

static int work(int rank, bool is_first)
{
    const char *settings[] = {curve_stand_in_setting(true), "exchange.shm=off"};
    const pstrain_options options = {.struct_size = sizeof options,
                                     .init_method = world_init_method,
                                     .rank_plus_1 = rank + 1,
                                     .world_size = S.workers,
                                     .servers_plus_1 = SERVERS + 1,
                                     .settings = settings,
                                     .n_settings = 2};
    pstrain_session *s = NULL;
    int code = pstrain_create(&options, &s);
    if (code == 0) code = train(s, rank);
    if (code != 0 && (S.at_ns[DIED] == 0 || S.at_ns[AGAIN] != 0))
        world_wrong("worker %d: %s", rank, pstrain_error());
    if (code != 0 && is_first) note(HEARD);
    pstrain_destroy(&s);
    return code;
}

static int worker(void *arg)
{
    const int rank = (int)(intptr_t)arg;
    for (int i = 0; i < TRIES; i++) { // the first ones come before the job has ended
        if (work(rank, i == 0) == 0) return 0;
        usleep(TRY_MS * 1000);
    }
    world_wrong("worker %d: %s", rank, pstrain_error());
}

static int server(void *arg)
{
    const int rank = (int)(intptr_t)arg;
    for (int i = 0; i < TRIES; i++) {
        if (world_run_server(rank, SERVERS, S.workers, 1, "exchange.shm=off") == 0)
            return 0;
        usleep(TRY_MS * 1000);
    }
    return 1;
}

static void start_member(void *arg, uint64_t i)
{
    (void)arg;
    const bool is_server = i < SERVERS;
    const int rank = (int)(is_server ? i : i - SERVERS);
    char name[WORLD_NAME];
    snprintf(name, sizeof name, "%s-%d", is_server ? "server" : "worker", rank);
    S.members[i] = world_start(name, S.members[i], is_server ? server : worker,
                               (void *)(intptr_t)rank);
}

static bool all_have_ended(void *arg)
{
    (void)arg;
    for (int i = 0; i < SERVERS + S.workers; i++)
        if (!S.members[i]->dead) return false;
    return true;
}

typedef struct span {
    double at, ns, messages, bytes;
} span;

static span between(moment a, moment b)
{
    const world_work *x = &S.work[a], *y = &S.work[b];
    return (span){(double)(S.at_ns[b] - S.at_ns[a]), (double)(y->ns - x->ns),
                  (double)(y->messages - x->messages), (double)(y->bytes - x->bytes)};
}

static int scale(void *arg)
{
    (void)arg;
    note(BEGAN);
    const int n = SERVERS + S.workers;
    for (int i = 0; i < n; i++)
        start_member(NULL, (uint64_t)i);
    world_wait(all_have_ended, NULL, UINT64_MAX);
    const double steps = STEPS - 1, all = steps * n;
    const double ms = 1e-6, us = 1e-3;
    printf("%d members\n", n);
    printf("  join       %8.0f ms; the coordinator works %.1f ms, %.1f messages and %.1f "
           "KiB a "
           "member\n",
           between(BEGAN, JOINED).at * ms, between(BEGAN, JOINED).ns * ms,
           between(BEGAN, JOINED).messages / n, between(BEGAN, JOINED).bytes / 1024 / n);
    printf("  the start  %8.0f ms; %.1f ms, %.1f messages and %.1f KiB a member\n",
           between(JOINED, STEPPING).at * ms, between(JOINED, STEPPING).ns * ms,
           between(JOINED, STEPPING).messages / n,
           between(JOINED, STEPPING).bytes / 1024 / n);
    printf("  a step     %8.2f ms; for a member and step %.2f us, %.2f messages\n",
           between(STEPPING, STEPPED).at * ms / steps,
           between(STEPPING, STEPPED).ns * us / all,
           between(STEPPING, STEPPED).messages / all);
    printf("  idle       %8d s;  for a member and second %.2f us, %.2f messages\n",
           IDLE_S, between(STEPPED, DIED).ns * us / IDLE_S / n,
           between(STEPPED, DIED).messages / IDLE_S / n);
    printf("  a death    %8.0f ms until all know; %.1f ms, %.1f messages a member\n",
           between(DIED, HEARD).at * ms, between(DIED, HEARD).ns * ms,
           between(DIED, HEARD).messages / n);
    printf("  joined again %6.0f ms later; %.1f ms, %.1f messages a member\n",
           between(HEARD, AGAIN).at * ms, between(HEARD, AGAIN).ns * ms,
           between(HEARD, AGAIN).messages / n);
    return 0;
}

int world_scale_run(const world_options *options, int members)
{
    S.workers = members - SERVERS;
    world_options o = *options;
    o.most_ns = 3600 * 1000 * MS;
    o.measures = true;
    return world_run(&o, scale, NULL);
}
