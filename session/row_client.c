#include "row_client.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codec.h"
#include "mem.h"
#include "row_codec.h"
#include "row_set.h"
#include "rows_body.h"
#include "wire.h"

enum {
    LOAD_MOST_BYTES = 4 << 20, // of the rows in one LOAD_ROWS, about
    LINE = 64,                 // bytes: parts begin at multiples of it in the arena
    MOST_AHEAD = 4,            // calls of ps_row_client_prefetch in a step
};

/* The arena has a half for each of two steps: the shards read gradients of a step until
 * it is applied, while the worker looks up the rows of the next one. */
#define ROWS_HALF (PS_ROWS_ARENA_BYTES / 2)

typedef struct rows_bodies {
    ps_exchange_body *of; // by shard
    uint64_t *rooms;      // bytes
} rows_bodies;

/* A lookup of one or more tables. */
typedef struct rows_ticket {
    ps_row_part *parts; // (room) of which n are in use
    int n, room;
    bool in_arena;  // shards that share it find ids there, and put rows there
    bool ahead;     // asked for in the step before, and not looked up yet
    bool in_two;    // asked for in the step before: answers in two parts (rows_body.h)
    bool forgotten; // no gradients follow
    uint64_t sent;  // the number of its messages
    rows_bodies requests, answers;
} rows_ticket;

struct ps_row_client {
    ps_session *session;      // borrowed, as specs
    const ps_row_spec *specs; // (n)
    int n;
    uint32_t n_shards;
    uint64_t step;
    rows_ticket *tickets; // (n_tickets) of the present step
    uint32_t n_tickets, tickets_room;
    uint64_t tickets_before; // of the steps before it
    rows_ticket reading;     // of lookups without gradients
    rows_ticket *ahead;      // (n_ahead) of the next step
    uint32_t n_ahead, ahead_room;
    uint64_t pushed;  // the number of the last push; 0: none
    uint8_t *arena;   // NULL: no shard shares one
    bool *shares;     // by shard
    uint64_t used[2]; // bytes of the arena's halves, by step
    uint32_t *counts; // scratch: (n)
    int *part_of;     // scratch: (n) -1: the table is not looked up
    uint8_t *sorted;  // scratch: a table's rows of an answer in two parts
    uint64_t sorted_room;
    // (n_shards) What is sent, and where answers go. Gradients have memory of their own:
    // a request may follow before they are taken.
    rows_bodies requests, pushes, pages;
};

/* --- opening ----------------------------------------------------------------------- */

static ps_err rows_bodies_make(rows_bodies *b, uint32_t n_shards)
{
    if (b->of) return PS_OK;
    PS_TRY(PS_NEW(&b->of, n_shards, "messages"));
    return PS_NEW(&b->rooms, n_shards, "messages");
}

static ps_err rows_make(ps_row_client *r)
{
    const size_t n = (size_t)r->n, shards = r->n_shards;
    PS_TRY(PS_NEW(&r->counts, n, "embedding tables"));
    PS_TRY(PS_NEW(&r->part_of, n, "embedding tables"));
    PS_TRY(PS_NEW(&r->shares, shards, "embedding tables"));
    PS_TRY(rows_bodies_make(&r->requests, r->n_shards));
    PS_TRY(rows_bodies_make(&r->pushes, r->n_shards));
    return rows_bodies_make(&r->pages, r->n_shards);
}

ps_err ps_row_client_create(ps_session *session, const ps_row_spec *specs, int n,
                            ps_row_client **out)
{
    ps_row_client *r;
    PS_TRY(PS_NEW(&r, 1, "embedding tables"));
    r->session = session;
    r->specs = specs;
    r->n = n;
    r->n_shards = ps_session_plan(session)->n_shards;
    const ps_err err = rows_make(r);
    if (err != PS_OK) ps_row_client_destroy(&r);
    *out = r;
    return err;
}

static void rows_bodies_free(rows_bodies *b, uint32_t n_shards)
{
    for (uint32_t i = 0; b->of && i < n_shards; i++)
        free(b->of[i].bytes);
    free(b->of);
    free(b->rooms);
}

static void rows_ticket_free(rows_ticket *t, uint32_t n_shards)
{
    for (int i = 0; i < t->room; i++)
        ps_row_part_free(&t->parts[i]);
    free(t->parts);
    rows_bodies_free(&t->requests, n_shards);
    rows_bodies_free(&t->answers, n_shards);
    *t = (rows_ticket){0};
}

