#include "row_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "log.h"
#include "mem.h"
#include "reader_door.h"
#include "row_partition.h"
#include "row_set.h"
#include "rows_body.h"
#include "wire_socket.h"

enum {
    PAUSE_MS = 50,        // before it asks again
    TELL_MS = 1000,       // then it says what it waits for
    DOOR_MS = 3000,       // for an answer at the door
    PATIENCE_MS = 1000,   // for a shard's first answer; then over new connections
    PATIENCE_MOST = 16000 // and twice as long each time, up to that
};

/* A shard, and what of a call it was asked for. */
typedef struct reader_link {
    void *socket;
    uint64_t number;       // of its last message
    bool waits;            // it is not answered
    bool soon;             // asks again at `again`
    ps_deadline again;     // where soon
    uint64_t at, to, most; // in `order`: asked for are at .. to - 1, of those below most
} reader_link;

struct ps_row_reader {
    char job[PS_CONTROL_NAME_MAX];
    uint64_t timeout_ms, patience_ms;
    ps_curve curve;
    ps_init_method address;
    void *zmq_context;
    uint64_t name; // drawn: in its routing id
    ps_row_spec *specs;
    uint32_t n_specs;
    // Of the present connection; n_links 0: there is none
    ps_reader_pass pass;
    uint32_t n_shards; // as the job says; it has as many links
    reader_link *links;
    uint32_t n_links;
    zmq_pollitem_t *items; // (n_links)
    // Of a call
    const uint64_t *counts;
    const int64_t *const *ids;
    float *const *outs;
    uint64_t *starts; // (n_specs + 1) by table: its first id, counted over all tables
    uint64_t *order;  // (n) ids by shard, and there by table
    uint64_t order_room;
    uint64_t *body; // of a message
    ps_row_steps steps;
    char why[256];    // why it has to wait still
    ps_deadline tell; // when it says so
    bool told;
};

/* ---- connections ---- */

static void reader_disconnect(ps_row_reader *r)
{
    for (uint32_t i = 0; i < r->n_links; i++)
        ps_zsock_close(&r->links[i].socket);
    free(r->links);
    free(r->items);
    r->links = NULL;
    r->items = NULL;
    r->n_links = 0;
    ps_reader_pass_fini(&r->pass);
}

static ps_err reader_open_link(ps_row_reader *r, uint32_t shard)
{
    uint8_t id[PS_WIRE_READER_ID_BYTES];
    reader_link *l = &r->links[shard];
    ps_wire_reader_id(&r->pass.secret, r->name, id);
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .max_message_bytes = PS_WIRE_READ_BYTES + (64 << 10),
                                .routing_id = id,
                                .routing_id_bytes = sizeof id,
                                .secret = &r->pass.secret,
                                .curve = &r->curve,
                                .peer = PS_ROLE_SERVER};
    PS_TRY(ps_zsock_open(r->zmq_context, &o, &l->socket));
    r->items[shard] = (zmq_pollitem_t){.socket = l->socket, .events = ZMQ_POLLIN};
    return ps_zsock_connect(l->socket, &r->curve, r->pass.endpoints[shard]);
}

static ps_err reader_send(ps_row_reader *r, uint32_t shard, int kind, const void *body,
                          uint64_t bytes)
{
    reader_link *l = &r->links[shard];
    const ps_wire_header h = {.version = PS_WIRE_VERSION,
                              .kind = (uint8_t)kind,
                              .nonce = r->pass.nonce,
                              .epoch = 1,
                              .rank = PS_WIRE_READER,
                              .count = bytes,
                              .rows.number = ++l->number};
    l->waits = true;
    l->soon = false;
    return ps_wire_send(l->socket, NULL, 0, &h, body, bytes, PS_WIRE_COPY, NULL);
}

/* ---- tables ---- */

/* In what readers see. */
static bool reader_is_same(const ps_row_spec *a, const ps_row_spec *b)
{
    return strcmp(a->name, b->name) == 0 && a->dim == b->dim && a->init == b->init &&
           a->init_scale == b->init_scale && a->seed == b->seed;
}

