#include "coord_back.h"

#include "coord_end.h"
#include "fault_point.h"
#include "job_view.h"
#include "log.h"
#include "tell.h"

bool ps_coord_ends(const ps_coordinator *c)
{
    return c->interrupted || ps_coord_orders_end(ps_coord_board_orders(c->board));
}

/* Whether the others can go on. One that has not come yet was not waited for before. */
static bool may_lose(const ps_coordinator *c, const ps_coord_peer *p)
{
    const ps_roster_entry *e = &p->entry;
    if (!c->o.recovers || ps_coord_ends(c) || c->state != PS_COORD_RUNNING || p->left ||
        p->away || e->role != PS_ROLE_WORKER)
        return false;
    return p->here ? ps_coord_orders_may_lose(ps_coord_board_orders(c->board), e->rank)
                   : p->is_back;
}

static void back_forget(ps_coordinator *c, const ps_coord_peer *p)
{
    ps_coord_board_renew(c->board, &p->secret, p->entry.rank);
    const ps_err err =
        ps_coord_orders_lose(ps_coord_board_orders(c->board), p->entry.rank);
    if (err != PS_OK) ps_coord_abort(c, err, ps_err_message());
}

bool ps_coord_lose(ps_coordinator *c, ps_coord_peer *p, const char *why)
{
    const bool was_here = p->here;
    if (!may_lose(c, p)) return false;
    ps_job_view_lose(c->o.view, p->entry.role, p->entry.rank);
    const char *role = ps_role_name(p->entry.role);
    ps_tell("away", "{s:s, s:i}", "role", role, "rank", p->entry.rank);
    PS_WARN("away", "role=%s rank=%d reason=\"%s\" note=\"the others go on\"", role,
            p->entry.rank, why);
    p->away = true;
    p->here = false;
    p->lost_ns = 0;
    p->heard_ns = ps_clock_awake_ns();
    if (was_here) back_forget(c, p);
    PS_FAULT_POINT("member.away");
    return true;
}

void ps_coord_take_back(ps_coord_peer *p, const ps_control_id *door_id,
                        uint64_t incarnation)
{
    p->away = false;
    p->is_back = true;
    p->door_id = *door_id;
    p->incarnation = incarnation;
    p->heard_ns = ps_clock_awake_ns();
    p->fd = -1;
    p->queued_bytes = 0;
    p->complained = false;
}

void ps_coord_send_away(ps_coordinator *c, const ps_coord_sender *to)
{
    ps_control m = {.kind = PS_CONTROL_ABORT};
    m.abort.code = PS_ERR_PEER;
    ps_control_set_text(&m, "it was taken for dead, and the others went on without it");
    ps_coord_send_to(c, to, &m);
}
