/* Measures TCP alone: every worker sends part of its bytes to each server, or to each
 * other worker, and receives the same number back, in both directions at once. */
#ifndef PS_RAW_TCP_H
#define PS_RAW_TCP_H

typedef struct raw_tcp_step {
    unsigned long bytes; // per step, connection and direction
    unsigned steps;
    unsigned long period_us; // least time between a worker's starts of two steps; 0: none
} raw_tcp_step;

/* Accepts n_workers connections on port and serves their steps. 0, or -1 with a message
 * on stderr. */
int raw_tcp_serve(unsigned short port, unsigned n_workers, const raw_tcp_step *what);

/* Connects to the servers ("10.0.0.1:7000"), waits until they listen, and fills
 * ns[steps]. */
int raw_tcp_work(char *const *servers, unsigned n_servers, const raw_tcp_step *what,
                 unsigned long long *ns);

/* Every rank exchanges with every other, one connection for each pair. hosts[n]: by rank,
 * this rank included. A step ends when this rank has sent and received a step's bytes on
 * every connection. */
int raw_tcp_mesh(unsigned rank, char *const *hosts, unsigned n, const raw_tcp_step *what,
                 unsigned long long *ns);

#endif