/* The same tables as before, if there were some. Takes specs. */
static ps_err reader_take_tables(ps_row_reader *r, ps_row_spec *specs, uint32_t n)
{
    if (!r->specs) {
        r->specs = specs;
        r->n_specs = n;
        return PS_NEW(&r->starts, (size_t)n + 1, "tables");
    }
    ps_err err = PS_OK;
    if (n != r->n_specs)
        err = ps_err_set(PS_ERR_SHAPE,
                         "the job was started again with %u embedding tables instead of "
                         "%u: make another reader",
                         n, r->n_specs);
    for (uint32_t t = 0; t < n && err == PS_OK; t++)
        if (!reader_is_same(&r->specs[t], &specs[t]))
            err = ps_err_set(PS_ERR_SHAPE,
                             "the job was started again with another table in the place "
                             "of %s: make another reader",
                             r->specs[t].name);
    free(specs);
    return err;
}

static ps_err reader_on_tables(ps_row_reader *r, const ps_wire_frames *f)
{
    zmq_msg_t *payload = (zmq_msg_t *)(uintptr_t)&f->payload;
    ps_row_spec *specs;
    uint32_t n;
    PS_TRY(ps_rows_tables_read(zmq_msg_data(payload), zmq_msg_size(payload), &r->n_shards,
                               &specs, &n));
    return reader_take_tables(r, specs, n);
}

/* ---- rows ---- */

/* The table of an id, counted over all tables. */
static uint32_t reader_table_of(const ps_row_reader *r, uint64_t i, uint32_t from)
{
    while (i >= r->starts[from + 1])
        from++;
    return from;
}

static int64_t reader_id(const ps_row_reader *r, uint32_t table, uint64_t i)
{
    return r->ids[table][i - r->starts[table]];
}

static uint32_t reader_shard(const ps_row_reader *r, uint64_t salt, int64_t id)
{
    return ps_row_shard(ps_row_partition(ps_row_hash(salt, (uint64_t)id)), r->n_shards);
}

/* Sorts the ids by shard: r->order, and at and most of the links. */
static ps_err reader_sort(ps_row_reader *r)
{
    const uint64_t n = r->starts[r->n_specs];
    PS_TRY(ps_row_room(&r->order, &r->order_room, n, sizeof *r->order));
    for (uint32_t s = 0; s < r->n_links; s++)
        r->links[s].most = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t t = 0; t < r->n_specs; t++) {
            const uint64_t salt = ps_row_hash_salt(t);
            for (uint64_t i = r->starts[t]; i < r->starts[t + 1]; i++) {
                reader_link *l = &r->links[reader_shard(r, salt, reader_id(r, t, i))];
                if (pass == 1) r->order[l->most] = i;
                l->most++;
            }
        }
        uint64_t begin = 0;
        for (uint32_t s = 0; s < r->n_links && pass == 0; s++) {
            const uint64_t count = r->links[s].most;
            r->links[s].at = r->links[s].to = r->links[s].most = begin;
            begin += count;
        }
    }
    return PS_OK;
}

/* Asks a shard for as many of its next ids as fit into a message. */
static ps_err reader_ask(ps_row_reader *r, uint32_t shard)
{
    reader_link *l = &r->links[shard];
    const uint64_t head = ps_rows_ask_head(r->n_specs);
    const uint64_t most = (PS_WIRE_ASKED_BYTES - head) / sizeof(uint64_t);
    uint64_t floats = 0;
    uint32_t *counts = (uint32_t *)r->body, table = 0;
    memset(r->body, 0, head);
    for (l->to = l->at; l->to < l->most && l->to - l->at < most; l->to++) {
        table = reader_table_of(r, r->order[l->to], table);
        floats += r->specs[table].dim;
        if (floats > PS_WIRE_READ_BYTES / sizeof(float)) break;
        r->body[head / sizeof(uint64_t) + l->to - l->at] =
            (uint64_t)reader_id(r, table, r->order[l->to]);
        counts[table]++;
    }
    return reader_send(r, shard, PS_MSG_READ_ROWS, r->body,
                       head + (l->to - l->at) * sizeof(uint64_t));
}

