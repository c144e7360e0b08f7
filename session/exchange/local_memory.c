#include "local_memory.h"

static size_t arenas_bytes(const ps_tensor_table *table, const ps_optimizer *inner)
{
    return (size_t)(1 + inner->n_states) * table->arena_count * sizeof(float);
}

size_t ps_local_memory_bytes(const ps_tensor_table *table, const ps_optimizer *inner)
{
    return arenas_bytes(table, inner) + sizeof(ps_local_end);
}

float *ps_local_memory_arena(const ps_tensor_table *table, void *local, int i)
{
    return (float *)local + (size_t)i * table->arena_count;
}

void *ps_local_memory_end(const ps_tensor_table *table, const ps_optimizer *inner,
                          void *local)
{
    return (char *)local + arenas_bytes(table, inner);
}
