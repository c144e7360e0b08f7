#include "sync_policy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

static ps_err check_batches(uint32_t n, const uint64_t *batches)
{
    for (uint32_t i = 0; i < n; i++)
        if (batches[i] == 0) return ps_err_set(PS_ERR_ARG, "a batch without samples");
    return PS_OK;
}

static ps_err check_rules(const ps_sync_rules *r, const uint64_t *batches)
{
    if (r->n_workers == 0 || r->n_workers > PS_MAX_RANKS || r->backups >= r->n_workers)
        return ps_err_set(PS_ERR_ARG, "sync.backup: %u of %u workers", r->backups,
                          r->n_workers);
    if (r->total <= r->first || r->stretch == 0)
        return ps_err_set(PS_ERR_ARG, "a job without steps");
    return check_batches(r->n_workers, batches);
}

static uint64_t policy_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t stretch_steps(const ps_sync *s)
{
    const ps_sync_rules *r = &s->rules;
    uint64_t end = (s->done / r->stretch + 1) * r->stretch;
    if (r->pause > 0) end = policy_least(end, (s->done / r->pause + 1) * r->pause);
    if (r->stop > s->done) end = policy_least(end, r->stop);
    return policy_least(end, r->total) - s->done;
}

/* Whole steps of this stretch, with that many pushes and versions. */
static uint64_t steps_made(const ps_sync *s, uint64_t counted, uint64_t versions)
{
    const bool backup = s->rules.kind == PS_POLICY_BACKUP;
    return backup ? versions : counted / s->rules.n_workers;
}

void ps_sync_begin_stretch(ps_sync *s)
{
    const uint32_t n = s->rules.n_workers;
    s->versions = s->counted = 0;
    s->allowed = s->n_computing = n;
    for (uint32_t r = 0; r < n; r++) {
        s->workers[r].clock = 0;
        s->workers[r].base = s->version;
        s->workers[r].phase = PS_SYNC_COMPUTES;
    }
}

ps_err ps_sync_init(ps_sync *s, const ps_sync_rules *rules, const uint64_t *batches)
{
    *s = (ps_sync){0};
    PS_TRY(check_rules(rules, batches));
    const size_t n = rules->n_workers;
    s->rules = *rules;
    PS_TRY(PS_NEW(&s->workers, n, "the policy"));
    PS_TRY(PS_NEW(&s->entries, n, "the policy"));
    PS_TRY(ps_sync_set_batches(s, batches));
    s->version = rules->version;
    s->done = rules->first;
    ps_sync_begin_stretch(s);
    return PS_OK;
}

ps_err ps_sync_set_batches(ps_sync *s, const uint64_t *batches)
{
    PS_TRY(check_batches(s->rules.n_workers, batches));
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        s->workers[r].batch = batches[r];
    return PS_OK;
}

void ps_sync_fini(ps_sync *s)
{
    free(s->workers);
    free(s->entries);
    *s = (ps_sync){0};
}

ps_err ps_sync_push(ps_sync *s, uint32_t rank)
{
    if (rank >= s->rules.n_workers || s->workers[rank].phase != PS_SYNC_COMPUTES)
        return ps_err_set(PS_ERR_PROTOCOL, "a push of worker %u, which has no weights",
                          rank);
    s->workers[rank].phase = PS_SYNC_GIVEN;
    s->workers[rank].clock++;
    s->n_computing--;
    return PS_OK;
}

bool ps_sync_may_lose(const ps_sync *s, uint32_t rank)
{
    const bool repeats = s->rules.script && *s->rules.script;
    return s->rules.come_back && !repeats && rank < s->rules.n_workers;
}

void ps_sync_lose(ps_sync *s, uint32_t rank)
{
    ps_sync_worker *w = &s->workers[rank];
    s->n_computing += w->phase != PS_SYNC_COMPUTES;
    w->phase = PS_SYNC_COMPUTES;
    w->is_new = true;
}

void ps_sync_end(ps_sync *s)
{
    s->ends = true;
}

void ps_sync_grace_over(ps_sync *s)
{
    s->graced = s->graces;
}

/* --- whose pushes, and who goes on ----------------------------------------------------
 */

