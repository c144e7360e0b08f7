#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "mem.h"
#include "ps_comm_state.h"
#include "rows_body.h"

/* Beside the chunks' window: a shard returns each piece at once. */
enum { ROWS_WINDOW = 2 * PS_WIRE_PIECE_BYTES };

/* ---- the main thread ---- */

void ps_comm_rows_open(ps_comm *c)
{
    const ps_roster *roster = ps_member_roster(c->o.member);
    const ps_exchange_settings *x = &c->o.settings;
    bool here = false;
    for (int s = 0; s < roster->n_servers; s++)
        here |= ps_roster_same_host(&roster->workers[c->o.rank], &roster->servers[s]);
    if (!c->o.rows || !here || x->shm == PS_SWITCH_OFF || c->o.params->fd < 0 ||
        x->codec.codec != PS_CODEC_NONE)
        return;
    if (ps_shared_mem_init_sparse(&c->row_memory, PS_ROWS_ARENA_BYTES, "rows") != PS_OK)
        PS_WARN("shm", "reason=\"%s\" rows=tcp", ps_err_message());
}

void *ps_comm_rows_arena(const ps_comm *c, uint32_t shard)
{
    return c->links[shard].shm ? c->row_memory.base : NULL;
}

/* One for each call that is not answered: there is a free one. */
static ps_err comm_rows_put(ps_comm *c, uint32_t shard, uint32_t call, int kind,
                            uint64_t step, const ps_exchange_body *body,
                            ps_exchange_body *answer)
{
    ps_comm_link *l = &c->links[shard];
    const uint64_t number = l->rows.given + 1;
    ps_comm_rows_message *m = l->rows.messages;
    while (atomic_load(&m->waits))
        m++;
    m->kind = kind;
    m->step = step;
    m->number = number;
    m->call = call;
    m->body = *body;
    m->answer = answer;
    m->sent = m->got = 0;
    atomic_store(&m->waits, true);
    l->rows.given = number;
    return ps_command_queue_put(&c->commands,
                                (ps_command){.kind = (uint8_t)kind, .chunk = shard});
}

ps_err ps_comm_rows_send(ps_comm *c, int kind, uint64_t step,
                         const ps_exchange_body *bodies, ps_exchange_body *answers,
                         uint64_t *sent)
{
    uint32_t n = 0, call = 0;
    PS_TRY(ps_comm_check(c));
    while (call < PS_COMM_ROWS_MESSAGES && atomic_load(&c->rows_calls[call].unanswered))
        call++;
    if (call == PS_COMM_ROWS_MESSAGES)
        return ps_err_set(PS_ERR_INTERNAL, "%d calls for rows are on the way", call);
    *sent = c->rows_calls[call].number = ++c->n_rows_calls;
    c->rows_calls[call].ahead_of = kind == PS_MSG_PULL_ROWS ? step : 0;
    if (kind == PS_MSG_RETURN_ROWS) c->rows_pushed = 0; // and a step begins anew
    if (kind == PS_MSG_PUSH_ROWS) c->rows_pushed = step + 1;
    for (uint32_t i = 0; i < c->n_links; i++) {
        n += bodies[i].n > 0;
        ps_counter_add(&c->shm_sent, bodies[i].shared);
        ps_counter_add(&c->raw_bytes, bodies[i].saved);
        if (answers) ps_counter_add(&c->shm_received, answers[i].shared);
    }
    atomic_store(&c->rows_calls[call].unanswered, n);
    for (uint32_t i = 0; i < c->n_links; i++)
        if (bodies[i].n > 0)
            PS_TRY(comm_rows_put(c, i, call, kind, step, &bodies[i],
                                 answers ? &answers[i] : NULL));
    ps_command_queue_wake(&c->commands);
    return PS_OK;
}

/* All: except pulls of a step whose turn comes only after another push. */
bool ps_comm_rows_are_answered(const ps_comm *c, uint64_t sent)
{
    for (int i = 0; i < PS_COMM_ROWS_MESSAGES; i++)
        if ((sent == PS_EXCHANGE_ROWS_ALL ? c->rows_calls[i].ahead_of <= c->rows_pushed
                                          : c->rows_calls[i].number == sent) &&
            atomic_load(&c->rows_calls[i].unanswered) > 0)
            return false;
    return true;
}

uint32_t ps_comm_rows_late_shard(const ps_comm *c)
{
    for (uint32_t i = 0; i < c->n_links; i++)
        for (int k = 0; k < PS_COMM_ROWS_MESSAGES; k++)
            if (atomic_load(&c->links[i].rows.messages[k].waits)) return i;
    return 0;
}

/* ---- the communication thread ---- */

void ps_comm_rows_later(ps_comm *c, uint32_t shard)
{
    c->links[shard].rows.taken++;
}

