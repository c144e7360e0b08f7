#include "straggler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* A part is too long if it is LONGER times the usual, and lengthens the step by at least
 * LEAST_MS and SHARE of what the step would be without. */
#define LONGER       1.5
#define LEAST_MS     2.0
#define SHARE        0.3
#define STALLED      0.15 // of the time, and twice as much as others
#define USUAL_WEIGHT 0.1
#define MIN_OF_USUAL 8 // steps

/* The parts, each of all workers or of all servers. */
typedef enum part_kind { BUSY, WORKER_WAY, SERVER_WAY, APPLY } part_kind;

enum { PARTS_OF_WORKER = 2, PARTS_OF_SERVER = 2 };

const char *ps_straggler_cause_name(ps_straggler_cause cause)
{
    static const char *const names[PS_STRAGGLER_CAUSES] = {
        [PS_STRAGGLER_NONE] = "",
        [PS_STRAGGLER_COMPUTE] = "slow compute",
        [PS_STRAGGLER_LINK_IN] = "slow link in",
        [PS_STRAGGLER_LINK_OUT] = "slow link out",
        [PS_STRAGGLER_SERVER] = "slow server",
        [PS_STRAGGLER_STOPPED] = "stopped",
    };
    return cause >= 0 && cause < PS_STRAGGLER_CAUSES ? names[cause] : "";
}

static int straggler_parts(int n_workers, int n_servers)
{
    return PARTS_OF_WORKER * n_workers + PARTS_OF_SERVER * n_servers;
}

static bool is_of_worker(part_kind kind)
{
    return kind <= WORKER_WAY;
}

static int straggler_count_of(const ps_straggler_step *s, part_kind kind)
{
    return is_of_worker(kind) ? s->n_workers : s->n_servers;
}

/* Where the parts of that kind begin among all. */
static int straggler_first_of(const ps_straggler_step *s, part_kind kind)
{
    if (is_of_worker(kind)) return (int)kind * s->n_workers;
    return PARTS_OF_WORKER * s->n_workers + ((int)kind - (int)SERVER_WAY) * s->n_servers;
}

/* Mean over the pairs of worker w (all: -1) and the shards [first, first + n). */
static double mean_of_pairs(const ps_straggler_step *s, const double *pairs, int w,
                            int first, int n)
{
    const int all = s->n_servers * s->shards, end = w < 0 ? s->n_workers : w + 1;
    double sum = 0;
    int found = 0;
    for (int i = w < 0 ? 0 : w; i < end; i++)
        for (int k = first; k < first + n; k++) {
            const double v = pairs[i * all + k];
            if (isnan(v)) continue;
            sum += v > 0 ? v : 0; // clocks are not exact
            found++;
        }
    return found ? sum / found : NAN;
}

static double longest_apply(const ps_straggler_step *s, int server)
{
    double longest = NAN;
    for (int k = server * s->shards; k < (server + 1) * s->shards; k++)
        longest = fmax(longest, s->apply[k]); // NAN only if both are
    return longest;
}

/* Mean of pairs over all that a worker or server is in. */
static double mean_of_member(const ps_straggler_step *s, const double *pairs,
                             ps_role role, int rank)
{
    if (role == PS_ROLE_WORKER)
        return mean_of_pairs(s, pairs, rank, 0, s->n_servers * s->shards);
    return mean_of_pairs(s, pairs, -1, rank * s->shards, s->shards);
}

static double straggler_value_of(const ps_straggler_step *s, part_kind kind, int i)
{
    if (kind == BUSY) return s->busy[i];
    if (kind == APPLY) return longest_apply(s, i);
    return mean_of_member(s, s->way, is_of_worker(kind) ? PS_ROLE_WORKER : PS_ROLE_SERVER,
                          i);
}

/* How much longer messages of a member travel than those of the others in the mean. */
static double extra_travel(const ps_straggler_step *s, const double *pairs, ps_role role,
                           int rank)
{
    const int n = role == PS_ROLE_WORKER ? s->n_workers : s->n_servers;
    double others = 0;
    for (int i = 0; i < n; i++)
        if (i != rank) others += mean_of_member(s, pairs, role, i);
    return mean_of_member(s, pairs, role, rank) - (n > 1 ? others / (n - 1) : 0);
}

