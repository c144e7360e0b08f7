/* Finds a port of 127.0.0.1 that is free at this moment. Several tests run at once, and a
 * port that the kernel chooses may be another process's a moment later. So it is a random
 * one below those that the kernel chooses from. */
#ifndef TEST_FREE_PORT_H
#define TEST_FREE_PORT_H

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TEST_FIRST_PORT = 12000, TEST_PORTS = 20000, TEST_PORT_TRIES = 100 };

static inline int test_port_is_free(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    int is_free = s >= 0 && bind(s, (struct sockaddr *)&a, sizeof a) == 0;
    if (s >= 0) close(s);
    return is_free;
}

static inline int test_free_port(void)
{
    for (int i = 0; i < TEST_PORT_TRIES; i++) {
        unsigned drawn = 0;
        if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) break;
        const int port = TEST_FIRST_PORT + (int)(drawn % TEST_PORTS);
        if (test_port_is_free(port)) return port;
    }
    perror("no free port");
    exit(1);
}

#endif