static bool is_late(const ps_sync *s, const ps_sync_worker *w)
{
    return s->rules.kind == PS_POLICY_BACKUP && w->base != s->version;
}

static bool may_count(const ps_sync *s, const ps_sync_worker *w)
{
    return w->phase == PS_SYNC_GIVEN && !w->is_new && (!is_late(s, w) || s->rules.add);
}

static bool policy_take_all(ps_sync *s)
{
    bool any = false;
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        s->workers[r].taken = may_count(s, &s->workers[r]);
        any = any || s->workers[r].taken;
    }
    return any;
}

bool ps_sync_is_late(const ps_sync *s)
{
    return s->rules.cuts && s->n_computing > 0 && s->versions >= stretch_steps(s);
}

/* Whether the first workers rest: no more versions are needed, or those are enough that
 * can still be made. */
static bool comes_to_rest(const ps_sync *s)
{
    return s->versions >= stretch_steps(s) ||
           (s->ends && s->n_computing < s->rules.n_workers);
}

/* Whether a version that could be made has to wait for workers that still compute. */
static bool must_grace(ps_sync *s)
{
    s->graces = s->rules.grace_ms > 0 && s->n_computing > 0 && !s->graced;
    return s->graces;
}

/* Returns whether pushes are taken. Of an earlier fragment nobody waits while all are on
 * their way to the end of their rounds: then pushes that are too few for a version do not
 * count. */
static bool decide_backup(ps_sync *s)
{
    const ps_sync_rules *o = &s->rules;
    const uint32_t enough = o->n_workers - o->backups;
    uint32_t n = 0;
    for (uint32_t r = 0; r < o->n_workers; r++)
        n += may_count(s, &s->workers[r]);
    const bool full = n >= enough && (s->last || s->versions < stretch_steps(s));
    const bool ends = s->last && comes_to_rest(s->last);
    const bool applies = full && (ends || !must_grace(s)) && policy_take_all(s);
    if (applies) s->graced = false;
    if (!s->last && (s->ends || s->versions + applies >= stretch_steps(s)))
        return applies;
    for (uint32_t r = 0; r < o->n_workers; r++) {
        ps_sync_worker *w = &s->workers[r];
        const bool dropped = w->phase == PS_SYNC_GIVEN &&
                             (w->is_new || (ends && !full) || (is_late(s, w) && !o->add));
        w->answered = w->taken || dropped;
    }
    return applies;
}

/* Of those that may go on, one that has made the fewest pushes. NULL: there is none. */
static ps_sync_worker *next_to_go_on(ps_sync *s, uint64_t slowest)
{
    const ps_sync_rules *o = &s->rules;
    ps_sync_worker *best = NULL;
    for (uint32_t r = 0; r < o->n_workers; r++) {
        ps_sync_worker *w = &s->workers[r];
        if (w->phase == PS_SYNC_COMPUTES || w->answered) continue;
        if (o->kind == PS_POLICY_SSP && w->clock - slowest > o->staleness) continue;
        if (!best || w->clock < best->clock) best = w;
    }
    return best;
}

static bool decide_stale(ps_sync *s)
{
    const uint32_t n = s->rules.n_workers;
    uint64_t slowest = UINT64_MAX;
    bool any = s->n_computing == 0;
    for (uint32_t r = 0; r < n; r++)
        if (s->workers[r].clock < slowest) slowest = s->workers[r].clock;
    while (!s->ends && s->allowed < n * stretch_steps(s)) {
        ps_sync_worker *w = next_to_go_on(s, slowest);
        if (!w) break;
        w->answered = any = true;
        s->allowed++;
    }
    return any && policy_take_all(s);
}

/* --- the order ------------------------------------------------------------------------
 */

static float factor_of(const ps_sync *s, const ps_sync_worker *w, uint64_t all,
                       uint64_t taken)
{
    const uint64_t staleness = s->version - w->base;
    double factor = 1;
    if (s->rules.kind == PS_POLICY_BACKUP) factor = (double)all / (double)taken;
    if (s->rules.correction == PS_CORRECTION_LR && staleness > 1)
        factor /= (double)staleness;
    return (float)factor;
}

/* A worker pushes its share of the mean gradient: of all of it the compensation is
 * square. */
