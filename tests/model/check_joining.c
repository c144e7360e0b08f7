/* Joining, deaths and the end of a job, in every order in which the messages can come:
 *
 *     check_joining [SCENARIO | --nightly]    without: all but the nightly ones
 *
 * Drives the real coordinator (joining_world.h) through all states that a scenario can
 * reach; joining_stand_in.c stands in for the members. In each state:
 *
 *   - no two members have one rank; all of one roster have the same one, and servers have
 *     the workers' secrets
 *   - messages of a process that was replaced change nothing, whenever they come
 *   - nobody is told of an error that nobody has made
 *   - the coordinator holds no more than is bounded, and gives all back when it ends
 *   - the job can still end: nobody waits for ever, or until a deadline of its own
 *
 * Then the same with one rule broken: each time the search has to find an error. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "joining_world.h"

enum { MOST_STATES = 8 << 20, DEEPEST = 4096, ACTIONS = 64 };

typedef enum action_kind {
    ACT_UP,     // the coordinator gets the next message of a connection
    ACT_LOSE,   // what is left of a closed one
    ACT_CLOSED, // the coordinator notes its end
    ACT_DEAD,   // a member is dead for it
    ACT_TAKE,   // a process gets the next message
    ACT_LOST,   // what was sent to it is lost with the coordinator
    ACT_REPEAT,
    ACT_CUT,
    ACT_RECONNECT,
    ACT_ABORT,
    ACT_DIE,
    ACT_PUSH,
    ACT_BEGIN,
    ACT_COME,
    ACT_GO
} action_kind;

typedef struct action {
    uint8_t kind, on; // a process, a connection, a member's place
} action;

/* How a state was found first; for the trace. */
typedef struct step {
    uint32_t before;
    action action;
} step;

typedef struct edge {
    uint32_t from, to;
} edge;

typedef struct place { // on the path to the present state
    world state;
    uint32_t number, n, next; // actions, the one to be tried next
    action actions[ACTIONS];
} place;

typedef struct result {
    uint32_t states, ends, deepest;
    size_t actions;
    char fault[TEXT];
} result;

typedef struct entry { // hash 0: free
    uint64_t hash;
    uint32_t number;
} entry;

static entry *seen; // open addressing
static uint64_t mask;
static place *path;
static step *steps;
static edge *edges;
static size_t edges_room;
static bool *ends;

/* ---- actions ---- */

static void add(place *p, action_kind kind, uint32_t on)
{
    if (p->n == ACTIONS) abort(); // too small
    p->actions[p->n++] = (action){(uint8_t)kind, (uint8_t)on};
}

static void add_links(place *p)
{
    for (uint32_t i = 0; i < LINKS; i++) {
        const connection *l = &W.links[i];
        if (!l->used || l->gone) continue;
        if (l->n_up > 0) add(p, ACT_UP, i);
        if (l->n_up > 0 && !l->open) add(p, ACT_LOSE, i);
        if (l->shown && !l->open && !l->noted) add(p, ACT_CLOSED, i);
    }
}

static void add_process(place *p, uint32_t m)
{
    const process *q = &W.processes[m];
    const connection *l = q->link == NOBODY ? NULL : &W.links[q->link];
    if (q->phase == PHASE_AWAY && W.comings > 0) add(p, ACT_COME, m);
    if (!stand_in_lives(m)) return;
    if (stand_in_can_go(m)) add(p, ACT_GO, m);
    if (stand_in_can_push(m)) add(p, ACT_PUSH, m);
    if (W.deaths > 0) add(p, ACT_DIE, m);
    if (!l) return;
    if (l->n_down > 0) add(p, ACT_TAKE, m);
    if (l->n_down > 0 && l->gone) add(p, ACT_LOST, m);
    if (stand_in_can_repeat(m)) add(p, ACT_REPEAT, m);
    if (W.cuts > 0 && stand_in_can_cut(m)) add(p, ACT_CUT, m);
    if (l->cut && !l->gone) add(p, ACT_RECONNECT, m);
    if (W.aborts > 0 && W.disturbed && q->phase == PHASE_RUNS && !q->leaving)
        add(p, ACT_ABORT, m);
}