/* The direction of a link that is slow: out of a worker is into a server. */
static ps_straggler_cause direction_of(const ps_straggler_step *s, ps_role role, int rank)
{
    const bool to_server =
        extra_travel(s, s->out, role, rank) > extra_travel(s, s->in, role, rank);
    return to_server == (role == PS_ROLE_WORKER) ? PS_STRAGGLER_LINK_OUT
                                                 : PS_STRAGGLER_LINK_IN;
}

static int straggler_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the known ones of n values into `sorted`; returns their number. */
static int sort_known(const double *values, int n, double *sorted)
{
    int known = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(values[i])) sorted[known++] = values[i];
    qsort(sorted, (size_t)known, sizeof *sorted, straggler_compare);
    return known;
}

/* The median of n sorted values without one that equals v; NAN when there is no other. */
static double median_without(const double *sorted, int n, double v)
{
    int at = 0;
    while (at < n && sorted[at] < v)
        at++;
    const int low = (n - 2) / 2, high = (n - 1) / 2;
    if (n < 2) return NAN;
    return 0.5 * (sorted[low + (low >= at)] + sorted[high + (high >= at)]);
}

static bool is_stalled(const ps_straggler_step *s, ps_role role, int rank)
{
    const double *own = role == PS_ROLE_SERVER ? s->server_stall : s->worker_stall;
    double others = 0;
    int n = 0;
    for (int w = 0; w < s->n_workers; w++)
        if (role == PS_ROLE_SERVER || w != rank) others += s->worker_stall[w], n++;
    for (int k = 0; k < s->n_servers; k++)
        if (role != PS_ROLE_SERVER || k != rank) others += s->server_stall[k], n++;
    const double mean = n > 0 ? others / n : 0;
    return own[rank] >= STALLED && own[rank] >= 2 * mean;
}

static bool has_link(const ps_straggler_step *s, ps_role role, int rank)
{
    const bool *linked = role == PS_ROLE_SERVER ? s->server_linked : s->worker_linked;
    return !linked || linked[rank];
}

static ps_straggler name_part(const ps_straggler_step *s, part_kind kind, int rank)
{
    ps_straggler out = {.role = is_of_worker(kind) ? PS_ROLE_WORKER : PS_ROLE_SERVER,
                        .rank = rank};
    if (kind == BUSY || kind == APPLY || is_stalled(s, out.role, rank) ||
        !has_link(s, out.role, rank))
        out.cause =
            out.role == PS_ROLE_SERVER ? PS_STRAGGLER_SERVER : PS_STRAGGLER_COMPUTE;
    else
        out.cause = direction_of(s, out.role, rank);
    return out;
}

static bool is_too_long(const ps_straggler_step *s, double ms, double usual)
{
    const double more = ms - usual, without = fmax(s->step_ms - more, 0);
    return ms >= LONGER * usual && more >= LEAST_MS && more >= SHARE * without;
}

/* Compares the parts of a kind; *worst: the worst of all so far. */
static void judge_kind(const ps_straggler_step *s, part_kind kind, const double *usual,
                       const double *values, double *sorted, ps_straggler *worst)
{
    const int n = straggler_count_of(s, kind), known = sort_known(values, n, sorted);
    for (int i = 0; i < n; i++) {
        const double ms = values[i];
        if (isnan(ms)) continue;
        double typical = median_without(sorted, known, ms);
        if (isnan(typical) && usual) typical = usual[i];
        if (isnan(typical) || !is_too_long(s, ms, typical)) continue;
        if (worst->cause && ms - typical <= worst->ms - worst->usual_ms) continue;
        *worst = name_part(s, kind, i);
        worst->ms = ms;
        worst->usual_ms = typical;
    }
}

ps_straggler ps_straggler_judge(const ps_straggler_step *s, const double *usual,
                                double *scratch)
{
    ps_straggler worst = {.cause = PS_STRAGGLER_NONE};
    double *sorted = scratch + straggler_parts(s->n_workers, s->n_servers);
    for (part_kind kind = BUSY; kind <= APPLY; kind++) {
        const int first = straggler_first_of(s, kind);
        for (int i = 0; i < straggler_count_of(s, kind); i++)
            scratch[first + i] = straggler_value_of(s, kind, i);
        judge_kind(s, kind, usual ? usual + first : NULL, scratch + first, sorted,
                   &worst);
    }
    return worst;
}

