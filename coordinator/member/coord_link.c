#include "coord_link.h"

#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "frame_queue.h"
#include "gradnorm_sum.h"
#include "mem.h"
#include "sync_codec.h"

struct ps_coord_link {
    void *socket, *monitor;
    uint64_t nonce;
    bool asked;      // and not answered yet:
    uint64_t step;   // for the norm of this step,
    zmq_msg_t parts; // with this message
    bool wants_sums; // or for all sums
    bool answered;   // and not taken yet: it is `norm`, or `sums`
    double norm;
    zmq_msg_t sums; // the answer's value is at `at`
    const void *at;
    size_t bytes;
    /* Orders. The last push of each worker and fragment is told again over a new
     * connection. */
    ps_coord_link_push *told; // (n_told); n_shards 0: none yet
    uint32_t n_told;
    uint64_t n_orders;     // received
    ps_frame_queue orders; // those that are not taken yet
};

static ps_err coord_link_set_up(ps_coord_link *link, void *zmq_context,
                                const ps_member *m, unsigned number)
{
    ps_control_id id;
    ps_control_id_make(&id, ps_member_secret(m), number);
    link->nonce = ps_member_roster(m)->nonce;
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .silence_ms = ps_member_silence_ms(m),
                                .max_message_bytes = PS_CONTROL_FRAME_MAX,
                                .routing_id = id.bytes,
                                .routing_id_bytes = sizeof id.bytes,
                                .secret = ps_member_secret(m),
                                .curve = ps_member_curve(m),
                                .peer = PS_ROLE_SERVER};
    PS_TRY(ps_zsock_open(zmq_context, &o, &link->socket));
    PS_TRY(ps_zsock_monitor(zmq_context, link->socket, "link", &link->monitor));
    return ps_zsock_connect(link->socket, o.curve, ps_member_coordinator(m));
}

ps_err ps_coord_link_create(void *zmq_context, const ps_member *m, unsigned number,
                            ps_coord_link **out)
{
    PS_TRY(PS_NEW(out, 1, "coordinator link"));
    zmq_msg_init(&(*out)->parts);
    zmq_msg_init(&(*out)->sums);
    ps_err err = coord_link_set_up(*out, zmq_context, m, number);
    if (err != PS_OK) ps_coord_link_destroy(out);
    return err;
}

void ps_coord_link_destroy(ps_coord_link **link)
{
    if (!*link) return;
    if ((*link)->socket) zmq_socket_monitor((*link)->socket, NULL, 0);
    ps_zsock_close(&(*link)->monitor);
    ps_zsock_close(&(*link)->socket);
    zmq_msg_close(&(*link)->parts);
    zmq_msg_close(&(*link)->sums);
    ps_frame_queue_fini(&(*link)->orders);
    free((*link)->told);
    free(*link);
    *link = NULL;
}

void *ps_coord_link_socket(ps_coord_link *link)
{
    return link->socket;
}

void *ps_coord_link_monitor(ps_coord_link *link)
{
    return link->monitor;
}

/* The message stays: it may have to be sent again. */
static ps_err send_parts(ps_coord_link *link)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    if (zmq_msg_copy(&frame, &link->parts) != 0)
        return ps_err_set(PS_ERR_NOMEM, "no memory for a message");
    const ps_deadline now = {0};
    return ps_zsock_send(link->socket, now, &frame, 1);
}

static ps_err tell_push(ps_coord_link *link, const ps_coord_link_push *push,
                        uint64_t next_order)
{
    const ps_control c = {.kind = PS_CONTROL_PUSHED,
                          .nonce = link->nonce,
                          .pushed = {.rank = push->rank,
                                     .number = push->number,
                                     .shards = push->n_shards,
                                     .next_order = next_order,
                                     .fragment = push->fragment,
                                     .holders = push->n_holders}};
    zmq_msg_t frame;
    PS_TRY(ps_control_frame(&frame, &c));
    const ps_deadline now = {0};
    return ps_zsock_send(link->socket, now, &frame, 1);
}

