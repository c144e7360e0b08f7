#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "pstrain_state.h"
#include "row_pool.h"
#include "row_set.h"
#include "rows_body.h"
#include "wire.h"

enum {
    LOAD_MOST_BYTES = 4 << 20, // of the rows in one LOAD_ROWS, about
    PAGE_MOST_BYTES = 1 << 30
};

/* What was looked up in one table. */
typedef struct rows_part {
    int table;
    ps_row_batch batch;
    ps_row_bags bags; // offsets and weights are these copies
    int64_t *offsets;
    float *weights;
    float *rows, *grads; // (batch.n_rows, dim); grads: what there is of them
    uint64_t offsets_room, weights_room, rows_room, grads_room; // elements
    bool has;                                                   // a gradient
} rows_part;

/* A lookup of one or more tables. */
typedef struct rows_ticket {
    rows_part *parts; // (room) of which n are in use
    int n, room;
} rows_ticket;

typedef struct rows_bodies {
    ps_exchange_body *of; // by shard
    uint64_t *rooms;      // bytes
} rows_bodies;

typedef struct pstrain_rows {
    const ps_row_spec *specs; // borrowed from s->own
    int n;
    uint32_t n_shards;
    uint64_t step;
    rows_ticket *tickets; // (n_tickets) of the present step
    uint32_t n_tickets, tickets_room;
    uint64_t tickets_before; // of the steps before it
    rows_ticket reading;     // of lookups without gradients
    uint32_t *counts;        // scratch: (n)
    int *part_of;            // scratch: (n) -1: the table is not looked up
    // (n_shards) What is sent, and where answers go. Gradients have memory of their own:
    // a request may follow before they are taken.
    rows_bodies requests, pushes, answers, pages;
} pstrain_rows;

/* --- opening ----------------------------------------------------------------------- */

static ps_err rows_word(const ps_word *words, const char *text, const char *name,
                        const char *what, int *value)
{
    char list[160];
    if (text && ps_word_find(words, text, value)) return PS_OK;
    return ps_err_set(PS_ERR_ARG, "embedding table %.64s: its %s is %.40s; possible: %s",
                      name, what, text ? text : "NULL",
                      ps_word_list(words, list, sizeof list));
}

static ps_err rows_spec_of(const pstrain_rows_table *t, int index, ps_row_spec *out)
{
    int rule, init;
    if (!t->name || strlen(t->name) >= PS_ROW_NAME_BYTES)
        return ps_err_set(PS_ERR_ARG,
                          "embedding table %d: its name is NULL, or longer than %d bytes",
                          index, PS_ROW_NAME_BYTES - 1);
    PS_TRY(rows_word(ps_row_optimizer_words, t->optimizer, t->name, "optimizer", &rule));
    PS_TRY(rows_word(ps_row_init_words, t->init, t->name, "init", &init));
    *out = (ps_row_spec){.number = (uint32_t)index,
                         .dim = t->dim,
                         .optimizer = (ps_row_optimizer)rule,
                         .lr = t->lr,
                         .eps = t->eps,
                         .beta1 = t->beta1,
                         .beta2 = t->beta2,
                         .lr_decay = t->lr_decay,
                         .initial_accumulator = t->initial_accumulator,
                         .init = (ps_row_init)init,
                         .init_scale = t->scale,
                         .seed = t->seed,
                         .max_bytes = t->max_bytes,
                         .full = t->evicts ? PS_ROW_FULL_EVICT : PS_ROW_FULL_END,
                         .admit = t->admit,
                         .expire = t->expire};
    memcpy(out->name, t->name, strlen(t->name) + 1);
    return ps_row_spec_check(out);
}

static ps_err rows_check_job(const pstrain_session *s)
{
    const char *why = NULL;
    if (s->servers == 0)
        why = "need servers (ps-server, psrun -s 1): all-reduce has none";
    else if (ps_config_two_levels(s->full))
        why = "do not go with exchange.levels 2: take 1";
    else if (s->full->loss_scale.use == PS_SWITCH_ON)
        why = "do not go with loss_scale.use on: rows are float32";
    return why ? ps_err_set(PS_ERR_CONFIG, "embedding tables %s", why) : PS_OK;
}

static ps_err rows_check_names(const ps_row_spec *rows, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(rows[i].name, rows[k].name) == 0)
                return ps_err_set(PS_ERR_ARG, "two embedding tables have the name %s",
                                  rows[i].name);
    return PS_OK;
}

