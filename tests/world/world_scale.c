/* ps-world --members N: how the coordinator fares with many members. Times are the
 * world's, but for the coordinator's own work, which is this machine's. */
#include <stdio.h>
#include <unistd.h>

#include "pstrain.h"
#include "world_job.h"

enum {
    SERVERS = 2,
    STEPS = 20,
    IDLE_S = 5,
    WORKERS_MOST = WORLD_MEMBERS_MOST,
    ELEMENTS = 8192
};
#define MS UINT64_C(1000000)

static struct {
    int workers;
    uint64_t joined_ns, first_ns, last_ns; // worker 0 begins its steps
    uint64_t killed_ns, heard_ns;
    uint64_t spent_ns[3]; // by the coordinator until then
    world_process *members[SERVERS + WORKERS_MOST];
} S;

static void note(int rank, int step)
{
    if (rank == 0 && step == 1) S.first_ns = world_now();
    if (step != STEPS) return;
    if (rank == 0) S.last_ns = world_now();
    if (rank == 0) S.spent_ns[0] = world_spent_ns("coordinator");
    usleep(IDLE_S * 1000000);
    if (rank != 0) return;
    S.spent_ns[1] = world_spent_ns("coordinator");
    S.killed_ns = world_now();
    world_kill(S.members[SERVERS + S.workers - 1]);
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
    if (code == 0) S.joined_ns = world_now();
    if (code == 0) code = pstrain_open(s, &table);
    if (code == 0) code = pstrain_start(s);
    for (int step = 0; code == 0; step++) { // until one has died
        note(rank, step);
        code = pstrain_begin(s, NULL);
        if (code == 0) code = pstrain_wait(s, 0, 1);
        if (code == 0) code = pstrain_push(s, 0, 1);
        if (code == 0) code = pstrain_finish(s);
    }
    return code;
}

static int worker(void *arg)
{
    const int rank = (int)(intptr_t)arg;
    const char *settings[] = {"net.insecure=true", "exchange.shm=off"};
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
    if (S.killed_ns == 0) world_wrong("worker %d: %s", rank, pstrain_error());
    S.heard_ns = world_now();
    pstrain_destroy(&s);
    return code;
}

static int server(void *arg)
{
    return world_run_server((int)(intptr_t)arg, SERVERS, S.workers, 1);
}

static bool all_have_ended(void *arg)
{
    (void)arg;
    for (int i = 0; i < SERVERS + S.workers; i++)
        if (!S.members[i]->dead) return false;
    return true;
}

static int scale(void *arg)
{
    (void)arg;
    const uint64_t began = world_now();
    const int n = SERVERS + S.workers;
    for (int i = 0; i < n; i++) {
        const int rank = i < SERVERS ? i : i - SERVERS;
        char name[WORLD_NAME];
        snprintf(name, sizeof name, "%s-%d", i < SERVERS ? "server" : "worker", rank);
        S.members[i] = world_start(name, NULL, i < SERVERS ? server : worker,
                                   (void *)(intptr_t)rank);
    }
    world_wait(all_have_ended, NULL, UINT64_MAX);
    S.spent_ns[2] = world_spent_ns("coordinator");
    const double steps = STEPS - 1;
    printf("%d members: all have joined after %.0f ms; a step takes %.2f ms; the "
           "coordinator works %.2f us a second for a member; after a death all have "
           "ended after "
           "%.0f ms (%.1f ms of the coordinator's time; until the first step %.1f ms)\n",
           n, (double)(S.joined_ns - began) * 1e-6,
           (double)(S.last_ns - S.first_ns) * 1e-6 / steps,
           (double)(S.spent_ns[1] - S.spent_ns[0]) * 1e-3 / IDLE_S / n,
           (double)(S.heard_ns - S.killed_ns) * 1e-6,
           (double)(S.spent_ns[2] - S.spent_ns[1]) * 1e-6, (double)S.spent_ns[0] * 1e-6);
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
