/* The policies backup, ssp and asp in every order in which the pushes of a few workers
 * can come, against a model that only counts. */
#include "every_order.h"
#include "sync_policy.h"

enum { MOST = 3, RECORD = 4096 };

/* The workers as the orders leave them. */
typedef struct world {
    ps_sync sync;
    ps_sync_rules rules;
    bool computes[MOST], waits[MOST]; // waits: its push is not applied
    uint64_t base[MOST], clock[MOST];
    uint64_t version, rested, step, pushes, counted, dropped, in_stretch, rests;
    bool over, replays, grace_over;
    char record[RECORD];
    size_t bytes;
} world;

static const uint64_t BATCHES[MOST] = {8, 8, 8};

#define RULES(policy, n, ...)                                                            \
    ((ps_sync_rules){.kind = (policy), .n_workers = (n), __VA_ARGS__})

static void begin(world *w, const ps_sync_rules *rules)
{
    *w = (world){.rules = *rules,
                 .version = rules->version,
                 .rested = rules->version,
                 .step = rules->first};
    assert_ok(ps_sync_init(&w->sync, rules, BATCHES));
    for (uint32_t r = 0; r < rules->n_workers; r++) {
        w->computes[r] = true;
        w->base[r] = rules->version;
    }
}

/* Whether all workers rest after that step. */
static bool is_border(const ps_sync_rules *r, uint64_t step)
{
    return step == r->total || step % r->stretch == 0 || step == r->stop ||
           (r->pause > 0 && step % r->pause == 0);
}

/* At a rest the steps since the last rest are whole, and no border is passed. */
static void check_rest(world *w, const ps_sync_order *o)
{
    const ps_sync_rules *r = &w->rules;
    const bool backup = r->kind == PS_POLICY_BACKUP;
    const uint64_t steps = backup ? w->version - w->rested : w->in_stretch / r->n_workers;
    if (!backup) assert_int_equal(w->in_stretch % r->n_workers, 0);
    assert_true(steps > 0);
    for (uint64_t i = 1; i <= steps; i++)
        assert_int_equal(is_border(r, w->step + i), i == steps);
    w->step += steps;
    w->rested = w->version;
    assert_int_equal(w->sync.done, w->step);
    assert_int_equal(o->over, w->step == r->total);
}

static uint64_t slowest(const world *w)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < w->rules.n_workers; r++)
        if (w->clock[r] < least) least = w->clock[r];
    return least;
}

/* All batches are equal, so N pushes are a step. */
static void check_weight(const world *w, const ps_sync_order *o, const ps_sync_entry *e,
                         uint32_t applied)
{
    const ps_sync_rules *rules = &w->rules;
    const uint64_t staleness = w->version - w->base[e->rank];
    const bool backup = rules->kind == PS_POLICY_BACKUP;
    double factor = backup ? (double)rules->n_workers / applied : 1, compensation = 0;
    if (rules->correction == PS_CORRECTION_LR && staleness > 1)
        factor /= (double)staleness;
    if (rules->correction == PS_CORRECTION_DELAY && staleness > 0)
        compensation = rules->delay_strength * rules->n_workers;
    assert_true(e->factor == (float)factor);
    assert_true(e->compensation == (float)compensation);
    assert_true(o->share == (backup ? 1 : (double)applied / rules->n_workers));
}

static bool is_any_computing(const world *w)
{
    bool any = false;
    for (uint32_t r = 0; r < w->rules.n_workers; r++)
        any = any || w->computes[r];
    return any;
}

static void check_applied(world *w, const ps_sync_order *o, uint32_t applied)
{
    const ps_sync_rules *rules = &w->rules;
    const uint32_t enough = rules->n_workers - rules->backups;
    if (rules->kind == PS_POLICY_BACKUP && applied > 0 && rules->grace_ms == 0)
        assert_int_equal(applied, enough);
    if (rules->kind == PS_POLICY_BACKUP && applied > 0 && rules->grace_ms > 0)
        assert_true(applied >= enough && (w->grace_over || !is_any_computing(w)));
    w->grace_over = w->grace_over && applied == 0;
    if (rules->kind == PS_POLICY_SSP && rules->staleness == 0)
        assert_int_equal(applied, rules->n_workers);
    // The last pushes of a stretch are applied together.
    if (rules->kind == PS_POLICY_ASP && !o->rest) assert_int_equal(applied, 1);
    w->version += applied > 0;
    assert_int_equal(o->applies, applied > 0);
}

