#include "coord_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

void ps_coord_send_raw(ps_coordinator *c, const void *id, size_t id_bytes, ps_control *m)
{
    zmq_msg_t parts[2];
    if (m->kind != PS_CONTROL_REFUSE) m->nonce = c->nonce;
    if (ps_zsock_msg_copy(&parts[0], id, id_bytes) != PS_OK) return;
    if (ps_control_frame(&parts[1], m) != PS_OK) {
        PS_ERROR("answer", "kind=%s error=\"%s\"", ps_control_kind_name((int)m->kind),
                 ps_err_message());
        ps_zsock_close_parts(parts, 2);
        return;
    }
    // A peer that is not connected is noticed by its silence.
    const ps_deadline now = {0};
    if (ps_zsock_send(c->router, now, parts, 2) != PS_OK)
        PS_DEBUG("answer", "error=\"%s\"", ps_err_message());
}

void ps_coord_send(ps_coordinator *c, const ps_coord_peer *p, ps_control *m)
{
    ps_coord_send_raw(c, p->id.bytes, sizeof p->id.bytes, m);
}

void ps_coord_send_text(ps_coordinator *c, const ps_coord_peer *p, ps_control_kind kind,
                        const char *text)
{
    ps_control m = {.kind = kind};
    ps_control_set_text(&m, text);
    ps_coord_send(c, p, &m);
}

void ps_coord_send_fail(ps_coordinator *c, const ps_coord_sender *to, uint64_t request,
                        ps_err code)
{
    ps_control m = {.kind = PS_CONTROL_FAIL, .request = request};
    m.number[0] = (uint64_t)code;
    ps_control_set_text(&m, ps_err_message());
    ps_coord_send_raw(c, to->id, to->bytes, &m);
}

void ps_coord_complain(ps_coordinator *c, const ps_coord_sender *from, uint64_t request,
                       ps_err code)
{
    uint64_t number = 0;
    memcpy(&number, from->id, from->bytes < sizeof number ? from->bytes : sizeof number);
    bool known = false;
    for (int i = 0; i < PS_COORD_OFFENDERS; i++)
        known |= c->offenders[i] == number;
    if (!known) {
        c->offenders[c->n_offences % PS_COORD_OFFENDERS] = number;
        PS_WARN_FEW("bad_message", "peer=%016" PRIx64 " error=\"%s\"", number,
                    ps_err_message());
    }
    c->n_offences++;
    ps_coord_send_fail(c, from, request, code);
}

void ps_coord_describe(const ps_coord_peer *p, char *out, size_t cap)
{
    snprintf(out, cap, "%s %d (host %s)", ps_role_name(p->entry.role), p->entry.rank,
             p->entry.host);
}
