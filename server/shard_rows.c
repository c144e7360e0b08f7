#include "shard_rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "mem.h"
#include "row_codec.h"
#include "row_table.h"
#include "rows_body.h"
#include "rows_order.h"
#include "shard_rows_arena.h"
#include "shard_rows_pages.h"
#include "shard_rows_peer.h"
#include "shard_rows_points.h"
#include "shard_twin_keep.h"

/* A KEEP_ROWS or RETURN_ROWS that waits for the twin. */
typedef struct rows_held {
    ps_rows_message m; // without its body; kind 0: none
    uint32_t rank;
    bool fetches;   // the rows; else the twin is told a point, and the answer is:
    uint8_t *bytes; // (n) owned
    uint64_t n;
    ps_shard_return back; // if it fetches
} rows_held;

struct ps_shard_rows {
    uint32_t n;           // tables
    ps_row_store *store;  // owned
    ps_row_store *before; // of the job that this process was in before; NULL: none
    ps_row_table *tables; // the store's
    ps_row_clock *clocks; // the store's
    ps_row_step *steps;   // by table: scratch
    uint64_t *dropped;    // by table: scratch, before the step
    uint64_t *ahead;      // by table: rows that were asked for ahead, to be counted
    uint64_t *ready;      // by table: those of them that were read at once
    uint64_t *at;         // by rank: scratch, where its gradients of a table begin
    const float **grads;  // by rank: scratch
    ps_rows_peer *peers;  // by rank
    uint64_t step;        // the present one: as many have been applied
    uint32_t n_pushed;    // of the present one
    bool touched;         // `steps` has all that is pulled in it
    bool coded;           // a table has a codec
    bool begun;           // the steps have
    ps_rows_order *order; // owned; NULL: rows.policy is bsp
    uint64_t returned;    // what the last RETURN_ROWS was answered
    ps_twin_feed *feed;   // of its own twin; NULL: rows.buddy is off
    ps_twin_keep *keep;   // as another one's twin; likewise
    rows_held held;       // until then the tables stay as they are
    ps_rows_spare spare;
    float *out;        // scratch: an answer
    uint64_t out_room; // elements
};

/* ---- life ---- */

static void rows_use_store(ps_shard_rows *r)
{
    r->tables = r->store->tables;
    r->clocks = r->store->clocks;
}

ps_err ps_shard_rows_open(ps_shard *s, const ps_row_spec *specs, int n)
{
    const size_t workers = s->rules.n_workers;
    const uint32_t shards = s->o.plan->n_shards;
    ps_shard_rows *r;
    ps_secret secret;
    ps_row_key key;
    const ps_config *c = s->o.config;
    const bool asp = n > 0 && c->rows.policy == PS_POLICY_ASP;
    const bool logs = *c->server.rows_log != '\0';
    if (!asp && (logs || *c->server.rows_replay))
        return ps_err_set(PS_ERR_CONFIG,
                          "%s: needs embedding tables with rows.policy asp",
                          logs ? "server.rows_log" : "server.rows_replay");
    PS_TRY(ps_row_figures_begin(&s->tables, specs, (uint32_t)n));
    if (n == 0) return PS_OK;
    PS_TRY(PS_NEW(&r, 1, "embedding tables"));
    s->rows = r;
    r->before = ps_rows_keeper_take(s->o.keeper, s->index);
    PS_TRY(ps_secret_draw(&secret));
    memcpy(&key, secret.bytes, sizeof key);
    const ps_row_disk disk = {c->server.rows_disk[0] ? c->server.rows_disk : NULL,
                              (uint64_t)c->server.rows_memory / shards *
                                  (uint64_t)c->job.servers};
    PS_TRY(ps_row_store_create(
        specs, (uint32_t)n, ps_row_first_partition(s->index, shards),
        ps_row_first_partition(s->index + 1, shards), &disk, &r->store));
    PS_TRY(PS_NEW(&r->steps, (size_t)n, "embedding tables"));
    PS_TRY(PS_NEW(&r->dropped, (size_t)n, "embedding tables"));
    PS_TRY(PS_NEW(&r->ahead, (size_t)n, "embedding tables"));
    PS_TRY(PS_NEW(&r->ready, (size_t)n, "embedding tables"));
    PS_TRY(PS_NEW(&r->peers, workers, "workers of tables"));
    PS_TRY(PS_NEW(&r->grads, workers, "workers of tables"));
    PS_TRY(PS_NEW(&r->at, workers, "workers of tables"));
    r->n = (uint32_t)n;
    s->rules.n_tables = n;
    rows_use_store(r);
    for (uint32_t t = 0; t < r->n; t++) {
        r->coded |= ps_row_codec_is_used(&specs[t]);
        PS_TRY(ps_row_step_init(&r->steps[t], (uint32_t)workers, key));
    }
    if (asp)
        PS_TRY(ps_rows_order_open(
            c, &(ps_rows_order_of){s->index, shards, (uint32_t)workers}, &r->order));
    if (!s->o.config->rows.buddy) return PS_OK;
    PS_TRY(ps_twin_keep_create(s, r->store, &r->keep));
    return s->member ? ps_twin_feed_create(s, r->store, &r->feed) : PS_OK;
}

void ps_shard_rows_close(ps_shard *s)
{
    ps_shard_rows *r = s->rows;
    if (!r) return;
    for (uint32_t i = 0; r->peers && i < s->rules.n_workers; i++)
        ps_rows_peer_fini(&r->spare, &r->peers[i]);
    for (uint32_t t = 0; r->steps && t < r->n; t++)
        ps_row_step_fini(&r->steps[t]);
    ps_shard_return_fini(&r->held.back);
    free(r->held.bytes);
    ps_rows_order_close(&r->order);
    ps_twin_feed_destroy(&r->feed);
    ps_twin_keep_destroy(&r->keep, s);
    // Where the workers had not come so far as to choose, they may do so the next time.
    ps_rows_keeper_give(s->o.keeper, s->index, r->before ? &r->before : &r->store);
    ps_row_store_destroy(&r->store);
    ps_rows_spare_fini(&r->spare);
    free(r->steps);
    free(r->dropped);
    free(r->ahead);
    free(r->ready);
    free(r->at);
    free(r->grads);
    free(r->peers);
    free(r->out);
    free(r);
    s->rows = NULL;
}

