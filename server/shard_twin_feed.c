#include "shard_twin_feed.h"

#include <stdlib.h>
#include <string.h>

#include "fault_point.h"
#include "mem.h"
#include "row_walk.h"
#include "rows_body.h"
#include "shard_twin_keep.h"
#include "twin_link.h"

enum { ANSWERS_PER_POLL = 8 }; // then chunks have their turn

struct ps_twin_feed {
    uint32_t n;    // tables
    uint64_t room; // of a piece of rows
    ps_twin_link *link;
    uint32_t server; // that has the twin
    enum {
        FEED_RESTS,
        FEED_OFFERS,  // a point, and waits for what the twin wants
        FEED_TELLS,   // its rows
        FEED_ENDS,    // has told all
        FEED_FETCHES, // rows from the twin
    } does;
    const ps_row_store *store; // whose point is told, or fetched; borrowed
    ps_row_walk walk;
    ps_row_store *fetched; // owned
    uint64_t point;        // of them
    ps_wire_frames frames;
};

/* ---- life ---- */

static ps_err feed_connect(ps_twin_feed *t, const ps_shard *s)
{
    const ps_roster *roster = ps_member_roster(s->member);
    const uint32_t n = (uint32_t)roster->n_servers, each = s->o.plan->n_shards / n;
    t->server = (s->index / each + 1) % n;
    const ps_roster_entry *server = &roster->servers[t->server];
    if ((uint32_t)server->n_endpoints != each)
        return ps_err_set(PS_ERR_PEER, "server %u has %d shards, this one has %u",
                          t->server, server->n_endpoints, each);
    const ps_twin_link_options o = {.zmq_context = s->o.zmq_context,
                                    .member = s->member,
                                    .shard = s->index,
                                    .endpoint = server->endpoints[s->index % each],
                                    .body_bytes = ps_twin_body_bytes(t->n, t->room)};
    return ps_twin_link_create(&o, &t->link);
}

ps_err ps_twin_feed_create(const ps_shard *s, const ps_row_store *own, ps_twin_feed **out)
{
    PS_TRY(PS_NEW(out, 1, "the feed of a twin"));
    (*out)->n = own->n;
    (*out)->room = ps_twin_piece_bytes(own);
    ps_wire_frames_open(&(*out)->frames);
    const ps_err err = feed_connect(*out, s);
    if (err != PS_OK) ps_twin_feed_destroy(out);
    return err;
}

void ps_twin_feed_close(ps_twin_feed *t)
{
    if (t) ps_twin_link_destroy(&t->link);
}

void ps_twin_feed_destroy(ps_twin_feed **feed)
{
    ps_twin_feed *t = *feed;
    if (!t) return;
    ps_twin_feed_close(t);
    ps_row_walk_end(&t->walk);
    ps_row_store_destroy(&t->fetched);
    ps_wire_frames_close(&t->frames);
    free(t);
    *feed = NULL;
}

/* ---- telling ---- */

static ps_err feed_send(ps_twin_feed *t, ps_shard *s, ps_msg_kind kind, uint64_t bytes)
{
    uint64_t sent = 0;
    PS_TRY(ps_twin_link_send(t->link, kind, bytes, &sent));
    ps_counter_add(&s->bytes_sent, sent);
    return PS_OK;
}

/* The newest point of what is fed: to begin with, or whole. */
static ps_err feed_send_point(ps_twin_feed *t, ps_shard *s, bool whole)
{
    const struct ps_row_point *p = &t->store->points[t->store->n_points - 1];
    const ps_rows_twin_point point = {
        .base = ps_row_walk_can_tell_changes(t->store) ? t->store->base : 0,
        .point = p->point,
        .step = p->step,
        .loads = p->loads,
        .whole = whole,
        .clocks = p->clocks};
    ps_rows_twin_point_write(ps_twin_link_body(t->link), &point, t->n);
    return feed_send(t, s, PS_MSG_TWIN_POINT, ps_rows_twin_point_bytes(t->n));
}

ps_err ps_twin_feed_tell(ps_twin_feed *t, ps_shard *s, const ps_row_store *store)
{
    t->store = store;
    t->does = FEED_OFFERS;
    return feed_send_point(t, s, false);
}

static ps_err feed_ask(ps_twin_feed *t, ps_shard *s, bool first)
{
    const uint64_t ask[2] = {t->point, first};
    memcpy(ps_twin_link_body(t->link), ask, sizeof ask);
    return feed_send(t, s, PS_MSG_TWIN_ASK, sizeof ask);
}

ps_err ps_twin_feed_fetch(ps_twin_feed *t, ps_shard *s, const ps_row_store *like,
                          uint64_t point)
{
    ps_row_store_destroy(&t->fetched);
    t->store = like;
    t->point = point;
    t->does = FEED_FETCHES;
    return feed_ask(t, s, true);
}