ps_err pstrain_rows_declare(pstrain_session *s, const pstrain_table *t)
{
    if (t->n_rows == 0) return PS_OK;
    if (t->n_rows < 0 || t->n_rows > PS_ROW_TABLES_MAX || !t->rows ||
        t->rows_size < sizeof(char *))
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_open: %d embedding tables of %zu bytes; up to %d are "
                          "possible",
                          t->n_rows, t->rows_size, PS_ROW_TABLES_MAX);
    PS_TRY(rows_check_job(s));
    PS_TRY(ps_mem_zalloc(&s->own.rows, (size_t)t->n_rows, sizeof *s->own.rows,
                         "embedding tables"));
    s->own.n_rows = t->n_rows;
    const size_t room = t->rows_size < sizeof(pstrain_rows_table)
                            ? t->rows_size
                            : sizeof(pstrain_rows_table);
    for (int i = 0; i < t->n_rows; i++) {
        pstrain_rows_table one = {0};
        memcpy(&one, (const char *)t->rows + (size_t)i * t->rows_size, room);
        PS_TRY(rows_spec_of(&one, i, &s->own.rows[i]));
    }
    return rows_check_names(s->own.rows, t->n_rows);
}

ps_err pstrain_rows_open(pstrain_session *s)
{
    pstrain_rows *r;
    if (s->own.n_rows == 0) return PS_OK;
    PS_TRY(ps_mem_zalloc(&r, 1, sizeof *r, "embedding tables"));
    s->rows = r;
    r->specs = s->own.rows;
    r->n = s->own.n_rows;
    r->n_shards = ps_session_plan(s->session)->n_shards;
    const size_t n = (size_t)r->n, shards = r->n_shards;
    PS_TRY(ps_mem_zalloc(&r->counts, n, sizeof *r->counts, "embedding tables"));
    PS_TRY(ps_mem_zalloc(&r->part_of, n, sizeof *r->part_of, "embedding tables"));
    rows_bodies *const all[] = {&r->requests, &r->pushes, &r->answers, &r->pages};
    for (int i = 0; i < 4; i++) {
        PS_TRY(ps_mem_zalloc(&all[i]->of, shards, sizeof *all[i]->of, "messages"));
        PS_TRY(ps_mem_zalloc(&all[i]->rooms, shards, sizeof *all[i]->rooms, "messages"));
    }
    return PS_OK;
}

static void rows_bodies_free(rows_bodies *b, uint32_t n_shards)
{
    for (uint32_t i = 0; b->of && i < n_shards; i++)
        free(b->of[i].bytes);
    free(b->of);
    free(b->rooms);
}

static void rows_part_free(rows_part *p)
{
    ps_row_batch_fini(&p->batch);
    free(p->offsets);
    free(p->weights);
    free(p->rows);
    free(p->grads);
    *p = (rows_part){0};
    ps_row_batch_init(&p->batch);
}

static void rows_ticket_free(rows_ticket *t)
{
    for (int i = 0; i < t->room; i++)
        rows_part_free(&t->parts[i]);
    free(t->parts);
    *t = (rows_ticket){0};
}

void pstrain_rows_close(pstrain_session *s)
{
    pstrain_rows *r = s->rows;
    if (!r) return;
    for (uint32_t i = 0; i < r->tickets_room; i++)
        rows_ticket_free(&r->tickets[i]);
    rows_ticket_free(&r->reading);
    rows_bodies_free(&r->requests, r->n_shards);
    rows_bodies_free(&r->pushes, r->n_shards);
    rows_bodies_free(&r->answers, r->n_shards);
    rows_bodies_free(&r->pages, r->n_shards);
    free(r->tickets);
    free(r->counts);
    free(r->part_of);
    free(r);
    s->rows = NULL;
}

/* As pstrain_enter, of a started session with embedding tables. */
static ps_err rows_enter(pstrain_session *s, const char *call)
{
    PS_TRY(pstrain_enter(s, PSTRAIN_LANE_MAIN, PS_IN_STARTED, call));
    if (s->rows) return PS_OK;
    pstrain_leave(s, PSTRAIN_LANE_MAIN, PS_OK);
    return ps_err_set(PS_ERR_ARG, "%s: the job was opened without embedding tables",
                      call);
}

