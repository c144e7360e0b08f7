#include "coord_pace.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "mem.h"
#include "pace.h"

#define NS_PER_MS    1e6
#define USUAL_WEIGHT 0.1 // of a step
#define EARLY_NS     5e9 // a job of seconds is over before a warning helps

enum {
    SLOTS = 8,            // steps of which some members have not told
    MOST_PAIRS = 1 << 16, // of workers and shards; larger jobs go without
    SILENT_MS = 200       // beyond two heartbeats
};

/* A step, as far as it was told. */
typedef struct slot {
    bool used;
    uint64_t step, order;
    int n_told;
    bool *told;      // workers, then shards
    double *workers; // (workers x ps_pace_of_worker)
    double *shards;  // (shards x ps_pace_of_shard)
} slot;

struct ps_coord_pace {
    int n_workers, n_servers, shards, all; // shards: of a server; all: of all
    slot slots[SLOTS];
    uint64_t n_taken;
    double *figures, *stalls; // (workers + servers)
    bool *linked;             // (workers + servers), as straggler.h has it
    ps_straggler_watch watch;
    bool any; // a step is known whole; the rest is of the last one
    uint64_t step, at_ns;
    double end_ns, step_ms, usual_ms; // usual: while nobody is suspected
    double first_ns;                  // when the first step ended
    bool said_early; // the straggler was named in the first seconds, in the log alone
};

/* ---- life ---- */

static ps_err make_slot(const ps_coord_pace *p, slot *s)
{
    const size_t workers = (size_t)p->n_workers, all = (size_t)p->all;
    PS_TRY(PS_NEW(&s->told, workers + all, "steps"));
    PS_TRY(PS_NEW(&s->workers, workers * ps_pace_of_worker(p->all), "steps"));
    return PS_NEW(&s->shards, all * ps_pace_of_shard(p->n_workers), "steps");
}

static ps_err pace_set_up(ps_coord_pace *p)
{
    const size_t w = (size_t)p->n_workers, k = (size_t)p->all;
    for (int i = 0; i < SLOTS; i++)
        PS_TRY(make_slot(p, &p->slots[i]));
    PS_TRY(PS_NEW(&p->figures, w + 3 * w * k + k, "steps"));
    PS_TRY(PS_NEW(&p->stalls, w + (size_t)p->n_servers, "steps"));
    PS_TRY(PS_NEW(&p->linked, w + (size_t)p->n_servers, "steps"));
    return ps_straggler_init(&p->watch, p->n_workers, p->n_servers);
}

void ps_coord_pace_destroy(ps_coord_pace **pace)
{
    ps_coord_pace *p = *pace;
    if (!p) return;
    for (int i = 0; i < SLOTS; i++) {
        free(p->slots[i].told);
        free(p->slots[i].workers);
        free(p->slots[i].shards);
    }
    free(p->figures);
    free(p->stalls);
    free(p->linked);
    ps_straggler_fini(&p->watch);
    free(p);
    *pace = NULL;
}

static int shards_of_servers(const ps_coordinator *c)
{
    int shards = 0;
    for (int i = 0; i < c->n_peers; i++) {
        const ps_roster_entry *e = &c->peers[i].entry;
        if (e->role != PS_ROLE_SERVER) continue;
        if (shards != 0 && e->n_endpoints != shards) return 0;
        shards = e->n_endpoints;
    }
    return shards;
}

static void find_links(const ps_coordinator *c, ps_coord_pace *p)
{
    for (int i = 0; i < c->n_peers; i++) {
        const ps_roster_entry *a = &c->peers[i].entry;
        const bool is_worker = a->role == PS_ROLE_WORKER;
        if (a->rank < 0 || a->rank >= (is_worker ? p->n_workers : p->n_servers)) continue;
        bool *linked = &p->linked[is_worker ? a->rank : p->n_workers + a->rank];
        for (int k = 0; k < c->n_peers && !*linked; k++) {
            const ps_roster_entry *b = &c->peers[k].entry;
            *linked = a->role != b->role && !ps_roster_same_host(a, b);
        }
    }
}