/* As many pieces as may be on the way; then that these were all. */
static ps_err feed_go_on(ps_twin_feed *t, ps_shard *s)
{
    void *body;
    while (t->does == FEED_TELLS && (body = ps_twin_link_body(t->link))) {
        uint64_t bytes;
        PS_TRY(ps_row_walk_next(&t->walk, body, t->room, &bytes));
        if (bytes == 0) {
            ps_row_walk_end(&t->walk);
            t->does = FEED_ENDS;
            return feed_send_point(t, s, true);
        }
        PS_TRY(feed_send(t, s, PS_MSG_TWIN_ROWS, bytes));
        PS_FAULT_POINT("rows.twin");
    }
    return PS_OK;
}

static ps_err feed_hear_wants(ps_twin_feed *t, ps_shard *s, const void *body,
                              uint64_t bytes)
{
    uint64_t wants;
    PS_TRY(ps_rows_twin_number_read(body, bytes, PS_TWIN_WANTS, &wants));
    t->does = wants == PS_TWIN_WANTS_NOTHING ? FEED_RESTS : FEED_TELLS;
    if (t->does == FEED_RESTS) return PS_OK;
    ps_row_walk_begin(&t->walk, t->store, wants == PS_TWIN_WANTS_CHANGES);
    return feed_go_on(t, s);
}

static ps_err feed_hear_page(ps_twin_feed *t, ps_shard *s, const void *body,
                             uint64_t bytes)
{
    const ps_row_table *own = &t->store->tables[0];
    ps_rows_twin_page page;
    PS_TRY(ps_rows_twin_page_read(body, bytes, t->n, &page));
    if (page.has == PS_TWIN_HAS_NOTHING) {
        ps_row_store_destroy(&t->fetched);
        t->does = FEED_RESTS;
        return PS_OK;
    }
    if (!t->fetched)
        PS_TRY(ps_row_store_create_like(t->store, own->first_partition,
                                        own->end_partition, &t->fetched));
    if (page.bytes > 0) PS_TRY(ps_row_store_put(t->fetched, page.piece, page.bytes));
    if (page.has == PS_TWIN_HAS_MORE) return feed_ask(t, s, false);
    memcpy(t->fetched->clocks, page.clocks, t->n * sizeof *page.clocks);
    t->fetched->loads = page.loads;
    t->does = FEED_RESTS;
    return ps_row_store_set_point(t->fetched, t->point, page.step);
}

static ps_err feed_hear_one(ps_twin_feed *t, ps_shard *s)
{
    const void *body = zmq_msg_data(&t->frames.payload);
    const uint64_t bytes = zmq_msg_size(&t->frames.payload);
    uint64_t number;
    ps_counter_add(&s->bytes_received, bytes);
    switch (t->does) {
    case FEED_OFFERS:
        return feed_hear_wants(t, s, body, bytes);
    case FEED_FETCHES:
        return feed_hear_page(t, s, body, bytes);
    default:
        PS_TRY(ps_rows_twin_number_read(body, bytes, 1, &number));
        if (t->does == FEED_ENDS && ps_twin_link_is_idle(t->link)) t->does = FEED_RESTS;
        return feed_go_on(t, s);
    }
}

ps_err ps_twin_feed_hear(ps_twin_feed *t, ps_shard *s, bool *done)
{
    bool got = true;
    *done = false;
    for (int i = 0; i < ANSWERS_PER_POLL && !*done; i++) {
        PS_TRY(ps_twin_link_recv(t->link, &t->frames, &got));
        if (!got) break;
        const ps_err err = feed_hear_one(t, s);
        if (err != PS_OK)
            return ps_err_prefix(err, "the rows' twin in server %u", t->server);
        *done = t->does == FEED_RESTS;
    }
    return PS_OK;
}

ps_err ps_twin_feed_mend(ps_twin_feed *t, ps_shard *s)
{
    uint64_t sent = 0;
    PS_TRY(ps_twin_link_mend(t->link, &sent));
    ps_counter_add(&s->bytes_sent, sent);
    return PS_OK;
}

void *ps_twin_feed_socket(ps_twin_feed *t)
{
    return ps_twin_link_socket(t->link);
}

void *ps_twin_feed_monitor(ps_twin_feed *t)
{
    return ps_twin_link_monitor(t->link);
}

ps_row_store *ps_twin_feed_take_fetched(ps_twin_feed *t)
{
    ps_row_store *fetched = t->fetched;
    t->fetched = NULL;
    return fetched;
}

uint32_t ps_twin_feed_server(const ps_twin_feed *t)
{
    return t->server;
}
