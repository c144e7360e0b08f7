#include <glob.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "curve_stand_in.h"
#include "nemesis.h"
#include "world_job.h"

enum {
    WORKERS_MOST = 3,  // of most jobs
    SERVERS_MORE = 1,  // than the fewest, at most
    MANY_SERVERS = 3,  // at least, in a job of many
    MEMBERS_MOST = 12, // with those that come later
    EPOCHS = 3,
    SAMPLES = 96, // as many batches for 1, 2, 3, 4, 6 and 8 workers
    BATCH = 4,
    ELASTIC_STEPS = 60,
    STARTS_MOST = 12,
    RESUMABLE = 75,  // exit code: the job has ended as it was asked to
    MOST_S = 400,    // of virtual time
    LATE_MS = 30000, // after the last fault: half a step's time limit
    DOUBLES_MOST = 4,
    AFTER_MS = 20000, // the work is done
    JOINS_MS = 2000   // after a death, or the begin
};
#define MS UINT64_C(1000000)

/* What is chosen (nemesis_choice). */
enum { JOINS_FIRST = 500, JOINS_AT, OTHER_SERVERS, JOINS_AFTER };

int ps_server_program(int argc, char **argv); // server_main.c
int ps_worker_program(int argc, char **argv); // worker_main.c

typedef struct member {
    bool is_worker;
    int rank;
    int starts;       // so far
    bool is_waiting;  // to be started again
    bool came_later;  // to an elastic job
    bool leaves;      // was told to
    bool is_double;   // a start that comes late, beside those that psrun knows
    uint32_t found;   // bit i: worker 0's start i has found a checkpoint
    uint64_t late_ms; // its first start
} member;

static struct {
    uint64_t seed, kind, without;
    bool disturbed;
    bool told;        // to end; it goes on in a new start
    uint64_t resumes; // new starts so far
    world_record record;
    world_memory *memory;
    int last_step; // of this job; 0: of its epochs
    uint64_t *weights;
    int workers, servers, n;      // all that have been started
    member members[MEMBERS_MOST]; // servers first
    world_process *processes[MEMBERS_MOST];
    member doubles[DOUBLES_MOST];
    int n_doubles;
    bool hides_numbers; // of starts
    nemesis nemesis;
    char config[300], out[300], order[300];
    char settings[24][400];
    int n_settings;
} T;

/* ---- the job ---- */

static const char config_of_all[] = "job: {name: world}\n"
                                    "data: {test_samples: 6}\n"
                                    "train: {log_every: 1000}\n"
                                    "exchange: {shm: off}\n"
                                    "recovery: {rejoins: 100}\n";
static const char *const models[] = {
    "model: {input: [6], layers: [{linear: 8}, relu, {linear: 5}, relu, {linear: 3}]}\n",
    "model: {input: [2, 6], layers: [{conv1d: {out: 4, kernel: 3}}, batch_norm1d, relu, "
    "flatten, {linear: 3}]}\n",
    "model: {input: [6], layers: [{linear: 8}, relu, {dropout: 0.25}, {linear: 3}]}\n"};

static const char clicks[] =
    "model: {input: [13], loss: bce_with_logits, layers: [{interaction: {name: pairs, "
    "branches: [[{linear: {name: bottom, out: 4}}, relu], [{embedding_bag: {name: rows, "
    "tables: [C1, C7], dim: 4, optimizer: adagrad, lr: 0.1, init: normal%s%s}}]]}}, "
    "{linear: {name: middle, out: 3}}, relu, {linear: {name: top, out: 1}}]}\n";

/* A model with tables of rows on the servers. */
static bool has_rows(void)
{
    const world_subject subject = world_train_subject(T.kind);
    return (subject == WORLD_FIXED ||
            (subject == WORLD_ELASTIC && world_since(WORLD_KEYS)) ||
            (subject == WORLD_OWN_PACE && world_since(WORLD_ROWS))) &&
           world_choice(21, 4) == 0;
}