/* Takes the rows that a shard was asked for, and asks it for the next ones. */
static ps_err reader_on_rows(ps_row_reader *r, uint32_t shard, const ps_wire_header *h,
                             const ps_wire_frames *f)
{
    reader_link *l = &r->links[shard];
    const float *rows = zmq_msg_data((zmq_msg_t *)(uintptr_t)&f->payload);
    uint64_t left = zmq_msg_size(&f->payload) / sizeof(float);
    uint32_t table = 0;
    for (; l->at < l->to; l->at++) {
        const uint64_t i = r->order[l->at];
        table = reader_table_of(r, i, table);
        const uint32_t dim = r->specs[table].dim;
        if (left < dim) break;
        memcpy(r->outs[table] + (i - r->starts[table]) * dim, rows, dim * sizeof *rows);
        rows += dim;
        left -= dim;
    }
    if (left > 0 || l->at < l->to)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "shard %u gave other rows than it was asked for", shard);
    if (h->step < r->steps.first) r->steps.first = h->step;
    if (h->step > r->steps.last) r->steps.last = h->step;
    return l->at < l->most ? reader_ask(r, shard) : PS_OK;
}

/* ---- answers ---- */

/* Of a shard that has just begun: rows may still come from a file. */
static ps_err reader_wait_soon(ps_row_reader *r, reader_link *l)
{
    l->waits = l->soon = true;
    l->again = ps_deadline_in_ms(PAUSE_MS);
    snprintf(r->why, sizeof r->why, "the job has not begun its steps");
    return PS_OK;
}

static ps_err reader_on_message(ps_row_reader *r, uint32_t shard, const ps_wire_frames *f)
{
    zmq_msg_t *header = (zmq_msg_t *)(uintptr_t)&f->header;
    zmq_msg_t *payload = (zmq_msg_t *)(uintptr_t)&f->payload;
    reader_link *l = &r->links[shard];
    ps_wire_header h;
    PS_TRY(ps_wire_decode(zmq_msg_data(header), zmq_msg_size(header), &h));
    if (f->n != 1 + ps_wire_has_payload(&h) || h.nonce != r->pass.nonce)
        return ps_err_set(PS_ERR_PROTOCOL, "a malformed answer of shard %u", shard);
    if (h.kind == PS_MSG_ERROR)
        return ps_err_set(PS_ERR_PEER, "%.*s", (int)zmq_msg_size(payload),
                          (const char *)zmq_msg_data(payload));
    if (!l->waits || l->soon || h.rows.number != l->number) return PS_OK; // twice
    l->waits = false;
    if (h.kind == PS_MSG_TABLES) return reader_on_tables(r, f);
    if (h.kind == PS_MSG_READ && r->n_shards > 0) return reader_on_rows(r, shard, &h, f);
    if (h.kind == PS_MSG_SOON) return reader_wait_soon(r, l);
    return ps_err_set(PS_ERR_PROTOCOL, "%s of shard %u to a reader",
                      ps_wire_kind_name(h.kind), shard);
}

/* Takes what is there. */
static ps_err row_reader_take_all(ps_row_reader *r, bool *any)
{
    ps_wire_frames f;
    ps_err err = PS_OK;
    ps_wire_frames_open(&f);
    for (uint32_t s = 0; s < r->n_links && err == PS_OK; s++) {
        bool got = (r->items[s].revents & ZMQ_POLLIN) != 0;
        while (got && err == PS_OK) {
            err = ps_wire_recv(r->links[s].socket, false, &f, &got);
            if (err == PS_OK && got) err = reader_on_message(r, s, &f);
            *any |= got;
        }
    }
    ps_wire_frames_close(&f);
    return err;
}

/* Asks again what is due. Whether something is unanswered: *waits. */
static ps_err reader_look(ps_row_reader *r, bool *waits, bool *soon)
{
    *waits = *soon = false;
    for (uint32_t s = 0; s < r->n_links; s++) {
        reader_link *l = &r->links[s];
        if (l->soon && ps_deadline_passed(l->again)) PS_TRY(reader_ask(r, s));
        *waits |= l->waits;
        *soon |= l->soon;
    }
    return PS_OK;
}