void ps_row_client_destroy(ps_row_client **client)
{
    ps_row_client *r = *client;
    if (!r) return;
    for (uint32_t i = 0; i < r->tickets_room; i++)
        rows_ticket_free(&r->tickets[i], r->n_shards);
    for (uint32_t i = 0; i < r->ahead_room; i++)
        rows_ticket_free(&r->ahead[i], r->n_shards);
    rows_ticket_free(&r->reading, r->n_shards);
    rows_bodies_free(&r->requests, r->n_shards);
    rows_bodies_free(&r->pushes, r->n_shards);
    rows_bodies_free(&r->pages, r->n_shards);
    free(r->tickets);
    free(r->ahead);
    free(r->counts);
    free(r->part_of);
    free(r->sorted);
    free(r->shares);
    free(r);
    *client = NULL;
}

/* --- memory: grows, and stays for the next step ------------------------------------- */

static ps_err rows_ticket_room(rows_ticket *t, int n)
{
    ps_row_part *more;
    if (n <= t->room) return PS_OK;
    PS_TRY(PS_NEW(&more, (size_t)n, "embedding tables"));
    if (t->room) memcpy(more, t->parts, (size_t)t->room * sizeof *more);
    for (int i = t->room; i < n; i++)
        ps_row_batch_init(&more[i].batch);
    free(t->parts);
    t->parts = more;
    t->room = n;
    return PS_OK;
}

/* --- lookups ----------------------------------------------------------------------- */

static uint64_t rows_take_room(uint64_t *at, uint64_t bytes)
{
    const uint64_t place = *at;
    *at = (place + bytes + LINE - 1) / LINE * LINE;
    return place;
}

/* Gives the parts their places in the arena from *at on, which becomes the end. Without
 * gradients these have none. */
static void rows_place_parts(rows_ticket *t, bool trains, uint64_t *at)
{
    for (int i = 0; i < t->n; i++) {
        ps_row_part *p = &t->parts[i];
        const uint64_t bytes = ps_row_part_bytes(p);
        p->at.ids = rows_take_room(at, p->batch.n_rows * sizeof *p->batch.ids);
        p->at.rows = rows_take_room(at, bytes);
        p->at.grads = trains ? rows_take_room(at, bytes) : p->at.rows;
    }
}

/* Memory for rows and gradients: in the arena, if there is room. */
static ps_err rows_ticket_memory(ps_row_client *r, rows_ticket *t, bool trains,
                                 uint64_t step)
{
    const uint64_t half = step % 2 * ROWS_HALF;
    uint64_t end = half + r->used[step % 2];
    rows_place_parts(t, trains, &end);
    t->in_arena = r->arena && end <= half + ROWS_HALF;
    if (t->in_arena && trains) r->used[step % 2] = end - half;
    for (int i = 0; i < t->n; i++) {
        ps_row_part *p = &t->parts[i];
        if (t->in_arena) {
            p->rows = (float *)(void *)(r->arena + p->at.rows);
            p->grads = (float *)(void *)(r->arena + p->at.grads);
            if (p->batch.n_rows > 0)
                memcpy(r->arena + p->at.ids, p->batch.ids,
                       p->batch.n_rows * sizeof *p->batch.ids);
            continue;
        }
        const uint64_t n = ps_row_part_bytes(p) / sizeof(float);
        PS_TRY(ps_row_room(&p->own_rows, &p->rows_room, n, sizeof *p->own_rows));
        if (trains)
            PS_TRY(ps_row_room(&p->own_grads, &p->grads_room, n, sizeof *p->own_grads));
        p->rows = p->own_rows;
        p->grads = p->own_grads;
    }
    return PS_OK;
}

/* The shard's next message has that many bytes. The one before it in this memory is
 * answered. */
static ps_err rows_body_room(rows_bodies *b, uint32_t shard, uint64_t bytes)
{
    if (bytes > PS_WIRE_BODY_BYTES)
        return ps_err_set(PS_ERR_ARG,
                          "the rows of a step have %" PRIu64
                          " bytes for one shard, at most "
                          "%d: make the batches smaller",
                          bytes, PS_WIRE_BODY_BYTES);
    b->of[shard].n = bytes;
    b->of[shard].shared = b->of[shard].saved = 0;
    return ps_row_room(&b->of[shard].bytes, &b->rooms[shard], bytes, 1);
}

/* Places of the shard's rows, instead of their ids. */
static void rows_write_places(const ps_row_client *r, const rows_ticket *t,
                              uint32_t shard, ps_rows_offsets *to)
{
    memset(to, 0, (size_t)r->n * sizeof *to);
    for (int i = 0; i < t->n; i++) {
        const ps_row_part *p = &t->parts[i];
        const uint64_t first = p->batch.begin[shard], row = p->bags.dim * sizeof(float);
        to[p->table] =
            (ps_rows_offsets){p->at.ids + first * sizeof *p->batch.ids,
                              p->at.rows + first * row, p->at.grads + first * row};
    }
}

