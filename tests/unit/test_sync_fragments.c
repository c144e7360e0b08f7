/* Fragments with a quorum each: every order in which the pushes of three workers can
 * come, and random orders of more workers that die now and then. A worker here has one
 * push on its way, or, if it has come back, an empty one of each fragment. */
#include "every_order.h"
#include "sync_fragments.h"

enum { MOST = 6, WORKERS = 3, FRAGMENTS = 3, RECORD = 65536 };

typedef struct worker {
    uint32_t next; // the fragment that it pushes next
    bool waits, applied;
    // Of a process that has come back, as bits: empty pushes to be made, and made.
    unsigned empty, asked;
} worker;

typedef struct world {
    ps_sync_fragments sync;
    ps_sync_rules rules;
    worker workers[MOST];
    uint64_t version[FRAGMENTS], rested; // rested: the last one's at the last rest
    uint64_t steps, pushes, counted, dropped;
    bool ends, over;
    bool backwards; // the sequence of empty pushes
    char record[RECORD];
    size_t bytes;
} world;

static const uint64_t BATCHES[MOST] = {8, 8, 8, 8, 8, 8};

static void begin(world *w, const ps_sync_rules *rules)
{
    *w = (world){.rules = *rules};
    assert_ok(ps_sync_fragments_init(&w->sync, FRAGMENTS, rules, BATCHES));
}

static void rest(world *w, const ps_sync_order *o)
{
    for (uint32_t r = 0; r < w->rules.n_workers; r++) {
        const worker *x = &w->workers[r]; // only empty pushes may come later
        assert_false(x->waits || (x->empty | x->asked) >> (FRAGMENTS - 1));
        w->workers[r].next = 0;
    }
    assert_int_equal(o->fragment, FRAGMENTS - 1);
    assert_int_equal(o->n, w->rules.n_workers);
    const uint64_t steps = w->version[FRAGMENTS - 1] - w->rested;
    w->steps += steps;
    assert_true(w->ends || (steps > 0 && w->steps % w->rules.stretch == 0));
    assert_int_equal(o->over, w->ends || w->steps == w->rules.total);
    w->over = o->over;
    for (uint32_t f = 0; f < FRAGMENTS && !o->over; f++) {
        assert_int_equal(w->sync.parts[f].version, w->sync.parts[0].version);
        assert_true(w->sync.parts[f].version >= w->version[f]);
        w->version[f] = w->sync.parts[f].version;
    }
    w->rested = w->version[FRAGMENTS - 1];
}

static void take_entry(world *w, const ps_sync_order *o, const ps_sync_entry *e)
{
    worker *x = &w->workers[e->rank];
    const unsigned bit = 1u << o->fragment;
    if (x->asked & bit) {
        assert_true(e->answered && !e->applied);
        x->asked &= ~bit;
        return;
    }
    assert_true(x->waits);
    assert_int_equal(x->next, o->fragment); // it pushes nothing else meanwhile
    assert_false(x->applied && e->applied);
    w->counted += e->applied;
    x->applied = x->applied || e->applied;
    if (!e->answered) return;
    w->dropped += !x->applied;
    x->waits = x->applied = false;
    x->next = (x->next + 1) % FRAGMENTS;
}

static void take(world *w, const ps_sync_order *o)
{
    uint32_t applied = 0;
    assert_int_equal(o->version, w->version[o->fragment]);
    for (uint32_t i = 0; i < o->n; i++) {
        applied += o->entries[i].applied;
        take_entry(w, o, &o->entries[i]);
    }
    assert_int_equal(o->applies, applied > 0);
    assert_true(applied == 0 || applied >= w->rules.n_workers - w->rules.backups);
    w->version[o->fragment] += o->applies;
    size_t bytes;
    ps_sync_fragments_line(&w->sync, o, w->record + w->bytes, RECORD - w->bytes, &bytes);
    assert_true(bytes > 0);
    w->bytes += bytes;
    if (o->rest) rest(w, o);
}

static void obey(world *w)
{
    ps_sync_order order;
    for (bool any = true; any;) {
        assert_ok(ps_sync_fragments_decide(&w->sync, &order, &any));
        if (any) take(w, &order);
    }
}

static void push(world *w, uint32_t rank)
{
    worker *x = &w->workers[rank];
    uint32_t fragment = x->next;
    if (x->empty > 0) {
        fragment = w->backwards ? FRAGMENTS - 1 : 0;
        while (!(x->empty >> fragment & 1))
            fragment = w->backwards ? fragment - 1 : fragment + 1;
        x->empty &= ~(1u << fragment);
        x->asked |= 1u << fragment;
    } else {
        x->waits = true;
        w->pushes++;
    }
    assert_ok(ps_sync_fragments_push(&w->sync, fragment, rank));
    obey(w);
}

/* A process takes its place at once, and asks for the weights of each fragment. */
static void lose(world *w, uint32_t rank)
{
    worker *x = &w->workers[rank];
    w->dropped += x->waits && !x->applied;
    *x = (worker){.next = x->next, .empty = (1u << FRAGMENTS) - 1};
    assert_true(ps_sync_fragments_may_lose(&w->sync, rank));
    ps_sync_fragments_lose(&w->sync, rank);
    assert_int_equal(w->sync.next[rank], x->next);
    obey(w);
}

static bool is_ready(const worker *x)
{
    return x->empty > 0 || (!x->waits && x->asked == 0);
}

static uint32_t pick_worker(const world *w, int pick)
{
    for (uint32_t r = 0; r < w->rules.n_workers; r++)
        if (is_ready(&w->workers[r]) && pick-- == 0) return r;
    fail();
    return 0;
}

