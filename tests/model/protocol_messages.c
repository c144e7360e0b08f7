#include "protocol_world.h"

#include <string.h>

/* ---- messages: what the programs send and receive ---- */

static void put(queue *q, const ps_wire_header *h, const void *payload, size_t bytes,
                ps_wire_pass pass)
{
    if (q->n == QUEUE || bytes > PAYLOAD) {
        world_wrong("a queue is too short for the check");
        return;
    }
    message *m = &q->messages[q->n++];
    memset(m, 0, sizeof *m);
    // Field by field: what lies between them would make states differ.
    m->header.version = h->version;
    m->header.kind = h->kind;
    m->header.codec = h->codec;
    m->header.nonce = h->nonce;
    m->header.epoch = h->epoch;
    m->header.rank = h->rank;
    m->header.step = h->step;
    m->header.chunk = h->chunk;
    m->header.count = h->count;
    m->header.credit = h->credit;
    m->header.hello.number = h->hello.number; // covers the other members
    m->header.hello.rings = h->kind == PS_MSG_HELLO && h->hello.rings;
    m->header.hello.back = h->kind == PS_MSG_HELLO ? h->hello.back : 0;
    m->n_bytes = (uint32_t)bytes;
    if (bytes > 0 && pass == PS_WIRE_BORROW)
        m->borrowed = payload;
    else if (bytes > 0)
        memcpy(m->bytes, payload, bytes);
}

/* The payload as it is now: for messages whose sender ends. */
void world_copy_payload(message *m)
{
    if (!m->borrowed) return;
    memcpy(m->bytes, m->borrowed, m->n_bytes);
    m->borrowed = NULL;
}

void world_copy_payloads(queue *q)
{
    for (uint32_t i = 0; i < q->n; i++)
        world_copy_payload(&q->messages[i]);
}

static message take_first(queue *q)
{
    message m = q->messages[0];
    world_copy_payload(&m);
    q->n--;
    memmove(q->messages, q->messages + 1, q->n * sizeof m);
    memset(&q->messages[q->n], 0, sizeof m);
    return m;
}

void world_cut_tail(queue *q, uint32_t keep)
{
    memset(&q->messages[keep], 0, (q->n - keep) * sizeof *q->messages);
    q->n = keep;
}

ps_err __wrap_ps_wire_send(void *socket, const void *id, size_t id_bytes,
                           const ps_wire_header *h, const void *payload, size_t bytes,
                           ps_wire_pass pass, uint64_t *sent)
{
    const char *at = socket;
    if (!id) {
        const size_t link = (size_t)(at - world_dealers[0]);
        put(&W.up[link / SHARDS][link % SHARDS], h, payload, bytes, pass);
        return PS_OK;
    }
    const uint32_t rank = ((const uint8_t *)id)[3],
                   shard = (uint32_t)(at - world_routers);
    if (!world_runs(rank) && !world_scenario()->any_order)
        return ps_err_set(PS_ERR_PEER, "gone");
    put(&W.down[rank][shard], h, payload, bytes, pass);
    return PS_OK;
}

static message arrived; // taken by the receive that follows
static bool has_arrived;

static void set_frame(zmq_msg_t *frame, const void *bytes, size_t n)
{
    // Zeroed, and so small that libzmq keeps the bytes inside: a copy of it is a message.
    memset(frame, 0, sizeof *frame);
    zmq_msg_init_size(frame, n);
    memcpy(zmq_msg_data(frame), bytes, n);
}

static void fill_frames(ps_wire_frames *f, const message *m, const uint8_t *id)
{
    uint8_t header[PS_WIRE_HEADER_MAX];
    size_t bytes;
    memset(f, 0, sizeof *f);
    ps_wire_encode(&m->header, header, &bytes);
    zmq_msg_init(&f->id);
    if (id) set_frame(&f->id, id, PS_WIRE_ID_BYTES);
    set_frame(&f->header, header, bytes);
    zmq_msg_init(&f->payload);
    f->has_payload = ps_wire_has_payload(&m->header);
    if (f->has_payload) set_frame(&f->payload, m->bytes, m->n_bytes);
    f->n = (id ? 2 : 1) + f->has_payload;
}

ps_err __wrap_ps_wire_recv(void *socket, bool router, ps_wire_frames *f, bool *got)
{
    *got = has_arrived;
    if (has_arrived) {
        ps_wire_frames_close(f);
        fill_frames(f, &arrived, NULL);
    }
    has_arrived = false;
    return PS_OK;
}

ps_zsock_event __wrap_ps_zsock_monitor_read(void *monitor, int *fd)
{
    const size_t link = (size_t)((const char *)monitor - world_monitors[0]);
    bool *connected = &W.connected[link / SHARDS][link % SHARDS];
    const ps_zsock_event event = *connected ? PS_ZSOCK_CONNECTED : PS_ZSOCK_NOTHING;
    *connected = false;
    return event;
}

/* ---- what happens to messages ---- */

void world_give_to_shard(uint32_t shard, const message *m, uint32_t rank,
                         uint32_t incarnation)
{
    ps_shard *s = world_shard(shard);
    ps_wire_frames f;
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_secret secret;
    world_secret(incarnation, rank, &secret);
    ps_wire_id(rank, &secret, id);
    fill_frames(&f, m, id);
    world_giving = (uint32_t)(m->header.nonce - NONCE);
    world_owner = WORKERS + shard;
    const uint64_t owed = s->peers[rank].owed;
    world_must(ps_shard_take_message(s, &f), "shard", shard);
    if (world_scenario()->mistake == MISTAKE_CREDIT_SURVIVES &&
        m->header.kind == PS_MSG_HELLO)
        s->peers[rank].owed += owed;
    world_must(ps_shard_reply_flush(s), "shard", shard);
    world_owner = MEMBERS;
    ps_wire_frames_close(&f);
}

void world_deliver_up(uint32_t rank, uint32_t shard)
{
    const message m = take_first(&W.up[rank][shard]);
    world_give_to_shard(shard, &m, rank, W.incarnation);
}

void world_deliver_down(uint32_t rank, uint32_t shard)
{
    ps_comm *c = world_comm(rank);
    ps_comm_link *l = &c->links[shard];
    arrived = take_first(&W.down[rank][shard]);
    has_arrived = true;
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    world_owner = rank;
    world_must(ps_comm_receive(c, l, &f), "worker", rank);
    if (world_scenario()->mistake == MISTAKE_NOTHING_IS_REPEATED &&
        arrived.header.kind == PS_MSG_READY && arrived.header.hello.number > 1)
        ps_comm_send_no_more(c, shard);
    world_must(ps_comm_send_allowed(c), "worker", rank);
    world_owner = MEMBERS;
    ps_wire_frames_close(&f);
}

void world_lose(uint32_t rank, uint32_t shard, uint32_t keep_up, uint32_t keep_down)
{
    ps_comm *c = world_comm(rank);
    W.losses--;
    world_cut_tail(&W.up[rank][shard], keep_up);
    world_cut_tail(&W.down[rank][shard], keep_down);
    W.connected[rank][shard] = true;
    world_owner = rank;
    world_must(ps_comm_mend_news(c, &c->links[shard]), "worker", rank);
    world_must(ps_comm_send_allowed(c), "worker", rank);
    world_owner = MEMBERS;
}
