/* A shard's connection to its twin (wire.h): a few numbered messages are on the way at a
 * time, and each is sent again over a new connection until it is answered. Belongs to the
 * shard's thread; never blocks. */
#ifndef PS_TWIN_LINK_H
#define PS_TWIN_LINK_H

#include "member.h"
#include "wire_socket.h"

typedef struct ps_twin_link ps_twin_link;

typedef struct ps_twin_link_options {
    void *zmq_context;
    const ps_member *member; // borrowed for the link's life
    uint32_t shard;          // its index
    const char *endpoint;    // the twin's; borrowed during the call
    uint64_t body_bytes;     // of a message, at most
} ps_twin_link_options;

/* *out is owned by the caller; NULL after a failure. NET, NOMEM. */
ps_err ps_twin_link_create(const ps_twin_link_options *options, ps_twin_link **out);
void ps_twin_link_destroy(ps_twin_link **link);

/* For ps_zsock_poll: one for answers, one for events of the connection. */
void *ps_twin_link_socket(ps_twin_link *link);
void *ps_twin_link_monitor(ps_twin_link *link);

/* Where the next message's body goes (body_bytes); NULL: as many as may be are on the
 * way. */
void *ps_twin_link_body(ps_twin_link *link);
/* Sends it. *sent grows by the bytes of the frames. */
ps_err ps_twin_link_send(ps_twin_link *link, ps_msg_kind kind, uint64_t bytes,
                         uint64_t *sent);

/* Takes the next answer that says something new into f: *got. Then all messages up to
 * that one are answered. PROTOCOL. */
ps_err ps_twin_link_recv(ps_twin_link *link, ps_wire_frames *f, bool *got);
/* Whether all messages are answered. */
bool ps_twin_link_is_idle(const ps_twin_link *link);

/* Reads the events of the connection; over a new one, sends again what is unanswered. */
ps_err ps_twin_link_mend(ps_twin_link *link, uint64_t *sent);

#endif
