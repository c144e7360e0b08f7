#include "nemesis.h"

#include "stranger.h"

#define MS UINT64_C(1000000)

enum { FAULTS_MOST = 4, MOMENTS_MOST = 52, TOGETHER_MS = 4, LATEST_START_MS = 3000 };
enum { FULL_MS = 60 }; // when disks fill, and for how long: a job's work is over soon
enum { SLOW_MOST = 3, DOUBLES_MOST = 3 };

/* Numbers of faults, after those that are planned and those of moments. */
enum {
    LATE_STARTS = FAULTS_MOST + MOMENTS_MOST,
    STRANGERS,
    FULL,
    SLOW,
    DOUBLES,
    HIDDEN_NUMBERS
};

/* What is chosen (nemesis_choice). */
enum {
    SOME_LATE = 400,
    SOME_STRANGERS,
    SOME_FULL,
    FULL_AT,
    FULL_FOR,
    SOME_SLOW,
    SOME_DOUBLES,
    SOME_HIDDEN,
    BOTH = 410,
    LATE = 420,
    SLOW_ONE = 700, // 6 of each
    DOUBLE = 800    // 3 of each
};

typedef enum fault {
    CUT,
    CUT_ALL,
    PART,
    FREEZE,
    KILL,
    JUMP, // of the clock on the wall
    TELL,
    SLEEP,
    JOIN,
    LEAVE
} fault;

static struct planned {
    fault what;
    uint64_t a, b; // members, modulo how many there are
    uint64_t for_ns;
    int again; // connections are cut again so often
    bool both; // die
} plan[FAULTS_MOST];

/* Whether fault number i happens. Says so: a seed is repeated without it by --without. */
static bool nemesis_does(const nemesis *n, int i)
{
    if (n->without >> i & 1) return false;
    world_say("fault %d:", i);
    return true;
}

uint64_t nemesis_choice(const nemesis *n, uint64_t what, uint64_t below)
{
    return world_choice_of(n->seed, what, below);
}

static void nemesis_kill(nemesis *n, world_process *p)
{
    if (n->kills >= n->most_kills) return;
    n->kills++;
    n->has_killed = true;
    n->last_ns = n->last_ns > world_now() ? n->last_ns : world_now();
    world_kill(p);
    if (n->killed) n->killed(p);
}

void nemesis_kill_now(nemesis *n, world_process *p)
{
    if (n->kills >= n->most_kills || n->n_moments == MOMENTS_MOST) return;
    if (nemesis_does(n, FAULTS_MOST + n->n_moments++)) nemesis_kill(n, p);
}

static world_process *member_of(const nemesis *n, uint64_t drawn)
{
    uint64_t are = 0;
    while (are < (uint64_t)n->n_members && n->members[are])
        are++;
    return n->members[drawn % are];
}

static void strike(void *arg, uint64_t i)
{
    nemesis *n = arg;
    struct planned *f = &plan[i];
    world_process *a = member_of(n, f->a), *b = member_of(n, f->b);
    if (f->what != JOIN && a->dead) return;
    if (!nemesis_does(n, (int)i)) return;
    uint64_t until = world_now();
    switch (f->what) {
    case CUT:
        if (a != b) world_cut(a, b);
        break;
    case CUT_ALL:
        world_cut(a, NULL);
        if (f->again-- > 0) world_at(until + f->for_ns / 16, strike, n, i);
        break;
    case PART:
        until += f->for_ns;
        if (a != b) world_part(a, b, until);
        break;
    case FREEZE:
        until += f->for_ns;
        world_freeze(a, f->for_ns);
        break;
    case SLEEP:
        until += f->for_ns + NEMESIS_DEAD_AFTER_MS * MS;
        n->has_killed = n->has_slept = true; // to the others it is dead
        world_freeze(a, until - world_now());
        break;
    case JUMP:
        world_clock_jumps(a, (int64_t)(f->for_ns / MS) - (int64_t)n->most_ms / 2);
        break;
    case TELL:
        n->tells();
        break;
    case JOIN:
        n->joins();
        break;
    case LEAVE:
        n->leaves(a);
        break;
    default:
        nemesis_kill(n, a);
        if (f->both && !b->dead) nemesis_kill(n, b);
    }
    if (until > n->last_ns) n->last_ns = until;
}

static fault draw_fault(const nemesis *n)
{
    const fault f = n->joins && world_draw(2) == 0 ? (fault)(JOIN + world_draw(2))
                                                   : (fault)world_draw(JOIN);
    if (f == SLEEP) return n->sleeps && world_draw(2) == 0 ? SLEEP : PART;
    if (f == TELL && !n->tells) return FREEZE;
    if (f == KILL && n->most_kills == 0) return PART;
    return n->keeps_links && (f == CUT || f == CUT_ALL) ? FREEZE : f;
}

static void stranger_is_gone(void *arg)
{
    nemesis *n = arg;
    if (n->last_ns < world_now()) n->last_ns = world_now();
}

static void fill_disks(void *arg, uint64_t i)
{
    nemesis *n = arg;
    (void)i;
    if (!nemesis_does(n, FULL)) return;
    const uint64_t until = world_time() + (1 + nemesis_choice(n, FULL_FOR, FULL_MS)) * MS;
    world_disk_fills(until);
    if (n->last_ns < until) n->last_ns = until;
}

