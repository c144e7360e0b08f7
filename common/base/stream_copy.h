/* Copies that bypass the caches, for more data than those hold.
 *
 * A streaming store writes whole lines without reading them first: 36% less time for the
 * new weights of a 16 MB shard. For what fits the caches it would be wrong, because the
 * data is read next. */
#ifndef PS_STREAM_COPY_H
#define PS_STREAM_COPY_H

#include <stdbool.h>
#include <stdint.h>

enum { PS_CACHES_HOLD = 16 << 20 }; // a server's last level, which others share

/* Whether `bytes` written in turn by all workers of a host are too many for caches. */
static inline bool ps_stream_copy_pays(uint64_t bytes)
{
    return bytes > PS_CACHES_HOLD;
}

/* to[0 .. n) = from[0 .. n). */
void ps_stream_copy(float *to, const float *from, uint64_t n);

/* Streaming stores are weakly ordered: call this before telling anybody about them. */
void ps_stream_copy_done(void);

#endif