/* Servers that keep the rows of each other. */
static bool has_buddies(void)
{
    return has_rows() && world_choice(22, 2) == 0;
}

static bool has_many_members(void)
{
    return world_train_subject(T.kind) == WORLD_FIXED && !has_rows() &&
           world_since(WORLD_KEYS) && world_choice(26, 6) == 0;
}

/* One and two; with buddies two and three; of many three and four. */
static int fewest_servers(void)
{
    return has_many_members() ? MANY_SERVERS : has_buddies() ? 2 : 1;
}

static int other_servers(void)
{
    return 2 * fewest_servers() + SERVERS_MORE - T.servers;
}

static void write_config(void)
{
    static const char *const bounds[] = {
        "",
        "",
        ", expire: 3",
        ", expire: 9, admit: 2",
        ", admit: 3",
        ", max_bytes: 61000, evict: true"}; // a row in each partition
    static const char *const codecs[] = {"", "", ", codec: int8", ", codec: fp16"};
    FILE *f = fopen(T.config, "w");
    if (!f || fputs(config_of_all, f) < 0 ||
        (has_rows() ? fprintf(f, clicks,
                              bounds[world_since(WORLD_KEYS) ? world_choice(23, 6) : 0],
                              codecs[world_since(WORLD_KEYS) ? world_choice(24, 4) : 0])
                    : fputs(models[world_choice(8, 3)], f)) < 0 ||
        fclose(f) != 0)
        world_wrong("cannot write %s", T.config);
}

__attribute__((format(printf, 1, 2))) static void set(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(T.settings[T.n_settings++], sizeof *T.settings, format, args);
    va_end(args);
}

world_subject world_train_subject(uint64_t kind)
{
    const uint64_t chosen = world_choice_of(kind, 11, 8);
    return chosen == 0   ? WORLD_ELASTIC
           : chosen == 1 ? WORLD_DEATHS_AT_OWN_PACE
           : chosen < 4  ? WORLD_OWN_PACE
                         : WORLD_FIXED;
}

/* Quorum 0: none. */
static void choose_local(int quorum)
{
    const bool in_parts = world_choice(18, 2);
    set("sync.policy=local");
    set("sync.local_steps=%d", in_parts ? 6 : 3);
    if (in_parts) set("sync.fragments=2"), set("sync.overlap=1");
    if (world_choice(15, 2)) set("sync.outer_lr=0.7"), set("sync.outer_momentum=0.9");
    if (quorum) set("sync.quorum=%d", quorum);
    if (quorum > 1 && world_choice(19, 2)) set("sync.steps_by_speed=true");
}

static void choose_pace(int quorum)
{
    static const char *const policies[] = {"asp", "ssp", "backup"};
    // Only `local` has a quorum.
    const uint64_t policy = quorum > 1 && world_choice(17, 2) ? 3 : world_choice(12, 4);
    if (T.workers == 1) T.workers = 2;
    if (policy < 3)
        set("sync.policy=%s", policies[policy]);
    else
        choose_local(quorum);
}

/* Workers come, leave and die. Its replay: each stretch with as many as there were. */
static void choose_workers(void)
{
    set("train.epochs=100");
    set("train.steps=%d", ELASTIC_STEPS);
    if (!T.record.path) {
        set("job.workers=1..4");
        set("job.start_workers=%d", T.workers);
        return;
    }
    int next = 0;
    world_train_stretch(&T.record, &T.workers, &next);
    T.last_step = next;
    set("job.workers=%d..%d", T.workers, T.workers);
    if (next) set("train.stop_after=%d", next);
}

/* What these codecs keep depends on the servers. */
static bool servers_may_change(void)
{
    return world_choice(4, 6) < 4;
}

static void choose_rows(void)
{
    set("data.kind=synthetic_clicks");
    if (has_buddies()) set("rows.buddy=true");
    if (world_since(WORLD_KEYS) && world_choice(25, 2))
        set("checkpoint.rows_full_every=3");
}