/* Where connections are lost, it adds to what keeps members apart: less than the
 * coordinator's grace in all. */
static uint64_t slow_most_ms(const nemesis *n)
{
    const bool cuts = n->n_planned > 1 || plan[0].what == CUT || plan[0].what == CUT_ALL;
    return cuts ? NEMESIS_GRACE_MS / 4 : NEMESIS_DEAD_AFTER_MS / 4;
}

static void read_slowly(void *arg, uint64_t i)
{
    static const uint64_t most_us[] = {2000, 20000, 200000};
    nemesis *n = arg;
    const uint64_t what = SLOW_ONE + 6 * i;
    if (!nemesis_does(n, SLOW)) return;
    const world_process *p = member_of(n, nemesis_choice(n, what, 1 << 20));
    const uint64_t until =
        world_time() + (1 + nemesis_choice(n, what + 1, slow_most_ms(n))) * MS;
    world_slow(
        p, (world_sockets)nemesis_choice(n, what + 2, 3),
        (1 + nemesis_choice(n, what + 3, most_us[nemesis_choice(n, what + 4, 3)])) * 1000,
        until);
    if (n->last_ns < until) n->last_ns = until;
}

static void start_double(void *arg, uint64_t i)
{
    nemesis *n = arg;
    const uint64_t what = DOUBLE + 3 * i;
    if (!nemesis_does(n, DOUBLES)) return;
    n->doubles((int)nemesis_choice(n, what, (uint64_t)n->n_members),
               nemesis_choice(n, what + 1, 1 << 20));
    if (n->last_ns < world_time()) n->last_ns = world_time();
}

/* Half of them soon, half when many have been started again. */
static void plan_starts_and_readers(nemesis *n)
{
    if (!world_since(WORLD_STARTS)) return;
    for (uint64_t i = 0; i < SLOW_MOST && nemesis_choice(n, SOME_SLOW, 4) == 0; i++)
        world_at(world_now() + nemesis_choice(n, SLOW_ONE + 6 * i + 5, n->span_ms) * MS,
                 read_slowly, n, i);
    if (!n->doubles || nemesis_choice(n, SOME_DOUBLES, 4) != 0) return;
    for (uint64_t i = 0; i < DOUBLES_MOST; i++) {
        const uint64_t span = n->span_ms * (i % 2 ? 1 : 10);
        world_at(world_now() + nemesis_choice(n, DOUBLE + 3 * i + 2, span) * MS,
                 start_double, n, i);
    }
}

bool nemesis_hides_numbers(const nemesis *n)
{
    return world_since(WORLD_STARTS) && nemesis_choice(n, SOME_HIDDEN, 8) == 0 &&
           !(n->without >> HIDDEN_NUMBERS & 1);
}

void nemesis_begin(nemesis *n)
{
    const uint64_t faults = 1 + world_draw(FAULTS_MOST),
                   span = 1 + world_draw(world_draw(3) ? n->span_ms : 10 * n->span_ms);
    // A connection that has closed has to be made again within the coordinator's grace.
    n->most_ms = faults == 1 ? NEMESIS_DEAD_AFTER_MS / 4 : NEMESIS_GRACE_MS / 2;
    n->n_planned = faults;
    uint64_t at_ns = 0, left_ms = n->most_ms; // one after the other may hold them longer
    for (uint64_t i = 0; i < faults; i++) {
        plan[i] = (struct planned){.what = draw_fault(n),
                                   .a = world_draw(1 << 20),
                                   .b = world_draw(1 << 20),
                                   .for_ns = (1 + world_draw(n->most_ms)) * MS,
                                   .again = (int)world_draw(2) * (int)world_draw(8),
                                   .both = nemesis_choice(n, BOTH + i, 3) == 0};
        if (faults > 1 && plan[i].for_ns > left_ms * MS) plan[i].for_ns = left_ms * MS;
        left_ms -= faults > 1 ? plan[i].for_ns / MS : 0;
        // Some come together.
        at_ns = i > 0 && world_draw(2) ? at_ns + world_draw(TOGETHER_MS * MS)
                                       : world_draw(span * MS);
        world_at(world_now() + at_ns, strike, n, i);
    }
    if (nemesis_choice(n, SOME_STRANGERS, 4) == 0 && nemesis_does(n, STRANGERS))
        stranger_come(n->seed, stranger_is_gone, n);
    plan_starts_and_readers(n);
    if (n->fills && world_since(WORLD_KEYS) && nemesis_choice(n, SOME_FULL, 6) == 0)
        world_at(world_now() + nemesis_choice(n, FULL_AT, FULL_MS) * MS, fill_disks, n,
                 0);
}

uint64_t nemesis_start_ms(nemesis *n, int member)
{
    const uint64_t what = LATE + 2 * (uint64_t)member;
    const bool some = nemesis_choice(n, SOME_LATE, n->joins ? 2 : 5) == 0;
    if (!some || nemesis_choice(n, what, 2) || !nemesis_does(n, LATE_STARTS)) return 0;
    const uint64_t ms = nemesis_choice(n, what + 1, LATEST_START_MS);
    if (n->last_ns < world_now() + ms * MS) n->last_ns = world_now() + ms * MS;
    return ms;
}
