/* A link between this worker and another one: both ways, pieces of bytes that arrive once
 * and in order. One of the project's vtables: shared memory on one host (link_shm.c), TCP
 * by ZeroMQ between hosts (link_net.c).
 *
 * All functions belong to the thread that turns the links (links.c). None blocks. */
#ifndef PS_LINK_H
#define PS_LINK_H

#include <stdint.h>

#include "err.h"

enum { PS_LINK_PIECE = 64 << 10 }; // bytes of a piece, at most

/* What stands before a piece. A message is the pieces of one `message`. */
typedef struct ps_link_head {
    uint64_t comm; // of which communicator
    uint64_t tag;  // which of its calls; of point-to-point messages what the program says
    uint64_t message; // counts the messages of a link in one direction
    uint64_t total;   // bytes of the message
    uint64_t offset;  // of the piece in it: a multiple of PS_LINK_PIECE
    uint32_t bytes;   // of the piece
    uint32_t call;    // what the sender calls (links.c)
    uint32_t key;     // which messages of a communicator with one tag match (links.c)
    uint32_t slot;    // link_shm.c's
    uint64_t number; // link_net.c's
} ps_link_head;
_Static_assert(sizeof(ps_link_head) == 64, "payloads begin at a cache line");

typedef struct ps_link ps_link;

typedef struct ps_link_ops {
    /* Where the bytes of the next piece go; NULL: there is no room now. */
    uint8_t *(*room)(ps_link *l, uint32_t bytes);
    /* Sends it: h->bytes, as many as room was asked for. */
    ps_err (*put)(ps_link *l, const ps_link_head *h);
    /* Shows the oldest piece that was not dropped: its bytes, or NULL where there is
     * none. The other worker may change them at any time. PROTOCOL. */
    ps_err (*front)(ps_link *l, ps_link_head *h, const uint8_t **bytes);
    void (*drop)(ps_link *l);
    /* Before a thread sleeps, or turns the links no more for now. May be NULL. */
    ps_err (*rest)(ps_link *l);
    void (*destroy)(ps_link *l);
} ps_link_ops;

struct ps_link {
    const ps_link_ops *ops;
    int rank; // the other worker's
};

#endif