static float compensation_of(const ps_sync *s, const ps_sync_worker *w, uint64_t all)
{
    if (s->rules.correction != PS_CORRECTION_DELAY || s->version == w->base) return 0;
    return (float)(s->rules.delay_strength * (double)all / (double)w->batch);
}

static void list_entries(ps_sync *s, ps_sync_order *out)
{
    uint64_t taken = 0, all = 0;
    out->entries = s->entries;
    out->n = 0;
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        taken += s->workers[r].taken ? s->workers[r].batch : 0;
        all += s->workers[r].batch;
    }
    out->share = s->rules.kind == PS_POLICY_BACKUP ? 1 : (double)taken / (double)all;
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        const ps_sync_worker *w = &s->workers[r];
        if (!w->taken && !w->answered) continue;
        s->entries[out->n++] = (ps_sync_entry){
            .rank = r,
            .applied = w->taken,
            .answered = w->answered,
            .factor = w->taken ? factor_of(s, w, all, taken) : 0,
            .compensation = w->taken ? compensation_of(s, w, all) : 0,
        };
    }
}

static uint64_t count_applied(const ps_sync_order *o)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < o->n; i++)
        n += o->entries[i].applied;
    return n;
}

static void count_push(ps_sync *s, ps_sync_worker *w)
{
    const uint64_t staleness = s->version - w->base;
    s->histogram[staleness < PS_SYNC_BINS ? staleness : PS_SYNC_BINS - 1]++;
    s->counted++;
    w->counted++;
    w->phase = PS_SYNC_APPLIED;
}

static void policy_carry_out(ps_sync *s, const ps_sync_order *order)
{
    for (uint32_t i = 0; i < order->n; i++)
        if (order->entries[i].applied) count_push(s, &s->workers[order->entries[i].rank]);
    s->version += order->applies;
    s->versions += order->applies;
    for (uint32_t i = 0; i < order->n; i++) {
        ps_sync_worker *w = &s->workers[order->entries[i].rank];
        if (!order->entries[i].answered) continue;
        w->dropped += w->phase == PS_SYNC_GIVEN && !w->is_new;
        w->is_new = false;
        w->phase = PS_SYNC_COMPUTES;
        w->base = s->version;
        s->n_computing++;
    }
    if (!order->rest) return;
    s->done += steps_made(s, s->counted, s->versions);
    if (!order->over) ps_sync_begin_stretch(s);
}

/* All is in, and nobody may go on. */
static void policy_rest(ps_sync *s)
{
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        s->workers[r].answered = true;
}

static bool is_any_answered(const ps_sync *s)
{
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        if (s->workers[r].answered) return true;
    return false;
}

static void policy_decide_now(ps_sync *s, ps_sync_order *out)
{
    out->applies = s->rules.kind == PS_POLICY_BACKUP ? decide_backup(s) : decide_stale(s);
    out->rest = !s->last && s->n_computing == 0 && !is_any_answered(s);
    if (out->rest) policy_rest(s);
}

/* --- repeating ------------------------------------------------------------------------
 */

/* Reads "-" or ranks and ranges with commas; sets the flag at `offset` of each worker. */
static const char *read_ranks(ps_sync *s, const char *at, size_t offset, bool *any)
{
    *any = *at != '-';
    if (*at == '-') return at + 1;
    for (;; at++) {
        char *end;
        if (*at < '0' || *at > '9') return NULL;
        const unsigned long first = strtoul(at, &end, 10);
        unsigned long last = first;
        if (*end == '-' && (end[1] < '0' || end[1] > '9')) return NULL;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        if (last < first || last >= s->rules.n_workers) return NULL;
        for (unsigned long r = first; r <= last; r++)
            *(bool *)((char *)&s->workers[r] + offset) = true;
        at = end;
        if (*at != ',') return at;
    }
}

static ps_err bad_line(const char *line)
{
    return ps_err_set(PS_ERR_FORMAT, "the record's line '%.*s' does not fit this job",
                      (int)strcspn(line, "\n"), line);
}

