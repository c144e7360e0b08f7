#include "protocol_world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradnorm.h"
#include "ps_comm_mend.h"
#include "ps_comm_receive.h"
#include "ps_comm_send.h"
#include "shard_apply.h"
#include "shard_messages.h"
#include "shard_reply.h"

enum { NONCE = 1000 }; // of the first incarnation

world W;
static scenario S;
static char fault[TEXT];

/* Stand for sockets; their addresses say whose they are. */
static char dealers[WORKERS][SHARDS], routers[SHARDS], monitors[WORKERS][SHARDS];
static ps_shared_mem arenas[WORKERS][2];

const scenario *world_scenario(void)
{
    return &S;
}

const char *world_fault(void)
{
    return fault[0] ? fault : NULL;
}

void world_wrong(const char *format, ...)
{
    if (fault[0]) return;
    va_list args;
    va_start(args, format);
    vsnprintf(fault, sizeof fault, format, args);
    va_end(args);
}

static void must(ps_err err, const char *who, uint32_t i)
{
    if (err != PS_OK)
        world_wrong("%s %u: %s: %s", who, i, ps_err_name(err), ps_err_message());
}

ps_comm *world_comm(uint32_t rank)
{
    return (ps_comm *)W.memory[rank];
}

ps_shard *world_shard(uint32_t shard)
{
    return (ps_shard *)W.memory[WORKERS + shard];
}

bool world_runs(uint32_t member)
{
    return W.incarnation > 0 && !W.joining[member];
}

/* ---- memory: what the programs allocate comes out of the world ---- */

static uint32_t owner = MEMBERS; // whose; MEMBERS: nobody's, the heap's

ps_err __real_ps_mem_zalloc(void *out, size_t count, size_t size, const char *what);

static ps_err take_memory(void *out, size_t bytes)
{
    const uint32_t rounded = (uint32_t)(bytes + 63) / 64 * 64;
    if (W.used[owner] + rounded > MEMORY) abort(); // MEMORY is too small
    void *p = W.memory[owner] + W.used[owner];
    W.used[owner] += rounded;
    memcpy(out, &p, sizeof p);
    return PS_OK;
}

ps_err __wrap_ps_mem_zalloc(void *out, size_t count, size_t size, const char *what)
{
    return owner == MEMBERS ? __real_ps_mem_zalloc(out, count, size, what)
                            : take_memory(out, count * size);
}

ps_err __wrap_ps_mem_zalloc_aligned(void *out, size_t bytes, const char *what)
{
    return take_memory(out, bytes);
}

ps_err __wrap_ps_mem_zalloc_large(void *out, size_t bytes, const char *what)
{
    return take_memory(out, bytes);
}

ps_err __wrap_ps_command_queue_init(ps_command_queue *q, uint32_t n)
{
    return PS_OK; // world_order has orders of its own
}

static void clear_memory(uint32_t member)
{
    memset(W.memory[member], 0, MEMORY);
    W.used[member] = 0;
}

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
    m->header.place = h->place;
    m->header.scale = h->scale;
    m->n_bytes = (uint32_t)bytes;
    if (bytes > 0 && pass == PS_WIRE_BORROW)
        m->borrowed = payload;
    else if (bytes > 0)
        memcpy(m->bytes, payload, bytes);
}

/* The payload as it is now: for messages whose sender ends. */
static void copy_payload(message *m)
{
    if (!m->borrowed) return;
    memcpy(m->bytes, m->borrowed, m->n_bytes);
    m->borrowed = NULL;
}

static void copy_payloads(queue *q)
{
    for (uint32_t i = 0; i < q->n; i++)
        copy_payload(&q->messages[i]);
}

static message take_first(queue *q)
{
    message m = q->messages[0];
    copy_payload(&m);
    q->n--;
    memmove(q->messages, q->messages + 1, q->n * sizeof m);
    memset(&q->messages[q->n], 0, sizeof m);
    return m;
}

