#include "control.h"

#include <stdio.h>
#include <string.h>

typedef struct shape {
    const char *word;
    int kind, numbers, has_name, has_text, has_value;
} shape;

void ps_control_id_make(ps_control_id *id, const ps_secret *secret, unsigned link)
{
    memcpy(id->bytes, secret->bytes, sizeof secret->bytes);
    id->bytes[PS_SECRET_BYTES] = (uint8_t)(link >> 8);
    id->bytes[PS_SECRET_BYTES + 1] = (uint8_t)link;
}

bool ps_control_id_is_of(const ps_control_id *id, const ps_secret *secret)
{
    return ps_secret_is(secret, id->bytes, PS_SECRET_BYTES);
}

unsigned ps_control_id_link(const ps_control_id *id)
{
    return (unsigned)id->bytes[PS_SECRET_BYTES] << 8 | id->bytes[PS_SECRET_BYTES + 1];
}

enum { COMMON_ITEMS = 4 }; // version, kind, nonce, request

static const shape *control_shape_of(uint64_t kind)
{
    static const shape shapes[] = {
#define CONTROL_SHAPE(name, number, numbers, has_name, has_text, has_value)              \
    {#name, number, numbers, has_name, has_text, has_value},
        PS_CONTROL_MAP(CONTROL_SHAPE)
#undef CONTROL_SHAPE
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if ((uint64_t)shapes[i].kind == kind) return &shapes[i];
    return NULL;
}

static size_t items_of(const shape *s)
{
    return (size_t)(COMMON_ITEMS + s->numbers + s->has_name + s->has_text + s->has_value);
}

const char *ps_control_kind_name(int kind)
{
    const shape *s = control_shape_of((uint64_t)kind);
    return s ? s->word : "unknown";
}

void ps_control_write(ps_mp_writer *w, const ps_control *c)
{
    const shape *s = control_shape_of((uint64_t)c->kind);
    if (!s || c->bytes > PS_CONTROL_VALUE_MAX) {
        w->failed = true;
        return;
    }
    ps_mp_write_array(w, items_of(s));
    ps_mp_write_uint(w, PS_CONTROL_VERSION);
    ps_mp_write_uint(w, (uint64_t)c->kind);
    ps_mp_write_uint(w, c->nonce);
    ps_mp_write_uint(w, c->request);
    for (int i = 0; i < s->numbers; i++)
        ps_mp_write_uint(w, c->number[i]);
    if (s->has_name) ps_mp_write_str(w, c->name);
    if (s->has_text) ps_mp_write_str(w, c->text);
    if (s->has_value) ps_mp_write_bin(w, c->value, c->bytes);
}

static void read_fields(ps_mp_reader *r, const shape *s, ps_control *c)
{
    for (int i = 0; i < s->numbers; i++)
        c->number[i] = ps_mp_read_uint(r, UINT64_MAX);
    if (s->has_name) ps_mp_read_str(r, c->name, sizeof c->name);
    if (s->has_text) ps_mp_read_str(r, c->text, sizeof c->text);
    if (s->has_value) c->value = ps_mp_read_bin(r, &c->bytes, PS_CONTROL_VALUE_MAX);
}

ps_err ps_control_read(const void *frame, size_t bytes, ps_control *c, uint64_t *version)
{
    *c = (ps_control){0};
    ps_mp_reader r;
    ps_mp_reader_init(&r, frame, bytes);
    size_t items = ps_mp_read_array(&r, 64);
    uint64_t spoken = ps_mp_read_uint(&r, UINT64_MAX);
    if (version) *version = r.failed ? 0 : spoken;
    if (r.failed)
        return ps_err_set(PS_ERR_PROTOCOL, "%zu bytes that are not a control message",
                          bytes);
    if (spoken != PS_CONTROL_VERSION)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a message of control protocol version %llu, this program "
                          "speaks %d: use the same version everywhere",
                          (unsigned long long)spoken, PS_CONTROL_VERSION);
    uint64_t kind = ps_mp_read_uint(&r, UINT64_MAX);
    const shape *s = control_shape_of(kind);
    if (r.failed || !s)
        return ps_err_set(PS_ERR_PROTOCOL, "a control message of unknown kind %llu",
                          (unsigned long long)kind);
    c->kind = (ps_control_kind)kind;
    c->nonce = ps_mp_read_uint(&r, UINT64_MAX);
    c->request = ps_mp_read_uint(&r, UINT64_MAX);
    read_fields(&r, s, c);
    if (items != items_of(s) || !ps_mp_reader_end(&r))
        return ps_err_set(PS_ERR_PROTOCOL, "a malformed %s message of %zu bytes", s->word,
                          bytes);
    return PS_OK;
}

ps_err ps_control_frame(zmq_msg_t *msg, const ps_control *c)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_control_write(&w, c);
    ps_err err = ps_mp_writer_end(&w);
    if (err == PS_OK)
        err = ps_zsock_msg_copy(msg, w.base, w.used);
    else
        zmq_msg_init(msg);
    ps_mp_writer_fini(&w);
    return err;
}

void ps_control_set_text(ps_control *c, const char *text)
{
    snprintf(c->text, sizeof c->text, "%s", text);
}

ps_err ps_control_set_name(ps_control *c, const char *name)
{
    if (strlen(name) >= sizeof c->name)
        return ps_err_set(PS_ERR_ARG, "%.40s...: a name of more than %zu bytes", name,
                          sizeof c->name - 1);
    memcpy(c->name, name, strlen(name) + 1);
    return PS_OK;
}

ps_err ps_control_error(const ps_control *c)
{
    const uint64_t code = c->code; // where abort.code is, too
    return code > 0 && code < PS_ERR_COUNT ? (ps_err)code : PS_ERR_INTERNAL;
}

ps_err ps_control_send(void *dealer, const ps_control *c)
{
    zmq_msg_t part;
    PS_TRY(ps_control_frame(&part, c));
    const ps_deadline now = {0};
    return ps_zsock_send(dealer, now, &part, 1);
}

ps_err ps_control_recv(void *dealer, ps_deadline deadline, zmq_msg_t *frame,
                       ps_control *c, int *got)
{
    PS_TRY(ps_zsock_recv(dealer, deadline, frame, 1, got));
    if (!*got) return PS_OK;
    ps_err err = ps_control_read(zmq_msg_data(frame), zmq_msg_size(frame), c, NULL);
    if (err == PS_OK) return PS_OK;
    zmq_msg_close(frame);
    *got = 0;
    return err;
}