/* Whether all pushes that the line needs are in; the others come. */
static ps_err can_follow(const ps_sync *s, const char *line, bool *yes)
{
    *yes = true;
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        const ps_sync_worker *w = &s->workers[r];
        if (!w->taken && !w->answered) continue;
        if (w->taken && w->phase == PS_SYNC_APPLIED) return bad_line(line);
        *yes = *yes && w->phase != PS_SYNC_COMPUTES;
    }
    return PS_OK;
}

static ps_err decide_by_script(ps_sync *s, ps_sync_order *out)
{
    const char *line = s->rules.script, *at = line;
    bool any, yes;
    if (strncmp(line, PS_SYNC_BACK, sizeof PS_SYNC_BACK - 1) == 0)
        return ps_err_set(PS_ERR_FORMAT,
                          "the record has the line '%.*s': a worker died there, and what "
                          "it had is lost, so the run cannot be repeated",
                          (int)strcspn(line, "\n"), line);
    at = read_ranks(s, at, offsetof(ps_sync_worker, taken), &out->applies);
    if (!at || *at++ != ' ') return bad_line(line);
    at = read_ranks(s, at, offsetof(ps_sync_worker, answered), &any);
    if (!at) return bad_line(line);
    out->over = strncmp(at, " end", 4) == 0;
    out->rest = out->over || strncmp(at, " rest", 5) == 0;
    at += out->over ? 4 : out->rest ? 5 : 0;
    if (*at != '\n') return bad_line(line);
    PS_TRY(can_follow(s, line, &yes));
    if (yes) {
        s->rules.script = at + 1;
        return PS_OK;
    }
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        s->workers[r].taken = s->workers[r].answered = false;
    out->applies = out->rest = out->over = false;
    return PS_OK;
}

ps_err ps_sync_decide(ps_sync *s, ps_sync_order *out, bool *any)
{
    const ps_sync_rules *o = &s->rules;
    const ps_sync *last = s->last ? s->last : s;
    *out = (ps_sync_order){.version = s->version};
    *any = s->graces = false;
    for (uint32_t r = 0; r < o->n_workers; r++)
        s->workers[r].taken = s->workers[r].answered = false;
    if (o->script && *o->script)
        PS_TRY(decide_by_script(s, out));
    else
        policy_decide_now(s, out);
    list_entries(s, out);
    out->step = last->done + steps_made(last, last->counted, last->versions);
    const uint64_t step = s->done + steps_made(s, s->counted + count_applied(out),
                                               s->versions + out->applies);
    out->over |= out->rest && (s->ends || step >= o->total);
    *any = out->n > 0;
    if (*any) policy_carry_out(s, out);
    return PS_OK;
}

/* --- the record -----------------------------------------------------------------------
 */

/* Appends the ranks of entries [0, n) of which `pick` is true. */
static size_t write_ranks(const ps_sync_order *o, bool applied, char *text, size_t n)
{
    size_t at = 0;
    const ps_sync_entry *e = o->entries;
    for (uint32_t i = 0; i < o->n && at < n; i++) {
        if (!(applied ? e[i].applied : e[i].answered)) continue;
        uint32_t last = i;
        while (last + 1 < o->n && e[last + 1].rank == e[last].rank + 1 &&
               (applied ? e[last + 1].applied : e[last + 1].answered))
            last++;
        at += (size_t)snprintf(text + at, n - at, at ? ",%u" : "%u", e[i].rank);
        if (last > i && at < n)
            at += (size_t)snprintf(text + at, n - at, "-%u", e[last].rank);
        i = last;
    }
    if (at == 0) at = (size_t)snprintf(text, n, "-");
    return at;
}

void ps_sync_line(const ps_sync_order *order, char *text, size_t n, size_t *bytes)
{
    if (order->back > 0) {
        const int back =
            snprintf(text, n, PS_SYNC_BACK "%" PRIu32 "\n", order->entries[0].rank);
        *bytes = back > 0 && (size_t)back < n ? (size_t)back : 0;
        return;
    }
    size_t at = write_ranks(order, true, text, n);
    if (at < n) at += (size_t)snprintf(text + at, n - at, " ");
    if (at < n) at += write_ranks(order, false, text + at, n - at);
    if (at < n)
        at += (size_t)snprintf(text + at, n - at, "%s",
                               order->rest ? ps_sync_rest_word(order->over) : "\n");
    *bytes = at < n ? at : 0;
}