/* With the servers' record of their order, which a replay is given. */
static void choose_rows_pace(void)
{
    set("rows.policy=asp");
    if (T.record.path)
        set("server.rows_replay=%s", T.record.path);
    else
        set("server.rows_log=%s", T.order);
}

static void choose_job(void)
{
    static const char *const optimizers[] = {"optimizer.name=adamw", "optimizer.name=sgd",
                                             "optimizer.name=adagrad"};
    static const char *const codecs[] = {"exchange.codec=none", "exchange.codec=none",
                                         "exchange.codec=fp16", "exchange.codec=int8",
                                         "exchange.codec=topk", "exchange.codec=onebit"};
    static const char *const checkpoints[] = {"checkpoint.every=0", "checkpoint.every=3",
                                              "checkpoint.every=7"};
    static const char *const clips[] = {"optimizer.clip_norm=0",
                                        "optimizer.clip_norm=0.5"};
    static const char *const shards[] = {"server.shards=1", "server.shards=2"};
    const world_subject subject = world_train_subject(T.kind);
    set("data.samples=%d", SAMPLES);
    set("data.batch=%d", BATCH);
    set("train.epochs=%d", EPOCHS);
    T.workers = 1 + (int)world_choice(1, WORKERS_MOST);
    if (has_many_members()) T.workers = 2 + 2 * T.workers;
    T.servers = fewest_servers() + (int)world_choice(2, 1 + SERVERS_MORE);
    set("%s", optimizers[world_choice(3, 3)]);
    set("%s", codecs[world_choice(4, 6)]);
    set("%s", checkpoints[world_choice(5, 3)]);
    set("%s", clips[world_choice(6, 2)]);
    // A replay has the same bits with other servers.
    const bool others = T.record.path && servers_may_change() &&
                        (subject != WORLD_OWN_PACE || !has_rows());
    set("%s", shards[has_many_members() ? 0 : world_choice(7, 2) ^ others]);
    if (others) T.servers = other_servers();
    if (world_choice(14, 2) == 0) set("recovery.share=0.5"); // snapshots in memory
    set("net.dead_after_ms=%d", NEMESIS_DEAD_AFTER_MS);
    if (subject == WORLD_FIXED && !has_rows() && world_choice(4, 6) < 4 &&
        world_choice(13, 4) == 0)
        set("loss_scale={use: on, init: 1e38, interval: 3}");
    if (has_rows()) choose_rows();
    switch (subject) {
    case WORLD_ELASTIC:
        choose_workers();
        if (!has_rows() && world_choice(9, 4) == 0) choose_local(0);
        break;
    case WORLD_DEATHS_AT_OWN_PACE:
        T.workers = WORKERS_MOST;
        choose_pace(2 + (int)world_choice(16, 2));
        break;
    case WORLD_OWN_PACE:
        if (has_rows())
            choose_rows_pace();
        else
            choose_pace(1);
        break;
    case WORLD_FIXED:
        if (has_rows()) break; // and nothing of the others
        if (world_choice(9, 4) == 0)
            choose_local(0);
        else if (world_choice(20, 6) == 0)
            set("optimizer.name=lamb");
        else if (world_choice(10, 4) == 0)
            set("train.accumulate=2");
    }
    if (T.record.path && subject == WORLD_OWN_PACE && !has_rows())
        set("sync.replay=%s", T.record.path);
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
 * What starts processes without numbers always has it go on, until the job was told to
 * end, which leaves results. */
static int add_results(char **argv, member *m)
{
    const uint32_t bit = UINT32_C(1) << m->starts % 32;
    argv[0] = "--out";
    argv[1] = T.out;
    if (m->starts == 1 && T.record.stretch == 0 && !T.hides_numbers) return 2;
    if (!m->is_double && has_checkpoint()) m->found |= bit;
    if (!(m->found & bit) && (!T.hides_numbers || T.resumes > 0)) {
        argv[2] = "--overwrite";
        return 3;
    }
    argv[2] = "--resume";
    argv[3] = "auto";
    return 4;
}

static int program(void *arg)
{
    member *m = arg;
    if (m->starts == 1 && m->late_ms > 0) usleep((useconds_t)m->late_ms * 1000);
    char rank[16], workers[16], servers[16], incarnation[16];
    snprintf(rank, sizeof rank, "%d", m->rank);
    snprintf(workers, sizeof workers, "%d", T.workers);
    snprintf(servers, sizeof servers, "%d", T.servers);
    snprintf(incarnation, sizeof incarnation, "%d", m->starts - 1);
    char *argv[80] = {m->is_worker ? "ps-worker" : "ps-server",
                      "--config",
                      T.config,
                      "--rank",
                      rank,
                      "--servers",
                      servers,
                      "--world-size",
                      workers,
                      "--init-method",
                      (char *)(uintptr_t)world_init_method,
                      "--log-level",
                      world_logs() ? "debug" : "error"};
    int n = 13;
    if (m->came_later) { // without a rank
        memmove(argv + 3, argv + 5, 8 * sizeof *argv);
        n -= 2;
    }
    argv[n++] = "--set";
    argv[n++] = (char *)(uintptr_t)curve_stand_in_setting(m->is_worker);
    for (int i = 0; i < T.n_settings; i++) {
        argv[n++] = "--set";
        argv[n++] = T.settings[i];
    }
    if (m->is_worker && m->rank == 0) n += add_results(argv + n, m);
    // The environment is the world's; it is read before anything waits.
    if (T.hides_numbers)
        unsetenv("PS_INCARNATION");
    else
        setenv("PS_INCARNATION", incarnation, 1);
    if (m->came_later)
        setenv("PS_NEWCOMER", "1", 1);
    else
        unsetenv("PS_NEWCOMER");
    return m->is_worker ? ps_worker_program(n, argv) : ps_server_program(n, argv);
}

static void start_member(int number)
{
    member *m = &T.members[number];
    char name[32];
    snprintf(name, sizeof name, "%s-%d.%d", m->is_worker ? "worker" : "server", m->rank,
             m->starts);
    m->is_waiting = false;
    m->starts++;
    T.processes[number] = world_start(name, T.processes[number], program, m);
}

/* A start of which its launcher has heard nothing, and that it took for dead, comes after
 * all. Without a number it would be in the way of the one that has its place. Server 0's
 * would find its port in use. */
static void on_double(int number, uint64_t start)
{
    const member *m = &T.members[number];
    if (number == 0 || number >= T.n || m->came_later || T.n_doubles == DOUBLES_MOST)
        return;
    member *d = &T.doubles[T.n_doubles++];
    char name[32];
    *d = *m;
    d->is_double = true;
    d->late_ms = 0;
    d->starts = 1 + (int)(start % (uint64_t)m->starts);
    snprintf(name, sizeof name, "late-%s-%d.%d", d->is_worker ? "worker" : "server",
             d->rank, d->starts - 1);
    world_start(name, T.processes[number], program, d);
}

/* What has died is started again; but not where all were told to end since. */
static void restart_member(void *arg, uint64_t when)
{
    (void)arg;
    const int number = (int)(when % MEMBERS_MOST);
    if (when / MEMBERS_MOST != T.resumes) return; // by a psrun that has ended
    if (T.told)
        T.members[number].is_waiting = false;
    else
        start_member(number);
}

/* ---- what psrun does ---- */

static bool ended_well(int i)
{
    const world_process *p = T.processes[i];
    return p->dead && p->ended && (p->code == 0 || (T.last_step && p->code == RESUMABLE));
}

/* A worker has ended in order: then all of them have done their work. Or a server has,
 * which it does when the workers have gone; but not because the job was told to end. */
static bool work_is_done(void)
{
    for (int i = 0; i < T.n; i++)
        if (ended_well(i) && !T.members[i].leaves && (i >= T.servers || !T.told))
            return true;
    return false;
}

/* One that has left its elastic job is not started again, nor anybody after the end. */
static bool to_be_restarted(int i)
{
    const member *m = &T.members[i];
    return T.processes[i]->dead && !m->is_waiting && !m->leaves && !ended_well(i) &&
           !work_is_done();
}

static bool somebody_ended(void *arg)
{
    (void)arg;
    if (T.told) return false; // looks each second
    for (int i = 0; i < T.n; i++)
        if (to_be_restarted(i)) return true;
    for (int i = 0; i < T.n; i++)
        if (!T.processes[i]->dead || T.members[i].is_waiting) return false;
    return true;
}

/* Ctrl-C: nothing is started again. */
static void on_tell(void)
{
    if (T.told || work_is_done()) return;
    T.told = true;
    for (int i = T.servers; i < T.n; i++)
        if (!T.processes[i]->dead) world_signal(T.processes[i], SIGINT);
}

/* A job that was told to end goes on with one server less, or more. */
static void change_servers(void)
{
    const int n = other_servers(), workers = T.n - T.servers;
    if (!servers_may_change() || nemesis_choice(&T.nemesis, OTHER_SERVERS, 2)) return;
    world_say("%d servers instead of %d", n, T.servers);
    memmove(T.members + n, T.members + T.servers, (size_t)workers * sizeof *T.members);
    memmove(T.processes + n, T.processes + T.servers,
            (size_t)workers * sizeof *T.processes);
    if (n > T.servers) T.members[T.servers] = (member){.rank = T.servers};
    if (n > T.servers) T.processes[T.servers] = NULL;
    T.servers = n;
    T.nemesis.n_members = T.n = n + workers;
}

/* Ends what servers are left without workers; when nothing is left, psrun --resume auto
 * starts all again. */
static void supervise_end(void)
{
    bool runs = false, works = false;
    for (int i = 0; i < T.n; i++) {
        runs |= !T.processes[i]->dead;
        works |= i >= T.servers && !T.processes[i]->dead;
    }
    for (int i = 0; i < T.servers && !works; i++)
        world_kill(T.processes[i]);
    if (runs && works) return;
    const bool done = work_is_done();
    T.told = false;
    if (done) return;
    T.resumes++;
    change_servers();
    for (int i = 0; i < T.n; i++)
        start_member(i);
}

/* At once, or as late as psrun's back-off may have it. */
static uint64_t start_delay_ms(void)
{
    static const uint64_t most[] = {40, 1000, 4000};
    return 20 + world_draw(most[world_draw(3)]);
}

/* Starts what has died again. Returns whether anything still runs. */
static bool supervise(void)
{
    if (T.told) {
        supervise_end();
        return true;
    }
    bool runs = false;
    for (int i = 0; i < T.n; i++) {
        member *m = &T.members[i];
        if (!T.processes[i]->dead || m->is_waiting) {
            runs = true;
        } else if (to_be_restarted(i)) {
            if (m->starts == STARTS_MOST)
                world_wrong("%s dies again and again", T.processes[i]->name);
            m->is_waiting = true;
            world_at(world_now() + start_delay_ms() * MS, restart_member, NULL,
                     T.resumes * MEMBERS_MOST + (uint64_t)i);
            runs = true;
        }
    }
    return runs;
}

/* psrun --join. */
static void on_join(void)
{
    if (T.told || T.n == MEMBERS_MOST || work_is_done()) return;
    T.members[T.n] =
        (member){.is_worker = true, .rank = T.n - T.servers, .came_later = true};
    start_member(T.n++);
}

static void on_leave(world_process *p)
{
    for (int i = T.servers + 1; i < T.n; i++) { // worker 0 would end the job
        if (T.processes[i] != p) continue;
        T.members[i].leaves = true;
        world_signal(p, SIGTERM);
    }
}

static void join_now(void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    on_join();
}

/* The host of the results may have lost its power. Somebody may come to an elastic job
 * before it goes on. */
static void on_killed(world_process *p)
{
    const uint64_t what = JOINS_AFTER + 2 * (uint64_t)T.nemesis.kills;
    if (T.nemesis.joins && nemesis_choice(&T.nemesis, what, 3) == 0)
        world_at(world_now() + nemesis_choice(&T.nemesis, what + 1, JOINS_MS) * MS,
                 join_now, NULL, 0);
    if (p == T.processes[T.servers] && world_draw(2) == 0) world_disk_loses_power(T.out);
}

static void die_now(void)
{
    nemesis_kill_now(&T.nemesis, world_self());
    if (world_self()->dead) world_die();
}

/* Processes die more often while they write than chance would have it. */
static void on_disk_moment(void)
{
    if (world_draw(80) != 0) return;
    die_now();
}

static void on_message(void)
{
    if (world_draw(4000) == 0) die_now();
}

static void on_fault_point(const char *name)
{
    (void)name;
    if (world_draw(1000) == 0) die_now();
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

static void check_steps(int should)
{
    char path[400], line[200];
    snprintf(path, sizeof path, "%s/summary.json", T.out);
    FILE *f = fopen(path, "r");
    int steps = -1;
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, "\"steps\":")) steps = atoi(strstr(line, "\"steps\":") + 8);
    if (f) fclose(f);
    if (steps != should) world_wrong("the job has made %d steps of %d", steps, should);
}

