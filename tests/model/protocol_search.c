#include "protocol_search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DEEPEST = 4096, ACTIONS = 256 };

typedef enum action_kind {
    ACT_BEGIN, // all have joined
    ACT_UP,    // a shard gets the next message
    ACT_DOWN,  // a worker gets it
    ACT_MAIN,  // a worker's main thread goes on
    ACT_TAKE,  // a worker's communication takes orders
    ACT_NORM,
    ACT_LOSE,   // a connection is lost and made again
    ACT_DIE,    // and is started again
    ACT_ZOMBIE, // only seems to have died
    ACT_NOTICE, // goes back to joining
    ACT_DISK,   // the newest snapshot is on the disk
    ACT_ANY     // any_order: shard 0 gets a message from a worker
} action_kind;

typedef struct action {
    uint8_t kind, a, b, keep_up, keep_down; // a: member, worker or shard; b: shard
} action;

typedef struct place { // on the path to the present state
    world state;
    uint32_t n, next; // actions, the one to be tried next
    action actions[ACTIONS];
} place;

static uint64_t *seen; // open addressing; 0: free
static uint64_t mask, n_seen;
static place *path;
static uint64_t on_path[DEEPEST]; // the hashes of its states

/* ---- actions ---- */

static void add(place *p, action a)
{
    if (p->n == ACTIONS) abort(); // ACTIONS is too small
    p->actions[p->n++] = a;
}

static void add_links(place *p, uint8_t r, uint8_t s)
{
    const queue *up = &W.up[r][s], *down = &W.down[r][s];
    const bool here = world_runs(r), there = world_runs(WORKERS + s);
    if (up->n > 0 && there) add(p, (action){ACT_UP, r, s, 0, 0});
    if (down->n > 0 && here) add(p, (action){ACT_DOWN, r, s, 0, 0});
    // Where one end is gone, a connection that is lost makes no difference.
    if (W.losses == 0 || !here || !there || W.workers[r].phase == PHASE_DONE) return;
    for (uint8_t i = 0; i <= up->n; i++)
        for (uint8_t k = 0; k <= down->n; k++)
            add(p, (action){ACT_LOSE, r, s, i, k});
}

static bool somebody_is_done(void)
{
    for (uint32_t r = 0; r < WORKERS; r++)
        if (W.workers[r].phase == PHASE_DONE) return true;
    return false;
}

static void add_members(place *p)
{
    bool all_join = true;
    for (uint8_t m = 0; m < MEMBERS; m++) {
        all_join = all_join && W.joining[m];
        if (W.broken && world_runs(m)) add(p, (action){ACT_NOTICE, m, 0, 0, 0});
        // A job of which a worker is done ends without those that die then.
        if (W.deaths == 0 || !world_runs(m) || somebody_is_done()) continue;
        add(p, (action){ACT_DIE, m, 0, 0, 0});
        if (m < WORKERS) add(p, (action){ACT_ZOMBIE, m, 0, 0, 0});
    }
    if (all_join) add(p, (action){ACT_BEGIN, 0, 0, 0, 0});
}

static void list_any_order(place *p)
{
    static const uint8_t kinds[] = {PS_MSG_HELLO, PS_MSG_INIT, PS_MSG_PULL, PS_MSG_PUSH};
    for (uint8_t r = 0; r < WORKERS; r++)
        for (size_t k = 0; k < sizeof kinds; k++)
            for (uint8_t step = 0; step <= world_scenario()->steps; step++)
                if (world_any_can(r, kinds[k], step))
                    add(p, (action){ACT_ANY, r, kinds[k], step, 0});
    if (world_norm_is_here(0)) add(p, (action){ACT_NORM, 0, 0, 0, 0});
}

