/* Measures ZeroMQ alone: a ping-pong, and messages in the sizes and pattern of an
 * exchange. */
#ifndef PS_RAW_ZMQ_H
#define PS_RAW_ZMQ_H

/* A DEALER and a ROUTER in two processes send messages of `bytes` back and forth over TCP
 * on this host. Fills ns[rounds]. Returns 0, or -1 with a message on stderr. */
int raw_zmq_ping(unsigned long bytes, unsigned rounds, unsigned long long *ns);

typedef struct raw_zmq_bulk {
    unsigned workers, servers, steps;
    unsigned long bytes, chunk; // bytes per worker and step; bytes per message
} raw_zmq_bulk;

/* Workers and servers are processes. Each worker sends its bytes in chunks, a part to
 * each server. A server sums the workers' messages of a chunk and sends the sum to all
 * workers. Fills ns[steps] with worker 0's times. Returns 0, or -1 with a message on
 * stderr. */
int raw_zmq_exchange(const raw_zmq_bulk *what, unsigned long long *ns);

#endif