static ps_err reader_poll(ps_row_reader *r, ps_deadline until)
{
    const ps_deadline slice = ps_interrupt_slice(until);
    PS_TRY(ps_interrupt_ask_hook());
    if (zmq_poll(r->items, (int)r->n_links, ps_deadline_left_ms(slice)) >= 0 ||
        zmq_errno() == EINTR)
        return PS_OK;
    return ps_err_set(PS_ERR_NET, "polling: %s", zmq_strerror(zmq_errno()));
}

static void reader_tell(ps_row_reader *r)
{
    if (r->told || !r->why[0] || !ps_deadline_passed(r->tell)) return;
    PS_WARN("waiting", "reason=\"%s\"", r->why);
    r->told = true;
}

/* Waits until all is answered, or, *silent, nobody has answered for a while. */
static ps_err reader_await(ps_row_reader *r, ps_deadline deadline, bool *silent)
{
    ps_deadline patience = ps_deadline_in_ms(r->patience_ms);
    *silent = false;
    for (;;) {
        bool waits, soon, any = false;
        PS_TRY(reader_look(r, &waits, &soon));
        if (!waits) return PS_OK;
        *silent = ps_deadline_passed(deadline) || ps_deadline_passed(patience);
        if (*silent) return PS_OK;
        const ps_deadline next = ps_deadline_in_ms(PAUSE_MS);
        const ps_deadline until = deadline.at_ns < patience.at_ns ? deadline : patience;
        PS_TRY(reader_poll(r, soon && next.at_ns < until.at_ns ? next : until));
        PS_TRY(row_reader_take_all(r, &any));
        reader_tell(r);
        if (any) patience = ps_deadline_in_ms(r->patience_ms);
    }
}

/* ---- the whole ---- */

static ps_err reader_pause(ps_deadline deadline)
{
    const ps_deadline end = ps_deadline_in_ms(PAUSE_MS);
    PS_TRY(ps_interrupt_ask_hook());
    zmq_poll(NULL, 0, ps_deadline_left_ms(end.at_ns < deadline.at_ns ? end : deadline));
    return PS_OK;
}

/* Connections to all shards; asks the first one for the tables. */
static ps_err reader_open_links(ps_row_reader *r)
{
    r->n_shards = 0;
    PS_TRY(PS_NEW(&r->links, r->pass.n, "shards"));
    PS_TRY(PS_NEW(&r->items, r->pass.n, "shards"));
    r->n_links = (uint32_t)r->pass.n;
    for (uint32_t s = 0; s < r->n_links; s++)
        PS_TRY(reader_open_link(r, s));
    return reader_send(r, 0, PS_MSG_ASK_TABLES, NULL, 0);
}

/* *later: there is no connection yet, and it may be tried again. */
static ps_err reader_connect(ps_row_reader *r, ps_deadline deadline, bool *later)
{
    const ps_deadline soon = ps_deadline_in_ms(DOOR_MS);
    const ps_reader_door door = {.zmq_context = r->zmq_context,
                                 .curve = &r->curve,
                                 .at = &r->address,
                                 .job = r->job};
    PS_TRY(ps_reader_door_ask(&door, soon.at_ns < deadline.at_ns ? soon : deadline,
                              &r->pass, later));
    ps_err err = reader_open_links(r);
    if (err == PS_OK) err = reader_await(r, deadline, later);
    if (err == PS_OK && *later)
        err = ps_err_set(PS_ERR_TIMEOUT, "its servers do not answer");
    if (err == PS_OK && r->n_shards > r->n_links)
        err = ps_err_set(PS_ERR_PROTOCOL, "a job of %u shards gave the addresses of %u",
                         r->n_shards, r->n_links);
    if (err != PS_OK) reader_disconnect(r);
    return err;
}

static ps_err reader_give_up(const ps_row_reader *r)
{
    return ps_err_set(PS_ERR_TIMEOUT, "no rows within %.1f s: %s",
                      (double)r->timeout_ms * 1e-3, r->why);
}