static int rows_leave(pstrain_session *s, ps_err err)
{
    return pstrain_leave(s, PSTRAIN_LANE_MAIN, err);
}

/* --- memory: grows, and stays for the next step ------------------------------------- */

static ps_err rows_grow(void *array, uint64_t *room, uint64_t n, size_t size)
{
    void **at = array;
    if (n <= *room) return PS_OK;
    free(*at);
    *at = NULL;
    *room = 0;
    PS_TRY(ps_mem_zalloc(at, n + n / 4, size, "rows of embedding tables"));
    *room = n + n / 4;
    return PS_OK;
}

static ps_err rows_ticket_room(rows_ticket *t, int n)
{
    rows_part *more;
    if (n <= t->room) return PS_OK;
    PS_TRY(ps_mem_zalloc(&more, (size_t)n, sizeof *more, "embedding tables"));
    if (t->room) memcpy(more, t->parts, (size_t)t->room * sizeof *more);
    for (int i = t->room; i < n; i++)
        ps_row_batch_init(&more[i].batch);
    free(t->parts);
    t->parts = more;
    t->room = n;
    return PS_OK;
}

/* The next one of the step. */
static ps_err rows_next_ticket(pstrain_rows *r, rows_ticket **out)
{
    PS_TRY(ps_mem_room(&r->tickets, r->n_tickets, &r->tickets_room, sizeof *r->tickets,
                       "lookups"));
    *out = &r->tickets[r->n_tickets];
    return PS_OK;
}

/* --- lookups ----------------------------------------------------------------------- */

/* Negative ones are seldom meant: they mark what is missing. */
static ps_err rows_check_ids(const pstrain_rows *r, const pstrain_rows_lookup *l)
{
    int64_t all = 0, most = 0;
    uint64_t i = 0;
    for (uint64_t k = 0; k < l->n_ids; k++) {
        all |= l->ids[k];
        most = l->ids[k] > most ? l->ids[k] : most;
    }
    if (all >= 0 && (l->n_rows == 0 || (uint64_t)most < l->n_rows || l->n_ids == 0))
        return PS_OK;
    while (i < l->n_ids &&
           (l->ids[i] >= 0 || (l->has_padding && l->ids[i] == l->padding)) &&
           (l->n_rows == 0 || l->ids[i] < 0 || (uint64_t)l->ids[i] < l->n_rows))
        i++;
    if (i == l->n_ids) return PS_OK;
    if (l->ids[i] >= 0)
        return ps_err_set(PS_ERR_ARG,
                          "table %s: id %" PRId64 " at place %" PRIu64
                          " is not below %" PRIu64 ", the number of its rows",
                          r->specs[l->table].name, l->ids[i], i, l->n_rows);
    return ps_err_set(PS_ERR_ARG,
                      "table %s: id %" PRId64 " at place %" PRIu64
                      " is negative: ids are from 0 to 2^63 - 1, and the padding",
                      r->specs[l->table].name, l->ids[i], i);
}

static ps_err rows_check_lookup(const pstrain_rows *r, const pstrain_rows_lookup *l)
{
    const char *why = NULL;
    if (l->struct_size < sizeof *l || l->table < 0 || l->table >= r->n)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_rows_pull: table %d of %d (struct_size %zu)", l->table,
                          r->n, l->struct_size);
    if (l->mode < PSTRAIN_ROWS_EACH || l->mode > PSTRAIN_ROWS_MEAN)
        why = "its mode is not one of pstrain_rows_mode";
    else if (!l->ids && l->n_ids > 0)
        why = "its ids are NULL";
    else if (l->mode != PSTRAIN_ROWS_EACH && !l->offsets && l->n_bags > 0)
        why = "bags need offsets";
    else if (l->mode != PSTRAIN_ROWS_EACH && l->n_bags == 0 && l->n_ids > 0)
        why = "there are ids, and no bags";
    else if (l->weights && l->mode != PSTRAIN_ROWS_SUM)
        why = "weights go with sums alone";
    else if (!l->out && (l->mode == PSTRAIN_ROWS_EACH ? l->n_ids : l->n_bags) > 0)
        why = "out is NULL";
    if (why)
        return ps_err_set(PS_ERR_ARG, "pstrain_rows_pull: table %s: %s",
                          r->specs[l->table].name, why);
    return rows_check_ids(r, l);
}

