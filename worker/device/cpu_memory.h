/* A plan of the memory that passes need: slots of bytes that are taken and given back in
 * the order in which the passes use them, so that what is never alive at the same time
 * shares a place (and stays in the cache). One allocation in the end. */
#ifndef PS_CPU_MEMORY_H
#define PS_CPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "err.h"

typedef struct ps_cpu_slot {
    size_t bytes, offset;
    bool free;
} ps_cpu_slot;

typedef struct ps_cpu_memory {
    int n_slots, capacity;
    ps_cpu_slot *slots;
    size_t bytes; // of all slots, known after layout
    char *base;
    bool borrowed; // base belongs to another plan
} ps_cpu_memory;

enum { PS_CPU_NO_SLOT = -1 };

/* A slot of at least so many bytes; 0 bytes give PS_CPU_NO_SLOT. */
ps_err ps_cpu_memory_take(ps_cpu_memory *memory, size_t bytes, int *slot);
/* The slot's place may be used again by what is taken from now on. */
void ps_cpu_memory_give(ps_cpu_memory *memory, int slot);

/* Places the slots: in other's memory where that is large enough (other may be NULL; its
 * passes and ours never overlap, and it outlives us), else in memory of our own. */
ps_err ps_cpu_memory_layout(ps_cpu_memory *memory, const ps_cpu_memory *other);
/* NULL for PS_CPU_NO_SLOT. 64-byte aligned. */
void *ps_cpu_memory_at(const ps_cpu_memory *memory, int slot);
void ps_cpu_memory_fini(ps_cpu_memory *memory); // safe on a zeroed one

#endif
