/* What ZeroMQ itself reaches: a ping-pong, and an exchange's bytes in its pattern. */
#ifndef PS_RAW_ZMQ_H
#define PS_RAW_ZMQ_H

/* A DEALER and a ROUTER of two processes over tcp on this host send bytes to and fro;
 * fills ns[rounds]. 0, or -1 with a message on stderr. */
int raw_zmq_ping(unsigned long bytes, unsigned rounds, unsigned long long *ns);

typedef struct raw_zmq_bulk {
    unsigned workers, servers, steps;
    unsigned long bytes, chunk; // per worker and step; of a message
} raw_zmq_bulk;

/* workers and servers are processes: each worker sends its bytes, a part to each server,
 * in chunks; a server sums the workers' messages of a chunk and sends the sum to all.
 * Fills ns[steps] of worker 0. */
int raw_zmq_exchange(const raw_zmq_bulk *what, unsigned long long *ns);

#endif