/* The job's, made when it is first needed; NULL where there is none. */
static ps_coord_pace *pace_of(ps_coordinator *c)
{
    if (c->pace || !c->o.names_straggler) return c->pace;
    const int shards = shards_of_servers(c);
    ps_coord_pace *p;
    if (shards < 1 || (int64_t)c->n_workers * c->o.n_servers * shards > MOST_PAIRS)
        return NULL;
    if (PS_NEW(&p, 1, "steps") != PS_OK) return NULL;
    p->n_workers = c->n_workers;
    p->n_servers = c->o.n_servers;
    p->shards = shards;
    p->all = p->n_servers * shards;
    if (pace_set_up(p) != PS_OK)
        ps_coord_pace_destroy(&p);
    else
        find_links(c, p);
    return c->pace = p;
}

ps_straggler ps_coord_pace_named(const ps_coordinator *c)
{
    return c->pace ? c->pace->watch.named : (ps_straggler){.cause = PS_STRAGGLER_NONE};
}

/* ---- steps ---- */

/* The slot of a step, or the oldest one. NULL: the step is past. */
static slot *slot_of(ps_coord_pace *p, uint64_t step)
{
    slot *oldest = &p->slots[0];
    if (p->any && step <= p->step) return NULL;
    for (int i = 0; i < SLOTS; i++) {
        slot *s = &p->slots[i];
        if (s->used && s->step == step) return s;
        if (!s->used || (oldest->used && s->order < oldest->order)) oldest = s;
    }
    memset(oldest->told, 0, (size_t)(p->n_workers + p->all) * sizeof *oldest->told);
    oldest->used = true;
    oldest->step = step;
    oldest->order = p->n_taken++;
    oldest->n_told = 0;
    return oldest;
}

static bool all_finite(const ps_control *m, double *out, size_t n)
{
    if (m->bytes != n * sizeof *out) return false;
    memcpy(out, m->value, m->bytes);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(out[i])) return false;
    return true;
}

/* Where the figures go; *told: which of the slot's tellers they are of. NULL: nowhere. */
static double *pace_place_of(const ps_coord_pace *p, slot *s, const ps_roster_entry *from,
                             uint64_t part, int *told, size_t *n)
{
    if (from->role == PS_ROLE_WORKER && part == 0 && from->rank < p->n_workers) {
        *told = from->rank;
        *n = ps_pace_of_worker(p->all);
        return s->workers + *n * (size_t)from->rank;
    }
    const uint64_t first = 1 + (uint64_t)from->rank * (uint64_t)p->shards;
    if (from->role != PS_ROLE_SERVER || part < first ||
        part >= first + (uint64_t)p->shards)
        return NULL;
    *told = p->n_workers + (int)(part - 1);
    *n = ps_pace_of_shard(p->n_workers);
    return s->shards + *n * (size_t)(part - 1);
}

/* When the last worker had its last weights. */
static double pace_end_of(const ps_coord_pace *p, const slot *s)
{
    double end = 0;
    for (int w = 0; w < p->n_workers; w++) {
        const double *had =
            s->workers + (size_t)w * ps_pace_of_worker(p->all) + 1 + p->all;
        for (int k = 0; k < p->all; k++)
            end = fmax(end, had[k]);
    }
    return end;
}

/* The figures of worker w and shard k. */
static void pace_compare(const ps_coord_pace *p, const slot *s, size_t w, size_t k,
                         double *figures)
{
    const size_t workers = (size_t)p->n_workers, all = (size_t)p->all,
                 pairs = workers * all;
    const double *shard = s->shards + k * ps_pace_of_shard(p->n_workers);
    const double *worker = s->workers + w * ps_pace_of_worker(p->all);
    const double *given = worker + 1, *had = given + all;
    const double *mean_sent = had + all, *mean_had = mean_sent + all;
    const double *received = shard, *sent = received + workers;
    const double *mean_received = sent + 1, *mean_replied = mean_received + workers;
    double *way = figures + workers, *out = way + pairs, *in = out + pairs;
    way[w * all + k] = (received[w] - given[k] + had[k] - *sent) / NS_PER_MS;
    out[w * all + k] = (mean_received[w] - mean_sent[k]) / NS_PER_MS;
    in[w * all + k] = (mean_had[k] - *mean_replied) / NS_PER_MS;
}