/* Bytes of the shard's answer. */
static uint64_t rows_answer_bytes(const ps_row_client *r, bool in_two)
{
    uint64_t n = 0, bytes = 0;
    for (int table = 0; table < r->n; table++) {
        const ps_row_spec *spec = &r->specs[table];
        n += r->counts[table];
        bytes += in_two ? r->counts[table] * ps_row_codec_row_bytes(spec)
                        : ps_row_codec_size(spec, r->counts[table]) * sizeof(float);
    }
    return in_two ? ps_rows_ahead_head(n) + bytes : bytes;
}

static ps_err rows_write_pull(ps_row_client *r, rows_ticket *t, uint32_t shard,
                              bool trains)
{
    ps_exchange_body *body = &t->requests.of[shard];
    const bool shared = t->in_arena && r->shares[shard];
    const uint32_t how = (trains ? PS_ROWS_TRAINS : 0) | (shared ? PS_ROWS_SHARED : 0) |
                         (t->in_two ? PS_ROWS_AHEAD : 0);
    uint64_t n = 0, floats = 0;
    for (int table = 0; table < r->n; table++) {
        const ps_row_part *p =
            r->part_of[table] < 0 ? NULL : &t->parts[r->part_of[table]];
        r->counts[table] = p ? (uint32_t)ps_row_part_at_shard(p, shard) : 0;
        n += r->counts[table];
        floats += (uint64_t)r->counts[table] * r->specs[table].dim;
    }
    const uint64_t head = ps_rows_pull_head((uint32_t)r->n),
                   id_bytes = n * sizeof(uint64_t);
    PS_TRY(rows_body_room(
        &t->requests, shard,
        head + (shared ? (uint64_t)r->n * sizeof(ps_rows_offsets) : id_bytes)));
    ps_rows_pull_write(body->bytes, how, r->counts, (uint32_t)r->n);
    body->shared = shared ? id_bytes : 0;
    t->answers.of[shard].shared = shared ? floats * sizeof(float) : 0;
    void *rest = (uint8_t *)body->bytes + head;
    if (shared) rows_write_places(r, t, shard, rest);
    uint64_t *ids = rest;
    for (int table = 0; table < r->n && !shared; table++) {
        if (r->counts[table] == 0) continue;
        const ps_row_part *p = &t->parts[r->part_of[table]];
        memcpy(ids, p->batch.ids + p->batch.begin[shard], r->counts[table] * sizeof *ids);
        ids += r->counts[table];
    }
    return rows_body_room(&t->answers, shard,
                          shared ? 0 : rows_answer_bytes(r, t->in_two));
}

/* An answer of a shard, as far as it has been read. */
typedef struct rows_answer {
    const uint8_t *bits;    // of an answer in two parts; NULL: of one in order
    uint64_t at;            // rows
    const uint8_t *from[2]; // from[1]: the rows whose bits are 1, or all
} rows_answer;

static bool rows_came_first(const uint8_t *bits, uint64_t i)
{
    return bits[i / 8] >> i % 8 & 1;
}

static rows_answer rows_answer_begin(const ps_row_client *r, const rows_ticket *t,
                                     uint32_t shard)
{
    const uint8_t *bytes = t->answers.of[shard].bytes;
    rows_answer a = {.from = {bytes, bytes}};
    uint64_t n = 0, first = 0; // first: bytes of the rows that came first
    if (!t->in_two) return a;
    for (int table = 0; table < r->n; table++) {
        const int k = r->part_of[table];
        const uint64_t end = k < 0 ? n : n + ps_row_part_at_shard(&t->parts[k], shard);
        for (; n < end; n++)
            if (rows_came_first(bytes, n))
                first += ps_row_codec_row_bytes(&r->specs[table]);
    }
    a.bits = bytes;
    a.from[1] = bytes + ps_rows_ahead_head(n);
    a.from[0] = a.from[1] + first;
    return a;
}

/* The next n rows, of a table, in their order: valid until the next call. */
static ps_err rows_answer_next(ps_row_client *r, rows_answer *a, const ps_row_spec *spec,
                               uint64_t n, const void **rows)
{
    const uint64_t bytes = ps_row_codec_row_bytes(spec);
    *rows = a->from[1];
    if (!a->bits) {
        a->from[1] += ps_row_codec_size(spec, n) * sizeof(float);
        return PS_OK;
    }
    PS_TRY(ps_row_room(&r->sorted, &r->sorted_room, n * bytes, 1));
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t **from = &a->from[rows_came_first(a->bits, a->at++)];
        memcpy(r->sorted + i * bytes, *from, bytes);
        *from += bytes;
    }
    *rows = r->sorted;
    return PS_OK;
}