/* ---- answers ---- */

/* Bytes from `at` to `end` of an answer of n. */
static ps_err rows_answer_part(ps_shard *s, uint32_t rank, const ps_rows_message *m,
                               const void *bytes, uint64_t n, uint64_t at, uint64_t end)
{
    static const uint8_t none;
    do {
        const uint64_t left = end - at;
        const uint64_t piece = left < PS_WIRE_PIECE_BYTES ? left : PS_WIRE_PIECE_BYTES;
        PS_TRY(ps_shard_reply_rows(s, rank, m->step, m->number, n, at,
                                   n ? (const uint8_t *)bytes + at : &none, piece));
        at += piece;
    } while (at < end);
    return PS_OK;
}

static ps_err rows_answer(ps_shard *s, uint32_t rank, const ps_rows_message *m,
                          const void *bytes, uint64_t n)
{
    return rows_answer_part(s, rank, m, bytes, n, 0, n);
}

static ps_err rows_room(ps_shard_rows *r, uint64_t n)
{
    if (n <= r->out_room) return PS_OK;
    free(r->out);
    r->out = NULL;
    r->out_room = 0;
    PS_TRY(ps_mem_zalloc_large(&r->out, n * sizeof *r->out, "an answer of rows"));
    r->out_room = n;
    return PS_OK;
}

/* ---- messages ---- */

static ps_err rows_read_pull(const ps_shard_rows *r, const ps_rows_message *m,
                             ps_rows_pull *pull)
{
    PS_TRY(ps_rows_pull_read(m->body, m->bytes, r->n, pull));
    if (pull->places) pull->ids = (const uint64_t *)(const void *)(m->body + m->bytes);
    return PS_OK;
}

/* Puts the ids of a shared pull behind it. */
static ps_err rows_take_ids(ps_shard *s, uint32_t rank, ps_rows_message *m,
                            ps_rows_pull *pull)
{
    ps_shard_rows *r = s->rows;
    if (!pull->places) return PS_OK;
    PS_TRY(ps_rows_message_room(m, m->bytes + pull->n * sizeof *pull->ids));
    PS_TRY(rows_read_pull(r, m, pull)); // the body may have moved
    return ps_rows_arena_ids(s->peers[rank].rows, pull, r->tables, r->n,
                             (uint64_t *)(void *)(m->body + m->bytes));
}

static ps_err rows_check_pulled(const ps_shard_rows *r, const ps_rows_pull *pull)
{
    const uint64_t *ids = pull->ids;
    for (uint32_t t = 0; t < r->n; ids += pull->counts[t++])
        PS_TRY(ps_row_table_check_ids(&r->tables[t], pull->counts[t], ids));
    return PS_OK;
}

/* The rows as they are, with ids that were checked. */
static ps_err rows_answer_now(ps_shard *s, uint32_t rank, const ps_rows_message *m,
                              const ps_rows_pull *pull)
{
    ps_shard_rows *r = s->rows;
    const bool shared = pull->places != NULL;
    uint64_t floats = 0;
    for (uint32_t t = 0; t < r->n; t++)
        floats += (uint64_t)pull->counts[t] * r->tables[t].spec.dim;
    if (!shared) PS_TRY(rows_room(r, floats));
    const uint64_t *ids = pull->ids;
    float *out = r->out;
    for (uint32_t t = 0; t < r->n; t++) {
        const ps_row_spec *spec = &r->tables[t].spec;
        const uint64_t n = pull->counts[t];
        if (shared) out = ps_rows_arena_at(s->peers[rank].rows, pull->places[t].rows);
        if (n > 0) ps_row_table_read(&r->tables[t], n, ids, out);
        if (shared)
            ps_row_codec_round(spec, n, NULL, 0, out);
        else
            ps_row_codec_encode(spec, n, NULL, 0, out);
        ids += n;
        out += ps_row_codec_size(spec, n);
    }
    const uint64_t bytes = shared ? 0 : (uint64_t)(out - r->out) * sizeof *out;
    return rows_answer(s, rank, m, r->out, bytes);
}

/* As they are, too, in the form of what is asked for ahead. */
static ps_err rows_answer_ahead(ps_shard *s, uint32_t rank, const ps_rows_message *m,
                                const ps_rows_pull *pull)
{
    ps_shard_rows *r = s->rows;
    ps_rows_early e;
    ps_err err = ps_rows_early_init(&e, pull, NULL, r->tables, r->n);
    if (err == PS_OK) err = ps_rows_early_rest(&e, r->tables, r->n);
    if (err == PS_OK) err = rows_answer(s, rank, m, e.out, e.n_out);
    ps_rows_early_fini(&e);
    return err;
}

/* again: it was answered before, and nothing has changed since. */
static ps_err rows_pull(ps_shard *s, uint32_t rank, ps_rows_message *m, bool again)
{
    ps_shard_rows *r = s->rows;
    ps_rows_pull pull;
    PS_TRY(ps_rows_pull_read(m->body, m->bytes, r->n, &pull));
    const bool shared = pull.places != NULL;
    // What is in the arena outlives a connection; the worker may use it otherwise now.
    if (shared && again) return rows_answer(s, rank, m, NULL, 0);
    PS_TRY(rows_take_ids(s, rank, m, &pull));
    PS_TRY(rows_check_pulled(r, &pull));
    if (pull.trains && r->peers[rank].n_early > 0 && !again)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a request for rows of step %" PRIu64
                          " after one for the next step's",
                          m->step);
    PS_TRY(pull.ahead && !shared ? rows_answer_ahead(s, rank, m, &pull)
                                 : rows_answer_now(s, rank, m, &pull));
    if (!pull.trains || again) return PS_OK;
    r->peers[rank].begun |= !pull.ahead;
    return ps_rows_peer_keep_pull(&r->peers[rank], m);
}

