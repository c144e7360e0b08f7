#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "interrupt.h"
#include "log.h"
#include "lookup.h"

enum {
    MAX_ADDRESSES = 16,
    DIAL_MS = 2000,
    RETRY_MS = 5, // twice as long after each failure, up to
    RETRY_MAX_MS = 100,
    TELL_MS = 1000,
    REFUSAL_MS = 50
};

/* An attempt that is repeated until a deadline. The reason for failing is logged once. */
typedef struct attempts {
    ps_deadline deadline, tell;
    bool told;
    int pause_ms;
    ps_err_saved whole; // why the last attempt failed that the deadline did not cut short
} attempts;

static attempts attempts_until(ps_deadline deadline)
{
    return (attempts){
        .deadline = deadline, .tell = ps_deadline_in_ms(TELL_MS), .pause_ms = RETRY_MS};
}

/* Pauses after a failure. TIMEOUT, with the failure's message, when there is no time
 * left; INTERRUPTED. */
static ps_err pause_before_retry(attempts *a)
{
    // An attempt that was cut short only says that nothing was found: less than the one
    // before it.
    if (!ps_deadline_passed(a->deadline) || a->whole.code == PS_OK)
        a->whole = ps_err_save(PS_ERR_TIMEOUT);
    PS_TRY(ps_interrupt_check());
    int left = ps_deadline_left_ms_max(a->deadline, a->pause_ms);
    a->pause_ms = 2 * a->pause_ms < RETRY_MAX_MS ? 2 * a->pause_ms : RETRY_MAX_MS;
    if (left == 0) return ps_err_restore(&a->whole);
    if (!a->told && ps_deadline_passed(a->tell))
        PS_INFO("waiting", "reason=\"%s\"", a->whole.message);
    a->told |= ps_deadline_passed(a->tell);
    const struct timespec pause = {.tv_nsec = left * 1000000L};
    nanosleep(&pause, NULL);
    // Without time left, nothing could be found, and that would be the reason given.
    return ps_deadline_passed(a->deadline) ? ps_err_restore(&a->whole) : PS_OK;
}

static void net_number_of(const struct sockaddr *a, char out[PS_ADDRESS_MAX])
{
    socklen_t bytes = a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                               : sizeof(struct sockaddr_in);
    if (getnameinfo(a, bytes, out, PS_ADDRESS_MAX, NULL, 0, NI_NUMERICHOST) != 0)
        out[0] = '\0';
}

int ps_net_is_literal(const char *host)
{
    struct in6_addr any;
    return inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1;
}

void ps_net_endpoint(const char *address, int port, char *out, int cap)
{
    const char *format = strchr(address, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d";
    snprintf(out, (size_t)cap, format, address, port);
}

int ps_net_port_of(const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':');
    return colon ? atoi(colon + 1) : 0;
}

void ps_net_at_port(const char *endpoint, int port, char *out, int cap)
{
    const char *colon = strrchr(endpoint, ':');
    snprintf(out, (size_t)cap, "%.*s:%d", colon ? (int)(colon - endpoint) : 0, endpoint,
             port);
}

/* How well an interface's address fits the wish; 0: not at all. */
static int fit_of(const struct ifaddrs *i, const char *wish, size_t prefix)
{
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) return 0;
    int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) return 0;
    char number[PS_ADDRESS_MAX];
    net_number_of(i->ifa_addr, number);
    if (strcmp(number, wish) == 0) return 7;
    // A link-local IPv6 address is of no use to others without its scope.
    int score = family == AF_INET ? 2 : strncmp(number, "fe80:", 5) == 0 ? 0 : 1;
    if (score == 0) return 0;
    if (strcmp(i->ifa_name, wish) == 0) return 4 + score;
    if (strncmp(i->ifa_name, wish, prefix) != 0) return 0;
    // The loopback counts only when nothing else fits and the wish allows it.
    if (i->ifa_flags & IFF_LOOPBACK) return prefix > 0 ? score : 0;
    return 2 + score;
}