/* From the shards' answers into the parts, in the order of rows_write_pull. */
static ps_err rows_take_pulled(ps_row_client *r, const rows_ticket *t)
{
    for (uint32_t shard = 0; shard < r->n_shards; shard++) {
        if (t->in_arena && r->shares[shard]) continue;
        rows_answer answer = rows_answer_begin(r, t, shard);
        for (int table = 0; table < r->n; table++) {
            if (r->part_of[table] < 0) continue;
            const ps_row_part *p = &t->parts[r->part_of[table]];
            const ps_row_spec *spec = &r->specs[table];
            const uint32_t first = p->batch.begin[shard];
            const uint64_t n = ps_row_part_at_shard(p, shard);
            const void *rows;
            if (n == 0) continue;
            PS_TRY(rows_answer_next(r, &answer, spec, n, &rows));
            const ps_err err = ps_row_codec_decode(spec, n, p->batch.ids + first, rows,
                                                   p->rows + (uint64_t)first * spec->dim);
            if (err != PS_OK) return ps_err_prefix(err, "shard %u sent", shard);
        }
    }
    return PS_OK;
}

static ps_err rows_list_parts(ps_row_client *r, const ps_row_lookup *lookups, int n,
                              bool ahead)
{
    for (int i = 0; i < r->n; i++)
        r->part_of[i] = -1;
    for (int i = 0; i < n; i++) {
        PS_TRY(ps_row_lookup_check(&lookups[i], r->specs, r->n, ahead));
        if (r->part_of[lookups[i].table] >= 0)
            return ps_err_set(PS_ERR_ARG, "table %s is looked up twice in a call",
                              r->specs[lookups[i].table].name);
        r->part_of[lookups[i].table] = i;
    }
    return PS_OK;
}

static void rows_find_arena(ps_row_client *r)
{
    for (uint32_t i = 0; i < r->n_shards; i++) {
        void *arena = ps_session_rows_arena(r->session, i);
        r->shares[i] = arena != NULL;
        if (arena) r->arena = arena;
    }
}

/* Asks for the rows of a step. */
static ps_err rows_ask(ps_row_client *r, rows_ticket *t, const ps_row_lookup *lookups,
                       int n, bool trains, uint64_t step)
{
    PS_TRY(rows_ticket_room(t, n));
    PS_TRY(rows_bodies_make(&t->requests, r->n_shards));
    PS_TRY(rows_bodies_make(&t->answers, r->n_shards));
    t->n = n;
    t->ahead = t->in_two = step > r->step;
    t->forgotten = false;
    for (int i = 0; i < n; i++) {
        PS_TRY(ps_row_part_split(&t->parts[i], &lookups[i], r->specs, r->n_shards));
        if (!t->ahead) PS_TRY(ps_row_part_set_bags(&t->parts[i], &lookups[i], r->specs));
    }
    if (!r->arena) rows_find_arena(r);
    PS_TRY(rows_ticket_memory(r, t, trains, step));
    for (uint32_t shard = 0; shard < r->n_shards; shard++)
        PS_TRY(rows_write_pull(r, t, shard, trains));
    return ps_session_rows_send(r->session, PS_MSG_PULL_ROWS, step, t->requests.of,
                                t->answers.of, &t->sent);
}

/* Whether just this was asked for ahead. */
static bool rows_is_asked(const rows_ticket *t, const ps_row_lookup *lookups, int n)
{
    bool same = t->ahead && t->n == n;
    for (int i = 0; same && i < n; i++) {
        const ps_row_part *p = &t->parts[i];
        const ps_row_lookup *l = &lookups[i];
        same =
            p->table == l->table && p->batch.n_lookups == l->n_ids &&
            p->has_padding == l->has_padding &&
            (!p->has_padding || p->padding == l->padding) &&
            (l->n_ids == 0 || memcmp(p->asked, l->ids, l->n_ids * sizeof *l->ids) == 0);
    }
    return same;
}

/* Whether a table of ticket i was looked up in one behind it: gradients are added in the
 * order of the tickets, which is that of the lookups. */
static bool rows_is_passed(const ps_row_client *r, uint32_t i)
{
    for (uint32_t k = i + 1; k < r->n_tickets; k++)
        for (int a = 0; !r->tickets[k].ahead && a < r->tickets[k].n; a++)
            for (int b = 0; b < r->tickets[i].n; b++)
                if (r->tickets[k].parts[a].table == r->tickets[i].parts[b].table)
                    return true;
    return false;
}

/* A ticket for a lookup with gradients: what was asked for ahead, or a new one. */
static ps_err rows_ask_to_train(ps_row_client *r, const ps_row_lookup *lookups, int n,
                                rows_ticket **out)
{
    if (r->n_ahead > 0)
        return ps_err_set(PS_ERR_ARG,
                          "a lookup in step %" PRIu64
                          " of the rows after a prefetch: the "
                          "prefetch for the next step comes after all lookups",
                          r->step);
    for (uint32_t i = 0; i < r->n_tickets; i++) {
        rows_ticket *t = *out = &r->tickets[i];
        if (!rows_is_asked(t, lookups, n) || rows_is_passed(r, i)) continue;
        for (int k = 0; k < n; k++)
            PS_TRY(ps_row_part_set_bags(&t->parts[k], &lookups[k], r->specs));
        t->ahead = false;
        return PS_OK;
    }
    PS_TRY(ps_mem_room(&r->tickets, r->n_tickets, &r->tickets_room, sizeof *r->tickets,
                       "lookups"));
    *out = &r->tickets[r->n_tickets];
    PS_TRY(rows_ask(r, *out, lookups, n, true, r->step));
    r->n_tickets++;
    return PS_OK;
}

