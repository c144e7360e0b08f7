/* Thin helpers over ZeroMQ sockets: the options that every socket of the project has,
 * multipart messages within bounds, and deadlines on every wait. */
#ifndef PS_ZSOCK_H
#define PS_ZSOCK_H

#include <poll.h>
#include <stdbool.h>
#include <zmq.h>

#include "clock.h"
#include "curve.h"
#include "err.h"
#include "secret.h"

/* How long (ZMQ_LINGER) sockets stay for their last messages where members join again: a
 * lost connection, and the coordinator's news, tell the same. */
enum { PS_ZSOCK_REJOIN_LINGER_MS = 100 };

enum { PS_ENDPOINT_MAX = 128 };

/* Where libzmq asks about handshakes (rfc.zeromq.org/spec/27), and the domains that it
 * tells for ROUTERs with keys: of members only, and others. */
#define PS_ZSOCK_ZAP     "inproc://zeromq.zap.01"
#define PS_ZSOCK_MEMBERS "members"
#define PS_ZSOCK_DOOR    "door"

/* A context with that many I/O threads and sockets; NOMEM.
 * patient: its I/O threads do not take the processor from threads that compute, but wait
 * for their turn (SCHED_BATCH) where no processor is free. Each message then interrupts
 * less, and takes longer. For processes that send little and compute much; best effort.
 */
ps_err ps_zsock_context(int64_t io_threads, int64_t sockets, bool patient, void **out);

/* How long a peer's host may leave data, or a probe of an idle connection, without an
 * acknowledgement, until the connection is given up. The side that connects then connects
 * again. So a connection is made again that a network router has forgotten without
 * closing it. From net.heartbeat_ms and net.dead_after_ms: ten heartbeats, at most half
 * of what a member may be silent, so that there is time to connect again; a second at
 * least, since a busy machine is silent for a while, too. Pure. */
uint64_t ps_zsock_silence_ms(uint64_t heartbeat_ms, uint64_t dead_after_ms);

typedef struct ps_zsock_options {
    int type;                  // ZMQ_ROUTER, ZMQ_DEALER, ...
    uint64_t silence_ms;       // ps_zsock_silence_ms; 0: connections are not watched
    int64_t max_message_bytes; // a peer that sends a longer frame is cut off; 0: no limit
    const void *routing_id;    // borrowed during the call; NULL: one of ZeroMQ's
    size_t routing_id_bytes;
    int waiting_messages; // of a peer: beyond it, its connection is not read; 0: no limit
    bool asks_for_secret; // a ROUTER of members only: its context has a gate (gate.h)
    const ps_secret *secret; // shown to such a ROUTER, or NULL; borrowed during the call
    /* NULL or without keys: plain. Otherwise a ROUTER's context must have a gate.
     * Borrowed during the call. */
    const ps_curve *curve;
    ps_role peer; // of a DEALER with keys: the role that its peer has to prove
} ps_zsock_options;

/* Opens a socket: linger 0 (the end never waits for a dead peer), no high-water mark for
 * sending (credits bound the queue); ROUTER with MANDATORY (an answer to nobody is an
 * error) and HANDOVER (a restarted peer takes its place). */
ps_err ps_zsock_open(void *zmq_context, const ps_zsock_options *options, void **out);
void ps_zsock_close(void **socket);

/* Binds to "tcp://ADDRESS:PORT" (port 0 or *: a free one) and reports the endpoint as
 * bound (a wildcard address stays one: "tcp://0.0.0.0:40123" or "tcp://[::]:40123"). NET
 * names the endpoint; when the port is in use, it says how to find the process that has
 * it. curve: as for opening; ARG when it does not allow the endpoint
 * (ps_curve_check_endpoint). */
ps_err ps_zsock_bind(void *socket, const ps_curve *curve, const char *where,
                     char endpoint[PS_ENDPOINT_MAX]);
ps_err ps_zsock_connect(void *socket, const ps_curve *curve, const char *endpoint);

/* Receives one message of at most cap frames into parts, *n of them, which the caller
 * closes (ps_zsock_close_parts). *n is 0 when none came before the deadline. PROTOCOL,
 * and nothing to close, when there were more frames: all are dropped. */
ps_err ps_zsock_recv(void *socket, ps_deadline deadline, zmq_msg_t *parts, int cap,
                     int *n);
void ps_zsock_close_parts(zmq_msg_t *parts, int n);

/* Sends one message of n frames and takes them, also on failure. PEER when a ROUTER knows
 * no such peer; TIMEOUT when the socket does not take it before the deadline. */
ps_err ps_zsock_send(void *socket, ps_deadline deadline, zmq_msg_t *parts, int n);

/* What a thread waits for: that a socket or a file descriptor can be read. */
typedef struct ps_zsock_item {
    void *socket; // NULL: fd
    int fd;
    /* Of a socket, true from its owner: nothing was sent or received since it last had
     * nothing to read. Saves the question. */
    bool idle;
    bool ready; // the answer
} ps_zsock_item;

/* zmq_poll for reading, with about half of its system calls: sockets are asked once, and
 * only those whose own descriptor (ZMQ_FD, which tells of changes) speaks are asked
 * again. ms: as zmq_poll's. fds: n, for the call alone. Returns how many are ready, or -1
 * (zmq_errno). */
int ps_zsock_poll(ps_zsock_item *items, struct pollfd *fds, int n, int ms);

/* A frame with a copy of the bytes. */
ps_err ps_zsock_msg_copy(zmq_msg_t *msg, const void *bytes, size_t n);

/* Payload bytes of a TCP connection, as the kernel counts them. */
typedef struct ps_zsock_counts {
    uint64_t received, sent, acknowledged; // acknowledged: by the peer's kernel
} ps_zsock_counts;

/* From now on the kernel accepts a connection for this listener when its first bytes have
 * come: ZeroMQ's peers send theirs at once. Those that say nothing cost this process
 * nothing; the kernel forgets them after half a minute. Best effort. */
void ps_zsock_accept_with_data(int listener);

bool ps_zsock_is_connected(int fd);
/* A number that no other connection of this host has had; 0: fd is no TCP connection, or
 * its peer has closed it. */
uint64_t ps_zsock_connection(int fd);
/* False when fd is not a TCP connection, or the kernel does not count. */
bool ps_zsock_count(int fd, ps_zsock_counts *out);

typedef enum ps_zsock_event {
    PS_ZSOCK_NOTHING,
    PS_ZSOCK_LISTENING, // the socket was bound
    PS_ZSOCK_ACCEPTED,  // a peer has connected; nothing has travelled yet
    PS_ZSOCK_CONNECTED, // messages can travel: what is sent from now on
    PS_ZSOCK_CLOSED     // what was on the way either way may be lost
} ps_zsock_event;

/* Watches connections of a socket that has not been bound or connected yet: *monitor is a
 * socket (close it before the context) for ps_zsock_monitor_read. */
ps_err ps_zsock_monitor(void *zmq_context, void *socket, const char *name,
                        void **monitor);
/* Returns the oldest event that was not read yet. *fd (may be NULL): for LISTENING the
 * listener's descriptor; for ACCEPTED and CLOSED the connection's, as
 * zmq_msg_get(ZMQ_SRCFD) gave it; else -1. Never blocks. */
ps_zsock_event ps_zsock_monitor_read(void *monitor, int *fd);
/* A descriptor for poll, which costs less there than the socket does. It signals an event
 * only after all earlier ones were read. So read until PS_ZSOCK_NOTHING before the first
 * poll and whenever it is readable. NET. */
ps_err ps_zsock_monitor_fd(void *monitor, int *fd);

#endif
