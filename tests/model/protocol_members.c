#include "protocol_world.h"

#include <string.h>

static ps_shared_mem arenas[WORKERS][2];

void world_secret(uint32_t incarnation, uint32_t rank, ps_secret *out)
{
    memset(out, 0, sizeof *out);
    out->bytes[0] = world_scenario()->mistake == MISTAKE_SECRETS_STAY
                        ? 1
                        : (uint8_t)(incarnation + 1);
    out->bytes[1] = (uint8_t)rank;
}

/* Does what ps_shard_create and ps_shard_start do, without sockets and threads. */
static void begin_shard(uint32_t index)
{
    static ps_shard_options options;
    static ps_secret secrets[8][WORKERS];
    ps_shard *s;
    world_owner = WORKERS + index;
    world_clear_memory(world_owner);
    world_take_memory(&s, sizeof *s);
    options = (ps_shard_options){.config = &K.config,
                                 .table = &K.table,
                                 .plan = &K.plan,
                                 .rule = &K.rule,
                                 .n_workers = WORKERS};
    s->o = options;
    s->pace = &ps_shard_bsp;
    s->norm.clip = K.rule.clip_norm > 0;
    s->norm.waits = K.waits;
    s->index = index;
    s->first_step = W.newest.version;
    s->rule = K.rule;
    s->router = &world_routers[index];
    ps_chunk_codec_init(&s->codec, &K.config, &K.table);
    ps_chunk_codec_end(&s->codec, world_scenario()->steps);
    world_must(ps_shard_memory_init(s), "shard", index);
    s->rules = (ps_frame_rules){.plan = &K.plan,
                                .table = &K.table,
                                .codec = &s->codec,
                                .shard = index,
                                .nonce = NONCE + W.incarnation,
                                .n_workers = WORKERS,
                                .secrets = secrets[W.incarnation % 8]};
    for (uint32_t r = 0; r < WORKERS; r++) {
        world_secret(W.incarnation, r, &secrets[W.incarnation % 8][r]);
        ps_wire_id(r, &s->rules.secrets[r], s->peers[r].id);
    }
    s->credit =
        ps_credit_of_shard((uint64_t)K.config.exchange.credit, &s->codec, &K.plan, index);
    W.summed[index] = W.told[index] = W.newest.version;
    world_owner = MEMBERS;
}

static void begin_link(ps_comm *c, uint32_t rank, uint32_t shard)
{
    ps_comm_link *l = &c->links[shard];
    l->credit =
        ps_credit_of_shard((uint64_t)K.config.exchange.credit, &c->codec, &K.plan, shard);
    l->host = l->endpoint = "shard";
    l->socket = &world_dealers[rank][shard];
    l->monitor = &world_monitors[rank][shard];
    world_take_memory(&l->waiting, sizeof *l->waiting);
    W.connected[rank][shard] = true;
    world_must(ps_comm_mend_news(c, l), "worker", rank);
}

/* Does what ps_comm_create does. */
static void begin_worker(uint32_t rank)
{
    worker *w = &W.workers[rank];
    ps_comm *c;
    world_owner = rank;
    world_clear_memory(rank);
    world_take_memory(&c, sizeof *c);
    arenas[rank][0] = (ps_shared_mem){.base = w->params, .bytes = sizeof w->params};
    arenas[rank][1] = (ps_shared_mem){.base = w->grads, .bytes = sizeof w->grads};
    c->o = (ps_exchange_options){.table = &K.table,
                                 .plan = &K.plan,
                                 .rule = &K.rule,
                                 .rank = (int)rank,
                                 .world_size = WORKERS,
                                 .total_steps = world_scenario()->steps,
                                 .first_step = W.newest.version,
                                 .params = &arenas[rank][0],
                                 .grads = &arenas[rank][1]};
    ps_exchange_settings_init(&c->o.settings, &K.config, &K.table);
    c->plan = &K.plan;
    c->nonce = NONCE + W.incarnation;
    // What an arena holds before must not matter; the gaps between tensors stay zero.
    for (uint32_t i = 0; i < SHARDS * ELEMENTS; i++)
        w->params[K.chunks[i / ELEMENTS].offset + i % ELEMENTS] = -7;
    c->n_links = SHARDS;
    world_must(ps_comm_memory_init(c), "worker", rank);
    if (rank == 0) memcpy(w->params, W.newest.params, sizeof w->params);
    if (c->residual && world_scenario()->mistake != MISTAKE_FEEDBACK_IS_FORGOTTEN)
        memcpy(c->residual, W.newest.feedback[rank], sizeof W.newest.feedback[rank]);
    for (uint32_t s = 0; s < SHARDS; s++)
        begin_link(c, rank, s);
    w->phase = PHASE_READY;
    world_owner = MEMBERS;
}

