#include "credit.h"

enum { AUTO_WINDOW = 4 << 20 };

ps_credit ps_credit_of_shard(uint64_t configured, uint64_t shard_bytes,
                             uint64_t largest_bytes)
{
    uint64_t window = configured ? configured : AUTO_WINDOW;
    if (!configured && window < 2 * largest_bytes) window = 2 * largest_bytes;
    if (window >= shard_bytes)
        return (ps_credit){.window = shard_bytes, .explicit_above = UINT64_MAX};
    uint64_t above = window / 2;
    if (window < 2 * largest_bytes)
        above = window > largest_bytes ? window - largest_bytes : 0;
    return (ps_credit){.window = window, .explicit_above = above};
}