static void apply(world *w, const ps_sync_order *o)
{
    uint32_t applied = 0, all = 0;
    assert_int_equal(o->version, w->version);
    for (uint32_t i = 0; i < o->n; i++)
        all += o->entries[i].applied;
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_sync_entry *e = &o->entries[i];
        if (!e->applied) continue;
        assert_true(w->waits[e->rank]); // its push is in, and was not applied before
        if (!w->replays) check_weight(w, o, e, all);
        w->waits[e->rank] = false;
        if (w->rules.kind == PS_POLICY_BACKUP && !w->rules.add)
            assert_int_equal(w->base[e->rank], w->version);
        if (w->rules.kind == PS_POLICY_SSP)
            assert_true(w->version - w->base[e->rank] <=
                        (w->rules.n_workers - 1) * (2 * w->rules.staleness + 1));
        applied++;
    }
    w->counted += applied;
    w->in_stretch += applied;
    check_applied(w, o, applied);
}

static void answer(world *w, const ps_sync_order *o)
{
    uint32_t answered = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_sync_entry *e = &o->entries[i];
        if (!e->answered) continue;
        assert_false(w->computes[e->rank]);
        if (w->rules.kind == PS_POLICY_SSP && !o->rest)
            assert_true(w->clock[e->rank] - slowest(w) <= w->rules.staleness);
        w->dropped += w->waits[e->rank];
        w->waits[e->rank] = false;
        w->computes[e->rank] = true;
        w->base[e->rank] = w->version;
        answered++;
    }
    if (!o->rest) return;
    assert_int_equal(answered, w->rules.n_workers);
    if (!w->replays) check_rest(w, o);
    memset(w->clock, 0, sizeof w->clock);
    w->in_stretch = 0;
    w->rests++;
    w->over = o->over;
}

static void obey(world *w)
{
    ps_sync_order order;
    for (;;) {
        bool any;
        size_t bytes;
        assert_ok(ps_sync_decide(&w->sync, &order, &any));
        if (!any) return;
        ps_sync_line(&order, w->record + w->bytes, sizeof w->record - w->bytes, &bytes);
        assert_true(bytes > 0);
        w->bytes += bytes;
        apply(w, &order);
        answer(w, &order);
        if (w->over) return;
    }
}

/* The next push comes from the `pick`-th of the workers that compute. */
static void push(world *w, int pick)
{
    uint32_t rank = 0;
    while (!w->computes[rank] || pick-- > 0)
        rank++;
    w->computes[rank] = false;
    w->waits[rank] = true;
    w->clock[rank]++;
    w->pushes++;
    assert_ok(ps_sync_push(&w->sync, rank));
}

/* Runs the job along a path. At each place a worker that computes pushes, or a running
 * grace ends. */
static void run(world *w, path *p)
{
    for (int at = 0; !w->over; at++) {
        int among = 0;
        for (uint32_t r = 0; r < w->rules.n_workers; r++)
            among += w->computes[r];
        assert_true(among > 0); // progress
        const int pick = path_pick(p, at, among + ps_sync_graces(&w->sync));
        w->grace_over = w->grace_over || pick == among;
        if (pick == among)
            ps_sync_grace_over(&w->sync);
        else
            push(w, pick);
        obey(w);
    }
}

static void check_end(const world *w)
{
    const ps_sync_rules *r = &w->rules;
    const uint64_t steps = r->total - r->first;
    uint64_t rests = 0, counted = 0, dropped = 0, staleness = 0;
    assert_int_equal(w->pushes, w->counted + w->dropped); // none lost, none twice
    for (uint64_t step = r->first + 1; step <= r->total; step++)
        rests += is_border(r, step);
    assert_int_equal(w->rests, rests);
    if (r->kind == PS_POLICY_BACKUP)
        assert_int_equal(w->version, r->version + steps);
    else
        assert_int_equal(w->counted, steps * r->n_workers);
    if (r->kind != PS_POLICY_BACKUP) assert_int_equal(w->dropped, 0);
    for (uint32_t i = 0; i < r->n_workers; i++) {
        counted += w->sync.workers[i].counted;
        dropped += w->sync.workers[i].dropped;
    }
    for (int i = 0; i < PS_SYNC_BINS; i++)
        staleness += w->sync.histogram[i];
    assert_int_equal(counted, w->counted);
    assert_int_equal(dropped, w->dropped);
    assert_int_equal(staleness, w->counted);
}

/* A replay of the record gives the same record, in whatever order the pushes come. */
static void check_replay(const world *first, bool backwards)
{
    ps_sync_rules rules = first->rules;
    static world again;
    rules.script = first->record;
    begin(&again, &rules);
    again.replays = true;
    while (!again.over) {
        const uint32_t n = rules.n_workers;
        uint32_t r = backwards ? n - 1 : 0;
        while (!again.computes[r])
            r = (backwards ? r + n - 1 : r + 1) % n;
        again.computes[r] = false;
        again.waits[r] = true;
        again.clock[r]++;
        again.pushes++;
        assert_ok(ps_sync_push(&again.sync, r));
        // In a script the order of arrival does not matter. So the rules about it are not
        // checked.
        again.rules.kind = PS_POLICY_LOCAL;
        obey(&again);
    }
    assert_string_equal(again.record, first->record);
    ps_sync_fini(&again.sync);
}

