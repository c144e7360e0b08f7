#include "coord_end.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coord_elastic.h"
#include "job_view.h"
#include "log.h"

/* A process that is taking a dead one's place is no member yet that could join again: it
 * asks at the door once more. */
static bool is_on_its_way(const ps_coord_peer *p)
{
    return p && p->is_back && !p->here;
}

void ps_coord_tell_abort(ps_coordinator *c, const ps_coord_sender *to)
{
    ps_control m = {.kind = PS_CONTROL_ABORT};
    m.abort.code = (uint64_t)c->abort_code;
    m.abort.next_workers = (uint64_t)c->next_workers;
    if (is_on_its_way(to->member) && ps_err_is_passing(c->abort_code)) {
        m = (ps_control){.kind = PS_CONTROL_REFUSE};
        m.for_now = 1;
    }
    ps_control_set_text(&m, c->reason);
    ps_coord_send_to(c, to, &m);
}

void ps_coord_abort(ps_coordinator *c, ps_err code, const char *reason)
{
    if (c->state == PS_COORD_ABORTED || c->state == PS_COORD_ENDED) return;
    c->state = PS_COORD_ABORTED;
    c->abort_code = code;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
    ps_job_view_set_state(c->o.view, PS_VIEW_ABORTED, reason);
    // Every member logs the error itself, and so does the member of this process.
    PS_INFO("abort", "reason=\"%s\"", c->reason);
    for (int i = 0; i < c->n_peers; i++) {
        const ps_coord_sender to = {.id = c->peers[i].id, .member = &c->peers[i]};
        ps_coord_tell_abort(c, &to);
    }
}

void ps_coord_on_interrupt(ps_coordinator *c, const ps_coord_peer *from)
{
    char who[128];
    ps_coord_describe(from, who, sizeof who);
    if (!c->interrupted) PS_INFO("interrupt", "by=\"%s\"", who);
    c->interrupted = true;
    for (int i = 0; i < c->n_peers; i++)
        ps_coord_tell_state(c, &c->peers[i]);
}

static bool workers_have_gone(const ps_coordinator *c)
{
    for (int i = 0; i < c->n_peers; i++) {
        const ps_coord_peer *p = &c->peers[i];
        if (p->entry.role == PS_ROLE_WORKER && p->left && !p->gone) return false;
    }
    return true;
}

/* Servers hear of the end after the workers: if this process dies in between, the workers
 * join a new coordinator, and need all servers. */
void ps_coord_tell_state(ps_coordinator *c, ps_coord_peer *p)
{
    ps_control end = {.kind = PS_CONTROL_END}, interrupt = {.kind = PS_CONTROL_INTERRUPT};
    if (p->gone) return;
    if (c->state == PS_COORD_ENDED) {
        if (p->entry.role == PS_ROLE_WORKER || workers_have_gone(c))
            ps_coord_send(c, p, &end);
    } else if (c->interrupted && p->entry.role == PS_ROLE_WORKER)
        ps_coord_send(c, p, &interrupt);
    if (c->state == PS_COORD_RUNNING) ps_coord_tell_newcomers(c, p);
}

/* The member of this process: server 0, or worker 0 where there are no servers. */
static bool is_host(const ps_coordinator *c, const ps_coord_peer *p)
{
    return p->entry.rank == 0 &&
           p->entry.role == (c->o.n_servers > 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER);
}

static bool all_others_gone(const ps_coordinator *c, const ps_coord_peer *self)
{
    for (int i = 0; i < c->n_peers; i++)
        if (&c->peers[i] != self && !c->peers[i].gone) return false;
    return true;
}

/* Answers the members that may leave now: all once the workers are done, and the member
 * that hosts this thread when nobody needs it any more. */
static void answer_leavers(ps_coordinator *c)
{
    if (c->state != PS_COORD_ENDED) return;
    for (int i = 0; i < c->n_peers; i++) {
        ps_coord_peer *p = &c->peers[i];
        if (!p->leaving || (is_host(c, p) && !all_others_gone(c, p))) continue;
        p->leaving = false;
        ps_control m = {.kind = PS_CONTROL_DONE, .request = p->leave_request};
        ps_coord_send(c, p, &m);
    }
}

void ps_coord_set_gone(ps_coordinator *c, ps_coord_peer *p)
{
    p->gone = true;
    ps_coord_board_forget(c->board, &p->secret);
    const bool is_last = c->state == PS_COORD_ENDED && workers_have_gone(c);
    for (int i = 0; i < c->n_peers && is_last; i++)
        ps_coord_tell_state(c, &c->peers[i]);
    answer_leavers(c);
}

static void check_end(ps_coordinator *c)
{
    if (c->state != PS_COORD_RUNNING) return;
    for (int i = 0; i < c->n_peers; i++)
        if (c->peers[i].entry.role == PS_ROLE_WORKER && !c->peers[i].left) return;
    c->state = PS_COORD_ENDED;
    ps_job_view_set_state(c->o.view, PS_VIEW_ENDED, "");
    PS_INFO("end", "workers=%d", c->n_workers);
    for (int i = 0; i < c->n_peers; i++)
        ps_coord_tell_state(c, &c->peers[i]);
}

void ps_coord_on_leave(ps_coordinator *c, ps_coord_peer *p, const ps_control *m)
{
    p->leaving = true;
    p->leave_request = m->request;
    p->leave_ms = m->timeout_ms;
    p->leave_deadline = ps_deadline_in_ms(m->timeout_ms);
    c->next_look_ns = 0;
    if (!p->left && p->entry.role == PS_ROLE_WORKER)
        ps_coord_board_worker_left(c->board, p->entry.rank);
    p->left = true;
    check_end(c);
    answer_leavers(c);
}

/* Once all workers have left, only goodbyes are missing: nothing is lost. */
static void leave_timeout(ps_coordinator *c, ps_coord_peer *p)
{
    char names[512] = "";
    size_t used = 0;
    for (int i = 0; i < c->n_peers && used < sizeof names - 1; i++) {
        const ps_coord_peer *q = &c->peers[i];
        bool awaited = c->state == PS_COORD_ENDED
                           ? !q->gone && q != p
                           : !q->left && q->entry.role == PS_ROLE_WORKER;
        if (!awaited) continue;
        char name[128];
        ps_coord_describe(q, name, sizeof name);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name);
        used = strlen(names);
    }
    p->leaving = false;
    if (c->state == PS_COORD_ENDED) {
        PS_WARN("end", "no_goodbye_of=\"%s\" after_ms=%" PRIu64, names, p->leave_ms);
        ps_control m = {.kind = PS_CONTROL_DONE, .request = p->leave_request};
        ps_coord_send(c, p, &m);
        return;
    }
    const ps_coord_sender to = {.id = p->id, .member = p};
    ps_coord_send_fail(c, &to, p->leave_request,
                       ps_err_set(PS_ERR_TIMEOUT, "leaving: not ended within %.1f s: %s",
                                  (double)p->leave_ms * 1e-3, names));
}

void ps_coord_expire_leaves(ps_coordinator *c)
{
    for (int i = 0; i < c->n_peers; i++)
        if (c->peers[i].leaving && ps_deadline_passed(c->peers[i].leave_deadline))
            leave_timeout(c, &c->peers[i]);
}
