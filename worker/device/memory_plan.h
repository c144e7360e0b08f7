/* A plan of the memory that passes need. Slots are taken and given back in the order in
 * which the passes use them, so that values which are never alive at the same time share
 * memory (and stay in the cache). All slots are one allocation in the end. */
#ifndef PS_MEMORY_PLAN_H
#define PS_MEMORY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

typedef struct ps_memory_slot {
    size_t bytes, offset;
    bool free;
} ps_memory_slot;

/* Memory that a plan has left behind for another one. */
typedef struct ps_spare_memory {
    char *base; // NULL: none
    size_t bytes;
} ps_spare_memory;

typedef struct ps_memory_plan {
    int n_slots;
    uint32_t room; // for slots
    ps_memory_slot *slots;
    size_t bytes; // of all slots, known after layout
    char *base;
    size_t allocated; // bytes at base, where they are its own
    bool borrowed;    // base belongs to another plan
} ps_memory_plan;

enum { PS_NO_SLOT = -1 };

/* Takes a slot of at least that many bytes; 0 bytes give PS_NO_SLOT. */
ps_err ps_memory_plan_take(ps_memory_plan *memory, size_t bytes, int *slot);
/* Gives the slot back: slots taken from now on may use its memory. */
void ps_memory_plan_give(ps_memory_plan *memory, int slot);

/* Places the slots: in other's memory if it is large enough, else in memory of our own:
 * the spare one, which it takes, or a new one. other may be NULL; it must outlive this
 * plan, and the passes of the two must never overlap. spare may be NULL. */
ps_err ps_memory_plan_layout(ps_memory_plan *memory, const ps_memory_plan *other,
                             ps_spare_memory *spare);
/* NULL for PS_NO_SLOT. 64-byte aligned. */
void *ps_memory_plan_at(const ps_memory_plan *memory, int slot);
/* Safe on a zeroed one. Its own memory becomes the spare one, unless spare is NULL or has
 * more: the system takes long to give fresh pages. */
void ps_memory_plan_fini(ps_memory_plan *memory, ps_spare_memory *spare);
void ps_spare_memory_fini(ps_spare_memory *spare);

#endif