static void check_lines(const char *name)
{
    char path[400], line[4000];
    snprintf(path, sizeof path, "%s/%s", T.out, name);
    FILE *f = fopen(path, "r");
    if (!f) world_wrong("the job has left no %s", path);
    while (fgets(line, sizeof line, f))
        if (line[0] != '{' || !strstr(line, "}\n") || strchr(line + 1, '{'))
            world_wrong("%s has the line %s", path, line);
    fclose(f);
}

static void check_run(void)
{
    char path[400];
    const world_subject subject = world_train_subject(T.kind);
    if (subject == WORLD_ELASTIC)
        check_steps(ELASTIC_STEPS);
    else if (subject != WORLD_FIXED)
        check_steps(EPOCHS * SAMPLES / BATCH / T.workers);
    check_lines("metrics.jsonl");
    snprintf(path, sizeof path, "%s/model.safetensors", T.out);
    uint64_t hash = hash_of_file(path);
    if (has_rows()) {
        snprintf(path, sizeof path, "%s/model.rows.safetensors", T.out);
        hash = hash * 31 + hash_of_file(path);
    }
    if (*T.weights && *T.weights != hash)
        world_wrong(T.record.path ? "its replay has other weights"
                                  : "other weights than without faults");
    *T.weights = hash;
}

