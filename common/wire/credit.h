/* Credits: how many payload bytes a worker may have on the way to a shard.
 *
 * A worker sends when nothing is on the way, or when the payload still fits the window. A
 * shard returns the bytes when it has taken a payload over (received and checked it), in
 * the credit field of any reply, and by a message of its own once it owes more than
 * `explicit_above`.
 *
 * It cannot deadlock. Suppose a worker is blocked and no message travels. All that it has
 * on the way is then owed by the shard, and
 *     window - largest payload < on the way = owed <= explicit_above.
 * 1. explicit_above = window / 2 with window >= 2 * largest: window / 2 < window / 2.
 * 2. explicit_above = window - largest, or 0 where the window is smaller than a payload
 *    (then "on the way" > 0 is what blocks): no such number either.
 * 3. explicit_above = never, where the window holds all of the shard's bytes: a chunk is
 *    pushed again only after the reply to its last push, which returned its bytes; what
 * is on the way belongs to other chunks and always leaves room.
 */
#ifndef PS_CREDIT_H
#define PS_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "chunk_codec.h"

typedef struct ps_credit {
    uint64_t window;         // bytes
    uint64_t explicit_above; // bytes; UINT64_MAX: never
} ps_credit;

/* Bytes that an element takes at most: float32, or what codecs need for short pieces. */
static inline uint64_t ps_credit_element_bytes(bool coded)
{
    return coded ? 2 * sizeof(float) : sizeof(float);
}

/* What decides a credit. Bytes are those of gradients: first weights may be larger, but
 * their bytes are returned at once. */
typedef struct ps_credit_needs {
    uint64_t configured;    // exchange.credit; 0: auto
    ps_chunk_size size;     // the plan's
    uint64_t shard_bytes;   // payloads of a step to the shard
    uint64_t largest_bytes; // the largest payload to any shard
} ps_credit_needs;

/* Auto is a sixth of a step's bytes, 64 to 128 KiB, or on one host 512 KiB; at least two
 * of the largest payload, or one where the host is crowded; at most all of a step's.
 * Pure; the same on both sides, since the plan's hash holds what it depends on. */
ps_credit ps_credit_for(const ps_credit_needs *needs);
ps_credit ps_credit_of_shard(uint64_t configured, const ps_chunk_codec *codec,
                             const ps_plan *plan, uint32_t shard);

static inline bool ps_credit_allows(const ps_credit *credit, uint64_t on_the_way,
                                    uint64_t bytes)
{
    return on_the_way == 0 || on_the_way + bytes <= credit->window;
}

#endif
