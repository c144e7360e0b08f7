#include "nemesis.h"

#define MS UINT64_C(1000000)

enum { FAULTS_MOST = 4 };

typedef enum fault { CUT, CUT_ALL, PART, FREEZE, KILL, FAULTS } fault;

static world_process *any_member(const nemesis *n)
{
    return n->members[world_draw((uint64_t)n->n_members)];
}

void nemesis_kill(nemesis *n, world_process *p)
{
    if (n->kills >= n->most_kills) return;
    n->kills++;
    n->has_killed = true;
    world_kill(p);
    if (n->killed) n->killed(p);
}

static void strike(void *arg, uint64_t which)
{
    nemesis *n = arg;
    world_process *a = any_member(n), *b = any_member(n);
    const uint64_t for_ns = (1 + world_draw(n->most_ms)) * MS;
    if (a->dead) return;
    uint64_t until = world_now();
    switch ((fault)which) {
    case CUT:
        if (a != b) world_cut(a, b);
        break;
    case CUT_ALL:
        world_cut(a, NULL);
        break;
    case PART:
        until += for_ns;
        if (a != b) world_part(a, b, until);
        break;
    case FREEZE:
        until += for_ns;
        world_freeze(a, for_ns);
        break;
    default:
        nemesis_kill(n, a);
    }
    if (until > n->last_ns) n->last_ns = until;
}

void nemesis_begin(nemesis *n)
{
    const uint64_t faults = 1 + world_draw(FAULTS_MOST),
                   span = 1 + world_draw(n->span_ms);
    // A connection that has closed has to be made again within the coordinator's grace.
    n->most_ms = faults == 1 ? NEMESIS_DEAD_AFTER_MS / 4 : NEMESIS_GRACE_MS / 2;
    for (uint64_t i = 0; i < faults; i++) {
        uint64_t which = world_draw(n->most_kills > 0 ? FAULTS : KILL);
        if (n->keeps_links && (which == CUT || which == CUT_ALL)) which = FREEZE;
        world_at(world_now() + world_draw(span * MS), strike, n, which);
    }
}