static void list_actions(place *p)
{
    p->n = p->next = 0;
    for (uint32_t m = 0; m < world_members(); m++)
        add_process(p, m);
    add_links(p);
    for (int i = 0; W.coordinator && i < W.coordinator->n_peers; i++)
        if (world_may_be_dead(i)) add(p, ACT_DEAD, (uint32_t)i);
    if (world_may_begin()) add(p, ACT_BEGIN, 0);
}

static void act(action a)
{
    static void (*const does[])(uint32_t) = {[ACT_UP] = world_up,
                                             [ACT_LOSE] = world_lose_rest,
                                             [ACT_CLOSED] = world_closed,
                                             [ACT_DEAD] = world_dead,
                                             [ACT_TAKE] = stand_in_take,
                                             [ACT_LOST] = stand_in_lose,
                                             [ACT_REPEAT] = stand_in_repeat,
                                             [ACT_CUT] = stand_in_cut,
                                             [ACT_RECONNECT] = stand_in_reconnect,
                                             [ACT_ABORT] = stand_in_abort,
                                             [ACT_DIE] = stand_in_die,
                                             [ACT_PUSH] = stand_in_push,
                                             [ACT_BEGIN] = world_begin,
                                             [ACT_COME] = stand_in_come,
                                             [ACT_GO] = stand_in_go};
    does[a.kind](a.on);
    stand_in_settle();
    world_tidy();
    world_order_links();
}

static bool all_have_joined(void)
{
    for (uint32_t m = 0; m < world_members(); m++)
        if (W.processes[m].phase != PHASE_RUNS) return false;
    return true;
}

/* begun: until all have joined nothing fails, and the first thing that can come comes. */
static void open_job(const scenario *s)
{
    static place p;
    world_open(s);
    while (s->begun && !all_have_joined()) {
        list_actions(&p);
        act(p.actions[0]);
    }
    world_allow_faults();
}

/* ---- what to say of a path ---- */

static void tell_action(action a)
{
    static const char *const does[] = {
        [ACT_UP] = "the coordinator hears",
        [ACT_LOSE] = "what it has sent is lost",
        [ACT_CLOSED] = "the coordinator notes that its connection is closed",
        [ACT_DEAD] = "it is dead for the coordinator",
        [ACT_TAKE] = "gets",
        [ACT_LOST] = "what was sent to it is lost",
        [ACT_REPEAT] = "asks again",
        [ACT_CUT] = "loses its connection",
        [ACT_RECONNECT] = "connects again",
        [ACT_ABORT] = "aborts the job",
        [ACT_DIE] = "dies",
        [ACT_PUSH] = "pushes",
        [ACT_BEGIN] = "its coordinator has waited for more workers for too long",
        [ACT_COME] = "comes",
        [ACT_GO] = "is told to leave"};
    const bool of_link = a.kind == ACT_UP || a.kind == ACT_LOSE || a.kind == ACT_CLOSED;
    const uint32_t m = of_link              ? W.links[a.on].member
                       : a.kind == ACT_DEAD ? world_process_of(a.on)
                                            : a.on;
    const char *message = "";
    if (a.kind == ACT_UP) message = world_frame_name(W.links[a.on].up[0]);
    if (a.kind == ACT_TAKE)
        message = world_frame_name(W.links[W.processes[m].link].down[0]);
    printf("  %s %u, start %u: %s %s\n", m < S.servers ? "server" : "worker",
           m < S.servers ? m : m - S.servers,
           of_link ? W.links[a.on].start : W.processes[m].start, does[a.kind], message);
}

/* Goes the way to the state once more. */
static void tell_way(uint32_t number)
{
    static action way[DEEPEST];
    uint32_t n = 0;
    for (; number != 0 && n < DEEPEST; number = steps[number].before)
        way[n++] = steps[number].action;
    open_job(&S);
    while (n-- > 0) {
        tell_action(way[n]);
        act(way[n]);
    }
}

/* ---- the search ---- */

/* The number of the present state; *is_new. */
static uint32_t remember(result *out, bool *is_new)
{
    const uint64_t hash = world_hash();
    uint64_t at = hash & mask;
    while (seen[at].hash != 0 && seen[at].hash != hash)
        at = (at + 1) & mask;
    *is_new = seen[at].hash == 0;
    if (*is_new) {
        seen[at].hash = hash;
        seen[at].number = out->states++;
    }
    return seen[at].number;
}