/* What the workers had sent may still arrive, at any process that listens then. */
static void keep_as_old(uint32_t rank, uint32_t shard)
{
    queue *q = &W.up[rank][shard];
    for (uint32_t i = 0; i < q->n; i++) {
        world_copy_payload(&q->messages[i]);
        world_keep_old(rank, shard, &q->messages[i]);
    }
    world_cut_tail(q, 0);
}

void world_begin(void)
{
    for (uint32_t r = 0; r < WORKERS; r++)
        for (uint32_t s = 0; s < SHARDS; s++) {
            keep_as_old(r, s);
            world_cut_tail(&W.down[r][s], 0);
        }
    W.incarnation++;
    W.broken = false;
    memset(W.joining, 0, sizeof W.joining);
    memset(&W.next, 0, sizeof W.next);
    W.staged = 0;
    for (uint32_t s = 0; s < SHARDS; s++)
        begin_shard(s);
    for (uint32_t r = 0; r < WORKERS; r++) {
        W.joining[r] = world_scenario()->any_order;
        if (!world_scenario()->any_order) begin_worker(r);
    }
    if (world_scenario()->any_order)
        W.summed[1] = world_scenario()->steps; // the other shard is always ahead
}

/* The data plane is gone; what it has sent is on its way. */
static void stop(uint32_t member)
{
    for (uint32_t r = 0; r < WORKERS; r++)
        for (uint32_t s = 0; s < SHARDS; s++) {
            if (r == member) world_copy_payloads(&W.up[r][s]);
            if (r == member) world_cut_tail(&W.down[r][s], 0);
            if (WORKERS + s == member) world_copy_payloads(&W.down[r][s]);
        }
    world_clear_memory(member);
    W.joining[member] = true;
}

void world_notice(uint32_t member)
{
    stop(member);
    if (member < WORKERS) memset(&W.workers[member], 0, sizeof W.workers[member]);
}

/* A worker that is wrongly taken for dead goes on sending: it makes its connections
 * again, is answered by shards that are still in its job, and repeats what is unanswered.
 */
static void send_as_zombie(uint32_t rank)
{
    ps_comm *c = world_comm(rank);
    world_owner = rank;
    for (uint32_t s = 0; s < SHARDS; s++) {
        W.connected[rank][s] = true;
        world_must(ps_comm_mend_news(c, &c->links[s]), "zombie", rank);
        world_must(ps_comm_mend_ready(c, &c->links[s], c->links[s].n_hellos), "zombie",
                   rank);
    }
    world_must(ps_comm_send_allowed(c), "zombie", rank);
    world_owner = MEMBERS;
}

void world_die(uint32_t member, bool zombie)
{
    W.deaths--;
    W.broken = true;
    if (zombie) send_as_zombie(member);
    world_notice(member);
    if (member == 0) W.newest = W.on_disk; // what was in its memory
}

void world_write_to_disk(void)
{
    W.on_disk = W.newest;
}

/* ---- what the main thread does with the communication ---- */

static bool lowers_version(uint8_t kind)
{
    return kind == PS_MSG_EXACT || kind == PS_MSG_FETCH || kind == PS_MSG_RESTORE;
}

/* Does what ps_comm_submit does. Until the communication takes orders that lower a
 * version, other messages may come. */
void world_order(uint32_t rank, uint8_t kind, uint64_t step, uint32_t n)
{
    worker *w = &W.workers[rank];
    ps_comm *c = world_comm(rank);
    if (world_scenario()->mistake == MISTAKE_NO_STATE_IS_RESTORED &&
        kind == PS_MSG_RESTORE)
        return;
    for (uint32_t i = 0; i < n; i++)
        w->orders[i] = (ps_command){.kind = kind, .chunk = i, .step = step};
    w->n_orders = n;
    for (uint32_t i = 0; i < n && lowers_version(kind); i++)
        c->versions[i] = (int64_t)step - 1;
    if (!lowers_version(kind)) world_take_orders(rank);
}

void world_take_orders(uint32_t rank)
{
    worker *w = &W.workers[rank];
    ps_comm *c = world_comm(rank);
    world_owner = rank;
    for (uint32_t i = 0; i < w->n_orders; i++)
        ps_comm_send_later(c, &w->orders[i]);
    w->n_orders = 0;
    memset(w->orders, 0, sizeof w->orders);
    world_must(ps_comm_send_allowed(c), "worker", rank);
    world_owner = MEMBERS;
}

bool world_has(uint32_t rank, uint32_t n, int64_t version)
{
    const ps_comm *c = world_comm(rank);
    for (uint32_t i = 0; i < n; i++)
        if (c->versions[i] < version) return false;
    return true;
}
