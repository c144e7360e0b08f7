#include "twin_link.h"

#include <stdlib.h>

#include "mem.h"

enum { ON_THE_WAY = 4, FRAME_MORE = 4096 };

struct ps_twin_link {
    void *socket, *monitor;
    uint64_t nonce;
    uint32_t epoch;
    uint64_t sent, answered; // numbers of messages
    struct {                 // of number k: k % ON_THE_WAY
        ps_msg_kind kind;
        uint64_t bytes;
        void *body;
    } messages[ON_THE_WAY];
};

static ps_err twin_link_open(ps_twin_link *l, const ps_twin_link_options *o)
{
    const ps_secret *secret = ps_roster_twins(ps_member_roster(o->member));
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_wire_id(o->shard, secret, id);
    const ps_zsock_options options = {.type = ZMQ_DEALER,
                                      .silence_ms = ps_member_silence_ms(o->member),
                                      .max_message_bytes =
                                          PS_WIRE_TWIN_BYTES + FRAME_MORE,
                                      .routing_id = id,
                                      .routing_id_bytes = sizeof id,
                                      .secret = secret,
                                      .curve = ps_member_curve(o->member),
                                      .peer = PS_ROLE_SERVER};
    PS_TRY(ps_zsock_open(o->zmq_context, &options, &l->socket));
    PS_TRY(ps_zsock_monitor(o->zmq_context, l->socket, "twin", &l->monitor));
    for (int i = 0; i < ON_THE_WAY; i++)
        PS_TRY(ps_mem_zalloc(&l->messages[i].body, o->body_bytes, 1, "rows for a twin"));
    return ps_zsock_connect(l->socket, options.curve, o->endpoint);
}

ps_err ps_twin_link_create(const ps_twin_link_options *o, ps_twin_link **out)
{
    PS_TRY(PS_NEW(out, 1, "a link to a twin"));
    (*out)->nonce = ps_member_roster(o->member)->nonce;
    (*out)->epoch = ps_member_epoch(o->member);
    const ps_err err = twin_link_open(*out, o);
    if (err != PS_OK) ps_twin_link_destroy(out);
    return err;
}

void ps_twin_link_destroy(ps_twin_link **link)
{
    ps_twin_link *l = *link;
    if (!l) return;
    if (l->socket) zmq_socket_monitor(l->socket, NULL, 0);
    ps_zsock_close(&l->monitor);
    ps_zsock_close(&l->socket);
    for (int i = 0; i < ON_THE_WAY; i++)
        free(l->messages[i].body);
    free(l);
    *link = NULL;
}

void *ps_twin_link_socket(ps_twin_link *l)
{
    return l->socket;
}

void *ps_twin_link_monitor(ps_twin_link *l)
{
    return l->monitor;
}

void *ps_twin_link_body(ps_twin_link *l)
{
    const bool room = l->sent - l->answered < ON_THE_WAY;
    return room ? l->messages[(l->sent + 1) % ON_THE_WAY].body : NULL;
}

static ps_err twin_link_send(ps_twin_link *l, uint64_t number, uint64_t *sent)
{
    const ps_wire_header h = {.version = PS_WIRE_VERSION,
                              .kind = (uint8_t)l->messages[number % ON_THE_WAY].kind,
                              .nonce = l->nonce,
                              .epoch = l->epoch,
                              .count = l->messages[number % ON_THE_WAY].bytes,
                              .rows.number = number};
    return ps_wire_send(l->socket, NULL, 0, &h, l->messages[number % ON_THE_WAY].body,
                        h.count, PS_WIRE_COPY, sent);
}

ps_err ps_twin_link_send(ps_twin_link *l, ps_msg_kind kind, uint64_t bytes,
                         uint64_t *sent)
{
    const uint64_t number = ++l->sent;
    l->messages[number % ON_THE_WAY].kind = kind;
    l->messages[number % ON_THE_WAY].bytes = bytes;
    return twin_link_send(l, number, sent);
}

ps_err ps_twin_link_recv(ps_twin_link *l, ps_wire_frames *f, bool *got)
{
    for (;;) {
        ps_wire_header h;
        PS_TRY(ps_wire_recv(l->socket, false, f, got));
        if (!*got) return PS_OK;
        PS_TRY(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), &h));
        if (h.kind != PS_MSG_TWIN || h.nonce != l->nonce || h.epoch != l->epoch ||
            h.rows.number > l->sent || !f->has_payload)
            return ps_err_set(PS_ERR_PROTOCOL, "the twin sent %s out of turn",
                              ps_wire_kind_name(h.kind));
        if (h.rows.number <= l->answered) continue; // of a message that was sent twice
        l->answered = h.rows.number;
        return PS_OK;
    }
}

bool ps_twin_link_is_idle(const ps_twin_link *l)
{
    return l->answered == l->sent;
}

ps_err ps_twin_link_mend(ps_twin_link *l, uint64_t *sent)
{
    ps_zsock_event event;
    bool again = false;
    while ((event = ps_zsock_monitor_read(l->monitor, NULL)) != PS_ZSOCK_NOTHING)
        again = event == PS_ZSOCK_CONNECTED;
    for (uint64_t k = l->answered + 1; again && k <= l->sent; k++)
        PS_TRY(twin_link_send(l, k, sent));
    return PS_OK;
}