/* ---- pulls of the next step ---- */

static ps_err rows_take_early(ps_shard *s, uint32_t rank, ps_rows_message *m)
{
    ps_shard_rows *r = s->rows;
    ps_rows_peer *p = &r->peers[rank];
    ps_rows_pull pull;
    PS_TRY(ps_rows_pull_read(m->body, m->bytes, r->n, &pull));
    PS_TRY(rows_take_ids(s, rank, m, &pull));
    PS_TRY(rows_check_pulled(r, &pull));
    if (!pull.trains || !pull.ahead)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a request for rows of step %" PRIu64
                          " in the step before, that does not ask ahead for gradients",
                          m->step);
    PS_TRY(ps_mem_room(&p->early, p->n_early, &p->early_room, sizeof *p->early,
                       "requests for rows"));
    ps_rows_ahead *e = &p->early[p->n_early++];
    *e = (ps_rows_ahead){.m = *m};
    *m = (ps_rows_message){0};
    p->begun = true;
    return ps_rows_early_init(&e->rows, &pull, s->peers[rank].rows, r->tables, r->n);
}

/* What is ready and not sent; nothing if that is only which rows are. */
static ps_err rows_send_ready(ps_shard *s, uint32_t rank, ps_rows_ahead *e)
{
    ps_rows_early *rows = &e->rows;
    const uint64_t head = rows->arena ? 0 : ps_rows_ahead_head(rows->pull.n);
    if (rows->n_ready == head || rows->n_sent == rows->n_ready) return PS_OK;
    const uint64_t from = rows->n_sent;
    rows->n_sent = rows->n_ready;
    return rows_answer_part(s, rank, &e->m, rows->out, rows->n_out, from, rows->n_sent);
}

void ps_shard_rows_connect(ps_shard *s, uint32_t rank)
{
    ps_rows_peer *p = s->rows ? &s->rows->peers[rank] : NULL;
    for (uint32_t i = 0; p && i < p->n_early; i++)
        p->early[i].rows.n_sent = 0;
}

/* The workers whose gradients are applied together. */
typedef struct rows_ranks {
    uint32_t first, end;
} rows_ranks;

static rows_ranks rows_all(const ps_shard *s)
{
    return (rows_ranks){0, s->rules.n_workers};
}

/* With asp, each by itself. */
static rows_ranks rows_together(const ps_shard *s, uint32_t rank)
{
    return s->rows->order ? (rows_ranks){rank, rank + 1} : rows_all(s);
}

/* Which ids their present step may change: of all pulls, once none of them makes another.
 */
static ps_err rows_find_touched(ps_shard *s, rows_ranks ranks)
{
    ps_shard_rows *r = s->rows;
    for (uint32_t t = 0; t < r->n; t++)
        ps_row_step_clear(&r->steps[t]);
    for (uint32_t rank = ranks.first; rank < ranks.end; rank++)
        for (uint32_t i = 0; i < r->peers[rank].n_pulls; i++) {
            ps_rows_pull pull;
            PS_TRY(rows_read_pull(r, &r->peers[rank].pulls[i], &pull));
            const uint64_t *ids = pull.ids;
            for (uint32_t t = 0; t < r->n; ids += pull.counts[t++])
                PS_TRY(ps_row_step_pull(&r->steps[t], rank, pull.counts[t], ids));
        }
    r->touched = ranks.end - ranks.first == s->rules.n_workers;
    return PS_OK;
}

/* Reads what the worker's step before does not change. */
static ps_err rows_look_early_of(ps_shard *s, uint32_t rank)
{
    ps_shard_rows *r = s->rows;
    ps_rows_peer *p = &r->peers[rank];
    for (uint32_t i = 0; i < p->n_early; i++) {
        if (p->early[i].looked) continue;
        if (!r->touched) PS_TRY(rows_find_touched(s, rows_together(s, rank)));
        p->early[i].looked = true;
        PS_TRY(ps_rows_early_read(&p->early[i].rows, r->tables, r->n, r->steps, r->clocks,
                                  p->step));
        PS_TRY(rows_send_ready(s, rank, &p->early[i]));
    }
    return PS_OK;
}

/* The same of all, once none of them looks up for the present step any more. */
static ps_err rows_look_early(ps_shard *s)
{
    const ps_shard_rows *r = s->rows;
    for (uint32_t rank = 0; rank < s->rules.n_workers; rank++)
        if (r->peers[rank].n_early == 0 && !r->peers[rank].push.kind) return PS_OK;
    for (uint32_t rank = 0; rank < s->rules.n_workers; rank++)
        PS_TRY(rows_look_early_of(s, rank));
    return PS_OK;
}

/* The step before is applied: the rest is read, and they are the present step's. */
static ps_err rows_answer_early(ps_shard *s, uint32_t rank)
{
    ps_shard_rows *r = s->rows;
    ps_rows_peer *p = &r->peers[rank];
    for (uint32_t i = 0; i < p->n_early; i++) {
        ps_rows_early *e = &p->early[i].rows;
        ps_rows_early_count(e, r->n, r->ahead, r->ready);
        PS_TRY(ps_rows_early_rest(e, r->tables, r->n));
        const bool whole = e->n_out > 0 && e->n_sent == e->n_out; // it has it already
        if (!whole)
            PS_TRY(rows_answer_part(s, rank, &p->early[i].m, e->out, e->n_out, e->n_sent,
                                    e->n_out));
        PS_TRY(ps_rows_peer_keep_pull(p, &p->early[i].m));
    }
    ps_rows_peer_forget_early(&r->spare, p);
    return PS_OK;
}