static void list_actions(place *p)
{
    p->n = p->next = 0;
    if (world_scenario()->any_order && W.incarnation > 0) {
        list_any_order(p);
        return;
    }
    for (uint8_t r = 0; r < WORKERS; r++) {
        for (uint8_t s = 0; s < SHARDS; s++)
            add_links(p, r, s);
        if (!world_runs(r)) continue;
        if (world_main_can(r)) add(p, (action){ACT_MAIN, r, 0, 0, 0});
        if (W.workers[r].n_orders > 0) add(p, (action){ACT_TAKE, r, 0, 0, 0});
    }
    for (uint8_t s = 0; s < SHARDS; s++)
        if (world_norm_is_here(s)) add(p, (action){ACT_NORM, s, 0, 0, 0});
    add_members(p);
    if (W.on_disk.version != W.newest.version) add(p, (action){ACT_DISK, 0, 0, 0, 0});
}

/* Returns the members that it touched, as a bit set. */
static uint32_t act(const action *a)
{
    uint32_t touched = 1u << a->a;
    switch ((action_kind)a->kind) {
    case ACT_BEGIN:
        touched = (1u << MEMBERS) - 1;
        world_begin();
        break;
    case ACT_UP:
        touched = 1u << (WORKERS + a->b);
        world_deliver_up(a->a, a->b);
        break;
    case ACT_DOWN:
        world_deliver_down(a->a, a->b);
        break;
    case ACT_MAIN:
        world_main_act(a->a);
        break;
    case ACT_TAKE:
        world_take_orders(a->a);
        break;
    case ACT_NORM:
        touched = 1u << (WORKERS + a->a);
        world_take_norm(a->a);
        break;
    case ACT_LOSE:
        world_lose(a->a, a->b, a->keep_up, a->keep_down);
        break;
    case ACT_DIE:
    case ACT_ZOMBIE:
        world_die(a->a, a->kind == ACT_ZOMBIE);
        break;
    case ACT_NOTICE:
        world_notice(a->a);
        break;
    case ACT_DISK:
        world_write_to_disk();
        break;
    case ACT_ANY:
        touched = 1u << WORKERS;
        world_any(a->a, a->b, a->keep_up);
        break;
    }
    return touched;
}

/* ---- what to say of a path ---- */

static void describe(const place *p, char *text, size_t cap)
{
    const action *a = &p->actions[p->next - 1];
    const world *w = &p->state;
    const char *const role = a->a < WORKERS ? "worker" : "server";
    const unsigned rank = a->a < WORKERS ? a->a : a->a - WORKERS;
    switch ((action_kind)a->kind) {
    case ACT_BEGIN:
        snprintf(text, cap, "incarnation %u begins at version %d", w->incarnation + 1,
                 (int)w->newest.version);
        break;
    case ACT_UP:
        snprintf(text, cap, "shard %u gets %s from worker %u", a->b,
                 ps_wire_kind_name(w->up[a->a][a->b].messages[0].header.kind), a->a);
        break;
    case ACT_DOWN:
        snprintf(text, cap, "worker %u gets %s from shard %u", a->a,
                 ps_wire_kind_name(w->down[a->a][a->b].messages[0].header.kind), a->b);
        break;
    case ACT_MAIN:
        snprintf(text, cap, "worker %u goes on (step %d, phase %d)", a->a,
                 (int)w->workers[a->a].step, (int)w->workers[a->a].phase);
        break;
    case ACT_TAKE:
        snprintf(text, cap, "worker %u's communication takes its orders", a->a);
        break;
    case ACT_NORM:
        snprintf(text, cap, "shard %u gets the norm", a->a);
        break;
    case ACT_LOSE:
        snprintf(text, cap,
                 "worker %u and shard %u lose their connection, keep %u and %u", a->a,
                 a->b, a->keep_up, a->keep_down);
        break;
    case ACT_DIE:
        snprintf(text, cap, "%s %u dies", role, rank);
        break;
    case ACT_ZOMBIE:
        snprintf(text, cap, "%s %u is taken for dead", role, rank);
        break;
    case ACT_NOTICE:
        snprintf(text, cap, "%s %u goes back to joining", role, rank);
        break;
    case ACT_DISK:
        snprintf(text, cap, "the snapshot is on the disk");
        break;
    case ACT_ANY:
        snprintf(text, cap, "shard 0 gets %s of step %u from worker %u",
                 ps_wire_kind_name(a->b), a->keep_up, a->a);
        break;
    }
}

