#include "link_traffic.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* Pieces of a link in one direction before the other one's turn: those that were just
 * written are still in the caches. */
enum { TURN_PIECES = 4 };

/* One that has begun to come. */
typedef struct link_message {
    ps_link_head first;
    uint64_t got;
    ps_flow *to;   // NULL: nobody waits for it yet, or nobody wants it (refused)
    uint8_t *kept; // owned; while nobody waits for it
    bool refused;
    struct link_message *next;
} link_message;

/* Instead of a message of a call that was refused. */
typedef struct link_notice {
    ps_link_head head; // of no bytes
    struct link_notice *next;
} link_notice;

typedef struct link_end {
    ps_link *link; // NULL: this worker itself
    ps_flow *sends;
    link_notice *notices;   // owned; they go before the sends
    link_message *messages; // in the order in which they began
    uint64_t n_sent;        // messages
} link_end;

struct ps_traffic {
    ps_traffic_events events;
    int n;
    link_end *ends;
    ps_flow *posted; // in the order of posting; no message of theirs has begun
};

/* ---- lists ---- */

static void flow_append(ps_flow **list, ps_flow *f)
{
    f->next = NULL;
    while (*list)
        list = &(*list)->next;
    *list = f;
}

static void flow_remove(ps_flow **list, const ps_flow *f)
{
    while (*list && *list != f)
        list = &(*list)->next;
    if (*list) *list = f->next;
}

static void flow_forget(ps_flow **list, const void *of)
{
    while (*list)
        if ((*list)->of == of)
            *list = (*list)->next;
        else
            list = &(*list)->next;
}

static void message_remove(link_end *end, link_message *m)
{
    link_message **at = &end->messages;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    free(m->kept);
    free(m);
}

/* ---- sending ---- */

void ps_traffic_send(ps_traffic *t, ps_flow *f)
{
    flow_append(&t->ends[f->rank].sends, f);
}

/* Of the next piece of f; -1: it is not there yet. */
static int64_t flow_piece_bytes(const ps_flow *f)
{
    const uint64_t left = f->total - f->moved;
    const uint64_t n = left < PS_LINK_PIECE ? left : PS_LINK_PIECE;
    return f->ready && *f->ready < f->moved + n ? -1 : (int64_t)n;
}

static ps_err send_piece(ps_traffic *t, link_end *end, ps_flow *f, uint32_t n, bool *sent)
{
    uint8_t *room = end->link->ops->room(end->link, n);
    *sent = room != NULL;
    if (!room) return PS_OK;
    if (f->moved == 0) f->number = ++end->n_sent;
    const ps_link_head h = {.comm = f->comm,
                            .tag = f->tag,
                            .message = f->number,
                            .total = f->total,
                            .offset = f->moved,
                            .bytes = n,
                            .call = f->call,
                            .key = f->key};
    if (n) memcpy(room, f->at + f->moved, n);
    PS_TRY(end->link->ops->put(end->link, &h));
    f->moved += n;
    t->events.moving(t->events.owner, f);
    if (f->moved < f->total) return PS_OK;
    flow_remove(&end->sends, f);
    t->events.over(t->events.owner, f);
    return PS_OK;
}

/* The first message of which a piece is there: others may wait for what this one brings.
 * Results come before what is sent anew: they are still in the caches. */
static ps_flow *sendable(const link_end *end, uint32_t *bytes)
{
    ps_flow *first = NULL;
    for (ps_flow *f = end->sends; f && !(first && first->ready); f = f->next)
        if ((!first || f->ready) && flow_piece_bytes(f) >= 0) first = f;
    if (first) *bytes = (uint32_t)flow_piece_bytes(first);
    return first;
}

static ps_err send_notices(link_end *end, bool *moved)
{
    for (link_notice *n; (n = end->notices) && end->link->ops->room(end->link, 0);) {
        n->head.message = ++end->n_sent;
        PS_TRY(end->link->ops->put(end->link, &n->head));
        end->notices = n->next;
        free(n);
        *moved = true;
    }
    return PS_OK;
}

static ps_err send_pieces(ps_traffic *t, link_end *end, bool *moved)
{
    PS_TRY(send_notices(end, moved));
    for (int i = 0; i < TURN_PIECES; i++) {
        uint32_t n = 0;
        ps_flow *f = sendable(end, &n);
        bool sent = false;
        if (f) PS_TRY(send_piece(t, end, f, n, &sent));
        if (!sent) break;
        *moved = true;
    }
    return PS_OK;
}

/* ---- what comes finds its place ---- */

