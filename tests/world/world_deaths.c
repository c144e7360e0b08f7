/* ps-world --deaths N: a job that lives through many deaths. Worker 1 and server 1 die in
 * turn, some steps after all have joined again, and are started again. What server 0,
 * with the coordinator, and worker 0 hold must not grow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "curve_stand_in.h"
#include "err.h"
#include "world_job.h"

enum {
    SERVERS = 2,
    WORKERS = 2,
    MEMBERS = SERVERS + WORKERS,
    STEPS_MOST = 4, // from one death to the next
    AGAIN_MS = 20,
    WINDOW = 100 // deaths: what is compared
};
#define MS UINT64_C(1000000)

int ps_server_program(int argc, char **argv); // server_main.c
int ps_worker_program(int argc, char **argv); // worker_main.c

typedef struct survivor {
    world_process *process;
    uint64_t most, before; // bytes: in this window, in the second one
} survivor;

static struct {
    int deaths, wanted;
    int steps; // until the next one
    int starts[MEMBERS];
    world_process *members[MEMBERS]; // servers first
    survivor survivors[2];
    char config[300], out[300];
} D;

static const char config_of_all[] =
    "job: {name: deaths}\n"
    "model: {input: [6], layers: [{linear: 8}, relu, {linear: 3}]}\n"
    "data: {samples: 96, batch: 4, test_samples: 6}\n"
    "train: {epochs: 1000000, log_every: 1000000, eval_every: 1000000}\n"
    "exchange: {shm: off}\n"
    "recovery: {rejoins: 1000000, share: 0.5}\n";

static int program(void *arg)
{
    const int i = (int)(intptr_t)arg, rank = i < SERVERS ? i : i - SERVERS;
    char number[16], start[16];
    snprintf(number, sizeof number, "%d", rank);
    snprintf(start, sizeof start, "%d", D.starts[i] - 1);
    char *argv[] = {i < SERVERS ? "ps-server" : "ps-worker",
                    "--config",
                    D.config,
                    "--rank",
                    number,
                    "--servers",
                    "2",
                    "--world-size",
                    "2",
                    "--init-method",
                    (char *)(uintptr_t)world_init_method,
                    "--log-level",
                    world_logs() ? "debug" : "error",
                    "--set",
                    (char *)(uintptr_t)curve_stand_in_setting(i >= SERVERS),
                    "--out",
                    D.out,
                    NULL};
    const int n = sizeof argv / sizeof *argv - 1 - (i == SERVERS ? 0 : 2);
    setenv("PS_INCARNATION", start, 1);
    const int code =
        i < SERVERS ? ps_server_program(n, argv) : ps_worker_program(n, argv);
    world_wrong("%s has ended with %d after %d deaths: %s", world_self()->name, code,
                D.deaths, ps_err_message());
}

static void start_member(void *arg, uint64_t i)
{
    (void)arg;
    char name[WORLD_NAME];
    const bool is_server = i < SERVERS;
    snprintf(name, sizeof name, "%s-%d.%d", is_server ? "server" : "worker",
             (int)(is_server ? i : i - SERVERS), D.starts[i]++);
    D.members[i] = world_start(name, D.members[i], program, (void *)(intptr_t)i);
}

static void look_at_memory(void)
{
    for (int i = 0; i < 2; i++) {
        survivor *s = &D.survivors[i];
        const uint64_t bytes = world_memory_of(s->process);
        if (s->most < bytes) s->most = bytes;
    }
}

/* The first deaths come in other states than those that follow. */
static void end_window(void)
{
    for (int i = 0; i < 2; i++) {
        survivor *s = &D.survivors[i];
        if (D.deaths == 2 * WINDOW) s->before = s->most;
        if (D.deaths > 2 * WINDOW && s->most >= s->before + (uint64_t)D.deaths)
            world_wrong(
                "%s had up to %llu bytes in the second %d deaths, and %llu in the "
                "last ones of %d",
                s->process->name, (unsigned long long)s->before, WINDOW,
                (unsigned long long)s->most, D.deaths);
        if (D.deaths >= D.wanted)
            printf(
                "%s: up to %llu bytes from death %d to %d, %llu in the last %d of %d\n",
                s->process->name, (unsigned long long)s->before, WINDOW, 2 * WINDOW,
                (unsigned long long)s->most, WINDOW, D.deaths);
        s->most = 0;
    }
}

static void on_fault_point(const char *name)
{
    look_at_memory();
    if (strcmp(name, "step.made") != 0 || world_self() != D.members[SERVERS] ||
        --D.steps != 0)
        return;
    D.steps = 1 + (int)world_draw(STEPS_MOST);
    const uint64_t i = D.deaths % 2 ? SERVERS - 1 : MEMBERS - 1;
    world_kill(D.members[i]);
    if (++D.deaths % WINDOW == 0) end_window();
    world_at(world_now() + AGAIN_MS * MS, start_member, NULL, i);
}

static bool has_died_often(void *arg)
{
    (void)arg;
    return D.deaths >= D.wanted;
}

static int live(void *arg)
{
    (void)arg;
    FILE *f = fopen(D.config, "w");
    if (!f || fputs(config_of_all, f) < 0 || fclose(f) != 0)
        world_wrong("cannot write %s", D.config);
    D.steps = STEPS_MOST;
    for (int i = 0; i < MEMBERS; i++)
        start_member(NULL, (uint64_t)i);
    D.survivors[0].process = D.members[0];
    D.survivors[1].process = D.members[SERVERS];
    world_fault_point = on_fault_point;
    world_wait(has_died_often, NULL, UINT64_MAX);
    return 0;
}

int world_deaths_run(const world_options *options, const char *folder, int deaths)
{
    D.wanted = deaths;
    snprintf(D.config, sizeof D.config, "%s/job.yaml", folder);
    snprintf(D.out, sizeof D.out, "%s/out", folder);
    world_options o = *options;
    o.most_ns = (uint64_t)deaths * 10000 * MS;
    return world_run(&o, live, NULL);
}
