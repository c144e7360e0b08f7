/* Where workers of this host hand in their arenas: a thread that accepts them on an
 * abstract Unix socket and maps them, for a server's shards or for another worker. */
#ifndef PS_SHM_DOOR_H
#define PS_SHM_DOOR_H

#include <stdint.h>

#include "shm_pass.h"

typedef struct ps_shm_door ps_shm_door;

/* What the door of a server needs so that workers can have rings (wire_rings.h). */
typedef struct ps_shm_door_rings {
    uint64_t bytes;   // of a worker's rings
    const int *wakes; // eventfds of the shards; borrowed for the door's life
    int n_wakes;
} ps_shm_door_rings;

/* Starts listening. arena_bytes: what each arena must have. rings NULL: there are none.
 */
ps_err ps_shm_door_create(uint64_t nonce, uint32_t n_workers, uint64_t arena_bytes,
                          const ps_shm_door_rings *rings, ps_shm_door **out);
/* The name to connect to; borrowed. */
const char *ps_shm_door_name(const ps_shm_door *door);
/* The mapped arenas of a worker, or NULL while it has not handed them in. From any
 * thread; they stay until destroy. The worker may change their contents at any time. */
float *ps_shm_door_params(const ps_shm_door *door, uint32_t rank);
float *ps_shm_door_grads(const ps_shm_door *door, uint32_t rank);
/* From now on the addresses of mem, an arena of this process, show the worker's params.
 * IO. */
ps_err ps_shm_door_show_params(const ps_shm_door *door, uint32_t rank,
                               const ps_shared_mem *mem);
/* The same of its rings, and of its arena for rows (PS_ROWS_ARENA_BYTES); also NULL when
 * it handed in none. */
void *ps_shm_door_rings_of(const ps_shm_door *door, uint32_t rank);
void *ps_shm_door_rows(const ps_shm_door *door, uint32_t rank);
/* Stops the thread and unmaps the arenas. Must be called after all shards have stopped.
 */
void ps_shm_door_destroy(ps_shm_door **door);

#endif