static void cut_tail(queue *q, uint32_t keep)
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
        const size_t link = (size_t)(at - dealers[0]);
        put(&W.up[link / SHARDS][link % SHARDS], h, payload, bytes, pass);
        return PS_OK;
    }
    const uint32_t rank = ((const uint8_t *)id)[3], shard = (uint32_t)(at - routers);
    if (!world_runs(rank) && !S.any_order) return ps_err_set(PS_ERR_PEER, "gone");
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
    const size_t link = (size_t)((const char *)monitor - monitors[0]);
    bool *connected = &W.connected[link / SHARDS][link % SHARDS];
    const ps_zsock_event event = *connected ? PS_ZSOCK_CONNECTED : PS_ZSOCK_NOTHING;
    *connected = false;
    return event;
}

/* ---- the global norm ---- */

/* Each shard has one run of sums; the coordinator adds them all. */
ps_err __wrap_ps_coord_link_gradnorm_send(ps_coord_link *link, uint64_t step,
                                          uint32_t n_shards, uint64_t total_blocks,
                                          uint32_t n, const uint64_t *first,
                                          const uint64_t *counts, const double *sums)
{
    const uint32_t shard = owner - WORKERS;
    if (step != W.summed[shard] || W.told[shard] != step)
        world_wrong("shard %u: the norm of step %d again", shard, (int)step);
    W.summed[shard] = step + 1;
    W.sums[shard][step % 2] = ps_gradnorm_total(sums, counts[0]);
    return PS_OK;
}

bool world_norm_is_here(uint32_t shard)
{
    if (!world_runs(WORKERS + shard) || W.told[shard] >= W.summed[shard]) return false;
    for (uint32_t s = 0; s < SHARDS; s++)
        if (W.summed[s] < W.summed[shard]) return false;
    return true;
}

ps_err __wrap_ps_coord_link_gradnorm_recv(ps_coord_link *link, int *got, uint64_t *step,
                                          double *norm)
{
    const uint32_t shard = owner - WORKERS;
    *step = W.told[shard]++;
    double squares = 0;
    for (uint32_t s = 0; s < SHARDS; s++)
        squares += W.sums[s][*step % 2] * W.sums[s][*step % 2];
    *norm = squares; // any function of all sums serves
    *got = 1;
    return PS_OK;
}

/* ---- members ---- */

static void secret_of(uint32_t incarnation, uint32_t rank, ps_secret *out)
{
    memset(out, 0, sizeof *out);
    out->bytes[0] = S.mistake == MISTAKE_SECRETS_STAY ? 1 : (uint8_t)(incarnation + 1);
    out->bytes[1] = (uint8_t)rank;
}

/* As ps_shard_create and ps_shard_start do, without sockets and threads. */
static void begin_shard(uint32_t index)
{
    static ps_shard_options options;
    static ps_secret secrets[8][WORKERS];
    ps_shard *s;
    owner = WORKERS + index;
    clear_memory(owner);
    take_memory(&s, sizeof *s);
    options = (ps_shard_options){.config = &K.config,
                                 .table = &K.table,
                                 .plan = &K.plan,
                                 .rule = &K.rule,
                                 .n_workers = WORKERS};
    s->o = options;
    s->clip = K.rule.clip_norm > 0;
    s->waits = K.waits;
    s->index = index;
    s->first_step = W.newest.version;
    s->rule = K.rule;
    s->router = &routers[index];
    must(ps_chunk_codec_init(&s->codec, &K.config, &K.table), "shard", index);
    ps_chunk_codec_end(&s->codec, S.steps);
    must(ps_shard_memory_init(s), "shard", index);
    s->rules = (ps_frame_rules){.plan = &K.plan,
                                .codec = &s->codec,
                                .shard = index,
                                .nonce = NONCE + W.incarnation,
                                .n_workers = WORKERS,
                                .secrets = secrets[W.incarnation % 8]};
    for (uint32_t r = 0; r < WORKERS; r++) {
        secret_of(W.incarnation, r, &secrets[W.incarnation % 8][r]);
        ps_wire_id(r, &s->rules.secrets[r], s->peers[r].id);
    }
    uint64_t total, largest;
    ps_chunk_codec_step_bytes(&s->codec, &K.plan, index, &total, &largest);
    s->credit = ps_credit_of_shard((uint64_t)K.config.exchange.credit, total, largest);
    W.summed[index] = W.told[index] = W.newest.version;
    owner = MEMBERS;
}

