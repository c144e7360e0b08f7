#include "shard_readers.h"

#include <string.h>

#include "log.h"
#include "shard_rows.h"

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

ps_err ps_shard_readers_take(ps_shard *s, const ps_frame_view *v, const ps_wire_frames *f)
{
    ps_wire_header asked;
    if (ps_frame_check_reader(&s->rules, v, &asked) != PS_OK) return readers_refuse(s, v);
    ps_wire_header h = {.kind = PS_MSG_SOON, .rows.number = asked.rows.number};
    if (asked.kind == PS_MSG_ASK_TABLES) return readers_answer_tables(s, v, &h);
    if (!ps_shard_rows_have_begun(s)) return readers_send(s, v, &h, NULL, 0);
    return readers_answer_rows(s, v, &h, &f->payload);
}