static void list_interfaces(const struct ifaddrs *all, char *out, size_t cap)
{
    size_t used = 0;
    out[0] = '\0';
    for (const struct ifaddrs *i = all; i && used < cap; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET) continue;
        char number[PS_ADDRESS_MAX];
        net_number_of(i->ifa_addr, number);
        used += (size_t)snprintf(out + used, cap - used, "%s%s (%s)", used ? ", " : "",
                                 i->ifa_name, number);
    }
}

/* Finds the best address; the first among equals. */
static int best_interface(const struct ifaddrs *all, const char *wish, size_t prefix,
                          char out[PS_ADDRESS_MAX])
{
    int best = 0;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        int fit = fit_of(i, wish, prefix);
        if (fit <= best) continue;
        best = fit;
        net_number_of(i->ifa_addr, out);
    }
    return best;
}

ps_err ps_net_interface_address(const char *interface, char out[PS_ADDRESS_MAX])
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0) return ps_err_errno(PS_ERR_NET, "listing interfaces");
    size_t prefix = strlen(interface);
    if (prefix > 0 && interface[prefix - 1] == '*') prefix--;
    ps_err err = PS_OK;
    if (strcspn(interface, "*?[") < prefix) {
        err = ps_err_set(PS_ERR_NET,
                         "net.interface: \"%s\" is not a name, a prefix (eth*) or an "
                         "address",
                         interface);
    } else if (best_interface(all, interface, prefix, out) == 0) {
        char names[512];
        list_interfaces(all, names, sizeof names);
        err =
            ps_err_set(PS_ERR_NET,
                       "net.interface: no interface that is up fits \"%s\"; there are %s",
                       interface, names);
    }
    freeifaddrs(all);
    return err;
}

ps_err ps_net_resolve(const char *host, ps_deadline deadline, char (*out)[PS_ADDRESS_MAX],
                      int cap, int *n)
{
    struct addrinfo *all;
    *n = 0;
    PS_TRY(ps_lookup(host, deadline, &all));
    const int families[] = {AF_INET, AF_INET6};
    for (int f = 0; f < 2; f++)
        for (struct addrinfo *a = all; a && *n < cap; a = a->ai_next)
            if (a->ai_family == families[f]) net_number_of(a->ai_addr, out[(*n)++]);
    freeaddrinfo(all);
    return *n > 0 ? PS_OK : ps_err_set(PS_ERR_NET, "%s: the host has no address", host);
}

static int make_address(const char *number, int port, struct sockaddr_storage *out,
                        socklen_t *bytes)
{
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *all;
    if (getaddrinfo(number, service, &hints, &all) != 0) return -1;
    memcpy(out, all->ai_addr, all->ai_addrlen);
    *bytes = all->ai_addrlen;
    freeaddrinfo(all);
    return 0;
}

static void net_own_address(int fd, char out[PS_ADDRESS_MAX])
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    out[0] = '\0';
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) == 0)
        net_number_of((const struct sockaddr *)&own, out);
}

/* 0 when there is a route. Connecting a datagram socket sends nothing (udp(7)). */
static int route_to(const char *number, char out[PS_ADDRESS_MAX])
{
    struct sockaddr_storage to;
    socklen_t bytes;
    if (make_address(number, 9, &to, &bytes) != 0) return -1;
    int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    int failed = connect(fd, (const struct sockaddr *)&to, bytes);
    if (!failed) net_own_address(fd, out);
    close(fd);
    return failed || !out[0] ? -1 : 0;
}

void ps_net_default_address(char out[PS_ADDRESS_MAX])
{
    // Documentation addresses (RFC 5737, RFC 3849): only the default route leads to them.
    if (route_to("192.0.2.1", out) != 0 && route_to("2001:db8::1", out) != 0 &&
        ps_net_interface_address("*", out) != PS_OK)
        snprintf(out, PS_ADDRESS_MAX, "127.0.0.1");
}