/* Before its first push a shard misses no order. The first message asks for those that it
 * has missed. */
static ps_err tell_again(ps_coord_link *link)
{
    uint64_t next_order = link->n_orders + 1;
    for (uint32_t i = 0; i < link->n_told; i++) {
        if (link->told[i].n_shards == 0) continue;
        PS_TRY(tell_push(link, &link->told[i], next_order));
        next_order = 0;
    }
    return PS_OK;
}

ps_err ps_coord_link_mend(ps_coord_link *link)
{
    ps_zsock_event event;
    bool again = false;
    while ((event = ps_zsock_monitor_read(link->monitor, NULL)) != PS_ZSOCK_NOTHING)
        again = event == PS_ZSOCK_CONNECTED;
    if (again) PS_TRY(tell_again(link));
    return again && link->asked ? send_parts(link) : PS_OK;
}

static ps_err send_sums(ps_coord_link *link, bool wants_sums, uint64_t step,
                        uint32_t n_shards, uint64_t total_blocks, uint32_t n,
                        const uint64_t *first, const uint64_t *counts, const double *sums)
{
    size_t bytes = ps_gradnorm_part_bytes(n, counts);
    void *part;
    PS_TRY(ps_mem_zalloc(&part, bytes, 1, "gradient norm"));
    ps_gradnorm_part_write(part, n, first, counts, sums);
    ps_control c = {
        .kind = PS_CONTROL_NORM, .nonce = link->nonce, .value = part, .bytes = bytes};
    c.norm.step = step;
    c.norm.shards = n_shards;
    c.norm.blocks = total_blocks;
    c.norm.wants_sums = wants_sums;
    zmq_msg_close(&link->parts);
    ps_err err = ps_control_frame(&link->parts, &c);
    free(part);
    PS_TRY(err);
    link->asked = true;
    link->answered = false;
    link->step = step;
    link->wants_sums = wants_sums;
    return send_parts(link);
}

ps_err ps_coord_link_gradnorm_send(ps_coord_link *link, uint64_t step, uint32_t n_shards,
                                   uint64_t total_blocks, uint32_t n,
                                   const uint64_t *first, const uint64_t *counts,
                                   const double *sums)
{
    return send_sums(link, false, step, n_shards, total_blocks, n, first, counts, sums);
}

ps_err ps_coord_link_sums_send(ps_coord_link *link, uint64_t step, uint32_t n_shards,
                               uint64_t total_blocks, uint32_t n, const uint64_t *first,
                               const uint64_t *counts, const double *sums)
{
    return send_sums(link, true, step, n_shards, total_blocks, n, first, counts, sums);
}

/* --- what the coordinator says --------------------------------------------------------
 */

static void coord_link_take_norm(ps_coord_link *link, const ps_control *c,
                                 zmq_msg_t *frame)
{
    const bool same = c->norm_sum.step == link->step &&
                      (c->norm_sum.wants_sums != 0) == link->wants_sums;
    if (!link->asked || !same) return; // answers a repetition
    link->norm = c->norm_sum.norm;
    if (link->wants_sums) {
        const size_t place =
            (size_t)((const char *)c->value - (char *)zmq_msg_data(frame));
        zmq_msg_move(&link->sums, frame);
        link->at = (const char *)zmq_msg_data(&link->sums) + place;
        link->bytes = c->bytes;
    }
    link->asked = false;
    link->answered = true;
}

/* An order that does not follow is a repetition; or orders before it were lost with a
 * connection, and come again with it. */
static ps_err take_order(ps_coord_link *link, const ps_control *c, zmq_msg_t *frame)
{
    if (c->order != link->n_orders + 1) return PS_OK;
    PS_TRY(ps_frame_queue_put(&link->orders, frame));
    link->n_orders++;
    return PS_OK;
}

