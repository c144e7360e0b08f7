#include "ps_comm_thread.h"

#include <errno.h>

#include "ps_comm_receive.h"
#include "ps_comm_send.h"

static void take_orders(ps_comm *c)
{
    const uint32_t n = ps_order_queue_count(&c->orders);
    for (uint32_t i = 0; i < n; i++) {
        const ps_order *o = ps_order_queue_peek(&c->orders, i);
        if (o->kind == PS_MSG_BYE || o->kind == PS_COMM_QUIT) {
            c->bye = o->kind == PS_MSG_BYE;
            c->quit = o->kind == PS_COMM_QUIT;
        } else {
            ps_comm_send_later(c, o);
        }
    }
    ps_order_queue_drop(&c->orders, n);
}

/* Sleeps until a message, an order or the job's end. */
static ps_err sleep_in_poll(ps_comm *c)
{
    uint32_t n = c->n_links;
    bool nothing = ps_order_queue_sleep(&c->orders);
    int rc = zmq_poll(c->items, (int)n + 2, nothing ? -1 : 0);
    int reason = zmq_errno();
    PS_TRY(ps_order_queue_awake(&c->orders, rc > 0 && c->items[n].revents));
    if (rc < 0 && reason != EINTR)
        return ps_err_set(PS_ERR_NET, "polling: %s", zmq_strerror(reason));
    if (rc > 0 && c->items[n + 1].revents) return ps_member_check(c->o.member);
    return PS_OK;
}

static ps_err run(ps_comm *c, ps_wire_frames *f)
{
    for (;;) {
        take_orders(c);
        if (c->quit) return PS_OK;
        PS_TRY(ps_comm_send_allowed(c));
        if (c->bye) return ps_comm_send_bye(c);
        PS_TRY(sleep_in_poll(c));
        for (uint32_t i = 0; i < c->n_links; i++)
            if (c->items[i].revents) PS_TRY(ps_comm_receive(c, &c->links[i], f));
    }
}

void *ps_comm_thread_main(void *arg)
{
    ps_comm *c = arg;
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    ps_err err = run(c, &f);
    ps_wire_frames_close(&f);
    if (err != PS_OK) ps_comm_fail(c, err);
    return NULL;
}
