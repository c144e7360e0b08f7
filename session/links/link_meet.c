#include "link_meet.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "interrupt.h"
#include "job_keys.h"
#include "link_shm.h"
#include "shm_door.h"
#include "shm_offer.h"

enum { ARENA_BYTES = 64, LOOK_US = 200 };

static ps_deadline meet_deadline(const ps_link_ground *p)
{
    return ps_deadline_in_ms(p->o->join_timeout_ms);
}

/* ---- shared memory ---- */

static void count_here(ps_link_ground *p)
{
    const ps_roster *roster = ps_member_roster(p->o->member);
    const ps_roster_entry *own = &roster->workers[p->o->rank];
    for (int r = 0; r < p->o->world_size; r++) {
        const bool same =
            r == p->o->rank ||
            (p->o->shm != PS_SWITCH_OFF && ps_roster_same_host(own, &roster->workers[r]));
        p->here[r] = same ? p->n_here++ : -1;
    }
}

static ps_err meet_open_door(ps_link_ground *p)
{
    const ps_roster *roster = ps_member_roster(p->o->member);
    PS_TRY(ps_shared_mem_init(&p->arena, ARENA_BYTES, "links"));
    PS_TRY(ps_shared_mem_init(&p->board, ps_link_board_bytes(p->n_here), "links"));
    const ps_shm_door_rings rings = {
        .bytes = p->board.bytes, .wakes = &p->wake_fd, .n_wakes = 1};
    return ps_shm_door_create(roster->nonce, (uint32_t)p->o->world_size, ARENA_BYTES,
                              &rings, &p->door);
}

/* Waits until the other has handed in its board here. */
static ps_err await_board(const ps_link_ground *p, int rank, ps_link_board **out)
{
    const struct timespec look = {.tv_nsec = LOOK_US * 1000};
    const ps_deadline deadline = meet_deadline(p);
    while (!(*out = ps_shm_door_rings_of(p->door, (uint32_t)rank))) {
        PS_TRY(ps_member_check(p->o->member));
        PS_TRY(ps_interrupt_ask_hook());
        if (ps_deadline_passed(deadline))
            return ps_err_set(PS_ERR_TIMEOUT, "worker %d has not handed in its memory",
                              rank);
        nanosleep(&look, NULL);
    }
    return PS_OK;
}

static ps_err meet_by_memory(ps_link_ground *p, int rank, ps_link **link)
{
    const ps_job_key key = ps_job_key_link(rank, true);
    int wake = -1;
    const ps_shm_offer_more board = {.rings = &p->board, .wakes = &wake, .n_wakes = 1};
    const ps_exchange_options offer = {.settings.join_timeout_ms = p->o->join_timeout_ms,
                                       .member = p->o->member,
                                       .rank = p->o->rank,
                                       .params = &p->arena,
                                       .grads = &p->arena};
    ps_link_shm_options o = {.rank = rank,
                             .n_here = p->n_here,
                             .own = p->board.base,
                             .own_place = p->here[p->o->rank],
                             .other_place = p->here[rank]};
    PS_TRY(ps_shm_offer_at(&offer, key.text, &board));
    o.wake = ps_event_of(wake);
    ps_err err = await_board(p, rank, &o.other);
    if (err == PS_OK) err = ps_link_shm_create(&o, link);
    if (err != PS_OK) ps_event_fini(&o.wake);
    return err;
}

/* ---- between hosts ---- */

static ps_err meet_open_net(ps_link_ground *p)
{
    const ps_links_options *o = p->o;
    const ps_link_net_options net = {.rank = o->rank,
                                     .n_workers = o->world_size,
                                     .io_threads = o->io_threads,
                                     .silence_ms = ps_member_silence_ms(o->member),
                                     .curve = ps_member_curve(o->member),
                                     .address = ps_member_address(o->member)};
    return ps_link_net_create(&net, &p->net);
}

/* ---- all ---- */

static ps_err put_addresses(const ps_link_ground *p)
{
    char net[PS_ENDPOINT_MAX + PS_SECRET_BYTES];
    const char *door = p->door ? ps_shm_door_name(p->door) : "";
    size_t n = 0;
    if (p->net) {
        const char *endpoint = ps_link_net_endpoint(p->net);
        memcpy(net, ps_link_net_secret(p->net)->bytes, PS_SECRET_BYTES);
        memcpy(net + PS_SECRET_BYTES, endpoint, strlen(endpoint));
        n = PS_SECRET_BYTES + strlen(endpoint);
    }
    const ps_job_key shm = ps_job_key_link(p->o->rank, true);
    const ps_job_key tcp = ps_job_key_link(p->o->rank, false);
    PS_TRY(ps_member_put(p->o->member, shm.text, door, strlen(door), meet_deadline(p)));
    return ps_member_put(p->o->member, tcp.text, net, n, meet_deadline(p));
}

static ps_err meet_by_net(ps_link_ground *p, int rank, ps_link **link)
{
    const ps_job_key key = ps_job_key_link(rank, false);
    char endpoint[PS_ENDPOINT_MAX] = "";
    ps_secret secret;
    void *value = NULL;
    size_t n = 0;
    PS_TRY(ps_member_get(p->o->member, key.text, &value, &n, meet_deadline(p)));
    const bool fits = n > PS_SECRET_BYTES && n - PS_SECRET_BYTES < sizeof endpoint;
    if (fits) {
        memcpy(secret.bytes, value, PS_SECRET_BYTES);
        memcpy(endpoint, (char *)value + PS_SECRET_BYTES, n - PS_SECRET_BYTES);
    }
    free(value);
    if (fits) return ps_link_net_connect(p->net, rank, endpoint, &secret, link);
    return ps_err_set(PS_ERR_PEER, "it has no address: give all workers the same "
                                   "exchange.shm");
}

static ps_err meet_worker(ps_link_ground *p, int rank, ps_link **link)
{
    if (p->here[rank] < 0) return meet_by_net(p, rank, link);
    return meet_by_memory(p, rank, link);
}

ps_err ps_link_meet(ps_link_ground *p, const ps_links_options *o, const ps_event *wake,
                    ps_link **links)
{
    *p = (ps_link_ground){.o = o, .wake_fd = ps_event_fd(wake)};
    PS_TRY(PS_NEW(&p->here, (size_t)o->world_size, "links"));
    count_here(p);
    if (p->n_here > 1) PS_TRY(meet_open_door(p));
    if (p->n_here < o->world_size) PS_TRY(meet_open_net(p));
    PS_TRY(put_addresses(p));
    for (int r = 0; r < o->world_size; r++) {
        if (r == o->rank) continue;
        const ps_err err = meet_worker(p, r, &links[r]);
        if (err != PS_OK) ps_err_prefix(err, "a link to worker %d", r);
        if (err != PS_OK) return err;
    }
    if (p->net) ps_link_net_open(p->net);
    return ps_member_barrier(o->member, "links", meet_deadline(p));
}

void ps_link_ground_fini(ps_link_ground *p)
{
    ps_link_net_destroy(&p->net);
    ps_shm_door_destroy(&p->door);
    ps_shared_mem_fini(&p->board);
    ps_shared_mem_fini(&p->arena);
    free(p->here);
    *p = (ps_link_ground){0};
}
