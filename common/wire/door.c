#include "door.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "mem.h"
#include "zmtp.h"

enum {
    STREAM_ID_BYTES = 5,
    WAITING = 4,            // of a connection: messages, or parts of at most 8 KB
    FEW_BYTES = 4096,       // what a JOIN has
    MOST_BYTES = 4096 << 10 // of all unfinished messages
};

typedef struct caller {
    uint8_t stream_id[STREAM_ID_BYTES];
    ps_zmtp zmtp;
} caller;

struct ps_door {
    void *socket;
    bool has_keys;
    size_t frame_max;
    caller *callers; // the oldest first; n_callers of cap. None with keys.
    int n_callers, cap;
};

ps_err ps_door_open(const ps_door_options *o, const char *where,
                    char endpoint[PS_ENDPOINT_MAX], ps_door **out)
{
    PS_TRY(PS_NEW(out, 1, "a door"));
    ps_door *d = *out;
    d->has_keys = o->curve && o->curve->on;
    d->frame_max = (size_t)o->frame_max;
    d->cap = PS_GATE_STRANGERS + o->n_members;
    const ps_zsock_options zo = {.type = d->has_keys ? ZMQ_ROUTER : ZMQ_STREAM,
                                 .max_message_bytes = d->has_keys ? o->frame_max : 0,
                                 .waiting_messages = WAITING,
                                 .curve = o->curve};
    ps_err err = PS_NEW(&d->callers, (size_t)d->cap, "a door");
    if (err == PS_OK) err = ps_zsock_open(o->zmq_context, &zo, &d->socket);
    if (err == PS_OK) err = ps_gate_watch(o->gate, d->socket, PS_GATE_DOOR);
    if (err == PS_OK) err = ps_zsock_bind(d->socket, o->curve, where, endpoint);
    if (err != PS_OK) ps_door_close(out, 0);
    return err;
}

