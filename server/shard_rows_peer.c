#include "shard_rows_peer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

void ps_rows_spare_fini(ps_rows_spare *spare)
{
    for (int i = 0; i < spare->n; i++)
        free(spare->of[i].body);
}

void ps_rows_message_free(ps_rows_spare *spare, ps_rows_message *m)
{
    if (m->body && spare->n < PS_ROWS_SPARE_MOST)
        spare->of[spare->n++] = (ps_rows_message){.body = m->body, .room = m->room};
    else
        free(m->body);
    *m = (ps_rows_message){0};
}

ps_err ps_rows_message_room(ps_rows_message *m, uint64_t room)
{
    if (room <= m->room) return PS_OK;
    uint8_t *more = realloc(m->body, room);
    if (!more)
        return ps_err_set(PS_ERR_NOMEM, "no memory for %" PRIu64 " bytes of rows", room);
    m->body = more;
    m->room = room;
    return PS_OK;
}

ps_err ps_rows_message_add(ps_rows_spare *spare, ps_rows_message *m,
                           const ps_wire_header *h, ps_wire_frames *f)
{
    const uint64_t bytes = zmq_msg_size(&f->payload);
    if (h->rows.at == 0) {
        if (!m->body && spare->n > 0) {
            m->body = spare->of[--spare->n].body;
            m->room = spare->of[spare->n].room;
        }
        m->kind = h->kind;
        m->number = h->rows.number;
        m->step = h->step;
        m->bytes = h->count;
        m->got = 0;
    }
    if (m->kind != h->kind || m->number != h->rows.number || m->step != h->step ||
        m->bytes != h->count || m->got != h->rows.at) {
        m->kind = 0; // those before it were lost with a connection: the body comes again
        m->got = 0;
        m->bytes = 1;
        return PS_OK;
    }
    if (m->got + bytes > m->room) {
        const uint64_t room =
            2 * m->got + bytes < m->bytes ? 2 * m->got + bytes : m->bytes;
        PS_TRY(ps_rows_message_room(m, room));
    }
    memcpy(m->body + m->got, zmq_msg_data(&f->payload), bytes);
    m->got += bytes;
    return PS_OK;
}

ps_rows_message ps_rows_peer_take_first(ps_rows_peer *p)
{
    const ps_rows_message m = p->waiting[0];
    p->n_waiting--;
    memmove(p->waiting, p->waiting + 1, (size_t)p->n_waiting * sizeof *p->waiting);
    p->handled = m.number;
    return m;
}

ps_err ps_rows_peer_keep_pull(ps_rows_peer *p, ps_rows_message *m)
{
    PS_TRY(ps_mem_room(&p->pulls, p->n_pulls, &p->pulls_room, sizeof *p->pulls,
                       "requests for rows"));
    p->pulls[p->n_pulls++] = *m;
    *m = (ps_rows_message){0};
    return PS_OK;
}

ps_rows_ahead *ps_rows_peer_early(const ps_rows_peer *p, uint64_t number)
{
    for (uint32_t i = 0; i < p->n_early; i++)
        if (p->early[i].m.number == number) return &p->early[i];
    return NULL;
}

void ps_rows_peer_forget_early(ps_rows_spare *spare, ps_rows_peer *p)
{
    for (uint32_t i = 0; i < p->n_early; i++) {
        ps_rows_early_fini(&p->early[i].rows);
        ps_rows_message_free(spare, &p->early[i].m);
    }
    p->n_early = 0;
}

void ps_rows_peer_end_step(ps_rows_spare *spare, ps_rows_peer *p)
{
    for (uint32_t i = 0; i < p->n_pulls; i++)
        ps_rows_message_free(spare, &p->pulls[i]);
    p->n_pulls = 0;
    ps_rows_message_free(spare, &p->push);
}

void ps_rows_peer_fini(ps_rows_spare *spare, ps_rows_peer *p)
{
    ps_rows_peer_end_step(spare, p);
    ps_rows_peer_forget_early(spare, p);
    free(p->early);
    free(p->pulls);
    ps_rows_message_free(spare, &p->coming);
    for (int k = 0; k < p->n_waiting; k++)
        ps_rows_message_free(spare, &p->waiting[k]);
}