static bool flow_is_of(const ps_flow *f, int rank)
{
    for (int i = 0; f->rank < 0 && i < f->n_ranks; i++)
        if (f->ranks[i] == rank) return true;
    return f->rank == rank;
}

static bool flow_matches(const ps_flow *f, int rank, const ps_link_head *h)
{
    return f->comm == h->comm && f->tag == h->tag && f->key == h->key &&
           flow_is_of(f, rank);
}

/* Gives bytes that have come to the flow. */
static void flow_take(ps_traffic *t, ps_flow *f, const uint8_t *bytes, uint32_t n)
{
    if (f->take)
        f->take(f, bytes, n);
    else if (n)
        memcpy(f->at + f->moved, bytes, n);
    f->moved += n;
    t->events.moving(t->events.owner, f);
}

/* The message is the flow's from now on, or, where it is another one, refused. */
static void message_bind(ps_traffic *t, link_end *end, link_message *m, ps_flow *f)
{
    f->rank = end->link->rank;
    if (m->first.call != f->call || m->first.total != f->total) {
        m->refused = true;
        t->events.refused(t->events.owner, f, m->first.call, m->first.total);
        return;
    }
    m->to = f;
    for (uint64_t at = 0; at < m->got; at += PS_LINK_PIECE) {
        const uint64_t left = m->got - at;
        flow_take(t, f, m->kept + at,
                  (uint32_t)(left < PS_LINK_PIECE ? left : PS_LINK_PIECE));
    }
    free(m->kept);
    m->kept = NULL;
}

static void message_over(ps_traffic *t, link_end *end, link_message *m)
{
    ps_flow *f = m->to;
    if (m->got < m->first.total || (!f && !m->refused)) return;
    message_remove(end, m);
    if (f) t->events.over(t->events.owner, f);
}

/* The oldest message of the link that nobody waits for yet and that f waits for. */
static link_message *message_for(const link_end *end, const ps_flow *f)
{
    link_message *m = end->link ? end->messages : NULL;
    while (m && (m->to || m->refused || !flow_matches(f, end->link->rank, &m->first)))
        m = m->next;
    return m;
}

void ps_traffic_receive(ps_traffic *t, ps_flow *f)
{
    for (int r = 0; r < t->n; r++) {
        link_message *m = message_for(&t->ends[r], f);
        if (!m) continue;
        message_bind(t, &t->ends[r], m, f);
        message_over(t, &t->ends[r], m);
        return;
    }
    flow_append(&t->posted, f);
}

void ps_traffic_look(ps_traffic *t, uint64_t comm, uint64_t tag, uint32_t point_to_point)
{
    for (int r = 0; r < t->n; r++) {
        link_end *end = &t->ends[r];
        for (link_message *m = end->messages, *next; m; m = next) {
            const ps_link_head *h = &m->first;
            next = m->next;
            if (m->to || m->refused || h->comm != comm || h->tag != tag ||
                h->key == point_to_point)
                continue;
            m->refused = t->events.unwanted(t->events.owner, end->link->rank, h);
            message_over(t, end, m);
        }
    }
}

/* ---- receiving ---- */

/* Whether something else is awaited that may stand behind the oldest piece. */
static bool link_is_awaited(const ps_traffic *t, const link_end *end)
{
    for (const ps_flow *f = t->posted; f; f = f->next)
        if (flow_is_of(f, end->link->rank)) return true;
    for (const link_message *m = end->messages; m; m = m->next)
        if (m->to || m->refused) return true;
    return false;
}

static ps_err head_check(const link_end *end, const ps_link_head *h,
                         const link_message *m)
{
    const bool fits = h->bytes <= PS_LINK_PIECE && h->bytes <= h->total &&
                      h->offset <= h->total - h->bytes && h->offset == (m ? m->got : 0) &&
                      (h->bytes == PS_LINK_PIECE || h->offset + h->bytes == h->total) &&
                      (!m || h->total == m->first.total);
    if (fits) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "worker %d sends a piece that fits no message",
                      end->link->rank);
}

/* A message begins. *out NULL: it has to wait. */
static ps_err message_begin(ps_traffic *t, link_end *end, const ps_link_head *h,
                            link_message **out)
{
    ps_flow *f = t->posted;
    link_message *m;
    *out = NULL;
    while (f && !flow_matches(f, end->link->rank, h))
        f = f->next;
    const bool unwanted = !f && t->events.unwanted(t->events.owner, end->link->rank, h);
    if (!f && !unwanted && !link_is_awaited(t, end)) return PS_OK;
    PS_TRY(PS_NEW(&m, 1, "a message"));
    m->first = *h;
    m->refused = unwanted;
    if (!f && !unwanted) {
        const ps_err err = ps_mem_zalloc(&m->kept, h->total, 1, "a message");
        if (err != PS_OK) free(m);
        if (err != PS_OK) return err;
    }
    link_message **at = &end->messages;
    while (*at)
        at = &(*at)->next;
    *at = m;
    *out = m;
    if (!f) return PS_OK;
    flow_remove(&t->posted, f);
    message_bind(t, end, m, f);
    return PS_OK;
}

