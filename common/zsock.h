/* Thin helpers over ZeroMQ sockets: the options that every socket of the project has,
 * multipart messages within bounds, and deadlines on every wait. */
#ifndef PS_ZSOCK_H
#define PS_ZSOCK_H

#include <stdbool.h>
#include <zmq.h>

#include "clock.h"
#include "err.h"
#include "secret.h"

enum { PS_ENDPOINT_MAX = 128 };

/* A context with so many I/O threads and sockets; NOMEM.
 * patient: its I/O threads do not take the processor from threads that compute, but wait
 * for their turn (SCHED_BATCH) where no processor is free. Each message then interrupts
 * less, and takes longer. For who sends little and computes much; a wish, where the
 * system forbids it. */
ps_err ps_zsock_context(int64_t io_threads, int64_t sockets, bool patient, void **out);

typedef struct ps_zsock_options {
    int type;                  // ZMQ_ROUTER, ZMQ_DEALER, ...
    int64_t max_message_bytes; // a peer that sends a longer frame is cut off; 0: no limit
    const void *routing_id;    // borrowed during the call; NULL: one of ZeroMQ's
    size_t routing_id_bytes;
    int waiting_messages;    // of a peer; then its connection is not read; 0: no limit
    bool asks_for_secret;    // a ROUTER of members only: its context has a gate (gate.h)
    const ps_secret *secret; // what to show to such a one; borrowed during the call; NULL
} ps_zsock_options;

/* Opens a socket: linger 0 (the end never waits for a dead peer), no high-water mark of
 * what is sent (credits bound what is queued); ROUTER with MANDATORY (an answer to
 * nobody is an error) and HANDOVER (a restarted peer takes its place). */
ps_err ps_zsock_open(void *zmq_context, const ps_zsock_options *options, void **out);
void ps_zsock_close(void **socket);

/* Binds to "tcp://ADDRESS:PORT" (port 0 or *: a free one) and reports the endpoint as
 * bound (a wildcard address stays one: "tcp://0.0.0.0:40123" or "tcp://[::]:40123"). NET
 * names the endpoint; where the port is in use it says how to find out who has it. */
ps_err ps_zsock_bind(void *socket, const char *where, char endpoint[PS_ENDPOINT_MAX]);
ps_err ps_zsock_connect(void *socket, const char *endpoint);

/* Receives one message of at most cap frames into parts, *n of them, which the caller
 * closes (ps_zsock_close_parts). *n is 0 when none came before the deadline. PROTOCOL,
 * and nothing to close, when there were more frames: all are dropped. */
ps_err ps_zsock_recv(void *socket, ps_deadline deadline, zmq_msg_t *parts, int cap,
                     int *n);
void ps_zsock_close_parts(zmq_msg_t *parts, int n);

/* Sends one message of n frames and takes them, also on failure. PEER when a ROUTER knows
 * no such peer; TIMEOUT when the socket does not take it before the deadline. */
ps_err ps_zsock_send(void *socket, ps_deadline deadline, zmq_msg_t *parts, int n);

/* A frame with a copy of the bytes. */
ps_err ps_zsock_msg_copy(zmq_msg_t *msg, const void *bytes, size_t n);

/* What the kernel has counted of a TCP connection, of the payload alone. */
typedef struct ps_zsock_counts {
    uint64_t received, sent, acknowledged; // acknowledged: by the peer's kernel
} ps_zsock_counts;

bool ps_zsock_is_connected(int fd);
/* False where fd is no TCP connection, or the kernel does not count. */
bool ps_zsock_count(int fd, ps_zsock_counts *out);

/* Watches connections of socket: *monitor is a socket (close it before the context) that
 * tells of those of ZeroMQ's events that are asked for (ZMQ_EVENT_ACCEPTED |
 * ZMQ_EVENT_DISCONNECTED). */
ps_err ps_zsock_monitor(void *zmq_context, void *socket, const char *name, int events,
                        void **monitor);
/* One event, 0 when there is none, and the descriptor of its connection, as
 * zmq_msg_get(ZMQ_SRCFD) tells it; -1 where it has none. Never blocks. */
int ps_zsock_monitor_read(void *monitor, int *fd);

#endif