static long in_every_order(const ps_sync_rules *rules)
{
    path p = {0};
    static world w;
    long n = 0;
    do {
        begin(&w, rules);
        run(&w, &p);
        check_end(&w);
        if (n % 7 == 0) check_replay(&w, n % 2);
        ps_sync_fini(&w.sync);
        n++;
    } while (path_next(&p));
    return n;
}

TEST(stale_pushes_count_once_in_every_order)
{
    for (uint64_t s = 0; s <= 3; s++)
        for (uint32_t n = 1; n <= MOST; n++) {
            const ps_sync_rules rules =
                RULES(s == 3 ? PS_POLICY_ASP : PS_POLICY_SSP, n, .staleness = s,
                      .correction = (ps_correction)(s % 3), .delay_strength = 0.5,
                      .first = 5, .total = n == 3 ? 8 : 9, .stretch = n == 3 ? 2 : 3);
            const long runs = in_every_order(&rules);
            assert_true(n == 1 ? runs == 1 : runs > 10);
        }
}

/* Borders within epochs, where checkpoints are taken. */
TEST(workers_rest_at_every_border_in_every_order)
{
    const ps_policy_kind kinds[] = {PS_POLICY_BACKUP, PS_POLICY_SSP, PS_POLICY_ASP};
    for (int k = 0; k < 3; k++)
        for (uint64_t first = 4; first < 7; first++)
            for (uint64_t pause = 2; pause <= 3; pause++) {
                const ps_sync_rules rules =
                    RULES(kinds[k], 2, .backups = k == 0, .staleness = 1, .first = first,
                          .version = 2 * first, .total = first + 4, .stretch = 4,
                          .pause = pause, .stop = 7);
                assert_true(in_every_order(&rules) > 10);
            }
}

TEST(backup_steps_have_enough_pushes_in_every_order)
{
    for (uint32_t n = 2; n <= MOST; n++)
        for (uint32_t b = 0; b < n; b++)
            for (int add = 0; add < 4; add++) {
                const ps_sync_rules rules =
                    RULES(PS_POLICY_BACKUP, n, .backups = b, .add = add % 2,
                          .grace_ms = add / 2 ? 10 : 0,
                          .correction =
                              add % 2 && b < 2 ? PS_CORRECTION_DELAY : PS_CORRECTION_NONE,
                          .delay_strength = 0.25, .total = n == 3 ? 3 : 4,
                          .stretch = n == 3 ? 2 : 3);
                in_every_order(&rules);
            }
}

/* What a push weighs: the mean over the samples that count; 1 / staleness. */
TEST(pushes_are_weighed)
{
    const uint64_t batches[] = {8, 16, 8};
    ps_sync_rules rules =
        RULES(PS_POLICY_BACKUP, 3, .backups = 1, .total = 5, .stretch = 5);
    ps_sync s;
    ps_sync_order order;
    bool any;
    assert_ok(ps_sync_init(&s, &rules, batches));
    ps_sync_push(&s, 2);
    ps_sync_decide(&s, &order, &any);
    assert_false(any);
    ps_sync_push(&s, 1);
    ps_sync_decide(&s, &order, &any);
    assert_int_equal(order.n, 2);
    assert_true(order.entries[0].factor == 32.0F / 24 &&
                order.entries[1].factor == 32.0F / 24);
    ps_sync_fini(&s);

    rules =
        RULES(PS_POLICY_ASP, 2, .correction = PS_CORRECTION_LR, .total = 9, .stretch = 9);
    assert_ok(ps_sync_init(&s, &rules, batches));
    for (int i = 0; i < 3; i++) {
        ps_sync_push(&s, 0);
        ps_sync_decide(&s, &order, &any);
        assert_true(any && order.n == 1 && order.entries[0].factor == 1);
    }
    ps_sync_push(&s, 1); // three versions old
    ps_sync_decide(&s, &order, &any);
    assert_true(any && order.entries[0].factor == 1.0F / 3);
    assert_int_equal(order.step, 1); // three pushes of two workers
    ps_sync_fini(&s);
}

