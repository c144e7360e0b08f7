#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nemesis.h"
#include "world_job.h"

enum {
    WORKERS_MOST = 3,
    SERVERS_MOST = 2,
    MEMBERS_MOST = 5,
    PORT = 29500,
    STARTS_MOST = 12
};
#define MS UINT64_C(1000000)

int ps_server_program(int argc, char **argv); // server_main.c
int ps_worker_program(int argc, char **argv); // worker_main.c

typedef struct member {
    bool is_worker;
    int rank;
    int starts;      // so far
    bool is_waiting; // to be started again
} member;

static struct {
    uint64_t kind;
    bool disturbed;
    const char *replay;
    char replays[400];
    uint64_t *weights;
    int workers, servers;
    member members[MEMBERS_MOST]; // servers first
    world_process *processes[MEMBERS_MOST];
    nemesis nemesis;
    char config[300], out[300], init_method[64];
    const char *settings[24];
    int n_settings;
} T;

/* ---- the job ---- */

static const char job[] =
    "job: {name: world}\n"
    "data: {kind: synthetic, samples: 96, test_samples: 6, batch: 4}\n"
    "train: {epochs: 3, log_every: 1000}\n"
    "net: {insecure: true}\n"
    "exchange: {shm: off}\n"
    "recovery: {rejoins: 100}\n";
static const char *const models[] = {
    "model: {input: [6], layers: [{linear: 8}, relu, {linear: 5}, relu, {linear: 3}]}\n",
    "model: {input: [2, 6], layers: [{conv1d: {out: 4, kernel: 3}}, batch_norm1d, relu, "
    "flatten, {linear: 3}]}\n"};

static void write_config(void)
{
    FILE *f = fopen(T.config, "w");
    const char *model = models[world_choice(8, 2)];
    if (!f || fputs(job, f) < 0 || fputs(model, f) < 0 || fclose(f) != 0)
        world_wrong("cannot write %s", T.config);
}

static void set(const char *key_and_value)
{
    T.settings[T.n_settings++] = "--set";
    T.settings[T.n_settings++] = key_and_value;
}

bool world_train_is_own_pace(uint64_t kind)
{
    return world_choice_of(kind, 11, 4) == 0;
}

static void choose_pace(void)
{
    static const char *const policies[] = {"sync.policy=asp", "sync.policy=ssp",
                                           "sync.policy=backup", "sync.policy=local"};
    const uint64_t policy = world_choice(12, 4);
    if (T.workers == 1) T.workers = 2;
    set(policies[policy]);
    if (policy < 3) return;
    set("sync.local_steps=4");
    set("sync.quorum=1");
}

static void choose_job(void)
{
    static const char *const optimizers[] = {"optimizer.name=adamw", "optimizer.name=sgd",
                                             "optimizer.name=adagrad"};
    static const char *const codecs[] = {"exchange.codec=none", "exchange.codec=none",
                                         "exchange.codec=fp16", "exchange.codec=int8",
                                         "exchange.codec=topk"};
    static const char *const checkpoints[] = {"checkpoint.every=0", "checkpoint.every=3",
                                              "checkpoint.every=7"};
    static const char *const clips[] = {"optimizer.clip_norm=0",
                                        "optimizer.clip_norm=0.5"};
    static const char *const shards[] = {"server.shards=1", "server.shards=2"};
    T.workers = 1 + (int)world_choice(1, WORKERS_MOST);
    T.servers = 1 + (int)world_choice(2, SERVERS_MOST);
    set(optimizers[world_choice(3, 3)]);
    set(codecs[world_choice(4, 5)]);
    set(checkpoints[world_choice(5, 3)]);
    set(clips[world_choice(6, 2)]);
    set(shards[world_choice(7, 2)]);
    set("net.dead_after_ms=8000");
    if (world_train_is_own_pace(T.kind))
        choose_pace();
    else if (world_choice(9, 4) == 0)
        set("sync.policy=local"), set("sync.local_steps=3");
    else if (world_choice(10, 4) == 0)
        set("train.accumulate=2");
    if (T.replay) {
        snprintf(T.replays, sizeof T.replays, "sync.replay=%s", T.replay);
        set(T.replays);
    }
}

/* ---- its processes ---- */

static bool has_checkpoint(void)
{
    char pattern[400];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/checkpoints/step-*[0-9]", T.out);
    const bool has = glob(pattern, 0, NULL, &found) == 0;
    globfree(&found);
    return has;
}

/* Worker 0 goes on with the job's own checkpoints; before the first one it begins again.
 */
static int add_results(char **argv, const member *m)
{
    argv[0] = "--out";
    argv[1] = T.out;
    if (m->starts == 1) return 2;
    if (!has_checkpoint()) {
        argv[2] = "--overwrite";
        return 3;
    }
    argv[2] = "--resume";
    argv[3] = "auto";
    return 4;
}

static int program(void *arg)
{
    const member *m = arg;
    char rank[16], workers[16], servers[16], incarnation[16];
    snprintf(rank, sizeof rank, "%d", m->rank);
    snprintf(workers, sizeof workers, "%d", T.workers);
    snprintf(servers, sizeof servers, "%d", T.servers);
    snprintf(incarnation, sizeof incarnation, "%d", m->starts - 1);
    char *argv[48] = {m->is_worker ? "ps-worker" : "ps-server",
                      "--config",
                      T.config,
                      "--rank",
                      rank,
                      "--servers",
                      servers,
                      "--world-size",
                      workers,
                      "--init-method",
                      T.init_method,
                      "--log-level",
                      world_logs() ? "debug" : "error"};
    int n = 13;
    for (int i = 0; i < T.n_settings; i++)
        argv[n++] = (char *)(uintptr_t)T.settings[i];
    if (m->is_worker && m->rank == 0) n += add_results(argv + n, m);
    // The environment is the world's; it is read before anything waits.
    setenv("PS_INCARNATION", incarnation, 1);
    return m->is_worker ? ps_worker_program(n, argv) : ps_server_program(n, argv);
}