ps_err ps_row_client_pull(ps_row_client *r, const ps_row_lookup *lookups, int n,
                          bool trains, uint64_t *ticket)
{
    rows_ticket *t = &r->reading;
    PS_TRY(rows_list_parts(r, lookups, n, false));
    if (trains)
        PS_TRY(rows_ask_to_train(r, lookups, n, &t));
    else
        PS_TRY(rows_ask(r, t, lookups, n, false, r->step));
    PS_TRY(ps_session_rows_wait(r->session, t->sent));
    PS_TRY(rows_take_pulled(r, t));
    for (int i = 0; i < n; i++)
        ps_row_pool_forward(&t->parts[i].bags, t->parts[i].rows, lookups[i].out);
    *ticket = trains ? r->tickets_before + (uint64_t)(t - r->tickets) + 1 : 0;
    return PS_OK;
}

/* Gradients of the step before may still be needed where this puts its rows. */
ps_err ps_row_client_prefetch(ps_row_client *r, const ps_row_lookup *lookups, int n)
{
    PS_TRY(rows_list_parts(r, lookups, n, true));
    if (r->n_ahead == MOST_AHEAD)
        return ps_err_set(PS_ERR_ARG,
                          "more than %d prefetches in step %" PRIu64
                          " of the rows: prefetch all tables in one call",
                          MOST_AHEAD, r->step);
    if (r->pushed) PS_TRY(ps_session_rows_wait(r->session, r->pushed));
    PS_TRY(
        ps_mem_room(&r->ahead, r->n_ahead, &r->ahead_room, sizeof *r->ahead, "lookups"));
    rows_ticket *t = &r->ahead[r->n_ahead];
    PS_TRY(rows_ask(r, t, lookups, n, true, r->step + 1));
    r->n_ahead++;
    for (int i = 0; i < n; i++) {
        ps_row_part *p = &t->parts[i];
        const uint64_t m = lookups[i].n_ids;
        PS_TRY(ps_row_room(&p->asked, &p->asked_room, m, sizeof *p->asked));
        if (m > 0) memcpy(p->asked, lookups[i].ids, m * sizeof *p->asked);
    }
    return PS_OK;
}

/* The shards keep what they know of it until its step ends. */
void ps_row_client_forget_ahead(ps_row_client *r)
{
    for (uint32_t i = 0; i < r->n_tickets; i++)
        if (r->tickets[i].ahead) r->tickets[i].n = 0;
    for (uint32_t i = 0; i < r->n_ahead; i++)
        r->ahead[i].n = 0;
}

/* --- gradients --------------------------------------------------------------------- */

/* NULL: it is not of the present step. */
static rows_ticket *rows_ticket_of(const ps_row_client *r, uint64_t ticket)
{
    if (ticket <= r->tickets_before || ticket > r->tickets_before + r->n_tickets)
        return NULL;
    return &r->tickets[ticket - r->tickets_before - 1];
}

ps_err ps_row_client_gradient(ps_row_client *r, uint64_t ticket, int index,
                              const float *grad, float *weights_grad)
{
    const rows_ticket *t = rows_ticket_of(r, ticket);
    if (!t || index < 0 || index >= t->n || t->ahead ||
        !ps_row_part_takes(&t->parts[index], grad))
        return ps_err_set(PS_ERR_ARG,
                          "a gradient of rows that were not looked up in step %" PRIu64
                          " (ticket %" PRIu64 ", lookup %d): it comes after their "
                          "lookup, and before pstrain_rows_push ends its step",
                          r->step, ticket, index);
    ps_row_part *p = &t->parts[index];
    ps_row_pool_backward(&p->bags, grad, p->has ? NULL : p->batch.place, p->grads);
    p->has = true;
    if (weights_grad) ps_row_pool_weights_backward(&p->bags, p->rows, grad, weights_grad);
    return PS_OK;
}

/* The shards keep what they know of it until the step ends. */
static void rows_free_unused(rows_ticket *t)
{
    for (int i = 0; i < t->n; i++)
        if (!t->parts[i].has) {
            free(t->parts[i].own_rows);
            t->parts[i].own_rows = t->parts[i].rows = NULL;
            t->parts[i].rows_room = 0;
        }
}

