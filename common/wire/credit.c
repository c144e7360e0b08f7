#include "credit.h"

/* A worker that is ahead of the others by a window makes the shard wait for them. At 200
 * Mbit/s, 4.8 MB between 4 workers and 4 servers took 1.25 x the time at line rate with a
 * window of 512 KiB, 1.12 x with 256 and 1.03 x with 128; 64 is too little at 1 Gbit/s.
 * In a small step the window should be a small part of the bytes: steps whose 4.8 MB
 * travel by fp16 take 4% longer with 128 KiB than with 96. */
enum { LEAST_WINDOW = 64 << 10, MOST_WINDOW = 128 << 10, WINDOWS_A_STEP = 6 };

/* On one host no link is shared, and credit costs messages. But where processes wait for
 * each other's processors anyway, what is on the way only falls out of their caches: with
 * 4 and 4 on 2 cores 25 MB took 36 ms with one chunk of 1 MiB on the way to each shard,
 * and 48 with two. */
enum { ONE_HOST_WINDOW = 512 << 10 };

static uint64_t auto_window(const ps_credit_needs *n)
{
    if (n->shard_bytes <= MOST_WINDOW) return n->shard_bytes;
    const uint64_t payloads = (n->size.crowded ? 1 : 2) * n->largest_bytes;
    uint64_t window = n->shard_bytes / WINDOWS_A_STEP;
    if (window < LEAST_WINDOW) window = LEAST_WINDOW;
    if (window > MOST_WINDOW) window = MOST_WINDOW;
    if (n->size.one_host) window = ONE_HOST_WINDOW;
    return window > payloads ? window : payloads;
}

ps_credit ps_credit_for(const ps_credit_needs *needs)
{
    const uint64_t shard_bytes = needs->shard_bytes;
    const uint64_t largest_bytes = needs->largest_bytes;
    uint64_t window = needs->configured ? needs->configured : auto_window(needs);
    if (window >= shard_bytes)
        return (ps_credit){.window = shard_bytes, .explicit_above = UINT64_MAX};
    uint64_t above = window / 2;
    if (window < 2 * largest_bytes)
        above = window > largest_bytes ? window - largest_bytes : 0;
    return (ps_credit){.window = window, .explicit_above = above};
}

ps_credit ps_credit_of_shard(uint64_t configured, const ps_chunk_codec *codec,
                             const ps_plan *plan, uint32_t shard)
{
    ps_credit_needs needs = {.configured = configured, .size = plan->size};
    ps_chunk_codec_step_bytes(codec, plan, shard, &needs.shard_bytes,
                              &needs.largest_bytes);
    return ps_credit_for(&needs);
}
