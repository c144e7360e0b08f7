#include "link_net.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "log.h"
#include "mem.h"
#include "net.h"
#include "tell.h"
#include "wire_socket.h"

/* Pieces that may be on the way beyond those that the other has taken, and how many it
 * takes before it says so. */
enum { WINDOW = 64, SAY_AFTER = WINDOW / 4 };

enum { SEALED_BYTES = 256 }; // more than encryption adds to a frame

/* `call` of a head that says how many pieces were taken. */
static const uint32_t CALL_TAKEN = UINT32_MAX;

typedef struct link_net {
    ps_link base;
    ps_link_net *of;
    void *dealer, *monitor;
    bool was_connected;
    zmq_msg_t next; // room for a piece; has_next: there is one
    bool has_next;
    uint64_t put, allowed;  // pieces, from the start
    zmq_msg_t kept[WINDOW]; // [allowed, put): to be sent again over a new connection
    zmq_msg_t come[WINDOW];
    uint64_t n_come, taken, said;
} link_net;

struct ps_link_net {
    ps_link_net_options o;
    void *context, *router;
    ps_gate *gate;
    int news;           // epoll: of the links' connections
    ps_secret *secrets; // (n_workers)
    link_net **links;   // (n_workers) borrowed; NULL: none
    char endpoint[PS_ENDPOINT_MAX];
};

/* ---- sending ---- */

static uint8_t *link_net_room(ps_link *base, uint32_t bytes)
{
    link_net *l = (link_net *)base;
    if (l->put - l->allowed >= WINDOW) return NULL;
    if (l->has_next) zmq_msg_close(&l->next);
    l->has_next = zmq_msg_init_size(&l->next, sizeof(ps_link_head) + bytes) == 0;
    if (!l->has_next) return NULL;
    return (uint8_t *)zmq_msg_data(&l->next) + sizeof(ps_link_head);
}

/* Takes the frame. */
static ps_err link_net_send(link_net *l, zmq_msg_t *frame)
{
    if (zmq_msg_send(frame, l->dealer, ZMQ_DONTWAIT) >= 0) return PS_OK;
    const ps_err err = ps_err_set(PS_ERR_NET, "sending to worker %d: %s", l->base.rank,
                                  zmq_strerror(zmq_errno()));
    zmq_msg_close(frame);
    return err;
}

static ps_err link_net_put(ps_link *base, const ps_link_head *h)
{
    link_net *l = (link_net *)base;
    ps_link_head head = *h;
    head.number = l->put;
    memcpy(zmq_msg_data(&l->next), &head, sizeof head);
    zmq_msg_t *kept = &l->kept[l->put++ % WINDOW];
    zmq_msg_init(kept);
    zmq_msg_copy(kept, &l->next);
    l->has_next = false;
    return link_net_send(l, &l->next);
}

static ps_err say_taken(link_net *l)
{
    const ps_link_head h = {.call = CALL_TAKEN, .tag = l->taken};
    zmq_msg_t frame;
    if (zmq_msg_init_size(&frame, sizeof h) != 0)
        return ps_err_set(PS_ERR_NOMEM, "no memory for a message");
    memcpy(zmq_msg_data(&frame), &h, sizeof h);
    l->said = l->taken;
    return link_net_send(l, &frame);
}

static ps_err link_net_rest(ps_link *base)
{
    link_net *l = (link_net *)base;
    return l->taken - l->said >= SAY_AFTER ? say_taken(l) : PS_OK;
}

/* The pieces that the other has not taken, and what this worker has taken: what the lost
 * connection had of them does not matter. */
static ps_err link_net_repeat(link_net *l)
{
    ps_tell("mended", "{s:i}", "repeated", (int)(l->put - l->allowed));
    PS_WARN("connection-mended", "to=worker-%d repeated=%d", l->base.rank,
            (int)(l->put - l->allowed));
    for (uint64_t i = l->allowed; i < l->put; i++) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        zmq_msg_copy(&frame, &l->kept[i % WINDOW]);
        PS_TRY(link_net_send(l, &frame));
    }
    return say_taken(l);
}

static ps_err link_net_news(link_net *l)
{
    ps_zsock_event event;
    while ((event = ps_zsock_monitor_read(l->monitor, NULL)) != PS_ZSOCK_NOTHING) {
        if (event != PS_ZSOCK_CONNECTED) continue;
        if (l->was_connected) PS_TRY(link_net_repeat(l));
        l->was_connected = true;
    }
    return PS_OK;
}

ps_err ps_link_net_mend(ps_link_net *n)
{
    struct epoll_event news[8];
    const int got = epoll_wait(n->news, news, 8, 0);
    for (int i = 0; i < got; i++)
        PS_TRY(link_net_news(news[i].data.ptr));
    return PS_OK;
}

/* ---- receiving ---- */

