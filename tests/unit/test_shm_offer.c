/* Whether a worker offers its arenas to processes of its host, by mode, codec, setting
 * and hosts. */
#include "check.h"
#include "procstat.h"
#include "shm_offer.h"

typedef struct cluster {
    ps_exchange_settings settings;
    ps_exchange_ops ops;
    ps_roster roster;
} cluster;

static void stand_on(ps_roster_entry *e, int host)
{
    snprintf(e->boot_id, sizeof e->boot_id, "boot-%d", host);
    snprintf(e->net_ns, sizeof e->net_ns, "net:[1]");
}

/* Worker 0 is on host 0. The arguments say where worker 1 and, in ps mode, the only
 * server are. */
static cluster cluster_of(bool ps, ps_codec codec, ps_switch shm, int worker, int server)
{
    cluster c = {.settings = {.codec.codec = codec, .shm = shm},
                 .ops = {.servers = ps, .peers = !ps}};
    assert_ok(ps_roster_init(&c.roster, ps, 2));
    stand_on(&c.roster.workers[0], 0);
    stand_on(&c.roster.workers[1], worker);
    if (ps) stand_on(&c.roster.servers[0], server);
    return c;
}

static bool possible(bool ps, ps_codec codec, ps_switch shm, int worker, int server)
{
    cluster c = cluster_of(ps, codec, shm, worker, server);
    bool answer = ps_shm_offer_possible(&c.ops, &c.settings, &c.roster, 0);
    ps_roster_fini(&c.roster);
    return answer;
}

TEST(a_server_of_this_host_maps_them)
{
    assert_true(possible(true, PS_CODEC_NONE, PS_SWITCH_AUTO, 1, 0));
    // in ps mode workers do not map them
    assert_false(possible(true, PS_CODEC_NONE, PS_SWITCH_AUTO, 0, 1));
    assert_false(possible(true, PS_CODEC_INT8, PS_SWITCH_AUTO, 0, 0));
    assert_false(possible(true, PS_CODEC_NONE, PS_SWITCH_OFF, 0, 0));
}

TEST(another_worker_of_this_host_maps_them)
{
    assert_true(possible(false, PS_CODEC_NONE, PS_SWITCH_AUTO, 0, 1));
    assert_false(possible(false, PS_CODEC_NONE, PS_SWITCH_AUTO, 1, 0));
    assert_false(possible(false, PS_CODEC_NONE, PS_SWITCH_OFF, 0, 0));
}

TEST(what_is_demanded_is_tried)
{
    assert_true(possible(true, PS_CODEC_INT8, PS_SWITCH_ON, 1, 1));
    assert_true(possible(false, PS_CODEC_NONE, PS_SWITCH_ON, 1, 1));
}

/* threads: how many each of the two workers has. The server has one shard. */
static bool spins(int worker, int server, int64_t threads)
{
    cluster c = cluster_of(true, PS_CODEC_NONE, PS_SWITCH_AUTO, worker, server);
    c.roster.servers[0].n_endpoints = 1;
    const uint64_t ns = ps_roster_spin_ns(&c.roster, &c.roster.workers[0], threads);
    c.roster.servers[0].n_endpoints = 0; // there are no texts to free
    ps_roster_fini(&c.roster);
    return ns > 0;
}

TEST(nobody_spins_where_cores_are_short)
{
    ps_host host;
    ps_host_find(&host);
    const int64_t cores = host.cores;
    assert_true(spins(1, 1, cores)); // worker 0 is alone here
    assert_false(spins(1, 1, cores + 1));
    assert_false(spins(1, 0, cores)); // shares with a shard
    assert_false(spins(0, 1, cores)); // shares with another worker
    assert_true(spins(1, 1, 0));      // a thread per core
    assert_false(spins(1, 0, 0));
}

static bool one_host(bool ps, int worker, int server)
{
    cluster c = cluster_of(ps, PS_CODEC_NONE, PS_SWITCH_AUTO, worker, server);
    const bool answer = ps_roster_one_host(&c.roster);
    ps_roster_fini(&c.roster);
    return answer;
}

TEST(one_host_is_that_of_all)
{
    assert_true(one_host(true, 0, 0));
    assert_true(one_host(false, 0, 0));
    assert_false(one_host(true, 1, 0));
    assert_false(one_host(true, 0, 1));
    assert_false(one_host(true, 1, 1));
    assert_false(one_host(false, 1, 0));
    cluster c = cluster_of(true, PS_CODEC_NONE, PS_SWITCH_AUTO, 0, 0);
    c.roster.servers[0].boot_id[0] = '\0'; // it does not know
    assert_false(ps_roster_one_host(&c.roster));
    ps_roster_fini(&c.roster);
}