static void begin_nemesis(void)
{
    const world_subject subject = world_train_subject(T.kind);
    // docs/own-pace.md and embeddings.md: what a replay does not repeat
    const bool paced = subject == WORLD_OWN_PACE;
    const bool may_pause = subject == WORLD_FIXED || subject == WORLD_DEATHS_AT_OWN_PACE;
    T.nemesis = (nemesis){.seed = T.seed,
                          .killed = on_killed,
                          .members = T.processes,
                          .n_members = T.n,
                          .span_ms = 300,
                          .most_kills = paced ? 0 : 3,
                          .keeps_links = paced,
                          .sleeps = may_pause,
                          .fills = subject == WORLD_FIXED,
                          .tells = may_pause ? on_tell : NULL,
                          .without = T.without};
    T.hides_numbers = may_pause && nemesis_hides_numbers(&T.nemesis);
    if (!T.hides_numbers) T.nemesis.doubles = on_double;
    if (subject == WORLD_ELASTIC) {
        T.nemesis.n_members = MEMBERS_MOST;
        T.nemesis.joins = on_join;
        T.nemesis.leaves = on_leave;
    }
    nemesis_begin(&T.nemesis);
    for (int i = 0; i < T.n; i++)
        T.members[i].late_ms = nemesis_start_ms(&T.nemesis, i);
    if (T.nemesis.joins && nemesis_choice(&T.nemesis, JOINS_FIRST, 3) == 0) {
        T.members[T.servers].late_ms += JOINS_MS; // others come before worker 0
        world_at(world_now() + nemesis_choice(&T.nemesis, JOINS_AT, JOINS_MS) * MS,
                 join_now, NULL, 0);
    }
    world_disk_moment = on_disk_moment;
    world_fault_point = on_fault_point;
    world_message_moment = on_message;
}

