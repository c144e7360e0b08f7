#include <stdlib.h>
#include <string.h>

#include "protocol_world.h"

enum { IMAGES = 1 << 16, MESSAGES = 512, SLOTS = 1 << 18 };

typedef struct old_message {
    uint32_t rank, shard;
    message message;
} old_message;

typedef struct image { // of a shard
    uint32_t shard, incarnation, used;
    uint8_t *memory; // owned
} image;

static old_message messages[MESSAGES];
static image images[IMAGES];
static uint32_t n_messages, n_images;
static uint64_t slots[SLOTS];

void world_forget_old(void)
{
    for (uint32_t i = 0; i < n_images; i++)
        free(images[i].memory);
    n_images = n_messages = 0;
    memset(slots, 0, sizeof slots);
}

void world_keep_old(uint32_t rank, uint32_t shard, const message *m)
{
    old_message o;
    memset(&o, 0, sizeof o);
    o.rank = rank;
    o.shard = shard;
    o.message = *m;
    for (uint32_t i = 0; i < n_messages; i++)
        if (memcmp(&messages[i], &o, sizeof o) == 0) return;
    if (n_messages == MESSAGES)
        world_wrong("too many old messages for the check");
    else
        messages[n_messages++] = o;
}

/* True if it is new. */
static bool remember(uint32_t shard)
{
    const uint64_t *words = (const uint64_t *)W.memory[WORKERS + shard];
    uint64_t h = shard + 8 * W.incarnation;
    for (uint32_t i = 0; i < W.used[WORKERS + shard] / 8; i++) {
        h = (h ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    h += h == 0;
    uint64_t at = h % SLOTS;
    while (slots[at] != 0 && slots[at] != h)
        at = (at + 1) % SLOTS;
    const bool is_new = slots[at] == 0;
    slots[at] = h;
    return is_new;
}

void world_keep_shard(uint32_t shard)
{
    const uint32_t m = WORKERS + shard;
    if (W.incarnation < 2 || !world_runs(m) || !remember(shard)) return;
    if (n_images == IMAGES) {
        world_wrong("too many states of shards for the check");
        return;
    }
    image *i = &images[n_images++];
    *i = (image){.shard = shard, .incarnation = W.incarnation, .used = W.used[m]};
    i->memory = malloc(i->used);
    memcpy(i->memory, W.memory[m], i->used);
}

static void give(const image *i, const old_message *o)
{
    message m = o->message;
    uint32_t incarnation = (uint32_t)(m.header.nonce - NONCE);
    if (o->shard != i->shard || incarnation >= i->incarnation) return;
    if (world_scenario()->mistake == MISTAKE_OLD_NONCE_COUNTS) {
        incarnation = i->incarnation;
        m.header.nonce = NONCE + incarnation;
    }
    world_give_to_shard(i->shard, &m, o->rank, incarnation);
    world_canonicalize_shard(world_shard(i->shard));
    const uint32_t k = WORKERS + i->shard;
    if (memcmp(i->memory, W.memory[k], i->used) == 0 && W.down[o->rank][i->shard].n == 0)
        return;
    world_wrong("shard %u listens to a %s of an incarnation before its own", i->shard,
                ps_wire_kind_name(m.header.kind));
}

void world_check_old(void)
{
    memset(&W.down, 0, sizeof W.down);
    memset(W.joining, 0, sizeof W.joining);
    for (uint32_t k = 0; k < n_images && !world_fault(); k++) {
        const image *i = &images[k];
        W.incarnation = i->incarnation;
        W.used[WORKERS + i->shard] = i->used;
        memcpy(W.memory[WORKERS + i->shard], i->memory, i->used);
        for (uint32_t o = 0; o < n_messages && !world_fault(); o++)
            give(i, &messages[o]);
    }
}