/* The oldest message that is not sent to its end; NULL: none. */
static ps_comm_rows_message *comm_rows_next(ps_comm_link *l)
{
    ps_comm_rows_message *next = NULL;
    for (int k = 0; k < PS_COMM_ROWS_MESSAGES; k++) {
        ps_comm_rows_message *m = &l->rows.messages[k];
        if (atomic_load(&m->waits) && m->number <= l->rows.taken && m->sent < m->body.n &&
            (!next || m->number < next->number))
            next = m;
    }
    return next;
}

ps_err ps_comm_rows_send_piece(ps_comm *c, ps_comm_link *l, bool *any)
{
    ps_comm_rows_message *m = l->open ? comm_rows_next(l) : NULL;
    if (!m) return PS_OK;
    const uint64_t left = m->body.n - m->sent;
    const uint64_t bytes = left < PS_WIRE_PIECE_BYTES ? left : PS_WIRE_PIECE_BYTES;
    if (l->on_the_way > 0 && l->on_the_way + bytes > l->credit.window + ROWS_WINDOW)
        return PS_OK;
    ps_wire_header h = ps_comm_header(c, m->kind);
    h.step = m->step;
    h.count = m->body.n;
    h.rows.number = m->number;
    h.rows.at = m->sent;
    uint64_t sent = 0;
    // Copied: its bytes are the caller's again when the answer is here.
    PS_TRY(ps_wire_send(l->socket, NULL, 0, &h, (uint8_t *)m->body.bytes + m->sent, bytes,
                        PS_WIRE_COPY, &sent));
    c->items[l - c->links].idle = false;
    ps_counter_add(&c->bytes_sent, sent);
    ps_counter_add(&c->raw_bytes, sent);
    l->on_the_way += bytes;
    m->sent += bytes;
    *any = true;
    return PS_OK;
}

uint32_t ps_comm_rows_repeat(ps_comm_link *l)
{
    uint32_t n = 0;
    for (int k = 0; k < PS_COMM_ROWS_MESSAGES; k++) {
        ps_comm_rows_message *m = &l->rows.messages[k];
        if (!atomic_load(&m->waits) || m->number > l->rows.taken) continue;
        m->sent = m->got = 0;
        n++;
    }
    return n;
}

static ps_err comm_rows_bad(const ps_wire_header *h)
{
    return ps_err_set(PS_ERR_PROTOCOL,
                      "rows of message %" PRIu64 " that do not fit (byte %" PRIu64
                      " of %" PRIu64 ")",
                      h->rows.number, h->rows.at, h->count);
}

/* Memory for an answer whose size is not known before. */
static ps_err comm_rows_room(ps_comm_rows_message *m, const ps_wire_header *h)
{
    if (!m->answer) return h->count == 0 ? PS_OK : comm_rows_bad(h);
    if (h->rows.at > 0 || !m->answer->grows)
        return m->answer->n == h->count ? PS_OK : comm_rows_bad(h);
    if (h->count > m->answer->most) return comm_rows_bad(h);
    free(m->answer->bytes);
    m->answer->n = h->count;
    return ps_mem_zalloc(&m->answer->bytes, h->count, 1, "rows");
}

ps_err ps_comm_rows_take(ps_comm *c, ps_comm_link *l, const ps_wire_header *h,
                         ps_wire_frames *f)
{
    ps_comm_rows_message *m = NULL;
    const uint64_t bytes = f->has_payload ? zmq_msg_size(&f->payload) : 0;
    if (h->rows.number == 0 || h->rows.number > l->rows.taken) return comm_rows_bad(h);
    // Of a new connection before its READY: what is not answered comes again.
    if (!l->open) return PS_OK;
    for (int k = 0; k < PS_COMM_ROWS_MESSAGES; k++)
        if (atomic_load(&l->rows.messages[k].waits) &&
            l->rows.messages[k].number == h->rows.number)
            m = &l->rows.messages[k];
    if (!m) return PS_OK; // the answer to a repetition
    if (h->rows.at == 0) m->got = 0;
    PS_TRY(comm_rows_room(m, h));
    if (h->rows.at != m->got || bytes > h->count - m->got) {
        PS_TRY(ps_comm_mend_news(c, l)); // what is before it may be lost with a connection
        return l->open ? comm_rows_bad(h) : PS_OK;
    }
    if (bytes > 0)
        memcpy((uint8_t *)m->answer->bytes + m->got, zmq_msg_data(&f->payload), bytes);
    m->got += bytes;
    if (m->got < h->count) return PS_OK;
    const uint32_t call = m->call; // another message may take its memory now
    atomic_store(&m->waits, false);
    atomic_fetch_sub(&c->rows_calls[call].unanswered, 1);
    return PS_OK;
}