static void begin_link(ps_comm *c, uint32_t rank, uint32_t shard)
{
    ps_comm_link *l = &c->links[shard];
    uint64_t total, largest;
    ps_chunk_codec_step_bytes(&c->codec, &K.plan, shard, &total, &largest);
    l->credit = ps_credit_of_shard((uint64_t)K.config.exchange.credit, total, largest);
    l->host = l->endpoint = "shard";
    l->socket = &dealers[rank][shard];
    l->monitor = &monitors[rank][shard];
    take_memory(&l->waiting, sizeof *l->waiting);
    W.connected[rank][shard] = true;
    must(ps_comm_mend_news(c, l), "worker", rank);
}

/* As ps_comm_create does. */
static void begin_worker(uint32_t rank)
{
    worker *w = &W.workers[rank];
    ps_comm *c;
    owner = rank;
    clear_memory(rank);
    take_memory(&c, sizeof *c);
    arenas[rank][0] = (ps_shared_mem){.base = w->params, .bytes = sizeof w->params};
    arenas[rank][1] = (ps_shared_mem){.base = w->grads, .bytes = sizeof w->grads};
    c->o = (ps_exchange_options){.config = &K.config,
                                 .table = &K.table,
                                 .plan = &K.plan,
                                 .rule = &K.rule,
                                 .rank = (int)rank,
                                 .world_size = WORKERS,
                                 .total_steps = S.steps,
                                 .first_step = W.newest.version,
                                 .params = &arenas[rank][0],
                                 .grads = &arenas[rank][1]};
    c->plan = &K.plan;
    c->nonce = NONCE + W.incarnation;
    // What an arena holds before must not matter; the gaps between tensors stay zero.
    for (uint32_t i = 0; i < SHARDS * ELEMENTS; i++)
        w->params[K.chunks[i / ELEMENTS].offset + i % ELEMENTS] = -7;
    c->n_links = SHARDS;
    must(ps_comm_memory_init(c), "worker", rank);
    if (rank == 0) memcpy(w->params, W.newest.params, sizeof w->params);
    if (c->residual && S.mistake != MISTAKE_FEEDBACK_IS_FORGOTTEN)
        memcpy(c->residual, W.newest.feedback[rank], sizeof W.newest.feedback[rank]);
    for (uint32_t s = 0; s < SHARDS; s++)
        begin_link(c, rank, s);
    w->phase = PHASE_READY;
    owner = MEMBERS;
}

/* Whatever the workers had sent may still come, to whoever listens then. */
static void keep_as_old(uint32_t rank, uint32_t shard)
{
    queue *q = &W.up[rank][shard];
    for (uint32_t i = 0; i < q->n; i++) {
        copy_payload(&q->messages[i]);
        world_keep_old(rank, shard, &q->messages[i]);
    }
    cut_tail(q, 0);
}

void world_begin(void)
{
    for (uint32_t r = 0; r < WORKERS; r++)
        for (uint32_t s = 0; s < SHARDS; s++) {
            keep_as_old(r, s);
            cut_tail(&W.down[r][s], 0);
        }
    W.incarnation++;
    W.broken = false;
    memset(W.joining, 0, sizeof W.joining);
    memset(W.counted, 0, sizeof W.counted);
    memset(&W.next, 0, sizeof W.next);
    W.staged = 0;
    for (uint32_t s = 0; s < SHARDS; s++)
        begin_shard(s);
    for (uint32_t r = 0; r < WORKERS; r++) {
        W.joining[r] = S.any_order;
        if (!S.any_order) begin_worker(r);
    }
    if (S.any_order) W.summed[1] = S.steps; // the other shard is always ahead
}

/* The data plane is gone; what it has sent is on its way. */
static void stop(uint32_t member)
{
    for (uint32_t r = 0; r < WORKERS; r++)
        for (uint32_t s = 0; s < SHARDS; s++) {
            if (r == member) copy_payloads(&W.up[r][s]);
            if (r == member) cut_tail(&W.down[r][s], 0);
            if (WORKERS + s == member) copy_payloads(&W.down[r][s]);
        }
    clear_memory(member);
    W.joining[member] = true;
}

void world_notice(uint32_t member)
{
    stop(member);
    if (member < WORKERS) memset(&W.workers[member], 0, sizeof W.workers[member]);
}

