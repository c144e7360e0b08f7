#include "shard_twin_keep.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "row_walk.h"
#include "rows_body.h"

struct ps_twin_keep {
    uint32_t n;         // tables
    uint64_t room;      // of a piece of rows
    uint32_t of;        // the shard whose twin it is
    ps_row_store *kept; // owned; of that shard's partitions
    bool coming;        // a point's rows are
    ps_row_walk pages;
    uint64_t last;  // number of that shard's last message that was handled
    void *answer;   // to it: a whole body has room
    uint64_t bytes; // of the answer
};

uint64_t ps_twin_piece_bytes(const ps_row_store *store)
{
    return ps_row_walk_room(store,
                            PS_WIRE_PIECE_BYTES - ps_rows_twin_page_head(store->n));
}

uint64_t ps_twin_body_bytes(uint32_t n_tables, uint64_t piece_bytes)
{
    return piece_bytes + ps_rows_twin_point_bytes(n_tables); // a page's head is shorter
}

/* ---- life ---- */

static ps_err keep_open(ps_twin_keep *t, const ps_shard *s, const ps_row_store *own)
{
    const uint32_t shards = s->o.plan->n_shards,
                   each = shards / (uint32_t)s->o.config->job.servers;
    t->of = (s->index + shards - each) % shards;
    PS_TRY(ps_row_store_create_like(own, ps_row_first_partition(t->of, shards),
                                    ps_row_first_partition(t->of + 1, shards), &t->kept));
    ps_row_store *before = ps_rows_keeper_take(s->o.keeper, t->of);
    if (before && ps_row_store_fits(before, t->kept)) {
        ps_row_store_destroy(&t->kept);
        t->kept = before;
        before = NULL;
    }
    ps_row_store_destroy(&before);
    return ps_mem_zalloc(&t->answer, ps_twin_body_bytes(t->n, t->room), 1,
                         "rows for a twin");
}

ps_err ps_twin_keep_create(const ps_shard *s, const ps_row_store *own, ps_twin_keep **out)
{
    PS_TRY(PS_NEW(out, 1, "rows of another shard"));
    (*out)->n = own->n;
    (*out)->room = ps_twin_piece_bytes(own);
    const ps_err err = keep_open(*out, s, own);
    if (err != PS_OK) ps_twin_keep_destroy(out, s);
    return err;
}

void ps_twin_keep_destroy(ps_twin_keep **keep, const ps_shard *s)
{
    ps_twin_keep *t = *keep;
    if (!t) return;
    ps_row_walk_end(&t->pages);
    ps_rows_keeper_give(s->o.keeper, t->of, &t->kept);
    free(t->answer);
    free(t);
    *keep = NULL;
}

/* ---- messages ---- */

static void keep_answer_number(ps_twin_keep *t, uint64_t number)
{
    memcpy(t->answer, &number, sizeof number);
    t->bytes = sizeof number;
}

/* What came in part since then is undone. */
static ps_err keep_go_back(ps_twin_keep *t, uint64_t point)
{
    uint64_t step;
    return ps_row_store_go_back(t->kept, point, &step);
}

static ps_err keep_begin_point(ps_twin_keep *t, const ps_rows_twin_point *p)
{
    t->coming = false;
    if (ps_row_store_has(t->kept, p->point)) {
        keep_answer_number(t, PS_TWIN_WANTS_NOTHING);
        return keep_go_back(t, p->point);
    }
    t->coming = true;
    if (p->base != 0 && ps_row_store_has(t->kept, p->base)) {
        keep_answer_number(t, PS_TWIN_WANTS_CHANGES);
        return keep_go_back(t, p->base);
    }
    ps_row_store *empty;
    keep_answer_number(t, PS_TWIN_WANTS_ALL);
    PS_TRY(ps_row_store_create_like(t->kept, t->kept->tables[0].first_partition,
                                    t->kept->tables[0].end_partition, &empty));
    ps_row_store_destroy(&t->kept);
    t->kept = empty;
    return PS_OK;
}

static ps_err keep_take_point(ps_twin_keep *t, const void *body, uint64_t bytes)
{
    ps_rows_twin_point p;
    PS_TRY(ps_rows_twin_point_read(body, bytes, t->n, &p));
    ps_row_walk_end(&t->pages);
    if (!p.whole) return keep_begin_point(t, &p);
    if (!t->coming)
        return ps_err_set(PS_ERR_PROTOCOL, "the end of a point that has not begun");
    t->coming = false;
    memcpy(t->kept->clocks, p.clocks, t->n * sizeof *p.clocks);
    t->kept->loads = p.loads;
    keep_answer_number(t, PS_TWIN_WANTS_NOTHING);
    return ps_row_store_set_point(t->kept, p.point, p.step);
}

