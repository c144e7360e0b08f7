#include "coord_newcomers.h"

#include <string.h>

#include "log.h"

enum { NEWCOMER_MS = 2000 }; // a process that is silent for that long waits no longer

static ps_coord_newcomer *newcomers_find(ps_coordinator *c, const ps_control_id *door_id)
{
    for (int i = 0; i < c->n_newcomers; i++)
        if (memcmp(&c->newcomers[i].door_id, door_id, sizeof *door_id) == 0)
            return &c->newcomers[i];
    return NULL;
}

static void forget_silent(ps_coordinator *c)
{
    const uint64_t now = ps_clock_awake_ns();
    for (int i = c->n_newcomers - 1; i >= 0; i--)
        if (now - c->newcomers[i].heard_ns > NEWCOMER_MS * UINT64_C(1000000))
            c->newcomers[i] = c->newcomers[--c->n_newcomers];
}

void ps_coord_tell_newcomers(ps_coordinator *c, ps_coord_peer *p)
{
    const ps_roster_entry *e = &p->entry;
    if (!ps_coord_is_elastic(c) || e->role != PS_ROLE_WORKER || e->rank != 0) return;
    forget_silent(c);
    ps_control m = {.kind = PS_CONTROL_NEWCOMERS};
    m.newcomers = (uint64_t)c->n_newcomers;
    ps_coord_send(c, p, &m);
}

void ps_coord_note_newcomer(ps_coordinator *c, const ps_control_id *door_id,
                            const char *host)
{
    ps_coord_newcomer *known = newcomers_find(c, door_id);
    if (known) known->heard_ns = ps_clock_awake_ns();
    if (known || c->n_newcomers == PS_COORD_NEWCOMERS) return;
    c->newcomers[c->n_newcomers++] =
        (ps_coord_newcomer){.door_id = *door_id, .heard_ns = ps_clock_awake_ns()};
    PS_INFO("newcomer", "host=%s waiting=%d", host, c->n_newcomers);
    for (int i = 0; i < c->n_peers; i++)
        ps_coord_tell_newcomers(c, &c->peers[i]);
}
