/* Addresses that only this host can reach. */
#ifndef PS_LOOPBACK_H
#define PS_LOOPBACK_H

enum { PS_LOOPBACK_HOST_MAX = 256 }; // room for a name or an address

/* 1 for 127.0.0.0/8, ::1 and IPv4-mapped loopback addresses. 0 for a name, even one that
 * begins like an address. */
int ps_net_is_loopback(const char *address);

#endif
