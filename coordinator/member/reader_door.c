#include "reader_door.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "mem.h"

/* Where the door is. A file is read again each time: a job that was started again has
 * another one. */
static ps_err reader_door_find(const ps_init_method *at, ps_deadline deadline,
                               char endpoint[PS_ENDPOINT_MAX])
{
    char remote[PS_ADDRESS_MAX], local[PS_ADDRESS_MAX];
    ps_init_record record = {.port = at->port};
    if (at->is_file) PS_TRY(ps_init_file_read(at->path, &record));
    PS_TRY(ps_net_reach(at->is_file ? record.address : at->host, record.port, deadline,
                        remote, local));
    ps_net_endpoint(remote, record.port, endpoint, PS_ENDPOINT_MAX);
    return PS_OK;
}

static ps_err reader_door_read(const ps_control *c, ps_reader_pass *out)
{
    ps_mp_reader r;
    size_t bytes;
    ps_mp_reader_init(&r, c->value, c->bytes);
    const size_t items = ps_mp_read_array(&r, PS_CONTROL_DOOR_FRAME_MAX);
    const void *secret = ps_mp_read_bin(&r, &bytes, sizeof out->secret);
    if (r.failed || items < 2 || bytes != sizeof out->secret)
        return ps_err_set(PS_ERR_PROTOCOL, "a malformed answer to a reader");
    out->nonce = c->nonce;
    memcpy(&out->secret, secret, bytes);
    PS_TRY(ps_mem_zalloc(&out->endpoints, items - 1, sizeof *out->endpoints, "shards"));
    out->n = items - 1;
    for (size_t i = 0; i < out->n; i++)
        ps_mp_read_str(&r, out->endpoints[i], sizeof out->endpoints[i]);
    if (ps_mp_reader_end(&r)) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "a malformed answer to a reader");
}

static ps_err reader_door_take(const ps_control *c, ps_reader_pass *out, bool *later)
{
    if (c->kind == PS_CONTROL_SERVERS) return reader_door_read(c, out);
    if (c->kind != PS_CONTROL_REFUSE)
        return ps_err_set(PS_ERR_PROTOCOL, "%s to a reader",
                          ps_control_kind_name(c->kind));
    *later = c->for_now == 1;
    return ps_err_set(PS_ERR_PEER, "%s", c->text);
}

static ps_err reader_door_talk(void *dealer, const char *job, ps_deadline deadline,
                               ps_reader_pass *out, bool *later)
{
    ps_control ask = {.kind = PS_CONTROL_READER}, answer;
    zmq_msg_t frame;
    int got = 0;
    ps_control_set_text(&ask, PS_VERSION);
    PS_TRY(ps_control_set_name(&ask, job));
    PS_TRY(ps_control_send(dealer, &ask));
    PS_TRY(ps_control_recv(dealer, deadline, &frame, &answer, &got));
    if (!got) {
        *later = true;
        return ps_err_set(PS_ERR_TIMEOUT,
                          "who listens there does not answer: it is no pstrain job, or "
                          "one with keys that are missing here or differ");
    }
    const ps_err err = reader_door_take(&answer, out, later);
    zmq_msg_close(&frame);
    return err;
}

ps_err ps_reader_door_ask(const ps_reader_door *door, ps_deadline deadline,
                          ps_reader_pass *out, bool *later)
{
    char endpoint[PS_ENDPOINT_MAX];
    ps_secret number;
    void *dealer;
    *out = (ps_reader_pass){0};
    *later = false;
    ps_err err = reader_door_find(door->at, deadline, endpoint);
    *later = err == PS_ERR_NET || err == PS_ERR_TIMEOUT || err == PS_ERR_IO;
    PS_TRY(err);
    PS_TRY(ps_curve_check_endpoint(door->curve, endpoint));
    PS_TRY(ps_secret_draw(&number));
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .max_message_bytes = PS_CONTROL_DOOR_FRAME_MAX,
                                .routing_id = number.bytes,
                                .routing_id_bytes = sizeof number.bytes,
                                .curve = door->curve,
                                .peer = PS_ROLE_SERVER};
    PS_TRY(ps_zsock_open(door->zmq_context, &o, &dealer));
    err = ps_zsock_connect(dealer, door->curve, endpoint);
    if (err == PS_OK) err = reader_door_talk(dealer, door->job, deadline, out, later);
    ps_zsock_close(&dealer);
    if (err != PS_OK) ps_reader_pass_fini(out);
    return err;
}

void ps_reader_pass_fini(ps_reader_pass *pass)
{
    free(pass->endpoints);
    *pass = (ps_reader_pass){0};
}