static ps_err link_net_front(ps_link *base, ps_link_head *h, const uint8_t **bytes)
{
    link_net *l = (link_net *)base;
    *bytes = NULL;
    if (l->taken == l->n_come) return PS_OK;
    zmq_msg_t *frame = &l->come[l->taken % WINDOW];
    const uint8_t *at = zmq_msg_data(frame);
    memcpy(h, at, sizeof *h);
    if (h->bytes != zmq_msg_size(frame) - sizeof *h)
        return ps_err_set(PS_ERR_PROTOCOL, "worker %d sends a piece of another size",
                          base->rank);
    *bytes = at + sizeof *h;
    return PS_OK;
}

static void link_net_drop(ps_link *base)
{
    link_net *l = (link_net *)base;
    zmq_msg_close(&l->come[l->taken++ % WINDOW]);
}

/* libzmq hands out small messages at any address; the numbers in them need an aligned
 * one.
 */
static ps_err frame_keep(zmq_msg_t *frame, zmq_msg_t *to)
{
    const size_t bytes = zmq_msg_size(frame);
    if (((uintptr_t)zmq_msg_data(frame) & 7) == 0) {
        zmq_msg_init(to);
        zmq_msg_move(to, frame);
        return PS_OK;
    }
    if (zmq_msg_init_size(to, bytes) != 0)
        return ps_err_set(PS_ERR_NOMEM, "no memory for a message");
    memcpy(zmq_msg_data(to), zmq_msg_data(frame), bytes);
    return PS_OK;
}

static ps_err frame_come(link_net *l, zmq_msg_t *frame)
{
    ps_link_head h;
    if (zmq_msg_size(frame) < sizeof h)
        return ps_err_set(PS_ERR_PROTOCOL, "worker %d sends half a head", l->base.rank);
    memcpy(&h, zmq_msg_data(frame), sizeof h);
    if (h.call == CALL_TAKEN) {
        if (h.tag > l->put)
            return ps_err_set(PS_ERR_PROTOCOL, "worker %d has taken what was not sent",
                              l->base.rank);
        while (l->allowed < h.tag)
            zmq_msg_close(&l->kept[l->allowed++ % WINDOW]);
        return PS_OK;
    }
    // Here already, or after one that was lost with a connection: it is sent again.
    if (h.number != l->n_come) return PS_OK;
    if (l->n_come - l->taken >= WINDOW)
        return ps_err_set(PS_ERR_PROTOCOL, "worker %d sends more than it may",
                          l->base.rank);
    zmq_msg_t *to = &l->come[l->n_come % WINDOW];
    PS_TRY(frame_keep(frame, to));
    l->n_come++;
    return PS_OK;
}

/* Takes one message, if there is one. One that no worker has sent is dropped. */
static ps_err router_take(ps_link_net *n, bool *taken)
{
    zmq_msg_t parts[2];
    int got;
    *taken = false;
    PS_TRY(ps_zsock_recv(n->router, ps_deadline_in_ms(0), parts, 2, &got));
    if (got == 0) return PS_OK;
    *taken = true;
    ps_err err = PS_OK;
    const int64_t rank = ps_wire_id_rank(zmq_msg_data(&parts[0]), zmq_msg_size(&parts[0]),
                                         n->secrets, (uint32_t)n->o.n_workers);
    if (got == 2 && rank >= 0 && n->links[rank])
        err = frame_come(n->links[rank], &parts[1]);
    ps_zsock_close_parts(parts, got);
    return err;
}

ps_err ps_link_net_turn(ps_link_net *n, bool *moved)
{
    bool taken = true;
    ps_gate_turn(n->gate);
    for (int i = 0; i < WINDOW && taken; i++) {
        PS_TRY(router_take(n, &taken));
        *moved = *moved || taken;
    }
    for (int r = 0; r < n->o.n_workers; r++)
        if (n->links[r]) PS_TRY(link_net_rest(&n->links[r]->base));
    return PS_OK;
}

int ps_link_net_items(ps_link_net *n, zmq_pollitem_t *items)
{
    const int gates = ps_gate_n_items(n->gate);
    ps_gate_items(n->gate, items);
    items[gates] = (zmq_pollitem_t){.socket = n->router, .events = ZMQ_POLLIN};
    items[gates + 1] = (zmq_pollitem_t){.fd = n->news, .events = ZMQ_POLLIN};
    return gates + 2;
}

int ps_link_net_poll_ms(const ps_link_net *n)
{
    return ps_gate_poll_ms(n->gate);
}

/* ---- start and end ---- */

static void link_net_destroy(ps_link *base)
{
    link_net *l = (link_net *)base;
    while (l->taken < l->n_come)
        link_net_drop(base);
    while (l->allowed < l->put)
        zmq_msg_close(&l->kept[l->allowed++ % WINDOW]);
    if (l->has_next) zmq_msg_close(&l->next);
    if (l->dealer) zmq_socket_monitor(l->dealer, NULL, 0);
    ps_zsock_close(&l->monitor);
    ps_zsock_close(&l->dealer);
    l->of->links[base->rank] = NULL;
    free(l);
}

static const ps_link_ops link_net_ops = {
    .room = link_net_room,
    .put = link_net_put,
    .front = link_net_front,
    .drop = link_net_drop,
    .rest = link_net_rest,
    .destroy = link_net_destroy,
};

