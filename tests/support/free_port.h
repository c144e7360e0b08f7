/* Finds a port of 127.0.0.1 that is free at this moment. */
#ifndef TEST_FREE_PORT_H
#define TEST_FREE_PORT_H

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static inline int test_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof a;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) != 0 ||
        getsockname(s, (struct sockaddr *)&a, &bytes) != 0) {
        perror("no free port");
        exit(1);
    }
    close(s);
    return ntohs(a.sin_port);
}

#endif