static int count_ready(const world *w)
{
    int n = 0;
    for (uint32_t r = 0; r < w->rules.n_workers; r++)
        n += is_ready(&w->workers[r]);
    assert_true(n > 0); // somebody can go on
    return n;
}

static void check_end(const world *w)
{
    assert_int_equal(w->pushes, w->counted + w->dropped); // none lost, none twice
    assert_true(w->ends || w->steps == w->rules.total);
}

static void run(world *w, path *p)
{
    for (int at = 0; !w->over; at++)
        push(w, pick_worker(w, path_pick(p, at, count_ready(w))));
    check_end(w);
}

/* In another order of arrival the record leads to the same orders. */
static void check_replay(const world *first)
{
    static world again;
    ps_sync_rules rules = first->rules;
    rules.script = first->record;
    begin(&again, &rules);
    while (!again.over)
        push(&again, pick_worker(&again, count_ready(&again) - 1));
    assert_string_equal(again.record, first->record);
    ps_sync_fragments_fini(&again.sync);
}

static const ps_sync_rules RULES = {.kind = PS_POLICY_BACKUP,
                                    .n_workers = WORKERS,
                                    .backups = 1,
                                    .add = true,
                                    .come_back = true,
                                    .total = 2,
                                    .stretch = 1};

static long in_every_order(const ps_sync_rules *rules)
{
    static world w;
    path p = {0};
    long n = 0;
    do {
        begin(&w, rules);
        run(&w, &p);
        if (n % 7 == 0) check_replay(&w);
        ps_sync_fragments_fini(&w.sync);
        n++;
    } while (path_next(&p));
    return n;
}

TEST(every_push_counts_once_in_every_order)
{
    ps_sync_rules rules = RULES;
    assert_true(in_every_order(&rules) > 1000);
    rules.total = rules.stretch = 2;
    assert_true(in_every_order(&rules) > 1000);
    rules.backups = 2;
    rules.total = rules.stretch = 1;
    assert_true(in_every_order(&rules) > 50);
    rules.backups = 0;
    rules.total = 2;
    assert_true(in_every_order(&rules) > 1000);
}

static uint32_t draw(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 16) % n;
}

/* Some are slow, and about one push of twelve is followed by a death. Some jobs are told
 * to end. */
static void run_with_deaths(world *w, uint32_t *seed)
{
    const uint32_t n = w->rules.n_workers;
    const bool deaths = draw(seed, 4) > 0, may_end = draw(seed, 4) == 0;
    w->backwards = draw(seed, 2) > 0;
    for (int at = 0; !w->over; at++) {
        assert_true(at < CHOICES);
        if (deaths && draw(seed, 12) == 0) lose(w, draw(seed, n));
        if (may_end && draw(seed, 12) == 0) {
            w->ends = true;
            ps_sync_end(ps_sync_fragments_last(&w->sync));
            obey(w);
        }
        if (w->over) break;
        uint32_t pick = draw(seed, (uint32_t)count_ready(w));
        if (pick > 0 && draw(seed, 3) > 0) pick--;
        push(w, pick_worker(w, (int)pick));
    }
    check_end(w);
}

TEST(workers_may_die_at_any_time)
{
    static world w;
    uint32_t seed = 1;
    for (uint32_t i = 0; i < 4000; i++) {
        ps_sync_rules rules = RULES;
        rules.n_workers = 2 + draw(&seed, MOST - 1);
        rules.backups = draw(&seed, rules.n_workers);
        rules.stretch = 1 + draw(&seed, 3);
        rules.total = rules.stretch * (1 + draw(&seed, 3));
        begin(&w, &rules);
        run_with_deaths(&w, &seed);
        ps_sync_fragments_fini(&w.sync);
    }
}

static void expect_refused(const char *script, const char *reason)
{
    ps_sync_rules rules = RULES;
    ps_sync_fragments f;
    ps_sync_order order;
    bool any;
    rules.script = script;
    assert_ok(ps_sync_fragments_init(&f, FRAGMENTS, &rules, BATCHES));
    assert_false(ps_sync_fragments_may_lose(&f, 0));
    for (uint32_t r = 0; r < WORKERS; r++)
        assert_ok(ps_sync_fragments_push(&f, 0, r));
    assert_int_equal(ps_sync_fragments_push(&f, 0, 0), PS_ERR_PROTOCOL);
    assert_int_equal(ps_sync_fragments_push(&f, 0, WORKERS), PS_ERR_PROTOCOL);
    assert_error(ps_sync_fragments_decide(&f, &order, &any), PS_ERR_FORMAT, reason);
    ps_sync_fragments_fini(&f);
}

TEST(bad_records_are_refused)
{
    expect_refused("0-2 0-2\n", "'0-2 0-2' does not name one of the job's 3 fragments");
    expect_refused("f3 0-2 0-2\n", "does not name one of the job's 3 fragments");
    expect_refused("f 0-2 0-2\n", "does not name one of the job's 3 fragments");
    expect_refused("f0 0-2 0-2 rest\n", "lets workers rest after fragment 0 of 3");
    expect_refused("f0 0-3 -\n", "'0-3 -' does not fit this job");
    expect_refused("back 1\n", "'back 1': a worker died there");
    ps_sync_fragments f;
    ps_sync_rules rules = RULES;
    assert_int_equal(ps_sync_fragments_init(&f, 0, &rules, BATCHES), PS_ERR_ARG);
    ps_sync_fragments_fini(&f);
    rules.kind = PS_POLICY_ASP;
    assert_int_equal(ps_sync_fragments_init(&f, 2, &rules, BATCHES), PS_ERR_ARG);
    ps_sync_fragments_fini(&f);
}
