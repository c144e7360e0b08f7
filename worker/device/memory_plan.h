/* A plan of the memory that passes need: slots of bytes that are taken and given back in
 * the order in which the passes use them, so that what is never alive at the same time
 * shares a place (and stays in the cache). One allocation in the end. */
#ifndef PS_MEMORY_PLAN_H
#define PS_MEMORY_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "err.h"

typedef struct ps_memory_slot {
    size_t bytes, offset;
    bool free;
} ps_memory_slot;

typedef struct ps_memory_plan {
    int n_slots, capacity;
    ps_memory_slot *slots;
    size_t bytes; // of all slots, known after layout
    char *base;
    bool borrowed; // base belongs to another plan
} ps_memory_plan;

enum { PS_NO_SLOT = -1 };

/* A slot of at least so many bytes; 0 bytes give PS_NO_SLOT. */
ps_err ps_memory_plan_take(ps_memory_plan *memory, size_t bytes, int *slot);
/* The slot's place may be used again by what is taken from now on. */
void ps_memory_plan_give(ps_memory_plan *memory, int slot);

/* Places the slots: in other's memory where that is large enough (other may be NULL; its
 * passes and ours never overlap, and it outlives us), else in memory of our own. */
ps_err ps_memory_plan_layout(ps_memory_plan *memory, const ps_memory_plan *other);
/* NULL for PS_NO_SLOT. 64-byte aligned. */
void *ps_memory_plan_at(const ps_memory_plan *memory, int slot);
void ps_memory_plan_fini(ps_memory_plan *memory); // safe on a zeroed one

#endif