/* Makes the message one of float32, all in it: with an arena, several pulls have their
 * gradients in several places there. */
static ps_err rows_join(ps_shard *s, uint32_t rank, ps_rows_message *m,
                        const ps_rows_push *push, const ps_rows_pull *pulls)
{
    ps_shard_rows *r = s->rows;
    void *arena = s->peers[rank].rows;
    uint64_t n;
    PS_TRY(ps_rows_join_gradients(arena, push, pulls, r->tables, r->n, NULL, &n));
    const uint64_t head = ps_rows_push_head(r->n, push->n_pulls);
    ps_rows_message all = *m;
    all.body = NULL;
    all.room = 0;
    all.bytes = head + n * sizeof(float);
    PS_TRY(ps_rows_message_room(&all, all.bytes));
    memcpy(all.body, m->body, head);
    float *grads = (float *)(void *)(all.body + head);
    const ps_err err =
        ps_rows_join_gradients(arena, push, pulls, r->tables, r->n, grads, &n);
    ps_rows_message_free(&r->spare, err == PS_OK ? m : &all);
    if (err == PS_OK) *m = all;
    return err == PS_ERR_NUMERIC ? ps_err_prefix(err, "worker %u sent", rank) : err;
}

/* Looks whether the gradients are those of the pulls of the step. */
static ps_err rows_check_push(ps_shard *s, uint32_t rank, ps_rows_message *m,
                              const ps_rows_push *push, ps_rows_pull *pulls)
{
    ps_shard_rows *r = s->rows;
    ps_rows_peer *p = &r->peers[rank];
    bool shared = false;
    for (uint32_t i = 0; i < p->n_pulls; i++) {
        PS_TRY(rows_read_pull(r, &p->pulls[i], &pulls[i]));
        shared |= pulls[i].places != NULL;
    }
    const uint64_t n = ps_rows_push_size(push, pulls, r->tables, r->n);
    if (n != push->n)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "%" PRIu64 " bytes of gradients of rows; %" PRIu64
                          " were expected",
                          push->n * sizeof(float), n * sizeof(float));
    p->in_place = shared && p->n_pulls == 1;
    return (shared || r->coded) && !p->in_place ? rows_join(s, rank, m, push, pulls)
                                                : PS_OK;
}

/* Answered when the step is applied: until then the arena's gradients are needed. */
static ps_err rows_push(ps_shard *s, uint32_t rank, ps_rows_message *m)
{
    ps_rows_peer *p = &s->rows->peers[rank];
    ps_rows_push push;
    ps_rows_pull *pulls;
    PS_TRY(ps_rows_push_read(m->body, m->bytes, s->rows->n, &push));
    if (push.n_pulls != p->n_pulls)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "gradients of %u requests for rows; it made %u in step "
                          "%" PRIu64,
                          push.n_pulls, p->n_pulls, m->step);
    PS_TRY(PS_NEW(&pulls, p->n_pulls, "requests for rows"));
    const ps_err err = rows_check_push(s, rank, m, &push, pulls);
    free(pulls);
    PS_TRY(err);
    p->push = *m;
    *m = (ps_rows_message){0};
    p->begun = true;
    s->rows->n_pushed++;
    ps_counter_add(&s->pushes, 1);
    return PS_OK;
}

/* asp: once all have begun a step, the tables are those of no step any more. */
static ps_err rows_check_between(const ps_shard *s, uint32_t rank)
{
    const ps_shard_rows *r = s->rows;
    if (!r->order || !r->peers[rank].begun) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "worker %u saves or loads the rows within step %" PRIu64
                      ": with rows.policy asp this has its place between two steps, "
                      "before the first lookup",
                      rank, r->step);
}

/* Where rows were asked for ahead, those before it may be on their way: the workers
 * forget them. */
static ps_err rows_load(ps_shard *s, uint32_t rank, const ps_rows_message *m)
{
    ps_shard_rows *r = s->rows;
    PS_TRY(rows_check_between(s, rank));
    PS_TRY(ps_shard_rows_load(r->store, r->step, m->body, m->bytes));
    return rows_answer(s, rank, m, NULL, 0);
}

static ps_err rows_save(ps_shard *s, uint32_t rank, const ps_rows_message *m)
{
    void *page;
    uint64_t n;
    PS_TRY(rows_check_between(s, rank));
    PS_TRY(
        ps_shard_rows_page(s->rows->store, s->rows->step, m->body, m->bytes, &page, &n));
    const ps_err err = rows_answer(s, rank, m, page, n);
    free(page);
    return err;
}

/* ---- KEEP_ROWS, RETURN_ROWS ---- */

/* Of KEEP_ROWS and RETURN_ROWS. What all workers have sent was the last message of each.
 */
static ps_err rows_answer_of_point(ps_shard *s, uint32_t rank, const ps_rows_message *m,
                                   const void *bytes, uint64_t n)
{
    if (m->step != PS_ROWS_ALL_RETURN) return rows_answer(s, rank, m, bytes, n);
    for (uint32_t i = 0; i < s->rules.n_workers; i++) {
        const ps_rows_message own = {.step = m->step,
                                     .number = s->rows->peers[i].handled};
        PS_TRY(rows_answer(s, i, &own, bytes, n));
    }
    return PS_OK;
}

/* Answers with n bytes, which it takes: with rows.buddy once the twin has the newest
 * point. */
static ps_err rows_answer_point(ps_shard *s, uint32_t rank, const ps_rows_message *m,
                                void *bytes, uint64_t n)
{
    ps_shard_rows *r = s->rows;
    if (r->feed) {
        r->held =
            (rows_held){.m = {.kind = m->kind, .number = m->number, .step = m->step},
                        .rank = rank,
                        .bytes = bytes,
                        .n = n};
        return ps_twin_feed_tell(r->feed, s, r->store);
    }
    const ps_err err = rows_answer_of_point(s, rank, m, bytes, n);
    free(bytes);
    return err;
}