void ps_row_client_forget(ps_row_client *r, uint64_t ticket)
{
    rows_ticket *t = rows_ticket_of(r, ticket);
    if (!t) return;
    t->forgotten = true;
    rows_free_unused(t);
}

ps_err ps_row_client_drop_gradients(ps_row_client *r, int table)
{
    if (table < -1 || table >= r->n)
        return ps_err_set(PS_ERR_ARG, "gradients of table %d of %d", table, r->n);
    for (uint32_t i = 0; i < r->n_tickets; i++) {
        rows_ticket *t = &r->tickets[i];
        for (int k = 0; k < t->n; k++)
            if (table < 0 || t->parts[k].table == table) t->parts[k].has = false;
        if (t->forgotten) rows_free_unused(t);
    }
    return PS_OK;
}

/* --- the end of a step ------------------------------------------------------------- */

static void rows_scaled_copy(float *restrict to, const float *restrict from, float factor,
                             uint64_t n)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        to[i] = from[i] * factor;
}

static void rows_scale(float *values, float factor, uint64_t n)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        values[i] *= factor;
}

/* Gradients of a table at a shard, one lookup of the step after another; times share, and
 * as row_codec.h says. Those in the arena stay there. Returns what the others take, in
 * float32; to NULL: what they take before they are encoded. */
static uint64_t rows_write_gradients(const ps_row_client *r, int table, uint32_t shard,
                                     float share, float *to)
{
    const ps_row_spec *spec = &r->specs[table];
    const uint64_t key =
        ps_codec_draw_key((uint32_t)ps_session_rank(r->session), r->step);
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->n_tickets; i++)
        for (int k = 0; k < r->tickets[i].n; k++) {
            const ps_row_part *p = &r->tickets[i].parts[k];
            const bool shared = r->tickets[i].in_arena && r->shares[shard];
            if (p->table != table || !p->has) continue;
            const uint64_t rows = ps_row_part_at_shard(p, shard), m = rows * spec->dim;
            const uint32_t first = p->batch.begin[shard];
            const uint64_t *ids = p->batch.ids + first;
            float *from = p->grads + (uint64_t)first * spec->dim;
            if (shared && to) {
                if (share != 1) rows_scale(from, share, m);
                ps_row_codec_round(spec, rows, ids, key, from);
                r->pushes.of[shard].shared += m * sizeof *from;
            } else if (!shared && to) {
                rows_scaled_copy(to + n, from, share, m);
                ps_row_codec_encode(spec, rows, ids, key, to + n);
                n += ps_row_codec_size(spec, rows);
            } else if (!shared) {
                n += m;
            }
        }
    return n;
}

static ps_err rows_write_push(ps_row_client *r, uint32_t shard, float share,
                              const double *lr)
{
    ps_exchange_body *body = &r->pushes.of[shard];
    const uint32_t n_tables = (uint32_t)r->n;
    const uint64_t head = ps_rows_push_head(n_tables, r->n_tickets);
    uint64_t floats = 0;
    for (int t = 0; t < r->n; t++)
        floats += rows_write_gradients(r, t, shard, share, NULL);
    PS_TRY(rows_body_room(&r->pushes, shard, head + floats * sizeof(float)));
    ps_rows_push_write(body->bytes, lr, n_tables, r->n_tickets);
    uint8_t *has = (uint8_t *)body->bytes + ps_rows_push_head(n_tables, 0);
    for (uint32_t i = 0; i < r->n_tickets; i++)
        for (int k = 0; k < r->tickets[i].n; k++)
            has[i * n_tables + (uint32_t)r->tickets[i].parts[k].table] =
                r->tickets[i].parts[k].has;
    float *grads = (float *)(void *)((uint8_t *)body->bytes + head);
    uint64_t size = 0;
    for (int t = 0; t < r->n; t++)
        size += rows_write_gradients(r, t, shard, share, grads + size);
    body->n = head + size * sizeof *grads;
    body->saved = (floats - size) * sizeof *grads;
    return PS_OK;
}

/* What was asked for ahead belongs to the present step now. */
static void rows_use_ahead(ps_row_client *r)
{
    rows_ticket *tickets = r->tickets;
    const uint32_t room = r->tickets_room;
    r->tickets = r->ahead;
    r->tickets_room = r->ahead_room;
    r->n_tickets = r->n_ahead;
    r->ahead = tickets;
    r->ahead_room = room;
    r->n_ahead = 0;
}

