#include "ps_comm_links.h"

#include <stdlib.h>

#include "mem.h"
#include "ps_comm_rings.h"
#include "shm_offer.h"
#include "shm_pass.h"
#include "zsock.h"

static uint64_t comm_links_element_bytes(const ps_comm *c)
{
    return ps_credit_element_bytes(c->codec.codec != PS_CODEC_NONE);
}

static ps_err connect_link(ps_comm *c, uint32_t shard)
{
    ps_comm_link *l = &c->links[shard];
    uint8_t id[PS_WIRE_ID_BYTES];
    const ps_secret *secret = ps_member_secret(c->o.member);
    ps_wire_id((uint32_t)c->o.rank, secret, id);
    uint64_t largest = c->plan->max_chunk_count * comm_links_element_bytes(c);
    const ps_zsock_options options = {
        .type = ZMQ_DEALER,
        .silence_ms = ps_member_silence_ms(c->o.member),
        .max_message_bytes = (int64_t)(largest + (64u << 10)),
        .routing_id = id,
        .routing_id_bytes = sizeof id,
        .secret = secret,
        .curve = ps_member_curve(c->o.member),
        .peer = PS_ROLE_SERVER,
    };
    PS_TRY(ps_zsock_open(c->zmq_context, &options, &l->socket));
    PS_TRY(ps_zsock_monitor(c->zmq_context, l->socket, "shard", &l->monitor));
    atomic_init(&l->lost_ns, ps_clock_awake_ns());
    return ps_zsock_connect(l->socket, options.curve, l->endpoint);
}

static ps_err init_link(ps_comm *c, uint32_t shard, int server, int index, bool shm)
{
    const ps_roster_entry *entry = &ps_member_roster(c->o.member)->servers[server];
    ps_comm_link *l = &c->links[shard];
    l->server = server;
    l->host = entry->host;
    l->endpoint = entry->endpoints[index];
    l->shm = shm;
    l->credit = ps_credit_of_shard(c->o.config, &c->codec, c->plan, shard);
    PS_TRY(ps_mem_zalloc(&l->waiting, c->n_words, sizeof *l->waiting, "commands"));
    PS_TRY(connect_link(c, shard));
    c->items[shard] = (zmq_pollitem_t){.socket = l->socket, .events = ZMQ_POLLIN};
    zmq_pollitem_t *news = &c->items[c->n_links + 2 + shard];
    news->events = ZMQ_POLLIN;
    return ps_zsock_monitor_fd(l->monitor, &news->fd);
}

/* Offers the arenas, and the rings if there are any, to a server whose first shard is
 * `shard`. */
static ps_err comm_links_offer(ps_comm *c, int server, uint32_t shard, bool *shm)
{
    int wakes[PS_SHM_WAKES_MAX];
    const int n = ps_member_roster(c->o.member)->servers[server].n_endpoints;
    const ps_shm_offer_rings rings = {
        .memory = &c->ring_memory, .wakes = wakes, .n_wakes = n};
    const bool with = c->ring_memory.base != NULL;
    PS_TRY(ps_shm_offer_arenas(&c->o, server, with ? &rings : NULL, shm));
    for (int i = 0; with && *shm && i < n; i++) {
        ps_event wake = ps_event_of(wakes[i]);
        if (shard + (uint32_t)i < c->n_links)
            c->links[shard + (uint32_t)i].wake = wake;
        else
            ps_event_fini(&wake);
    }
    return PS_OK;
}

static ps_err connect_servers(ps_comm *c)
{
    const ps_roster *roster = ps_member_roster(c->o.member);
    uint32_t shard = 0;
    PS_TRY(ps_comm_rings_open(c));
    for (int s = 0; s < roster->n_servers; s++) {
        bool shm;
        PS_TRY(comm_links_offer(c, s, shard, &shm));
        for (int i = 0; i < roster->servers[s].n_endpoints; i++) {
            if (shard == c->n_links) break;
            PS_TRY(init_link(c, shard++, s, i, shm));
        }
    }
    ps_comm_rings_agree(c);
    if (shard == c->n_links) return PS_OK;
    return ps_err_set(PS_ERR_PEER, "the servers offer %u shards, the plan has %u", shard,
                      c->n_links);
}

ps_err ps_comm_links_open(ps_comm *c)
{
    const bool patient =
        ps_chunk_size_is_coarse(ps_chunk_size_wanted(c->o.config, false));
    PS_TRY(ps_zsock_context(c->o.config->net.io_threads, 3 * c->n_links + 64, patient,
                            &c->zmq_context));
    PS_TRY(connect_servers(c));
    uint32_t n = c->n_links;
    c->items[n] =
        (zmq_pollitem_t){.fd = ps_event_fd(&c->commands.wake), .events = ZMQ_POLLIN};
    c->items[n + 1] =
        (zmq_pollitem_t){.fd = ps_member_abort_fd(c->o.member), .events = ZMQ_POLLIN};
    return PS_OK;
}

void ps_comm_links_close(ps_comm *c)
{
    for (uint32_t i = 0; c->links && i < c->n_links; i++) {
        ps_comm_link *l = &c->links[i];
        if (l->socket) zmq_socket_monitor(l->socket, NULL, 0);
        ps_zsock_close(&l->monitor);
        ps_zsock_close(&l->socket);
        free(l->waiting);
        ps_event_fini(&l->wake);
    }
    if (c->zmq_context) zmq_ctx_term(c->zmq_context);
}