static uint64_t rows_newest_point(const ps_shard_rows *r)
{
    return r->store->points[r->store->n_points - 1].point;
}

static ps_err rows_keep(ps_shard *s, uint32_t rank, const ps_rows_message *m)
{
    void *answer;
    uint64_t n;
    PS_TRY(rows_check_between(s, rank));
    PS_TRY(ps_shard_rows_keep(s->rows->store, s->index, m->step, m->body, m->bytes,
                              &answer, &n));
    if (s->rows->order)
        ps_rows_order_keep(s->rows->order, m->step, rows_newest_point(s->rows));
    return rows_answer_point(s, rank, m, answer, n);
}

/* Nobody wants the answers any more, but the workers' memory is not free before. */
static ps_err rows_break_step_off(ps_shard *s)
{
    ps_shard_rows *r = s->rows;
    for (uint32_t i = 0; i < s->rules.n_workers; i++) {
        ps_rows_peer *p = &r->peers[i];
        PS_TRY(rows_answer_early(s, i));
        if (p->push.kind) PS_TRY(rows_answer(s, i, &p->push, NULL, 0));
        ps_rows_peer_end_step(&r->spare, p);
        p->step = r->step;
        p->begun = false;
    }
    r->n_pushed = 0;
    r->touched = false;
    return r->order ? ps_rows_order_go_back(r->order, r->step, rows_newest_point(r))
                    : PS_OK;
}

/* The tables are those of the point, if it was found. */
static ps_err rows_have_returned(ps_shard *s, uint32_t rank, const ps_rows_message *m,
                                 bool found)
{
    ps_shard_rows *r = s->rows;
    uint64_t *answer;
    rows_use_store(r);
    if (found) PS_TRY(rows_break_step_off(s));
    r->returned = found;
    PS_TRY(PS_NEW(&answer, 1, "an answer of rows"));
    *answer = found;
    if (found) return rows_answer_point(s, rank, m, answer, sizeof *answer);
    const ps_err err = rows_answer_of_point(s, rank, m, answer, sizeof *answer);
    free(answer);
    return err;
}

static ps_err rows_return_from_files(ps_shard *s, uint32_t rank, const ps_rows_message *m,
                                     const ps_shard_return *back)
{
    ps_shard_rows *r = s->rows;
    bool found;
    PS_TRY(ps_shard_rows_return_from_files(&r->store, s->index, s->o.plan->n_shards, back,
                                           &r->step, &found));
    return rows_have_returned(s, rank, m, found);
}

/* Looks for the point in its own memory, then in its twin's, then in files. Takes what is
 * in *back. */
static ps_err rows_look_for_point(ps_shard *s, uint32_t rank, const ps_rows_message *m,
                                  ps_shard_return *back)
{
    ps_shard_rows *r = s->rows;
    bool found;
    const ps_err err =
        ps_shard_rows_return(&r->store, &r->before, back->point, &r->step, &found);
    rows_use_store(r);
    PS_TRY(err);
    if (found) return rows_have_returned(s, rank, m, true);
    if (!r->feed) return rows_return_from_files(s, rank, m, back);
    r->held = (rows_held){.m = {.kind = m->kind, .number = m->number, .step = m->step},
                          .rank = rank,
                          .fetches = true,
                          .back = *back};
    back->manifest = (ps_row_manifest){0};
    return ps_twin_feed_fetch(r->feed, s, r->store, back->point);
}

static ps_err rows_return(ps_shard *s, uint32_t rank, const ps_rows_message *m)
{
    ps_shard_return back;
    ps_err err = ps_shard_return_read(m->body, m->bytes, &back);
    if (err == PS_OK) err = rows_look_for_point(s, rank, m, &back);
    ps_shard_return_fini(&back);
    return err;
}

/* The twin's rows at the point are here, or it has none. */
static ps_err rows_have_fetched(ps_shard *s, const rows_held *held)
{
    ps_shard_rows *r = s->rows;
    ps_row_store *fetched = ps_twin_feed_take_fetched(r->feed);
    if (!fetched) return rows_return_from_files(s, held->rank, &held->m, &held->back);
    ps_shard_rows_replace(&r->store, &fetched);
    r->step = r->store->points[0].step;
    PS_INFO("rows", "step=%" PRIu64 " from=\"memory of server %u\"", r->step,
            ps_twin_feed_server(r->feed));
    return rows_have_returned(s, held->rank, &held->m, true);
}

/* ---- the step ---- */

/* Notes what has a gradient of a table, and finds the gradients. */
static ps_err rows_gather(ps_shard *s, rows_ranks ranks, uint32_t t, bool *any)
{
    ps_shard_rows *r = s->rows;
    *any = false;
    ps_row_step_clear(&r->steps[t]);
    memset(r->grads, 0, s->rules.n_workers * sizeof(*r->grads));
    for (uint32_t rank = ranks.first; rank < ranks.end; rank++) {
        const ps_rows_peer *p = &r->peers[rank];
        ps_rows_push push;
        PS_TRY(ps_rows_push_read(p->push.body, p->push.bytes, r->n, &push));
        for (uint32_t i = 0; i < p->n_pulls; i++) {
            ps_rows_pull pull;
            if (!push.has[i * r->n + t]) continue;
            PS_TRY(rows_read_pull(r, &p->pulls[i], &pull));
            PS_TRY(ps_row_step_pull(&r->steps[t], rank, pull.counts[t],
                                    ps_rows_pull_ids(&pull, t)));
            r->grads[rank] =
                p->in_place ? ps_rows_arena_at(s->peers[rank].rows, pull.places[t].grads)
                            : push.grads + r->at[rank];
            *any = true;
        }
        r->at[rank] +=
            (uint64_t)ps_row_step_rows(&r->steps[t], rank) * r->tables[t].spec.dim;
    }
    return PS_OK;
}

