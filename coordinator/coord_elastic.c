#include "coord_elastic.h"

#include <string.h>

#include "log.h"

enum {
    NEWCOMER_MS = 2000, // a process that is silent for that long waits no longer
    QUIET_MS = 1000     // the job begins when nobody has joined for that long
};

static bool is_elastic(const ps_coordinator *c)
{
    return c->o.min_workers > 0 && c->o.min_workers < c->o.n_workers;
}

int ps_coord_first_workers(const ps_coordinator *c)
{
    if (!is_elastic(c)) return c->o.n_workers;
    return c->o.expected_workers > 0 ? c->o.expected_workers : c->o.min_workers;
}

bool ps_coord_is_named(const ps_coordinator *c, ps_role role)
{
    return role == PS_ROLE_WORKER && is_elastic(c);
}

bool ps_coord_frees_places(const ps_coordinator *c)
{
    return c->o.recovers || is_elastic(c);
}

/* --- beginning --------------------------------------------------------------------- */

/* Only a job that begins may have a new worker 0: it has the checkpoint. another: what
 * one more worker, which is no peer yet, asks for as its rank. */
static bool has_first_worker(const ps_coordinator *c, int another)
{
    bool any = c->o.goes_on || another > 0, may = another == -1;
    if (another == 0) return true;
    for (int i = 0; i < c->n_peers; i++) {
        const ps_coord_peer *p = &c->peers[i];
        if (p->entry.role != PS_ROLE_WORKER) continue;
        if (p->asked_rank == 0) return true;
        any |= p->asked_rank > 0;
        may |= p->asked_rank == -1;
    }
    return may && !any;
}

bool ps_coord_keeps_place(const ps_coordinator *c, int asked_rank)
{
    return is_elastic(c) && !has_first_worker(c, asked_rank);
}

/* How long the coordinator waits for more workers than the fewest. */
static uint64_t patience_ns(const ps_coordinator *c)
{
    return (c->o.expected_workers > 0 ? c->o.wait_ms : QUIET_MS) * UINT64_C(1000000);
}

bool ps_coord_members_suffice(ps_coordinator *c, bool servers, int here, int admitted)
{
    const uint64_t now = ps_clock_awake_ns();
    if (!is_elastic(c)) return servers && here == c->n_workers;
    const bool enough =
        servers && here >= c->o.min_workers &&
        has_first_worker(c, PS_RANK_NOT_0) && here == admitted;
    if (!enough) c->waiting_ns = 0;
    if (!enough) return false;
    if (c->waiting_ns == 0) c->waiting_ns = now;
    return here == c->o.n_workers ||
           (c->o.expected_workers > 0 && here >= c->o.expected_workers) ||
           now - c->waiting_ns > patience_ns(c);
}

/* --- newcomers --------------------------------------------------------------------- */

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
    if (!is_elastic(c) || e->role != PS_ROLE_WORKER || e->rank != 0) return;
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
