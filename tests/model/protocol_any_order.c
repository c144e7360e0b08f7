/* A shard alone, and whatever a worker may send it, at any time and any number of times.
 */
#include <string.h>

#include "protocol_world.h"

static const ps_policy_chunk *policy(void)
{
    return &world_shard(0)->chunks[0].policy;
}

bool world_any_can(uint32_t rank, uint8_t kind, uint64_t step)
{
    const ps_shard_peer *peer = &world_shard(0)->peers[rank];
    const int64_t version = policy()->version;
    if (kind == PS_MSG_HELLO) return step == 0;
    if (!peer->joined) return false;
    if (kind == PS_MSG_INIT) return rank == 0 && step == 0;
    if (kind == PS_MSG_PULL) return (int64_t)step <= version + 1;
    // The shard is at most a step behind its workers.
    return version >= 0 && (int64_t)step <= version + 1 && step < world_scenario()->steps;
}

/* The answers have the weights of their version. An answer of an older one is read while
 * these are changed; it goes to workers that have pushed the step of that version, and so
 * have its weights. */
static void check_answers(uint32_t rank)
{
    queue *q = &W.down[rank][0];
    for (uint32_t i = 0; i < q->n; i++) {
        const message *m = &q->messages[i];
        if (m->header.kind != PS_MSG_WEIGHTS) continue;
        if ((int64_t)m->header.step < policy()->version) continue;
        expected *e = &E[m->header.step];
        world_expect(e->weights, &e->knows_weights[0],
                     m->borrowed ? m->borrowed : (const void *)m->bytes,
                     (uint32_t)K.chunks[0].offset, ELEMENTS, "an answer", m->header.step);
    }
    q->n = 0;
}

void world_any(uint32_t rank, uint8_t kind, uint64_t step)
{
    const ps_chunk *chunk = &K.chunks[0];
    message m;
    memset(&m, 0, sizeof m);
    m.header = (ps_wire_header){.version = PS_WIRE_VERSION,
                                .kind = kind,
                                .nonce = world_shard(0)->rules.nonce,
                                .rank = rank,
                                .step = step};
    if (kind == PS_MSG_INIT || kind == PS_MSG_PUSH) {
        float grads[ARENA];
        world_gradient(rank, step, E[step].params, grads);
        m.header.count = ELEMENTS;
        m.n_bytes = ELEMENTS * sizeof *grads;
        memcpy(m.bytes, (kind == PS_MSG_INIT ? E[0].params : grads) + chunk->offset,
               m.n_bytes);
    }
    world_give_to_shard(0, &m, rank, W.incarnation);
    // Without end, as nobody takes credits.
    for (uint32_t r = 0; r < WORKERS; r++)
        world_shard(0)->peers[r].owed = 0;
    for (uint32_t r = 0; r < WORKERS; r++)
        check_answers(r);
}