/* Everything but the rows. */
static ps_err rows_fill_part(const pstrain_rows *r, rows_part *p,
                             const pstrain_rows_lookup *l)
{
    const ps_row_spec *spec = &r->specs[l->table];
    const uint64_t padding = (uint64_t)l->padding;
    const bool bags = l->mode != PSTRAIN_ROWS_EACH;
    const uint64_t n_bags = bags ? l->n_bags : l->n_ids;
    p->table = l->table;
    p->has = false;
    PS_TRY(ps_row_batch_split(&p->batch, spec->number, r->n_shards, l->n_ids,
                              (const uint64_t *)l->ids,
                              l->has_padding ? &padding : NULL));
    if (bags) {
        PS_TRY(rows_grow(&p->offsets, &p->offsets_room, n_bags, sizeof *p->offsets));
        if (n_bags) memcpy(p->offsets, l->offsets, n_bags * sizeof *p->offsets);
    }
    if (l->weights) {
        PS_TRY(rows_grow(&p->weights, &p->weights_room, l->n_ids, sizeof *p->weights));
        memcpy(p->weights, l->weights, l->n_ids * sizeof *p->weights);
    }
    p->bags =
        (ps_row_bags){.mode = l->mode == PSTRAIN_ROWS_MEAN ? PS_ROW_MEAN : PS_ROW_SUM,
                      .dim = spec->dim,
                      .n_lookups = l->n_ids,
                      .n_bags = n_bags,
                      .offsets = bags && n_bags > 0 ? p->offsets : NULL,
                      .row = p->batch.row,
                      .weights = l->weights ? p->weights : NULL};
    const ps_err err = ps_row_bags_check(&p->bags);
    if (err != PS_OK) return ps_err_prefix(err, "table %s", spec->name);
    return rows_grow(&p->rows, &p->rows_room, (uint64_t)p->batch.n_rows * spec->dim,
                     sizeof *p->rows);
}

/* The rows that the shard has of a part. */
static uint64_t rows_at_shard(const rows_part *p, uint32_t shard)
{
    return p->batch.begin[shard + 1] - p->batch.begin[shard];
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
    return rows_grow(&b->of[shard].bytes, &b->rooms[shard], bytes, 1);
}

static ps_err rows_write_pull(pstrain_rows *r, const rows_ticket *t, uint32_t shard,
                              bool trains)
{
    ps_exchange_body *body = &r->requests.of[shard];
    uint64_t n = 0, floats = 0;
    for (int table = 0; table < r->n; table++) {
        const rows_part *p = r->part_of[table] < 0 ? NULL : &t->parts[r->part_of[table]];
        r->counts[table] = p ? (uint32_t)rows_at_shard(p, shard) : 0;
        n += r->counts[table];
        floats += (uint64_t)r->counts[table] * r->specs[table].dim;
    }
    PS_TRY(rows_body_room(&r->requests, shard,
                          ps_rows_pull_head((uint32_t)r->n) + n * sizeof(uint64_t)));
    ps_rows_pull_write(body->bytes, trains, r->counts, (uint32_t)r->n);
    uint64_t *ids =
        (uint64_t *)(void *)((uint8_t *)body->bytes + ps_rows_pull_head((uint32_t)r->n));
    for (int table = 0; table < r->n; table++) {
        if (r->counts[table] == 0) continue;
        const rows_part *p = &t->parts[r->part_of[table]];
        memcpy(ids, p->batch.ids + p->batch.begin[shard], r->counts[table] * sizeof *ids);
        ids += r->counts[table];
    }
    return rows_body_room(&r->answers, shard, floats * sizeof(float));
}

/* From the shards' answers into the parts, in the order of rows_write_pull. */
static void rows_take_pulled(const pstrain_rows *r, const rows_ticket *t)
{
    for (uint32_t shard = 0; shard < r->n_shards; shard++) {
        const float *from = r->answers.of[shard].bytes;
        for (int table = 0; table < r->n; table++) {
            if (r->part_of[table] < 0) continue;
            const rows_part *p = &t->parts[r->part_of[table]];
            const uint64_t dim = r->specs[table].dim, n = rows_at_shard(p, shard) * dim;
            if (n > 0)
                memcpy(p->rows + p->batch.begin[shard] * dim, from, n * sizeof *from);
            from += n;
        }
    }
}

