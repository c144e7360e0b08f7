#include "wire_rings.h"

#include <string.h>

#include "param_groups.h"

enum { BELL_BYTES = 64, MESSAGE = 1 + PS_WIRE_HEADER_MAX };

static uint64_t rings_count_chunks(const ps_plan *plan, uint32_t shard)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        n += plan->chunks[i].shard == shard;
    return n;
}

/* Every chunk's PUSH, and all sets of numbers that are kept. A set takes as much as that
 * many messages. */
static uint32_t capacity_to_shard(uint64_t n_chunks, int n_groups)
{
    const uint64_t set =
        n_groups > 0 ? 2 + (uint64_t)n_groups * sizeof(ps_group_numbers) / MESSAGE : 0;
    return ps_shm_ring_capacity(n_chunks + (PS_GROUP_SETS + 1) * set, MESSAGE);
}

static uint64_t shard_bytes(uint64_t n_chunks, int n_groups)
{
    return ps_shm_ring_bytes(capacity_to_shard(n_chunks, n_groups)) +
           ps_shm_ring_bytes(ps_shm_ring_capacity(n_chunks, MESSAGE));
}

uint64_t ps_wire_rings_bytes(const ps_plan *plan, int n_groups)
{
    uint64_t bytes = BELL_BYTES;
    for (uint32_t s = 0; s < plan->n_shards; s++)
        bytes += shard_bytes(rings_count_chunks(plan, s), n_groups);
    return bytes;
}

ps_wire_rings ps_wire_rings_at(void *base, const ps_plan *plan, int n_groups,
                               uint32_t shard)
{
    uint8_t *at = (uint8_t *)base + BELL_BYTES;
    for (uint32_t s = 0; s < shard; s++)
        at += shard_bytes(rings_count_chunks(plan, s), n_groups);
    const uint64_t n = rings_count_chunks(plan, shard);
    const uint32_t there = capacity_to_shard(n, n_groups);
    const uint32_t back = ps_shm_ring_capacity(n, MESSAGE);
    return (ps_wire_rings){
        .bell = base,
        .to_shard = ps_shm_ring_at(at, there),
        .to_worker = ps_shm_ring_at(at + ps_shm_ring_bytes(there), back),
    };
}

ps_err ps_wire_ring_put(ps_shm_ring *ring, const ps_wire_header *h, const void *payload,
                        size_t bytes, uint64_t *sent)
{
    uint8_t first[MESSAGE];
    size_t n;
    ps_wire_encode(h, first + 1, &n);
    first[0] = (uint8_t)n;
    PS_TRY(ps_shm_ring_put(ring, first, (uint32_t)n + 1, payload, (uint32_t)bytes));
    *sent += n + bytes;
    return PS_OK;
}

/* The worker sets n_asked, then `wanted`, and then looks at the rings once more; here the
 * message is in the ring before either is read. */
bool ps_wire_rings_wanted(const ps_wire_rings *rings, uint32_t chunk)
{
    const uint32_t n = atomic_fetch_add(&rings->bell->n_put, 1) + 1;
    const uint32_t wanted = atomic_load(&rings->bell->bell.wanted);
    if (wanted != PS_WIRE_WANTED_ALL) return wanted == chunk + 1;
    return n == atomic_load(&rings->bell->n_asked);
}

static ps_err rings_renew(zmq_msg_t *msg, size_t bytes)
{
    zmq_msg_close(msg);
    if (zmq_msg_init_size(msg, bytes) == 0) return PS_OK;
    zmq_msg_init(msg);
    return ps_err_set(PS_ERR_NOMEM, "no memory for a message of %zu bytes", bytes);
}

static ps_err copy_frame(const ps_shm_ring *ring, uint32_t from, uint32_t n,
                         zmq_msg_t *msg)
{
    PS_TRY(rings_renew(msg, n));
    ps_shm_ring_copy(ring, from, zmq_msg_data(msg), n);
    return PS_OK;
}

static ps_err set_id(zmq_msg_t *msg, const void *id, size_t bytes)
{
    if (zmq_msg_size(msg) != bytes) PS_TRY(rings_renew(msg, bytes));
    memcpy(zmq_msg_data(msg), id, bytes);
    return PS_OK;
}

ps_err ps_wire_ring_take(ps_shm_ring *ring, const void *id, size_t id_bytes,
                         ps_wire_frames *f, bool *got)
{
    uint32_t bytes;
    *got = false;
    PS_TRY(ps_shm_ring_next(ring, &bytes));
    if (bytes == 0) return PS_OK;
    uint8_t header;
    ps_shm_ring_copy(ring, 0, &header, 1);
    if (header > bytes - 1)
        return ps_err_set(PS_ERR_PROTOCOL, "a message of %u bytes with a header of %u",
                          bytes, header);
    const uint32_t payload = bytes - 1 - header;
    if (id) PS_TRY(set_id(&f->id, id, id_bytes));
    PS_TRY(copy_frame(ring, 1, header, &f->header));
    PS_TRY(copy_frame(ring, 1 + (uint32_t)header, payload, &f->payload));
    f->has_payload = payload > 0;
    f->n = (id ? 2 : 1) + f->has_payload;
    ps_shm_ring_drop(ring, bytes);
    *got = true;
    return PS_OK;
}
