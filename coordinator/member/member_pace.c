/* A member and the pace of its job's steps: it tells the coordinator, and keeps the name
 * of the straggler that the coordinator tells. */
#include "member_state.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"

enum {
    MOST_PACES = 64, // that wait to be told
    SILENT_MS = 200  // of the coordinator, beyond two heartbeats, until it is missed
};

void ps_member_pace_init(ps_member *m, const ps_member_options *o)
{
    m->names_straggler = o->n_servers > 0 && ps_config_names_straggler(o->config);
    m->watches_stalls = m->names_straggler && !ps_roster_one_host(&m->joined.roster);
    m->last_pace = &m->paces;
}

bool ps_member_tells_pace(const ps_member *m)
{
    return m && m->names_straggler && atomic_load(&m->knows_clock);
}

double ps_member_time_ns(const ps_member *m, uint64_t now_ns)
{
    return (double)((int64_t)now_ns + atomic_load(&m->ahead_ns));
}

void ps_member_pace(ps_member *m, uint64_t step, unsigned part, const double *values,
                    size_t n)
{
    ps_member_pace_note *p = malloc(sizeof *p + n * sizeof *values);
    if (!p) return;
    p->next = NULL;
    p->step = step;
    p->part = part;
    p->n = n;
    memcpy(p->values, values, n * sizeof *values);
    pthread_mutex_lock(&m->lock);
    const bool room = m->n_paces < MOST_PACES;
    if (room) {
        *m->last_pace = p;
        m->last_pace = &p->next;
        m->n_paces++;
    }
    pthread_mutex_unlock(&m->lock);
    if (room)
        ps_event_set(&m->wake);
    else
        free(p);
}

static ps_member_pace_note *take_paces(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    ps_member_pace_note *first = m->paces;
    m->paces = NULL;
    m->last_pace = &m->paces;
    m->n_paces = 0;
    pthread_mutex_unlock(&m->lock);
    return first;
}

void ps_member_pace_send(ps_member *m)
{
    for (ps_member_pace_note *p = take_paces(m), *next; p; p = next) {
        ps_control c = {.kind = PS_CONTROL_PACE,
                        .nonce = m->joined.roster.nonce,
                        .value = p->values,
                        .bytes = p->n * sizeof *p->values};
        c.pace.step = p->step;
        c.pace.part = p->part;
        c.pace.stall = ps_stall_share(&m->stall, ps_clock_ns());
        if (atomic_load(&m->down_ns) == 0 &&
            ps_control_send(m->joined.dealer, &c) != PS_OK)
            PS_DEBUG("send", "error=\"%s\"", ps_err_message());
        next = p->next;
        free(p);
    }
}

ps_straggler ps_member_straggler(ps_member *m)
{
    ps_straggler s = {.cause = PS_STRAGGLER_NONE};
    if (!m) return s;
    pthread_mutex_lock(&m->lock);
    s = m->straggler;
    pthread_mutex_unlock(&m->lock);
    return s;
}

void ps_member_set_straggler(ps_member *m, uint64_t cause, uint64_t role, uint64_t rank)
{
    if (cause >= PS_STRAGGLER_CAUSES || role >= PS_ROLE_COUNT || rank > PS_MAX_RANKS)
        return;
    pthread_mutex_lock(&m->lock);
    m->straggler = (ps_straggler){
        .cause = (ps_straggler_cause)cause, .role = (ps_role)role, .rank = (int)rank};
    pthread_mutex_unlock(&m->lock);
}

void ps_member_pace_fini(ps_member *m)
{
    for (ps_member_pace_note *p = take_paces(m), *next; p; p = next) {
        next = p->next;
        free(p);
    }
}

void ps_member_note_silence(ps_member *m, uint64_t silent_ms)
{
    const bool silent = silent_ms > 2 * m->heartbeat_ms + SILENT_MS;
    if (!m->names_straggler || silent == m->misses_coordinator) return;
    m->misses_coordinator = silent;
    ps_member_set_straggler(m, silent ? PS_STRAGGLER_STOPPED : PS_STRAGGLER_NONE,
                            PS_ROLE_SERVER, 0);
}

int ps_member_poll_ms(ps_member *m)
{
    uint64_t now = ps_clock_awake_ns();
    int ms = m->next_beat_ns > now ? (int)((m->next_beat_ns - now) / 1000000u) + 1 : 0;
    if (m->lost_ns && ms > 50) ms = 50;
    if (!m->watches_stalls || !ps_member_tells_pace(m)) return ms;
    const int stall_ms = ps_stall_awake(&m->stall, ps_clock_ns());
    return stall_ms < ms ? stall_ms : ms;
}
