/* The TCP connections that this process has made itself, to be cut: both ends see what
 * they would see of a router that was switched off and on. */
#ifndef PS_TEST_OWN_CONNECTIONS_H
#define PS_TEST_OWN_CONNECTIONS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

enum { TEST_CONNECTIONS_MAX = 1024 };

/* by descriptor: whether it is a connection to that port */
typedef struct test_connections {
    bool is[TEST_CONNECTIONS_MAX];
} test_connections;

static inline void test_connections_to(int port, test_connections *out)
{
    for (int fd = 0; fd < TEST_CONNECTIONS_MAX; fd++) {
        struct sockaddr_in peer = {0};
        socklen_t n = sizeof peer;
        out->is[fd] = getpeername(fd, (struct sockaddr *)&peer, &n) == 0 &&
                      peer.sin_family == AF_INET && ntohs(peer.sin_port) == port;
    }
}

/* All to the port except some; returns how many. */
static inline int test_cut_connections(int port, const test_connections *except)
{
    test_connections found;
    int n = 0;
    test_connections_to(port, &found);
    for (int fd = 0; fd < TEST_CONNECTIONS_MAX; fd++)
        if (found.is[fd] && !except->is[fd] && shutdown(fd, SHUT_RDWR) == 0) n++;
    return n;
}

#endif
