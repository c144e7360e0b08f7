#include "shard_readers.h"

#include <inttypes.h>
#include <string.h>

#include "log.h"
#include "mem.h"
#include "shard_rows.h"
#include "zsock.h"

/* Of a connection without a place: its messages, which are answered by errors. */
enum { PLACELESS_BYTES = 2 * PS_WIRE_ASKED_BYTES };

/* A reader's place. */
typedef struct ps_shard_reader {
    uint64_t name; // in its routing id
    int fd;
    uint64_t connection; // ps_zsock_connection; 0: nobody has the place
    uint64_t queued;     // bytes of the answers over this connection
} ps_shard_reader;

/* Whose place it is, or a free one; NULL: there is none. A connection is looked at when
 * it is new. */
static ps_shard_reader *readers_find(ps_shard *s, uint64_t name, uint64_t connection)
{
    ps_shard_reader *place = NULL;
    for (int64_t i = 0; i < s->o.config->server.readers; i++) {
        ps_shard_reader *r = &s->readers[i];
        if (r->connection && r->name == name) return r;
    }
    for (int64_t i = 0; i < s->o.config->server.readers && connection && !place; i++) {
        ps_shard_reader *r = &s->readers[i];
        if (!r->connection || ps_zsock_connection(r->fd) != r->connection) place = r;
    }
    return place;
}

/* *place: the sender's. NULL: it has none, or what it takes is not watched. */
static ps_err readers_place(ps_shard *s, const ps_frame_view *v, int fd,
                            ps_shard_reader **place)
{
    const int64_t most = s->o.config->server.readers;
    const uint64_t connection = ps_zsock_connection(fd);
    uint64_t name;
    memcpy(&name, (const char *)v->id + PS_WIRE_ID_BYTES, sizeof name);
    *place = NULL;
    if (!s->readers) PS_TRY(PS_NEW(&s->readers, (size_t)most, "readers"));
    *place = readers_find(s, name, connection);
    if (*place && (*place)->connection != connection)
        **place = (ps_shard_reader){.name = name, .fd = fd, .connection = connection};
    if (*place || !connection) return PS_OK;
    return ps_err_set(PS_ERR_PEER,
                      "the job lets %" PRId64
                      " readers of its rows in at a time, and has "
                      "them: close one, or start the job with a larger server.readers",
                      most);
}

/* Whether the sender takes its answers. A reader asks for the next rows when it has those
 * before, so less than one answer is on its way. */
static bool readers_takes(const ps_shard_reader *place, int fd)
{
    ps_zsock_counts t;
    if (!ps_zsock_count(fd, &t)) return true;
    if (!place) return t.received <= PLACELESS_BYTES;
    return place->queued <= t.acknowledged + PS_WIRE_READ_BYTES;
}

/* A reader that is gone is no failure. */
static ps_err readers_send(ps_shard *s, const ps_frame_view *to, ps_wire_header *h,
                           const void *payload, uint64_t bytes)
{
    uint64_t sent = 0;
    h->version = PS_WIRE_VERSION;
    h->nonce = s->rules.nonce;
    h->epoch = s->rules.epoch;
    h->rank = PS_WIRE_READER;
    h->count = bytes;
    const ps_err err = ps_wire_send(s->router, to->id, to->id_bytes, h, payload, bytes,
                                    PS_WIRE_COPY, &sent);
    s->router_idle = false;
    ps_counter_add(&s->bytes_sent, sent);
    return err == PS_ERR_PEER ? PS_OK : err;
}

static ps_err readers_refuse(ps_shard *s, const ps_frame_view *to)
{
    ps_wire_header h = {.kind = PS_MSG_ERROR};
    const char *text = ps_err_message();
    PS_WARN_FEW("reader-refused", "reason=\"%s\"", text);
    return readers_send(s, to, &h, text, strlen(text));
}

static ps_err readers_answer_tables(ps_shard *s, const ps_frame_view *to,
                                    ps_wire_header *h)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_err err = ps_shard_rows_tell_tables(s, &w);
    h->kind = PS_MSG_TABLES;
    err = err == PS_OK ? readers_send(s, to, h, w.base, w.used) : readers_refuse(s, to);
    ps_mp_writer_fini(&w);
    return err;
}

static ps_err readers_answer_rows(ps_shard *s, const ps_frame_view *to, ps_wire_header *h,
                                  const zmq_msg_t *body)
{
    const void *rows;
    uint64_t bytes;
    const ps_err err = ps_shard_rows_look(s, zmq_msg_data((zmq_msg_t *)(uintptr_t)body),
                                          zmq_msg_size(body), &rows, &bytes, &h->step);
    h->kind = PS_MSG_READ;
    return err == PS_OK ? readers_send(s, to, h, rows, bytes) : readers_refuse(s, to);
}

static ps_err readers_answer(ps_shard *s, const ps_frame_view *v, const ps_wire_frames *f)
{
    ps_wire_header asked;
    if (ps_frame_check_reader(&s->rules, v, &asked) != PS_OK) return readers_refuse(s, v);
    ps_wire_header h = {.kind = PS_MSG_SOON, .rows.number = asked.rows.number};
    if (asked.kind == PS_MSG_ASK_TABLES) return readers_answer_tables(s, v, &h);
    if (!ps_shard_rows_have_begun(s)) return readers_send(s, v, &h, NULL, 0);
    return readers_answer_rows(s, v, &h, &f->payload);
}

ps_err ps_shard_readers_take(ps_shard *s, const ps_frame_view *v, const ps_wire_frames *f)
{
    ps_shard_reader *place;
    const int fd = zmq_msg_get((zmq_msg_t *)(uintptr_t)&f->header, ZMQ_SRCFD);
    const uint64_t before = ps_counter_get(&s->bytes_sent);
    ps_err err = readers_place(s, v, fd, &place);
    if (!readers_takes(place, fd)) {
        PS_WARN_FEW("reader-dropped", "reason=\"it does not take its answers\"");
        return PS_OK;
    }
    err = err == PS_OK ? readers_answer(s, v, f) : readers_refuse(s, v);
    if (place) place->queued += ps_counter_get(&s->bytes_sent) - before;
    return err;
}