static uint64_t rows_dropped(ps_row_table *table)
{
    const ps_row_stats *stats = ps_row_table_stats(table);
    return stats->evicted + stats->expired;
}

/* For those who watch the job. */
static void rows_count(ps_shard *s)
{
    ps_shard_rows *r = s->rows;
    uint64_t rows = 0, bytes = 0;
    for (uint32_t t = 0; t < r->n; t++) {
        const ps_row_stats *stats = ps_row_table_stats(&r->tables[t]);
        const uint64_t now[PS_ROW_FIGURES] = {
            [PS_ROW_FIGURE_ROWS] = stats->rows,
            [PS_ROW_FIGURE_BYTES] = stats->bytes,
            [PS_ROW_FIGURE_STEPPED] = r->steps[t].touched.n,
            [PS_ROW_FIGURE_DROPPED] = rows_dropped(&r->tables[t]) - r->dropped[t],
            [PS_ROW_FIGURE_AHEAD] = r->ahead[t],
            [PS_ROW_FIGURE_READY] = r->ready[t]};
        ps_row_figures_count(&s->tables, t, now);
        r->ahead[t] = r->ready[t] = 0;
        ps_counter_add(&s->rows_stepped, now[PS_ROW_FIGURE_STEPPED]);
        ps_counter_add(&s->rows_dropped, now[PS_ROW_FIGURE_DROPPED]);
        rows += stats->rows;
        bytes += stats->bytes;
    }
    ps_counter_set(&s->rows_now, rows);
    ps_counter_set(&s->rows_bytes, bytes);
}

static ps_err rows_apply(ps_shard *s, rows_ranks ranks)
{
    ps_shard_rows *r = s->rows;
    const uint64_t begin_ns = ps_clock_ns();
    const ps_rows_message *m = &r->peers[ranks.first].push;
    ps_rows_push first;
    PS_TRY(ps_rows_push_read(m->body, m->bytes, r->n, &first));
    memset(r->at, 0, s->rules.n_workers * sizeof *r->at);
    for (uint32_t t = 0; t < r->n; t++) {
        bool any;
        PS_TRY(rows_gather(s, ranks, t, &any));
        r->clocks[t].made += any;
        const ps_row_update update = {.lr = first.rates[t],
                                      .t = r->clocks[t].made,
                                      .step = r->step + r->clocks[t].ahead};
        r->dropped[t] = rows_dropped(&r->tables[t]);
        const ps_err err =
            ps_row_table_apply(&r->tables[t], &r->steps[t], &update, r->grads);
        if (err == PS_ERR_NUMERIC)
            return ps_err_prefix(err, "in step %" PRIu64 " of the rows", r->step);
        PS_TRY(err);
    }
    r->touched = false;
    for (uint32_t rank = ranks.first; rank < ranks.end; rank++) {
        ps_rows_peer *p = &r->peers[rank];
        if (r->order) ps_rows_order_add(r->order, r->step, rank, PS_ROWS_TURN_APPLY);
        PS_TRY(rows_answer(s, rank, &p->push, NULL, 0));
        ps_rows_peer_end_step(&r->spare, p);
        p->step++;
        p->begun = false;
    }
    for (uint32_t rank = ranks.first; rank < ranks.end; rank++)
        PS_TRY(rows_answer_early(s, rank));
    rows_count(s);
    ps_counter_add_since(&s->apply_ns, begin_ns);
    return PS_OK;
}

/* asp: applies what is in. It waits until each worker has begun the step: before, a
 * checkpoint may be made between it and the step before. */
static ps_err rows_apply_each(ps_shard *s, bool *any, bool *all)
{
    ps_shard_rows *r = s->rows;
    const uint32_t n = s->rules.n_workers;
    *all = false;
    for (uint32_t rank = 0; rank < n; rank++)
        if (!r->peers[rank].begun && r->peers[rank].step == r->step) return PS_OK;
    *all = r->n_pushed == n;
    for (uint32_t rank = 0; rank < n; rank++) {
        bool may;
        if (!r->peers[rank].push.kind) continue;
        PS_TRY(ps_rows_order_may(r->order, rank, PS_ROWS_TURN_APPLY, &may));
        *any |= may;
        *all &= may;
        if (may) PS_TRY(rows_apply(s, rows_together(s, rank)));
    }
    return PS_OK;
}

/* Applies what is due, and ends the step of which all is applied. */
static ps_err rows_apply_due(ps_shard *s, bool *any)
{
    ps_shard_rows *r = s->rows;
    bool all = r->n_pushed == s->rules.n_workers;
    if (r->held.m.kind) return PS_OK;
    if (r->order)
        PS_TRY(rows_apply_each(s, any, &all));
    else if (all)
        PS_TRY(rows_apply(s, rows_all(s)));
    if (!all) return PS_OK;
    if (r->order) ps_rows_order_end_step(r->order, r->step);
    *any = true;
    r->n_pushed = 0;
    r->step++;
    return PS_OK;
}

/* ---- order ---- */

static ps_err rows_handle(ps_shard *s, uint32_t rank, ps_rows_message *m, bool again)
{
    ps_rows_ahead *early;
    // What the job before had is not wanted any more.
    if (m->kind != PS_MSG_RETURN_ROWS) ps_row_store_destroy(&s->rows->before);
    switch (m->kind) {
    case PS_MSG_KEEP_ROWS:
        return rows_keep(s, rank, m);
    case PS_MSG_RETURN_ROWS:
        return rows_return(s, rank, m);
    case PS_MSG_PULL_ROWS:
        s->rows->begun = true;
        if (m->step > s->rows->peers[rank].step && !again)
            return rows_take_early(s, rank, m);
        early = ps_rows_peer_early(&s->rows->peers[rank], m->number);
        return early ? rows_send_ready(s, rank, early) : rows_pull(s, rank, m, again);
    case PS_MSG_SAVE_ROWS:
        return rows_save(s, rank, m);
    case PS_MSG_LOAD_ROWS:
        return again ? rows_answer(s, rank, m, NULL, 0) : rows_load(s, rank, m);
    default:
        s->rows->begun = true;
        if (!again) return rows_push(s, rank, m);
        return m->number ==
                       s->rows->peers[rank].push.number // its step is not applied yet
                   ? PS_OK
                   : rows_answer(s, rank, m, NULL, 0);
    }
}