static ps_err coord_link_take(ps_coord_link *link, zmq_msg_t *frame)
{
    ps_control c;
    PS_TRY(ps_control_read(zmq_msg_data(frame), zmq_msg_size(frame), &c, NULL));
    if (c.kind == PS_CONTROL_FAIL || c.kind == PS_CONTROL_ABORT)
        return ps_err_set(PS_ERR_PEER, "the coordinator says: %s", c.text);
    const bool known = c.kind == PS_CONTROL_NORM_SUM || c.kind == PS_CONTROL_ORDER;
    if (!known || c.nonce != link->nonce)
        return ps_err_set(PS_ERR_PROTOCOL, "the coordinator sent %s to a shard",
                          ps_control_kind_name((int)c.kind));
    if (c.kind == PS_CONTROL_ORDER) return take_order(link, &c, frame);
    coord_link_take_norm(link, &c, frame);
    return PS_OK;
}

/* Takes what has come, without waiting: orders may come before the norm that the order
 * before them needs. */
static ps_err coord_link_take_all(ps_coord_link *link)
{
    for (;;) {
        zmq_msg_t frame;
        int got;
        const ps_deadline now = {0};
        PS_TRY(ps_zsock_recv(link->socket, now, &frame, 1, &got));
        if (!got) return PS_OK;
        ps_err err = coord_link_take(link, &frame);
        zmq_msg_close(&frame);
        PS_TRY(err);
    }
}

ps_err ps_coord_link_gradnorm_recv(ps_coord_link *link, int *got, uint64_t *step,
                                   double *norm)
{
    *got = 0;
    PS_TRY(coord_link_take_all(link));
    if (!link->answered) return PS_OK;
    link->answered = false;
    *got = 1;
    *step = link->step;
    *norm = link->norm;
    return PS_OK;
}

ps_err ps_coord_link_sums_recv(ps_coord_link *link, int *got, uint64_t *step,
                               double *sums, uint64_t n_sums)
{
    double norm;
    PS_TRY(ps_coord_link_gradnorm_recv(link, got, step, &norm));
    if (!*got) return PS_OK;
    if (link->bytes != n_sums * sizeof *sums)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "the coordinator sent %zu bytes of sums instead of %llu",
                          link->bytes, (unsigned long long)(n_sums * sizeof *sums));
    memcpy(sums, link->at, link->bytes);
    return PS_OK;
}

/* --- orders ---------------------------------------------------------------------------
 */

static ps_err coord_link_make_room(ps_coord_link *link, uint32_t n)
{
    if (n <= link->n_told) return PS_OK;
    ps_coord_link_push *larger = realloc(link->told, n * sizeof *larger);
    if (!larger) return ps_err_set(PS_ERR_NOMEM, "no memory for a push");
    memset(larger + link->n_told, 0, (n - link->n_told) * sizeof *larger);
    link->told = larger;
    link->n_told = n;
    return PS_OK;
}

ps_err ps_coord_link_pushed(ps_coord_link *link, const ps_coord_link_push *push)
{
    const uint32_t index = push->fragment * push->n_workers + push->rank;
    PS_TRY(coord_link_make_room(link, index + 1));
    link->told[index] = *push;
    return tell_push(link, push, 0);
}

ps_err ps_coord_link_order(ps_coord_link *link, ps_sync_entry *entries,
                           uint32_t n_workers, ps_sync_order *out, bool *got)
{
    ps_control c;
    zmq_msg_t frame;
    PS_TRY(coord_link_take_all(link));
    *got = ps_frame_queue_take(&link->orders, &frame);
    if (!*got) return PS_OK;
    ps_err err = ps_control_read(zmq_msg_data(&frame), zmq_msg_size(&frame), &c, NULL);
    if (err == PS_OK) err = ps_sync_order_read(c.value, c.bytes, entries, n_workers, out);
    zmq_msg_close(&frame);
    return err;
}