static ps_err take_piece(ps_traffic *t, link_end *end, bool *taken)
{
    ps_link_head h;
    const uint8_t *bytes;
    *taken = false;
    PS_TRY(end->link->ops->front(end->link, &h, &bytes));
    if (!bytes) return PS_OK;
    link_message *m = end->messages;
    while (m && m->first.message != h.message)
        m = m->next;
    PS_TRY(head_check(end, &h, m));
    if (!m) PS_TRY(message_begin(t, end, &h, &m));
    if (!m) return PS_OK;
    if (m->to)
        flow_take(t, m->to, bytes, h.bytes);
    else if (m->kept)
        memcpy(m->kept + m->got, bytes, h.bytes);
    m->got += h.bytes;
    end->link->ops->drop(end->link);
    *taken = true;
    message_over(t, end, m);
    return PS_OK;
}

ps_err ps_traffic_turn(ps_traffic *t, bool *moved)
{
    for (int r = 0; r < t->n; r++) {
        link_end *end = &t->ends[r];
        if (!end->link) continue;
        PS_TRY(send_pieces(t, end, moved));
        for (int i = 0; i < TURN_PIECES; i++) {
            bool taken;
            PS_TRY(take_piece(t, end, &taken));
            if (!taken) break;
            *moved = true;
        }
    }
    return PS_OK;
}

bool ps_traffic_is_amid(const ps_traffic *t)
{
    for (int r = 0; r < t->n; r++) {
        if (t->ends[r].notices) return true;
        for (const link_message *m = t->ends[r].messages; m; m = m->next)
            if (m->got < m->first.total) return true;
    }
    return false;
}

ps_err ps_traffic_rest(ps_traffic *t)
{
    for (int r = 0; r < t->n; r++) {
        ps_link *l = t->ends[r].link;
        if (l && l->ops->rest) PS_TRY(l->ops->rest(l));
    }
    return PS_OK;
}

/* ---- start and end ---- */

ps_err ps_traffic_tell(ps_traffic *t, const ps_flow *f)
{
    link_notice *notice, **at = &t->ends[f->rank].notices;
    PS_TRY(PS_NEW(&notice, 1, "a message"));
    notice->head =
        (ps_link_head){.comm = f->comm, .tag = f->tag, .call = f->call, .key = f->key};
    while (*at)
        at = &(*at)->next;
    *at = notice;
    return PS_OK;
}

ps_err ps_traffic_tell_unsent(ps_traffic *t, const void *of)
{
    for (int r = 0; r < t->n; r++)
        for (const ps_flow *f = t->ends[r].sends; f; f = f->next)
            if (f->of == of && f->moved == 0) PS_TRY(ps_traffic_tell(t, f));
    return PS_OK;
}

void ps_traffic_forget(ps_traffic *t, const void *of)
{
    flow_forget(&t->posted, of);
    for (int r = 0; r < t->n; r++) {
        link_end *end = &t->ends[r];
        flow_forget(&end->sends, of);
        for (link_message *m = end->messages; m; m = m->next) {
            if (!m->to || m->to->of != of) continue;
            m->to = NULL;
            m->refused = true;
        }
    }
}

ps_err ps_traffic_create(ps_link **links, int n, const ps_traffic_events *events,
                         ps_traffic **out)
{
    ps_traffic *t;
    PS_TRY(PS_NEW(out, 1, "links"));
    t = *out;
    t->events = *events;
    PS_TRY(PS_NEW(&t->ends, (size_t)n, "links"));
    t->n = n;
    for (int r = 0; r < n; r++)
        t->ends[r].link = links[r];
    return PS_OK;
}

void ps_traffic_destroy(ps_traffic **pointer)
{
    ps_traffic *t = *pointer;
    if (!t) return;
    for (int r = 0; r < t->n; r++) {
        link_end *end = &t->ends[r];
        while (end->messages)
            message_remove(end, end->messages);
        for (link_notice *n = end->notices, *next; n; n = next) {
            next = n->next;
            free(n);
        }
        if (end->link) end->link->ops->destroy(end->link);
    }
    free(t->ends);
    free(t);
    *pointer = NULL;
}
