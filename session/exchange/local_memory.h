/* What a rank has of its own between two steps, where workers make steps by themselves
 * (exchange_local.h): arenas of float32, then a ps_local_end. The first arena is the
 * weights, the others are the inner optimizer's state. */
#ifndef PS_LOCAL_MEMORY_H
#define PS_LOCAL_MEMORY_H

#include "step_rule.h"
#include "tensor_table.h"

typedef struct ps_local_part {     // of a fragment
    uint64_t samples, all_samples; // since its last change: this rank's, all ranks'
    uint64_t awaited;              // 1: a change was sent, and its result is not used yet
} ps_local_part;

typedef struct ps_local_end {
    uint64_t n_parts; // sync.fragments
    ps_local_part parts[PS_MAX_FRAGMENTS];
    uint64_t rule_bytes;
    uint8_t rule[PS_STEP_RULE_STATE_BYTES]; // the inner one's, ps_step_rule_save's
} ps_local_end;

size_t ps_local_memory_bytes(const ps_tensor_table *table, const ps_optimizer *inner);
float *ps_local_memory_arena(const ps_tensor_table *table, void *local, int i);
/* Where the end begins: at no particular alignment of a uint64_t. */
void *ps_local_memory_end(const ps_tensor_table *table, const ps_optimizer *inner,
                          void *local);

#endif