/* While the twin is told a point the tables stay as they are: rows may be read, and
 * gradients come; while they are fetched nobody uses them. */
static bool rows_may_handle(const ps_shard_rows *r, const ps_rows_message *m)
{
    const bool changes = m->kind != PS_MSG_PULL_ROWS && m->kind != PS_MSG_PUSH_ROWS &&
                         m->kind != PS_MSG_SAVE_ROWS;
    return !r->held.m.kind || !(r->held.fetches || changes);
}

/* Whether the worker's first waiting message is of its present step, or asks ahead. A
 * worker that is a step ahead of others, with asp, looks rows up, and no more. */
static ps_err rows_is_due(const ps_shard_rows *r, uint32_t rank, bool *due)
{
    const ps_rows_peer *p = &r->peers[rank];
    const ps_rows_message *m = &p->waiting[0];
    const bool pulls = m->kind == PS_MSG_PULL_ROWS;
    const bool ahead = pulls && !p->push.kind && m->step == r->step + 1;
    *due = p->n_waiting > 0 && rows_may_handle(r, m) &&
           (p->step == r->step ? m->step == r->step || ahead : ahead);
    return *due && pulls && r->order
               ? ps_rows_order_may(r->order, rank, PS_ROWS_TURN_PULL, due)
               : PS_OK;
}

static ps_err rows_handle_first(ps_shard *s, uint32_t rank)
{
    ps_shard_rows *r = s->rows;
    ps_rows_peer *p = &r->peers[rank];
    ps_rows_message m = ps_rows_peer_take_first(p);
    const ps_rows_turn turn = m.step > p->step   ? PS_ROWS_TURN_AHEAD
                              : m.step > r->step ? PS_ROWS_TURN_NEXT
                                                 : PS_ROWS_TURN_PULL;
    const bool pulls = m.kind == PS_MSG_PULL_ROWS;
    s->speaker = rank;
    ps_err err = p->push.kind ? ps_err_set(PS_ERR_PROTOCOL,
                                           "%s of step %" PRIu64
                                           " of the rows after that step's gradients",
                                           ps_wire_kind_name(m.kind), m.step)
                              : rows_handle(s, rank, &m, false);
    ps_rows_message_free(&r->spare, &m);
    if (err != PS_OK || !pulls || !r->order) return err;
    ps_rows_order_add(r->order, r->step, rank, turn);
    return rows_look_early_of(s, rank);
}

/* Whether all workers have sent, as their next message, that all go back. */
static bool rows_all_return(const ps_shard *s)
{
    for (uint32_t rank = 0; rank < s->rules.n_workers; rank++) {
        const ps_rows_peer *p = &s->rows->peers[rank];
        const ps_rows_message *m = &p->waiting[0];
        if (p->n_waiting == 0 || m->kind != PS_MSG_RETURN_ROWS ||
            m->step != PS_ROWS_ALL_RETURN || !rows_may_handle(s->rows, m))
            return false;
    }
    return true;
}

static ps_err rows_return_all(ps_shard *s)
{
    ps_shard_rows *r = s->rows;
    ps_rows_message m = ps_rows_peer_take_first(&r->peers[0]);
    for (uint32_t rank = 1; rank < s->rules.n_workers; rank++) {
        ps_rows_message same = ps_rows_peer_take_first(&r->peers[rank]);
        ps_rows_message_free(&r->spare, &same);
    }
    s->speaker = 0;
    const ps_err err = rows_return(s, 0, &m);
    ps_rows_message_free(&r->spare, &m);
    return err;
}

/* Handles all that is due, of all workers. */
static ps_err rows_go_on(ps_shard *s)
{
    ps_shard_rows *r = s->rows;
    for (bool any = true; any;) {
        any = false;
        for (uint32_t rank = 0; rank < s->rules.n_workers; rank++)
            for (bool due = true; due;) {
                PS_TRY(rows_is_due(r, rank, &due));
                any |= due;
                if (due) PS_TRY(rows_handle_first(s, rank));
            }
        PS_TRY(rows_apply_due(s, &any));
        if (!any && rows_all_return(s)) {
            any = true;
            PS_TRY(rows_return_all(s));
        }
    }
    if (!r->order) PS_TRY(rows_look_early(s));
    return ps_shard_rows_check_left(s);
}

/* ---- the twin ---- */

static ps_err rows_end_held(ps_shard *s)
{
    ps_shard_rows *r = s->rows;
    rows_held held = r->held;
    r->held = (rows_held){0};
    const ps_err err =
        held.fetches ? rows_have_fetched(s, &held)
                     : rows_answer_of_point(s, held.rank, &held.m, held.bytes, held.n);
    ps_shard_return_fini(&held.back);
    free(held.bytes);
    return err;
}

ps_err ps_shard_rows_hear_twin(ps_shard *s)
{
    bool done;
    PS_TRY(ps_twin_feed_hear(s->rows->feed, s, &done));
    if (!done) return PS_OK;
    PS_TRY(rows_end_held(s));
    return rows_go_on(s);
}

ps_twin_feed *ps_shard_rows_feed(const ps_shard *s)
{
    return s->rows ? s->rows->feed : NULL;
}