static void start_member(void *arg, uint64_t number)
{
    (void)arg;
    member *m = &T.members[number];
    char name[32];
    snprintf(name, sizeof name, "%s-%d.%d", m->is_worker ? "worker" : "server", m->rank,
             m->starts);
    m->is_waiting = false;
    m->starts++;
    T.processes[number] = world_start(name, T.processes[number], program, m);
}

/* ---- what psrun does ---- */

static int n_members(void)
{
    return T.servers + T.workers;
}

static bool ended_well(int i)
{
    return T.processes[i]->dead && T.processes[i]->ended && T.processes[i]->code == 0;
}

/* A worker has ended in order: then all of them have done their work. */
static bool work_is_done(void)
{
    for (int i = T.servers; i < n_members(); i++)
        if (ended_well(i)) return true;
    return false;
}

static bool somebody_ended(void *arg)
{
    (void)arg;
    for (int i = 0; i < n_members(); i++)
        if (T.processes[i]->dead && !T.members[i].is_waiting && !ended_well(i))
            return true;
    for (int i = 0; i < n_members(); i++)
        if (!T.processes[i]->dead || T.members[i].is_waiting) return false;
    return true;
}

/* Starts what has died again. Returns whether anything still runs. */
static bool supervise(void)
{
    const bool done = work_is_done();
    bool runs = false;
    for (int i = 0; i < n_members(); i++) {
        member *m = &T.members[i];
        if (!T.processes[i]->dead || m->is_waiting) {
            runs = true;
        } else if (!ended_well(i) && !done) {
            if (m->starts == STARTS_MOST)
                world_wrong("%s dies again and again", T.processes[i]->name);
            m->is_waiting = true;
            world_at(world_now() + (50 + world_draw(1000)) * MS, start_member, NULL,
                     (uint64_t)i);
            runs = true;
        }
    }
    return runs;
}

/* The host of the results may have lost its power. */
static void on_killed(world_process *p)
{
    if (p == T.processes[T.servers] && world_draw(2) == 0) world_disk_loses_power(T.out);
}

/* Processes die more often while they write than chance would have it. */
static void on_disk_moment(void)
{
    if (world_draw(40) != 0) return;
    nemesis_kill(&T.nemesis, world_self());
    if (world_self()->dead) world_die();
}

/* ---- the judges ---- */

static uint64_t hash_of_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) world_wrong("the job has left no %s", path);
    uint64_t hash = UINT64_C(14695981039346656037);
    int c;
    while ((c = getc(f)) != EOF)
        hash = (hash ^ (uint64_t)c) * UINT64_C(1099511628211);
    fclose(f);
    return hash;
}

enum { MOST_S = 400, AFTER_MS = 20000 }; // of virtual time; after the work is done

static int train(void *arg)
{
    (void)arg;
    choose_job();
    write_config();
    snprintf(T.init_method, sizeof T.init_method, "tcp://10.0.0.2:%d",
             PORT); // server 0's
    for (int i = 0; i < n_members(); i++) {
        const bool is_worker = i >= T.servers;
        T.members[i] =
            (member){.is_worker = is_worker, .rank = is_worker ? i - T.servers : i};
        start_member(NULL, (uint64_t)i);
    }
    T.nemesis = (nemesis){.killed = on_killed,
                          .members = T.processes,
                          .n_members = n_members(),
                          .span_ms = 300,
                          .most_kills = world_train_is_own_pace(T.kind) ? 0 : 3,
                          // docs/own-pace.md: what a replay does not repeat
                          .keeps_links = world_train_is_own_pace(T.kind)};
    if (T.disturbed) {
        nemesis_begin(&T.nemesis);
        world_disk_moment = on_disk_moment;
    }
    uint64_t until = UINT64_MAX;
    while (supervise() && world_now() < until) {
        if (work_is_done() && until == UINT64_MAX) until = world_now() + AFTER_MS * MS;
        world_wait(somebody_ended, NULL,
                   until < world_now() + 1000 * MS ? until : world_now() + 1000 * MS);
    }
    if (!work_is_done()) world_wrong("no worker has ended well");
    char path[400];
    snprintf(path, sizeof path, "%s/model.safetensors", T.out);
    const uint64_t hash = hash_of_file(path);
    if (*T.weights && *T.weights != hash)
        world_wrong("other weights than without faults");
    *T.weights = hash;
    return 0;
}

int world_train_run(const world_options *options, const char *folder, bool disturbed,
                    const char *replay, uint64_t *weights)
{
    T.kind = options->kind;
    T.replay = replay;
    T.disturbed = disturbed;
    T.weights = weights;
    snprintf(T.config, sizeof T.config, "%s/job.yaml", folder);
    snprintf(T.out, sizeof T.out, "%s/out", folder);
    world_options o = *options;
    o.most_ns = MOST_S * 1000 * MS;
    return world_run(&o, train, NULL);
}