/* A worker that joins after the end waits for another job: it does not count. */
static bool all_but_joiners_ended(void)
{
    for (int i = 0; i < T.n; i++)
        if (!T.processes[i]->dead && !T.members[i].came_later) return false;
    return true;
}

static void run_processes(void)
{
    const uint64_t began_ns = world_now();
    uint64_t until = UINT64_MAX, done_ns = 0;
    while (supervise() && world_now() < until) {
        if (work_is_done() && until == UINT64_MAX)
            done_ns = world_now(), until = done_ns + AFTER_MS * MS;
        if (work_is_done() && all_but_joiners_ended()) break;
        world_wait(somebody_ended, NULL,
                   until < world_now() + 1000 * MS ? until : world_now() + 1000 * MS);
    }
    if (!work_is_done()) world_wrong("no worker has ended well");
    if (done_ns == 0) done_ns = world_now();
    if (T.disturbed && done_ns > began_ns + LATE_MS * MS &&
        done_ns > T.nemesis.last_ns + LATE_MS * MS)
        world_wrong("the job ends %.1f s after the last fault",
                    (double)(done_ns - T.nemesis.last_ns) * 1e-9);
}

static int train(void *arg)
{
    (void)arg;
    choose_job();
    write_config();
    T.n = T.servers + T.workers;
    for (int i = 0; i < T.n; i++) {
        const bool is_worker = i >= T.servers;
        T.members[i] =
            (member){.is_worker = is_worker, .rank = is_worker ? i - T.servers : i};
        start_member(i);
    }
    if (T.disturbed) begin_nemesis();
    run_processes();
    if (!T.last_step) check_run();
    world_memory_judge(T.memory, T.disturbed);
    return 0;
}

