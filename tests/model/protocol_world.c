#include "protocol_world.h"

#include <stdlib.h>
#include <string.h>

world W;
static scenario S;
uint32_t world_owner = MEMBERS, world_giving;
char world_fault_text[TEXT];

char world_dealers[WORKERS][SHARDS], world_routers[SHARDS],
    world_monitors[WORKERS][SHARDS];

const scenario *world_scenario(void)
{
    return &S;
}

void world_must(ps_err err, const char *who, uint32_t i)
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

ps_err __real_ps_mem_zalloc(void *out, size_t count, size_t size, const char *what);

ps_err world_take_memory(void *out, size_t bytes)
{
    const uint32_t rounded = (uint32_t)(bytes + 63) / 64 * 64;
    if (W.used[world_owner] + rounded > MEMORY) abort(); // MEMORY is too small
    void *p = W.memory[world_owner] + W.used[world_owner];
    W.used[world_owner] += rounded;
    memcpy(out, &p, sizeof p);
    return PS_OK;
}

ps_err __wrap_ps_mem_zalloc(void *out, size_t count, size_t size, const char *what)
{
    return world_owner == MEMBERS ? __real_ps_mem_zalloc(out, count, size, what)
                                  : world_take_memory(out, count * size);
}

ps_err __wrap_ps_mem_zalloc_aligned(void *out, size_t bytes, const char *what)
{
    return world_take_memory(out, bytes);
}

ps_err __wrap_ps_mem_zalloc_large(void *out, size_t bytes, const char *what)
{
    return world_take_memory(out, bytes);
}

ps_err __wrap_ps_command_queue_init(ps_command_queue *q, uint32_t n)
{
    return PS_OK; // world_order has orders of its own
}

void world_clear_memory(uint32_t member)
{
    memset(W.memory[member], 0, MEMORY);
    W.used[member] = 0;
}

void world_open(const scenario *s)
{
    S = *s;
    world_fault_text[0] = '\0';
    world_owner = MEMBERS;
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
