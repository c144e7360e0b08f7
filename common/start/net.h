/* Addresses of this host and of others. */
#ifndef PS_NET_H
#define PS_NET_H

#include "clock.h"
#include "err.h"
#include "loopback.h"

enum { PS_ADDRESS_MAX = 64 };

/* The address of an interface ("eth0"), of the first interface that is up and whose name
 * starts so ("eth*" or "eth"; the loopback last), or the given address itself when an
 * interface has it. IPv4 first. NET lists the existing interfaces. */
ps_err ps_net_interface_address(const char *interface, char out[PS_ADDRESS_MAX]);

/* The source address of packets to a host (name or address): an address that other hosts
 * there can reach. No packet is sent. A host that does not resolve or has no route yet is
 * tried again until the deadline; TIMEOUT says what stood in the way. INTERRUPTED after a
 * signal. */
ps_err ps_net_route_address(const char *host, ps_deadline deadline,
                            char out[PS_ADDRESS_MAX]);
/* The source address of the default route, else any interface's, else 127.0.0.1. */
void ps_net_default_address(char out[PS_ADDRESS_MAX]);

/* The addresses of a host name, at most cap (IPv4 first); *n of them. NET, TIMEOUT or
 * INTERRUPTED, as ps_lookup says. */
ps_err ps_net_resolve(const char *host, ps_deadline deadline, char (*out)[PS_ADDRESS_MAX],
                      int cap, int *n);

/* Tries the host's addresses in turn until one accepts a TCP connection: *fd is
 * non-blocking and owned by the caller; remote (may be NULL) is that address. NET says
 * why the last address failed. Also TIMEOUT and INTERRUPTED. */
ps_err ps_net_connect(const char *host, int port, ps_deadline deadline, int *fd,
                      char remote[PS_ADDRESS_MAX]);

/* As ps_net_connect, and closes the connection again: remote is the address, local this
 * side's. */
ps_err ps_net_reach(const char *host, int port, ps_deadline deadline,
                    char remote[PS_ADDRESS_MAX], char local[PS_ADDRESS_MAX]);
/* Whether the address (a number, not a name) answers at once that nobody listens on the
 * port: a process that did is gone. False when it accepts, or says nothing within 50 ms.
 */
bool ps_net_refuses(const char *number, int port);
/* As ps_net_reach, except that a host that does not resolve or accept yet is tried again
 * until the deadline; TIMEOUT says what stood in the way. INTERRUPTED after a signal. */
ps_err ps_net_dial(const char *host, int port, ps_deadline deadline,
                   char remote[PS_ADDRESS_MAX], char local[PS_ADDRESS_MAX]);

/* "tcp://10.0.0.7:5000", "tcp://[fe80::1]:5000". */
void ps_net_endpoint(const char *address, int port, char *out, int cap);
/* The port of such an endpoint; 0: it has none. */
int ps_net_port_of(const char *endpoint);
/* The endpoint with another port; cap: of out. */
void ps_net_at_port(const char *endpoint, int port, char *out, int cap);
/* 1 for an IPv4 or IPv6 address, 0 for a name. */
int ps_net_is_literal(const char *host);

#endif
