/* What a shard answers readers: processes that are no members, and read rows of embedding
 * tables while the job runs (wire.h). They change nothing. */
#ifndef PS_SHARD_READERS_H
#define PS_SHARD_READERS_H

#include "shard_state.h"

/* Answers a reader's message. Whatever is wrong with it, the reader is told, and the job
 * goes on. A reader that is one too many (server.readers) is told so. Its place is free
 * again when its connection has ended. Messages of a connection that does not take its
 * answers are dropped. */
ps_err ps_shard_readers_take(ps_shard *s, const ps_frame_view *v,
                             const ps_wire_frames *f);

#endif
