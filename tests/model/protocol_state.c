#include "protocol_world.h"

#include <string.h>

#include "gradnorm.h"

/* ---- the global norm ---- */

/* Each shard has one run of sums; the coordinator adds them all. */
ps_err __wrap_ps_coord_link_gradnorm_send(ps_coord_link *link, uint64_t step,
                                          uint32_t n_shards, uint64_t total_blocks,
                                          uint32_t n, const uint64_t *first,
                                          const uint64_t *counts, const double *sums)
{
    const uint32_t shard = world_owner - WORKERS;
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
    const uint32_t shard = world_owner - WORKERS;
    *step = W.told[shard]++;
    double squares = 0;
    for (uint32_t s = 0; s < SHARDS; s++)
        squares += W.sums[s][*step % 2] * W.sums[s][*step % 2];
    *norm = squares; // any function of all sums serves
    *got = 1;
    return PS_OK;
}

void world_take_norm(uint32_t shard)
{
    world_owner = WORKERS + shard;
    world_must(ps_shard_hear(world_shard(shard)), "shard", shard);
    world_owner = MEMBERS;
}

/* ---- the policy ---- */

ps_verdict __real_ps_policy_push(ps_policy_chunk *c, uint32_t rank, uint64_t step);

ps_verdict __wrap_ps_policy_push(ps_policy_chunk *c, uint32_t rank, uint64_t step)
{
    const uint32_t shard = world_owner - WORKERS;
    ps_verdict v = __real_ps_policy_push(c, rank, step);
    const bool again =
        v == PS_VERDICT_DROP && world_scenario()->mistake == MISTAKE_REPEATED_PUSH_COUNTS;
    const bool late = v == PS_VERDICT_ANSWER &&
                      world_scenario()->mistake == MISTAKE_APPLIED_PUSH_COUNTS;
    if (again || late) {
        c->n_arrived++;
        v = PS_VERDICT_TAKE;
    }
    if (v != PS_VERDICT_TAKE && v != PS_VERDICT_KEEP) return v;
    if (world_giving != W.incarnation)
        world_wrong("shard %u counts a push of incarnation %u in incarnation %u", shard,
                    world_giving, W.incarnation);
    return v;
}

/* ---- the state ---- */

static void canonicalize_message(zmq_msg_t *m)
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
    if (p->version > (int64_t)world_scenario()->steps) {
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

void world_canonicalize_shard(ps_shard *s)
{
    s->bytes_received = s->bytes_sent = s->pushes = s->repeated = s->strangers =
        s->steps = 0;
    s->sum_ns = s->apply_ns = 0;
    for (uint32_t r = 0; r < WORKERS; r++) {
        canonicalize_message(&s->chunks[0].pushes[r]);
        canonicalize_message(&s->chunks[0].early[r]);
        s->grads[r] = NULL;
        s->payloads[r] = NULL;
    }
    check_shard(s);
}

static void canonicalize_comm(ps_comm *c)
{
    c->bytes_sent = c->bytes_received = c->raw_bytes = c->most_on_the_way = 0;
    c->shm_sent = c->shm_received = 0;
    c->progress_ns = c->encode_ns = c->send_ns = 0;
    c->own_bell.sequence = 0;
    for (uint32_t s = 0; s < SHARDS; s++) {
        ps_comm_link *l = &c->links[s];
        l->lost_ns = l->lost_ns > 0;
        if (l->on_the_way > l->credit.window && l->on_the_way > ELEMENTS * sizeof(float))
            world_wrong("worker %d has %d bytes on the way", c->o.rank,
                        (int)l->on_the_way);
    }
}

/* Sanitizers would take more time in these two than in all other places. */
#define PLAIN __attribute__((no_sanitize("address", "undefined")))

PLAIN static inline uint64_t fold(uint64_t a, uint64_t b)
{
    __extension__ const unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Four sums at a time: one would wait for its own product. A product of two words each,
 * as in wyhash. */
PLAIN static uint64_t mix(uint64_t h, const void *bytes, size_t n)
{
    enum { LANES = 4 };
    const uint64_t *words = bytes;
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    // None may be 0, which would take the other factor with it.
    uint64_t sums[LANES] = {h ^ odd, h ^ 3 * odd, h ^ 5 * odd, h ^ 7 * odd};
    size_t i = 0;
    for (; i + 2 * LANES <= n / sizeof *words; i += 2 * LANES) {
#pragma GCC unroll 4
        for (int k = 0; k < LANES; k++)
            sums[k] = fold(sums[k] ^ words[i + 2 * k], words[i + 2 * k + 1] ^ odd);
    }
    for (; i < n / sizeof *words; i++)
        sums[0] = (sums[0] ^ words[i]) * odd;
    for (int k = 0; k < LANES; k++) {
        h = (h ^ sums[k]) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    return h;
}

void world_canonicalize(uint32_t members)
{
    for (uint32_t m = 0; m < MEMBERS; m++) {
        if (!(members >> m & 1)) continue;
        if (world_runs(m) && m < WORKERS) canonicalize_comm(world_comm(m));
        if (world_runs(m) && m >= WORKERS)
            world_canonicalize_shard(world_shard(m - WORKERS));
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
    if (world_scenario()->any_order && W.incarnation > 0)
        return world_shard(0)->chunks[0].policy.version ==
               (int64_t)world_scenario()->steps;
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
    for (uint32_t m = 0; m < MEMBERS; m++) { // of neighbours in the search most are equal
        if (to->hashes[m] == from->hashes[m] && to->hashes[m]) continue;
        memcpy(to->memory[m], from->memory[m], from->used[m]);
    }
    memcpy(to->used, from->used, sizeof to->used);
    memcpy(to->hashes, from->hashes, sizeof to->hashes);
}