/* Once through a call; *later: it may be tried again. */
static ps_err reader_try(ps_row_reader *r, ps_deadline deadline, bool *later)
{
    *later = false;
    r->why[0] = '\0';
    if (r->n_links == 0) PS_TRY(reader_connect(r, deadline, later));
    if (!r->counts) return PS_OK; // it is to connect alone
    r->steps = (ps_row_steps){.first = UINT64_MAX};
    PS_TRY(reader_sort(r));
    for (uint32_t s = 0; s < r->n_links; s++)
        if (r->links[s].at < r->links[s].most) PS_TRY(reader_ask(r, s));
    PS_TRY(reader_await(r, deadline, later));
    return *later ? ps_err_set(PS_ERR_TIMEOUT, "its servers do not answer") : PS_OK;
}

static ps_err reader_go(ps_row_reader *r)
{
    const ps_deadline deadline = ps_deadline_in_ms(r->timeout_ms);
    r->patience_ms = PATIENCE_MS;
    r->tell = ps_deadline_in_ms(TELL_MS);
    r->told = false;
    for (;;) {
        bool later;
        const ps_err err = reader_try(r, deadline, &later);
        if (err == PS_OK) return PS_OK;
        reader_disconnect(r);
        if (!later) return err;
        if (!r->why[0]) snprintf(r->why, sizeof r->why, "%s", ps_err_message());
        reader_tell(r);
        if (ps_deadline_left_ms(deadline) < 2 * PAUSE_MS) return reader_give_up(r);
        if (r->patience_ms < PATIENCE_MOST) r->patience_ms *= 2;
        PS_TRY(reader_pause(deadline));
    }
}

ps_err ps_row_reader_create(const ps_row_reader_options *options, ps_row_reader **out)
{
    ps_secret drawn;
    ps_row_reader *r;
    PS_TRY(PS_NEW(out, 1, "a reader of rows"));
    r = *out;
    r->timeout_ms = options->timeout_ms;
    snprintf(r->job, sizeof r->job, "%s", options->job);
    ps_err err = ps_init_method_parse(options->address, &r->address);
    if (err == PS_OK)
        err = ps_curve_load(&r->curve, options->keys, false, PS_ROLE_WORKER);
    if (err == PS_OK) err = ps_secret_draw(&drawn);
    if (err == PS_OK) memcpy(&r->name, drawn.bytes, sizeof r->name);
    if (err == PS_OK)
        err = ps_mem_zalloc(&r->body, PS_WIRE_ASKED_BYTES, 1, "a message to a shard");
    if (err == PS_OK)
        err = ps_zsock_context(1, ZMQ_MAX_SOCKETS_DFLT, false, &r->zmq_context);
    if (err == PS_OK) err = reader_go(r);
    if (err != PS_OK) {
        ps_err_prefix(err, "%s", options->address);
        ps_row_reader_destroy(out);
    }
    return err;
}

void ps_row_reader_destroy(ps_row_reader **reader)
{
    ps_row_reader *r = *reader;
    if (!r) return;
    reader_disconnect(r);
    if (r->zmq_context) zmq_ctx_term(r->zmq_context);
    free(r->specs);
    free(r->starts);
    free(r->order);
    free(r->body);
    free(r);
    *reader = NULL;
}

const ps_row_spec *ps_row_reader_tables(const ps_row_reader *r, uint32_t *n)
{
    *n = r->n_specs;
    return r->specs;
}

static ps_err reader_check_ids(const ps_row_reader *r, const uint64_t *counts,
                               const int64_t *const *ids)
{
    for (uint32_t t = 0; t < r->n_specs; t++)
        for (uint64_t i = 0; i < counts[t]; i++)
            if (ids[t][i] < 0)
                return ps_err_set(PS_ERR_ARG, "table %s: id %" PRId64 " is negative",
                                  r->specs[t].name, ids[t][i]);
    return PS_OK;
}

ps_err ps_row_reader_read(ps_row_reader *r, const uint64_t *counts,
                          const int64_t *const *ids, float *const *outs,
                          ps_row_steps *steps)
{
    PS_TRY(reader_check_ids(r, counts, ids));
    for (uint32_t t = 0; t < r->n_specs; t++)
        r->starts[t + 1] = r->starts[t] + counts[t];
    r->counts = counts;
    r->ids = ids;
    r->outs = outs;
    const ps_err err = reader_go(r);
    r->counts = NULL;
    if (err == PS_OK && r->steps.first > r->steps.last) r->steps.first = 0; // no ids
    *steps = r->steps;
    return err;
}