ps_err ps_row_client_push(ps_row_client *r, float share, const double *lr)
{
    for (int t = 0; t < r->n; t++)
        if (!lr || !isfinite(lr[t]) || lr[t] < 0)
            return ps_err_set(PS_ERR_ARG, "the rate of table %s is not a number from 0",
                              r->specs[t].name);
    if (!isfinite(share))
        return ps_err_set(PS_ERR_ARG, "the share of gradients of rows is not a number");
    uint64_t sent;
    if (r->pushed) PS_TRY(ps_session_rows_wait(r->session, r->pushed));
    for (uint32_t shard = 0; shard < r->n_shards; shard++)
        PS_TRY(rows_write_push(r, shard, share, lr));
    PS_TRY(ps_session_rows_send(r->session, PS_MSG_PUSH_ROWS, r->step, r->pushes.of, NULL,
                                &sent));
    r->pushed = sent;
    r->tickets_before += r->n_tickets;
    r->n_tickets = 0;
    r->used[r->step % 2] = 0; // for the step after the next one
    r->step++;
    rows_use_ahead(r);
    return PS_OK;
}

ps_err ps_row_client_set_step(ps_row_client *r, uint64_t step)
{
    // Their memory is used again: answers may still be on the way there.
    for (uint32_t i = 0; i < r->n_tickets + r->n_ahead; i++) {
        const rows_ticket *t =
            i < r->n_tickets ? &r->tickets[i] : &r->ahead[i - r->n_tickets];
        PS_TRY(ps_session_rows_wait(r->session, t->sent));
    }
    if (r->pushed) PS_TRY(ps_session_rows_wait(r->session, r->pushed));
    r->tickets_before += r->n_tickets;
    r->n_tickets = r->n_ahead = 0;
    r->used[0] = r->used[1] = 0;
    r->step = step;
    return PS_OK;
}

uint64_t ps_row_client_steps(const ps_row_client *r)
{
    return r->step;
}

/* --- loading and saving ------------------------------------------------------------ */

uint32_t ps_row_client_width(const ps_row_client *r, int table)
{
    return table < 0 || table >= r->n ? 0 : ps_row_spec_width(&r->specs[table]);
}

/* Ids of a table for the servers, with rows or without. */
typedef struct rows_given {
    const int64_t *ids; // (n)
    uint64_t n;
    const ps_rows_age *ages; // (n); NULL: zeros
    const float *values;     // (n, width of the load); NULL where that is 0
} rows_given;

/* One message to the shard with those that it has. */
static ps_err rows_write_load(ps_row_client *r, uint32_t shard, const rows_given *given,
                              ps_rows_load load)
{
    ps_exchange_body *body = &r->requests.of[shard];
    const uint64_t salt = ps_row_hash_salt(r->specs[load.table].number);
    load.n = 0;
    for (uint64_t i = 0; i < given->n; i++)
        load.n +=
            ps_row_shard(ps_row_partition(ps_row_hash(salt, (uint64_t)given->ids[i])),
                         r->n_shards) == shard;
    PS_TRY(rows_body_room(&r->requests, shard, ps_rows_load_bytes(load.n, load.width)));
    ps_rows_load_write(body->bytes, &load);
    PS_TRY(ps_rows_load_read(body->bytes, body->n, &load));
    uint64_t *to_ids = (uint64_t *)(uintptr_t)load.ids;
    ps_rows_age *to_ages = (ps_rows_age *)(uintptr_t)load.ages;
    float *to = (float *)(uintptr_t)load.values;
    for (uint64_t i = 0; i < given->n; i++) {
        const uint64_t place = ps_row_hash(salt, (uint64_t)given->ids[i]);
        if (ps_row_shard(ps_row_partition(place), r->n_shards) != shard) continue;
        *to_ids++ = (uint64_t)given->ids[i];
        *to_ages++ = given->ages ? given->ages[i] : (ps_rows_age){0};
        if (load.width == 0) continue;
        memcpy(to, given->values + i * load.width, load.width * sizeof *to);
        to += load.width;
    }
    return PS_OK;
}

/* In several messages; load.begins counts in the first one. */
static ps_err rows_send_load(ps_row_client *r, rows_given all, ps_rows_load load)
{
    const uint64_t most =
        LOAD_MOST_BYTES / (sizeof *all.ids + load.width * sizeof(float)) + 1;
    for (uint64_t i = 0; i < all.n; i++)
        if (all.ids[i] < 0)
            return ps_err_set(
                PS_ERR_ARG, "table %s: id %" PRId64 " of %" PRIu64 " to load is negative",
                r->specs[load.table].name, all.ids[i], all.n);
    do {
        rows_given some = all;
        if (some.n > most) some.n = most;
        for (uint32_t shard = 0; shard < r->n_shards; shard++)
            PS_TRY(rows_write_load(r, shard, &some, load));
        uint64_t sent;
        PS_TRY(ps_session_rows_send(r->session, PS_MSG_LOAD_ROWS, r->step, r->requests.of,
                                    NULL, &sent));
        PS_TRY(ps_session_rows_wait(r->session, sent));
        load.begins = 0;
        all.n -= some.n;
        all.ids += some.n;
        if (all.ages) all.ages += some.n;
        if (all.values) all.values += some.n * load.width;
    } while (all.n > 0);
    return PS_OK;
}