static void tell(search_result *out, uint32_t depth, const char *fault)
{
    size_t used = 0;
    snprintf(out->fault, sizeof out->fault, "%s", fault);
    for (uint32_t i = 0; i < depth; i++) {
        char line[120];
        if (path[i].next == 0) continue;
        describe(&path[i], line, sizeof line);
        used += (size_t)snprintf(out->trace + used, sizeof out->trace - used,
                                 "  %3u %s\n", i + 1, line);
        if (used >= sizeof out->trace) return;
    }
}

/* ---- the search ---- */

static uint64_t *seen_find(uint64_t hash)
{
    uint64_t at = hash & mask;
    while (seen[at] != 0 && seen[at] != hash)
        at = (at + 1) & mask;
    return &seen[at];
}

static void seen_resize(uint64_t size)
{
    uint64_t *old = seen;
    const uint64_t n = old ? mask + 1 : 0;
    seen = calloc(size, sizeof *seen);
    if (!seen) {
        fprintf(stderr, "no memory for a table of %llu states\n",
                (unsigned long long)size);
        exit(2);
    }
    // It is read at random places.
    (void)madvise(seen, size * sizeof *seen, MADV_HUGEPAGE);
    mask = size - 1;
    for (uint64_t i = 0; i < n; i++)
        if (old[i] != 0) *seen_find(old[i]) = old[i];
    free(old);
}

/* True if it is new. */
static bool remember(uint64_t hash)
{
    uint64_t *at = seen_find(hash);
    if (*at != 0) return false;
    *at = hash;
    if (++n_seen > mask / 2) seen_resize(2 * (mask + 1));
    return true;
}

static bool is_on_path(uint64_t hash, uint32_t depth)
{
    for (uint32_t i = 0; i < depth; i++)
        if (on_path[i] == hash) return true;
    return false;
}

/* Looks at the present state. Returns what is wrong with it, or NULL; *deeper: it is a
 * new one, whose actions are to be tried. */
static const char *look(search_result *out, uint32_t depth, uint32_t touched,
                        bool *deeper)
{
    *deeper = false;
    if (world_fault()) return world_fault();
    const uint64_t hash = world_hash();
    if (!remember(hash)) // a circle: some run would never end
        return !world_scenario()->any_order && is_on_path(hash, depth)
                   ? "the same state again"
                   : NULL;
    for (uint32_t s = 0; s < SHARDS; s++)
        if (touched >> (WORKERS + s) & 1) world_keep_shard(s);
    out->states++;
    place *p = &path[depth];
    world_copy(&p->state, &W);
    on_path[depth] = hash;
    p->n = p->next = 0;
    if (world_is_final()) {
        out->ends++;
        return NULL;
    }
    list_actions(p);
    if (p->n == 0) return "nothing can happen any more, and the job has not ended";
    *deeper = true;
    return NULL;
}

static void explore(uint64_t max_states, search_result *out)
{
    uint32_t depth = 0;
    bool deeper;
    const char *fault = look(out, 0, 0, &deeper);
    if (!fault && deeper) depth = 1;
    while (!fault && depth > 0) {
        place *p = &path[depth - 1];
        if (p->next == p->n) {
            depth--;
            continue;
        }
        if (out->states >= max_states || depth == DEEPEST) {
            out->cut_off = true;
            return;
        }
        world_copy(&W, &p->state);
        const uint32_t touched = act(&p->actions[p->next++]);
        world_canonicalize(touched);
        out->actions++;
        fault = look(out, depth, touched, &deeper);
        if (!fault) depth += deeper;
        if (depth > out->deepest) out->deepest = depth;
    }
    if (!fault) {
        world_check_old();
        fault = world_fault();
        depth = 0;
    }
    if (fault) tell(out, depth, fault);
}

void search(const scenario *s, uint64_t max_states, search_result *out)
{
    memset(out, 0, sizeof *out);
    n_seen = 0;
    seen_resize(1 << 16);
    path = calloc(DEEPEST, sizeof *path); // pages that are touched alone take memory
    if (!path) {
        fprintf(stderr, "no memory for a path\n");
        exit(2);
    }
    world_open(s);
    explore(max_states, out);
    free(seen);
    seen = NULL;
    free(path);
}
