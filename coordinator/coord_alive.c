#include "coord_alive.h"

#include <stdio.h>

#include "coord_admission.h"
#include "coord_back.h"
#include "coord_end.h"
#include "log.h"

enum {
    HALF_OPEN_MS = 5000,       // for an admitted process to come
    AWAY_AT_THE_END_MS = 3000, // for one that takes a dead worker's place
};

/* A connection that was given up because of silence is not noted: if the silence lasts,
 * that ends the job. */
void ps_coord_note_closed(ps_coordinator *c, int fd)
{
    uint64_t now = ps_clock_awake_ns();
    for (int i = 0; i < c->n_peers; i++) {
        ps_coord_peer *p = &c->peers[i];
        if (p->fd != fd) continue;
        uint64_t silent_ms = now > p->heard_ns ? (now - p->heard_ns) / 1000000u : 0;
        if (p->lost_ns == 0 && silent_ms < c->silence_ms / 2) p->lost_ns = now;
        p->fd = -1;
        p->queued_bytes = 0;
    }
}

typedef struct death {
    char why[128];
    bool silent; // it may be stopped, and come back
} death;

/* Returns whether the peer is dead. */
static bool is_dead(const ps_coordinator *c, const ps_coord_peer *p, uint64_t now,
                    death *d)
{
    const uint64_t grace_ms = ps_coordinator_grace_ms(c->o.heartbeat_ms, c->o.recovers);
    uint64_t silent_ms = now > p->heard_ns ? (now - p->heard_ns) / 1000000u : 0;
    d->silent = false;
    const uint64_t away_ms = ps_coord_ends(c) && c->o.dead_after_ms > AWAY_AT_THE_END_MS
                                 ? AWAY_AT_THE_END_MS
                                 : c->o.dead_after_ms;
    if (p->away && silent_ms <= away_ms) return false;
    if (p->away)
        snprintf(d->why, sizeof d->why, "no process has taken its place for %.1f s",
                 (double)silent_ms * 1e-3);
    else if (p->lost_ns && now > p->lost_ns && now - p->lost_ns > grace_ms * 1000000u)
        snprintf(d->why, sizeof d->why,
                 "its connection closed and it did not say goodbye");
    else if (!p->here && silent_ms > HALF_OPEN_MS)
        snprintf(d->why, sizeof d->why, "it was admitted and did not come");
    else if ((d->silent = silent_ms > c->o.dead_after_ms))
        snprintf(d->why, sizeof d->why, "no sign of life for %.1f s",
                 (double)silent_ms * 1e-3);
    else
        return false;
    return true;
}

static void on_death(ps_coordinator *c, ps_coord_peer *p, const death *d)
{
    char who[128], reason[PS_CONTROL_TEXT_MAX];
    const bool needed = c->state == PS_COORD_RUNNING && !p->left;
    if (needed && ps_coord_lose(c, p, d->why)) return;
    if (d->silent && (needed || c->state == PS_COORD_JOINING))
        PS_INFO("silent", "role=%s rank=%d", ps_role_name(p->entry.role), p->entry.rank);
    if (needed) {
        ps_coord_describe(p, who, sizeof who);
        snprintf(reason, sizeof reason, "%s is dead: %s", who, d->why);
        p->gone = true;
        ps_coord_abort(c, PS_ERR_PEER, reason);
    } else if (c->state == PS_COORD_JOINING) {
        ps_coord_drop_peer(c, p, d->why);
    } else {
        ps_coord_set_gone(c, p);
    }
}

void ps_coord_check_alive(ps_coordinator *c)
{
    uint64_t now = ps_clock_awake_ns();
    // After a pause, silence proves nothing yet (the clock leaves out long ones).
    bool paused = now - c->last_round_ns > c->o.dead_after_ms * 1000000u / 2;
    c->last_round_ns = now;
    for (int i = c->n_peers - 1; i >= 0; i--) {
        ps_coord_peer *p = &c->peers[i];
        death d;
        if (paused) p->heard_ns = now;
        if (!p->gone && is_dead(c, p, now, &d)) on_death(c, p, &d);
    }
}

bool ps_coord_beat(ps_coordinator *c)
{
    uint64_t now = ps_clock_awake_ns();
    if (now < c->next_beat_ns) return false;
    c->next_beat_ns = now + c->o.heartbeat_ms * 1000000u;
    if (c->state == PS_COORD_JOINING) {
        ps_coord_send_wait(c, NULL);
        return false;
    }
    for (int i = 0; i < c->n_peers; i++) {
        ps_coord_peer *p = &c->peers[i];
        ps_control m = {.kind = PS_CONTROL_HEARTBEAT};
        if (p->here && !p->gone && c->state != PS_COORD_ABORTED) ps_coord_send(c, p, &m);
    }
    return true;
}
