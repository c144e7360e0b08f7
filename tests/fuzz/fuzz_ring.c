/* A ring whose other end writes anything: positions from the first bytes, contents from
 * the rest. No end reads or writes outside the ring, and each returns. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "wire_rings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CAPACITY = 256, MOST = CAPACITY / 8 };

static void take_all(ps_shm_ring *ring)
{
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    bool got = true;
    int n = 0;
    while (got && ps_wire_ring_take(ring, "an id", 5, &f, &got) == PS_OK && got)
        if (zmq_msg_size(&f.header) + zmq_msg_size(&f.payload) > CAPACITY || ++n > MOST)
            abort();
    ps_wire_frames_close(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { POSITIONS = 3 * sizeof(uint32_t) };
    void *memory;
    uint32_t at[3];
    if (size < POSITIONS) return 0;
    memcpy(at, data, sizeof at);
    data += POSITIONS;
    size -= POSITIONS;
    if (ps_mem_zalloc_aligned(&memory, ps_shm_ring_bytes(CAPACITY), "a ring") != PS_OK)
        return 0;
    ps_shm_ring ring = ps_shm_ring_at(memory, CAPACITY);
    memcpy(ring.memory->bytes, data, size < CAPACITY ? size : CAPACITY);
    ring.at = at[0] / 8 * 8;
    atomic_store(&ring.memory->tail, at[1]);
    atomic_store(&ring.memory->head, at[2]);
    const ps_wire_header h = {.version = PS_WIRE_VERSION, .kind = PS_MSG_CREDIT};
    uint64_t sent = 0;
    ps_shm_ring writer = ring;
    take_all(&ring);
    (void)ps_wire_ring_put(&writer, &h, data, size, &sent);
    free(memory);
    return 0;
}