/* The step in milliseconds, as straggler.h takes it. */
static ps_straggler_step figures_of(ps_coord_pace *p, const slot *s)
{
    const size_t workers = (size_t)p->n_workers, all = (size_t)p->all;
    double *busy = p->figures, *way = busy + workers, *out = way + workers * all;
    double *in = out + workers * all, *apply = in + workers * all;
    for (size_t w = 0; w < workers; w++)
        busy[w] = s->workers[w * ps_pace_of_worker(p->all)] / NS_PER_MS;
    for (size_t k = 0; k < all; k++) {
        const double *received = s->shards + k * ps_pace_of_shard(p->n_workers);
        double last = 0;
        for (size_t w = 0; w < workers; w++) {
            pace_compare(p, s, w, k, p->figures);
            last = fmax(last, received[w]);
        }
        apply[k] = (received[workers] - last) / NS_PER_MS;
    }
    return (ps_straggler_step){.n_workers = p->n_workers,
                               .n_servers = p->n_servers,
                               .shards = p->shards,
                               .step_ms = p->step_ms,
                               .busy = busy,
                               .way = way,
                               .out = out,
                               .in = in,
                               .apply = apply,
                               .worker_stall = p->stalls,
                               .server_stall = p->stalls + p->n_workers,
                               .worker_linked = p->linked,
                               .server_linked = p->linked + p->n_workers};
}

/* ---- naming ---- */

static ps_coord_peer *peer_of(ps_coordinator *c, ps_role role, int rank)
{
    for (int i = 0; i < c->n_peers; i++)
        if (c->peers[i].entry.role == role && c->peers[i].entry.rank == rank)
            return &c->peers[i];
    return NULL;
}

ps_straggler ps_coord_pace_describe(ps_coordinator *c, char *who, size_t cap)
{
    const ps_straggler s = ps_coord_pace_named(c);
    const ps_coord_peer *slow = peer_of(c, s.role, s.rank);
    who[0] = '\0';
    if (slow) ps_coord_describe(slow, who, cap);
    return s;
}

static void pace_say(ps_coordinator *c, bool early)
{
    ps_coord_pace *p = c->pace;
    char who[128];
    const ps_straggler s = ps_coord_pace_describe(c, who, sizeof who);
    ps_coord_peer *first = peer_of(c, PS_ROLE_WORKER, 0);
    if (s.cause == PS_STRAGGLER_NONE)
        PS_INFO("straggler-gone", "step=%" PRIu64, p->step);
    else
        ps_log_write(early ? PS_LOG_INFO : PS_LOG_WARN, "straggler",
                     "who=\"%s\" cause=\"%s\" step=%" PRIu64 " ms=%.1f usual=%.1f", who,
                     ps_straggler_cause_name(s.cause), p->step, s.ms, s.usual_ms);
    p->said_early = early && s.cause != PS_STRAGGLER_NONE;
    ps_control m = {.kind = PS_CONTROL_STRAGGLER};
    m.straggler.cause = (uint64_t)s.cause;
    m.straggler.role = (uint64_t)s.role;
    m.straggler.rank = (uint64_t)s.rank;
    if (first && !first->gone) ps_coord_send(c, first, &m);
}

/* For tests and people who doubt a name. */
static void trace_step(const ps_coord_pace *p, const ps_straggler_step *s)
{
    char text[1500] = "";
    if (!ps_log_shows(PS_LOG_DEBUG)) return;
    const struct {
        const char *name;
        const double *values;
        int n;
    } rows[] = {{"busy", s->busy, p->n_workers},
                {"way", s->way, p->n_workers * p->all},
                {"out", s->out, p->n_workers * p->all},
                {"in", s->in, p->n_workers * p->all},
                {"apply", s->apply, p->all},
                {"stall", p->stalls, p->n_workers + p->n_servers}};
    size_t used = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, " %s=", rows[i].name);
        for (int k = 0; k < rows[i].n && used < sizeof text - 32; k++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%.3g",
                                     k ? "," : "", rows[i].values[k]);
    }
    PS_DEBUG("pace", "step=%" PRIu64 " ms=%.1f%s suspect=\"%s %s %d\"", p->step,
             p->step_ms, text, ps_straggler_cause_name(p->watch.suspect.cause),
             ps_role_name(p->watch.suspect.role), p->watch.suspect.rank);
}