/* Whoever is taken for dead, and is not, goes on sending: it makes its connections again,
 * is answered by shards that are of its job still, and repeats what is unanswered. */
static void send_as_zombie(uint32_t rank)
{
    ps_comm *c = world_comm(rank);
    owner = rank;
    for (uint32_t s = 0; s < SHARDS; s++) {
        W.connected[rank][s] = true;
        must(ps_comm_mend_news(c, &c->links[s]), "zombie", rank);
        must(ps_comm_mend_ready(c, &c->links[s], c->links[s].n_hellos), "zombie", rank);
    }
    must(ps_comm_send_allowed(c), "zombie", rank);
    owner = MEMBERS;
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

/* ---- what happens to messages ---- */

static uint32_t giving; // incarnation of the message that a shard is given

void world_give_to_shard(uint32_t shard, const message *m, uint32_t rank,
                         uint32_t incarnation)
{
    ps_shard *s = world_shard(shard);
    ps_wire_frames f;
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_secret secret;
    secret_of(incarnation, rank, &secret);
    ps_wire_id(rank, &secret, id);
    fill_frames(&f, m, id);
    giving = (uint32_t)(m->header.nonce - NONCE);
    owner = WORKERS + shard;
    const uint64_t owed = s->peers[rank].owed;
    must(ps_shard_take_message(s, &f), "shard", shard);
    if (S.mistake == MISTAKE_CREDIT_SURVIVES && m->header.kind == PS_MSG_HELLO)
        s->peers[rank].owed += owed;
    must(ps_shard_reply_flush(s), "shard", shard);
    owner = MEMBERS;
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
    owner = rank;
    must(ps_comm_receive(c, l, &f), "worker", rank);
    if (S.mistake == MISTAKE_NOTHING_IS_REPEATED && arrived.header.kind == PS_MSG_READY &&
        arrived.header.step > 1)
        ps_comm_send_no_more(c, shard);
    must(ps_comm_send_allowed(c), "worker", rank);
    owner = MEMBERS;
    ps_wire_frames_close(&f);
}

void world_lose(uint32_t rank, uint32_t shard, uint32_t keep_up, uint32_t keep_down)
{
    ps_comm *c = world_comm(rank);
    W.losses--;
    cut_tail(&W.up[rank][shard], keep_up);
    cut_tail(&W.down[rank][shard], keep_down);
    W.connected[rank][shard] = true;
    owner = rank;
    must(ps_comm_mend_news(c, &c->links[shard]), "worker", rank);
    must(ps_comm_send_allowed(c), "worker", rank);
    owner = MEMBERS;
}

void world_take_norm(uint32_t shard)
{
    owner = WORKERS + shard;
    must(ps_shard_apply_norm(world_shard(shard)), "shard", shard);
    owner = MEMBERS;
}

/* ---- what the main thread does with the communication ---- */

static bool lowers_version(uint8_t kind)
{
    return kind == PS_MSG_EXACT || kind == PS_MSG_FETCH || kind == PS_MSG_RESTORE;
}

/* As ps_comm_submit does. Until the communication takes orders that lower a version,
 * other messages may come. */
void world_order(uint32_t rank, uint8_t kind, uint64_t step, uint32_t n)
{
    worker *w = &W.workers[rank];
    ps_comm *c = world_comm(rank);
    if (S.mistake == MISTAKE_NO_STATE_IS_RESTORED && kind == PS_MSG_RESTORE) return;
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
    owner = rank;
    for (uint32_t i = 0; i < w->n_orders; i++)
        ps_comm_send_later(c, &w->orders[i]);
    w->n_orders = 0;
    memset(w->orders, 0, sizeof w->orders);
    must(ps_comm_send_allowed(c), "worker", rank);
    owner = MEMBERS;
}

bool world_has(uint32_t rank, uint32_t n, int64_t version)
{
    const ps_comm *c = world_comm(rank);
    for (uint32_t i = 0; i < n; i++)
        if (c->versions[i] < version) return false;
    return true;
}

/* ---- the policy, and who counted ---- */

ps_verdict __real_ps_policy_push(ps_policy_chunk *c, uint32_t rank, uint64_t step);

ps_verdict __wrap_ps_policy_push(ps_policy_chunk *c, uint32_t rank, uint64_t step)
{
    const uint32_t shard = owner - WORKERS;
    ps_verdict v = __real_ps_policy_push(c, rank, step);
    const bool again = v == PS_VERDICT_DROP && S.mistake == MISTAKE_REPEATED_PUSH_COUNTS;
    const bool late = v == PS_VERDICT_ANSWER && S.mistake == MISTAKE_APPLIED_PUSH_COUNTS;
    if (again || late) {
        c->n_arrived++;
        v = PS_VERDICT_TAKE;
    }
    if (v != PS_VERDICT_TAKE && v != PS_VERDICT_KEEP) return v;
    W.counted[shard][rank] = giving;
    if (giving != W.incarnation)
        world_wrong("shard %u counts a push of incarnation %u in incarnation %u", shard,
                    giving, W.incarnation);
    return v;
}

/* ---- the state ---- */

static void settle_message(zmq_msg_t *m)
{
    if (zmq_msg_size(m) > 0) return;
    memset(m, 0, sizeof *m);
    zmq_msg_init(m);
}

static uint32_t count_ranks(const ps_rank_set *set)
{
    uint32_t n = 0;
    for (int i = 0; i < PS_POLICY_WORDS; i++)
        n += (uint32_t)__builtin_popcountll(set->words[i]);
    return n;
}

/* A pending push is the gradient of its rank, of its step, by the weights of that
 * version. */
static void check_pushes(const ps_shard *s, const ps_shard_chunk *c, const expected *e)
{
    if (K.coded || K.waits || !e->knows_weights[s->index]) return;
    for (uint32_t r = 0; r < WORKERS; r++) {
        if (!ps_rank_set_has(&c->policy.arrived, r)) continue;
        float grads[ARENA];
        world_gradient(r, (uint64_t)c->policy.version, e->weights, grads);
        zmq_msg_t *m = &c->pushes[r];
        if (zmq_msg_size(m) != ELEMENTS * sizeof *grads ||
            memcmp(zmq_msg_data(m), grads + c->chunk->offset, zmq_msg_size(m)) != 0)
            world_wrong(
                "shard %u holds another gradient of worker %u than that of step %d",
                s->index, r, (int)c->policy.version);
    }
}

static void check_shard(const ps_shard *s)
{
    const ps_shard_chunk *c = &s->chunks[0];
    const ps_policy_chunk *p = &c->policy;
    if (count_ranks(&p->arrived) != p->n_arrived || count_ranks(&p->early) != p->n_early)
        world_wrong("shard %u: %u pushes have arrived, of %u ranks", s->index,
                    p->n_arrived, count_ranks(&p->arrived));
    if (p->version < 0) return;
    if (p->version > (int64_t)S.steps) {
        world_wrong("shard %u is at version %d", s->index, (int)p->version);
        return;
    }
    const uint64_t v = (uint64_t)p->version;
    expected *e = &E[v];
    const uint32_t at = (uint32_t)c->chunk->offset;
    for (int i = 0; i < K.rule.optimizer.n_states; i++) {
        bool knows = e->knows_weights[s->index]; // both come at the same time
        world_expect(e->states[i], &knows, c->memory.states[i], at, ELEMENTS,
                     "an optimizer's state", v);
    }
    world_expect(e->weights, &e->knows_weights[s->index], c->memory.weights, at, ELEMENTS,
                 "a shard's weights", v);
    check_pushes(s, c, e);
}

void world_settle_shard(ps_shard *s)
{
    s->bytes_received = s->bytes_sent = s->pushes = s->repeated = s->strangers =
        s->steps = 0;
    for (uint32_t r = 0; r < WORKERS; r++) {
        settle_message(&s->chunks[0].pushes[r]);
        settle_message(&s->chunks[0].early[r]);
        s->grads[r] = NULL;
        s->payloads[r] = NULL;
    }
    check_shard(s);
}

static void settle_comm(ps_comm *c)
{
    c->bytes_sent = c->bytes_received = c->raw_bytes = c->most_on_the_way = 0;
    c->shm_sent = c->shm_received = 0;
    c->progress_ns = 0;
    c->wake_sequence = 0;
    for (uint32_t s = 0; s < SHARDS; s++) {
        ps_comm_link *l = &c->links[s];
        l->lost_ns = l->lost_ns > 0;
        if (l->on_the_way > l->credit.window && l->on_the_way > ELEMENTS * sizeof(float))
            world_wrong("worker %d has %d bytes on the way", c->o.rank,
                        (int)l->on_the_way);
    }
}

/* Four sums at a time: one would wait for its own product at every word. */
static uint64_t mix(uint64_t h, const void *bytes, size_t n)
{
    enum { LANES = 4 };
    const uint64_t *words = bytes;
    uint64_t sums[LANES] = {h, h + 1, h + 2, h + 3};
    size_t i = 0;
    for (; i + LANES <= n / sizeof *words; i += LANES)
        for (int k = 0; k < LANES; k++) {
            sums[k] = (sums[k] ^ words[i + k]) * UINT64_C(0x9e3779b97f4a7c15);
            sums[k] ^= sums[k] >> 29;
        }
    for (; i < n / sizeof *words; i++)
        sums[0] = (sums[0] ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
    for (int k = 0; k < LANES; k++) {
        h = (h ^ sums[k]) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    return h;
}

void world_settle(uint32_t members)
{
    for (uint32_t m = 0; m < MEMBERS; m++) {
        if (!(members >> m & 1)) continue;
        if (world_runs(m) && m < WORKERS) settle_comm(world_comm(m));
        if (world_runs(m) && m >= WORKERS) world_settle_shard(world_shard(m - WORKERS));
        W.hashes[m] = mix(m, W.memory[m], W.used[m]);
    }
}

uint64_t world_hash(void)
{
    _Static_assert(offsetof(world, memory) % 8 == 0 && sizeof W % 8 == 0, "words");
    uint64_t h = mix(0, &W, offsetof(world, up));
    for (uint32_t r = 0; r < WORKERS; r++)
        for (uint32_t s = 0; s < SHARDS; s++) {
            const queue *both[] = {&W.up[r][s], &W.down[r][s]};
            for (int i = 0; i < 2; i++) {
                h = (h ^ both[i]->n) * UINT64_C(0xff51afd7ed558ccd);
                h = mix(h, both[i]->messages, both[i]->n * sizeof(message));
            }
        }
    h = mix(h, W.connected, offsetof(world, memory) - offsetof(world, connected));
    h = mix(h, W.hashes, sizeof W.hashes);
    return h ? h : 1;
}

bool world_is_final(void)
{
    if (S.any_order && W.incarnation > 0)
        return world_shard(0)->chunks[0].policy.version == (int64_t)S.steps;
    for (uint32_t r = 0; r < WORKERS; r++)
        if (W.workers[r].phase != PHASE_DONE) return false;
    return true;
}

static void copy_queue(queue *to, const queue *from)
{
    to->n = from->n;
    memcpy(to->messages, from->messages, from->n * sizeof *from->messages);
}

void world_copy(world *to, const world *from)
{
    memcpy(to, from, offsetof(world, up));
    for (uint32_t r = 0; r < WORKERS; r++)
        for (uint32_t s = 0; s < SHARDS; s++) {
            copy_queue(&to->up[r][s], &from->up[r][s]);
            copy_queue(&to->down[r][s], &from->down[r][s]);
        }
    memcpy(to->connected, from->connected,
           offsetof(world, memory) - offsetof(world, connected));
    memcpy(to->used, from->used, sizeof to->used);
    memcpy(to->hashes, from->hashes, sizeof to->hashes);
    for (uint32_t m = 0; m < MEMBERS; m++)
        memcpy(to->memory[m], from->memory[m], from->used[m]);
}

void world_open(const scenario *s)
{
    S = *s;
    fault[0] = '\0';
    owner = MEMBERS;
    world_set_up(s);
    memset(&W, 0, sizeof W);
    W.losses = s->losses;
    W.deaths = s->deaths;
    memcpy(W.newest.params, E[0].params, sizeof W.newest.params);
    W.on_disk = W.newest;
    for (uint32_t m = 0; m < MEMBERS; m++)
        W.joining[m] = true;
    world_forget_old();
}