static ps_err rows_list_parts(pstrain_rows *r, const pstrain_rows_lookup *lookups, int n)
{
    for (int i = 0; i < r->n; i++)
        r->part_of[i] = -1;
    for (int i = 0; i < n; i++) {
        PS_TRY(rows_check_lookup(r, &lookups[i]));
        if (r->part_of[lookups[i].table] >= 0)
            return ps_err_set(PS_ERR_ARG,
                              "pstrain_rows_pull: table %s is looked up twice in a call",
                              r->specs[lookups[i].table].name);
        r->part_of[lookups[i].table] = i;
    }
    return PS_OK;
}

static ps_err rows_look_up(pstrain_session *s, const pstrain_rows_lookup *lookups, int n,
                           bool trains, uint64_t *ticket)
{
    pstrain_rows *r = s->rows;
    rows_ticket *t = &r->reading;
    if (!lookups || n < 1 || !ticket)
        return ps_err_set(PS_ERR_ARG, "pstrain_rows_pull: %d lookups, or a NULL", n);
    PS_TRY(rows_list_parts(r, lookups, n));
    if (trains) PS_TRY(rows_next_ticket(r, &t));
    PS_TRY(rows_ticket_room(t, n));
    t->n = n;
    for (int i = 0; i < n; i++)
        PS_TRY(rows_fill_part(r, &t->parts[i], &lookups[i]));
    for (uint32_t shard = 0; shard < r->n_shards; shard++)
        PS_TRY(rows_write_pull(r, t, shard, trains));
    PS_TRY(ps_session_rows_send(s->session, PS_MSG_PULL_ROWS, r->step, r->requests.of,
                                r->answers.of));
    PS_TRY(ps_session_rows_wait(s->session));
    rows_take_pulled(r, t);
    for (int i = 0; i < n; i++)
        ps_row_pool_forward(&t->parts[i].bags, t->parts[i].rows, lookups[i].out);
    r->n_tickets += trains;
    *ticket = trains ? r->tickets_before + r->n_tickets : 0;
    return PS_OK;
}

int pstrain_rows_pull(pstrain_session *s, const pstrain_rows_lookup *lookups, int n,
                      int trains, uint64_t *ticket)
{
    const ps_err err = rows_enter(s, "pstrain_rows_pull");
    return err == PS_OK ? rows_leave(s, rows_look_up(s, lookups, n, trains != 0, ticket))
                        : (int)err;
}

/* --- gradients --------------------------------------------------------------------- */

/* NULL: it is not of the present step. */
static rows_ticket *rows_ticket_of(const pstrain_rows *r, uint64_t ticket)
{
    if (ticket <= r->tickets_before || ticket > r->tickets_before + r->n_tickets)
        return NULL;
    return &r->tickets[ticket - r->tickets_before - 1];
}

static ps_err rows_add_gradient(pstrain_session *s, uint64_t ticket, int index,
                                const float *grad, float *weights_grad)
{
    const rows_ticket *t = rows_ticket_of(s->rows, ticket);
    if (!t || !grad || index < 0 || index >= t->n)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_rows_gradient: ticket %" PRIu64 " has no lookup %d in "
                          "step %" PRIu64 " of the rows: the backward pass comes before "
                          "the step's end",
                          ticket, index, s->rows->step);
    rows_part *p = &t->parts[index];
    const uint64_t n = (uint64_t)p->batch.n_rows * p->bags.dim;
    if (!p->has) {
        PS_TRY(rows_grow(&p->grads, &p->grads_room, n, sizeof *p->grads));
        if (n > 0) memset(p->grads, 0, n * sizeof *p->grads);
    }
    p->has = true;
    ps_row_pool_backward(&p->bags, grad, p->grads);
    if (weights_grad) ps_row_pool_weights_backward(&p->bags, p->rows, grad, weights_grad);
    return PS_OK;
}

int pstrain_rows_gradient(pstrain_session *s, uint64_t ticket, int index,
                          const float *grad, float *weights_grad)
{
    const ps_err err = rows_enter(s, "pstrain_rows_gradient");
    return err == PS_OK
               ? rows_leave(s, rows_add_gradient(s, ticket, index, grad, weights_grad))
               : (int)err;
}

