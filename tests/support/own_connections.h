/* Finds and cuts TCP connections that this process has made. Both ends see what they
 * would see if a router was switched off and on. */
#ifndef PS_TEST_OWN_CONNECTIONS_H
#define PS_TEST_OWN_CONNECTIONS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

enum { TEST_CONNECTIONS_MAX = 1024 };

/* is[fd]: whether descriptor fd is a connection to the port */
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

/* Cuts all connections to the port except these; returns how many it cut. */
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
