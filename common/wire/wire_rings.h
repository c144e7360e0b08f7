/* The data plane's messages through memory instead of sockets, between a worker and the
 * shards of its host.
 *
 * A worker makes one segment and hands it to every server (shm_pass.h):
 *
 *   bell                          the worker's: shards ring it after WEIGHTS
 *   for each shard of the plan:   a ring to the shard, a ring to the worker
 *
 * A message is one byte, the length of frame 1, then frame 1, then frame 2 if there is
 * one (wire.h). Only PUSH, GROUPS and the WEIGHTS that answer a PUSH travel here. Each
 * ring has room for all of them: a worker pushes a chunk again only when it has taken the
 * weights that answer the last push.
 */
#ifndef PS_WIRE_RINGS_H
#define PS_WIRE_RINGS_H

#include "bell.h"
#include "plan.h"
#include "shm_ring.h"
#include "wire_socket.h"

/* n_groups: parameter groups of the job; 0: none. Pure; the same on both sides. */
uint64_t ps_wire_rings_bytes(const ps_plan *plan, int n_groups);

/* `wanted` of the bell: all weights that are on the way. Else: those of chunk wanted - 1.
 */
#define PS_WIRE_WANTED_ALL (UINT32_MAX - 1)

typedef struct ps_wire_bell {
    ps_bell bell;
    _Atomic uint32_t n_put;   // WEIGHTS ever, of all shards; modulo 2^32
    _Atomic uint32_t n_asked; // PUSHes ever, when the worker wants all weights
} ps_wire_bell;

/* One end's view of the rings of a shard. */
typedef struct ps_wire_rings {
    ps_wire_bell *bell; // borrowed, like the rings' memory
    ps_shm_ring to_shard, to_worker;
} ps_wire_rings;

/* base: the zeroed segment. */
ps_wire_rings ps_wire_rings_at(void *base, const ps_plan *plan, int n_groups,
                               uint32_t shard);

/* Puts a message; *sent grows by its bytes. PROTOCOL as ps_shm_ring_put. */
ps_err ps_wire_ring_put(ps_shm_ring *ring, const ps_wire_header *h, const void *payload,
                        size_t bytes, uint64_t *sent);

/* The shard, after it has put the WEIGHTS of a chunk: whether the worker waits for just
 * these. */
bool ps_wire_rings_wanted(const ps_wire_rings *rings, uint32_t chunk);

/* Takes one message if there is one: *got. Fills f as ps_wire_recv does. id: frame 0;
 * NULL on the worker's side. PROTOCOL when the ring's contents are not possible. */
ps_err ps_wire_ring_take(ps_shm_ring *ring, const void *id, size_t id_bytes,
                         ps_wire_frames *f, bool *got);

#endif