static void pace_judge(ps_coordinator *c, slot *s)
{
    ps_coord_pace *p = c->pace;
    const double end_ns = pace_end_of(p, s);
    const bool comparable = p->any && s->step > p->step;
    if (comparable)
        p->step_ms = (end_ns - p->end_ns) / NS_PER_MS / (double)(s->step - p->step);
    if (!p->any) p->first_ns = end_ns;
    p->any = true;
    p->step = s->step;
    p->end_ns = end_ns;
    p->at_ns = ps_clock_awake_ns();
    s->used = false;
    const ps_straggler_step figures = figures_of(p, s);
    if (!comparable) return;
    const bool changed = ps_straggler_take(&p->watch, &figures);
    if (p->watch.suspect.cause == PS_STRAGGLER_NONE)
        p->usual_ms += (p->usual_ms > 0 ? USUAL_WEIGHT : 1) * (p->step_ms - p->usual_ms);
    trace_step(p, &figures);
    const bool early = end_ns - p->first_ns < EARLY_NS;
    if (changed || (p->said_early && !early)) pace_say(c, early);
}

void ps_coord_pace_take(ps_coordinator *c, const ps_coord_peer *from, const ps_control *m)
{
    ps_coord_pace *p = pace_of(c);
    const ps_roster_entry *e = &from->entry;
    int told = 0;
    size_t n = 0;
    slot *s = p ? slot_of(p, m->pace.step) : NULL;
    double *place = s ? pace_place_of(p, s, e, m->pace.part, &told, &n) : NULL;
    if (!place || !all_finite(m, place, n)) return;
    const int process = e->role == PS_ROLE_WORKER ? e->rank : p->n_workers + e->rank;
    p->stalls[process] = m->pace.stall < 1000000 ? (double)m->pace.stall * 1e-6 : 1;
    s->n_told += !s->told[told];
    s->told[told] = true;
    if (s->n_told == p->n_workers + p->all) pace_judge(c, s);
}

/* ---- silence ---- */

/* One whose connection has closed is most likely dead, and does not stand still. */
static uint64_t silence_of(const ps_coord_peer *p, uint64_t now)
{
    return p->gone || p->left || p->lost_ns || now < p->heard_ns ? 0 : now - p->heard_ns;
}

/* The member that is silent for the longest time. *next_ns: how long the next one is. */
static const ps_coord_peer *most_silent(const ps_coordinator *c, uint64_t now,
                                        uint64_t *next_ns)
{
    const ps_coord_peer *most = &c->peers[0];
    *next_ns = 0;
    for (int i = 1; i < c->n_peers; i++) {
        const uint64_t ns = silence_of(&c->peers[i], now), before = silence_of(most, now);
        const uint64_t less = ns < before ? ns : before;
        if (less > *next_ns) *next_ns = less;
        if (ns > before) most = &c->peers[i];
    }
    return most;
}

/* Where several are silent, the machine or the network may just be busy: that needs
 * longer. */
void ps_coord_pace_check_silence(ps_coordinator *c)
{
    ps_coord_pace *p = c->state == PS_COORD_RUNNING ? pace_of(c) : NULL;
    const uint64_t now = ps_clock_awake_ns(),
                   beat_ns = c->o.heartbeat_ms * UINT64_C(1000000);
    const uint64_t least_ns = 2 * beat_ns + SILENT_MS * UINT64_C(1000000);
    uint64_t next_ns;
    if (!p) return;
    if (p->any && (double)(now - p->at_ns) < 5 * p->usual_ms * NS_PER_MS) return;
    const ps_coord_peer *most = most_silent(c, now, &next_ns);
    const uint64_t silent_ns = silence_of(most, now);
    const bool alone = 2 * next_ns < 3 * beat_ns;
    if (silent_ns < (alone ? least_ns : 3 * least_ns)) return;
    if (ps_straggler_stopped(&p->watch, most->entry.role, most->entry.rank,
                             (double)silent_ns / NS_PER_MS))
        pace_say(c, false);
}