void ps_door_close(ps_door **door, int linger_ms)
{
    ps_door *d = *door;
    if (!d) return;
    if (d->socket) {
        ps_gate_unwatch(d->socket);
        zmq_setsockopt(d->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    }
    ps_zsock_close(&d->socket);
    for (int i = 0; i < d->n_callers; i++)
        ps_zmtp_fini(&d->callers[i].zmtp);
    free(d->callers);
    free(d);
    *door = NULL;
}

void *ps_door_socket(const ps_door *d)
{
    return d->socket;
}

/* ---- without keys ---- */

static caller *door_find(ps_door *d, zmq_msg_t *id)
{
    for (int i = 0; i < d->n_callers; i++)
        if (memcmp(d->callers[i].stream_id, zmq_msg_data(id), STREAM_ID_BYTES) == 0)
            return &d->callers[i];
    return NULL;
}

static void door_forget(ps_door *d, caller *c)
{
    ps_zmtp_fini(&c->zmtp);
    d->n_callers--;
    memmove(c, c + 1, (size_t)(d->callers + d->n_callers - c) * sizeof *c);
}

/* With n 0 libzmq closes the connection. */
static ps_err door_send_bytes(ps_door *d, const caller *c, const void *bytes, size_t n)
{
    const ps_deadline now = {0};
    zmq_msg_t parts[2];
    PS_TRY(ps_zsock_msg_copy(&parts[0], c->stream_id, STREAM_ID_BYTES));
    ps_err err = ps_zsock_msg_copy(&parts[1], bytes, n);
    if (err == PS_OK) return ps_zsock_send(d->socket, now, parts, 2);
    zmq_msg_close(&parts[0]);
    return err;
}

static void hang_up(ps_door *d, caller *c)
{
    if (door_send_bytes(d, c, "", 0) != PS_OK)
        PS_DEBUG("door", "error=\"%s\"", ps_err_message());
    door_forget(d, c);
}

static caller *door_welcome(ps_door *d, zmq_msg_t *id)
{
    if (d->n_callers == d->cap) hang_up(d, &d->callers[0]);
    caller *c = &d->callers[d->n_callers++];
    memcpy(c->stream_id, zmq_msg_data(id), STREAM_ID_BYTES);
    ps_zmtp_init(&c->zmtp, d->frame_max);
    return c;
}

/* False when the connection is to be closed. */
static bool listen_to(ps_door *d, caller *c, ps_door_take *take, void *owner)
{
    for (;;) {
        const uint8_t *data;
        size_t n;
        switch (ps_zmtp_next(&c->zmtp, &data, &n)) {
        case PS_ZMTP_NOTHING:
            return true;
        case PS_ZMTP_WRONG:
            PS_WARN_FEW("stranger", "reason=\"no message of one frame\"");
            return false;
        case PS_ZMTP_ANSWER:
            if (door_send_bytes(d, c, data, n) != PS_OK) return false;
            break;
        case PS_ZMTP_FRAME: {
            const ps_door_message m = {.id = c->zmtp.id,
                                       .id_bytes = c->zmtp.id_bytes,
                                       .body = data,
                                       .body_bytes = n};
            if (!take(owner, &m)) return false;
        }
        }
    }
}

/* Hangs up on the caller with the longest unfinished message when all together are too
 * long. */
static void bound_memory(ps_door *d)
{
    size_t sum = 0;
    caller *longest = d->callers;
    for (int i = 0; i < d->n_callers; i++) {
        caller *c = &d->callers[i];
        sum += c->zmtp.n_bytes;
        if (c->zmtp.n_bytes > longest->zmtp.n_bytes) longest = c;
    }
    if (sum > MOST_BYTES) hang_up(d, longest);
}

/* An empty part tells that a connection has begun, or has ended. */
static void on_stream(ps_door *d, zmq_msg_t *parts, ps_door_take *take, void *owner)
{
    if (zmq_msg_size(&parts[0]) != STREAM_ID_BYTES) return;
    caller *c = door_find(d, &parts[0]);
    const size_t n = zmq_msg_size(&parts[1]);
    if (n == 0) {
        if (c)
            door_forget(d, c);
        else
            door_welcome(d, &parts[0]);
        return;
    }
    if (!c) return; // hung up on
    if (ps_zmtp_put(&c->zmtp, zmq_msg_data(&parts[1]), n) != PS_OK ||
        !listen_to(d, c, take, owner))
        hang_up(d, c);
    else if (c->zmtp.n_bytes > FEW_BYTES)
        bound_memory(d);
}

/* The newest connection of a sender. */
static caller *find_sender(ps_door *d, const void *id, size_t id_bytes)
{
    for (int i = d->n_callers; i-- > 0;) {
        const ps_zmtp *z = &d->callers[i].zmtp;
        if (z->id_bytes == id_bytes && memcmp(z->id, id, id_bytes) == 0)
            return &d->callers[i];
    }
    return NULL;
}

static ps_err send_message(ps_door *d, const void *id, size_t id_bytes, zmq_msg_t *frame)
{
    const caller *c = find_sender(d, id, id_bytes);
    if (!c) return ps_err_set(PS_ERR_PEER, "no such sender at the door");
    const size_t n = zmq_msg_size(frame);
    uint8_t head[PS_ZMTP_HEAD_MAX];
    PS_TRY(door_send_bytes(d, c, head, ps_zmtp_head(head, n)));
    return n > 0 ? door_send_bytes(d, c, zmq_msg_data(frame), n) : PS_OK;
}

/* ---- with keys ---- */

static void on_router(zmq_msg_t *parts, int n, ps_door_take *take, void *owner)
{
    ps_door_message m = {.id = zmq_msg_data(&parts[0]),
                         .id_bytes = zmq_msg_size(&parts[0])};
    if (n < 2) return;
    m.body = zmq_msg_data(&parts[1]);
    m.body_bytes = zmq_msg_size(&parts[1]);
    m.is_proven = ps_gate_role(&parts[1], &m.role);
    take(owner, &m); // whoever has proven a role stays
}

/* ---- both ---- */

void ps_door_turn(ps_door *d, int n_parts, ps_door_take *take, void *owner)
{
    const ps_deadline now = {0};
    for (int i = 0; i < n_parts; i++) {
        zmq_msg_t parts[2];
        int n;
        ps_err err = ps_zsock_recv(d->socket, now, parts, 2, &n);
        if (err == PS_ERR_PROTOCOL) { // more than two frames
            PS_WARN_FEW("stranger", "reason=\"%s\"", ps_err_message());
            continue;
        }
        if (err != PS_OK || n == 0) return;
        if (d->has_keys)
            on_router(parts, n, take, owner);
        else if (n == 2)
            on_stream(d, parts, take, owner);
        ps_zsock_close_parts(parts, n);
    }
}

ps_err ps_door_send(ps_door *d, const void *id, size_t id_bytes, zmq_msg_t *frame)
{
    const ps_deadline now = {0};
    zmq_msg_t parts[2];
    if (!d->has_keys) {
        ps_err err = send_message(d, id, id_bytes, frame);
        zmq_msg_close(frame);
        return err;
    }
    ps_err err = ps_zsock_msg_copy(&parts[0], id, id_bytes);
    if (err != PS_OK) {
        zmq_msg_close(frame);
        return err;
    }
    parts[1] = *frame;
    return ps_zsock_send(d->socket, now, parts, 2);
}
