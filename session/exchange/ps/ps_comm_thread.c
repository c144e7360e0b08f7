#include "ps_comm_thread.h"

#include <errno.h>
#include <inttypes.h>

#include "ps_comm_mend.h"
#include "ps_comm_receive.h"
#include "ps_comm_send.h"

static void take_commands(ps_comm *c)
{
    const uint32_t n = ps_command_queue_count(&c->commands);
    for (uint32_t i = 0; i < n; i++) {
        const ps_command *o = ps_command_queue_peek(&c->commands, i);
        c->quit |= o->kind == PS_COMM_QUIT;
        if (o->kind == PS_MSG_BYE) {
            c->bye = true;
            c->bye_deadline =
                ps_deadline_in_ms((uint64_t)c->o.config->net.step_timeout_ms);
        } else if (o->kind != PS_COMM_QUIT) {
            ps_comm_send_later(c, o);
        }
    }
    ps_command_queue_drop(&c->commands, n);
}

/* Sleeps until a message, a command, news of a connection, the job's end, or, after BYE,
 * the deadline. */
static ps_err sleep_in_poll(ps_comm *c)
{
    uint32_t n = c->n_links;
    bool nothing = ps_command_queue_sleep(&c->commands);
    int ms = c->bye ? ps_deadline_left_ms(c->bye_deadline) : -1;
    int rc = zmq_poll(c->items, 2 * (int)n + 2, nothing ? ms : 0);
    int reason = zmq_errno();
    ps_command_queue_awake(&c->commands, rc > 0 && c->items[n].revents);
    if (rc < 0 && reason != EINTR)
        return ps_err_set(PS_ERR_NET, "polling: %s", zmq_strerror(reason));
    if (rc > 0 && c->items[n + 1].revents) return ps_member_check(c->o.member);
    return PS_OK;
}

static ps_err bye_timeout(const ps_comm *c)
{
    const ps_comm_link *l = c->links;
    while (l->left)
        l++;
    char lost[128];
    return ps_err_set(PS_ERR_TIMEOUT,
                      "shard %u of server %d (host %s, %s) has not answered a BYE within "
                      "%" PRId64 " ms (net.step_timeout_ms)%s",
                      (uint32_t)(l - c->links), l->server, l->host, l->endpoint,
                      c->o.config->net.step_timeout_ms,
                      ps_comm_lost_text(l, lost, sizeof lost));
}

static ps_err comm_thread_run(ps_comm *c, ps_wire_frames *f)
{
    const uint32_t n = c->n_links;
    for (uint32_t i = 0; i < n; i++)
        PS_TRY(ps_comm_mend_news(c, &c->links[i])); // before the first poll
    for (;;) {
        take_commands(c);
        if (c->quit) return PS_OK;
        PS_TRY(ps_comm_send_allowed(c));
        if (c->bye && c->n_left == n) return PS_OK;
        if (c->bye && ps_deadline_passed(c->bye_deadline)) return bye_timeout(c);
        PS_TRY(sleep_in_poll(c));
        for (uint32_t i = 0; i < n; i++) {
            // Messages of a lost connection come before the news of a new one.
            if (c->items[i].revents) PS_TRY(ps_comm_receive(c, &c->links[i], f));
            if (c->items[n + 2 + i].revents) PS_TRY(ps_comm_mend_news(c, &c->links[i]));
        }
    }
}

void *ps_comm_thread_main(void *arg)
{
    ps_comm *c = arg;
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    ps_err err = comm_thread_run(c, &f);
    ps_wire_frames_close(&f);
    if (err != PS_OK) ps_comm_fail(c, err);
    return NULL;
}