/* ---- a record of a run, for its replay ---- */

/* The lines of membership.jsonl, one for each regrouping: the stretches are those of
 * different numbers of workers. */
int world_train_stretches(const char *path)
{
    world_record record = {path, 0};
    int workers, next = 0, n = 0;
    do {
        record.stretch = n++;
        world_train_stretch(&record, &workers, &next);
    } while (next);
    return n;
}

void world_train_stretch(const world_record *record, int *workers, int *next)
{
    FILE *f = fopen(record->path, "r");
    char line[400];
    int stretch = -1;
    *workers = *next = 0;
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"step\":"), *of = strstr(line, "\"workers\":");
        if (!at || !of) break;
        const int step = atoi(at + 7), n = atoi(of + 10);
        if (stretch < 0 || n != *workers) stretch++;
        if (stretch > record->stretch) *next = step;
        if (stretch > record->stretch) break;
        *workers = n;
    }
    if (f) fclose(f);
}

int world_train_run(const world_options *options, const world_job_options *job,
                    uint64_t *weights)
{
    T.seed = options->seed;
    T.kind = options->kind;
    T.record = job->record;
    T.memory = job->memory;
    T.disturbed = job->disturbed;
    T.without = job->without;
    T.weights = weights;
    snprintf(T.config, sizeof T.config, "%s/job.yaml", job->folder);
    snprintf(T.out, sizeof T.out, "%s/out", job->folder);
    snprintf(T.order, sizeof T.order, "%s/order", job->folder);
    world_options o = *options;
    o.most_ns = MOST_S * 1000 * MS;
    return world_run(&o, train, NULL);
}