TEST(a_job_that_is_told_to_end_rests_soon)
{
    const ps_sync_rules rules =
        RULES(PS_POLICY_SSP, 2, .staleness = 2, .total = 90, .stretch = 30);
    ps_sync s;
    ps_sync_order order;
    bool any;
    assert_ok(ps_sync_init(&s, &rules, BATCHES));
    ps_sync_push(&s, 0);
    ps_sync_decide(&s, &order, &any);
    assert_true(any && !order.rest);
    ps_sync_end(&s);
    ps_sync_push(&s, 0);
    ps_sync_decide(&s, &order, &any);
    assert_false(any);
    ps_sync_push(&s, 1);
    ps_sync_decide(&s, &order, &any);
    assert_true(any && order.rest && order.over && order.applies && order.n == 2);
    ps_sync_fini(&s);
}

TEST(bad_pushes_and_records_are_refused)
{
    static const char *const lines[] = {"0 0",     "x 0\n",  "0,9 0\n", "0 0 nap\n",
                                        "1-0 -\n", "0- 0\n", " \n"};
    ps_sync_rules rules = RULES(PS_POLICY_ASP, 2, .total = 3, .stretch = 3);
    ps_sync s;
    ps_sync_order order;
    bool any;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        rules.script = lines[i];
        assert_ok(ps_sync_init(&s, &rules, BATCHES));
        assert_int_equal(ps_sync_decide(&s, &order, &any), PS_ERR_FORMAT);
        ps_sync_fini(&s);
    }
    rules.script = NULL;
    assert_ok(ps_sync_init(&s, &rules, BATCHES));
    assert_int_equal(ps_sync_push(&s, 2), PS_ERR_PROTOCOL);
    assert_ok(ps_sync_push(&s, 1));
    assert_int_equal(ps_sync_push(&s, 1), PS_ERR_PROTOCOL);
    ps_sync_fini(&s);
    rules.backups = 2;
    assert_int_equal(ps_sync_init(&s, &rules, BATCHES), PS_ERR_ARG);
    ps_sync_fini(&s);
}

static void expect(ps_sync *s, const char *line)
{
    ps_sync_order order;
    char text[64] = "";
    size_t bytes;
    bool any;
    assert_ok(ps_sync_decide(s, &order, &any));
    assert_int_equal(any, *line != '\0');
    if (any) ps_sync_line(&order, text, sizeof text, &bytes);
    assert_string_equal(text, line);
}

/* Two of three pushes make a version, three versions a stretch. */
TEST(a_worker_comes_back)
{
    const ps_sync_rules rules = RULES(PS_POLICY_BACKUP, 3, .backups = 1, .add = true,
                                      .come_back = true, .total = 6, .stretch = 3);
    ps_sync s;
    assert_ok(ps_sync_init(&s, &rules, BATCHES));
    assert_true(ps_sync_may_lose(&s, 0) && ps_sync_may_lose(&s, 1));
    assert_false(ps_sync_may_lose(&s, s.rules.n_workers));
    assert_ok(ps_sync_push(&s, 1));
    expect(&s, "");
    ps_sync_lose(&s, 1); // its push does not count
    assert_ok(ps_sync_push(&s, 0));
    expect(&s, "");
    assert_ok(ps_sync_push(&s, 1)); // the empty one of its successor
    expect(&s, "- 1\n");
    assert_ok(ps_sync_push(&s, 1));
    expect(&s, "0-1 0-1\n");
    for (int i = 0; i < 2; i++) { // without the third worker, which is lost at the end
        if (i == 1) ps_sync_lose(&s, 2);
        assert_ok(ps_sync_push(&s, 0));
        assert_ok(ps_sync_push(&s, 1));
        expect(&s, i == 0 ? "0-1 0-1\n" : "0-1 -\n");
        expect(&s, "");
    }
    ps_sync_lose(&s, 1); // applied, not answered yet
    assert_ok(ps_sync_push(&s, 2));
    expect(&s, "");
    assert_ok(ps_sync_push(&s, 1));
    expect(&s, "- 0-2 rest\n");
    const uint64_t counted[] = {3, 3, 0};
    for (int r = 0; r < 3; r++) {
        assert_int_equal(s.workers[r].counted, counted[r]);
        assert_int_equal(s.workers[r].dropped, 0);
        assert_ok(ps_sync_push(&s, (uint32_t)r));
    }
    expect(&s, "0-2 0-2\n"); // nobody is new any more
    ps_sync_fini(&s);
}

TEST(a_record_with_a_death_is_not_repeated)
{
    const ps_sync_rules rules = RULES(PS_POLICY_BACKUP, 3, .add = true, .come_back = true,
                                      .total = 6, .stretch = 3, .script = "back 1\n");
    ps_sync s;
    ps_sync_order order;
    bool any;
    assert_ok(ps_sync_init(&s, &rules, BATCHES));
    assert_false(ps_sync_may_lose(&s, 1));
    assert_error(ps_sync_decide(&s, &order, &any), PS_ERR_FORMAT,
                 "'back 1': a worker died there");
    ps_sync_fini(&s);
}