/* ---- over steps ---- */

ps_err ps_straggler_init(ps_straggler_watch *w, int n_workers, int n_servers)
{
    *w = (ps_straggler_watch){.n_usual = straggler_parts(n_workers, n_servers)};
    // Behind the usual parts: those of a step, and room for sorting them.
    return PS_NEW(&w->usual, 3 * (size_t)w->n_usual, "usual steps");
}

void ps_straggler_fini(ps_straggler_watch *w)
{
    free(w->usual);
    w->usual = NULL;
}

static bool straggler_same(const ps_straggler *a, const ps_straggler *b)
{
    return a->cause == b->cause &&
           (a->cause == PS_STRAGGLER_NONE || (a->role == b->role && a->rank == b->rank));
}

/* Learns from a step in which nobody was slow. */
static void straggler_learn(ps_straggler_watch *w, const double *parts)
{
    const double n = (double)w->n_steps + 1;
    const double weight = n * USUAL_WEIGHT > 1 ? USUAL_WEIGHT : 1 / n;
    for (int i = 0; i < w->n_usual; i++)
        if (!isnan(parts[i])) w->usual[i] += weight * (parts[i] - w->usual[i]);
    w->n_steps++;
}

static bool straggler_name(ps_straggler_watch *w, const ps_straggler *s)
{
    const bool changed = !straggler_same(&w->named, s);
    w->named = *s;
    w->calm = 0;
    return changed;
}

/* Counts another step of the same member, or begins anew. */
static void straggler_count(ps_straggler_watch *w, const ps_straggler *now)
{
    const bool member = now->role == w->suspect.role && now->rank == w->suspect.rank;
    if (now->cause == PS_STRAGGLER_NONE || w->suspect.cause == PS_STRAGGLER_NONE ||
        !member) {
        memset(w->by_cause, 0, sizeof w->by_cause);
        w->rounds = 0;
    }
    w->suspect = *now;
    if (now->cause == PS_STRAGGLER_NONE) return;
    w->rounds++;
    w->by_cause[now->cause]++;
}

/* The suspect, with the cause that most of its steps have shown. */
static ps_straggler straggler_verdict(const ps_straggler_watch *w)
{
    ps_straggler s = w->suspect;
    for (int cause = 0; cause < PS_STRAGGLER_CAUSES; cause++)
        if (w->by_cause[cause] > w->by_cause[s.cause])
            s.cause = (ps_straggler_cause)cause;
    return s;
}

bool ps_straggler_take(ps_straggler_watch *w, const ps_straggler_step *step)
{
    static const ps_straggler nobody = {.cause = PS_STRAGGLER_NONE};
    double *parts = w->usual + w->n_usual;
    const ps_straggler now =
        ps_straggler_judge(step, w->n_steps >= MIN_OF_USUAL ? w->usual : NULL, parts);
    straggler_count(w, &now);
    if (now.cause == PS_STRAGGLER_NONE) straggler_learn(w, parts);
    const ps_straggler found = straggler_verdict(w);
    if (w->rounds >= PS_STRAGGLER_ROUNDS) return straggler_name(w, &found);
    // A step has been made: nobody is stopped any more.
    if (w->named.cause == PS_STRAGGLER_STOPPED) return straggler_name(w, &nobody);
    const bool again = now.cause != PS_STRAGGLER_NONE && now.role == w->named.role &&
                       now.rank == w->named.rank;
    w->calm = again ? 0 : w->calm + 1;
    return w->named.cause != PS_STRAGGLER_NONE && w->calm >= PS_STRAGGLER_CALM &&
           straggler_name(w, &nobody);
}

bool ps_straggler_stopped(ps_straggler_watch *w, ps_role role, int rank, double ms)
{
    const ps_straggler s = {
        .cause = PS_STRAGGLER_STOPPED, .role = role, .rank = rank, .ms = ms};
    w->rounds = 0;
    return straggler_name(w, &s);
}