static ps_err route_to_any(const char *host, ps_deadline deadline,
                           char out[PS_ADDRESS_MAX])
{
    char numbers[MAX_ADDRESSES][PS_ADDRESS_MAX];
    int n;
    PS_TRY(ps_net_resolve(host, deadline, numbers, MAX_ADDRESSES, &n));
    for (int i = 0; i < n; i++)
        if (route_to(numbers[i], out) == 0) return PS_OK;
    return ps_err_set(PS_ERR_NET, "%s: there is no route to it", host);
}

ps_err ps_net_route_address(const char *host, ps_deadline deadline,
                            char out[PS_ADDRESS_MAX])
{
    attempts a = attempts_until(deadline);
    while (route_to_any(host, deadline, out) != PS_OK)
        PS_TRY(pause_before_retry(&a));
    return PS_OK;
}

/* Whether a pending connection is established: PS_OK, or errno's error. */
static ps_err await_connection(int fd, ps_deadline deadline)
{
    struct pollfd items[] = {{.fd = fd, .events = POLLOUT},
                             {.fd = ps_interrupt_fd(), .events = POLLIN}};
    int code = ETIMEDOUT;
    socklen_t bytes = sizeof code;
    (void)poll(items, 2, ps_deadline_left_ms_max(deadline, DIAL_MS));
    if (items[0].revents) getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &bytes);
    if (code == 0) return PS_OK;
    PS_TRY(ps_interrupt_check());
    errno = code;
    return PS_ERR_NET;
}

/* Whether the address accepts within DIAL_MS. NET with errno's message. */
static ps_err dial_once(const char *number, int port, ps_deadline deadline, int *out)
{
    struct sockaddr_storage to;
    socklen_t bytes;
    if (make_address(number, port, &to, &bytes) != 0) {
        errno = EINVAL;
        return PS_ERR_NET;
    }
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return PS_ERR_NET;
    ps_err err = PS_OK;
    if (connect(fd, (const struct sockaddr *)&to, bytes) != 0)
        err = errno == EINPROGRESS ? await_connection(fd, deadline) : PS_ERR_NET;
    if (err == PS_OK) {
        *out = fd;
        return PS_OK;
    }
    int reason = errno;
    close(fd);
    errno = reason;
    return err;
}

ps_err ps_net_connect(const char *host, int port, ps_deadline deadline, int *fd,
                      char remote[PS_ADDRESS_MAX])
{
    char numbers[MAX_ADDRESSES][PS_ADDRESS_MAX];
    int n;
    PS_TRY(ps_net_resolve(host, deadline, numbers, MAX_ADDRESSES, &n));
    ps_err err = PS_ERR_NET;
    for (int i = 0; i < n && err == PS_ERR_NET; i++) {
        err = dial_once(numbers[i], port, deadline, fd);
        if (err == PS_OK && remote) memcpy(remote, numbers[i], PS_ADDRESS_MAX);
    }
    return err == PS_ERR_NET ? ps_err_errno(err, "%s:%d", host, port) : err;
}

ps_err ps_net_reach(const char *host, int port, ps_deadline deadline,
                    char remote[PS_ADDRESS_MAX], char local[PS_ADDRESS_MAX])
{
    int fd;
    PS_TRY(ps_net_connect(host, port, deadline, &fd, remote));
    net_own_address(fd, local);
    close(fd);
    return PS_OK;
}

bool ps_net_refuses(const char *number, int port)
{
    int fd;
    const ps_err err = dial_once(number, port, ps_deadline_in_ms(REFUSAL_MS), &fd);
    if (err == PS_OK) close(fd);
    return err == PS_ERR_NET && errno == ECONNREFUSED;
}

ps_err ps_net_dial(const char *host, int port, ps_deadline deadline,
                   char remote[PS_ADDRESS_MAX], char local[PS_ADDRESS_MAX])
{
    attempts a = attempts_until(deadline);
    while (ps_net_reach(host, port, deadline, remote, local) != PS_OK)
        PS_TRY(pause_before_retry(&a));
    return PS_OK;
}