static void add_edge(result *out, uint32_t from, uint32_t to)
{
    if (out->actions == edges_room) {
        edges_room = edges_room ? 2 * edges_room : 1 << 16;
        edges = realloc(edges, edges_room * sizeof *edges);
        if (!edges) abort();
    }
    edges[out->actions++] = (edge){from, to};
}

/* Puts the present state, a new one, at the end of the path. */
static bool enter(result *out, uint32_t depth, uint32_t number)
{
    place *p = &path[depth];
    if (depth + 1 == DEEPEST || out->states == MOST_STATES) abort(); // too small
    if (depth + 1 > out->deepest) out->deepest = depth + 1;
    ends[number] = world_is_final();
    out->ends += ends[number];
    if (ends[number]) return false;
    world_copy(&p->state, &W);
    p->number = number;
    list_actions(p);
    return true;
}

static void explore(result *out)
{
    bool is_new;
    uint32_t depth = enter(out, 0, remember(out, &is_new));
    while (depth > 0) {
        place *p = &path[depth - 1];
        if (p->next == p->n) {
            depth--;
            continue;
        }
        const action a = p->actions[p->next++];
        world_copy(&W, &p->state);
        act(a);
        const uint32_t to = remember(out, &is_new);
        add_edge(out, p->number, to);
        if (is_new) steps[to] = (step){p->number, a};
        if (world_fault()) {
            snprintf(out->fault, sizeof out->fault, "%s", world_fault());
            if (S.mistake != MISTAKE_NONE) return;
            tell_way(p->number);
            tell_action(a);
            return;
        }
        depth += is_new && enter(out, depth, to);
    }
}

/* From each state some way leads to an end. */
static void check_ends(result *out)
{
    bool more = true;
    while (more) {
        more = false;
        for (size_t i = out->actions; i-- > 0;) // deeper states are later ones
            if (ends[edges[i].to] && !ends[edges[i].from])
                more = ends[edges[i].from] = true;
    }
    for (uint32_t i = 0; i < out->states; i++) {
        if (ends[i]) continue;
        snprintf(out->fault, sizeof out->fault, "the job cannot end any more");
        if (S.mistake == MISTAKE_NONE) tell_way(i);
        return;
    }
}

static void search(const scenario *s, result *out)
{
    memset(out, 0, sizeof *out);
    memset(seen, 0, (mask + 1) * sizeof *seen);
    open_job(s);
    explore(out);
    if (!out->fault[0]) check_ends(out);
    if (!out->fault[0] && out->ends == 0)
        snprintf(out->fault, sizeof out->fault, "nothing ends");
}

/* ---- scenarios ---- */

static const scenario SCENARIOS[] = {
    {.name = "undisturbed"},
    {.name = "a death", .deaths = 1},
    {.name = "a loss", .cuts = 1},
    {.name = "alone, a loss, a death",
     .deaths = 1,
     .cuts = 1,
     .begun = true,
     .alone = true},
    {.name = "alone, a delay", .cuts = 1, .delays = 1, .begun = true, .alone = true},
    {.name = "1 worker, unranked, a death", .workers = 1, .deaths = 1, .unranked = true},
    {.name = "1 worker, begun, a loss, a death",
     .workers = 1,
     .deaths = 1,
     .cuts = 1,
     .begun = true},
    {.name = "elastic, a death", .servers = 1, .comings = 1, .goings = 1, .deaths = 1},
    {.name = "paced, a death", .servers = 1, .paced = true, .deaths = 1, .begun = true},
    {.name = "1 server, begun, 2 deaths", .servers = 1, .deaths = 2, .begun = true},
};
static const scenario NIGHTLY[] = {
    {.name = "unranked, a death", .deaths = 1, .unranked = true},
    {.name = "uncounted, a death", .deaths = 1, .uncounted = true},
    {.name = "begun, an abort, a death", .deaths = 1, .aborts = 1, .begun = true},
    {.name = "begun, a loss, a death", .deaths = 1, .cuts = 1, .begun = true},
    {.name = "begun, 2 deaths", .deaths = 2, .begun = true},
    {.name = "elastic, 3 workers, a death",
     .servers = 1,
     .workers = 3,
     .comings = 1,
     .deaths = 1},
    {.name = "elastic, a loss, a death",
     .servers = 1,
     .comings = 1,
     .goings = 1,
     .deaths = 1,
     .cuts = 1},
    {.name = "paced, 2 deaths", .servers = 1, .paced = true, .deaths = 2, .begun = true},
    {.name = "paced, a loss, a death",
     .servers = 1,
     .paced = true,
     .deaths = 1,
     .cuts = 1,
     .begun = true},
    {.name = "paced, a delay",
     .servers = 1,
     .paced = true,
     .cuts = 1,
     .delays = 1,
     .begun = true},
    {.name = "begun, a delay", .cuts = 1, .delays = 1, .begun = true},
    {.name = "alone, 2 deaths", .deaths = 2, .alone = true},
    {.name = "2 losses", .cuts = 2},
};

