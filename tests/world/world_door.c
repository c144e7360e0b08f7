/* The door in the world: without keys it speaks ZMTP itself; here it is a ROUTER. */
#include <stdlib.h>
#include <zmq.h>

#include "door.h"
#include "world.h"
#include "zsock.h"

struct ps_door {
    void *router;
    ps_door *with_keys; // the real one
};

ps_err __real_ps_door_open(const ps_door_options *o, const char *where,
                           char endpoint[PS_ENDPOINT_MAX], ps_door **out);
void __real_ps_door_close(ps_door **door, int linger_ms);
void *__real_ps_door_socket(const ps_door *d);
void __real_ps_door_turn(ps_door *d, int n_parts, ps_door_take *take, void *owner);
ps_err __real_ps_door_send(ps_door *d, const void *id, size_t id_bytes, zmq_msg_t *sent);

ps_err __wrap_ps_door_open(const ps_door_options *o, const char *where,
                           char endpoint[PS_ENDPOINT_MAX], ps_door **out)
{
    const ps_zsock_options options = {.type = ZMQ_ROUTER};
    *out = calloc(1, sizeof **out);
    if (!*out) return ps_err_set(PS_ERR_NOMEM, "no memory for a door");
    if (o->curve && o->curve->on)
        return __real_ps_door_open(o, where, endpoint, &(*out)->with_keys);
    PS_TRY(ps_zsock_open(o->zmq_context, &options, &(*out)->router));
    return ps_zsock_bind((*out)->router, o->curve, where, endpoint);
}

void __wrap_ps_door_close(ps_door **door, int linger_ms)
{
    if (*door) __real_ps_door_close(&(*door)->with_keys, linger_ms);
    if (*door) ps_zsock_close(&(*door)->router);
    free(*door);
    *door = NULL;
}

void *__wrap_ps_door_socket(const ps_door *d)
{
    return d->with_keys ? __real_ps_door_socket(d->with_keys) : d->router;
}

void __wrap_ps_door_turn(ps_door *d, int n_parts, ps_door_take *take, void *owner)
{
    const ps_deadline now = {0};
    if (d->with_keys) {
        __real_ps_door_turn(d->with_keys, n_parts, take, owner);
        return;
    }
    for (int i = 0; i < n_parts; i++) {
        zmq_msg_t parts[2];
        int n;
        const ps_err err = ps_zsock_recv(d->router, now, parts, 2, &n);
        if (err == PS_ERR_PROTOCOL) continue; // too many frames
        if (err != PS_OK || n == 0) return;
        const ps_door_message m = {.id = zmq_msg_data(&parts[0]),
                                   .id_bytes = zmq_msg_size(&parts[0]),
                                   .body = zmq_msg_data(&parts[1]),
                                   .body_bytes = zmq_msg_size(&parts[1])};
        if (n != 2 || !take(owner, &m)) world_turn_out(d->router, m.id, m.id_bytes);
        ps_zsock_close_parts(parts, n);
    }
}

ps_err __wrap_ps_door_send(ps_door *d, const void *id, size_t id_bytes, zmq_msg_t *sent)
{
    zmq_msg_t parts[2];
    const ps_deadline now = {0};
    if (d->with_keys) return __real_ps_door_send(d->with_keys, id, id_bytes, sent);
    PS_TRY(ps_zsock_msg_copy(&parts[0], id, id_bytes));
    zmq_msg_init(&parts[1]);
    zmq_msg_move(&parts[1], sent);
    return ps_zsock_send(d->router, now, parts, 2);
}
