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

typedef struct ps_credit {
    uint64_t window;         // bytes
    uint64_t explicit_above; // bytes; UINT64_MAX: never
} ps_credit;

/* Bytes that an element takes at most: float32, or what codecs need for short pieces. */
static inline uint64_t ps_credit_element_bytes(bool coded)
{
    return coded ? 2 * sizeof(float) : sizeof(float);
}

/* configured: exchange.credit, 0 for auto (a sixth of a step's bytes, 64 to 128 KiB, at
 * least two of the largest payload, at most all of a step's). shard_bytes and
 * largest_bytes are those of gradients: first weights may be larger, but their bytes are
 * returned at once. Pure; the same on both sides. */
ps_credit ps_credit_of_shard(uint64_t configured, uint64_t shard_bytes,
                             uint64_t largest_bytes);

static inline bool ps_credit_allows(const ps_credit *credit, uint64_t on_the_way,
                                    uint64_t bytes)
{
    return on_the_way == 0 || on_the_way + bytes <= credit->window;
}

#endif