static ps_err keep_take_rows(ps_twin_keep *t, const void *body, uint64_t bytes)
{
    if (!t->coming)
        return ps_err_set(PS_ERR_PROTOCOL, "rows of a point that has not begun");
    keep_answer_number(t, 0);
    return ps_row_store_put(t->kept, body, bytes);
}

static ps_err keep_begin_pages(ps_twin_keep *t, uint64_t point)
{
    t->coming = false;
    PS_TRY(keep_go_back(t, point));
    ps_row_walk_begin(&t->pages, t->kept, false);
    return PS_OK;
}

static ps_err keep_take_ask(ps_twin_keep *t, const void *body, uint64_t bytes)
{
    uint64_t ask[2];
    const uint64_t head = ps_rows_twin_page_head(t->n);
    PS_TRY(ps_rows_twin_ask_read(body, bytes, ask));
    const bool has = ps_row_store_has(t->kept, ask[0]);
    if (has && ask[1]) PS_TRY(keep_begin_pages(t, ask[0]));
    if (has && !t->pages.store)
        return ps_err_set(PS_ERR_PROTOCOL, "a request for a page of rows out of turn");
    const struct ps_row_point *p = has ? &t->kept->points[t->kept->n_points - 1] : NULL;
    ps_rows_twin_page page = {.has = has ? PS_TWIN_HAS_MORE : PS_TWIN_HAS_NOTHING,
                              .step = has ? p->step : 0,
                              .loads = has ? p->loads : 0,
                              .clocks = has ? p->clocks : t->kept->clocks};
    if (has)
        PS_TRY(ps_row_walk_next(&t->pages, (uint8_t *)t->answer + head, t->room,
                                &page.bytes));
    if (has && page.bytes == 0) page.has = PS_TWIN_HAS_ALL;
    ps_rows_twin_page_write(t->answer, &page, t->n);
    t->bytes = head + page.bytes;
    return PS_OK;
}

static ps_err keep_handle(ps_twin_keep *t, int kind, const void *body, uint64_t bytes)
{
    switch (kind) {
    case PS_MSG_TWIN_POINT:
        return keep_take_point(t, body, bytes);
    case PS_MSG_TWIN_ROWS:
        return keep_take_rows(t, body, bytes);
    default:
        return keep_take_ask(t, body, bytes);
    }
}

/* A shard that is gone is no failure: the coordinator notices and decides. */
static ps_err keep_send_answer(const ps_twin_keep *t, ps_shard *s, const ps_frame_view *v)
{
    uint64_t sent = 0;
    const ps_wire_header h = {.version = PS_WIRE_VERSION,
                              .kind = PS_MSG_TWIN,
                              .nonce = s->rules.nonce,
                              .epoch = s->rules.epoch,
                              .count = t->bytes,
                              .rows.number = t->last};
    const ps_err err = ps_wire_send(s->router, v->id, v->id_bytes, &h, t->answer,
                                    t->bytes, PS_WIRE_COPY, &sent);
    s->router_idle = false;
    ps_counter_add(&s->bytes_sent, sent);
    return err == PS_ERR_PEER ? PS_OK : err;
}

static ps_err keep_take(ps_twin_keep *t, ps_shard *s, const ps_frame_view *v,
                        const ps_wire_frames *f, uint32_t from)
{
    ps_wire_header h;
    PS_TRY(ps_frame_check_twin(&s->rules, v, &h));
    if (!t || from != t->of)
        return ps_err_set(PS_ERR_PROTOCOL, "%s, but its twin is another shard",
                          ps_wire_kind_name(h.kind));
    if (h.rows.number == 0)
        return ps_err_set(PS_ERR_PROTOCOL, "%s without a number",
                          ps_wire_kind_name(h.kind));
    if (h.rows.number > t->last + 1) return PS_OK; // what is missing comes before it
    if (h.rows.number == t->last + 1) {
        t->last++;
        PS_TRY(keep_handle(t, h.kind, zmq_msg_data((zmq_msg_t *)(uintptr_t)&f->payload),
                           v->payload_bytes));
    }
    return keep_send_answer(t, s, v);
}

ps_err ps_twin_keep_take(ps_twin_keep *t, ps_shard *s, const ps_frame_view *v,
                         const ps_wire_frames *f, uint32_t from)
{
    const ps_err err = keep_take(t, s, v, f, from);
    return err == PS_OK ? PS_OK : ps_err_prefix(err, "shard %u sent its twin", from);
}
