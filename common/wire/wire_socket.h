/* Sends and receives the data plane's messages on ZeroMQ sockets, without copying large
 * payloads. */
#ifndef PS_WIRE_SOCKET_H
#define PS_WIRE_SOCKET_H

#include <stdbool.h>
#include <zmq.h>

#include "secret.h"
#include "wire.h"

enum { PS_WIRE_ID_BYTES = 4 + PS_SECRET_BYTES };

/* A worker's routing id: its rank, big-endian, and its secret. */
void ps_wire_id(uint32_t rank, const ps_secret *secret, uint8_t out[PS_WIRE_ID_BYTES]);
/* The rank in a routing id, proven by the n workers' secrets; -1 when the id is not a
 * worker's. */
int64_t ps_wire_id_rank(const void *id, size_t bytes, const ps_secret *secrets,
                        uint32_t n);

/* A reader's: PS_WIRE_READER, the readers' secret, and a number of its own, drawn. */
enum { PS_WIRE_READER_ID_BYTES = PS_WIRE_ID_BYTES + 8 };
void ps_wire_reader_id(const ps_secret *secret, uint64_t number,
                       uint8_t out[PS_WIRE_READER_ID_BYTES]);
bool ps_wire_id_is_readers(const void *id, size_t bytes, const ps_secret *secret);

/* A shard's, to its twin: its index in the place of a rank, and the servers' secret. The
 * index in such a routing id; -1: it is not one. */
int64_t ps_wire_id_shard(const void *id, size_t bytes, const ps_secret *secret);

/* One received message. Its frames are valid messages from open to close. */
typedef struct ps_wire_frames {
    zmq_msg_t id, header, payload;
    int n; // frames received, id included where there is one; may be more than 3
    bool has_payload;
} ps_wire_frames;

void ps_wire_frames_open(ps_wire_frames *f);
void ps_wire_frames_close(ps_wire_frames *f);

/* Takes one message off the socket if there is one: *got. What f held is released. The
 * payload is 8-byte aligned and, when small, in memory of its own, so that keeping it
 * does not keep a whole receive buffer. Never blocks. NET on failure. */
ps_err ps_wire_recv(void *socket, bool router, ps_wire_frames *f, bool *got);

typedef enum ps_wire_pass {
    PS_WIRE_COPY,  // the payload is copied during the call
    PS_WIRE_BORROW // the payload has to stay until the socket's context is gone
} ps_wire_pass;

/* Sends a header and, unless payload is NULL, a payload. A ROUTER sends to the peer with
 * the routing id; id is NULL on a DEALER. Never blocks. *sent (may be NULL) grows by the
 * bytes of the frames. PEER when a ROUTER does not know the peer (any more); NET
 * otherwise. */
ps_err ps_wire_send(void *socket, const void *id, size_t id_bytes,
                    const ps_wire_header *h, const void *payload, size_t payload_bytes,
                    ps_wire_pass pass, uint64_t *sent);

#endif