ps_err ps_row_client_load(ps_row_client *r, int table, const int64_t *ids, uint64_t n,
                          const float *values, bool with_state, uint64_t steps)
{
    if (table < 0 || table >= r->n || (n > 0 && (!ids || !values)))
        return ps_err_set(PS_ERR_ARG, "rows for table %d of %d, or a NULL", table, r->n);
    const ps_rows_load load = {.table = (uint32_t)table,
                               .width = with_state ? ps_row_client_width(r, table)
                                                   : r->specs[table].dim,
                               .steps = steps};
    return rows_send_load(r, (rows_given){.ids = ids, .n = n, .values = values}, load);
}

static ps_err rows_check_page(const ps_row_client *r, int table, const ps_row_page *page)
{
    const uint64_t n = page->n, all = n + page->n_candidates;
    for (uint64_t i = 0; i < all; i++)
        if (page->ages[i].version > page->clock ||
            (i < n ? page->ages[i].count != 0
                   : page->ages[i].count < 1 || page->ages[i].count > PS_ROW_ADMIT_MAX))
            return ps_err_set(PS_ERR_ARG,
                              "table %s: id %" PRId64
                              " to restore: its version %u is above the clock %" PRIu64
                              ", or its count of gradients %u is not that of %s",
                              r->specs[table].name, page->ids[i], page->ages[i].version,
                              page->clock, page->ages[i].count,
                              i < n ? "a row, 0" : "an id that is not admitted");
    return PS_OK;
}

ps_err ps_row_client_restore(ps_row_client *r, int table, const ps_row_page *page,
                             bool first)
{
    const uint64_t all = page->n + page->n_candidates;
    if (table < 0 || table >= r->n || (all > 0 && (!page->ids || !page->ages)) ||
        (page->n > 0 && !page->values))
        return ps_err_set(PS_ERR_ARG, "a page for table %d of %d, or a NULL", table,
                          r->n);
    PS_TRY(rows_check_page(r, table, page));
    ps_rows_load load = {.table = (uint32_t)table,
                         .width = ps_row_client_width(r, table),
                         .steps = page->steps,
                         .clock = page->clock,
                         .begins = first};
    PS_TRY(rows_send_load(
        r,
        (rows_given){
            .ids = page->ids, .n = page->n, .ages = page->ages, .values = page->values},
        load));
    if (page->n_candidates == 0) return PS_OK;
    load.width = 0;
    load.begins = 0;
    return rows_send_load(r,
                          (rows_given){.ids = page->ids + page->n,
                                       .n = page->n_candidates,
                                       .ages = page->ages + page->n},
                          load);
}

/* next: 1 + partition + PS_ROW_PARTITIONS * shard, and the place in the partition times
 * 2^32. */
ps_err ps_row_client_save(ps_row_client *r, int table, ps_row_page *page)
{
    if (table < 0 || table >= r->n)
        return ps_err_set(PS_ERR_ARG, "rows of table %d of %d", table, r->n);
    const uint64_t from = page->next ? (page->next & UINT32_MAX) - 1 : 0;
    const uint64_t shard = from / PS_ROW_PARTITIONS;
    if (shard >= r->n_shards)
        return ps_err_set(PS_ERR_ARG, "rows: there is no page %" PRIu64, page->next);
    const ps_rows_save save = {.table = (uint32_t)table,
                               .partition = (uint32_t)(from % PS_ROW_PARTITIONS),
                               .place = (uint32_t)(page->next >> 32)};
    for (uint32_t i = 0; i < r->n_shards; i++)
        r->requests.of[i].n = 0; // nothing goes to the others
    PS_TRY(rows_body_room(&r->requests, (uint32_t)shard, sizeof save));
    memcpy(r->requests.of[shard].bytes, &save, sizeof save);
    r->pages.of[shard].grows = true;
    r->pages.of[shard].most = PS_WIRE_BODY_BYTES;
    uint64_t sent;
    PS_TRY(ps_session_rows_send(r->session, PS_MSG_SAVE_ROWS, r->step, r->requests.of,
                                r->pages.of, &sent));
    PS_TRY(ps_session_rows_wait(r->session, sent));
    ps_rows_page got;
    PS_TRY(ps_rows_page_read(r->pages.of[shard].bytes, r->pages.of[shard].n,
                             ps_row_client_width(r, table), &got));
    page->n = got.n;
    page->n_candidates = got.n_candidates;
    page->ids = (const int64_t *)got.ids;
    page->ages = got.ages;
    page->values = got.values;
    page->steps = got.steps;
    page->clock = got.clock;
    if (got.next)
        page->next = 1 + got.next + PS_ROW_PARTITIONS * shard;
    else
        page->next = shard + 1 < r->n_shards ? 1 + PS_ROW_PARTITIONS * (shard + 1) : 0;
    return PS_OK;
}
