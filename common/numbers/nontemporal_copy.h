/* Copies that bypass the caches, for more data than they hold.
 *
 * A streaming store writes whole lines without reading them first: 36% less time for the
 * new weights of a 16 MB shard. Data that fits the caches should stay in them, because it
 * is read next. */
#ifndef PS_NONTEMPORAL_COPY_H
#define PS_NONTEMPORAL_COPY_H

#include <stdbool.h>
#include <stdint.h>

/* The last-level cache of a server, which other processes share. */
enum { PS_CACHES_HOLD = 16 << 20 };

/* True when `bytes`, written in turn by all workers of a host, do not fit the caches. */
static inline bool ps_nontemporal_copy_pays(uint64_t bytes)
{
    return bytes > PS_CACHES_HOLD;
}

/* to[0 .. n) = from[0 .. n). */
void ps_nontemporal_copy(float *to, const float *from, uint64_t n);

/* As this, each number times factor. */
void ps_nontemporal_scaled_copy(float *to, const float *from, float factor, uint64_t n);

/* Streaming stores are weakly ordered: call this before another thread or process is told
 * of the data. */
void ps_nontemporal_copy_done(void);

#endif