/* The shards keep what they know of it until the step ends. */
int pstrain_rows_forget(pstrain_session *s, uint64_t ticket)
{
    const ps_err err = rows_enter(s, "pstrain_rows_forget");
    if (err != PS_OK) return (int)err;
    const rows_ticket *t = rows_ticket_of(s->rows, ticket);
    for (int i = 0; t && i < t->n; i++)
        if (!t->parts[i].has) {
            free(t->parts[i].rows);
            t->parts[i].rows = NULL;
            t->parts[i].rows_room = 0;
        }
    return rows_leave(s, PS_OK);
}

/* --- the end of a step ------------------------------------------------------------- */

static void rows_scaled_copy(float *restrict to, const float *restrict from, float factor,
                             uint64_t n)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        to[i] = from[i] * factor;
}

/* Gradients of a table at a shard, one lookup of the step after another; times share.
 * to NULL: counts them alone. Returns how many numbers. */
static uint64_t rows_write_gradients(const pstrain_rows *r, int table, uint32_t shard,
                                     float share, float *to)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->n_tickets; i++)
        for (int k = 0; k < r->tickets[i].n; k++) {
            const rows_part *p = &r->tickets[i].parts[k];
            if (p->table != table || !p->has) continue;
            const uint64_t dim = r->specs[table].dim, m = rows_at_shard(p, shard) * dim;
            const float *from = p->grads + p->batch.begin[shard] * dim;
            if (to) rows_scaled_copy(to + n, from, share, m);
            n += m;
        }
    return n;
}

static ps_err rows_write_push(pstrain_rows *r, uint32_t shard, float share,
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
    float *to = (float *)(void *)((uint8_t *)body->bytes + head);
    for (int t = 0; t < r->n; t++)
        to += rows_write_gradients(r, t, shard, share, to);
    return PS_OK;
}

static ps_err rows_end_step(pstrain_session *s, float share, const double *lr)
{
    pstrain_rows *r = s->rows;
    for (int t = 0; t < r->n; t++)
        if (!lr || !isfinite(lr[t]) || lr[t] < 0)
            return ps_err_set(PS_ERR_ARG,
                              "pstrain_rows_push: the rate of table %s is not a number "
                              "from 0",
                              r->specs[t].name);
    if (!isfinite(share))
        return ps_err_set(PS_ERR_ARG, "pstrain_rows_push: share is not a number");
    PS_TRY(ps_session_rows_wait(s->session));
    for (uint32_t shard = 0; shard < r->n_shards; shard++)
        PS_TRY(rows_write_push(r, shard, share, lr));
    PS_TRY(
        ps_session_rows_send(s->session, PS_MSG_PUSH_ROWS, r->step, r->pushes.of, NULL));
    r->tickets_before += r->n_tickets;
    r->n_tickets = 0;
    r->step++;
    return PS_OK;
}

int pstrain_rows_push(pstrain_session *s, float share, const double *lr)
{
    const ps_err err = rows_enter(s, "pstrain_rows_push");
    return err == PS_OK ? rows_leave(s, rows_end_step(s, share, lr)) : (int)err;
}

uint64_t pstrain_rows_steps(const pstrain_session *s)
{
    return s && s->rows ? s->rows->step : 0;
}

/* --- loading and saving ------------------------------------------------------------ */

uint32_t pstrain_rows_width(const pstrain_session *s, int table)
{
    if (!s || !s->rows || table < 0 || table >= s->rows->n) return 0;
    return ps_row_spec_width(&s->rows->specs[table]);
}

/* One message to the shard with those of the n rows that it has. */
static ps_err rows_write_load(pstrain_rows *r, uint32_t shard, const int64_t *ids,
                              uint64_t n, const float *values, ps_rows_load load)
{
    ps_exchange_body *body = &r->requests.of[shard];
    const uint64_t salt = ps_row_place_salt(r->specs[load.table].number);
    load.n = 0;
    for (uint64_t i = 0; i < n; i++)
        load.n += ps_row_shard(ps_row_partition(ps_row_place(salt, (uint64_t)ids[i])),
                               r->n_shards) == shard;
    PS_TRY(rows_body_room(&r->requests, shard, ps_rows_load_bytes(load.n, load.width)));
    ps_rows_load_write(body->bytes, &load);
    PS_TRY(ps_rows_load_read(body->bytes, body->n, &load));
    uint64_t *to_ids = (uint64_t *)(uintptr_t)load.ids;
    float *to = (float *)(uintptr_t)load.values;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t place = ps_row_place(salt, (uint64_t)ids[i]);
        if (ps_row_shard(ps_row_partition(place), r->n_shards) != shard) continue;
        *to_ids++ = (uint64_t)ids[i];
        memcpy(to, values + i * load.width, load.width * sizeof *to);
        to += load.width;
    }
    return PS_OK;
}