ps_err ps_shard_rows_take_of_twin(ps_shard *s, const ps_frame_view *v,
                                  const ps_wire_frames *f, uint32_t from)
{
    return ps_twin_keep_take(s->rows ? s->rows->keep : NULL, s, v, f, from);
}

/* ---- arrival ---- */

static ps_err rows_refuse(const ps_wire_header *h, const char *what)
{
    return ps_err_set(
        PS_ERR_PROTOCOL,
        "%s %" PRIu64 " (byte %" PRIu64 " of %" PRIu64 ", step %" PRIu64 "), %s",
        ps_wire_kind_name(h->kind), h->rows.number, h->rows.at, h->count, h->step, what);
}

/* A message that came whole before. It waits still, or is answered again. */
static ps_err rows_repeated(ps_shard *s, uint32_t rank, ps_rows_message *m)
{
    ps_rows_peer *p = &s->rows->peers[rank];
    ps_counter_add(&s->repeated, 1);
    if (m->number > p->handled) return PS_OK;
    const bool of_point = m->kind == PS_MSG_KEEP_ROWS || m->kind == PS_MSG_RETURN_ROWS;
    if (of_point && s->rows->held.m.kind) return PS_OK; // it will be answered
    if (m->kind == PS_MSG_RETURN_ROWS)                  // others may have gone on since
        return rows_answer(s, rank, m, &s->rows->returned, sizeof s->rows->returned);
    return rows_handle(s, rank, m, true);
}

ps_err ps_shard_rows_take(ps_shard *s, const ps_wire_header *h, ps_wire_frames *f)
{
    ps_rows_peer *p = &s->rows->peers[h->rank];
    ps_rows_message *m = &p->coming;
    s->peers[h->rank].owed += zmq_msg_size(&f->payload);
    PS_TRY(ps_rows_message_add(&s->rows->spare, m, h, f));
    if (m->got < m->bytes) return ps_shard_reply_short(s, PS_MSG_CREDIT, h->rank, 0);
    const uint64_t newest = p->handled + (uint64_t)p->n_waiting;
    // Those before it were lost with a connection: it comes again behind them.
    const bool ahead = m->number > newest + 1;
    if (m->number <= newest || ahead) {
        if (!ahead) PS_TRY(rows_repeated(s, h->rank, m));
        return ps_shard_reply_short(s, PS_MSG_CREDIT, h->rank, 0);
    }
    if (p->n_waiting == PS_ROWS_WAITING_MOST || m->step < p->step)
        return rows_refuse(h, "which is out of turn");
    p->waiting[p->n_waiting++] = *m;
    *m = (ps_rows_message){0};
    PS_TRY(rows_go_on(s));
    return s->peers[h->rank].owed ? ps_shard_reply_short(s, PS_MSG_CREDIT, h->rank, 0)
                                  : PS_OK;
}

/* ---- readers ---- */

bool ps_shard_rows_have_begun(const ps_shard *s)
{
    return s->rows->begun;
}

ps_err ps_shard_rows_tell_tables(const ps_shard *s, ps_mp_writer *w)
{
    const ps_shard_rows *r = s->rows;
    const ps_row_spec **specs;
    PS_TRY(PS_NEW(&specs, r->n, "embedding tables"));
    for (uint32_t t = 0; t < r->n; t++)
        specs[t] = &r->tables[t].spec;
    ps_rows_tables_write(w, s->o.plan->n_shards, specs, r->n);
    free(specs);
    return ps_mp_writer_end(w);
}

/* Elements of the rows that are asked for. */
static ps_err rows_look_size(const ps_shard_rows *r, const ps_rows_ask *ask, uint64_t *n)
{
    const uint64_t *ids = ask->ids;
    *n = 0;
    for (uint32_t t = 0; t < r->n; t++) {
        PS_TRY(ps_row_table_check_ids(&r->tables[t], ask->counts[t], ids));
        *n += (uint64_t)ask->counts[t] * r->tables[t].spec.dim;
        ids += ask->counts[t];
    }
    if (*n <= PS_WIRE_READ_BYTES / sizeof(float)) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "READ_ROWS of %" PRIu64 " rows: they are too many",
                      ask->n);
}

ps_err ps_shard_rows_look(ps_shard *s, const void *body, uint64_t bytes, const void **out,
                          uint64_t *out_bytes, uint64_t *step)
{
    ps_shard_rows *r = s->rows;
    ps_rows_ask ask;
    uint64_t n;
    PS_TRY(ps_rows_ask_read(body, bytes, r->n, &ask));
    PS_TRY(rows_look_size(r, &ask, &n));
    PS_TRY(rows_room(r, n));
    float *at = r->out;
    for (uint32_t t = 0; t < r->n; t++) {
        ps_row_table_read(&r->tables[t], ask.counts[t], ask.ids, at);
        ask.ids += ask.counts[t];
        at += (uint64_t)ask.counts[t] * r->tables[t].spec.dim;
    }
    *out = r->out;
    *out_bytes = n * sizeof(float);
    *step = r->step;
    return PS_OK;
}

/* ---- workers that have left ---- */

ps_err ps_shard_rows_check_left(const ps_shard *s)
{
    const ps_shard_rows *r = s->rows;
    int64_t gone = -1, waits = -1;
    if (!r || s->n_left == 0) return PS_OK;
    for (uint32_t i = s->rules.n_workers; i-- > 0;) {
        if (s->peers[i].left && !r->peers[i].push.kind && r->peers[i].step == r->step)
            gone = i;
        if (r->peers[i].push.kind || r->peers[i].n_waiting > 0) waits = i;
    }
    if (gone < 0 || waits < 0) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "worker %" PRId64 " has ended before step %" PRIu64
                      " of the embedding tables, and worker %" PRId64
                      " waits for its gradients: every rank must make the same number of "
                      "steps: give each equally many batches (DistributedSampler, "
                      "drop_last=True)",
                      gone, r->step + 1, waits);
}
