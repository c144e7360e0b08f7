#include "coord_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "mem.h"

static bool make_frame(zmq_msg_t *out, const ps_control *m)
{
    if (ps_control_frame(out, m) == PS_OK) return true;
    PS_ERROR("answer", "kind=%s error=\"%s\"", ps_control_kind_name((int)m->kind),
             ps_err_message());
    return false;
}

/* *bytes: how many were sent. */
static void send_on(void *router, const void *id, size_t id_bytes, const ps_control *m,
                    uint64_t *bytes)
{
    zmq_msg_t parts[2];
    *bytes = 0;
    if (!make_frame(&parts[1], m)) return;
    if (ps_zsock_msg_copy(&parts[0], id, id_bytes) != PS_OK) {
        zmq_msg_close(&parts[1]);
        return;
    }
    size_t n = zmq_msg_size(&parts[1]);
    // A peer that is not connected is noticed by its silence.
    const ps_deadline now = {0};
    if (ps_zsock_send(router, now, parts, 2) == PS_OK)
        *bytes = n;
    else
        PS_DEBUG("answer", "error=\"%s\"", ps_err_message());
}

uint64_t ps_coord_backlog(const ps_coord_peer *p)
{
    ps_zsock_counts n;
    if (p->fd < 0) return p->queued_bytes;
    if (!ps_zsock_count(p->fd, &n) || n.acknowledged > p->queued_bytes) return 0;
    return p->queued_bytes - n.acknowledged;
}

void ps_coord_send_to(ps_coordinator *c, const ps_coord_sender *to, ps_control *m)
{
    uint64_t bytes;
    m->nonce = c->nonce;
    if (ps_control_id_link(&to->id) != 0) {
        send_on(c->router, to->id.bytes, sizeof to->id.bytes, m, &bytes); // short
        return;
    }
    // The bound may be exceeded by one value, the last that was let through.
    if (ps_coord_backlog(to->member) > PS_COORD_BACKLOG_MAX) {
        PS_DEBUG("answer", "error=\"it takes nothing\"");
        return;
    }
    send_on(c->router, to->id.bytes, sizeof to->id.bytes, m, &bytes);
    to->member->queued_bytes += bytes;
}

void ps_coord_send(ps_coordinator *c, ps_coord_peer *p, ps_control *m)
{
    const ps_coord_sender to = {.id = p->id, .member = p};
    ps_coord_send_to(c, &to, m);
}

void ps_coord_send_at_door(ps_coordinator *c, const void *id, size_t id_bytes,
                           const ps_control *m)
{
    zmq_msg_t frame;
    if (!c->door) return; // a coordinator without sockets, as tests/fuzz has it
    if (make_frame(&frame, m) && ps_door_send(c->door, id, id_bytes, &frame) != PS_OK)
        PS_DEBUG("answer", "error=\"%s\"", ps_err_message());
}

void ps_coord_send_fail(ps_coordinator *c, const ps_coord_sender *to, uint64_t request,
                        ps_err code)
{
    ps_control m = {.kind = PS_CONTROL_FAIL, .request = request};
    m.code = (uint64_t)code;
    ps_control_set_text(&m, ps_err_message());
    ps_coord_send_to(c, to, &m);
}

void ps_coord_complain(ps_coordinator *c, const ps_coord_sender *from, uint64_t request,
                       ps_err code)
{
    char who[128];
    ps_coord_describe(from->member, who, sizeof who);
    if (!from->member->complained)
        PS_WARN("bad_message", "from=\"%s\" error=\"%s\"", who, ps_err_message());
    from->member->complained = true;
    ps_coord_send_fail(c, from, request, code);
}

void ps_coord_drop_stranger(const char *what)
{
    PS_WARN_FEW("stranger", "reason=\"%s\"", what);
}

void ps_coord_describe(const ps_coord_peer *p, char *out, size_t cap)
{
    snprintf(out, cap, "%s %d (host %s)", ps_role_name(p->entry.role), p->entry.rank,
             p->entry.host);
}

/* --- finding a member ------------------------------------------------------------- */

/* Secrets are random: their first bytes are as good as a hash. Both start with them. */
static size_t home_of(const ps_coord_index *index, const uint8_t *secret)
{
    uint32_t first;
    memcpy(&first, secret, sizeof first);
    return first & (index->n - 1);
}

ps_err ps_coord_index_init(ps_coord_index *index, int n_members)
{
    index->n = 4;
    while (index->n < 2 * (size_t)n_members)
        index->n *= 2;
    return PS_NEW(&index->places, index->n, "coordinator");
}

void ps_coord_index_fini(ps_coord_index *index)
{
    free(index->places);
    *index = (ps_coord_index){0};
}

void ps_coord_index_renew(ps_coordinator *c)
{
    ps_coord_index *index = &c->index;
    memset(index->places, 0, index->n * sizeof *index->places);
    for (int i = 0; i < c->n_peers; i++) {
        size_t at = home_of(index, c->peers[i].secret.bytes);
        while (index->places[at])
            at = (at + 1) & (index->n - 1);
        index->places[at] = i + 1;
    }
}

ps_coord_peer *ps_coord_index_find(ps_coordinator *c, const ps_control_id *id)
{
    const ps_coord_index *index = &c->index;
    size_t at = home_of(index, id->bytes);
    for (; index->places[at]; at = (at + 1) & (index->n - 1)) {
        ps_coord_peer *p = &c->peers[index->places[at] - 1];
        if (ps_control_id_is_of(id, &p->secret)) return p;
    }
    return NULL;
}