static ps_err rows_load_all(pstrain_session *s, int table, const int64_t *ids, uint64_t n,
                            const float *values, bool with_state, uint64_t steps)
{
    pstrain_rows *r = s->rows;
    if (table < 0 || table >= r->n || (n > 0 && (!ids || !values)))
        return ps_err_set(PS_ERR_ARG, "pstrain_rows_load: table %d of %d, or a NULL",
                          table, r->n);
    const ps_rows_load load = {.table = (uint32_t)table,
                               .width = with_state ? pstrain_rows_width(s, table)
                                                   : r->specs[table].dim,
                               .steps = steps};
    const uint64_t most = LOAD_MOST_BYTES / (load.width * sizeof(float)) + 1;
    uint64_t at = 0;
    do {
        const uint64_t some = n - at < most ? n - at : most;
        for (uint32_t shard = 0; shard < r->n_shards; shard++)
            PS_TRY(rows_write_load(r, shard, ids + at, some, values + at * load.width,
                                   load));
        PS_TRY(ps_session_rows_send(s->session, PS_MSG_LOAD_ROWS, r->step, r->requests.of,
                                    NULL));
        PS_TRY(ps_session_rows_wait(s->session));
        at += some;
    } while (at < n);
    return PS_OK;
}

int pstrain_rows_load(pstrain_session *s, int table, const int64_t *ids, uint64_t n,
                      const float *values, int with_state, uint64_t steps)
{
    const ps_err err = rows_enter(s, "pstrain_rows_load");
    return err == PS_OK ? rows_leave(s, rows_load_all(s, table, ids, n, values,
                                                      with_state != 0, steps))
                        : (int)err;
}

/* next: 1 + partition + PS_ROW_PARTITIONS * shard. */
static ps_err rows_save_page(pstrain_session *s, int table, pstrain_rows_page *page)
{
    pstrain_rows *r = s->rows;
    if (table < 0 || table >= r->n || !page || page->struct_size < sizeof *page)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_rows_save: table %d of %d, or a wrong page", table,
                          r->n);
    const uint64_t from = page->next ? page->next - 1 : 0;
    const uint64_t shard = from / PS_ROW_PARTITIONS;
    if (shard >= r->n_shards)
        return ps_err_set(PS_ERR_ARG, "pstrain_rows_save: there is no page %" PRIu64,
                          page->next);
    const ps_rows_save save = {(uint32_t)table, (uint32_t)(from % PS_ROW_PARTITIONS)};
    for (uint32_t i = 0; i < r->n_shards; i++)
        r->requests.of[i].n = 0; // nothing goes to the others
    PS_TRY(rows_body_room(&r->requests, (uint32_t)shard, sizeof save));
    memcpy(r->requests.of[shard].bytes, &save, sizeof save);
    r->pages.of[shard].grows = true;
    r->pages.of[shard].most = PS_WIRE_BODY_BYTES;
    PS_TRY(ps_session_rows_send(s->session, PS_MSG_SAVE_ROWS, r->step, r->requests.of,
                                r->pages.of));
    PS_TRY(ps_session_rows_wait(s->session));
    ps_rows_page got;
    PS_TRY(ps_rows_page_read(r->pages.of[shard].bytes, r->pages.of[shard].n,
                             pstrain_rows_width(s, table), &got));
    page->n = got.n;
    page->ids = (const int64_t *)got.ids;
    page->values = got.values;
    page->steps = got.steps;
    if (got.next)
        page->next = 1 + got.next + PS_ROW_PARTITIONS * shard;
    else
        page->next = shard + 1 < r->n_shards ? 1 + PS_ROW_PARTITIONS * (shard + 1) : 0;
    return PS_OK;
}

int pstrain_rows_save(pstrain_session *s, int table, pstrain_rows_page *page)
{
    const ps_err err = rows_enter(s, "pstrain_rows_save");
    return err == PS_OK ? rows_leave(s, rows_save_page(s, table, page)) : (int)err;
}