static ps_err link_net_watch(link_net *l)
{
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = l};
    int fd;
    PS_TRY(ps_zsock_monitor(l->of->context, l->dealer, "link", &l->monitor));
    PS_TRY(ps_zsock_monitor_fd(l->monitor, &fd));
    if (epoll_ctl(l->of->news, EPOLL_CTL_ADD, fd, &wanted) == 0) return PS_OK;
    return ps_err_errno(PS_ERR_NET, "watching a connection");
}

ps_err ps_link_net_connect(ps_link_net *n, int rank, const char *endpoint,
                           const ps_secret *secret, ps_link **out)
{
    uint8_t id[PS_WIRE_ID_BYTES];
    link_net *l;
    ps_wire_id((uint32_t)n->o.rank, &n->secrets[n->o.rank], id);
    const ps_zsock_options options = {.type = ZMQ_DEALER,
                                      .silence_ms = n->o.silence_ms,
                                      .routing_id = id,
                                      .routing_id_bytes = sizeof id,
                                      .secret = &n->secrets[n->o.rank],
                                      .curve = n->o.curve,
                                      .peer = PS_ROLE_WORKER};
    PS_TRY(PS_NEW(&l, 1, "a link"));
    l->base = (ps_link){.ops = &link_net_ops, .rank = rank};
    l->of = n;
    ps_err err = ps_zsock_open(n->context, &options, &l->dealer);
    if (err == PS_OK) err = link_net_watch(l);
    if (err == PS_OK) err = ps_zsock_connect(l->dealer, n->o.curve, endpoint);
    if (err == PS_OK) err = link_net_news(l); // before the first wait
    if (err != PS_OK) {
        link_net_destroy(&l->base);
        return err;
    }
    n->secrets[rank] = *secret;
    n->links[rank] = l;
    *out = &l->base;
    return PS_OK;
}

static const ps_secret *link_net_secret_of(void *owner, int i)
{
    const ps_link_net *n = owner;
    return i < n->o.n_workers ? &n->secrets[i] : NULL;
}

static ps_err link_net_bind(ps_link_net *n, const char *address)
{
    const ps_zsock_options options = {
        .type = ZMQ_ROUTER,
        .silence_ms = n->o.silence_ms,
        .max_message_bytes = sizeof(ps_link_head) + PS_LINK_PIECE + SEALED_BYTES,
        .asks_for_secret = true,
        .curve = n->o.curve,
    };
    char where[PS_ENDPOINT_MAX];
    PS_TRY(ps_zsock_open(n->context, &options, &n->router));
    PS_TRY(ps_gate_watch(n->gate, n->router, PS_GATE_MEMBERS));
    ps_net_endpoint(address, 0, where, sizeof where);
    return ps_zsock_bind(n->router, n->o.curve, where, n->endpoint);
}

static ps_err link_net_fill(ps_link_net *n)
{
    const size_t workers = (size_t)n->o.n_workers;
    PS_TRY(PS_NEW(&n->secrets, workers, "links"));
    PS_TRY(PS_NEW(&n->links, workers, "links"));
    PS_TRY(ps_secret_draw(&n->secrets[n->o.rank]));
    PS_TRY(
        ps_zsock_context(n->o.io_threads, 3 * n->o.n_workers + 64, false, &n->context));
    const ps_gate_options gate = {.zmq_context = n->context,
                                  .n_members = 2 * n->o.n_workers, // may connect again
                                  .patience_ms = PS_GATE_PATIENCE_MS,
                                  .curve = n->o.curve,
                                  .secret_of = link_net_secret_of,
                                  .owner = n};
    return ps_gate_create(&gate, &n->gate);
}

ps_err ps_link_net_create(const ps_link_net_options *o, ps_link_net **out)
{
    PS_TRY(PS_NEW(out, 1, "links"));
    ps_link_net *n = *out;
    n->o = *o;
    n->o.address = NULL;
    n->news = epoll_create1(EPOLL_CLOEXEC);
    ps_err err = n->news < 0 ? ps_err_errno(PS_ERR_NET, "epoll") : link_net_fill(n);
    if (err == PS_OK) err = link_net_bind(n, o->address);
    if (err != PS_OK) ps_link_net_destroy(out);
    return err;
}

const char *ps_link_net_endpoint(const ps_link_net *n)
{
    return n->endpoint;
}

const ps_secret *ps_link_net_secret(const ps_link_net *n)
{
    return &n->secrets[n->o.rank];
}

void ps_link_net_open(ps_link_net *n)
{
    ps_gate_open(n->gate);
}

void ps_link_net_destroy(ps_link_net **pointer)
{
    ps_link_net *n = *pointer;
    if (!n) return;
    if (n->router) ps_gate_unwatch(n->router);
    ps_zsock_close(&n->router);
    ps_gate_destroy(&n->gate);
    if (n->context) zmq_ctx_term(n->context);
    if (n->news >= 0) close(n->news);
    free(n->secrets);
    free(n->links);
    free(n);
    *pointer = NULL;
}