#define MISTAKEN_IN(which, what, ...)                                                    \
    {                                                                                    \
        .name = (what), .mistake = MISTAKE_##which, __VA_ARGS__                          \
    }
static const scenario MISTAKEN[] = {
    MISTAKEN_IN(SECRETS_STAY, "secrets stay", .deaths = 1),
    MISTAKEN_IN(OLD_START_WINS, "an old start wins", .deaths = 1),
    MISTAKEN_IN(CLOSED_IS_NOT_NOTED, "a closed connection is not noted", .deaths = 1,
                .begun = true),
    MISTAKEN_IN(ABORT_IS_TOLD_ONCE, "an abort is told once", .deaths = 1, .cuts = 1,
                .begun = true, .alone = true),
    MISTAKEN_IN(END_IS_TOLD_ONCE, "the end is told once", .cuts = 1, .begun = true),
    MISTAKEN_IN(NOTHING_IS_REPEATED, "nothing is repeated over a new connection",
                .cuts = 1, .begun = true),
    MISTAKEN_IN(GOODBYE_IS_FORGOTTEN, "a goodbye is forgotten", .begun = true),
    MISTAKEN_IN(ENTRIES_LEAK, "members' entries leak", .begun = true),
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC; // the job's clock stands still
}

static bool check(const scenario *s)
{
    static result r;
    const double began = seconds();
    search(s, &r);
    printf("%-32s %9u states %10zu actions, %u ends, depth %u, %.1f s\n", s->name,
           r.states, r.actions, r.ends, r.deepest, seconds() - began);
    if (r.fault[0]) printf("%s: %s\n", s->name, r.fault);
    fflush(stdout);
    return !r.fault[0];
}

static bool check_mistake(const scenario *s)
{
    static result r;
    search(s, &r);
    printf("if %s: after %u states: %s\n", s->name, r.states,
           r.fault[0] ? r.fault : "NOT FOUND");
    fflush(stdout);
    return r.fault[0];
}

int main(int argc, char **argv)
{
    const char *asked = argc > 1 ? argv[1] : NULL;
    const bool nightly = asked && strcmp(asked, "--nightly") == 0;
    int failed = 0, n = 0;
    mask = 2 * (uint64_t)MOST_STATES - 1;
    seen = calloc(mask + 1, sizeof *seen); // pages that are touched alone take memory
    path = calloc(DEEPEST, sizeof *path);
    steps = calloc(MOST_STATES, sizeof *steps);
    ends = calloc(MOST_STATES, sizeof *ends);
    if (!seen || !path || !steps || !ends) return 2;
    for (size_t i = 0; i < COUNT(SCENARIOS) + COUNT(NIGHTLY); i++) {
        const bool of_night = i >= COUNT(SCENARIOS);
        const scenario *s = of_night ? &NIGHTLY[i - COUNT(SCENARIOS)] : &SCENARIOS[i];
        if (asked && !nightly ? strcmp(asked, s->name) != 0 : of_night != nightly)
            continue;
        failed += !check(s);
        n++;
    }
    for (size_t i = 0; i < COUNT(MISTAKEN); i++) {
        if (asked && strcmp(asked, MISTAKEN[i].name) != 0) continue;
        n++;
        failed += !check_mistake(&MISTAKEN[i]);
    }
    return failed > 0 || n == 0;
}
