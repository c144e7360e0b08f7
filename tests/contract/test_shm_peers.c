/* Workers of a host that hand each other their arenas, and one that says it has and has
 * not: the others must not look for memory that is not there. */
#include "shm_peers.h"

#include "check.h"
#include "job_keys.h"
#include "member_rig.h"
#include "shm_door.h"
#include "shm_offer.h"

enum { BYTES = 4096, BOARD = 8192, LIAR = 1 };

static enum how { HONEST, WITHOUT_A_BOARD, WITHOUT_ANYTHING } how; // of LIAR
static bool of_host; // ps_shm_peers_open_host

static ps_exchange_options options_of(rig_part *p, const ps_shared_mem *arena)
{
    return (ps_exchange_options){
        .member = p->member,
        .rank = ps_member_rank(p->member),
        .world_size = p->job->n_workers,
        .params = arena,
        .grads = arena,
        .settings = {.shm = PS_SWITCH_ON, .join_timeout_ms = 20000}};
}

static ps_err open_peers(const ps_exchange_options *o, ps_shm_peers **out)
{
    return of_host ? ps_shm_peers_open_host(o, BOARD, out)
                   : ps_shm_peers_open(o, BOARD, out);
}

static void say(rig_part *p, const char *on)
{
    double yes = 1;
    rig_note(p, ps_member_reduce(p->member, on, &yes, 1, rig_soon()));
}

/* What the others see of one that opens its peers, except for what it hands in. */
static void lie(rig_part *p, const ps_exchange_options *o)
{
    const ps_shm_door_rings boards = {.bytes = BOARD};
    const ps_shm_offer_more nothing = {.n_wakes = 0};
    const ps_job_key own = ps_job_key_shm(PS_ROLE_WORKER, LIAR);
    ps_shm_door *door;
    if (!of_host) say(p, "shm/wanted");
    rig_note(p, ps_shm_door_create(ps_member_roster(p->member)->nonce,
                                   (uint32_t)o->world_size, BYTES, &boards, &door));
    const char *name = ps_shm_door_name(door);
    rig_note(p, ps_member_put(p->member, own.text, name, strlen(name), rig_soon()));
    for (int r = 0; r < o->world_size && how == WITHOUT_A_BOARD; r++) {
        const ps_job_key key = ps_job_key_shm(PS_ROLE_WORKER, r);
        if (r != LIAR) rig_note(p, ps_shm_offer_at(o, key.text, &nothing));
    }
    if (of_host)
        rig_note(p, ps_member_barrier(p->member, "shm/host", rig_soon()));
    else
        say(p, "shm/mapped");
    ps_shm_door_destroy(&door);
}

static void be_open(rig_part *p, const ps_exchange_options *o)
{
    ps_shm_peers *peers;
    const ps_err err = open_peers(o, &peers);
    if (how != HONEST) {
        rig_expect(p, err == PS_ERR_PROTOCOL && !peers, "a refusal");
        rig_expect(p, strstr(ps_err_message(), "worker 1 has not handed in") != NULL,
                   "the liar's name");
        return;
    }
    rig_note(p, err);
    for (int r = 0; r < o->world_size && err == PS_OK; r++)
        rig_expect(p,
                   ps_shm_peers_board(peers, r) &&
                       (r == o->rank || ps_shm_peers_grads(peers, r)),
                   "memory of all");
    rig_note(p, ps_member_barrier(p->member, "seen", rig_soon()));
    ps_shm_peers_close(&peers);
}

static void take_part(rig_part *p)
{
    ps_shared_mem arena;
    rig_note(p, ps_shared_mem_init(&arena, BYTES, "an arena"));
    const ps_exchange_options o = options_of(p, &arena);
    if (how != HONEST && o.rank == LIAR)
        lie(p, &o);
    else
        be_open(p, &o);
    rig_note(p, ps_member_leave(p->member, rig_soon()));
    ps_shared_mem_fini(&arena);
}

TEST(who_hands_in_nothing_is_named)
{
    for (how = HONEST; how <= WITHOUT_ANYTHING; how++)
        for (int i = 0; i < 2; i++) {
            of_host = i == 1;
            rig_run_well(0, 3, rig_serve, take_part);
        }
}
