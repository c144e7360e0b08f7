/* What TCP itself reaches: every worker sends a part of its bytes to each server, or to
 * each other worker, and gets as many back, both directions at once. */
#ifndef PS_RAW_TCP_H
#define PS_RAW_TCP_H

typedef struct raw_tcp_step {
    unsigned long bytes; // each way on each connection in a step
    unsigned steps;
    unsigned long period_us; // a worker begins no step sooner after the last; 0: at once
} raw_tcp_step;

/* Accepts n_workers connections on port and serves their steps. 0, or -1 with a message
 * on stderr. */
int raw_tcp_serve(unsigned short port, unsigned n_workers, const raw_tcp_step *what);

/* Connects to the servers ("10.0.0.1:7000"), waiting for them; fills ns[steps]. */
int raw_tcp_work(char *const *servers, unsigned n_servers, const raw_tcp_step *what,
                 unsigned long long *ns);

/* Every rank with every other, one connection for each two: hosts[n] by rank, this one's
 * among them. A step has ended when all others have sent as many bytes as they got. */
int raw_tcp_mesh(unsigned rank, char *const *hosts, unsigned n, const raw_tcp_step *what,
                 unsigned long long *ns);

#endif
